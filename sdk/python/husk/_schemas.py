"""The tools an agent's model is offered: names, descriptions and JSON schemas, and how results read to a model. Shared
by both forms of husk.tools; nothing here talks to a sandbox.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TEXT_MAX = 30000  # characters of one result that a model is shown


@dataclass(frozen=True)
class Tool:
    """One tool, to be written in the shape that an API takes."""

    name: str
    description: str
    properties: Mapping[str, Any]
    required: tuple[str, ...]

    @property
    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": dict(self.properties),
            "required": list(self.required),
            "additionalProperties": False,
        }

    def anthropic(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "input_schema": self.schema}

    def openai(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


RUN_CODE = Tool(
    "run_code",
    "Run code in an isolated sandbox and get back what it prints, the value of its last expression and its figures. "
    "Variables, imports and files stay between calls. Use it whenever something must be computed, tried or plotted.",
    {
        "code": _text("The source to run. Print what you want to see."),
        "language": _text("The language of the code; python unless given.", enum=["python", "javascript", "typescript", "bash", "r", "java"]),
    },
    ("code",),
)
RUN_SHELL = Tool(
    "run_shell",
    "Run a shell command in an isolated sandbox and get back its output and exit code. Files stay between calls; the "
    "working directory and variables do not. A command that takes too long is ended.",
    {
        "command": _text("The command line, for /bin/sh."),
        "timeout_seconds": {"type": "number", "description": "End it after this long.", "exclusiveMinimum": 0},
    },
    ("command",),
)
READ_FILE = Tool(
    "read_file",
    "Read a text file of the sandbox, or a picture to look at.",
    {
        "path": _text("The absolute path of the file."),
        "offset": {"type": "integer", "description": "The line to begin with, counted from 0.", "minimum": 0},
        "limit": {"type": "integer", "description": "How many lines to read.", "minimum": 1},
    },
    ("path",),
)
WRITE_FILE = Tool(
    "write_file",
    "Write a whole file in the sandbox. Missing directories are created; an existing file is replaced.",
    {"path": _text("The absolute path of the file."), "content": _text("All of its text.")},
    ("path", "content"),
)
ALL: tuple[Tool, ...] = (RUN_CODE, RUN_SHELL, READ_FILE, WRITE_FILE)
BY_NAME: dict[str, Tool] = {tool.name: tool for tool in ALL}


class ToolInputError(ValueError):
    """What a model sent does not fit the tool's schema. Its text goes back to the model."""


@dataclass(frozen=True)
class ToolResult:
    """What a call came to: text for the model, and PNG pictures."""

    text: str
    images: list[bytes] = field(default_factory=list)
    is_error: bool = False

    def anthropic(self, tool_use_id: str) -> dict[str, Any]:
        """A `tool_result` block."""
        content: list[dict[str, Any]] = [{"type": "text", "text": self.text}]
        for image in self.images:
            source = {"type": "base64", "media_type": media_type(image), "data": base64.b64encode(image).decode()}
            content.append({"type": "image", "source": source})
        return {"type": "tool_result", "tool_use_id": tool_use_id, "content": content, "is_error": self.is_error}

    def openai(self, tool_call_id: str) -> dict[str, Any]:
        """A `tool` message. Those hold text only, so pictures are mentioned."""
        note = f"\n[{len(self.images)} picture(s), not shown]" if self.images else ""
        return {"role": "tool", "tool_call_id": tool_call_id, "content": self.text + note}


_MEDIA = ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


def media_type(data: bytes) -> str:
    """Of a picture that a model can look at; "" for anything else."""
    for magic, kind in _MEDIA:
        if data.startswith(magic):
            return kind
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""


def clip(text: str, limit: int = TEXT_MAX) -> str:
    """The beginning and the end of a text that is too long, and how much is missing between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def describe(stdout: str, stderr: str, exit_code: int, note: str = "", blocked: Sequence[str] = ()) -> str:
    """The output of a command or of code, as a model reads it best: both streams, then what went wrong and what was
    blocked."""
    parts = [part.rstrip("\n") for part in (stdout, stderr) if part.strip("\n")]
    if exit_code != 0:
        parts.append(f"[exit code {exit_code}{note}]")
    return "\n".join([clip("\n".join(parts)), *blocked]).strip("\n") or "(no output)"


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


@dataclass(frozen=True)
class Call:
    """A tool call, whichever API it came from."""

    id: str
    name: str
    arguments: dict[str, Any]
    problem: str = ""  # why the arguments cannot be used


def parse_call(call: Any) -> Call:
    """Takes an Anthropic `tool_use` block or an OpenAI tool call, as an object of their SDKs or as a dict."""
    function = _get(call, "function")
    name = _get(function, "name") if function is not None else _get(call, "name")
    arguments = _get(function, "arguments") if function is not None else _get(call, "input")
    if not isinstance(name, str):
        raise TypeError("this is neither an Anthropic tool_use block nor an OpenAI tool call")
    identity = str(_get(call, "id") or "")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            return Call(identity, name, {}, f"the arguments are not JSON: {error}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        return Call(identity, name, {}, "the arguments are not an object")
    return Call(identity, name, dict(arguments))


_TYPES: dict[str, type | tuple[type, ...]] = {"string": str, "integer": int, "number": (int, float)}


def check_arguments(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Raises ToolInputError when arguments do not fit: a model can mend what it is told of."""
    for name in tool.required:
        if name not in arguments:
            raise ToolInputError(f"{tool.name} needs '{name}'")
    for name, value in arguments.items():
        if name not in tool.properties:
            raise ToolInputError(f"{tool.name} has no '{name}'; it takes {', '.join(tool.properties)}")
        wanted = tool.properties[name]
        if isinstance(value, bool) or not isinstance(value, _TYPES[wanted["type"]]):
            raise ToolInputError(f"'{name}' of {tool.name} must be of type {wanted['type']}")
        if "enum" in wanted and value not in wanted["enum"]:
            raise ToolInputError(f"'{name}' of {tool.name} must be one of {', '.join(wanted['enum'])}")


def choose(names: Sequence[str] | None) -> list[Tool]:
    unknown = [name for name in names or () if name not in BY_NAME]
    if unknown:
        raise ValueError(f"there is no tool '{unknown[0]}'; there are {', '.join(BY_NAME)}")
    return [BY_NAME[name] for name in names] if names is not None else list(ALL)
