#!/usr/bin/env python3
"""The leash process on its own: `husk leash` between a namespace that plays the guest and the test internet.

No sandbox is involved, so every packet and every byte of what the guest sends is the test's own. What sandboxes see of it
is in 44_leash.py.
"""
# timeout: 300

import base64
import concurrent.futures
import ctypes
import json
import os
import pathlib
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

from lib import internet

internet.enter()
from lib.harness import HUSK, assert_equal, assert_in, main, test, until  # noqa: E402
from lib.nft import nft  # noqa: E402

GATEWAY, GUEST, UID = "10.201.0.1", "10.201.0.2", 0x0FFF0001
GATEWAY_SPACE, GUEST_SPACE = f"husk-lw{os.getpid()}", f"husk-lg{os.getpid()}"
RULES = f"""
table inet husk {{
 chain to_leash {{
  type filter hook prerouting priority mangle; policy drop;
  iifname "lo" accept
  ip daddr {GATEWAY} meta l4proto {{ tcp, udp }} th dport 53 accept
  meta l4proto tcp tproxy ip to :40001 accept
  meta l4proto udp tproxy ip to :40002 accept
 }}
}}
"""


def run(*words, **options):
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=30, **options)


def make_spaces():
    for name in (GATEWAY_SPACE, GUEST_SPACE):
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
    run("ip", "-n", GATEWAY_SPACE, "link", "add", "wire", "type", "veth", "peer", "name", "eth0", "netns", GUEST_SPACE)
    for name, device, address in ((GATEWAY_SPACE, "wire", GATEWAY), (GUEST_SPACE, "eth0", GUEST)):
        run("ip", "-n", name, "addr", "add", f"{address}/30", "dev", device)
        run("ip", "-n", name, "link", "set", device, "up")
    run("ip", "-n", GUEST_SPACE, "route", "add", "default", "via", GATEWAY)
    run("ip", "-n", GATEWAY_SPACE, "route", "add", "local", "0.0.0.0/0", "dev", "lo")
    nft(GATEWAY_SPACE, RULES)


def remove_spaces():
    for name in (GATEWAY_SPACE, GUEST_SPACE):
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=30)


# ---- the guest: threads in its namespace ----


