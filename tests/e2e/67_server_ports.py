#!/usr/bin/python3
"""Ports through the server: by host and by path, bodies both ways, streams, WebSockets, signed links, tenants, quotas,
what a hostile program inside may answer, and waking by traffic. The programs inside are real ones in a real sandbox."""

# timeout: 600
import contextlib
import hashlib
import http.client
import json
import os
import socket
import struct
import threading
import time
import urllib.parse

from lib.harness import *
from lib.http import certificate, server, token
from lib.websocket import Refused, WebSocket, connect_tcp, connect_unix

# One connection, one request: the answer is chosen by the path. Written on sockets, so that it can be rude.
PROGRAM = r'''
import base64, hashlib, json, os, socketserver, struct, sys, time

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        line = self.rfile.readline().decode().split()
        if len(line) != 3:
            return
        self.method, self.target = line[0], line[1]
        self.headers = []
        while (raw := self.rfile.readline().rstrip(b"\r\n")):
            name, _, value = raw.decode().partition(":")
            self.headers.append([name, value.strip()])
        name = self.target.split("?")[0].strip("/").split("/")[0] or "root"
        getattr(self, "do_" + name, self.do_root)()

    def header(self, name):
        return next((v for n, v in self.headers if n.lower() == name.lower()), None)

    def body(self):
        if self.header("Transfer-Encoding") == "chunked":
            while (size := int(self.rfile.readline(), 16)):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.header("Content-Length") or 0)
        while left:
            piece = self.rfile.read(min(left, 65536))
            if not piece:
                return
            left -= len(piece)
            yield piece

    def say(self, *lines, body=b""):
        self.wfile.write("\r\n".join([*lines, "", ""]).encode() + body)

    def do_root(self):
        text = json.dumps({"method": self.method, "target": self.target, "headers": self.headers}).encode()
        self.say("HTTP/1.1 200 OK", "Content-Type: application/json", f"Content-Length: {len(text)}", "X-App: yes",
                 "Set-Cookie: a=1; Path=/", "Set-Cookie: b=2", "Set-Cookie: husk_access=stolen", "Keep-Alive: 5",
                 "Service-Worker-Allowed: /", "Connection: X-Hop", "X-Hop: dropped",
                 body=b"" if self.method == "HEAD" else text)

    def do_sum(self):
        digest, size, pieces = hashlib.sha256(), 0, 0
        for piece in self.body():
            digest.update(piece)
            size += len(piece)
        text = json.dumps({"sha256": digest.hexdigest(), "size": size, "chunked": self.header("Transfer-Encoding"),
                           "length": self.header("Content-Length")}).encode()
        self.say("HTTP/1.1 200 OK", f"Content-Length: {len(text)}", body=text)

    def do_big(self):
        count = int(self.target.split("/")[-1])
        self.say("HTTP/1.1 200 OK", f"Content-Length: {count << 20}")
        for i in range(count):
            self.wfile.write(bytes([i % 251]) * (1 << 20))

    def do_stream(self):
        self.say("HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        for i in range(3):
            data = f"data: {i}\n\n".encode()
            self.wfile.write(b"%x;why=not\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
            while not os.path.exists(f"/tmp/go{i}"):
                time.sleep(0.01)
        self.wfile.write(b"0\r\nX-Trailer: 1\r\n\r\n")

    def do_close(self):
        self.say("HTTP/1.0 200 OK", body=b"until the end")

    def do_early(self):
        self.say("HTTP/1.1 413 Too Large", "Content-Length: 3", "Connection: close", body=b"no!")

    def do_informational(self):
        self.say("HTTP/1.1 103 Early Hints", "Link: </x>")
        self.say("HTTP/1.1 100 Continue")
        self.say("HTTP/1.1 201 Created", "Content-Length: 2", body=b"ok")

    def do_nothing(self):
        self.say("HTTP/1.1 204 No Content")

    def do_unchanged(self):
        self.say("HTTP/1.1 304 Not Modified", "ETag: x", "Content-Length: 5")

    def do_moved(self):
        self.say("HTTP/1.1 302 Found", "Location: /login", "Content-Length: 0")

    def do_short(self):
        self.say("HTTP/1.1 200 OK", "Content-Length: 100", body=b"half")

    def do_shortchunk(self):
        self.say("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", body=b"10\r\nhalf")

    def do_silent(self):
        pass

    def do_garbage(self):
        self.wfile.write(os.urandom(200).replace(b"\n", b" ") + b"\r\n\r\n")

    def do_huge(self):
        self.say("HTTP/1.1 200 OK", *(f"X-{i}: {'y' * 1000}" for i in range(60)))

    def do_split(self):
        self.say("HTTP/1.1 200 OK", "X-Bad: a\rX-Request-Id: forged", "Content-Length: 0")

    def do_lengths(self):
        self.say("HTTP/1.1 200 OK", "Content-Length: 1", "Content-Length: 2", body=b"xx")

    def do_switch(self):
        self.say("HTTP/1.1 101 Switching Protocols", "Upgrade: rudeness", "Connection: Upgrade")

    def do_socket(self):
        key = self.header("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        hello = b"hello"
        self.say("HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade",
                 f"Sec-WebSocket-Accept: {accept}", body=bytes([0x82, len(hello)]) + hello)
        while True:
            head = self.rfile.read(2)
            if len(head) < 2:
                return
            size = head[1] & 127
            if size == 126:
                size, = struct.unpack(">H", self.rfile.read(2))
            elif size == 127:
                size, = struct.unpack(">Q", self.rfile.read(8))
            mask = self.rfile.read(4)
            data = self.rfile.read(size)
            data = bytes(c ^ mask[i % 4] for i, c in enumerate(data))
            head = bytes([head[0]]) + (bytes([size]) if size < 126 else bytes([126]) + struct.pack(">H", size))
            self.wfile.write(head + data)
            if head[0] & 15 == 8:
                return

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

Server(("127.0.0.1", 8000), Handler).serve_forever()
'''


