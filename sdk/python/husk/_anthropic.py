"""Anthropic's computer toolset on the screen of a sandbox. husk/computer_use.py loads it when it is named, and so the package
anthropic, whose classes it extends."""

from __future__ import annotations

from typing import Any

try:
    from anthropic.tools.computer import (
        BetaAbstractComputerToolset20260801,
        BetaAsyncAbstractComputerToolset20260801,
        BetaComputerCursorPositionResult,
        BetaScreenshotResult,
    )
except ImportError as error:
    raise ImportError("AnthropicComputer needs the package anthropic, 2.0 or later: pip install './sdk/python[anthropic]'") from error

from ._async.computer import AsyncHasDesktop, AsyncScreen
from ._sync.computer import HasDesktop, Screen

# What a model takes without making it smaller. Newer ones take more; with less, coordinates are right everywhere.
EDGE, PATCHES = 1568, 1568


def _action(name: str, input: Any) -> dict[str, Any]:
    return {"action": name, **input.model_dump(exclude_none=True)}


def _result(name: str, result: dict[str, Any]) -> Any:
    if name in ("screenshot", "zoom"):
        return BetaScreenshotResult(data=result["screenshot"]["data"], media_type=result["screenshot"]["type"])
    if name == "cursor_position":
        return BetaComputerCursorPositionResult(x=result["coordinate"][0], y=result["coordinate"][1])
    return None


class AnthropicComputer(BetaAbstractComputerToolset20260801):
    """All members of computer_toolset_20260801. `confirm`, `configs` and `tool_configs` are those of Anthropic's class.

        computer = AnthropicComputer(sandbox, confirm=lambda context: True)
        runner = Anthropic().beta.messages.tool_runner(model="…", max_tokens=4096, tools=[computer], messages=[…])
        message = runner.until_done()

    An action that is not possible is told to the model as an error.
    """

    def __init__(self, sandbox: HasDesktop, *, format: str = "png", max_edge: int = EDGE, max_patches: int = PATCHES, **options: Any) -> None:
        self._screen = Screen(sandbox.desktop, format, max_edge, max_patches)
        super().__init__(**options)

    def execute(self, context: Any, name: Any, input: Any) -> Any:
        return _result(name, self._screen.act([_action(name, input)]).results[0])


class AsyncAnthropicComputer(BetaAsyncAbstractComputerToolset20260801):
    """AnthropicComputer for AsyncAnthropic and AsyncSandbox."""

    def __init__(self, sandbox: AsyncHasDesktop, *, format: str = "png", max_edge: int = EDGE, max_patches: int = PATCHES, **options: Any) -> None:
        self._screen = AsyncScreen(sandbox.desktop, format, max_edge, max_patches)
        super().__init__(**options)

    async def execute(self, context: Any, name: Any, input: Any) -> Any:
        return _result(name, (await self._screen.act([_action(name, input)])).results[0])
