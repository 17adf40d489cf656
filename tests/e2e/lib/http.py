"""Shared by the end-to-end tests of the server: a huskd over the test's instance, calls over TCP and over the unix socket,
and server-sent events. Uses only the standard library, so that no SDK hides what is on the wire.

    with server() as huskd:
        made = huskd.post("/v1/sandboxes", {"template": "base"}, status=201).json()
        for event in huskd.events("POST", f"/v1/sandboxes/{made['id']}/exec", {"cmd": "date", "stream": True}):
            ...

Calls without a token use the unix socket, calls with a token TCP. `status`: the required status of the answer; None: any.
"""

import atexit
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import time

from lib.harness import BUILD, CALL_SECONDS, HOME, adopt, environment, husk

HUSKD = os.environ.get("HUSKD") or str(BUILD / "huskd")


class Answer:
    """Status, headers and body of one answer."""

    def __init__(self, what, status, headers, body):
        self.what = what
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def text(self):
        return self.body.decode(errors="replace")

    def json(self):
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise AssertionError(f"{self}: not JSON: {error}") from error

    def error(self, code, field=None, says=()):
        """Checks the error document: its code, its field, parts of its text; returns it."""
        document = self.json()
        assert set(document) == {"error"}, f"not an error document: {self}"
        error = document["error"]
        assert set(error) == {"code", "message", "field", "hint"}, f"not an error document: {self}"
        assert error["code"] == code, f"expected code {code}: {self}"
        if field is not None:
            assert error["field"] == field, f"expected field {field}: {self}"
        text = f"{error['message']}; {error['hint']}"
        for piece in [says] if isinstance(says, str) else says:
            assert piece in text, f"{piece!r} is not said: {self}"
        return error

    def __str__(self):
        return f"{self.what} -> {self.status} {self.body[:400]!r}"


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Event:
    """One server-sent event."""

    def __init__(self, kind, data, identity):
        self.kind = kind
        self.data = data
        self.id = identity

    def __repr__(self):
        return f"{self.kind} {self.data}"


def parse_events(stream):
    """Parses events from a file of lines; comments are skipped."""
    kind, data, identity = "message", [], None
    for raw in stream:
        line = raw.decode().rstrip("\r\n")
        if not line:
            if data:
                yield Event(kind, json.loads("\n".join(data)), identity)
            kind, data, identity = "message", [], None
            continue
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "event":
            kind = value
        elif name == "data":
            data.append(value)
        elif name == "id":
            identity = value