def start_program(huskd, sandbox, source=PROGRAM, port=8000, **options):
    huskd.put(f"/v1/sandboxes/{sandbox}/files?path=/srv/app.py", source, status=201, **options)
    huskd.post(
        f"/v1/sandboxes/{sandbox}/exec", {"argv": ["python3", "/srv/app.py"], "detach": True}, status=201, **options
    )
    until(
        lambda: huskd.call("GET", f"/v1/sandboxes/{sandbox}/ports/{port}/", status=None, **options).status == 200,
        "the program answers",
    )


def program(huskd, **fields):
    sandbox = huskd.create(**fields)["id"]
    start_program(huskd, sandbox)
    return sandbox


def on_host(huskd, sandbox, port=8000):
    return {"Host": f"{port}-{sandbox}.localhost:{huskd.port}"}


def header(seen, name):
    return [value for found, value in seen["headers"] if found.lower() == name.lower()]


@test
def test_by_path_and_by_host():
    with server() as huskd, token("ports", "--admin") as secret:
        sandbox = program(huskd)
        base = f"/v1/sandboxes/{sandbox}/ports/8000"
        answer = huskd.get(f"{base}/a%2Fb/c?x=1&y=%20", token=secret, headers={"Keep-Alive": "1", "X-Mine": "kept"})
        seen = answer.json()
        assert_equal(seen["target"], "/a%2Fb/c?x=1&y=%20")
        assert_equal(header(seen, "Host"), ["localhost:8000"])
        assert_equal(header(seen, "X-Forwarded-Prefix"), [base])
        assert_equal(header(seen, "X-Forwarded-Host"), [f"127.0.0.1:{huskd.port}"])
        assert_equal(header(seen, "X-Forwarded-For"), ["127.0.0.1"])
        assert_equal(header(seen, "X-Forwarded-Proto"), ["http"])
        assert_equal(header(seen, "X-Mine"), ["kept"])
        assert_equal(header(seen, "Keep-Alive"), [])
        assert_equal(answer.headers["X-App"], "yes")
        assert_equal(answer.headers.get_all("Set-Cookie"), ["a=1; Path=/", "b=2"])
        for gone in ("Keep-Alive", "X-Hop", "Service-Worker-Allowed"):
            assert answer.headers[gone] is None, gone
        for target, guest in ((base, "/"), (base + "?q", "/?q"), (base + "/", "/"), (base + "//x", "//x")):
            assert_equal(huskd.get(target).json()["target"], guest, target)

        seen = huskd.get("/v1/sandboxes?x=../..", token=secret, headers=on_host(huskd, sandbox)).json()
        assert_equal(seen["target"], "/v1/sandboxes?x=../..")
        assert_equal(header(seen, "Host"), [on_host(huskd, sandbox)["Host"]])
        assert_equal(header(seen, "X-Forwarded-Prefix"), [])
        assert_equal(huskd.get(f"{base}/moved", status=302).headers["Location"], f"{base}/login")
        moved = huskd.get("/moved", status=302, headers=on_host(huskd, sandbox))
        assert_equal(moved.headers["Location"], "/login")
        for method in ("DELETE", "OPTIONS", "PATCH", "POST"):
            assert_equal(huskd.call(method, f"{base}/x").json()["method"], method)