def enter_guest():
    space = os.open(f"/run/netns/{GUEST_SPACE}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(space, 0x40000000) < 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(space)


POOL = None


def guest(function, *arguments, **options):
    return POOL.submit(function, *arguments, **options).result(60)


def dns(name, kind=1, server=GATEWAY, over="udp", edns=False, timeout=4):
    """(rcode, [addresses], the whole answer); None when there is none."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"
    query = struct.pack("!HHHHHH", 0x4242, 0x0100, 1, 0, 0, 1 if edns else 0) + labels + struct.pack("!HH", kind, 1)
    if edns:
        query += b"\0" + struct.pack("!HHIH", 41, 1232, 0, 0)

    def ask():
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM if over == "tcp" else socket.SOCK_DGRAM) as s:
            s.settimeout(timeout)
            s.connect((server, 53))
            s.sendall(struct.pack("!H", len(query)) + query if over == "tcp" else query)
            try:
                return s.recv(4096)[2 if over == "tcp" else 0 :]
            except (TimeoutError, ConnectionError):
                return None

    answer = guest(ask)
    if not answer:
        return None
    count = struct.unpack("!H", answer[6:8])[0]
    at = 12 + len(labels) + 4
    addresses = []
    for _ in range(count if kind == 1 else 0):
        addresses.append(socket.inet_ntoa(answer[at + 12 : at + 16]))
        at += 16
    return answer[3] & 15, addresses, answer


def speak(address, port, *texts, timeout=5, hold=False):
    """Sends each text, and gives back all that came until the other side was quiet or gone. None: a reset."""

    def talk():
        s, got = socket.socket(), b""
        s.settimeout(timeout)
        try:
            s.connect((address, port))
            for text in texts:
                s.sendall(text if isinstance(text, bytes) else text.encode())
                s.settimeout(timeout)
                chunk = s.recv(65536)
                got += chunk
                s.settimeout(0.3)
                try:
                    while chunk := s.recv(65536):
                        got += chunk
                except TimeoutError:
                    pass
        except ConnectionError:
            return got or None
        except TimeoutError:
            pass
        finally:
            if not hold:
                s.close()
        return (s, got) if hold else got

    return guest(talk)


def get(host, path="/", *headers):
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}", *headers]
    return "\r\n".join(lines) + "\r\n\r\n"


def tls_context():
    context = ssl.create_default_context(cafile=internet.SCRATCH / "ca.crt")
    return context


def tls(address, name, *texts, port=443, context=None):
    """The answers over TLS; or the exception's text."""

    def talk():
        try:
            with socket.create_connection((address, port), 5) as plain:
                with (context or tls_context()).wrap_socket(plain, server_hostname=name) as s:
                    s.settimeout(5)
                    got = b""
                    for text in texts:
                        s.sendall(text.encode())
                        got += s.recv(65536)
                    return got.decode("latin-1")
        except (OSError, ssl.SSLError) as error:
            return f"{type(error).__name__}: {error}"

    return guest(talk)


# ---- the supervisor: this test ----


class Leash:
    def __init__(self):
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        space = os.open(f"/run/netns/{GATEWAY_SPACE}", os.O_RDONLY)
        self.process = subprocess.Popen(
            [HUSK, "leash", "--resolver", GATEWAY, "--uid", str(UID), "--authorities",
             str(internet.SCRATCH / "ca.crt")], stdin=theirs, stdout=space)
        theirs.close()
        os.close(space)
        self.serial, self.events, self.traffic = 0, [], {}
        self.messages = []
        self.changed = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()
        self.wait(lambda m: "ready" in m or "failed" in m)

    def _listen(self):
        while text := self._receive():
            message = json.loads(text)
            with self.changed:
                if "event" in message:
                    self.events.append(message["event"] | {"count": message["count"]})
                for item in message.get("traffic", []):
                    sums = self.traffic.setdefault((item["host"], item["port"]), dict.fromkeys(item, 0))
                    for key in ("sent", "received", "connections", "denied"):
                        sums[key] += item[key]
                self.messages.append(message)
                self.changed.notify_all()

    def _receive(self):
        try:
            return self.control.recv(1 << 20)
        except OSError:
            return None

    def wait(self, wanted):
        with self.changed:
            assert self.changed.wait_for(lambda: any(wanted(m) for m in self.messages), 10), self.messages
            return next(m for m in reversed(self.messages) if wanted(m))

    def send(self, **message):
        self.control.send(json.dumps(message).encode())

    def set(self, mode="allow", *allow, secrets=None, limits=None, used=0):
        policy = {"mode": mode, "allow": list(allow)}
        if limits:
            policy["limits"] = limits
        message = {"serial": self.serial + 1, "resolvers": [f"{internet.DNS}:53"], "used": used}
        if secrets:
            policy["secrets"] = [{"name": name, "hosts": [host]} for name, _, host in secrets]
            message["secrets"] = {"values": {name: value for name, value, _ in secrets},
                                  "certificate": (internet.SCRATCH / "ca.crt").read_text(),
                                  "key": (internet.SCRATCH / "ca.key").read_text()}
        self.serial += 1
        self.send(policy=policy, **message)
        number = self.serial
        answer = self.wait(lambda m: m.get("applied") == number or m.get("serial") == number)
        assert "applied" in answer, answer

    def flush(self):
        self.serial += 1
        number = self.serial
        self.send(flush=number)
        self.wait(lambda m: m.get("flushed") == number)

    def denied(self, host):
        self.flush()
        return [event for event in self.events if event["host"] == host and event["verdict"] == "denied"]

    def stop(self):
        self.control.shutdown(socket.SHUT_RDWR)
        self.process.wait(10)
        self.control.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def resolve(name):
    answer = dns(name)
    assert answer and answer[0] == 0 and answer[1], (name, answer)
    return answer[1][0]


# ---- names ----


@test
def answers_allowed_names_only():
    with Leash() as leash:
        leash.set("allow", "allowed.test", "*.wild.test", "rebind.test", "meta.test", "host.test", "loop.test")
        assert_equal(dns("allowed.test")[:2], (0, [internet.WEB]))
        assert_equal(dns("ALLOWED.test")[:2], (0, [internet.WEB]))
        assert_equal(dns("two.one.wild.test")[:2], (0, [internet.WEB]))
        assert_equal(dns("allowed.test", over="tcp")[:2], (0, [internet.WEB]))
        assert_equal(dns("allowed.test", kind=28)[:2], (0, []), "no ipv6 addresses")
        assert_equal(dns("allowed.test", kind=65)[:2], (0, []), "no service records")
        for name in ("evil.test", "wild.test", "allowed.test.evil.test", "notallowed.test", "x" * 60 + ".evil.test"):
            assert_equal(dns(name)[0], 5, name)
        assert_in(b"evil.test is not allowed", dns("evil.test", edns=True)[2], "the reason, for clients that show it")
        for name in ("rebind.test", "meta.test", "host.test", "loop.test"):
            assert_equal(dns(name)[0], 5, f"{name} leads to where no name may")
        assert_equal(dns("allowed.test", kind=16)[0], 0, "other records of allowed names pass")
        assert_equal(dns("allowed.test", kind=252)[0], 4, "no transfers")
        assert not [r for r in internet.requests() if r["kind"] == "dns" and "evil" in r["host"]], "asked the world"
        event = leash.denied("evil.test")[0]
        assert_equal((event["kind"], event["rule"]), ("dns", "evil.test"))


@test
def reaches_no_other_resolver():
    with Leash() as leash:
        leash.set("allow", "allowed.test", internet.RAW)
        assert dns("allowed.test", server=internet.PUBLIC_DNS, timeout=1) is None
        assert dns("allowed.test", server=internet.PUBLIC_DNS, over="tcp", timeout=2) is None
        leash.set("open")
        assert dns("allowed.test", server=internet.PUBLIC_DNS, timeout=1) is None
        assert ("udp", internet.PUBLIC_DNS, 53) not in internet.arrivals()


# ---- HTTP ----


@test
def carries_http_to_allowed_hosts():
    with Leash() as leash:
        leash.set("allow", "allowed.test")
        web = resolve("allowed.test")
        answer = speak(web, 80, get("allowed.test", "/a"), get("allowed.test", "/b")).decode()
        assert_in('"/a"', answer)
        assert_in('"/b"', answer)
        answer = speak(web, 80, "POST /c HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 5\r\n\r\nhello").decode()
        assert_in('"hello"', answer)
        leash.flush()
        assert_equal(leash.traffic[("allowed.test", 80)]["connections"], 2)
        assert leash.traffic[("allowed.test", 80)]["received"] > 100


@test
def refuses_http_with_the_reason():
    with Leash() as leash:
        leash.set("allow", "allowed.test")
        web = resolve("allowed.test")
        for host, reason, rule in (
            ("evil.test", "evil.test is not allowed", "--allow evil.test"),
            ("neighbour.test", "neighbour.test is not allowed", "--allow neighbour.test"),
            ("allowed.test:8080", "names port 8080", ""),
        ):
            answer = speak(web, 80, get(host)).decode()
            assert_in("HTTP/1.1 403 ", answer)
            assert_in(reason, answer)
            assert_in(rule, answer)
        answer = speak(web, 8080, get("allowed.test:8080")).decode()
        assert_in("allowed, but not on port 8080", answer)
        assert_in("--allow allowed.test:8080", answer)
        answer = speak(internet.EVIL, 80, get("allowed.test")).decode()
        assert_in("not an address that the resolver gave", answer)
        assert_equal(leash.denied("evil.test")[0]["rule"], "evil.test")


@test
def looks_at_every_request_of_a_connection():
    before = len(internet.requests())
    with Leash() as leash:
        leash.set("allow", "allowed.test")
        web = resolve("allowed.test")
        answer = speak(web, 80, get("allowed.test", "/first"), get("neighbour.test", "/second")).decode()
        assert_in('"/first"', answer)
        assert_in("neighbour.test is not allowed", answer)
        hidden = get("neighbour.test", "/smuggled")
        for text in (
            get("allowed.test", "/p") + hidden,
            f"POST /p HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 0\r\nContent-Length: {len(hidden)}\r\n\r\n{hidden}",
            f"POST /p HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}",
            f"POST /p HTTP/1.1\r\nHost: allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}",
            f"GET /p HTTP/1.1\r\nHost: allowed.test\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n{hidden}",
            f"GET /p HTTP/1.1\r\nHost: allowed.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n{hidden}",
            "GET /p HTTP/1.1\r\nHost: allowed.test\r\nHost: neighbour.test\r\n\r\n",
            "GET http://neighbour.test/p HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
            "GET /p HTTP/1.1\nHost: neighbour.test\n\n",
            "GET /p HTTP/1.1\r\nHost : neighbour.test\r\nHost: allowed.test\r\n\r\n",
            "GET /p HTTP/1.1\r\nHost: allowed.test\r\n Host: neighbour.test\r\n\r\n",
            "CONNECT evil.test:443 HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ):
            speak(web, 80, text, timeout=2)
    seen = internet.requests()[before:]
    assert not [r for r in seen if "neighbour" in str(r.get("host")) or "smuggled" in r.get("path", "")], seen


def with_body(host, hidden, method="GET", framing="length", path="/seen"):
    """A request whose body is another one."""
    if framing == "length":
        return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(hidden)}\r\n\r\n{hidden}"
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n{framing}"


@test
def hides_no_request_in_the_body_of_another():
    """The host ignores bodies: to it their bytes are requests, which the leash has not judged."""
    before = len(internet.requests())
    with Leash() as leash:
        leash.set("allow", "allowed.test:8090", "api.test:8091", secrets=[("TOKEN", VALUE, "api.test:8091")])
        web = resolve("allowed.test")
        resolve("api.test")
        hidden = get("neighbour.test:8090", "/smuggled")
        chunk = f"{len(hidden):x}\r\n{hidden}\r\n0\r\n\r\n"
        for method in ("GET", "HEAD", "DELETE", "OPTIONS", "POST", "PUT"):
            for text in (hidden, "\r\n \r\n" + hidden, hidden.replace("\r\n", "\n"), hidden.replace(" ", "\t", 2),
                         "GET http://neighbour.test/smuggled HTTP/1.0", "GET http://neighbour.test/smuggled\r\n\r\n"):
                answer = speak(web, 8090, with_body("allowed.test:8090", text, method))
                assert_in("HTTP/1.1 400 ", (answer or b"").decode(), f"{method} {text!r}")
        for framing in (chunk, "0\r\n" + hidden, "0;" + "x" * 300 + "\r\n\r\n", "5;" + hidden, "0x5\r\nhello\r\n0\r\n\r\n"):
            answer = speak(web, 8090, with_body("allowed.test:8090", "", "POST", framing))
            assert_in("HTTP/1.1 400 ", (answer or b"").decode(), framing)
        # Piece by piece, and cut short.
        head, _, body = with_body("allowed.test:8090", hidden).partition("\r\n\r\n")
        guest(dribble, web, 8090, head + "\r\n\r\n", body)
        guest(dribble, web, 8090, head.replace("Length: ", "Length: 9") + "\r\n\r\n", body[:-4])
        assert_in("400", tls(web, "api.test", with_body("api.test:8091", get("api.test:8091", "/smuggled")), port=8091))
        leash.flush()
        assert leash.denied("allowed.test") and leash.denied("api.test")
    seen = internet.requests()[before:]
    assert not [r for r in seen if "neighbour" in str(r.get("host")) or "smuggled" in r.get("path", "")], seen


def dribble(address, port, head, body):
    """Sends the body byte by byte and then its end, whatever the other side says."""
    with socket.create_connection((address, port), 5) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            s.sendall(head.encode())
            for byte in body.encode():
                s.sendall(bytes([byte]))
            s.shutdown(socket.SHUT_WR)
            s.settimeout(2)
            while s.recv(4096):
                pass
        except (ConnectionError, TimeoutError):
            pass


@test
def ends_a_connection_with_the_request_that_has_a_body():
    before = len(internet.requests())
    with Leash() as leash:
        leash.set("allow", "allowed.test", "allowed.test:8090")
        web = resolve("allowed.test")
        post = "POST /p HTTP/1.1\r\nHost: ALLOWED.test.\r\nConnection: content-length\r\nContent-Length: 5\r\n\r\nhello"
        answer = speak(web, 80, get("allowed.test", "/one") + post + get("allowed.test", "/late")).decode()
        assert_in('"/one"', answer)
        assert_in('"hello"', answer)
        assert "/late" not in answer, answer
        assert_equal(answer.count("Connection: close"), 1)
        [sent] = [r for r in internet.requests()[before:] if r.get("path") == "/p"]
        assert_equal((sent["headers"]["connection"], sent["host"]), ("close", "allowed.test"))
        # Without bodies the connection lasts, one answer after the other, and each request is in the log.
        answer = speak(web, 80, "".join(get("allowed.test", f"/k{i}") for i in range(20))).decode()
        assert_equal(answer.count(" 200 OK"), 20)
        leash.flush()
        assert_equal(leash.traffic[("allowed.test", 80)]["connections"], 2)
        # A host that answers more often than it was asked is cut off after the first answer.
        answer = speak(web, 8090, with_body("allowed.test:8090", "\0\r\n" + get("neighbour.test:8090", "/unasked")))
        assert "/unasked" not in (answer or b"").decode(), answer


SOCKETS = """
import socket, threading
def serve(c):
    head = b""
    while not head.endswith(b"\\r\\n\\r\\n"):
        head += c.recv(1)
    if b"pgrade: websocket" not in head:
        c.sendall(b"HTTP/1.1 426 No\\r\\nContent-Length: 0\\r\\n\\r\\n")
    else:
        c.sendall(b"HTTP/1.1 101 Yes\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n")
    while data := c.recv(4096):
        c.sendall(b"<" + data + b">")
listener = socket.create_server(("0.0.0.0", 8081))
print("up", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@test
def lets_websockets_take_a_connection_over():
    world = f"/run/netns/husk-w{os.getppid()}"
    upgrade = get("allowed.test:8081", "/", "Upgrade: websocket", "Connection: Upgrade")
    with Leash() as leash, subprocess.Popen(["nsenter", f"--net={world}", sys.executable, "-c", SOCKETS],
                                            stdout=subprocess.PIPE) as server:
        try:
            server.stdout.readline()
            leash.set("allow", "allowed.test:8081")
            web = resolve("allowed.test")
            answer = speak(web, 8081, upgrade, b"\x81\x05hello", get("neighbour.test")).decode("latin-1")
            assert_in("101 Yes", answer)
            assert_in("<\x81\x05hello>", answer, "after that it is the socket's own language")
            answer = speak(web, 8081, get("allowed.test:8081"), upgrade, b"raw", timeout=2).decode("latin-1")
            assert_in("426 No", answer)
            assert "<raw" not in answer and "101" not in answer, "only the first request may"
        finally:
            server.kill()


# ---- TLS ----


@test
def carries_tls_by_the_name_in_its_hello():
    with Leash() as leash:
        leash.set("allow", "allowed.test", "evil.test:8443")
        web = resolve("allowed.test")
        assert_in('"/x"', tls(web, "allowed.test", get("allowed.test", "/x")))
        denied = tls(web, "neighbour.test", get("neighbour.test"))
        assert_in("access denied", denied.lower(), "an alert, not silence")
        nameless = ssl._create_unverified_context()
        assert_in("access denied", tls(web, None, get("allowed.test"), context=nameless).lower())
        assert_in("access denied", tls(internet.EVIL, "allowed.test", get("allowed.test")).lower(), "another address")
        assert_in("access denied", tls(web, "allowed.test", get("allowed.test"), port=8443).lower(), "another port")
        assert_equal(leash.denied("neighbour.test")[0]["kind"], "tls")
        assert_in('"/y"', tls(resolve("evil.test"), "evil.test", get("evil.test", "/y"), port=8443))


def hello(name, encrypted=False, record=16384):
    """A ClientHello for `name`, cut into records of that size."""
    extensions = struct.pack("!HHHBH", 0, len(name) + 5, len(name) + 3, 0, len(name)) + name.encode()
    if encrypted:
        extensions += struct.pack("!HH", 0xFE0D, 8) + bytes(8)
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\2\x13\x01" + b"\1\0" + struct.pack("!H", len(extensions)) + extensions
    message = b"\1" + struct.pack("!I", len(body))[1:] + body
    parts = [message[i : i + record] for i in range(0, len(message), record)]
    return b"".join(b"\x16\x03\x01" + struct.pack("!H", len(part)) + part for part in parts)


@test
def is_not_fooled_by_odd_hellos():
    before = len(internet.requests())
    with Leash() as leash:
        leash.set("allow", "allowed.test")
        web = resolve("allowed.test")
        alert = bytes([21, 3, 3, 0, 2, 2, 49])
        assert_equal(speak(web, 443, hello("neighbour.test", record=1)), alert, "cut into records of one byte")
        assert_equal(speak(web, 443, hello("allowed.test", encrypted=True)), alert, "encrypted client hello")
        assert speak(web, 443, hello("allowed.test", record=3)) not in (alert, None), "cut, but allowed"
        assert_equal(speak(web, 443, hello("allowed.test.")), alert, "a final dot")
        assert_equal(speak(web, 443, hello("allowed.test\0.evil")), alert, "a name with a NUL in it")
        assert_in("encrypted", leash.denied("allowed.test")[0]["reason"])
    assert not [r for r in internet.requests()[before:] if r.get("sni") not in (None, "allowed.test")]


# ---- addresses ----


@test
def carries_raw_bytes_to_listed_addresses_only():
    with Leash() as leash:
        leash.set("allow", "allowed.test", "raw.test", f"{internet.RAW}:7000")
        assert_equal(speak(internet.RAW, 7000, "ping"), b"ping")
        assert speak(internet.RAW, 7002, "ping") is None, "another port"
        assert speak(internet.EVIL, 7000, "ping") is None, "another address"
        assert speak(resolve("allowed.test"), 7000, "ping") is None, "a name is no leave for raw bytes"
        assert ("tcp", internet.EVIL, 7000) not in internet.arrivals()
        leash.set("allow", "198.51.100.0/24")
        assert_equal(speak(internet.RAW, 7000, "ping", "pong"), b"pingpong")


def udp(address, port, text=b"ping", timeout=1.0):
    def talk():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(timeout)
            s.sendto(text, (address, port))
            try:
                return s.recvfrom(65536)
            except TimeoutError:
                return None

    return guest(talk)


@test
def carries_datagrams_to_listed_addresses_only():
    with Leash() as leash:
        leash.set("allow", "allowed.test", f"{internet.RAW}:7001")
        resolve("allowed.test")
        assert_equal(udp(internet.RAW, 7001), (b"ping", (internet.RAW, 7001)))
        assert_equal(udp(internet.RAW, 7001, b"x" * 1400)[0], b"x" * 1400)
        assert udp(internet.EVIL, 7001) is None
        assert udp(internet.WEB, 443) is None, "quic to an allowed name"
        leash.set("open")
        assert_equal(udp(internet.EVIL, 7001)[0], b"ping")
        assert udp(internet.PUBLIC_DNS, 53) is None
        leash.set("allow", "allowed.test")
        assert udp(internet.EVIL, 7001) is None, "the policy changed"
        assert leash.denied(internet.EVIL)


@test
def keeps_private_places_shut():
    service = internet.Service("0.0.0.0", 8088)
    places = (internet.METADATA, internet.PRIVATE, internet.OTHER_PRIVATE, internet.SHARED, internet.HOST, GATEWAY)
    with Leash() as leash:
        leash.set("open")
        assert_equal(speak(internet.EVIL, 7000, "ping"), b"ping", "open is open")
        for place in places:
            assert_in("403", speak(place, 80, get("x.test")).decode(), place)
            assert speak(place, 8088, "ping", timeout=3) is None, place
        leash.set("allow", "0.0.0.0/0")
        assert_equal(speak(internet.EVIL, 7000, "ping"), b"ping")
        for place in places:
            assert speak(place, 7000, "ping", timeout=3) is None, f"{place} by a rule for everything"
        assert_equal(service.visits, 0)
        leash.set("allow", f"{internet.PRIVATE}:7000", f"{internet.HOST}/24".replace(".1/", ".0/"), "127.0.0.0/8")
        assert_equal(speak(internet.PRIVATE, 7000, "ping"), b"ping", "listed by hand")
        assert speak(internet.HOST, 8088, "ping", timeout=3) is None, "a range is not the host"
        leash.set("allow", f"{internet.HOST}:8088")
        speak(internet.HOST, 8088, "ping")
        assert_equal(service.visits, 1, "the host, listed by hand")
    seen = {place for _, place, _ in internet.arrivals()}
    assert not seen & {internet.METADATA, internet.OTHER_PRIVATE, internet.SHARED, GATEWAY}, seen


# ---- changes and limits ----


@test
def cuts_what_a_new_policy_does_not_allow():
    with Leash() as leash:
        leash.set("allow", f"{internet.RAW}:7000", "allowed.test")
        web = resolve("allowed.test")
        raw, _ = speak(internet.RAW, 7000, "ping", hold=True)
        kept, _ = speak(web, 80, get("allowed.test"), hold=True)
        leash.set("allow", "allowed.test")
        raw.settimeout(5)
        try:
            assert_equal(raw.recv(10), b"")
        except ConnectionResetError:
            pass
        kept.settimeout(5)
        kept.sendall(get("allowed.test", "/still").encode())
        assert_in("/still", kept.recv(65536).decode())
        kept.close()
        raw.close()


def echo(size):
    """Has so many bytes sent back, however long that takes; how many came."""
    with socket.create_connection((internet.RAW, 7000), 30) as s:
        s.sendall(b"x" * size)
        s.shutdown(socket.SHUT_WR)
        got = 0
        while chunk := s.recv(65536):
            got += len(chunk)
        return got


@test
def keeps_to_limits():
    with Leash() as leash:
        leash.set("allow", internet.RAW, limits={"connections": 2})
        held = [speak(internet.RAW, 7000, "ping", hold=True)[0] for _ in range(2)]
        assert speak(internet.RAW, 7000, "ping") is None
        assert_in("2 connections", leash.denied(internet.RAW)[0]["reason"])
        for s in held:
            s.close()
        leash.set("allow", internet.RAW, limits={"rate": 100_000})
        began = time.monotonic()
        assert_equal(guest(echo, 50_000), 50_000)
        assert time.monotonic() - began > 0.5, "100 kB at 100 kB a second"
        leash.set("allow", internet.RAW, limits={"bytes": 400_000})
        assert len(speak(internet.RAW, 7000, b"x" * 300_000, timeout=3) or b"") < 300_000
        assert speak(internet.RAW, 7000, "ping") is None, "none left"
        assert_in("400000 bytes", leash.denied("*")[0]["reason"])
        leash.set("allow", internet.RAW)
        assert_equal(speak(internet.RAW, 7000, "ping"), b"ping")


@test
def tells_a_flood_of_denials_in_few_words():
    with Leash() as leash:
        leash.set("allow", "allowed.test")
        for _ in range(100):
            dns("evil.test")
        for i in range(100):
            dns(f"n{i}.evil.test")
        leash.flush()
        told = [event for event in leash.events if event["host"] == "evil.test"]
        assert_equal(sum(event["count"] for event in told), 100)
        assert len(told) <= 3, told
        assert_equal(sum(item["denied"] for item in leash.traffic.values()), 200)


# ---- secrets ----

PLACEHOLDER, VALUE = "husk-secret-TOKEN-hidden", "s3cr3t-value-of-the-token"


@test
def puts_secrets_into_headers_of_their_host_only():
    before = len(internet.requests())
    with Leash() as leash:
        leash.set("allow", "api.test", "allowed.test", secrets=[("TOKEN", VALUE, "api.test")])
        web = resolve("api.test")
        resolve("allowed.test")
        basic = base64.b64encode(f"user:{PLACEHOLDER}".encode()).decode()
        answer = tls(web, "api.test", get("api.test", f"/{PLACEHOLDER}", f"Authorization: Bearer {PLACEHOLDER}"),
                     f"POST /b HTTP/1.1\r\nHost: api.test\r\nAuthorization: Basic {basic}\r\nContent-Length: "
                     f"{len(PLACEHOLDER)}\r\n\r\n{PLACEHOLDER}")
        tls(web, "allowed.test", get("allowed.test", "/other", f"Authorization: {PLACEHOLDER}"))
        speak(web, 80, get("api.test", "/plain", f"Authorization: {PLACEHOLDER}"))
        denied = tls(web, "api.test", get("allowed.test", "/crossed", f"Authorization: {PLACEHOLDER}"))
    seen = {request.get("path"): request for request in internet.requests()[before:]}
    assert_equal(seen[f"/{PLACEHOLDER}"]["headers"]["authorization"], f"Bearer {VALUE}")
    wanted = base64.b64encode(f"user:{VALUE}".encode()).decode()
    assert_equal(seen["/b"]["headers"]["authorization"], f"Basic {wanted}")
    assert_equal(seen["/b"]["body"], PLACEHOLDER, "bodies are left alone")
    assert_equal(seen["/other"]["headers"]["authorization"], PLACEHOLDER, "another host")
    assert_equal(seen["/plain"]["headers"]["authorization"], PLACEHOLDER, "never in the clear")
    assert "/crossed" not in seen and "403" in denied, denied
    assert_in("*" * len(VALUE), answer, "what the host sends back is hidden")
    assert VALUE not in answer
    assert VALUE not in json.dumps(leash.messages)


@test
def checks_the_certificate_of_a_host_with_secrets():
    with Leash() as leash:
        leash.set("allow", "api.test:7000", secrets=[("TOKEN", VALUE, "api.test:7000")])
        web = resolve("api.test")
        assert_in("access denied", tls(web, "api.test", get("api.test"), port=7000).lower(), "it only echoes")
        leash.flush()
        assert_in("handshake", [e for e in leash.events if e["verdict"] == "failed"][0]["reason"])


# ---- the process ----


@test
def asks_for_addresses_the_guest_knows_already():
    with Leash() as leash:
        leash.set("allow", "allowed.test")
        assert_in('"/old"', tls(internet.WEB, "allowed.test", get("allowed.test", "/old")), "it never asked this resolver")
        assert_in("access denied", tls(internet.EVIL, "allowed.test", get("allowed.test")).lower(), "not its address")


@test
def has_no_privileges():
    with Leash() as leash:
        leash.set("allow", "allowed.test")
        status = dict(line.split(":\t", 1) for line in
                      pathlib.Path(f"/proc/{leash.process.pid}/status").read_text().splitlines() if ":\t" in line)
        assert_equal(status["Uid"].split(), [str(UID)] * 4)
        assert_equal(status["Gid"].split(), [str(UID)] * 4)
        assert_equal(status["Groups"].strip(), "")
        assert_equal(int(status["CapEff"], 16) | int(status["CapPrm"], 16), 0)
        assert_equal((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"))
        assert_equal(os.listdir(f"/proc/{leash.process.pid}/root"), [])


@test
def fails_closed():
    leash = Leash()
    leash.set("allow", f"{internet.RAW}:7000")
    held, _ = speak(internet.RAW, 7000, "ping", hold=True)
    leash.process.kill()
    leash.process.wait(10)
    held.settimeout(3)
    try:
        assert_equal(held.recv(1), b"")
    except ConnectionResetError:
        pass
    held.close()

    def connect():
        try:
            socket.create_connection((internet.RAW, 7000), 2).close()
            return True
        except OSError:
            return False

    assert not guest(connect), "nobody listens there"
    leash.control.close()
    with Leash() as leash:
        leash.set("allow", f"{internet.RAW}:7000")
        assert_equal(speak(internet.RAW, 7000, "ping"), b"ping", "another one takes over")
        leash.send(policy={"mode": "nonsense"}, serial=99)
        leash.wait(lambda m: "failed" in m)
        assert_equal(speak(internet.RAW, 7000, "ping"), b"ping", "a bad policy changes nothing")
        pid = leash.process.pid
    until(lambda: not os.path.exists(f"/proc/{pid}") or leash.process.poll() is not None, "the end of the leash")


if __name__ == "__main__":
    make_spaces()
    try:
        POOL = concurrent.futures.ThreadPoolExecutor(8, initializer=enter_guest)
        main()
    finally:
        remove_spaces()
