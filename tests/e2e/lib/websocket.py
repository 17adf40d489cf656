"""A small WebSocket client of the standard library, for the tests of terminals and proxies.

It sends and receives whole messages, answers pings, and returns None for a close. Every wait has a time limit.
"""

import base64
import hashlib
import json
import os
import socket
import struct
import time

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Refused(Exception):
    """The server did not answer the handshake with 101."""

    def __init__(self, status, body):
        super().__init__(f"{status}: {body[:300]!r}")
        self.status = status
        self.body = body

    def json(self):
        return json.loads(self.body)


class WebSocket:
    """Over a connected socket. `headers`: added to the handshake."""

    def __init__(self, connection, target, headers=None, host="localhost", seconds=30):
        self.connection = connection
        self.received = b""
        self.pongs = 0
        connection.settimeout(seconds)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {target} HTTP/1.1",
            f"Host: {host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {key}",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        self._handshake(key)

    def _handshake(self, key):
        while b"\r\n\r\n" not in self.received:
            self._more()
        head, _, self.received = self.received.partition(b"\r\n\r\n")
        status_line, *lines = head.decode().split("\r\n")
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(status_line.split()[1])
        if status != 101:
            size = int(self.headers.get("content-length", 0))
            while len(self.received) < size:
                self._more()
            raise Refused(status, self.received)
        wanted = base64.b64encode(hashlib.sha1((key + MAGIC).encode()).digest()).decode()
        assert self.headers["sec-websocket-accept"] == wanted, self.headers

    def _more(self):
        piece = self.connection.recv(65536)
        if not piece:
            raise ConnectionError("the server closed the connection")
        self.received += piece

    def _take(self, size):
        while len(self.received) < size:
            self._more()
        taken, self.received = self.received[:size], self.received[size:]
        return taken

    # ---- out ----

    def send_frame(self, opcode, payload, final=True):
        size = len(payload)
        head = bytes([opcode | (0x80 if final else 0)])
        if size < 126:
            head += bytes([0x80 | size])
        elif size < 65536:
            head += bytes([0x80 | 126]) + struct.pack(">H", size)
        else:
            head += bytes([0x80 | 127]) + struct.pack(">Q", size)
        mask = os.urandom(4)
        repeated = mask * (size // 4 + 1)
        masked = (int.from_bytes(payload, "big") ^ int.from_bytes(repeated[:size], "big")).to_bytes(size, "big")
        self.connection.sendall(head + mask + masked)

    def send(self, payload):
        """Sends bytes and text unchanged, any other value as JSON text."""
        if isinstance(payload, bytes):
            self.send_frame(BINARY, payload)
        else:
            self.send_frame(TEXT, (payload if isinstance(payload, str) else json.dumps(payload)).encode())

    # ---- in ----

    def receive(self):
        """The next message: bytes, a JSON document, or None if the server closed."""
        whole, kind = b"", None
        while True:
            first, second = self._take(2)
            size = second & 0x7F
            if size >= 126:
                size = int.from_bytes(self._take(2 if size == 126 else 8), "big")
            payload = self._take(size)
            opcode = first & 0x0F
            if opcode == CLOSE:
                self.close_status = int.from_bytes(payload[:2], "big") if payload else None
                return None
            if opcode == PING:
                self.send_frame(PONG, payload)
            elif opcode == PONG:
                self.pongs += 1
            else:
                kind = opcode or kind
                whole += payload
                if first & 0x80:
                    return json.loads(whole) if kind == TEXT else whole

    def read_until(self, part, seconds=30):
        """Terminal bytes until they contain `part`; control messages are kept in `control`."""
        seen, deadline = b"", time.monotonic() + seconds
        while part not in seen:
            assert time.monotonic() < deadline, f"{part!r} did not come within {seconds} s; came: {seen[-600:]!r}"
            message = self.receive()
            assert message is not None, f"closed before {part!r} came; came: {seen[-600:]!r}"
            if isinstance(message, bytes):
                seen += message
            else:
                self.control.append(message)
        return seen

    @property
    def control(self):
        return self.__dict__.setdefault("_control", [])

    def close(self, status=1000):
        """Sends a close frame and waits for the answer."""
        self.send_frame(CLOSE, struct.pack(">H", status))
        while self.receive() is not None:
            pass
        self.connection.close()

    def drop(self):
        """Disconnects without a close frame."""
        self.connection.close()


def connect_unix(path, target, **options):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(options.get("seconds", 30))
    connection.connect(path)
    return WebSocket(connection, target, **options)


def connect_tcp(address, target, **options):
    connection = socket.create_connection(address, options.get("seconds", 30))
    return WebSocket(connection, target, **options)