@test
def test_secrets_stay_here():
    with server() as huskd, token("ports", "--admin") as secret:
        sandbox = program(huskd)
        base = f"/v1/sandboxes/{sandbox}/ports/8000/"
        seen = huskd.get(base, token=secret, headers={"Cookie": "husk_access=x.y; mine=1; other=2"}).json()
        assert secret not in json.dumps(seen)
        assert_equal(header(seen, "Authorization"), [])
        assert_equal(header(seen, "Cookie"), ["mine=1; other=2"])
        # Authorization is the program's own when the token comes in our header
        both = {"X-Husk-Token": secret, "Authorization": "Basic dTpw"}
        seen = huskd.get(base, token="", headers=both).json()
        assert_equal(header(seen, "Authorization"), ["Basic dTpw"])
        assert_equal(header(seen, "X-Husk-Token"), [])
        both["Authorization"] = f"Bearer {secret}"
        assert secret not in huskd.get(base, token="", headers=both).text
        assert secret not in huskd.log()


@test
def test_bodies_both_ways():
    with server() as huskd:
        sandbox = program(huskd)
        base = f"/v1/sandboxes/{sandbox}/ports/8000"
        data = os.urandom(5 << 20)
        digest = hashlib.sha256(data).hexdigest()
        got = huskd.post(f"{base}/sum", data).json()
        assert_equal(got, {"sha256": digest, "size": len(data), "chunked": None, "length": str(len(data))})
        pieces = (data[i : i + 100_000] for i in range(0, len(data), 100_000))
        got = huskd.call("PUT", f"{base}/sum", pieces).json()  # in chunks
        assert_equal(got, {"sha256": digest, "size": len(data), "chunked": "chunked", "length": None})
        assert_equal(huskd.post(f"{base}/sum", b"").json()["length"], "0")
        answer = huskd.get(f"{base}/big/20")
        assert_equal(len(answer.body), 20 << 20)
        assert_equal(answer.body[(7 << 20) + 5], 7)
        assert_equal(answer.headers["Content-Length"], str(20 << 20))
        assert_equal(huskd.get(f"{base}/close").text, "until the end")
        head = huskd.call("HEAD", f"{base}/")
        assert int(head.headers["Content-Length"]) > 100 and head.body == b""
        assert_equal(huskd.get(f"{base}/nothing", status=204).body, b"")
        unchanged = huskd.get(f"{base}/unchanged", status=304)
        assert_equal((unchanged.body, unchanged.headers["ETag"]), (b"", "x"))
        assert_equal(huskd.get(f"{base}/informational", status=201).text, "ok")
        # an answer before the body is through
        assert_equal(huskd.post(f"{base}/early", data, status=413).text, "no!")


@test
def test_streams_as_it_comes():
    with server() as huskd:
        sandbox = program(huskd)
        connection, answer = huskd.open("GET", f"/v1/sandboxes/{sandbox}/ports/8000/stream")
        try:
            assert_equal(answer.headers["Content-Type"], "text/event-stream")
            for i in range(3):  # each only after the last was seen
                assert_equal(answer.readline(), f"data: {i}\n".encode())
                assert_equal(answer.readline(), b"\n")
                huskd.post(f"/v1/sandboxes/{sandbox}/exec", {"cmd": f"touch /tmp/go{i}"})
            assert_equal(answer.read(), b"")
        finally:
            connection.close()


@test
def test_slow_and_gone_clients():
    with server() as huskd:
        sandbox = program(huskd)
        base = f"/v1/sandboxes/{sandbox}/ports/8000"
        before = huskd.memory()
        slow = []
        for _ in range(20):  # they ask for much and read nothing
            connection, _answer = huskd.open("GET", f"{base}/big/200")
            slow.append(connection)
        assert_equal(huskd.get(f"{base}/x").json()["method"], "GET")
        assert huskd.memory() - before < 60 << 20, huskd.memory() - before
        for connection in slow:
            connection.close()
        until(
            lambda: "ESTABLISHED" not in
            huskd.post(
                f"/v1/sandboxes/{sandbox}/exec",
                {"cmd": "python3 - <<'E'\nfor line in open('/proc/net/tcp').read().split('\\n')[1:]:\n"
                        "    f = line.split()\n    if f and f[1].endswith(':1F40') and f[3] == '01': print('ESTABLISHED')\nE"},
            ).json()["stdout"],
            "the program's connections end with their clients",
            60,
        )


