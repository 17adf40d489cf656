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


class AsyncResponse:
    """An answer whose body is still to be read: with `next` piece by piece, or `read` as a whole."""

    def __init__(self, transport: AsyncTransport, stream: Stream, request: Request, head: Head, rest: bytes) -> None:
        self.head = head
        self.timeout = request.timeout
        self._transport = transport
        self._stream: Stream | None = stream
        self._body = Body(head, request.method)
        self._ready: Deque[bytes] = deque(self._body.feed(rest) if rest else ())

    async def next(self, timeout: float | None) -> bytes | None:
        """The next piece of the body; None at its end."""
        while True:
            while self._ready:
                piece = self._ready.popleft()
                if piece:
                    return piece
            if self._body.over or self._stream is None:
                await self._finish()
                return None
            try:
                self._ready.extend(self._body.feed(await self._stream.read(timeout)))
            except BaseException:
                await self.aclose()
                raise

    async def read(self) -> bytes:
        pieces: list[bytes] = []
        while True:
            piece = await self.next(self.timeout)
            if piece is None:
                return b"".join(pieces)
            pieces.append(piece)

    async def check(self) -> AsyncResponse:
        """Itself, or raises the error that it tells."""
        if self.head.status >= 400:
            check(self.head, await self.read())
        return self

    def take_stream(self) -> tuple[Stream, bytes]:
        """After 101: the connection, and what of it was read already."""
        assert self._stream is not None
        stream, self._stream = self._stream, None
        return stream, b"".join(self._ready)

    async def _finish(self) -> None:
        stream, self._stream = self._stream, None
        if stream is None:
            return
        if self.head.keeps_alive and not self._body.until_end:
            await self._transport.keep(stream)
        else:
            await stream.aclose()

    async def aclose(self) -> None:
        """Gives up what was not read."""
        if self._body.over:
            await self._finish()
        elif self._stream is not None:
            stream, self._stream = self._stream, None
            await stream.aclose()

    async def __aenter__(self) -> AsyncResponse:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncTransport:
    """Sends requests to one server."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str]) -> None:
        self.endpoint = endpoint
        self._headers = {"Host": endpoint.authority, **headers}
        if endpoint.token:
            self._headers["Authorization"] = f"Bearer {endpoint.token}"
        self._idle: Deque[tuple[Stream, float]] = deque()  # the last used at the end
        self.keeping = True  # whether connections are kept for the next request

    async def send(self, request: Request) -> AsyncResponse:
        stream = await self._connection(request)
        try:
            await self._send(stream, request)
            head, rest = await self._head(stream, request)
            return AsyncResponse(self, stream, request, head, rest)
        except BaseException:
            await stream.aclose()
            raise

    async def _connection(self, request: Request) -> Stream:
        while True:
            try:
                stream, since = self._idle.pop()
            except IndexError:
                return await Stream.connect(self.endpoint, CONNECT_SECONDS)
            if time.monotonic() - since < IDLE_SECONDS and stream.reusable():
                return stream
            await stream.aclose()

    async def _send(self, stream: Stream, request: Request) -> None:
        head = encode_head(request, self.endpoint.prefix, self._headers)
        try:
            if isinstance(request.body, bytes):
                await self._send_bytes(stream, request, head)
            else:
                await stream.write(head, request.timeout)
                if request.body is not None:
                    await self._send_pieces(stream, request)
        except ConnectionFailedError:
            if request.body is None:
                raise
            # A server that refuses a body says why before it closes: that is the better error.

    async def _send_bytes(self, stream: Stream, request: Request, head: bytes) -> None:
        body = memoryview(request.body)
        await stream.write(head + bytes(body[:PIECE]), request.timeout)
        for at in range(PIECE, len(body), PIECE):
            await stream.write(bytes(body[at : at + PIECE]), request.timeout)

    async def _send_pieces(self, stream: Stream, request: Request) -> None:
        pieces = Pieces(request.body)
        sent = 0
        while True:
            piece = await pieces.next()
            if piece is None:
                break
            if piece:
                sent += len(piece)
                if request.size is not None and sent > request.size:
                    raise ValueError(f"there are more bytes than the {request.size} that were announced")
                await stream.write(encode_piece(request, piece), request.timeout)
        if request.size is None:
            await stream.write(encode_piece(request, b""), request.timeout)
        elif sent < request.size:
            raise ValueError(f"there are {sent} bytes, and {request.size} were announced")

    async def _head(self, stream: Stream, request: Request) -> tuple[Head, bytes]:
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
            piece = await stream.read(request.timeout)
            if not piece:
                raise ConnectionFailedError("the server closed the connection without an answer", sent=True)
            data += piece

    async def keep(self, stream: Stream) -> None:
        """Keeps a connection for the next request."""
        if not self.keeping or len(self._idle) >= IDLE_MAX:
            await stream.aclose()
        else:
            self._idle.append((stream, time.monotonic()))

    async def aclose(self) -> None:
        """Closes the connections that wait for a request."""
        while self._idle:
            stream, _ = self._idle.pop()
            await stream.aclose()
