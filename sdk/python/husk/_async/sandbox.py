"""The sandbox: the class that programs are written with. Everything it does is a request to the server, which knows the
sandbox by its id, so that any number of programs may hold handles on the same one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    List,
    overload,
)

from .._http import Request, given, path
from .._workspace import program
from ..errors import GoneError, HuskError, InvalidError, NotFoundError
from ..models import (
    Change,
    Checkpoint,
    CodeContext,
    CodeOutput,
    CodeResult,
    Difference,
    Egress,
    Effect,
    EgressEvent,
    ExecResult,
    Merged,
    ProcessInfo,
    Promoted,
    Rewound,
    SandboxEvent,
    SandboxInfo,
    SandboxStats,
    SignedUrl,
    SnapshotInfo,
    parse_time,
)
from . import code as codes
from ._io import opening
from .browser import AsyncBrowser
from .client import AsyncClient
from .desktop import AsyncDesktop
from .explore import AsyncBranch, Plan, Score, explore
from .filesystem import AsyncFilesystem
from .processes import (
    AsyncProcess,
    Callback,
    Command,
    exec_body,
    follow,
    list_processes,
    output_path,
    read_limit,
)
from .pty import AsyncPty
from .snapshots import AsyncSnapshot
from .streams import AsyncOutputStream, AsyncSandboxEvents
from .volumes import AsyncVolume
from .workspace import AsyncWorkspace

if TYPE_CHECKING:
    from datetime import datetime

    from typing_extensions import TypedDict, Unpack

    class ForkOptions(TypedDict, total=False):
        """What a fork may have otherwise than its parent."""

        name: str | None
        ttl_seconds: int | None
        persistent: bool | None
        on_expiry: str | None
        checkpoints: str | None
        idle_seconds: int | None
        memory: int | str | None
        cpus: float | None
        pids: int | None
        metadata: Mapping[str, str] | None
        env: Mapping[str, str] | None
        egress: str | Mapping[str, Any] | None


CREATE_SECONDS = 1800.0  # the first sandbox of a template that is not built yet waits for the build
MOVE_SECONDS = 600.0  # memory to and from the disk


def _mount(at: str, volume: str | AsyncVolume | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(volume, (str, AsyncVolume)):
        return {"volume": volume if isinstance(volume, str) else volume.id, "path": at}
    return {**volume, "path": at}


class AsyncSandbox:
    """A throwaway computer.

        async with AsyncSandbox.create(template="agent", ttl_seconds=900) as sandbox:
            result = await sandbox.exec("uname -a", timeout_seconds=60)
            print(result.stdout, result.exit_code)

    Leaving the `async with` block kills it, unless it is persistent. Whatever becomes of the program, the server ends
    the sandbox when its time to live is over.
    """

    def __init__(self, client: AsyncClient, info: SandboxInfo) -> None:
        self._client = client
        self.info = info  # as of the last answer that told; `refresh` asks anew
        self.filesystem = AsyncFilesystem(client, info.id)
        self.desktop = AsyncDesktop(client, info.id)
        self.browser = AsyncBrowser(client, info.id)
        self.workspace = AsyncWorkspace(client, info.id)
        client._use(self)

    # ---- finding and making ----

    @classmethod
    @opening
    async def create(
        cls,
        template: str | None = None,
        *,
        snapshot: str | AsyncSnapshot | None = None,
        ttl_seconds: int | None = None,
        persistent: bool | None = None,
        on_expiry: str | None = None,
        checkpoints: str | None = None,
        idle_seconds: int | None = None,
        metadata: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        memory: int | str | None = None,
        disk: int | str | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        isolation: str | None = None,
        egress: str | Mapping[str, Any] | None = None,
        volumes: Mapping[str, str | AsyncVolume | Mapping[str, Any]] | None = None,
        workspace: str | os.PathLike[str] | None = None,
        workspace_all: bool = False,
        idempotency_key: str | None = None,
        client: AsyncClient | None = None,
    ) -> AsyncSandbox:
        """A new sandbox, from a template ("base" unless told) or a snapshot.

        ttl_seconds: how long it lives (an hour unless told); `extend` gives it more. persistent: lives until it is
        killed. on_expiry: "kill" or "hibernate" when its time is over; asleep it has no end. checkpoints: "each-call" takes one
        before every exec and code call. idle_seconds: hibernates when unused for that long; the next call wakes it. memory, disk: bytes, or
        "512M", "2G". env: for every process in it. metadata: for finding it again with `list`. egress: what it may reach,
        "off" unless told, "open", or {"allow": ["example.com", "10.1.2.0/24:443"], "secrets": [{"name", "value", "hosts"}],
        "limits": {…}, "hold": […], "trust": PEM}; a secret's value never enters the sandbox. volumes: by path, {"/data": volume}, or
        {"/data": {"volume": "name", "read_only": True}}. workspace: a directory of yours, "DIR" or "DIR:/path", that is copied in, without what git
        ignores unless workspace_all; `sandbox.workspace` shows the changes and writes them back. idempotency_key: a create that repeats the key of an earlier one gives the same sandbox; without one, a retry after a lost answer
        does that by itself.
        """
        used = AsyncClient._or_default(client)
        body = given(
            template=template,
            snapshot=snapshot.id if isinstance(snapshot, AsyncSnapshot) else snapshot,
            ttl_seconds=ttl_seconds,
            persistent=persistent,
            on_expiry=on_expiry,
            checkpoints=checkpoints,
            idle_seconds=idle_seconds,
            metadata=dict(metadata) if metadata is not None else None,
            env=dict(env) if env is not None else None,
            name=name,
            memory=memory,
            disk=disk,
            cpus=cpus,
            pids=pids,
            isolation=isolation,
            egress=egress,
            volumes=[_mount(at, each) for at, each in volumes.items()] if volumes is not None else None,
        )
        headers = {"Idempotency-Key": idempotency_key or os.urandom(16).hex()}
        request = Request.json(
            "POST", path("sandboxes"), body, headers=headers, timeout=CREATE_SECONDS, repeatable=True
        )
        if workspace is not None:
            program()  # before a sandbox is made
        made = cls(used, SandboxInfo.from_document(await used._json(request)))
        if workspace is not None:
            await made._bring(workspace, workspace_all)
        return made

    async def _bring(self, workspace: str | os.PathLike[str], all_files: bool) -> None:
        """The workspace, and a checkpoint to come back to. A sandbox without its workspace is removed again."""
        try:
            await self.workspace.bring(workspace, all_files=all_files)
            await self.checkpoint("workspace")
        except BaseException:
            await self.kill()
            raise

    @classmethod
    @opening
    async def connect(cls, id_or_name: str, *, client: AsyncClient | None = None) -> AsyncSandbox:
        """A handle on a sandbox that exists. It does not wake a hibernated one."""
        if not id_or_name:
            raise InvalidError("the id or name of a sandbox is missing", field="id_or_name")
        used = AsyncClient._or_default(client)
        return cls(used, SandboxInfo.from_document(await used._json(Request.get(path("sandboxes", id_or_name)))))

    @classmethod
    async def list(
        cls,
        *,
        metadata: Mapping[str, str] | None = None,
        state: str | None = None,
        template: str | None = None,
        ended: bool = False,
        limit: int | None = None,
        client: AsyncClient | None = None,
    ) -> List[AsyncSandbox]:
        """Sandboxes, newest first: all that match, or at most `limit`. `ended`: also those that have ended."""
        used = AsyncClient._or_default(client)
        query: dict[str, Any] = {f"metadata.{key}": value for key, value in (metadata or {}).items()}
        query.update(given(state=state, template=template, ended=True if ended else None))
        found: List[AsyncSandbox] = []
        while limit is None or len(found) < limit:
            query["limit"] = 100 if limit is None else min(100, limit - len(found))
            document = await used._json(Request.get(path("sandboxes"), query))
            found += [cls(used, SandboxInfo.from_document(each)) for each in document["sandboxes"]]
            query["cursor"] = document.get("next_cursor")
            if not query["cursor"]:
                break
        return found

    # ---- what it is ----

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str | None:
        return self.info.name

    @property
    def state(self) -> str:
        """As of the last answer that told; `refresh` asks anew."""
        return self.info.state

    @property
    def metadata(self) -> dict[str, str]:
        return self.info.metadata

    @property
    def persistent(self) -> bool:
        return self.info.persistent

    @property
    def expires_at(self) -> datetime | None:
        return self.info.expires_at

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, state={self.state!r})"

    def _path(self, *more: object) -> str:
        return path("sandboxes", self.id, *more)

    async def _changed(self, request: Request) -> None:
        """Sends a request that is answered with the sandbox's document."""
        self.info = SandboxInfo.from_document(await self._client._json(request))

    async def refresh(self) -> SandboxInfo:
        await self._changed(Request.get(self._path()))
        return self.info

    async def stats(self) -> SandboxStats:
        """CPU time, memory, disk and processes in use."""
        return SandboxStats.from_document(await self._client._json(Request.get(self._path("stats"))))

    async def logs(self, source: str = "log") -> str:
        """What Husk logged for the sandbox, or with "console" what its guest wrote on the console; also after its end."""
        return (await self._client._bytes(Request.get(self._path("logs"), given(source=source)))).decode("utf-8", "replace")

    async def events(self, *, after: int = 0, limit: int | None = None) -> List[SandboxEvent]:
        """What happened to it, oldest first."""
        document = await self._client._json(Request.get(self._path("events"), given(after=after, limit=limit)))
        return [SandboxEvent.from_document(each) for each in document["events"]]

    def follow_events(self, *, after: int | None = None) -> AsyncSandboxEvents:
        """Events as they happen, without end."""
        return AsyncSandboxEvents(self._client, self._path("events"), after)

    # ---- its network ----

    async def egress(self) -> Egress:
        """What it may reach, and what it has."""
        return Egress.from_document(await self._client._json(Request.get(self._path("egress"))))

    async def set_egress(
        self,
        mode: str | None = None,
        *,
        allow: Sequence[str] | None = None,
        secrets: Sequence[Mapping[str, Any]] | None = None,
        limits: Mapping[str, int | str] | None = None,
        hold: Sequence[str] | None = None,
        trust: str | None = None,
    ) -> Egress:
        """Replaces what it may reach. When this returns, it holds: connections it does not allow are cut.

        hold: hosts whose changing requests wait as `effects`. trust: certificates (PEM) that its programs trust besides those of
        the template.
        """
        body = given(mode=mode, allow=allow, secrets=secrets, limits=limits, hold=hold, trust=trust)
        return Egress.from_document(await self._client._json(Request.json("PUT", self._path("egress"), body)))

    async def egress_log(self, *, limit: int | None = None) -> List[EgressEvent]:
        """What it tried to reach, oldest first, and why some of it was denied."""
        document = await self._client._json(Request.get(self._path("egress", "log"), given(limit=limit)))
        return [EgressEvent.from_document(each) for each in document["events"]]

    # ---- its life ----

    async def kill(self) -> bool:
        """Ends it, with everything in it. False when it had ended before."""
        try:
            await self._client._done(Request("DELETE", self._path(), repeatable=True, timeout=MOVE_SECONDS))
            killed = True
        except (NotFoundError, GoneError):
            killed = False
        await self.aclose()
        return killed

    async def extend(
        self, ttl_seconds: int | None = None, *, persistent: bool | None = None
    ) -> datetime | None:
        """A new time to live, counted from now, or none (persistent=True); when it will end."""
        body = given(ttl_seconds=ttl_seconds, persistent=persistent)
        document = await self._client._json(Request.json("POST", self._path("ttl"), body, repeatable=True))
        await self.refresh()
        return parse_time(document.get("expires_at"))

    async def resize(self, *, memory: int | str | None = None, cpus: float | None = None) -> None:
        """Other limits: at once if it runs, else when it wakes. memory: bytes, or as in "2G"."""
        await self._changed(Request.json("PATCH", self._path(), given(memory=memory, cpus=cpus), repeatable=True))

    async def set_metadata(self, metadata: Mapping[str, str]) -> None:
        """Replaces its metadata."""
        await self._changed(Request.json("PUT", self._path("metadata"), dict(metadata), repeatable=True))

    async def pause(self) -> None:
        """Stops its processes where they are. It still holds its memory."""
        await self._changed(Request("POST", self._path("pause")))

    async def resume(self) -> None:
        await self._changed(Request("POST", self._path("resume")))

    async def hibernate(self) -> None:
        """Moves its memory to the disk. The next call that needs it running wakes it."""
        await self._changed(Request("POST", self._path("hibernate"), timeout=MOVE_SECONDS))

    async def wake(self) -> None:
        await self._changed(Request("POST", self._path("wake"), timeout=MOVE_SECONDS))

    async def reboot(self) -> None:
        """Starts it anew with its files, also if it is hibernated; processes and memory are gone."""
        await self._changed(Request("POST", self._path("reboot"), timeout=MOVE_SECONDS))

    async def snapshot(self, name: str | None = None) -> AsyncSnapshot:
        """Keeps its memory and disk as they are now, to make sandboxes from."""
        request = Request.json("POST", self._path("snapshots"), given(name=name), timeout=MOVE_SECONDS)
        return AsyncSnapshot(self._client, SnapshotInfo.from_document(await self._client._json(request)))

    async def checkpoint(self, label: str | None = None) -> Checkpoint:
        """Saves a numbered checkpoint; the sandbox keeps running. Checkpoints are removed with the sandbox."""
        request = Request.json("POST", self._path("checkpoints"), given(label=label), timeout=MOVE_SECONDS)
        return Checkpoint.from_document(await self._client._json(request))

    async def history(self, *, files: bool = False) -> List[Checkpoint]:
        """Its checkpoints, by number. files: also what changed before each one (files_changed, and the first 100 as files). The first
        time, this takes a copy of each checkpoint."""
        query = {"files": "true"} if files else {}
        document = await self._client._json(Request.get(self._path("checkpoints"), query, timeout=MOVE_SECONDS))
        return [Checkpoint.from_document(each) for each in document["checkpoints"]]

    async def remove_checkpoint(self, checkpoint: int | str) -> None:
        """By number or label."""
        await self._client._done(Request("DELETE", self._path("checkpoints", str(checkpoint))))

    async def rewind(self, checkpoint: int | str | None = None, *, drop_later: bool = False) -> Rewound:
        """Puts this same sandbox back to a checkpoint (number or label; the last one unless told): memory, processes and disk.
        Later checkpoints stay, unless drop_later. The answer's not_undone says what could not be taken back."""
        wanted = None if checkpoint is None else str(checkpoint)
        body = given(checkpoint=wanted, drop_later=drop_later or None)
        request = Request.json("POST", self._path("rewind"), body, timeout=MOVE_SECONDS)
        rewound = Rewound.from_document(await self._client._json(request))
        await self.refresh()
        return rewound

    async def promote(self, *, keep: bool = False) -> Promoted:
        """Puts this fork into the place of the sandbox that it was forked from, which continues with its memory, processes and
        disk. This sandbox ends, and so do the other forks of the parent, unless keep."""
        request = Request.json("POST", self._path("promote"), given(keep=keep or None), timeout=MOVE_SECONDS)
        return Promoted.from_document(await self._client._json(request))

    async def merge(
        self,
        source: str | AsyncSandbox,
        *,
        base: str | AsyncSandbox | None = None,
        path: str | None = None,
        conflicts: str | None = None,
        dry_run: bool = False,
    ) -> Merged:
        """Merges the files that another sandbox changed into this one, three-way against `base`: the state at their fork, or else
        the template. All or nothing: with a conflict nothing is written, unless `conflicts` is "markers", "ours" (this sandbox's
        version) or "theirs"."""
        wanted = {"from": source.id if isinstance(source, AsyncSandbox) else source}
        common = base.id if isinstance(base, AsyncSandbox) else base
        body = {**wanted, **given(base=common, path=path, conflicts=conflicts, dry_run=dry_run or None)}
        request = Request.json("POST", self._path("merge"), body, timeout=MOVE_SECONDS)
        return Merged.from_document(await self._client._json(request))

    async def explore(
        self,
        plans: Sequence[Plan],
        score: Score,
        *,
        keep: int = 1,
        budget: float | None = None,
        parallel: int = 8,
        promote: bool | None = None,
    ) -> List[AsyncBranch]:
        """Tries each plan in a fork of its own, scores the forks, and keeps the best: best-of-N, or a step of a beam search.

        A plan is a command, or a function that gets the fork. The score is a function of (fork, result), or a command whose last
        line of output is the number; a plan that fails, is over the `budget` (seconds, for all of them) or has no score counts
        as the worst. The `keep` best forks stay, and the others end. With keep=1 the winner takes the place of this sandbox,
        unless promote=False. All branches are returned, the best one first."""
        return await explore(self, plans, score, keep, budget, parallel, promote)

    async def effects(self) -> List[Effect]:
        """Its requests to held hosts (egress={"hold": [...]}): those that wait, and the newest of those that are done."""
        return self._effects(await self._client._json(Request.get(self._path("effects"))))

    async def send_effects(self, *numbers: int) -> List[Effect]:
        """Sends held effects in order, each at most once; all of them unless told. Ends at the first one that could not be sent: the
        state of each tells what became of it."""
        request = Request.json("POST", self._path("effects", "send"), given(effects=numbers or None), timeout=MOVE_SECONDS)
        return self._effects(await self._client._json(request))

    async def drop_effects(self, *numbers: int) -> List[Effect]:
        """Drops held effects; all of them unless told."""
        request = Request.json("POST", self._path("effects", "drop"), given(effects=numbers or None))
        return self._effects(await self._client._json(request))

    @staticmethod
    def _effects(document: Mapping[str, Any]) -> List[Effect]:
        return [Effect.from_document(each) for each in document["effects"]]

    async def diff(self, against: str | AsyncSandbox | None = None, *, path: str | None = None) -> List[Change]:
        """The files that differ since its fork or snapshot, or else from its template: added, removed and changed ones, by path.
        `against`: another sandbox, a checkpoint ("ID@NUMBER"), a snapshot or a template. `path`: only this path, and what is
        below."""
        base = against.id if isinstance(against, AsyncSandbox) else against
        request = Request.get(self._path("diff"), given(against=base, path=path))
        return [Change.from_document(each) for each in (await self._client._json(request))["changes"]]

    async def diff_system(
        self, against: str | AsyncSandbox | None = None, *, packages: bool = True, processes: bool = True
    ) -> List[Difference]:
        """The packages (Debian, pip, npm), processes and listening ports that differ, as `diff` compares files."""
        base = against.id if isinstance(against, AsyncSandbox) else against
        wanted = {"packages": "true" if packages else "false", "processes": "true" if processes else "false"}
        request = Request.get(self._path("diff/system"), {**given(against=base), **wanted})
        return [Difference.from_document(each) for each in (await self._client._json(request))["differences"]]

    async def tree(self) -> dict[str, Any]:
        """Its family from the first one on, as nested documents: each has "id", "kind", "state" … and "children"."""
        document = await self._client._json(Request.get("/v1/tree", {"of": self.id}))
        return document["families"][0]

    @overload
    async def fork(self, count: None = None, **options: Unpack[ForkOptions]) -> AsyncSandbox: ...

    @overload
    async def fork(self, count: int, **options: Unpack[ForkOptions]) -> List[AsyncSandbox]: ...

    async def fork(
        self, count: int | None = None, **options: Unpack[ForkOptions]
    ) -> AsyncSandbox | List[AsyncSandbox]:
        """A copy of it as it is now, memory, processes and files: one, or a list of `count`. Options as in `create`:
        name, ttl_seconds, persistent, on_expiry, checkpoints, idle_seconds, memory, cpus, pids, metadata, env, egress; the rest is as in the
        parent."""
        body = given(count=1 if count is None else count, **options)
        request = Request.json("POST", self._path("fork"), body, timeout=MOVE_SECONDS)
        document = await self._client._json(request)
        children = [type(self)(self._client, SandboxInfo.from_document(each)) for each in document["sandboxes"]]
        return children[0] if count is None else children

    # ---- commands ----

    async def exec(
        self,
        command: Command,
        *,
        timeout_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: str | bytes | None = None,
        label: str | None = None,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        check: bool = False,
    ) -> ExecResult:
        """Runs a command to its end: a string in a shell, a list as it is.

        After `timeout_seconds` it is killed with all it started, and the result says timed_out. on_stdout and on_stderr
        get text as it comes. check: raise CommandError when the exit code is not 0.
        """
        fields: dict[str, Any] = dict(timeout_seconds=timeout_seconds, env=env, cwd=cwd, user=user, label=label)
        if on_stdout or on_stderr:
            result = await follow(self.exec_stream(command, stdin=stdin, **fields), on_stdout, on_stderr)
        else:
            body = exec_body(command, stdin, **fields)
            request = Request.json("POST", self._path("exec"), body, timeout=read_limit(timeout_seconds))
            result = ExecResult.from_document(await self._client._json(request))
        return result.check() if check else result

    def exec_stream(
        self,
        command: Command,
        *,
        timeout_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: str | bytes | None = None,
        label: str | None = None,
    ) -> AsyncOutputStream:
        """Runs a command and gives its output piece by piece; its `exit_code` is set after the last piece. The command
        starts with the first step of the iteration, or on entering `async with`."""
        body = exec_body(
            command, stdin, timeout_seconds=timeout_seconds, env=env, cwd=cwd, user=user, label=label, stream=True
        )
        request = Request.json("POST", self._path("exec"), body, timeout=None)
        return AsyncOutputStream(self._client, output_path(self.id), request)

    async def start(
        self,
        command: Command,
        *,
        timeout_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bool = False,
        label: str | None = None,
        keep_output: int | None = None,
    ) -> AsyncProcess:
        """Starts a command in the background. stdin: keep its standard input open, for `write`.
        keep_output: bytes of each output stream that can be read later, on the sandbox's disk; 1 MiB unless told."""
        body = exec_body(
            command,
            timeout_seconds=timeout_seconds,
            env=env,
            cwd=cwd,
            user=user,
            label=label,
            keep_output=keep_output,
            detach=True,
            keep_stdin=True if stdin else None,
        )
        document = await self._client._json(Request.json("POST", self._path("exec"), body))
        return AsyncProcess(self._client, self.id, int(document["pid"]))

    async def processes(self) -> List[ProcessInfo]:
        """Those that were started through Husk, with those that ended lately."""
        return await list_processes(self._client, self.id)

    def process(self, pid: int) -> AsyncProcess:
        """A handle on a process that was started before."""
        return AsyncProcess(self._client, self.id, pid)

    @opening
    async def pty(
        self,
        command: str | None = None,
        *,
        rows: int = 24,
        columns: int = 80,
        cwd: str | None = None,
        user: str | None = None,
        pid: int | None = None,
        offset: int | None = None,
    ) -> AsyncPty:
        """A terminal with a shell, or `command`, in it. pid: attach to one that was opened before, from `offset`."""
        query = given(cmd=command, rows=rows, columns=columns, cwd=cwd, user=user, pid=pid, offset=offset)
        return await AsyncPty(self._client, self._path("pty"), query)._open()

    # ---- code ----

    async def run_code(
        self,
        code: str,
        language: str | None = None,
        *,
        context: str | None = None,
        timeout_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        on_result: Callable[[CodeOutput], Any] | None = None,
        check: bool = False,
    ) -> CodeResult:
        """Runs code in an interpreter that keeps its variables between calls ("python", "javascript", "typescript", "bash", "r" or "java").

        context: the name of another interpreter than the default one. env, cwd: when this call starts it. Figures,
        tables and the value of the last expression are in `results`. check: raise CodeError when the code raises.
        """
        fields = dict(code=code, language=language, context=context, timeout_seconds=timeout_seconds, env=env, cwd=cwd)
        result = await codes.run_code(self._client, self.id, fields, on_stdout, on_stderr, on_result)
        return result.check() if check else result

    async def contexts(self) -> List[CodeContext]:
        """The interpreters that run."""
        return await codes.list_contexts(self._client, self.id)

    async def restart_context(self, name: str = "default") -> None:
        """Starts an interpreter anew, without its variables."""
        await self._client._done(Request("POST", self._path("contexts", name, "restart")))

    async def remove_context(self, name: str) -> None:
        await self._client._done(Request("DELETE", self._path("contexts", name)))

    # ---- ports ----

    async def get_url(self, port: int, *, expires_seconds: int | None = None, by_path: bool = False) -> str:
        """A URL that reaches a server inside the sandbox without a token, until it expires. Who has it has access.

        Its host name is the port's own, which suits pages, and which browsers and curl can look up. by_path: below the
        server's own name instead, for programs that cannot look up *.localhost.
        """
        signed = await self.sign_url(port, expires_seconds=expires_seconds)
        return signed.by_path if by_path else signed.url

    async def sign_url(self, port: int, *, expires_seconds: int | None = None) -> SignedUrl:
        """As get_url, with the time when it expires."""
        body = given(expires_seconds=expires_seconds)
        document = await self._client._json(Request.json("POST", self._path("ports", port, "url"), body))
        return SignedUrl.from_document(document)

    # ---- the handle ----

    async def aclose(self) -> None:
        """Closes the handle. The sandbox continues."""
        await self._client._leave(self)

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.persistent:
            await self.aclose()
            return
        try:
            await self.kill()
        except HuskError:
            if error is None:  # else the first error is the one to tell; the time to live ends the sandbox
                raise