@test
def test_websocket():
    with server() as huskd, token("ports", "--admin") as secret:
        sandbox = program(huskd)
        path = f"/v1/sandboxes/{sandbox}/ports/8000/socket"
        by_path = connect_unix(huskd.socket_path, path)
        by_host = connect_tcp(
            ("127.0.0.1", huskd.port),
            "/socket",
            host=on_host(huskd, sandbox)["Host"],
            headers={"Authorization": f"Bearer {secret}"},
        )
        for ws in (by_path, by_host):
            assert_equal(ws.receive(), b"hello")  # came together with the handshake
            for message in (b"x", b"y" * 1000, b"z" * 60000):
                ws.send(message)
                assert_equal(ws.receive(), message)
            ws.close()
        try:
            connect_tcp(("127.0.0.1", huskd.port), path)
            raise AssertionError("a WebSocket without a token")
        except Refused as refused:
            assert_equal(refused.status, 401)
        huskd.get(f"/v1/sandboxes/{sandbox}/ports/8000/switch", status=502).error("protocol")
        left = connect_unix(huskd.socket_path, path)
        assert_equal(left.receive(), b"hello")
        left.drop()
        assert_equal(huskd.get("/healthz").json()["status"], "ok")


@test
def test_websocket_of_a_client_that_is_gone():
    """Over TLS, without a word: the connection ends at both sides, and nothing of it is left in the server."""
    with scratch() as directory, token("gone", "--admin") as secret:
        options, context = certificate(directory)
        with server(*options) as huskd:
            sandbox = program(huskd)
            path = f"/v1/sandboxes/{sandbox}/ports/8000/socket"
            for linger in (True, False):  # the end of the stream, and a reset
                raw = socket.create_connection(("127.0.0.1", huskd.port), 30)
                tls = context.wrap_socket(raw, server_hostname="127.0.0.1")
                ws = WebSocket(tls, path, {"Authorization": f"Bearer {secret}"})
                assert_equal(ws.receive(), b"hello")
                if not linger:
                    tls.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                tls.close()
                until(lambda: b"\nhusk_http_streams_open 0\n" in huskd.get("/metrics").body, "it ends in the server too")


@test
def test_rude_programs():
    with server() as huskd:
        sandbox = program(huskd)
        base = f"/v1/sandboxes/{sandbox}/ports/8000"
        for name in ("silent", "garbage", "huge", "split", "lengths"):
            error = huskd.get(f"{base}/{name}", status=502).error("protocol")
            assert_in(f"port 8000 of sandbox {sandbox}", error["message"], name)
        for name in ("short", "shortchunk"):
            try:
                whole = huskd.get(f"{base}/{name}")
                raise AssertionError(f"half an answer was taken for a whole one: {whole}")
            except (OSError, http.client.HTTPException):
                pass
        huskd.get(f"/v1/sandboxes/{sandbox}/ports/9/", status=502).error(
            "protocol", says=f"nothing listens on port 9 in sandbox {sandbox}"
        )
        for port in ("0", "65536", "x", "-1"):
            huskd.get(f"/v1/sandboxes/{sandbox}/ports/{port}/", status=400).error("invalid", "port")
        huskd.get("/v1/sandboxes/sb-aaaaaaaaaa/ports/80/", status=404).error("not_found")
        huskd.get("/", status=404, headers={"Host": "80-sb-aaaaaaaaaa.localhost"}).error("not_found")
        husk("rm", sandbox)
        huskd.get(f"{base}/", status=410).error("gone")


