"""A test internet of network namespaces, for tests of the network of sandboxes.

A script calls enter() before it imports the harness. The script then continues in a namespace that plays the host, with one
link to a namespace that plays the world. There a small server answers DNS, HTTP, TLS and raw TCP and UDP on many addresses.
A sniffer records every packet that arrives from "the host", so that a test can show that nothing arrived.

    host   203.0.113.1              the host itself, with a service on port 8080
    world  203.0.113.10             several names with TLS at one address: allowed.test, neighbour.test, …
           203.0.113.20             evil.test
           203.0.113.53             the DNS server
           198.51.100.7             raw TCP (7000) and UDP (7001) echo
           169.254.169.254, 10.9.9.9, 192.168.7.7, 100.64.7.7, 8.8.8.8
"""

import atexit
import email.utils
import json
import os
import pathlib
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

HOST = "203.0.113.1"
WEB, EVIL, DNS, RAW = "203.0.113.10", "203.0.113.20", "203.0.113.53", "198.51.100.7"
METADATA, PRIVATE, OTHER_PRIVATE, SHARED, PUBLIC_DNS = (
    "169.254.169.254",
    "10.9.9.9",
    "192.168.7.7",
    "100.64.7.7",
    "8.8.8.8",
)
NAMES = {
    "allowed.test": WEB,
    "neighbour.test": WEB,
    "api.test": WEB,
    "dns.test": WEB,
    "one.wild.test": WEB,
    "two.one.wild.test": WEB,
    "wild.test": WEB,
    "big.test": WEB,
    "evil.test": EVIL,
    "rebind.test": PRIVATE,
    "meta.test": METADATA,
    "host.test": HOST,
    "loop.test": "127.0.0.1",
    "gateway.test": "10.201.0.1",
    "raw.test": RAW,
    "impostor.test": WEB,
    "example.com": WEB,  # used in the documents
}
TTL = 30
SCRATCH = None  # certificates, the server's records
_INSIDE = "HUSK_TEST_INTERNET"


def _run(*words, check=True):
    return subprocess.run(words, check=check, capture_output=True, text=True, timeout=30)


# ---- set-up, in the script's process ----


def enter():
    """Continues in the host's namespace of a new internet, which is removed when the script ends."""
    global SCRATCH
    if os.environ.get(_INSIDE):
        SCRATCH = pathlib.Path(os.environ[_INSIDE])
        os.environ["HUSK_DNS"] = DNS
        os.environ["SSL_CERT_FILE"] = str(SCRATCH / "ca.crt")
        return
    if os.geteuid() != 0:
        print("skip internet: needs root")
        sys.exit(0)
    SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="husk-net.", dir="/var/tmp"))
    host, world = f"husk-h{os.getpid()}", f"husk-w{os.getpid()}"
    server = None

    def leave():
        if server:
            server.kill()
            server.wait(30)
        for name in (host, world):
            _run("ip", "netns", "del", name, check=False)
        shutil.rmtree(SCRATCH, ignore_errors=True)

    atexit.register(leave)
    _make_namespaces(host, world)
    _make_certificates()
    server = subprocess.Popen(
        ["nsenter", f"--net=/run/netns/{world}", sys.executable, __file__, str(SCRATCH)], stdin=subprocess.DEVNULL
    )
    _wait_for(SCRATCH / "ready", server)
    # An instance of its own: all its supervisors must be in this host's namespace.
    environment = {key: value for key, value in os.environ.items() if key != "HUSK_HOME"}
    environment[_INSIDE] = str(SCRATCH)
    done = subprocess.run(
        ["nsenter", f"--net=/run/netns/{host}", sys.executable, *sys.argv], env=environment, check=False
    )
    leftover = _leftover(host)
    if leftover:
        print(f"not ok internet_empty: {leftover}")
    sys.exit(done.returncode or (1 if leftover else 0))


