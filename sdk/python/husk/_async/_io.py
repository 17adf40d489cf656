"""The bytes on the wire with asyncio: the only file that differs between the asyncio and the blocking SDK; its twin is
husk/_sync/_io.py. Everything above it is written once. Must never block the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import socket as sockets
from collections.abc import Awaitable, Coroutine, Generator, Iterator
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Generic,
    TypeVar,
)
from weakref import WeakKeyDictionary

from .._endpoint import Endpoint, resolve
from .._http import PIECE
from .._reach import reach_failure, tls_context
from ..errors import ConnectionFailedError, TimedOutError

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    from .client import AsyncClient

    P = ParamSpec("P")

T = TypeVar("T")


class Stream:
    """A connection. A timeout counts from its call; None: no limit."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._expired = False
        self._reading: asyncio.Future[bytes] | None = None  # a read that outlived its call

    @classmethod
    async def connect(cls, endpoint: Endpoint, timeout: float | None) -> Stream:
        try:
            reader, writer = await asyncio.wait_for(cls._open(endpoint), timeout)
        except (OSError, asyncio.TimeoutError) as error:
            raise reach_failure(endpoint, error) from error
        if not endpoint.socket:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
        return cls(reader, writer)

    @staticmethod
    def _open(endpoint: Endpoint) -> Coroutine[Any, Any, Any]:
        if endpoint.socket:
            return asyncio.open_unix_connection(endpoint.socket, limit=PIECE)
        if endpoint.tls:
            context = tls_context(endpoint)
            return asyncio.open_connection(endpoint.host, endpoint.port, ssl=context, limit=PIECE)
        return asyncio.open_connection(endpoint.host, endpoint.port, limit=PIECE)

    async def read(self, timeout: float | None) -> bytes:
        """The next bytes; none at the end of the connection."""
        return await self._bounded(self._reader.read(PIECE), timeout)

    async def try_read(self, timeout: float | None) -> bytes | None:
        """As read, but time that is up only means None, and the connection stays as it is."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._reader.read(PIECE))
        await asyncio.wait((self._reading,), timeout=timeout)
        if not self._reading.done():
            return None
        reading, self._reading = self._reading, None
        try:
            return reading.result()
        except OSError as error:
            raise ConnectionFailedError(f"the connection to the server broke: {error}", sent=True) from error

    async def write(self, data: bytes, timeout: float | None) -> None:
        if self._writer.transport.is_closing():
            raise ConnectionFailedError("the server closed the connection", sent=True)
        self._writer.write(data)
        await self._bounded(self._writer.drain(), timeout)

    async def _bounded(self, step: Awaitable[T], timeout: float | None) -> T:
        """Cheaper than asyncio.wait_for, which makes a task of every step: when time is up the connection is cut."""
        timer = self._loop.call_later(max(0.0, timeout), self._expire) if timeout is not None else None
        try:
            result = await step
        except OSError as error:
            self._check_expired()
            raise ConnectionFailedError(f"the connection to the server broke: {error}", sent=True) from error
        finally:
            if timer:
                timer.cancel()
        self._check_expired()
        return result

    def _expire(self) -> None:
        self._expired = True
        self._writer.transport.abort()

    def _check_expired(self) -> None:
        if self._expired:
            raise TimedOutError("the server did not answer in time")

    def reusable(self) -> bool:
        """Whether it is still open, and belongs to the event loop that runs now."""
        if self._loop is not asyncio.get_running_loop():
            return False
        return not self._reader.at_eof() and not self._writer.transport.is_closing()

    async def aclose(self) -> None:
        if self._loop.is_closed():
            return
        if self._reading is not None:
            self._reading.cancel()
        transport = self._writer.transport
        if transport.get_write_buffer_size() > PIECE:
            transport.abort()  # an upload that was given up: nobody waits for the rest to go out
        else:
            transport.close()


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def local(function: Callable[..., T], *arguments: Any) -> T:
    """Work on the local disk, out of the event loop's way."""
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(function, *arguments))


async def deliver(callback: Callable[[Any], Any], value: Any) -> None:
    """Calls back; the callback may be a coroutine function."""
    result = callback(value)
    if inspect.isawaitable(result):
        await result


class Pieces:
    """A body that comes bit by bit: from an iterable of bytes, asynchronous or not, or from a file."""

    def __init__(self, source: Any) -> None:
        self._later = source.__aiter__() if hasattr(source, "__aiter__") else None
        self._now: Iterator[bytes] | None = None
        if self._later is None:
            self._now = iter(functools.partial(source.read, PIECE), b"") if hasattr(source, "read") else iter(source)

    async def next(self) -> bytes | None:
        if self._now is not None:
            return next(self._now, None)
        assert self._later is not None
        try:
            return bytes(await self._later.__anext__())
        except StopAsyncIteration:
            return None


class AsyncOpening(Generic[T]):
    """A sandbox that is being made: to be awaited, or entered with `async with` straight away."""

    def __init__(self, making: Coroutine[Any, Any, T]) -> None:
        self._making = making
        self._made: Any = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._making.__await__()

    async def __aenter__(self) -> T:
        self._made = await self._making
        await self._made.__aenter__()
        return self._made  # type: ignore[no-any-return]

    async def __aexit__(self, *error: Any) -> None:
        await self._made.__aexit__(*error)


def opening(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, AsyncOpening[T]]:
    """For methods whose result is used with `async with` more often than not."""

    @functools.wraps(method)
    def start(*arguments: P.args, **options: P.kwargs) -> AsyncOpening[T]:
        return AsyncOpening(method(*arguments, **options))

    return start


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Endpoint, AsyncClient]] = WeakKeyDictionary()


def default_client() -> AsyncClient:
    """One per event loop and server. It keeps connections only while a sandbox's handle is in use, since nothing tells
    it when the loop ends."""
    from .client import AsyncClient

    clients = _clients.setdefault(asyncio.get_running_loop(), {})
    endpoint = resolve()
    if endpoint not in clients:
        clients[endpoint] = AsyncClient(_endpoint=endpoint, _shared=True)
    return clients[endpoint]


async def outcome(value: Any) -> Any:
    """What a function of the caller returned; if it is a coroutine, its result."""
    return await value if inspect.isawaitable(value) else value


async def every(calls: list[Callable[[], Awaitable[Any]]], limit: int) -> None:
    """Makes all calls, at most `limit` at a time."""
    places = asyncio.Semaphore(limit)

    async def one(call: Callable[[], Awaitable[Any]]) -> None:
        async with places:
            await call()

    await asyncio.gather(*(one(call) for call in calls))
