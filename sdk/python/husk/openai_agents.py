"""A sandbox client for the OpenAI Agents SDK: the agent's loop runs here, its commands and files are in a sandbox.

    from agents import RunConfig, Runner
    from agents.sandbox import SandboxAgent, SandboxRunConfig
    from husk.openai_agents import HuskSandboxClient, HuskSandboxClientOptions

    sandbox = SandboxRunConfig(client=HuskSandboxClient(), options=HuskSandboxClientOptions(template="agent"))
    result = await Runner.run(SandboxAgent(name="…", instructions="…"), "…", run_config=RunConfig(sandbox=sandbox))

Needs the package `openai-agents`, which is loaded only when this module is. The SDK's base class does manifests, listing and
patches with commands; all it asks of us is to run one, to carry files, to pack the workspace, and terminals.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import shlex
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

try:
    from agents.sandbox.errors import (
        ExecTimeoutError,
        ExecTransportError,
        ExposedPortUnavailableError,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        WorkspaceReadNotFoundError,
        WorkspaceWriteTypeError,
    )
    from agents.sandbox.manifest import Manifest
    from agents.sandbox.session import SandboxSession, SandboxSessionState
    from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
    from agents.sandbox.session.manager import Instrumentation
    from agents.sandbox.session.mount_lifecycle import with_ephemeral_mounts_removed
    from agents.sandbox.session.pty_output import collect_pty_output
    from agents.sandbox.session.pty_types import (
        PTY_PROCESSES_MAX,
        PtyExecUpdate,
        allocate_pty_process_id,
        clamp_pty_yield_time_ms,
        process_id_to_prune_from_meta,
        resolve_pty_write_yield_time_ms,
    )
    from agents.sandbox.session.runtime_helpers import (
        RESOLVE_WORKSPACE_PATH_HELPER,
        RuntimeHelperScript,
    )
    from agents.sandbox.session.sandbox_client import (
        BaseSandboxClient,
        BaseSandboxClientOptions,
    )
    from agents.sandbox.session.tar_workspace import shell_tar_exclude_args
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
    from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
    from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tar_bytes
    from agents.sandbox.workspace_paths import sandbox_path_str
except ImportError as error:
    raise ImportError("husk.openai_agents needs the package openai-agents: pip install './sdk/python[openai-agents]'") from error

from ._async.client import AsyncClient
from ._async.processes import AsyncProcess
from ._async.pty import AsyncPty
from ._async.sandbox import AsyncSandbox
from .errors import GoneError, HuskError, NotFoundError

CLEANUP_SECONDS = 30


class HuskSandboxClientOptions(BaseSandboxClientOptions):
    """What a new sandbox is. As `Sandbox.create`; what is not given is the server's default."""

    type: Literal["husk"] = "husk"
    template: str | None = None
    ttl_seconds: int | None = None
    memory: int | str | None = None
    disk: int | str | None = None
    cpus: float | None = None
    env: dict[str, str] | None = None
    metadata: dict[str, str] | None = None
    egress: str | dict[str, Any] | None = None
    exposed_ports: tuple[int, ...] = ()
    exposed_port_seconds: int | None = None  # how long the URL of a port holds
    hibernate_on_exit: bool = False  # instead of ending it: `resume` continues it with its processes


class HuskSandboxSessionState(SandboxSessionState):
    """What is needed to find the sandbox again, or to make another like it."""

    type: Literal["husk"] = "husk"
    sandbox_id: str
    options: HuskSandboxClientOptions


@dataclass
class _Running:
    """A command that was started and is followed."""

    handle: AsyncPty | AsyncProcess
    chunks: deque[bytes] = field(default_factory=deque)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    exit_code: int | None = None
    used: float = field(default_factory=time.monotonic)
    reader: asyncio.Task[None] | None = None

    async def add(self, data: bytes) -> None:
        async with self.lock:
            self.chunks.append(data)
        self.news.set()

    async def follow(self) -> None:
        try:
            if isinstance(self.handle, AsyncPty):
                while data := await self.handle.read():
                    await self.add(data)
                self.exit_code = self.handle.exit.exit_code if self.handle.exit else None
            else:
                async with self.handle.stream() as stream:
                    async for piece in stream:
                        await self.add(piece.data)
                self.exit_code = stream.exit_code
        except HuskError as failure:
            await self.add(f"\n[{failure.message}]\n".encode())
        finally:
            self.closed.set()
            self.news.set()

    async def end(self) -> None:
        with contextlib.suppress(HuskError, asyncio.TimeoutError):
            if not self.closed.is_set():
                end = self.handle.signal("KILL") if isinstance(self.handle, AsyncPty) else self.handle.kill()
                await asyncio.wait_for(end, CLEANUP_SECONDS)
        if self.reader is not None and not self.reader.done():
            self.reader.cancel()
            await asyncio.gather(self.reader, return_exceptions=True)
        if isinstance(self.handle, AsyncPty):
            await self.handle.aclose()


