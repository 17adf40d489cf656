"""The sandbox provider `husk` for Inspect AI: each sample gets a sandbox of its own.

    from husk.inspect_ai import HuskSandboxConfig
    Task(…, sandbox="husk")                                                  # the template code-interpreter
    Task(…, sandbox=("husk", "agent"))                                       # another one
    Task(…, sandbox=SandboxEnvironmentSpec("husk", HuskSandboxConfig(memory="2G", egress="open")))

Needs the package `inspect-ai`, which finds this module by its entry point; it is loaded only then.
"""

from __future__ import annotations

import contextlib
import posixpath
import shlex
import uuid
from collections.abc import AsyncIterator
from typing import Any, Literal, overload

try:
    import anyio
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxConnection,
        SandboxEnvironment,
        SandboxEnvironmentConfigType,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        sandboxenv,
    )
    from pydantic import BaseModel
except ImportError as error:
    raise ImportError("husk.inspect_ai needs the package inspect-ai: pip install './sdk/python[inspect]'") from error

from ._async.processes import AsyncProcess
from ._async.sandbox import AsyncSandbox
from ._async.streams import AsyncOutputStream
from .errors import ConflictError, GoneError, HuskError, InvalidError, NotFoundError

TEMPLATE = "code-interpreter"
TTL_SECONDS = 6 * 60 * 60  # of a sandbox whose eval was killed
LABEL = {"made-by": "inspect-ai"}
PIECE = 4 << 20  # of standard input: the server bounds a request's body
ARGUMENTS = 48 << 10  # characters, of up to 4 bytes: the server bounds what goes with one command
SAFE = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

# Run by the user whose rights count; the exit codes are errno's.
MAY_READ = """
[ -e "$1" ] || exit 2
[ -d "$1" ] && exit 21
[ -r "$1" ] || exit 13
stat -L -c %s -- "$1"
"""
MAY_WRITE = """
[ -d "$1" ] && exit 21
if [ -e "$1" ]; then [ -w "$1" ] || exit 13; exit 0; fi
above=$(dirname -- "$1")
mkdir -p -- "$above" && [ -w "$above" ] || exit 13
"""


class HuskSandboxConfig(BaseModel, frozen=True):
    """What a sample's sandbox is. As `Sandbox.create`; what is not given is the server's default."""

    template: str = TEMPLATE
    user: str | None = None  # who runs commands; unless given the template's own user, else root
    working_dir: str = "/workspace"
    ttl_seconds: int = TTL_SECONDS
    memory: int | str | None = None
    disk: int | str | None = None
    cpus: float | None = None
    env: dict[str, str] | None = None
    egress: str | dict[str, Any] | None = None


