"""What the server answers, as plain values. The blocking and the asyncio classes give the same ones.

The answers that are no more than their fields are in _shapes.py, which is made from the API's schema. Here are those with
something to do: results of commands and code, and pieces of output.
"""

from __future__ import annotations

import base64
import codecs
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from . import _shapes
from ._model import Model
from ._model import parse_time as parse_time
from ._shapes import (
    BrowserInfo as BrowserInfo,
    Change as Change,
    Checkpoint as Checkpoint,
    Control as Control,
    Difference as Difference,
    Effect as Effect,
    Egress as Egress,
    EgressEvent as EgressEvent,
    Element as Element,
    Link as Link,
    ProcessInfo as ProcessInfo,
    Merged as Merged,
    Promoted as Promoted,
    Recording as Recording,
    Rewound as Rewound,
    SandboxEvent as SandboxEvent,
    SandboxInfo as SandboxInfo,
    SandboxStats as SandboxStats,
    SnapshotInfo as SnapshotInfo,
    TemplateInfo as TemplateInfo,
    VolumeInfo as VolumeInfo,
    Window as Window,
)
from .errors import CodeError, CommandError

COLLECTED_MAX = 16 << 20  # bytes kept of each stream of a command's output, as the server does


@dataclass(frozen=True)
class FileEntry(_shapes.FileEntry):
    """A file or directory of a sandbox."""

    @property
    def is_dir(self) -> bool:
        return self.type == "directory"

    @property
    def is_file(self) -> bool:
        return self.type == "file"


@dataclass(frozen=True)
class Picture(Model):
    """A picture of a screen."""

    type: str = "image/png"
    width: int = 0
    height: int = 0
    data: str = ""  # base64, as models take it

    @property
    def raw(self) -> bytes:
        return base64.b64decode(self.data)


@dataclass(frozen=True)
class DesktopAnswer(Model):
    """What a list of actions on a screen came to."""

    results: list[dict[str, Any]] = field(default_factory=list)  # one for each action
    width: int = 0  # of the screen
    height: int = 0
    settled: bool | None = None  # the screen was still in time; None: not asked
    screenshot: Picture | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> DesktopAnswer:
        answer = super().from_document(document)
        picture = document.get("screenshot")
        return dataclasses.replace(answer, screenshot=Picture.from_document(picture) if picture else None)


@dataclass(frozen=True)
class FileChange(Model):
    kind: str  # create, write, remove, rename, chmod, overflow
    path: str


@dataclass(frozen=True)
class Synced(Model):
    """A path that `workspace.sync` carried over, or could not."""

    path: str
    change: str = ""  # added, removed, changed
    to: str = ""  # sandbox, directory; neither: a conflict, and both sides keep their version
    merged: bool = False  # both had changed it, and have the same now
    conflict: str | None = None  # why


@dataclass(frozen=True)
class SignedUrl(Model):
    url: str
    expires_at: datetime | None = None

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


def denied_of(document: Mapping[str, Any]) -> list[EgressEvent]:
    return [EgressEvent.from_document(each) for each in document.get("denied") or ()]


E = TypeVar("E", bound="Exit")


@dataclass(frozen=True)
class Exit(Model):
    """How a process ended. `exit_code` is 128+n when signal n did it, 124 when time was up."""

    exit_code: int = 0
    signal: int | None = None
    timed_out: bool = False
    out_of_memory: bool = False
    duration_ms: int = 0
    denied: list[EgressEvent] = field(default_factory=list)  # by the network policy meanwhile, when it failed

    @classmethod
    def from_document(cls: type[E], document: Mapping[str, Any]) -> E:
        return super().from_document({**document, "denied": denied_of(document)})

    @property
    def blocked(self) -> list[str]:
        """A line for each: "blocked: a.example is not allowed; it requires --allow a.example"."""
        return [each.text for each in self.denied]


@dataclass(frozen=True)
class ExecResult(Exit):
    """A command's output and how it ended."""

    pid: int | None = None
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
            why += " (out of memory: Sandbox.create(memory=…) gives it more)"
        last = (self.stderr.strip() or self.stdout.strip()).rpartition("\n")[2][:500]
        raise CommandError("\n".join([f"the command {why}" + (f": {last}" if last else ""), *self.blocked]), self)


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
        self.offsets: dict[str, int] = {"stdout": 0, "stderr": 0}  # of the next byte

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

    def result(self, pid: int | None, end: Exit) -> ExecResult:
        streams: dict[str, Any] = {}
        for name, kept in self._kept.items():
            streams[f"{name}_bytes"] = bytes(kept)
            streams[name] = kept.decode("utf-8", "replace")
            streams[f"{name}_lost"] = self._lost[name]
        ending = {each.name: getattr(end, each.name) for each in dataclasses.fields(Exit)}
        return ExecResult(pid=pid, **ending, **streams)


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
    data: dict[str, Any] = field(default_factory=dict)

    def image(self, kind: str = "png") -> bytes | None:
        """The bytes of its picture, when it has one."""
        value = self.data.get("image/svg+xml" if kind == "svg" else f"image/{kind}")
        if value is None:
            return None
        return str(value).encode() if kind == "svg" else base64.b64decode(str(value))

    def png(self) -> bytes | None:
        return self.image("png")

    def html(self) -> str | None:
        return self.data.get("text/html")

    def json(self) -> Any:
        return self.data.get("application/json")


@dataclass(frozen=True)
class CodeResult:
    """What running code came to. `exit_code` is what an interpreter would end with: 0, 1 raised, 124 out of time."""

    stdout: str = ""
    stderr: str = ""  # with the traceback at its end when the code raised, as a terminal would show it
    results: list[CodeOutput] = field(default_factory=list)
    text: str | None = None  # the value of the last expression
    error: CodeRaised | None = None
    timed_out: bool = False
    duration_ms: int = 0
    denied: list[EgressEvent] = field(default_factory=list)  # by the network policy meanwhile, when it failed

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
            denied=denied_of(document),
        )

    @property
    def blocked(self) -> list[str]:
        """A line for each: "blocked: a.example is not allowed; it requires --allow a.example"."""
        return [each.text for each in self.denied]

    @property
    def exit_code(self) -> int:
        return 124 if self.timed_out else 1 if self.error else 0

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def images(self) -> list[bytes]:
        """The PNG pictures among the results, in order."""
        return [picture for picture in (each.png() for each in self.results) if picture]

    def check(self) -> CodeResult:
        """Itself, or CodeError when the code raised or ran out of time."""
        if self.timed_out:
            raise CodeError("the code ran out of time", self)
        if self.error:
            raise CodeError("\n".join([f"the code raised {self.error.summary}", *self.blocked]), self)
        return self


@dataclass(frozen=True)
class CodeContext(Model):
    """An interpreter that keeps its state between calls."""

    name: str
    language: str = ""
    cwd: str | None = None
    pid: int | None = None
