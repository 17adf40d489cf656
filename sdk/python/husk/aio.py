"""The SDK for asyncio: the same classes and methods as in `husk`, to be awaited. No threads: asyncio's own streams."""

from __future__ import annotations

from ._async.client import AsyncClient
from ._async.filesystem import AsyncFileChanges, AsyncFileReader, AsyncFilesystem
from ._async.processes import AsyncProcess
from ._async.pty import AsyncPty
from ._async.sandbox import AsyncSandbox
from ._async.snapshots import AsyncSnapshot, AsyncTemplate
from ._async.streams import AsyncOutputStream, AsyncSandboxEvents
from ._async.volumes import AsyncVolume

__all__ = [
    "AsyncClient",
    "AsyncFileChanges",
    "AsyncFileReader",
    "AsyncFilesystem",
    "AsyncOutputStream",
    "AsyncProcess",
    "AsyncPty",
    "AsyncSandbox",
    "AsyncSandboxEvents",
    "AsyncSnapshot",
    "AsyncTemplate",
    "AsyncVolume",
]
