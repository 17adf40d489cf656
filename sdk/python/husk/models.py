"""What the server answers, as plain values. The blocking and the asyncio classes give the same ones.

Each is made from the server's JSON document by `from_document`; a key that this version does not know is left out, so
that an older SDK works with a newer server.
"""

from __future__ import annotations

import base64
import codecs
import dataclasses
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Dict, List, Mapping, Optional, Type, TypeVar
from urllib.parse import urlsplit

from .errors import CodeError, CommandError

T = TypeVar("T", bound="Model")

COLLECTED_MAX = 16 << 20  # bytes kept of each stream of a command's output, as the server does


def parse_time(text: Optional[str]) -> Optional[datetime]:
    """RFC 3339 to an aware datetime."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


@dataclass(frozen=True)
class Model:
    """Something out of a JSON document."""

    @classmethod
    def from_document(cls: Type[T], document: Mapping[str, Any]) -> T:
        values = {}
        for each in dataclasses.fields(cls):
            if each.name in document:
                value = document[each.name]
                values[each.name] = parse_time(value) if each.name.endswith("_at") else value
        return cls(**values)


@dataclass(frozen=True)
class SandboxInfo(Model):
    """A sandbox as it was when the server was last asked."""

    id: str
    name: Optional[str] = None
    template: Optional[str] = None
    parent: Optional[str] = None  # the sandbox or snapshot it came from
    isolation: Optional[str] = None
    boundary: Optional[str] = None  # what stands between it and the host
    state: str = "running"  # creating, running, paused, hibernated, ended
    end_reason: Optional[str] = None  # killed, ttl, oom, crashed
    created_at: Optional[datetime] = None
    expires_at: Optional[datetime] = None  # None: persistent
    ended_at: Optional[datetime] = None
    idle_seconds: int = 0
    persistent: bool = False
    memory_bytes: int = 0
    disk_bytes: int = 0
    cpus: float = 0.0
    pids: int = 0
    metadata: Dict[str, str] = field(default_factory=dict)
    environment: List[str] = field(default_factory=list)  # names; values are never given back
    egress: str = "off"  # off, allow, open
    volumes: List[Dict[str, Any]] = field(default_factory=list)  # {"volume", "path", "read_only"}


@dataclass(frozen=True)
class VolumeInfo(Model):
    """A volume as it was when the server was last asked."""

    id: str
    name: str
    created_at: Optional[datetime] = None
    limit_bytes: int = 0
    used_bytes: int = 0
    sandboxes: List[str] = field(default_factory=list)  # live ones that have it


@dataclass(frozen=True)
class SandboxStats(Model):
    cpu_us: int = 0
    memory_bytes: int = 0
    memory_limit: int = 0
    disk_bytes: int = 0
    disk_limit: int = 0
    processes: int = 0
    network_sent: int = 0
    network_received: int = 0
    network_connections: int = 0
    network_denied: int = 0


@dataclass(frozen=True)
class Egress(Model):
    """What a sandbox may reach, and what it has sent and received by destination."""

    mode: str  # off, allow (what the rules name), open
    allow: List[str] = field(default_factory=list)
    deny: List[str] = field(default_factory=list)  # mode open: ranges that are not reached
    secrets: List[Dict[str, Any]] = field(default_factory=list)  # names and hosts; values are never given back
    limits: Dict[str, int] = field(default_factory=dict)
    traffic: List[Dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class EgressEvent(Model):
    """Something a sandbox tried to reach."""

    verdict: str  # allowed, denied, failed
    kind: str  # dns, http, tls, tcp, udp
    host: str
    port: int = 0
    reason: str = ""
    rule: str = ""  # what would allow it; "" when nothing would
    count: int = 1
    at: Optional[datetime] = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> EgressEvent:
        return super().from_document({**document, "at": parse_time(document.get("at"))})


@dataclass(frozen=True)
class SandboxEvent(Model):
    """Something that happened: created, forked, hibernated, woken, ended …"""

    sequence: int
    kind: str
    at: Optional[datetime] = None
    sandbox: Optional[str] = None
    detail: Dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> SandboxEvent:
        return super().from_document({**document, "at": parse_time(document.get("at"))})


@dataclass(frozen=True)
class SnapshotInfo(Model):
    id: str
    name: Optional[str] = None
    sandbox: Optional[str] = None  # taken from
    template: Optional[str] = None
    isolation: Optional[str] = None
    created_at: Optional[datetime] = None
    bytes: int = 0  # on the host's disk
    memory_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True)
class TemplateInfo(Model):
    name: str
    built: bool = False
    digest: Optional[str] = None
    description: Optional[str] = None
    isolation: Optional[str] = None
    bytes: int = 0
    disk_bytes: int = 0
    created_at: Optional[datetime] = None


@dataclass(frozen=True)
class ProcessInfo(Model):
    pid: int
    label: Optional[str] = None
    argv: List[str] = field(default_factory=list)
    cwd: Optional[str] = None
    user: Optional[str] = None
    started_at: Optional[datetime] = None
    running: bool = False
    exit_code: Optional[int] = None
    timed_out: bool = False
    out_of_memory: bool = False
    terminal: bool = False
    stdout_bytes: int = 0
    stderr_bytes: int = 0


@dataclass(frozen=True)
class FileEntry(Model):
    path: str
    name: str = ""
    type: str = "file"  # file, directory, symlink, other
    size: int = 0
    mode: str = ""  # "0644"
    uid: int = 0
    gid: int = 0
    user: Optional[str] = None
    group: Optional[str] = None
    target: Optional[str] = None  # of a symlink
    modified_at: Optional[datetime] = None

    @property
    def is_dir(self) -> bool:
        return self.type == "directory"

    @property
    def is_file(self) -> bool:
        return self.type == "file"


@dataclass(frozen=True)
class FileChange(Model):
    kind: str  # create, write, remove, rename, chmod, overflow
    path: str


@dataclass(frozen=True)
class SignedUrl(Model):
    url: str
    expires_at: Optional[datetime] = None

    @property
    def by_path(self) -> str:
        """The same right, below the server's own host name instead of one of the port's own."""
        parts = urlsplit(self.url)
        label, _, server = parts.netloc.partition(".")
        port, _, sandbox = label.partition("-")
        return f"{parts.scheme}://{server}/v1/sandboxes/{sandbox}/ports/{port}/?{parts.query}"


# ---- commands ----


def exact_bytes(document: Mapping[str, Any], key: str) -> bytes:
    """The bytes of `key`: its text, or `key`_base64 when they were not UTF-8."""
    encoded = document.get(f"{key}_base64")
    if encoded is not None:
        return base64.b64decode(encoded)
    return str(document.get(key) or "").encode()


@dataclass(frozen=True)
class Exit(Model):
    """How a process ended. `exit_code` is 128+n when signal n did it, 124 when time was up."""

    exit_code: int = 0
    signal: Optional[int] = None
    timed_out: bool = False
    out_of_memory: bool = False
    duration_ms: int = 0


@dataclass(frozen=True)
class ExecResult(Exit):
    """A command's output and how it ended."""

    pid: Optional[int] = None
    stdout: str = ""  # what was not UTF-8 is U+FFFD; the exact bytes are in stdout_bytes
    stderr: str = ""
    stdout_lost: int = 0  # bytes beyond what is kept
    stderr_lost: int = 0
    stdout_bytes: bytes = field(default=b"", repr=False)
    stderr_bytes: bytes = field(default=b"", repr=False)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> ExecResult:
        exact = {f"{key}_bytes": exact_bytes(document, key) for key in ("stdout", "stderr")}
        return super().from_document({**document, **exact})

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def check(self) -> ExecResult:
        """Itself, or CommandError when the exit code is not 0."""
        if self.exit_code == 0:
            return self
        why = "ran out of time" if self.timed_out else f"ended with exit code {self.exit_code}"
        if self.out_of_memory:
            why += " (out of memory)"
        last = (self.stderr.strip() or self.stdout.strip()).rpartition("\n")[2][:500]
        raise CommandError(f"the command {why}" + (f": {last}" if last else ""), self)


