"""The screen of a sandbox (template "desktop") for the computer tools of the model vendors.

    from husk import Sandbox
    from husk.computer_use import AnthropicComputer

    with Sandbox.create(template="desktop", memory="2G") as sandbox:
        computer = AnthropicComputer(sandbox, confirm=lambda context: True)
        runner = Anthropic().beta.messages.tool_runner(model="…", max_tokens=4096, tools=[computer], messages=[…])
        message = runner.until_done()

| class | for | needs |
|-|-|-|
| AnthropicComputer | computer_toolset_20260801, in a tool runner or a loop of your own | anthropic 2 |
| OpenAIComputer | the tool "computer": a driver for ComputerToolset | openai 3.40 |
| GeminiComputer | computer use of Gemini 3.5 and 2.5 | google-genai 2 |

Each has a form for asyncio: AsyncAnthropicComputer and so on. A vendor's package is loaded only for Anthropic's classes, and only
when they are named. docs/desktop.md has an example of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._sync.computer import GeminiComputer, OpenAIComputer

if TYPE_CHECKING:
    from ._anthropic import AnthropicComputer, AsyncAnthropicComputer
    from ._async.computer import AsyncGeminiComputer, AsyncOpenAIComputer


def __getattr__(name: str) -> Any:
    if name in ("AnthropicComputer", "AsyncAnthropicComputer"):
        from . import _anthropic as module
    elif name in ("AsyncGeminiComputer", "AsyncOpenAIComputer"):
        from ._async import computer as module  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module 'husk.computer_use' has no attribute '{name}'")
    return getattr(module, name)


__all__ = [
    "AnthropicComputer",
    "AsyncAnthropicComputer",
    "AsyncGeminiComputer",
    "AsyncOpenAIComputer",
    "GeminiComputer",
    "OpenAIComputer",
]