@test
def test_signed_links():
    with server() as huskd, token("ports", "--admin") as secret:
        sandbox = program(huskd)
        other = program(huskd)
        huskd.get("/", status=401, token="", headers=on_host(huskd, sandbox)).error("unauthorized")
        made = huskd.post(f"/v1/sandboxes/{sandbox}/ports/8000/url", {"expires_seconds": 60}, token=secret).json()
        url = urllib.parse.urlsplit(made["url"])
        assert_equal(url.netloc, f"8000-{sandbox}.localhost:{huskd.port}")
        assert made["expires_at"].endswith("Z")
        over_unix = huskd.post(f"/v1/sandboxes/{sandbox}/ports/8000/url").json()
        assert_equal(urllib.parse.urlsplit(over_unix["url"]).netloc, url.netloc)

        host = {"Host": url.netloc}
        answer = huskd.get(f"/page?a=1&{url.query}&b=2", token="", headers=host)
        assert_equal(answer.json()["target"], "/page?a=1&b=2")
        cookie = next(c for c in answer.headers.get_all("Set-Cookie") if c.startswith("husk_access="))
        for part in ("HttpOnly", "Path=/;", "SameSite=Lax", "Max-Age="):
            assert_in(part, cookie)
        assert "husk_" not in json.dumps(answer.json()["headers"])
        cookie = cookie.split(";")[0]
        app = {**host, "Cookie": f"{cookie}; own=1", "Authorization": "Bearer the-programs"}
        seen = huskd.get("/next", token="", headers=app).json()
        assert_equal(header(seen, "Cookie"), ["own=1"])
        assert_equal(header(seen, "Authorization"), ["Bearer the-programs"])
        ws = connect_tcp(("127.0.0.1", huskd.port), "/socket", host=url.netloc, headers={"Cookie": cookie})
        assert_equal(ws.receive(), b"hello")
        ws.close()

        by_path = f"/v1/sandboxes/{sandbox}/ports/8000/p"
        answer = huskd.get(f"{by_path}?{url.query}", token="")
        assert_equal(answer.json()["target"], "/p")
        mine = next(c for c in answer.headers.get_all("Set-Cookie") if c.startswith("husk_access="))
        assert_in(f"Path=/v1/sandboxes/{sandbox}/ports/8000;", mine)

        # for this port of this sandbox, until then, and for nothing else
        query = urllib.parse.parse_qs(url.query)
        later = f"husk_signature={query['husk_signature'][0]}&husk_expires={int(query['husk_expires'][0]) + 1}"
        for target, headers in (
            (f"/?{url.query}", on_host(huskd, other)),
            (f"/?{url.query}", on_host(huskd, sandbox, 8001)),
            (f"/?{later}", host),
            ("/?husk_signature=x&husk_expires=1", host),
            ("/", {**on_host(huskd, other), "Cookie": cookie}),
            (f"/v1/sandboxes/{sandbox}?{url.query}", {}),
            (f"/v1/sandboxes/{sandbox}/files?path=/etc/passwd&{url.query}", {"Cookie": cookie}),
        ):
            huskd.get(target, status=401, token="", headers=headers).error("unauthorized")
        short = huskd.post(f"/v1/sandboxes/{sandbox}/ports/8000/url", {"expires_seconds": 1}).json()["url"]
        query = urllib.parse.urlsplit(short).query
        until(
            lambda: huskd.call("GET", f"/?{query}", status=None, token="", headers=host).status == 401,
            "a link's time is over",
        )
        bad = f"/v1/sandboxes/{sandbox}/ports/8000/url"
        huskd.post(bad, {"expires_seconds": 0}, status=400).error("invalid", "expires_seconds")
        huskd.post(bad, {"expires": 60}, status=400).error("invalid", "expires")
        huskd.post("/v1/sandboxes/none/ports/8000/url", {}, status=404).error("not_found")


@test
def test_links_outlive_the_server():
    with server() as huskd:
        sandbox = program(huskd)
        made = huskd.post(f"/v1/sandboxes/{sandbox}/ports/8000/url").json()["url"]
        huskd.kill()
    with server() as huskd:
        url = urllib.parse.urlsplit(made)
        huskd.get(f"/?{url.query}", token="", headers={"Host": url.netloc})


@test
def test_tenants_and_quotas():
    with server() as huskd, token("red") as red, token("blue", "--max-sandboxes", "1", "--max-memory", "1G") as blue:
        made = huskd.create(token=red, name="web")
        start_program(huskd, made["id"], token=red)
        path = f"/v1/sandboxes/{made['id']}/ports/8000/"
        assert_equal(huskd.get(path, token=red).status, 200)
        assert_equal(huskd.get("/", token=red, headers=on_host(huskd, "web")).status, 200)  # by its name, too
        for target in (path, f"/v1/sandboxes/{made['id']}", f"/v1/sandboxes/{made['id']}/stats"):
            huskd.get(target, status=404, token=blue).error("not_found")
        huskd.get("/", status=404, token=blue, headers=on_host(huskd, made["id"])).error("not_found")
        huskd.get("/", status=404, token=blue, headers=on_host(huskd, "web")).error("not_found")
        huskd.post(f"{path}url", {}, status=404, token=blue).error("not_found")

        first = huskd.create(token=blue, name="web", memory="512M")  # names are each tenant's own
        refused = huskd.post("/v1/sandboxes", {"memory": "512M"}, status=429, token=blue)
        refused.error("limit", says=["max_sandboxes", "1 of 1"])
        huskd.post(f"/v1/sandboxes/{first['id']}/fork", {}, status=429, token=blue).error("limit", says="max_sandboxes")
        huskd.delete(f"/v1/sandboxes/{first['id']}", token=blue)
        refused = huskd.post("/v1/sandboxes", {"memory": "2G"}, status=429, token=blue)
        refused.error("limit", says=["max_memory_bytes", "0 of 1073741824"])
        listed = huskd.get("/v1/sandboxes", token=red).json()["sandboxes"]
        assert_equal([one["id"] for one in listed], [made["id"]])
        assert_equal(huskd.get("/v1/sandboxes", token=blue).json()["sandboxes"], [])
    with server() as huskd:
        huskd.get(path, status=401, token=red).error("unauthorized", says="revoked")
        husk("rm", made["id"])  # the owner reaches everybody's by its id


