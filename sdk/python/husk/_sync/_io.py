"""The bytes on the wire with blocking sockets: the only file that differs between the blocking and the asyncio SDK; its
twin is husk/_async/_io.py. Everything above it is written once.
"""

from __future__ import annotations

import atexit
import functools
import os
import select
import socket as sockets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from .._endpoint import Endpoint, resolve
from .._http import PIECE
from .._reach import reach_failure, tls_context
from ..errors import ConnectionFailedError, TimedOutError

if TYPE_CHECKING:
    from .client import Client

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Stream:
    """A connection. A timeout counts from its call; None: no limit."""

    def __init__(self, connected: sockets.socket) -> None:
        self._socket = connected
        self._process = os.getpid()
        self._writing = threading.Lock()  # what one thread writes is not mixed with what another does

    @classmethod
    def connect(cls, endpoint: Endpoint, timeout: float | None) -> Stream:
        try:
            return cls(cls._open(endpoint, timeout))
        except OSError as error:
            raise reach_failure(endpoint, error) from error

    @staticmethod
    def _open(endpoint: Endpoint, timeout: float | None) -> sockets.socket:
        if endpoint.socket:
            raw = sockets.socket(sockets.AF_UNIX)
            try:
                raw.settimeout(timeout)
                raw.connect(endpoint.socket)
            except BaseException:
                raw.close()
                raise
            return raw
        raw = sockets.create_connection((endpoint.host, endpoint.port), timeout)
        try:
            raw.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
            return tls_context(endpoint).wrap_socket(raw, server_hostname=endpoint.host) if endpoint.tls else raw
        except BaseException:
            raw.close()
            raise

    def read(self, timeout: float | None) -> bytes:
        """The next bytes; none at the end of the connection."""
        return self._bounded(self._socket.recv, PIECE, timeout)

    def try_read(self, timeout: float | None) -> bytes | None:
        """As read, but time that is up only means None, and the connection stays as it is."""
        secure = hasattr(self._socket, "pending")
        try:
            if not (secure and self._socket.pending()):  # type: ignore[attr-defined]
                poll = select.poll()
                poll.register(self._socket, select.POLLIN)
                if not poll.poll(None if timeout is None else max(0.0, timeout * 1000)):
                    return None
            if not secure:
                return self._socket.recv(PIECE, sockets.MSG_DONTWAIT)
            with self._writing:  # TLS cannot read and write at once
                self._socket.settimeout(0)
                return self._socket.recv(PIECE)
        except BlockingIOError:
            return None
        except OSError as error:
            if type(error).__name__ == "SSLWantReadError":  # part of a record: nothing to give yet
                return None
            raise ConnectionFailedError(f"the connection to the server broke: {error}", sent=True) from error

    def write(self, data: bytes, timeout: float | None) -> None:
        with self._writing:
            self._bounded(self._socket.sendall, data, timeout)

    def _bounded(self, step: Callable[[Any], T], argument: Any, timeout: float | None) -> T:
        try:
            # A timeout of 0 would mean "do not wait" to the socket, and fail in another way.
            self._socket.settimeout(None if timeout is None else max(timeout, 0.001))
            return step(argument)
        except sockets.timeout:
            raise TimedOutError("the server did not answer in time") from None
        except OSError as error:
            raise ConnectionFailedError(f"the connection to the server broke: {error}", sent=True) from error

    def reusable(self) -> bool:
        """Whether it is still open, and was made by this process and not by the one it was forked from."""
        if self._process != os.getpid() or self._socket.fileno() < 0:
            return False
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return not poll.poll(0)  # readable while nothing was asked: it has ended
        except OSError:
            return False

    def close(self) -> None:
        self._socket.close()


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def local(function: Callable[..., T], *arguments: Any) -> T:
    """Work on the local disk."""
    return function(*arguments)


def deliver(callback: Callable[[Any], Any], value: Any) -> None:
    callback(value)


class Pieces:
    """A body that comes bit by bit: from an iterable of bytes, or from a file."""

    def __init__(self, source: Any) -> None:
        self._now: Iterator[bytes] = (
            iter(functools.partial(source.read, PIECE), b"") if hasattr(source, "read") else iter(source)
        )

    def next(self) -> bytes | None:
        return next(self._now, None)


def opening(method: F) -> F:
    """Marks methods that the asyncio form lets one use with `async with` at once."""
    return method


_clients: dict[tuple[int, Endpoint], Client] = {}


def default_client() -> Client:
    """One per process and server, shared by all threads."""
    from .client import Client

    key = (os.getpid(), resolve())
    client = _clients.get(key)
    if client is None:
        client = _clients.setdefault(key, Client(_endpoint=key[1]))
    return client


def _close_clients() -> None:
    for (process, _), client in _clients.items():
        if process == os.getpid():
            client.close()


atexit.register(_close_clients)


def outcome(value: Any) -> Any:
    """What a function of the caller returned."""
    return value


def every(calls: list[Callable[[], Any]], limit: int) -> None:
    """Makes all calls, at most `limit` at a time."""
    with ThreadPoolExecutor(min(limit, len(calls) or 1)) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result()
