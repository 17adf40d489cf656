"""Tools for an agent's model: `Toolset(sandbox)` gives their descriptions in the shapes of the Anthropic and OpenAI
SDKs, and runs the calls that a model makes. `AsyncToolset` is the same for asyncio.

The descriptions alone, without a sandbox, are RUN_CODE, RUN_SHELL, READ_FILE and WRITE_FILE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._schemas import (
    READ_FILE,
    RUN_CODE,
    RUN_SHELL,
    WRITE_FILE,
    Tool,
    ToolInputError,
    ToolResult,
)
from ._sync.tools import Toolset

if TYPE_CHECKING:
    from ._async.tools import AsyncToolset


def __getattr__(name: str) -> Any:
    if name != "AsyncToolset":
        raise AttributeError(f"module 'husk.tools' has no attribute '{name}'")
    from ._async.tools import AsyncToolset as found

    return found


__all__ = [
    "AsyncToolset",
    "READ_FILE",
    "RUN_CODE",
    "RUN_SHELL",
    "Tool",
    "ToolInputError",
    "ToolResult",
    "Toolset",
    "WRITE_FILE",
]