class Huskd:
    """A running server; see `server`."""

    def __init__(self, process, socket_path, port, log):
        self.process = process
        self.socket_path = socket_path
        self.port = port
        self.log_path = log

    # ---- calls ----

    def connect(self, token=None, timeout=CALL_SECONDS):
        """A connection for several requests; the caller closes it."""
        if token is not None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        return UnixConnection(self.socket_path, timeout)

    def open(self, method, path, body=None, token=None, headers=None, timeout=CALL_SECONDS, connection=None):
        """Sends a request; returns the connection and http.client's answer, with its body not read yet."""
        connection = connection or self.connect(token, timeout)
        merged = dict(headers or {})
        if token:
            merged.setdefault("Authorization", f"Bearer {token}")
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
            merged.setdefault("Content-Type", "application/json")
        elif isinstance(body, str):
            body = body.encode()
        connection.request(method, path, body=body, headers=merged)
        return connection, connection.getresponse()

    def call(self, method, path, body=None, status=200, **options):
        """One request and its whole answer. `token` "": over TCP without a token."""
        given = options.get("connection")
        connection, answer = self.open(method, path, body, **options)
        try:
            result = Answer(f"{method} {path[:200]}", answer.status, answer.headers, answer.read())
        finally:
            if not given:
                connection.close()
        assert result.headers["X-Request-Id"], f"no request id: {result}"
        if status is not None:
            assert result.status == status, f"expected status {status}: {result}"
        return result

    def get(self, path, status=200, **options):
        return self.call("GET", path, None, status, **options)

    def post(self, path, body=None, status=200, **options):
        return self.call("POST", path, body, status, **options)

    def put(self, path, body=None, status=200, **options):
        return self.call("PUT", path, body, status, **options)

    def delete(self, path, status=204, **options):
        return self.call("DELETE", path, None, status, **options)

    @contextlib.contextmanager
    def stream(self, method, path, body=None, status=200, **options):
        """The events of a stream, as an iterator."""
        connection, answer = self.open(method, path, body, **options)
        try:
            if answer.status != status:
                failed = Answer(f"{method} {path}", answer.status, answer.headers, answer.read())
                raise AssertionError(f"expected status {status}: {failed}")
            assert answer.headers["Content-Type"] == "text/event-stream", answer.headers["Content-Type"]
            yield parse_events(answer)
        finally:
            connection.close()

    def events(self, method, path, body=None, **options):
        """All events of a stream that ends by itself."""
        with self.stream(method, path, body, **options) as events:
            return list(events)

    def raw(self, data, timeout=10, unix=True):
        """Sends raw bytes; returns the answer until the server closes or stops sending."""
        kind = socket.AF_UNIX if unix else socket.AF_INET
        with socket.socket(kind, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(self.socket_path if unix else ("127.0.0.1", self.port))
            got = b""
            with contextlib.suppress(OSError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(65536):
                    got += piece
            return got

    def create(self, token=None, **fields):
        """Creates a sandbox and returns its document; it is removed when the test ends."""
        made = self.post("/v1/sandboxes", fields, status=201, token=token).json()
        adopt(made["id"])
        return made

    # ---- the process ----

    @property
    def pid(self):
        return self.process.pid

    def memory(self):
        """Resident bytes."""
        with open(f"/proc/{self.pid}/status", encoding="ascii") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read())[1]) * 1024

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def kill(self):
        """kill -9"""
        self.process.kill()
        self.process.wait(30)

    def stop(self, seconds=40):
        """Sends SIGTERM and returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


def start_server(*options, port=0, env=None, ready=True):
    """Starts a huskd over the test's instance; the caller ends it. Most tests use `server`."""
    directory = tempfile.mkdtemp(prefix="huskd-test.", dir=HOME)
    log = os.path.join(directory, "log")
    with open(log, "wb") as errors:
        process = subprocess.Popen(
            [HUSKD, "--listen", f"127.0.0.1:{port}", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(env),
        )
    huskd = Huskd(process, f"{HOME}/run/huskd.sock", port, log)
    atexit.register(end_server, huskd)  # even if the test fails
    if ready:
        line = process.stdout.readline().decode()
        found = re.search(r"https?://[^:]*:(\d+)", line)
        if not found:
            process.kill()
            process.wait(30)
            raise AssertionError(f"huskd did not start: {line!r} {huskd.log()!r}")
        huskd.port = int(found[1])
    return huskd


def daytona_created(huskd, body, token):
    """A create on Daytona's wire, followed until the build of its image and the sandbox are done; the last document."""
    document = huskd.post("/daytona/sandbox", body, token=token, status=200).json()
    deadline = time.monotonic() + 600
    while document["state"] in ("pending_build", "building_snapshot", "starting"):
        assert time.monotonic() < deadline, f"the build did not end: {document}"
        time.sleep(0.1)
        document = huskd.get(f"/daytona/sandbox/{document['id']}", token=token, status=200).json()
    return document


@contextlib.contextmanager
def server(*options, **more):
    huskd = start_server(*options, **more)
    try:
        yield huskd
    finally:
        end_server(huskd)


def end_server(huskd):
    if huskd.process.poll() is None:
        huskd.process.kill()
    huskd.process.wait(30)
    huskd.process.stdout.close()
    with contextlib.suppress(OSError):
        os.unlink(huskd.log_path)
        os.rmdir(os.path.dirname(huskd.log_path))


@contextlib.contextmanager
def token(name, *options):
    """Creates a token and returns its secret; it is revoked afterwards."""
    made = husk("token", "create", name, "--json", *options).json()
    try:
        yield made["token"]
    finally:
        husk("token", "rm", name, code=None)


def assert_memory(huskd, limit, what, seconds=0):
    """Asserts that the server uses at most `limit` memory, within some seconds. Sanitizers use additional memory."""
    if "asan" in HUSKD or "tsan" in HUSKD:
        return
    deadline = time.monotonic() + seconds
    while huskd.memory() > limit:
        assert time.monotonic() < deadline, f"{what}: {huskd.memory()} bytes, at most {limit} wanted"
        time.sleep(0.1)


def median(values):
    return sorted(values)[len(values) // 2]


def timed(function):
    """Returns how many milliseconds a call took."""
    started = time.perf_counter()
    function()
    return (time.perf_counter() - started) * 1000


def certificate(directory):
    """Makes a certificate for 127.0.0.1; returns the server's options, and a client's context that trusts it."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem"]
        + ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=directory,
        check=True,
        capture_output=True,
        timeout=60,
    )
    options = ("--cert", str(directory / "cert.pem"), "--key", str(directory / "key.pem"))
    return options, ssl.create_default_context(cafile=str(directory / "cert.pem"))
