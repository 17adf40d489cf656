"""What the server answers, field by field. Made from docs/openapi.json by scripts/house.py --write: edit it there."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ._model import Model


@dataclass(frozen=True)
class SandboxInfo(Model):
    """A sandbox as it was when the server was last asked."""

    id: str
    name: str | None = None
    tenant: str | None = None  # whose it is; None: the instance's own
    template: str | None = None
    parent: str | None = None  # the sandbox or snapshot it came from
    # the state it began with, which diff compares with unless told otherwise: a snapshot, or SANDBOX@NUMBER; None:
    # the template, or not known
    origin: str | None = None
    isolation: str = ""
    boundary: str | None = None  # what stands between it and the host
    state: str = ""  # creating, running, paused, hibernated, ended
    end_reason: str | None = None  # why it ended: killed, ttl, oom, crashed
    created_at: datetime | None = None
    expires_at: datetime | None = None  # None: persistent
    ended_at: datetime | None = None
    idle_seconds: int = 0  # hibernates after so long without a call; 0: never
    persistent: bool = False
    on_expiry: str = ""  # kill, hibernate
    # off, each-call; each-call: a checkpoint before each call that starts a program or gives one input; the newest
    # 32, and at most 4 GiB, are kept besides those that were asked for
    checkpoints: str = ""
    memory_bytes: int = 0
    disk_bytes: int = 0
    cpus: float = 0.0
    pids: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    environment: list[str] = field(default_factory=list)  # names only; values are never given back
    egress: str = ""  # off, allow, open
    volumes: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class VolumeInfo(Model):
    """A directory that outlives sandboxes."""

    id: str
    name: str = ""
    tenant: str | None = None  # whose it is; None: the instance's own
    created_at: datetime | None = None
    limit_bytes: int = 0
    used_bytes: int = 0
    sandboxes: list[str] = field(default_factory=list)  # live ones that have it


@dataclass(frozen=True)
class SandboxStats(Model):
    """What a sandbox uses, and its limits."""

    cpu_us: int
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

    mode: str  # off, allow, open; in mode allow, the rules say what is reached
    # hosts ("example.com", "*.example.com:8443") and address ranges ("10.1.2.0/24:5432")
    allow: list[str] = field(default_factory=list)
    # mode open: address ranges that are not reached, unless allow has them
    deny: list[str] = field(default_factory=list)
    secrets: list[dict[str, Any]] = field(default_factory=list)  # names and hosts; values are never given back
    # hosts whose changing requests (all but GET, HEAD, OPTIONS and TRACE) are answered 202 and wait as effects;
    # mode allow only
    hold: list[str] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    # certificates (PEM, at most 64 KiB) that its programs trust besides those of the template; absent: none
    trust: str = ""
    traffic: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class EgressEvent(Model):
    """Something a sandbox tried to reach."""

    at: datetime | None = None
    verdict: str = ""  # allowed, denied, failed, held
    kind: str = ""  # the protocol: dns, http, tls, tcp, udp
    host: str = ""
    port: int = 0
    reason: str = ""
    rule: str = ""  # what would allow it; empty when nothing would
    count: int = 0
    text: str = ""  # only in 'denied' of a result: the line for people, 'blocked: … it requires --allow …'


@dataclass(frozen=True)
class SandboxEvent(Model):
    """Something that happened: created, forked, checkpoint, rewound, hibernated, woken, ended and so on."""

    sequence: int
    at: datetime | None = None
    sandbox: str | None = None
    kind: str = ""
    detail: dict[str, Any] | None = None


@dataclass(frozen=True)
class SnapshotInfo(Model):
    """A saved state of a sandbox."""

    id: str
    name: str | None = None
    tags: list[str] = field(default_factory=list)  # further names
    tenant: str | None = None  # whose it is; None: the instance's own
    sandbox: str | None = None  # taken from
    template: str = ""
    isolation: str = ""
    created_at: datetime | None = None
    bytes: int = 0  # on the host's disk
    memory_bytes: int = 0
    disk_bytes: int = 0
    cpus: float = 0.0
    shared: bool = False  # for every tenant to create from, as tenant/name
    metadata: dict[str, str] = field(default_factory=dict)  # of the sandbox it was taken from


@dataclass(frozen=True)
class Checkpoint(Model):
    """A point of a sandbox, kept with it to go back to."""

    number: int  # from 1 on
    label: str | None = None
    parent: int | None = None  # the checkpoint that the sandbox was at before
    created_at: datetime | None = None
    bytes: int = 0  # on the host's disk
    current: bool = False  # the one that the sandbox took or went back to last
    automatic: bool = False  # taken before a call, and removed when there are many
    ran: str | None = None  # the call that it was taken before, shortened
    sent: int = 0  # bytes that left between its parent and it
    requests: int = 0  # requests that were read on their way out between its parent and it
    # how many files differ between its parent and it; null unless asked for with files=true, or if the state before
    # is gone
    files_changed: int | None = None
    files: list[dict[str, str]] = field(default_factory=list)  # the first 100 of those files, by path


@dataclass(frozen=True)
class Rewound(Model):
    """What a rewind did, and what it could not take back."""

    checkpoint: int  # the number of the checkpoint that the sandbox went back to
    label: str | None = None
    dropped: int = 0  # later checkpoints that were removed
    # what left the machine since the checkpoint, by destination
    traffic: list[dict[str, Any]] = field(default_factory=list)
    # names of those that it can write to: their files are not part of a checkpoint
    volumes: list[str] = field(default_factory=list)
    effects: list[dict[str, Any]] = field(default_factory=list)  # held after the checkpoint, and dropped
    # requests since the checkpoint that were read on their way out (HTTP, and TLS that is opened for secrets or
    # held hosts): the newest 500
    requests: list[dict[str, Any]] = field(default_factory=list)
    requests_more: int = 0  # older requests, of which only the number is known
    # connections from outside to ports of the sandbox since the checkpoint
    visits: list[dict[str, int]] = field(default_factory=list)
    # the same in words: one sentence for each thing that stays done
    not_undone: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Promoted(Model):
    """What a promotion did."""

    sandbox: str  # the parent, which continues as the fork was
    checkpoint: int = 0  # of the parent: the state that it took over
    ended: list[str] = field(default_factory=list)  # ids of the fork, and of the other forks of the parent
    # of the fork, and of the parent until the fork: what became of those that were held
    effects: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Effect(Model):
    """A request to a held host."""

    number: int
    # held, sending, sent, uncertain, dropped; uncertain: it was cut off while it was being sent, may have been, and
    # is never sent again
    state: str = ""
    method: str = ""
    url: str = ""
    bytes: int = 0  # of its body
    status: int | None = None  # of the host's answer
    detail: str | None = None  # why it is in this state
    at: datetime | None = None  # when the sandbox sent it


@dataclass(frozen=True)
class Merged(Model):
    """What a merge did, or would do."""

    target: str  # the sandbox that was merged into
    written: bool = False  # false: nothing was written
    conflicts: int = 0  # that are not resolved
    changes: list[dict[str, Any]] = field(default_factory=list)  # by path
    left_out: list[dict[str, str]] = field(default_factory=list)  # paths that are never written, and why
    ignored: int = 0  # new files that git ignores; 0 in a merge of sandboxes


@dataclass(frozen=True)
class Change(Model):
    """A file that differs between two states."""

    path: str
    change: str = ""  # added, removed, changed; removed: the other fields are as the file was
    name: str = ""
    type: str = ""  # file, directory, symlink, other
    size: int = 0
    mode: str = ""  # octal, as in "0644"
    uid: int = 0
    gid: int = 0
    user: str | None = None
    group: str | None = None
    target: str | None = None  # of a symlink
    modified_at: datetime | None = None
    old_type: str | None = None  # changed: as it was before; None: not known
    old_size: int | None = None
    old_mode: str | None = None
    old_uid: int | None = None
    old_gid: int | None = None
    old_target: str | None = None


@dataclass(frozen=True)
class Difference(Model):
    """What differs between two states besides files."""

    kind: str  # deb, pip, npm, process, port; deb, pip, npm: a package
    change: str = ""  # added, removed, changed
    name: str = ""  # of the package; the command line; the address and port
    before: str | None = None  # the version of a package
    after: str | None = None  # the version of a package


@dataclass(frozen=True)
class TemplateInfo(Model):
    """What sandboxes are created from."""

    name: str
    tenant: str | None = None  # whose it is; None: the instance's own
    built: bool = False
    digest: str | None = None
    description: str | None = None
    isolation: str | None = None
    bytes: int = 0
    disk_bytes: int = 0
    created_at: datetime | None = None
    old_versions: int = 0


@dataclass(frozen=True)
class Control(Model):
    """Who controls a desktop, and whether an agent has asked for a person."""

    held: bool = False  # a person is in control: actions of agents get 409
    name: str | None = None  # of the person
    holder: str | None = None  # the key of the person's viewer; only in the answer to the one who took control
    since: datetime | None = None
    expires_at: datetime | None = None
    request: dict[str, Any] | None = None  # the last request for a person


@dataclass(frozen=True)
class Recording(Model):
    """A recording of a desktop's screen, made on the host."""

    id: str
    state: str = ""  # recording, complete, cut; cut: the recorder was killed; what it wrote can be played
    reason: str | None = None  # why it ended: stopped, time, size, disk, ended (the desktop)
    started_at: datetime | None = None
    duration_seconds: float = 0.0
    bytes: int = 0  # of the screen's file
    width: int = 0  # at the beginning
    height: int = 0


