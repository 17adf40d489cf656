"""An agent, small: a client of the Messages API and the loop around it. The programs here use it on your side of the
sandbox; agents_home.py has the same file run inside one. The standard library is enough.

With ANTHROPIC_API_KEY set it talks to Anthropic (or to ANTHROPIC_BASE_URL), without one to the scripted model of
model.py.
"""

import contextlib
import json
import os
import types
import urllib.error
import urllib.request

MODEL = os.environ.get("MODEL", "claude-sonnet-5-5")


class Messages:
    """What these programs need of the `anthropic` package, for when that is not installed."""

    def __init__(self, base_url, api_key):
        self.messages = self  # so that it is called the same way: client.messages.create(…)
        self._url = f"{base_url}/v1/messages"
        self._headers = {"x-api-key": api_key, "anthropic-version": "2023-06-01", "content-type": "application/json"}

    def create(self, **request):
        body = json.dumps(request, default=vars).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self._url, body, self._headers), timeout=600) as answer:
                return json.load(answer, object_hook=_object)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"the model refused: {error.read().decode()}") from None


def _object(document):
    """Attributes as in the `anthropic` package; what a tool takes stays a dict."""
    return document if not {"type", "role"} & document.keys() else types.SimpleNamespace(**document)


@contextlib.contextmanager
def connect():
    """A client, of the `anthropic` package if there is one."""
    with contextlib.ExitStack() as stack:
        key = os.environ.get("ANTHROPIC_API_KEY")
        url = os.environ.get("ANTHROPIC_BASE_URL", "https://api.anthropic.com")
        if not key:
            import model

            key, url = "none needed", stack.enter_context(model.serve())
        try:
            import anthropic
        except ImportError:
            yield Messages(url, key)
        else:
            yield stack.enter_context(anthropic.Anthropic(base_url=url, api_key=key))


def run(task, tools, answer, show=print):
    """The loop: the model asks for tools until it has the answer. `answer` runs what a response asks for and gives the
    message with the results; `show` is told of every call."""
    conversation = [{"role": "user", "content": task}]
    with connect() as client:
        while True:
            response = client.messages.create(model=MODEL, max_tokens=4096, tools=tools, messages=conversation)
            conversation.append({"role": "assistant", "content": response.content})
            if response.stop_reason != "tool_use":
                return "".join(block.text for block in response.content if block.type == "text")
            for block in response.content:
                if block.type == "tool_use":
                    show(f"> {block.name}: {first_line(block.input)}")
            conversation.append(answer(response))


def first_line(arguments):
    return str(next(iter(arguments.values()), "")).partition("\n")[0]