def _make_namespaces(host, world):
    for name in (host, world):
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "set", "lo", "up")
    _run("ip", "-n", host, "link", "add", "out0", "type", "veth", "peer", "name", "in0", "netns", world)
    for name, device in ((host, "out0"), (world, "in0")):
        _run("ip", "-n", name, "link", "set", device, "up")
    _run("ip", "-n", host, "addr", "add", f"{HOST}/24", "dev", "out0")
    for address in (WEB, EVIL, DNS):
        _run("ip", "-n", world, "addr", "add", f"{address}/24", "dev", "in0")
    for address in (RAW, METADATA, PRIVATE, OTHER_PRIVATE, SHARED, PUBLIC_DNS):
        _run("ip", "-n", world, "addr", "add", f"{address}/32", "dev", "lo")
    _run("ip", "-n", host, "route", "add", "default", "via", WEB)


def _make_certificates():
    """An authority, and one certificate for every name at the shared address."""
    names = ",".join(f"DNS:{name}" for name in NAMES)
    ca, key = SCRATCH / "ca.crt", SCRATCH / "ca.key"
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
    _run(*new, "-keyout", key, "-out", ca, "-subj", "/CN=test authority")
    _run(
        *new, "-keyout", SCRATCH / "web.key", "-out", SCRATCH / "web.crt", "-subj", "/CN=web", "-CA", ca, "-CAkey", key,
        "-addext", f"subjectAltName={names}", "-addext", "basicConstraints=critical,CA:FALSE",
    )
    # A certificate that no authority has signed.
    _run(*new, "-keyout", SCRATCH / "bad.key", "-out", SCRATCH / "bad.crt", "-subj", "/CN=impostor.test", "-addext",
         "subjectAltName=DNS:impostor.test")
    for file in (ca, SCRATCH):
        file.chmod(0o755)


def _wait_for(path, process):
    for _ in range(300):
        if path.exists():
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit("not ok internet: its server did not start")


def _leftover(host):
    """What the tests left in the host's namespace: interfaces, rules, routes."""
    links = _run("ip", "-n", host, "-o", "link").stdout
    from lib.nft import nft  # this file is also a program, which has no lib

    rules = nft(host, "list ruleset")
    routes = _run("ip", "-n", host, "route", "show", "table", "main").stdout
    extra = [line for line in links.splitlines() if " lo:" not in line and " out0@" not in line]
    extra += [line for line in routes.splitlines() if not line.startswith(("default via", "203.0.113.0/24"))]
    return "; ".join(extra + ([rules] if rules else []))


# ---- queries of tests ----


def arrivals():
    """[(protocol, destination, port)] of everything that has arrived in the world so far, without duplicates."""
    with open(SCRATCH / "packets", encoding="utf-8") as file:
        return [tuple(json.loads(line)) for line in file]