class HuskSandboxSession(BaseSandboxSession):
    """A sandbox as the SDK sees one."""

    state: HuskSandboxSessionState

    def __init__(self, *, state: HuskSandboxSessionState, sandbox: AsyncSandbox) -> None:
        self.state = state
        self._sandbox = sandbox
        self._running: dict[int, _Running] = {}
        self._numbers: set[int] = set()

    @property
    def sandbox(self) -> AsyncSandbox:
        """What runs below, with all that it can do."""
        return self._sandbox

    # ---- its life ----

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    async def _prepare_backend_workspace(self) -> None:
        await self._sandbox.filesystem.mkdir(sandbox_path_str(self.state.manifest.root))

    async def running(self) -> bool:
        try:
            return (await self._sandbox.refresh()).state == "running"
        except HuskError:
            return False

    async def _shutdown_backend(self) -> None:
        """Called again by `delete`, when the session was closed before."""
        try:
            if not self.state.options.hibernate_on_exit:
                await self._sandbox.kill()
            elif (await self._sandbox.refresh()).state != "hibernated":
                await self._sandbox.hibernate()
        except (NotFoundError, GoneError):
            return

    # ---- commands ----

    async def exec(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
    ) -> ExecResult:
        prepared = self._prepare_exec_command(*command, shell=shell, user=None)
        return await self._run(prepared, timeout, user)

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        return await self._run([str(word) for word in command], timeout, None)

    async def _run(self, command: list[str], timeout: float | None, user: str | User | None) -> ExecResult:
        """Without a bound on the output, which the result of a command that is not streamed has."""
        out: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        try:
            stream = self._sandbox.exec_stream(
                command,
                timeout_seconds=None if timeout is None else max(timeout, 0.001),
                env=await self._env(),
                cwd=sandbox_path_str(self.state.manifest.root) if self.state.workspace_root_ready else None,
                user=_name(user),
            )
            async with stream:
                async for piece in stream:
                    out[piece.stream].append(piece.data)
        except HuskError as failure:
            raise ExecTransportError(command=tuple(command), context={"backend": "husk"}, cause=failure) from failure
        if stream.exit is None or stream.exit.timed_out:
            raise ExecTimeoutError(command=tuple(command), timeout_s=timeout)
        return ExecResult(stdout=b"".join(out["stdout"]), stderr=b"".join(out["stderr"]), exit_code=stream.exit.exit_code)

    async def _env(self) -> dict[str, str]:
        return dict(await self.state.manifest.environment.resolve())

    # ---- commands that go on ----

    def supports_pty(self) -> bool:
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        prepared = self._prepare_exec_command(*command, shell=shell, user=None)
        root, env = sandbox_path_str(self.state.manifest.root), await self._env()
        handle: AsyncPty | AsyncProcess
        try:
            if tty:
                line = shlex.join(["env", *(f"{name}={value}" for name, value in env.items()), *prepared])
                handle = await self._sandbox.pty(line, cwd=root, user=_name(user))
            else:
                handle = await self._sandbox.start(prepared, timeout_seconds=timeout, env=env, cwd=root, user=_name(user))
        except HuskError as failure:
            raise ExecTransportError(command=tuple(prepared), context={"backend": "husk"}, cause=failure) from failure
        entry = _Running(handle)
        entry.reader = asyncio.create_task(entry.follow())
        await self._make_room()
        number = allocate_pty_process_id(self._numbers)
        self._numbers.add(number)
        self._running[number] = entry
        wait = 10_000 if yield_time_s is None else int(yield_time_s * 1000)
        return await self._collect(number, entry, clamp_pty_yield_time_ms(wait), max_output_tokens)

    async def pty_write_stdin(
        self, *, session_id: int, chars: str, yield_time_s: float | None = None, max_output_tokens: int | None = None
    ) -> PtyExecUpdate:
        entry = self._resolve_pty_session_entry(pty_processes=self._running, session_id=session_id)
        if chars:
            if not isinstance(entry.handle, AsyncPty):
                raise RuntimeError("stdin is not available for this process")
            await entry.handle.write(chars)
        entry.used = time.monotonic()
        wait = 250 if yield_time_s is None else int(yield_time_s * 1000)
        wait = resolve_pty_write_yield_time_ms(yield_time_ms=wait, input_empty=not chars)
        return await self._collect(session_id, entry, wait, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        entries = list(self._running.values())
        self._running.clear()
        self._numbers.clear()
        for entry in entries:
            await entry.end()

    async def _collect(self, number: int, entry: _Running, wait: int, max_output_tokens: int | None) -> PtyExecUpdate:
        output, tokens, over = await collect_pty_output(
            output_chunks=entry.chunks,
            output_lock=entry.lock,
            output_notify=entry.news,
            is_done=entry.closed.is_set,
            yield_time_ms=wait,
            max_output_tokens=max_output_tokens,
        )
        if over:
            await self._forget(number)
        return PtyExecUpdate(
            process_id=None if over else number,
            output=output,
            exit_code=entry.exit_code if over else None,
            original_token_count=tokens,
        )

    async def _forget(self, number: int) -> None:
        entry = self._running.pop(number, None)
        self._numbers.discard(number)
        if entry is not None:
            await entry.end()

    async def _make_room(self) -> None:
        if len(self._running) < PTY_PROCESSES_MAX:
            return
        known = [(number, entry.used, entry.closed.is_set()) for number, entry in self._running.items()]
        oldest = process_id_to_prune_from_meta(known)
        if oldest is not None:
            await self._forget(oldest)

    # ---- files ----

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    async def read(self, path: Path | str, *, user: str | User | None = None) -> io.IOBase:
        check = self._validate_path_access(path) if user is None else self._check_read_with_exec(path, user=user)
        return io.BytesIO(await self._read(Path(path), await check, None))

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        return await self._read(path, await self._validate_path_access(path), max_bytes)

    async def _read(self, given: Path, path: Path, length: int | None) -> bytes:
        try:
            return await self._sandbox.filesystem.read(sandbox_path_str(path), length=length)
        except NotFoundError as failure:
            raise WorkspaceReadNotFoundError(path=given, cause=failure) from failure
        except HuskError as failure:
            raise WorkspaceArchiveReadError(path=given, cause=failure) from failure

    async def write(self, path: Path | str, data: io.IOBase, *, user: str | User | None = None) -> None:
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        content = _bytes(data, Path(path))
        allowed = await self._validate_path_access(path, for_write=True)
        try:
            await self._sandbox.filesystem.write(sandbox_path_str(allowed), content)
        except HuskError as failure:
            raise WorkspaceArchiveWriteError(path=allowed, cause=failure) from failure

    # ---- the workspace as a whole ----

    async def persist_workspace(self) -> io.IOBase:
        root = self._workspace_root_path()
        return await with_ephemeral_mounts_removed(
            self,
            self._pack,
            error_path=root,
            error_cls=WorkspaceArchiveReadError,
            operation_error_context_key="snapshot_error_before_remount_corruption",
        )

    async def _pack(self) -> io.IOBase:
        root, packed = self._workspace_root_path(), f"/tmp/workspace-{self.state.session_id.hex}.tar"
        skipped = " ".join(shell_tar_exclude_args(self._persist_workspace_skip_relpaths()))
        try:
            line = f"tar {skipped} -C {shlex.quote(root.as_posix())} -cf {packed} ."
            done = await self._sandbox.exec(line)
            if done.exit_code != 0:
                raise WorkspaceArchiveReadError(path=root, context={"reason": "tar_failed", "output": done.stderr})
            return io.BytesIO(await self._sandbox.filesystem.read(packed))
        except HuskError as failure:
            raise WorkspaceArchiveReadError(path=root, cause=failure) from failure
        finally:
            with contextlib.suppress(HuskError):
                await self._sandbox.exec(["rm", "-f", packed])

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root, packed = self._workspace_root_path(), f"/tmp/workspace-{self.state.session_id.hex}.tar"
        content = _bytes(data, root)
        try:
            validate_tar_bytes(content, allow_external_symlink_targets=False)
        except UnsafeTarMemberError as failure:
            context = {"reason": "unsafe_or_invalid_tar", "member": failure.member, "detail": str(failure)}
            raise WorkspaceArchiveWriteError(path=root, context=context, cause=failure) from failure
        try:
            await self._sandbox.filesystem.mkdir(root.as_posix())
            await self._sandbox.filesystem.write(packed, content)
            done = await self._sandbox.exec(["tar", "-C", root.as_posix(), "-xf", packed])
            if done.exit_code != 0:
                raise WorkspaceArchiveWriteError(path=root, context={"reason": "tar_failed", "output": done.stderr})
        except HuskError as failure:
            raise WorkspaceArchiveWriteError(path=root, cause=failure) from failure
        finally:
            with contextlib.suppress(HuskError):
                await self._sandbox.exec(["rm", "-f", packed])

    # ---- ports ----

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        try:
            url = urlsplit(await self._sandbox.get_url(port, expires_seconds=self.state.options.exposed_port_seconds))
        except HuskError as failure:
            raise ExposedPortUnavailableError(
                port=port,
                exposed_ports=self.state.exposed_ports,
                reason="backend_unavailable",
                context={"backend": "husk"},
                cause=failure,
            ) from failure
        tls = url.scheme == "https"
        return ExposedPortEndpoint(host=url.hostname or "", port=url.port or (443 if tls else 80), tls=tls, query=url.query)


class HuskSandboxClient(BaseSandboxClient[HuskSandboxClientOptions]):
    """Makes sandboxes for the SDK. `client`: another server than HUSK_URL and HUSK_TOKEN name."""

    backend_id = "husk"
    supports_default_options = True

    def __init__(self, *, client: AsyncClient | None = None, instrumentation: Instrumentation | None = None) -> None:
        self._client = client
        self._instrumentation = instrumentation or Instrumentation()

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: HuskSandboxClientOptions | None = None,
    ) -> SandboxSession:
        manifest = manifest if manifest is not None else Manifest()
        self._validate_manifest_for_create(manifest)
        wanted = options or HuskSandboxClientOptions()
        session_id = uuid.uuid4()
        sandbox = await self._make(wanted)
        state = HuskSandboxSessionState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            sandbox_id=sandbox.id,
            options=wanted,
            exposed_ports=wanted.exposed_ports,
        )
        return self._wrap_session(HuskSandboxSession(state=state, sandbox=sandbox), instrumentation=self._instrumentation)

    async def _make(self, wanted: HuskSandboxClientOptions) -> AsyncSandbox:
        return await AsyncSandbox.create(
            wanted.template,
            ttl_seconds=wanted.ttl_seconds,
            memory=wanted.memory,
            disk=wanted.disk,
            cpus=wanted.cpus,
            env=wanted.env,
            metadata=wanted.metadata,
            egress=wanted.egress,
            client=self._client,
        )

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Ends the sandbox, or puts it to sleep with `hibernate_on_exit`."""
        inner = session._inner
        if not isinstance(inner, HuskSandboxSession):
            raise TypeError("HuskSandboxClient.delete expects a HuskSandboxSession")
        await inner.shutdown()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """The sandbox of `state`, woken if it sleeps; where it has ended, another with the workspace of its snapshot."""
        if not isinstance(state, HuskSandboxSessionState):
            raise TypeError("HuskSandboxClient.resume expects a HuskSandboxSessionState")
        state.assert_path_grants_rebound()
        sandbox = await self._find(state.sandbox_id)
        found = sandbox is not None
        if sandbox is None:
            sandbox = await self._make(state.options)
            state.sandbox_id = sandbox.id
            state.workspace_root_ready = False
        inner = HuskSandboxSession(state=state, sandbox=sandbox)
        inner._set_start_state_preserved(found, system=found)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def _find(self, sandbox_id: str) -> AsyncSandbox | None:
        try:
            sandbox = await AsyncSandbox.connect(sandbox_id, client=self._client)
            if sandbox.state == "hibernated":
                await sandbox.wake()
            elif sandbox.state == "paused":
                await sandbox.resume()
        except (NotFoundError, GoneError):
            return None
        return sandbox if sandbox.state == "running" else None

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, HuskSandboxSessionState)


def _name(user: str | User | None) -> str | None:
    return user.name if isinstance(user, User) else user


def _bytes(data: io.IOBase, path: Path) -> bytes:
    content = data.read()
    if isinstance(content, str):
        return content.encode()
    if not isinstance(content, (bytes, bytearray)):
        raise WorkspaceWriteTypeError(path=path, actual_type=type(content).__name__)
    return bytes(content)
