"""A terminal in a sandbox, over a WebSocket: bytes both ways, its size, signals. Made by `sandbox.pty()`.

Closing it leaves the process running; `sandbox.pty(pid=…)` attaches to it again.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Deque

from .. import _frames
from .._http import Request, broken
from ..errors import ConnectionFailedError, TimedOutError, error_from
from ..models import Exit
from ._io import Stream

if TYPE_CHECKING:
    from .client import AsyncClient

SEND_SECONDS = 60.0


class AsyncPty:
    """A terminal. One task may read while another writes. `exit` is set when the process has ended."""

    def __init__(self, client: AsyncClient, url_path: str, query: Mapping[str, Any]) -> None:
        self._client = client
        self._where = (url_path, query)
        self._stream: Stream | None = None
        self._decoder = _frames.Decoder()
        self._ready: Deque[bytes] = deque()
        self._over = False
        self.pid: int | None = None
        self.offset = 0  # of the next byte in the terminal's output, to attach again later
        self.exit: Exit | None = None

    async def _open(self) -> AsyncPty:
        key = _frames.new_key()
        headers = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": key,
        }
        url_path, query = self._where
        response = await self._client._open(Request("GET", url_path, query, headers))
        if response.head.status != 101 or response.head.headers.get("sec-websocket-accept") != _frames.accept_of(key):
            await response.aclose()
            raise broken("it is no WebSocket; a proxy in between may not let one through")
        self._stream, first = response.take_stream()
        try:
            await self._take(first)
            while self.pid is None and not self._over:
                await self._receive(SEND_SECONDS)
        except BaseException:
            await self.aclose()
            raise
        return self

    # ---- what comes ----

    async def read(self, timeout_seconds: float | None = None) -> bytes:
        """The next bytes that the terminal shows; none when the process has ended. Raises TimedOutError when nothing
        comes in time, and can be called again then."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self._ready and not self._over:
            await self._receive(None if deadline is None else deadline - time.monotonic())
        return self._ready.popleft() if self._ready else b""

    async def wait(self, timeout_seconds: float | None = None) -> Exit:
        """Reads, and throws away, all that comes until the process ends."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self._over:
            self._ready.clear()
            await self._receive(None if deadline is None else deadline - time.monotonic())
        if self.exit is None:
            raise ConnectionFailedError("the terminal was closed before its process ended", sent=True)
        return self.exit

    async def _receive(self, timeout: float | None) -> None:
        if self._stream is None:
            raise ConnectionFailedError("the terminal is closed", sent=True)
        if timeout is not None and timeout <= 0:
            raise TimedOutError("the terminal showed nothing in time")
        data = await self._stream.try_read(timeout)
        if data is None:
            return  # the caller knows how much time is left
        if not data:
            await self.aclose()
            raise ConnectionFailedError("the connection to the terminal broke", sent=True)
        await self._take(data)

    async def _take(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            if message.kind == _frames.BINARY:
                self.offset += len(message.data)
                self._ready.append(message.data)
            elif message.kind == _frames.TEXT:
                self._control(message.data)
            elif message.kind == _frames.PING:
                await self._send(_frames.PONG, message.data)
            elif message.kind == _frames.CLOSE:
                await self.aclose()
                return

    def _control(self, data: bytes) -> None:
        document = json.loads(data)
        if "start" in document:
            self.pid = int(document["start"]["pid"])
            self.offset = int(document["start"].get("offset") or 0)
        elif "exit" in document:
            self.exit = Exit.from_document(document["exit"])
            self._over = True
        elif "error" in document:
            raise error_from(document)

    # ---- what goes ----

    async def write(self, data: str | bytes) -> None:
        """Types."""
        await self._send(_frames.BINARY, data.encode() if isinstance(data, str) else bytes(data))

    async def resize(self, rows: int, columns: int) -> None:
        await self._send_control({"resize": {"rows": rows, "columns": columns}})

    async def signal(self, number: int | str) -> None:
        """To what runs in the terminal: "INT", 2 …"""
        await self._send_control({"signal": number})

    async def _send_control(self, document: Any) -> None:
        await self._send(_frames.TEXT, json.dumps(document).encode())

    async def _send(self, kind: int, data: bytes) -> None:
        if self._stream is None:
            raise ConnectionFailedError("the terminal is closed", sent=True)
        await self._stream.write(_frames.encode(kind, data), SEND_SECONDS)

    # ---- its end ----

    async def aclose(self) -> None:
        """Detaches. The process continues."""
        self._over = True
        stream, self._stream = self._stream, None
        if stream is None:
            return
        try:
            await stream.write(_frames.encode(_frames.CLOSE, b"\x03\xe8"), 1.0)
        except (ConnectionFailedError, TimedOutError):
            pass  # the other side is gone already
        await stream.aclose()

    def __aiter__(self) -> AsyncPty:
        return self

    async def __anext__(self) -> bytes:
        data = await self.read()
        if not data:
            raise StopAsyncIteration
        return data

    async def __aenter__(self) -> AsyncPty:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
