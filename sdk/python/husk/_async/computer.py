"""The screen of a sandbox for the vendors' computer tools: OpenAI's driver, and Gemini's functions. husk/computer_use.py names them;
Anthropic's is a subclass of a class of theirs (husk/_anthropic.py)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Awaitable, Protocol

from .._computer import GEMINI_SPACE, Action, fitted, gemini_actions, openai_actions
from .._http import given
from ..errors import HuskError
from ..models import DesktopAnswer, Picture
from .desktop import AsyncDesktop


class AsyncHasDesktop(Protocol):
    """A sandbox."""

    desktop: AsyncDesktop


class AsyncScreen:
    """A desktop as a model sees it: pictures that are not larger than the model takes, and coordinates within them."""

    def __init__(self, desktop: AsyncDesktop, format: str, edge: int, patches: int) -> None:
        self._desktop = desktop
        self._format = format
        self._limits = edge, patches
        self.size = (0, 0)  # of the screen

    async def act(
        self, actions: Sequence[Action], *, space: tuple[int, int] | None = None, picture: bool = False
    ) -> DesktopAnswer:
        if not self.size[0]:
            self.size = await self._desktop.size()
        width, height = fitted(*self.size, *self._limits)
        shown = {"format": self._format, "max_width": width, "max_height": height}
        made = [{**each, **shown} if each["action"] in ("screenshot", "zoom") else each for each in actions]
        answer = await self._desktop.act(made, space=space or (width, height), screenshot=shown if picture else False)
        self.size = answer.width, answer.height
        return answer

    async def picture(self) -> Picture:
        answer = await self.act([], picture=True)
        assert answer.screenshot is not None
        return answer.screenshot


class AsyncOpenAIComputer:
    """A driver for `ComputerToolset` of the package openai.

        toolset = ComputerToolset(OpenAIComputer(sandbox))
        response = toolset.run(client, {"model": "…", "input": "…"}, approve_safety_checks=ask_the_user)

    The toolset asks for confirmation of the model's safety checks, and acknowledges them. What is not possible raises HuskError, which
    ends the run.
    """

    def __init__(self, sandbox: AsyncHasDesktop, *, format: str = "png", max_edge: int = 4096) -> None:
        """max_edge: pictures are scaled to this length, and the model's coordinates are within them."""
        self._screen = AsyncScreen(sandbox.desktop, format, max_edge, 1 << 30)

    async def _do(self, action: Any) -> None:
        fields = action if isinstance(action, Mapping) else action.model_dump(exclude_none=True)
        await self._screen.act(openai_actions(fields))

    async def click(self, action: Any) -> None:
        await self._do(action)

    async def double_click(self, action: Any) -> None:
        await self._do(action)

    async def drag(self, action: Any) -> None:
        await self._do(action)

    async def keypress(self, action: Any) -> None:
        await self._do(action)

    async def move(self, action: Any) -> None:
        await self._do(action)

    async def scroll(self, action: Any) -> None:
        await self._do(action)

    async def type(self, action: Any) -> None:
        await self._do(action)

    async def wait(self, action: Any) -> None:
        await self._do(action)

    async def screenshot(self) -> Any:
        picture = await self._screen.picture()
        return {"type": "computer_screenshot", "image_url": f"data:{picture.type};base64,{picture.data}"}


class AsyncGeminiComputer:
    """Gemini's computer use, of the package google-genai.

        computer = GeminiComputer(sandbox, confirm=ask_the_user)
        response = computer.run(client, "gemini-3.5-flash", "…")

    Or in a loop of your own: `tool` belongs to the tools of generate_content, and `respond` answers a function call. For
    client.interactions these are `interactions_tool` and `result`.
    """

    tool: Mapping[str, Any] = {"computer_use": {"environment": "ENVIRONMENT_DESKTOP"}}
    interactions_tool: Mapping[str, Any] = {"type": "computer_use", "environment": "desktop"}

    def __init__(
        self,
        sandbox: AsyncHasDesktop,
        *,
        confirm: Callable[[Mapping[str, Any]], Awaitable[bool]] | None = None,
        format: str = "png",
        max_edge: int = 4096,
    ) -> None:
        """confirm: is asked about each action for which Gemini wants a confirmation, with {"decision", "explanation"}. Without it, or
        if it returns False, such an action is not done."""
        self._screen = AsyncScreen(sandbox.desktop, format, max_edge, 1 << 30)
        self._confirm = confirm

    async def perform(self, name: str, args: Mapping[str, Any]) -> tuple[dict[str, Any], Picture]:
        """One function: what the model is told, and the picture afterwards."""
        said: dict[str, Any] = {}
        decision = args.get("safety_decision")
        if decision and decision.get("decision", "require_confirmation") == "require_confirmation":
            if self._confirm is None or await self._confirm(decision) is not True:
                return {"error": "the user did not confirm this action; it was not done"}, await self._screen.picture()
            said["safety_acknowledgement"] = True
        try:
            if not self._screen.size[0]:
                await self._screen.act([])
            actions = gemini_actions(name, args, self._screen.size)
            answer = await self._screen.act(actions, space=GEMINI_SPACE, picture=True)
            assert answer.screenshot is not None
            return {"status": "done", **said}, answer.screenshot
        except (HuskError, KeyError) as error:
            reason = f"the argument {error} is missing" if isinstance(error, KeyError) else str(error)
            return {"error": reason, **said}, await self._screen.picture()

    async def respond(self, call: Any) -> dict[str, Any]:
        """The part that answers a function call of generate_content."""
        said, picture = await self.perform(call.name, call.args or {})
        blob = {"inline_data": {"mime_type": picture.type, "data": picture.raw}}
        return {"function_response": given(name=call.name, id=getattr(call, "id", None), response=said, parts=[blob])}

    async def result(self, step: Any) -> dict[str, Any]:
        """The step that answers a function_call step of interactions."""
        said, picture = await self.perform(step.name, step.arguments or {})
        shown = {"type": "image", "data": picture.data, "mime_type": picture.type}
        told = {"type": "text", "text": json.dumps(said)}
        return given(type="function_result", call_id=step.id, name=step.name, is_error=True if "error" in said else None, result=[told, shown])

    async def run(
        self, client: Any, model: str, prompt: str, *, config: Mapping[str, Any] | None = None, max_turns: int = 100, keep_pictures: int = 3
    ) -> Any:
        """Asks the model, does what it wants and asks again, until it calls no function. Returns its last response. client: a
        genai.Client (AsyncGeminiComputer: its `aio`). config: more fields of the request. Pictures of older turns are left out."""
        settings = {**(config or {}), "tools": [self.tool, *((config or {}).get("tools") or [])]}
        contents: list[Any] = [{"role": "user", "parts": [{"text": prompt}]}]
        for _ in range(max_turns):
            response = await client.models.generate_content(model=model, contents=contents, config=settings)
            calls = response.function_calls
            if not calls:
                return response
            contents.append(response.candidates[0].content)
            contents.append({"role": "user", "parts": [await self.respond(call) for call in calls]})
            for turn in contents[2 : -2 * keep_pictures : 2]:
                for part in turn["parts"]:
                    part["function_response"].pop("parts", None)
        raise RuntimeError(f"the model has not finished after {max_turns} turns")