@dataclass(frozen=True)
class Output:
    """A piece of a process's output. `offset` is where it begins in its stream, for attaching again later."""

    stream: str  # "stdout" or "stderr"
    data: bytes
    text: str  # of `data`; a character split between two pieces is in the second
    offset: int


class OutputDecoder:
    """Makes Output of the documents of `stdout` and `stderr` events, with characters put together across pieces."""

    def __init__(self) -> None:
        new = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": new("replace"), "stderr": new("replace")}
        self.offsets: Dict[str, int] = {"stdout": 0, "stderr": 0}  # of the next byte

    def decode(self, stream: str, document: Mapping[str, Any]) -> Output:
        data = base64.b64decode(document["base64"]) if "base64" in document else str(document.get("text", "")).encode()
        offset = int(document.get("offset", self.offsets[stream]))
        self.offsets[stream] = offset + len(data)
        return Output(stream, data, self._decoders[stream].decode(data), offset)


class OutputCollector:
    """The output of a streamed command as one result, bounded like that of one that is not streamed."""

    def __init__(self) -> None:
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._lost = {"stdout": 0, "stderr": 0}

    def add(self, piece: Output) -> None:
        kept = self._kept[piece.stream]
        room = COLLECTED_MAX - len(kept)
        kept += piece.data[:room]
        self._lost[piece.stream] += max(0, len(piece.data) - room)

    def lose(self, stream: str, count: int) -> None:
        self._lost[stream] += count

    def result(self, pid: Optional[int], end: Exit) -> ExecResult:
        streams: Dict[str, Any] = {}
        for name, kept in self._kept.items():
            streams[f"{name}_bytes"] = bytes(kept)
            streams[name] = kept.decode("utf-8", "replace")
            streams[f"{name}_lost"] = self._lost[name]
        return ExecResult(pid=pid, **dataclasses.asdict(end), **streams)


