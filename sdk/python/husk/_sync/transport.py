# Made from husk/_async/transport.py by generate.py: edit it there.
"""HTTP over connections that are kept for the next request. Used by client.py only.

A connection whose answer was not read to its end is never used again, whatever the reason.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Deque

from .._endpoint import Endpoint
from .._http import (
    HEAD_MAX,
    PIECE,
    Body,
    Head,
    Request,
    broken,
    check,
    encode_head,
    encode_piece,
    parse_head,
)
from ..errors import ConnectionFailedError
from ._io import Pieces, Stream

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 25.0  # a server may close sooner, which is noticed; this keeps proxies from cutting us off silently
IDLE_MAX = 32


class Response:
    """An answer whose body is still to be read: with `next` piece by piece, or `read` as a whole."""

    def __init__(self, transport: Transport, stream: Stream, request: Request, head: Head, rest: bytes) -> None:
        self.head = head
        self.timeout = request.timeout
        self._transport = transport
        self._stream: Stream | None = stream
        self._body = Body(head, request.method)
        self._ready: Deque[bytes] = deque(self._body.feed(rest) if rest else ())

    def next(self, timeout: float | None) -> bytes | None:
        """The next piece of the body; None at its end."""
        while True:
            while self._ready:
                piece = self._ready.popleft()
                if piece:
                    return piece
            if self._body.over or self._stream is None:
                self._finish()
                return None
            try:
                self._ready.extend(self._body.feed(self._stream.read(timeout)))
            except BaseException:
                self.close()
                raise

    def read(self) -> bytes:
        pieces: list[bytes] = []
        while True:
            piece = self.next(self.timeout)
            if piece is None:
                return b"".join(pieces)
            pieces.append(piece)

    def check(self) -> Response:
        """Itself, or raises the error that it tells."""
        if self.head.status >= 400:
            check(self.head, self.read())
        return self

    def take_stream(self) -> tuple[Stream, bytes]:
        """After 101: the connection, and what of it was read already."""
        assert self._stream is not None
        stream, self._stream = self._stream, None
        return stream, b"".join(self._ready)

    def _finish(self) -> None:
        stream, self._stream = self._stream, None
        if stream is None:
            return
        if self.head.keeps_alive and not self._body.until_end:
            self._transport.keep(stream)
        else:
            stream.close()

    def close(self) -> None:
        """Gives up what was not read."""
        if self._body.over:
            self._finish()
        elif self._stream is not None:
            stream, self._stream = self._stream, None
            stream.close()

    def __enter__(self) -> Response:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Transport:
    """Sends requests to one server."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str]) -> None:
        self.endpoint = endpoint
        self._headers = {"Host": endpoint.authority, **headers}
        if endpoint.token:
            self._headers["Authorization"] = f"Bearer {endpoint.token}"
        self._idle: Deque[tuple[Stream, float]] = deque()  # the last used at the end
        self.keeping = True  # whether connections are kept for the next request

    def send(self, request: Request) -> Response:
        stream = self._connection(request)
        try:
            self._send(stream, request)
            head, rest = self._head(stream, request)
            return Response(self, stream, request, head, rest)
        except BaseException:
            stream.close()
            raise

    def _connection(self, request: Request) -> Stream:
        while True:
            try:
                stream, since = self._idle.pop()
            except IndexError:
                return Stream.connect(self.endpoint, CONNECT_SECONDS)
            if time.monotonic() - since < IDLE_SECONDS and stream.reusable():
                return stream
            stream.close()

    def _send(self, stream: Stream, request: Request) -> None:
        head = encode_head(request, self.endpoint.prefix, self._headers)
        try:
            if isinstance(request.body, bytes):
                self._send_bytes(stream, request, head)
            else:
                stream.write(head, request.timeout)
                if request.body is not None:
                    self._send_pieces(stream, request)
        except ConnectionFailedError:
            if request.body is None:
                raise
            # A server that refuses a body says why before it closes: that is the better error.

    def _send_bytes(self, stream: Stream, request: Request, head: bytes) -> None:
        body = memoryview(request.body)
        stream.write(head + bytes(body[:PIECE]), request.timeout)
        for at in range(PIECE, len(body), PIECE):
            stream.write(bytes(body[at : at + PIECE]), request.timeout)

    def _send_pieces(self, stream: Stream, request: Request) -> None:
        pieces = Pieces(request.body)
        sent = 0
        while True:
            piece = pieces.next()
            if piece is None:
                break
            if piece:
                sent += len(piece)
                if request.size is not None and sent > request.size:
                    raise ValueError(f"there are more bytes than the {request.size} that were announced")
                stream.write(encode_piece(request, piece), request.timeout)
        if request.size is None:
            stream.write(encode_piece(request, b""), request.timeout)
        elif sent < request.size:
            raise ValueError(f"there are {sent} bytes, and {request.size} were announced")

    def _head(self, stream: Stream, request: Request) -> tuple[Head, bytes]:
        """The answer's head, and what of its body came with it."""
        data = b""
        while True:
            end = data.find(b"\r\n\r\n")
            if end >= 0:
                head, data = parse_head(data[:end]), data[end + 4 :]
                if head.status >= 200 or head.status == 101:
                    return head, data
                continue
            if len(data) > HEAD_MAX:
                raise broken("its head is too long")
            piece = stream.read(request.timeout)
            if not piece:
                raise ConnectionFailedError("the server closed the connection without an answer", sent=True)
            data += piece

    def keep(self, stream: Stream) -> None:
        """Keeps a connection for the next request."""
        if not self.keeping or len(self._idle) >= IDLE_MAX:
            stream.close()
        else:
            self._idle.append((stream, time.monotonic()))

    def close(self) -> None:
        """Closes the connections that wait for a request."""
        while self._idle:
            stream, _ = self._idle.pop()
            stream.close()
