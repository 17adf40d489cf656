# Made from husk/_async/tools.py by generate.py: edit it there.
"""Tools for an agent's model, run in a sandbox: run_code, run_shell, read_file and write_file.

A model's mistakes and a command's failures are results for the model to read; only the loss of the sandbox or of the
server is raised to the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from .._schemas import (
    Call,
    ToolInputError,
    ToolResult,
    check_arguments,
    choose,
    clip,
    describe,
    media_type,
    parse_call,
)
from ..errors import ConflictError, InvalidError, NotFoundError, TooLargeError
from .sandbox import Sandbox

PICTURE_MAX = 5 << 20  # what models take
FILE_MAX = 4 << 20


class Toolset:
    """The tools of one sandbox.

        tools = Toolset(sandbox)
        client.messages.create(tools=tools.anthropic(), …)   # or tools=tools.openai() with OpenAI's SDK
        message = tools.answer_anthropic(response)     # the next message of the conversation

    Each tool can also be called by itself: `tools.run_shell("ls")`.
    """

    def __init__(
        self, sandbox: Sandbox, names: Sequence[str] | None = None, *, timeout_seconds: float = 120.0
    ) -> None:
        self.sandbox = sandbox
        self.timeout_seconds = timeout_seconds  # of a call that does not say another
        self._tools = {tool.name: tool for tool in choose(names)}

    # ---- what the model is told ----

    def anthropic(self) -> list[dict[str, Any]]:
        """For `tools=` of Anthropic's Messages API."""
        return [tool.anthropic() for tool in self._tools.values()]

    def openai(self) -> list[dict[str, Any]]:
        """For `tools=` of OpenAI's Chat Completions API."""
        return [tool.openai() for tool in self._tools.values()]

    # ---- what the model asks for ----

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Runs a tool."""
        functions: dict[str, Callable[..., ToolResult]] = {
            "run_code": self.run_code,
            "run_shell": self.run_shell,
            "read_file": self.read_file,
            "write_file": self.write_file,
        }
        if name not in self._tools:
            return ToolResult(f"there is no tool '{name}'; there are {', '.join(self._tools)}", is_error=True)
        try:
            check_arguments(self._tools[name], arguments)
            return functions[name](**arguments)
        except (ToolInputError, InvalidError, NotFoundError, ConflictError, TooLargeError) as error:
            if isinstance(error, NotFoundError):
                self.sandbox.refresh()  # raises when it is the sandbox that is not found
            return ToolResult(str(error), is_error=True)

    def _run(self, call: Call) -> ToolResult:
        return ToolResult(call.problem, is_error=True) if call.problem else self.call(call.name, call.arguments)

    def anthropic_result(self, block: Any) -> dict[str, Any]:
        """Runs a `tool_use` block; the `tool_result` block to send back."""
        call = parse_call(block)
        return (self._run(call)).anthropic(call.id)

    def openai_result(self, tool_call: Any) -> dict[str, Any]:
        """Runs one of `message.tool_calls`; the `tool` message to send back."""
        call = parse_call(tool_call)
        return (self._run(call)).openai(call.id)

    def answer_anthropic(self, response: Any) -> dict[str, Any]:
        """Runs every `tool_use` block of a response (or of its content); the message of results to append."""
        blocks = getattr(response, "content", response)
        results = [self.anthropic_result(block) for block in blocks if _type_of(block) == "tool_use"]
        return {"role": "user", "content": results}

    def answer_openai(self, message: Any) -> list[dict[str, Any]]:
        """Runs every tool call of a message; the messages to append."""
        calls = message.get("tool_calls") if isinstance(message, dict) else message.tool_calls
        return [self.openai_result(call) for call in calls or ()]

    # ---- the tools ----

    def run_code(self, code: str, language: str = "python") -> ToolResult:
        result = self.sandbox.run_code(code, language, timeout_seconds=self.timeout_seconds)
        note = ", out of time: the interpreter may have lost its variables" if result.timed_out else ""
        shown = [each.text for each in result.results if each.text and not each.image()]
        stdout = "\n".join([result.stdout.rstrip("\n"), *shown]).strip("\n")
        pictures = [image for image in result.images if len(image) <= PICTURE_MAX]
        text = describe(stdout, result.stderr, result.exit_code, note, result.blocked)
        return ToolResult(text, pictures, result.exit_code != 0)

    def run_shell(self, command: str, timeout_seconds: float | None = None) -> ToolResult:
        limit = min(timeout_seconds or self.timeout_seconds, max(self.timeout_seconds, 600.0))
        result = self.sandbox.exec(command, timeout_seconds=limit)
        note = f", ended after {limit:g} seconds" if result.timed_out else ""
        note += ", out of memory" if result.out_of_memory else ""
        text = describe(result.stdout, result.stderr, result.exit_code, note, result.blocked)
        return ToolResult(text, [], result.exit_code != 0)

    def read_file(self, path: str, offset: int = 0, limit: int = 2000) -> ToolResult:
        data = self.sandbox.filesystem.read(path, length=FILE_MAX)
        if media_type(data):
            if len(data) > PICTURE_MAX or len(data) == FILE_MAX:
                return ToolResult(f"{path} is too large a picture to look at", is_error=True)
            return ToolResult(f"{path} ({len(data)} bytes)", [data])
        if b"\0" in data[:8192]:
            return ToolResult(f"{path} is not text; use run_shell to look into it", is_error=True)
        lines = data.decode("utf-8", "replace").splitlines(keepends=True)
        text = "".join(lines[offset : offset + limit])
        left = len(lines) - offset - limit
        if left > 0:
            text += f"\n[{left} more lines; go on with offset {offset + limit}]"
        return ToolResult(clip(text) or "(nothing there)")

    def write_file(self, path: str, content: str) -> ToolResult:
        entry = self.sandbox.filesystem.write(path, content)
        return ToolResult(f"wrote {entry.size} bytes to {entry.path}")


def _type_of(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