# ---- code ----


@dataclass(frozen=True)
class CodeRaised(Model):
    """The error that code raised."""

    name: str = ""
    value: str = ""
    traceback: str = ""

    @property
    def summary(self) -> str:
        return f"{self.name}: {self.value}" if self.value else self.name


@dataclass(frozen=True)
class CodeOutput(Model):
    """Something that code showed: a value, a figure, a table. `data` has its forms by MIME type."""

    main: bool = False  # the value of the last expression
    text: str = ""
    data: Dict[str, Any] = field(default_factory=dict)

    def image(self, kind: str = "png") -> Optional[bytes]:
        """The bytes of its picture, when it has one."""
        value = self.data.get("image/svg+xml" if kind == "svg" else f"image/{kind}")
        if value is None:
            return None
        return str(value).encode() if kind == "svg" else base64.b64decode(str(value))

    def png(self) -> Optional[bytes]:
        return self.image("png")

    def html(self) -> Optional[str]:
        return self.data.get("text/html")

    def json(self) -> Any:
        return self.data.get("application/json")


@dataclass(frozen=True)
class CodeResult:
    """What running code came to. `exit_code` is what an interpreter would end with: 0, 1 raised, 124 out of time."""

    stdout: str = ""
    stderr: str = ""  # with the traceback at its end when the code raised, as a terminal would show it
    results: List[CodeOutput] = field(default_factory=list)
    text: Optional[str] = None  # the value of the last expression
    error: Optional[CodeRaised] = None
    timed_out: bool = False
    duration_ms: int = 0

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> CodeResult:
        error = CodeRaised.from_document(document["error"]) if document.get("error") else None
        stderr = str(document.get("stderr") or "")
        if error:
            stderr += ("" if not stderr or stderr.endswith("\n") else "\n") + (error.traceback or error.summary)
        return cls(
            stdout=str(document.get("stdout") or ""),
            stderr=stderr,
            results=[CodeOutput.from_document(each) for each in document.get("results") or ()],
            text=document.get("text"),
            error=error,
            timed_out=bool(document.get("timed_out")),
            duration_ms=int(document.get("duration_ms") or 0),
        )

    @property
    def exit_code(self) -> int:
        return 124 if self.timed_out else 1 if self.error else 0

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def images(self) -> List[bytes]:
        """The PNG pictures among the results, in order."""
        return [picture for picture in (each.png() for each in self.results) if picture]

    def check(self) -> CodeResult:
        """Itself, or CodeError when the code raised or ran out of time."""
        if self.timed_out:
            raise CodeError("the code ran out of time", self)
        if self.error:
            raise CodeError(f"the code raised {self.error.summary}", self)
        return self


@dataclass(frozen=True)
class CodeContext(Model):
    """An interpreter that keeps its state between calls."""

    name: str
    language: str = ""
    cwd: Optional[str] = None
    pid: Optional[int] = None