@test
def test_create_once_for_a_key():
    with server() as huskd, token("red") as red, token("blue") as blue:
        answers = []

        def create():
            answers.append(
                huskd.call("POST", "/v1/sandboxes", {"name": "once"}, None, token=red, headers={"Idempotency-Key": "k"})
            )

        threads = [threading.Thread(target=create) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        ids = {answer.json().get("id") for answer in answers if answer.status == 201}
        for one in ids:
            adopt(one)
        assert len(answers) == 6 and all(answer.status == 201 for answer in answers), [str(a) for a in answers]
        assert_equal(len(ids), 1, "sandboxes made for one key")
        again = {"token": red, "headers": {"Idempotency-Key": "k"}}
        huskd.post("/v1/sandboxes", {"name": "twice"}, status=409, **again).error("conflict", says="another request")
        other = huskd.post("/v1/sandboxes", {"name": "once"}, 201, token=blue, headers={"Idempotency-Key": "k"}).json()
        adopt(other["id"])
        assert other["id"] not in ids
        huskd.kill()
    with server() as huskd:
        pass
    with server() as huskd, token("red2", "--tenant", "red") as red:
        again = huskd.post("/v1/sandboxes", {"name": "once"}, 201, token=red, headers={"Idempotency-Key": "k"}).json()
        assert_equal(again["id"], ids.pop())


@test
def test_key_outlives_kill_9():
    for round_number in range(6):  # the server dies at another moment of the create each time
        key = {"headers": {"Idempotency-Key": f"round-{round_number}"}}
        with server() as huskd:

            def create():
                with contextlib.suppress(OSError, http.client.HTTPException):
                    huskd.call("POST", "/v1/sandboxes", {"metadata": {"round": str(round_number)}}, None, **key)

            thread = threading.Thread(target=create)
            thread.start()
            time.sleep(0.02 * round_number**2)
            huskd.kill()
            thread.join(60)
        with server() as huskd:
            made = huskd.post("/v1/sandboxes", {"metadata": {"round": str(round_number)}}, 201, **key).json()
            adopt(made["id"])
            live = huskd.get(f"/v1/sandboxes?metadata.round={round_number}").json()["sandboxes"]
            assert_equal([one["id"] for one in live], [made["id"]], f"round {round_number}")
            assert_equal(huskd.post(f"/v1/sandboxes/{made['id']}/exec", {"cmd": "echo up"}).json()["stdout"], "up\n")


@test
def test_traffic_wakes():
    with server() as huskd:
        sandbox = program(huskd)
        huskd.post(f"/v1/sandboxes/{sandbox}/hibernate")
        assert_equal(huskd.get(f"/v1/sandboxes/{sandbox}").json()["state"], "hibernated")
        seen = huskd.get("/after", headers=on_host(huskd, sandbox)).json()
        assert_equal(seen["target"], "/after")
        assert_equal(huskd.get(f"/v1/sandboxes/{sandbox}").json()["state"], "running")


@test
def test_many_at_once():
    with server() as huskd:
        sandbox = program(huskd)
        failures = []

        def call(number):
            try:
                for i in range(5):
                    target = f"/{number}/{i}"
                    seen = huskd.get(f"/v1/sandboxes/{sandbox}/ports/8000{target}").json()
                    assert_equal(seen["target"], target)
            except Exception as error:  # told below
                failures.append(repr(error))

        threads = [threading.Thread(target=call, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert_equal(failures, [])


if __name__ == "__main__":
    main("base")