@dataclass(frozen=True)
class Link(Model):
    """A signed link to a desktop."""

    url: str
    view_only: bool = False
    expires_at: datetime | None = None


@dataclass(frozen=True)
class BrowserInfo(Model):
    """The browser of a desktop, for programs."""

    cdp_url: str  # WebSocket of the DevTools protocol, signed
    url: str = ""  # for clients that ask for /json/version themselves; needs a token
    expires_at: datetime | None = None
    browser: str | None = None  # its version


@dataclass(frozen=True)
class ProcessInfo(Model):
    """A process that was started in a sandbox, live or finished."""

    pid: int
    label: str | None = None
    argv: list[str] = field(default_factory=list)
    cwd: str | None = None
    user: str | None = None
    started_at: datetime | None = None
    running: bool = False
    exit_code: int | None = None
    timed_out: bool = False
    out_of_memory: bool = False
    terminal: bool = False
    stdout_bytes: int = 0
    stderr_bytes: int = 0


@dataclass(frozen=True)
class FileEntry(Model):
    """A file or directory of a sandbox."""

    path: str
    name: str = ""
    type: str = ""  # file, directory, symlink, other
    size: int = 0
    mode: str = ""  # octal, as in "0644"
    uid: int = 0
    gid: int = 0
    user: str | None = None
    group: str | None = None
    target: str | None = None  # of a symlink
    modified_at: datetime | None = None


@dataclass(frozen=True)
class Window(Model):
    id: int  # of the window, for the actions on windows
    title: str = ""  # as its program set it
    program: str = ""  # the class of its program, such as Chromium
    pid: int = 0  # of its program; 0: unknown
    x: int = 0  # of its left edge, with the frame
    y: int = 0  # of its upper edge
    width: int = 0  # with the frame
    height: int = 0  # with the frame
    active: bool = False  # it has the keyboard
    minimized: bool = False  # it is hidden


@dataclass(frozen=True)
class Element(Model):
    id: str  # for the field element of an action
    depth: int = 0  # how many elements of the list hold it
    role: str = ""  # such as push button, entry, link
    name: str = ""  # what is written on it, at most 200 characters
    x: int = 0  # of its left edge on the screen
    y: int = 0  # of its upper edge
    width: int = 0
    height: int = 0
    states: list[str] = field(default_factory=list)  # such as focused, checked, selected, editable, disabled
    text: str = ""  # of a field to type into, at most 200 characters; absent for others
