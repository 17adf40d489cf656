"""HTTP/1.1 as bytes: requests out, answers in, server-sent events. No input or output happens here, so that the
blocking and the asyncio client share it. Takes nothing from an answer on trust: heads, lines and events are bounded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from .errors import ConnectionFailedError, error_from

HEAD_MAX = 64 << 10
LINE_MAX = 16 << 10
EVENT_MAX = 64 << 20
PIECE = 64 << 10  # bytes read, and sent, at a time


def path(*segments: object) -> str:
    """/v1/… of these segments, each of which may hold anything."""
    return "/v1/" + "/".join(quote(str(segment), safe="") for segment in segments)


def given(**fields: Any) -> dict[str, Any]:
    """The arguments that were given."""
    return {name: value for name, value in fields.items() if value is not None}


def query_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


@dataclass
class Request:
    """What is asked of the server. `body` is bytes, or anything `_io.Pieces` takes, with its size when that is
    known."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    size: int | None = None
    timeout: float | None = 60.0  # seconds without a byte; None: no limit
    repeatable: bool = False  # asking twice does no harm

    @classmethod
    def get(cls, url_path: str, query: Mapping[str, Any] | None = None, **more: Any) -> Request:
        return cls("GET", url_path, query or {}, repeatable=True, **more)

    @classmethod
    def json(cls, method: str, url_path: str, document: Any, **more: Any) -> Request:
        headers = {"Content-Type": "application/json", **more.pop("headers", {})}
        body = json.dumps(document, separators=(",", ":")).encode()
        return cls(method, url_path, headers=headers, body=body, **more)

    @property
    def target(self) -> str:
        query = {name: query_value(value) for name, value in self.query.items() if value is not None}
        return self.path + ("?" + urlencode(query, quote_via=quote) if query else "")


def encode_head(request: Request, prefix: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{request.method} {prefix}{request.target} HTTP/1.1"]
    merged = {**headers, **request.headers}
    if isinstance(request.body, bytes):
        merged["Content-Length"] = str(len(request.body))
    elif request.body is not None and request.size is not None:
        merged["Content-Length"] = str(request.size)
    elif request.body is not None:
        merged["Transfer-Encoding"] = "chunked"
    elif request.method in ("POST", "PUT", "PATCH"):
        merged["Content-Length"] = "0"
    for name, value in merged.items():
        if "\r" in value or "\n" in value:
            raise ValueError(f"a line break in the header {name}")
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def encode_piece(request: Request, piece: bytes) -> bytes:
    """A piece of a body that is not one bytes object, as it goes over the wire; an empty one ends it."""
    if request.size is not None:
        return piece
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def broken(what: str) -> ConnectionFailedError:
    return ConnectionFailedError(f"the server's answer is broken: {what}", sent=True)


@dataclass
class Head:
    """Status and headers of an answer; header names in lower case."""

    status: int
    headers: dict[str, str]
    version: str

    @property
    def keeps_alive(self) -> bool:
        return self.version == "HTTP/1.1" and self.headers.get("connection", "").lower() != "close"

    @property
    def request_id(self) -> str | None:
        return self.headers.get("x-request-id")


def parse_head(block: bytes) -> Head:
    lines = block.decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise broken("it does not begin like HTTP")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise broken("a header without a colon")
        headers[name.strip().lower()] = value.strip()
    return Head(int(words[1]), headers, words[0])


class Body:
    """Takes an answer's bytes and gives its content. `wanted` tells whether more must come."""

    def __init__(self, head: Head, method: str) -> None:
        self._buffer = bytearray()
        self._chunked = False
        self._state = "size"  # of a chunked body: size, data, crlf, trailer
        self.left: int | None = None  # bytes of the body or chunk to come; None: until the connection ends
        self.over = False
        length = head.headers.get("content-length")
        if method == "HEAD" or head.status in (204, 304):
            self.left, self.over = 0, True
        elif head.headers.get("transfer-encoding", "").lower() == "chunked":
            self._chunked = True
        elif length is not None:
            if not length.isdigit():
                raise broken("Content-Length is not a number")
            self.left = int(length)
            self.over = self.left == 0

    @property
    def until_end(self) -> bool:
        return not self._chunked and self.left is None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The content in these bytes. No bytes: the connection has ended."""
        if not data:
            if not self.until_end:
                raise ConnectionFailedError("the connection broke in the middle of an answer", sent=True)
            self.over = True
        elif not self._chunked:
            yield self._plain(data)
        else:
            self._buffer += data
            yield from self._chunks()

    def _plain(self, data: bytes) -> bytes:
        if self.left is None:
            return data
        if len(data) > self.left:
            raise broken("more bytes than it announced")
        self.left -= len(data)
        self.over = self.left == 0
        return data

    def _line(self) -> bytes | None:
        at = self._buffer.find(b"\r\n")
        if at < 0:
            if len(self._buffer) > LINE_MAX:
                raise broken("a line of a chunked body is too long")
            return None
        line = bytes(self._buffer[:at])
        del self._buffer[: at + 2]
        return line

    def _chunks(self) -> Iterator[bytes]:
        while not self.over:
            if self._state == "data":
                if not self._buffer:
                    return
                assert self.left is not None
                piece = bytes(self._buffer[: self.left])
                del self._buffer[: len(piece)]
                self.left -= len(piece)
                self._state = "crlf" if self.left == 0 else "data"
                yield piece
                continue
            line = self._line()
            if line is None:
                return
            self._between(line)

    def _between(self, line: bytes) -> None:
        """A line that is not content: a chunk's size, the end of its data, or a trailer."""
        if self._state == "size":
            try:
                self.left = int(line.split(b";", 1)[0].strip(), 16)
            except ValueError:
                raise broken("the size of a chunk is not a number") from None
            self._state = "data" if self.left else "trailer"
        elif self._state == "crlf":
            if line:
                raise broken("a chunk is longer than it announced")
            self._state = "size"
        elif not line:
            self.over = True


@dataclass
class Event:
    """A server-sent event. `id` is that of the last event that had one."""

    kind: str
    id: str | None
    document: Any


class EventParser:
    """Server-sent events out of a stream of bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._kind = "message"
        self._data: list[str] = []
        self._size = 0
        self.last_id: str | None = None

    def feed(self, data: bytes) -> list[Event]:
        self._buffer += data
        self._size += len(data)
        if self._size > EVENT_MAX:
            raise broken("an event without end")
        events = []
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            event = self._take(line.rstrip(b"\r").decode("utf-8", "replace"))
            if event:
                events.append(event)
                self._size = len(rest)
        return events

    def _take(self, line: str) -> Event | None:
        if not line:
            return self._finish()
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        elif name == "id":
            self.last_id = value
        elif not name:  # a comment, which keeps the line warm
            self._size = 0
        return None

    def _finish(self) -> Event | None:
        kind, data = self._kind, self._data
        self._kind, self._data = "message", []
        if not data:
            return None
        try:
            document = json.loads("\n".join(data))
        except ValueError:
            raise broken("an event that is not JSON") from None
        return Event(kind, self.last_id, document)


def decode_json(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        raise broken("it is not JSON; is HUSK_URL the address of a Husk server?") from None


def check(head: Head, body: bytes) -> None:
    """Raises what an answer of 400 and above says."""
    if head.status < 400:
        return
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    raise error_from(document, head.status, head.request_id)


def is_failure(event: Event) -> bool:
    """Whether an `error` event is the server's error document (code that raised has an event of that name too)."""
    return event.kind == "error" and isinstance(event.document, dict) and isinstance(event.document.get("error"), dict)