def requests():
    """The requests to the servers, in order: {"kind", "host", …}."""
    with open(SCRATCH / "requests", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Service:
    """A service on the host itself; remembers whether a client connected."""

    def __init__(self, address, port):
        self.listener = socket.create_server((address, port))
        self.visits = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.visits += 1
            connection.close()


# ---- the world's server, a process of its own ----


def scripted(path, body):
    """The model of seeds/, for agents in a sandbox: status, content type and text of its answer."""
    import model

    try:
        request = json.loads(body.encode("latin-1"))
        if path.startswith("/v1/messages/count_tokens"):
            return "200 OK", "application/json", json.dumps({"input_tokens": 1})
        if not request.get("stream"):
            return "200 OK", "application/json", json.dumps(model.message(request))
        events = list(model.message_events(request))
        return "200 OK", "text/event-stream", "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    except model.Refusal as refusal:
        return "400 Bad Request", "application/json", json.dumps({"type": "error", "error": {"type": refusal.kind, "message": str(refusal)}})


class World:
    def __init__(self, scratch):
        self.scratch = pathlib.Path(scratch)
        self.record_lock = threading.Lock()
        self.records = open(self.scratch / "requests", "a", buffering=1, encoding="utf-8")
        self.packets = open(self.scratch / "packets", "a", buffering=1, encoding="utf-8")
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(self.scratch / "web.crt", self.scratch / "web.key")
        self.untrusted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.untrusted.load_cert_chain(self.scratch / "bad.crt", self.scratch / "bad.key")
        self.tls.sni_callback = self.choose_certificate

    def choose_certificate(self, connection, name, _):
        connection.asked_name = name
        if name == "impostor.test":
            connection.context = self.untrusted

    def note(self, **what):
        with self.record_lock:
            self.records.write(json.dumps(what) + "\n")

    # -- every packet that comes in --

    def sniff(self):
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        wire.bind(("in0", 3))
        seen = set()
        while True:
            frame, address = wire.recvfrom(2048)
            if address[2] == socket.PACKET_OUTGOING:
                continue
            kind = struct.unpack("!H", frame[12:14])[0]
            if kind != 0x0800:
                what = (f"0x{kind:04x}", "", 0)
                if kind in (0x0806, 0x86DD):  # neighbour discovery between the two ends
                    continue
            else:
                protocol, destination = frame[23], socket.inet_ntoa(frame[30:34])
                port = struct.unpack("!H", frame[36:38])[0] if protocol in (6, 17) else 0
                what = ({1: "icmp", 6: "tcp", 17: "udp"}.get(protocol, str(protocol)), destination, port)
            if what not in seen:
                seen.add(what)
                self.packets.write(json.dumps(what) + "\n")

    # -- DNS --

    def dns_answer(self, query, via):
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode("latin-1"))
            at += 1 + query[at]
        name, (kind, _) = ".".join(labels).lower(), struct.unpack("!HH", query[at + 1 : at + 5])
        self.note(kind="dns", host=name, type=kind, via=via)
        question = query[12 : at + 5]
        address = NAMES.get(name)
        if kind == 1 and address:
            record = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, TTL, 4) + socket.inet_aton(address)
            return query[:2] + struct.pack("!HHHHH", 0x8180, 1, 1, 0, 0) + question + record
        code = 0 if address else 3
        return query[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, 0, 0, 0) + question

    def dns_udp(self, address):
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener.bind((address, 53))
        while True:
            query, peer = listener.recvfrom(4096)
            try:
                listener.sendto(self.dns_answer(query, f"udp {address}"), peer)
            except (IndexError, struct.error):
                pass

    def dns_tcp(self, connection):
        stream = connection.makefile("rb")
        while len(size := stream.read(2)) == 2:
            answer = self.dns_answer(stream.read(struct.unpack("!H", size)[0]), "tcp")
            connection.sendall(struct.pack("!H", len(answer)) + answer)

    # -- HTTP --

    def http(self, connection, tls):
        if tls:
            connection = self.tls.wrap_socket(connection, server_side=True)
        stream = connection.makefile("rb")
        while (request := stream.readline().decode("latin-1").split()) and len(request) == 3:
            headers, length = {}, 0
            while (line := stream.readline().decode("latin-1").strip()):
                key, _, value = line.partition(":")
                headers[key.lower()] = value.strip()
            length = int(headers.get("content-length", 0))
            body = stream.read(length).decode("latin-1")
            self.note(kind="https" if tls else "http", method=request[0], host=headers.get("host"), path=request[1], headers=headers,
                      body=body, sni=getattr(connection, "asked_name", None))
            if request[1].startswith("/stall"):  # takes the request, and never answers
                stream.read(1)
                return
            if request[1].startswith("/v1/messages"):
                self.say(connection, *scripted(request[1], body))
                continue
            if request[1].startswith("/bytes/"):
                self.send_bytes(connection, int(request[1].rpartition("/")[2]))
                continue
            if request[1].startswith("/to/"):  # a redirect to the rest of the path
                self.say(connection, "302 Found", "text/plain", "", f"Location: {request[1][4:]}\r\n")
                continue
            if request[1].startswith("/files/"):  # files that a test wrote into SCRATCH/files
                self.send_file(connection, self.scratch / "files" / urllib.parse.unquote(request[1].partition("?")[0].rpartition("/")[2]))
                continue
            text = json.dumps({"host": headers.get("host"), "path": request[1], "headers": headers, "body": body}) + "\n"
            self.say(connection, "200 OK", "application/json", text)

    def say(self, connection, status, kind, text, more=""):
        body = text if isinstance(text, bytes) else text.encode()
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def send_file(self, connection, path):
        if not path.is_file():
            self.say(connection, "404 Not Found", "text/plain", "no such file\n")
            return
        modified = email.utils.formatdate(path.stat().st_mtime, usegmt=True)
        self.say(connection, "200 OK", "application/octet-stream", path.read_bytes(), f"Last-Modified: {modified}\r\n")

    def careless_http(self, connection, tls):
        """A server that ignores bodies and "Connection: close": the bytes of a body are its next request."""
        if tls:
            connection = self.tls.wrap_socket(connection, server_side=True)
        stream, kind = connection.makefile("rb"), "https" if tls else "http"
        while line := stream.readline():
            words, headers = line.decode("latin-1").split(), {}
            if len(words) != 3 or not words[2].startswith("HTTP/1."):
                continue  # lenient: a line that is not a request line is skipped
            while head := stream.readline().decode("latin-1").strip():
                key, _, value = head.partition(":")
                headers[key.lower()] = value.strip()
            self.note(kind=kind, host=headers.get("host"), path=words[1], headers=headers, body="")
            text = f"{words[1]} of {headers.get('host')}\n"
            connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())

    def send_bytes(self, connection, count):
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {count}\r\n\r\n".encode())
        block = bytes(1 << 18)
        while count > 0:
            connection.sendall(block[: min(count, len(block))])
            count -= len(block)

    # -- raw --

    def echo_tcp(self, connection):
        self.note(kind="tcp", host=connection.getsockname()[0])
        while data := connection.recv(1 << 18):
            connection.sendall(data)

    def sink_tcp(self, connection):
        while connection.recv(1 << 18):
            pass

    def echo_udp(self, address, port):
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener.bind((address, port))
        while True:
            data, peer = listener.recvfrom(65536)
            self.note(kind="udp", host=address, port=port)
            listener.sendto(data, peer)

    # -- all of it --

    def serve_tcp(self, port, handler):
        listener = socket.create_server(("0.0.0.0", port), backlog=512)

        def one(connection):
            try:
                handler(connection)
            except (OSError, ValueError, struct.error, IndexError):
                pass
            finally:
                connection.close()

        while True:
            connection, _ = listener.accept()
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    def run(self):
        jobs = [(self.sniff, ())]
        jobs += [(self.dns_udp, (address,)) for address in (DNS, PUBLIC_DNS, WEB)]
        jobs += [(self.echo_udp, (RAW, 7001)), (self.echo_udp, (WEB, 443)), (self.echo_udp, (EVIL, 7001))]
        for port, handler in (
            (53, self.dns_tcp), (853, self.sink_tcp), (7000, self.echo_tcp), (7002, self.sink_tcp),
            (80, lambda c: self.http(c, False)), (8080, lambda c: self.http(c, False)),
            (443, lambda c: self.http(c, True)), (8443, lambda c: self.http(c, True)),
            (8090, lambda c: self.careless_http(c, False)), (8091, lambda c: self.careless_http(c, True)),
        ):
            jobs.append((self.serve_tcp, (port, handler)))
        for function, arguments in jobs:
            threading.Thread(target=function, args=arguments, daemon=True).start()
        time.sleep(0.3)
        (self.scratch / "ready").touch()
        parent = os.getppid()
        while os.getppid() == parent:  # ends when its parent does, even if the tests are killed
            time.sleep(0.5)


if __name__ == "__main__":
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1] / "seeds")  # not this folder, whose http.py hides Python's own
    World(sys.argv[1]).run()
