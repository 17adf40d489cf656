"""Husk: throwaway computers for AI agents.

    from husk import Sandbox

    with Sandbox.create(template="agent", ttl_seconds=900) as sandbox:
        result = sandbox.exec("echo hello", timeout_seconds=60)
        print(result.stdout, result.exit_code)

HUSK_URL and HUSK_TOKEN name the server; with neither, the one on this host is used (start it with `husk serve`).
`AsyncSandbox` is the same for asyncio, `husk.tools` gives an agent's model its tools. For frameworks: `husk.deepagents`,
`husk.openai_agents`, `husk.inspect_ai`. For the computer tools of model vendors: `husk.computer_use`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._sync.client import Client
from ._sync.desktop import Desktop
from ._sync.filesystem import FileChanges, FileReader, Filesystem
from ._sync.processes import Process
from ._sync.pty import Pty
from ._sync.sandbox import Sandbox
from ._sync.snapshots import Snapshot, Template
from ._sync.streams import OutputStream, SandboxEvents
from ._sync.volumes import Volume
from .errors import (
    AuthenticationError,
    CodeError,
    CommandError,
    ConflictError,
    ConnectionFailedError,
    ForbiddenError,
    GoneError,
    HuskError,
    InvalidError,
    LimitError,
    NotFoundError,
    ServerError,
    TimedOutError,
    TooLargeError,
    UnavailableError,
)
from .models import (
    BrowserInfo,
    Change,
    Checkpoint,
    CodeContext,
    CodeOutput,
    CodeRaised,
    CodeResult,
    Control,
    DesktopAnswer,
    Difference,
    Effect,
    Egress,
    EgressEvent,
    Element,
    ExecResult,
    Exit,
    FileChange,
    FileEntry,
    Merged,
    Synced,
    Output,
    Picture,
    ProcessInfo,
    Promoted,
    Recording,
    Rewound,
    SandboxEvent,
    SandboxInfo,
    SandboxStats,
    SignedUrl,
    SnapshotInfo,
    TemplateInfo,
    VolumeInfo,
    Window,
)

if TYPE_CHECKING:
    from .aio import AsyncClient, AsyncSandbox, AsyncSnapshot, AsyncTemplate, AsyncVolume

__version__ = "0.1.0"

_ASYNC = ("AsyncClient", "AsyncSandbox", "AsyncSnapshot", "AsyncTemplate", "AsyncVolume")


def __getattr__(name: str) -> Any:
    """The asyncio classes are loaded when they are asked for: loading asyncio takes longer than making a sandbox."""
    if name not in _ASYNC:
        raise AttributeError(f"module 'husk' has no attribute '{name}'")
    from . import aio

    return getattr(aio, name)


__all__ = [
    "AsyncClient",
    "AsyncSandbox",
    "AsyncSnapshot",
    "AsyncTemplate",
    "AsyncVolume",
    "AuthenticationError",
    "BrowserInfo",
    "Change",
    "Checkpoint",
    "Client",
    "CodeContext",
    "CodeError",
    "CodeOutput",
    "CodeRaised",
    "CodeResult",
    "CommandError",
    "ConflictError",
    "ConnectionFailedError",
    "Control",
    "Desktop",
    "DesktopAnswer",
    "Difference",
    "Effect",
    "Egress",
    "EgressEvent",
    "Element",
    "ExecResult",
    "Exit",
    "FileChange",
    "FileChanges",
    "FileEntry",
    "FileReader",
    "Filesystem",
    "ForbiddenError",
    "GoneError",
    "HuskError",
    "InvalidError",
    "LimitError",
    "Merged",
    "Synced",
    "NotFoundError",
    "Output",
    "OutputStream",
    "Picture",
    "Process",
    "ProcessInfo",
    "Promoted",
    "Pty",
    "Recording",
    "Rewound",
    "Sandbox",
    "SandboxEvent",
    "SandboxEvents",
    "SandboxInfo",
    "SandboxStats",
    "ServerError",
    "SignedUrl",
    "Snapshot",
    "SnapshotInfo",
    "Template",
    "TemplateInfo",
    "TimedOutError",
    "TooLargeError",
    "UnavailableError",
    "Volume",
    "VolumeInfo",
    "Window",
]