@sandboxenv(name="husk")
class HuskSandboxEnvironment(SandboxEnvironment):
    """A sandbox as Inspect sees one."""

    def __init__(self, sandbox: AsyncSandbox, config: HuskSandboxConfig, user: str | None) -> None:
        super().__init__()
        self._sandbox = sandbox
        self._config = config
        self._user = user

    # ---- its life ----

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return HuskSandboxConfig(**config)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        wanted = _config(config)
        sandbox = await AsyncSandbox.create(
            wanted.template,
            ttl_seconds=wanted.ttl_seconds,
            memory=wanted.memory,
            disk=wanted.disk,
            cpus=wanted.cpus,
            env=wanted.env,
            egress=wanted.egress,
            metadata={**LABEL, "task": task_name},
        )
        try:
            await sandbox.filesystem.mkdir(wanted.working_dir, mode=0o1777)
            user = wanted.user or (await sandbox.exec(["/usr/bin/id", "-nu", "1000"])).stdout.strip() or None
        except BaseException:
            with anyio.CancelScope(shield=True), contextlib.suppress(HuskError):
                await sandbox.kill()
            raise
        return {"default": cls(sandbox, wanted, user)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        with anyio.CancelScope(shield=True):
            for each in environments.values():
                await each.as_type(cls)._sandbox.kill()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Ends what an eval that was killed has left: all, or one."""
        for each in await AsyncSandbox.list(metadata=LABEL):
            if id in (None, each.id):
                await each.kill()

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        if (await self._sandbox.refresh()).state != "running":
            raise ConnectionError(f"the sandbox {self._sandbox.id} does not run")
        command = f"husk exec -it --user {user or self._user or 'root'} {self._sandbox.id} bash -l"
        return SandboxConnection(type="husk", command=command, container=self._sandbox.id)

    # ---- commands ----

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """A command that times out is not tried again: it did run, and was killed with all it started."""
        fields: dict[str, Any] = dict(
            timeout_seconds=timeout, env=env, cwd=posixpath.join(self._config.working_dir, cwd or ""), user=user or self._user
        )
        data = input.encode() if isinstance(input, str) else input
        try:
            async with self._sendable(cmd) as command:
                if data is not None and len(data) > PIECE:
                    result = await self._exec_fed(command, data, fields)
                else:
                    result = await self._collect(self._sandbox.exec_stream(command, stdin=data, **fields))
        except NotFoundError as failure:
            if user is not None and f"'{user}'" in failure.message:
                raise SandboxUserUnsupportedError(failure.message) from failure
            raise SandboxUnavailableError(failure.message) from failure
        except GoneError as failure:
            raise SandboxUnavailableError(failure.message) from failure
        if result.returncode == 126 and "permission denied" in result.stderr.lower():
            raise PermissionError(result.stderr.strip())
        return result

    @contextlib.asynccontextmanager
    async def _sendable(self, cmd: list[str]) -> AsyncIterator[list[str]]:
        """The command; where its arguments are more than a request may carry, a script in the sandbox that runs it."""
        if sum(len(word) for word in cmd) < ARGUMENTS:
            yield cmd
            return
        script = f"/tmp/.inspect-{uuid.uuid4().hex}"
        await self._sandbox.filesystem.write(script, f"exec {shlex.join(cmd)}\n", mode=0o444)
        try:
            yield ["/bin/sh", script]
        finally:
            with anyio.CancelScope(shield=True), contextlib.suppress(HuskError):
                await self._sandbox.filesystem.remove(script)

    async def _exec_fed(self, cmd: list[str], data: bytes, fields: dict[str, Any]) -> ExecResult[str]:
        """With more on its standard input than one request can carry."""
        process = await self._sandbox.start(cmd, stdin=True, **fields)
        async with anyio.create_task_group() as group:
            group.start_soon(_feed, process, data)
            result = await self._collect(process.stream())
            group.cancel_scope.cancel()
        return result

    async def _collect(self, stream: AsyncOutputStream) -> ExecResult[str]:
        out: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        sizes = {"stdout": 0, "stderr": 0}
        async with _ended(self._sandbox, stream):
            async for piece in stream:
                out[piece.stream].append(piece.data)
                sizes[piece.stream] += len(piece.data)
                if sizes[piece.stream] > SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE:
                    kept = b"".join(out[piece.stream])[: SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE]
                    raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, kept.decode(errors="replace"))
        if stream.exit is None or stream.exit.timed_out:
            raise TimeoutError("the command did not end in time")
        stdout, stderr = (b"".join(out[name]).decode(errors="replace") for name in ("stdout", "stderr"))
        code = stream.exit.exit_code
        return ExecResult(success=code == 0, returncode=code, stdout=stdout, stderr=stderr)

    # ---- files ----

    async def write_file(self, file: str, contents: str | bytes) -> None:
        where = self._path(file)
        await self._check(MAY_WRITE, file, where)
        try:
            await self._sandbox.filesystem.write(where, contents, user=self._user)
        except InvalidError as failure:
            raise OSError(f"{file}: {failure.message}") from failure

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        where = self._path(file)
        size = int(await self._check(MAY_READ, file, where))
        if size > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        try:
            data = await self._sandbox.filesystem.read(where, length=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE)
        except NotFoundError as failure:
            raise FileNotFoundError(f"{file}: {failure.message}") from failure
        return data.decode() if text else data

    def _path(self, file: str) -> str:
        return posixpath.join(self._config.working_dir, file)

    async def _check(self, script: str, file: str, where: str) -> str:
        """Files are carried with the rights of root, so it is asked first whether the user has the right."""
        done = await self._sandbox.exec(["/bin/sh", "-c", script, "sh", where], env=SAFE, user=self._user)
        if done.exit_code == 2:
            raise FileNotFoundError(f"{file}: no such file")
        if done.exit_code == 21:
            raise IsADirectoryError(f"{file}: is a directory")
        if done.exit_code != 0:
            raise PermissionError(f"{file}: permission denied {done.stderr.strip()}")
        return done.stdout


def _config(given: SandboxEnvironmentConfigType | None) -> HuskSandboxConfig:
    if given is None:
        return HuskSandboxConfig()
    if isinstance(given, str):
        return HuskSandboxConfig(template=given)
    if isinstance(given, HuskSandboxConfig):
        return given
    raise TypeError(f"the sandbox husk takes the name of a template or a HuskSandboxConfig, not {type(given).__name__}")


async def _feed(process: AsyncProcess, data: bytes) -> None:
    with contextlib.suppress(ConflictError, NotFoundError):  # it has ended, or reads no more
        for start in range(0, len(data), PIECE):
            await process.write(data[start : start + PIECE])
        await process.close_stdin()


@contextlib.asynccontextmanager
async def _ended(sandbox: AsyncSandbox, stream: AsyncOutputStream) -> AsyncIterator[None]:
    """A command is killed if its output is no longer read, because there is too much or the caller was cancelled."""
    try:
        async with stream:
            yield
    finally:
        if stream.exit is None and stream.pid is not None:
            with anyio.CancelScope(shield=True), contextlib.suppress(HuskError):
                await sandbox.process(stream.pid).kill()
