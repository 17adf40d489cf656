"""A real registry (Debian's docker-registry) on loopback, and a proxy in front of it that can misbehave."""

import contextlib
import ctypes
import http.client
import http.server
import json
import os
import pathlib
import shutil
import socket
import subprocess
import threading
import time

from lib.harness import Skip, scratch


def free_port(host="127.0.0.1"):
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def bcrypt(password):
    """The hash in the form of htpasswd -B."""
    library = ctypes.CDLL("libcrypt.so.1")
    library.crypt.restype = ctypes.c_char_p
    return library.crypt(password.encode(), b"$2y$05$abcdefghijklmnopqrstuu").decode()


class Registry:
    """Its address, and the folder of its blobs."""

    def __init__(self, root, port, login):
        self.root, self.port, self.login = root, port, login
        self.host = f"127.0.0.1:{port}"

    def push(self, layout, reference, name, *options):
        """Pushes an image of an OCI layout to the registry, with skopeo."""
        login = [f"--dest-creds={self.login}"] if self.login else []
        subprocess.run(
            ["skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false", *login, *options,
             f"oci:{layout}:{reference}", f"docker://{self.host}/{name}"],
            check=True, capture_output=True, timeout=120,
        )

    def blob(self, digest):
        digest = digest.removeprefix("sha256:")
        return pathlib.Path(self.root) / "docker/registry/v2/blobs/sha256" / digest[:2] / digest / "data"


@contextlib.contextmanager
def registry(login=None, tls=None, address="127.0.0.1"):
    """`login`: the required "user:password". `tls`: its (certificate, key)."""
    program = shutil.which("docker-registry")
    if not program or not shutil.which("skopeo"):
        raise Skip("docker-registry or skopeo is not installed")
    with scratch() as place:
        port = free_port(address)
        settings = {
            "version": 0.1,
            "log": {"level": "error", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(place / "storage")}},
            "http": {"addr": f"{address}:{port}"},
        }
        if tls:
            settings["http"]["tls"] = {"certificate": str(tls[0]), "key": str(tls[1])}
        if login:
            user, password = login.split(":")
            (place / "htpasswd").write_text(f"{user}:{bcrypt(password)}\n")
            settings["auth"] = {"htpasswd": {"realm": "test", "path": str(place / "htpasswd")}}
        (place / "config.yml").write_text(json.dumps(settings))
        with open(place / "log", "wb") as log:
            process = subprocess.Popen([program, "serve", place / "config.yml"], stdout=log, stderr=log)
        try:
            for _ in range(200):
                with contextlib.suppress(OSError), socket.create_connection((address, port), 1):
                    break
                assert process.poll() is None, (place / "log").read_text()
                time.sleep(0.05)
            made = Registry(place / "storage", port, login)
            made.host = f"{address}:{port}"
            yield made
        finally:
            process.terminate()
            process.wait(10)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    form = None  # what was posted

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        """Sends a complete answer of this handler."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def upstream(self):
        """The registry's answer to this request: status, headers, body."""
        connection = http.client.HTTPConnection(self.server.behind, timeout=30)
        passed = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        connection.request("GET", self.path, headers=passed)
        reply = connection.getresponse()
        body = reply.read()
        connection.close()
        return reply.status, dict(reply.getheaders()), body

    def relay(self, status, headers, body, cut=None):
        """`cut`: the connection breaks after this many bytes of the body."""
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "date", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def do_POST(self):
        self.form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.do_GET()

    def do_GET(self):
        self.server.seen.append((self.path, dict(self.headers.items())))
        if not self.server.rule(self):
            self.relay(*self.upstream())


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """Ignored: in some tests the client disconnects."""


@contextlib.contextmanager
def proxy(behind, rule=lambda handler: False):
    """A server on loopback before the registry. rule(handler): true if it has answered. Yields the server: .host, .seen."""
    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.behind, server.rule, server.seen = behind, rule, []
    server.host = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def docker_config(place, **members):
    """A directory for DOCKER_CONFIG."""
    folder = place / "docker"
    os.makedirs(folder, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(members))
    return str(folder)
