"""Commands in a sandbox: run to their end, streamed, or in the background. Used by the sandbox's class."""

from __future__ import annotations

import base64
import signal as signals
import time
from collections.abc import Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Union,
)

from .._http import Request, given, path
from ..errors import InvalidError, NotFoundError
from ..models import ExecResult, OutputCollector, ProcessInfo
from ._io import deliver
from .streams import AsyncOutputStream

if TYPE_CHECKING:
    from .client import AsyncClient

Command = Union[str, Sequence[str]]
Callback = Callable[[str], Any]

GRACE_SECONDS = 60.0  # beyond a command's own limit, for waking a hibernated sandbox


def exec_body(command: Command, stdin: str | bytes | None = None, **fields: Any) -> dict[str, Any]:
    """The document that starts a command: a string goes to a shell, a list is run as it is."""
    body = given(**fields)
    if isinstance(command, str):
        body["cmd"] = command
    elif isinstance(command, (bytes, Mapping)) or not all(isinstance(word, str) for word in command):
        raise InvalidError("a command is a string for the shell, or a list of strings", field="cmd")
    else:
        body["argv"] = list(command)
    if isinstance(stdin, str):
        body["stdin"] = stdin
    elif stdin is not None:
        body["stdin_base64"] = base64.b64encode(stdin).decode()
    return body


def read_limit(timeout_seconds: float | None) -> float | None:
    """How long to wait for the answer of something that may take this long itself."""
    return timeout_seconds + GRACE_SECONDS if timeout_seconds else None


def output_path(sandbox: str) -> str:
    return path("sandboxes", sandbox, "processes") + "/{pid}/output"


async def follow(
    stream: AsyncOutputStream,
    on_stdout: Callback | None = None,
    on_stderr: Callback | None = None,
    timeout_seconds: float | None = None,
) -> ExecResult:
    """Reads a stream to its end, collecting what it gives."""
    collector = stream._collector = OutputCollector()
    if timeout_seconds is not None:
        stream._deadline = time.monotonic() + timeout_seconds
    callbacks = {"stdout": on_stdout, "stderr": on_stderr}
    async with stream:
        async for piece in stream:
            callback = callbacks[piece.stream]
            if callback and piece.text:
                await deliver(callback, piece.text)
    assert stream.exit is not None
    return collector.result(stream.pid, stream.exit)


class AsyncProcess:
    """A process in a sandbox, by its pid. It runs without an attached client: its output is kept for later."""

    def __init__(self, client: AsyncClient, sandbox: str, pid: int) -> None:
        self._client = client
        self._sandbox = sandbox
        self.pid = pid

    def __repr__(self) -> str:
        return f"{type(self).__name__}(pid={self.pid}, sandbox={self._sandbox!r})"

    def _path(self, *more: str) -> str:
        return path("sandboxes", self._sandbox, "processes", self.pid, *more)

    def stream(self, *, stdout_offset: int | None = None, stderr_offset: int | None = None) -> AsyncOutputStream:
        """Its output from these offsets (without: from the oldest that is kept) until it ends."""
        request = Request.get(self._path("output"), given(stdout_offset=stdout_offset, stderr_offset=stderr_offset))
        return AsyncOutputStream(self._client, output_path(self._sandbox), request, self.pid)

    async def wait(
        self,
        timeout_seconds: float | None = None,
        *,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
    ) -> ExecResult:
        """Waits for its end; the result holds all its output that is kept. Raises TimedOutError when it still runs
        after `timeout_seconds`, and lets it run."""
        return await follow(self.stream(), on_stdout, on_stderr, timeout_seconds)

    async def write(self, data: str | bytes) -> None:
        """To its standard input, when it was started with stdin=True."""
        body = data.encode() if isinstance(data, str) else bytes(data)
        await self._stdin(body, False)

    async def close_stdin(self) -> None:
        await self._stdin(b"", True)

    async def _stdin(self, body: bytes, close: bool) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        query = {"close": True} if close else {}
        await self._client._done(Request("POST", self._path("stdin"), query, headers, body))

    async def signal(self, number: int | str) -> None:
        """Sends a signal to its process group: 15, "TERM" or signal.SIGTERM."""
        value = number.name[3:] if isinstance(number, signals.Signals) else number
        await self._client._done(Request.json("POST", self._path("signal"), {"signal": value}))

    async def kill(self) -> None:
        await self.signal("KILL")

    async def info(self) -> ProcessInfo:
        for each in await list_processes(self._client, self._sandbox):
            if each.pid == self.pid:
                return each
        raise NotFoundError(f"sandbox {self._sandbox} has no process {self.pid}", field="pid")


async def list_processes(client: AsyncClient, sandbox: str) -> list[ProcessInfo]:
    document = await client._json(Request.get(path("sandboxes", sandbox, "processes")))
    return [ProcessInfo.from_document(each) for each in document["processes"]]
