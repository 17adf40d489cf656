"""An agent: a model of Anthropic's decides, the sandbox acts. Needs `pip install anthropic` and ANTHROPIC_API_KEY.

The loop and the key stay here; only commands and files are in the sandbox.
"""

import os
import sys

import anthropic

from husk import Sandbox
from husk.tools import Toolset

MODEL = os.environ.get("MODEL", "claude-sonnet-5-5")


def run(request: str) -> str:
    client = anthropic.Anthropic()
    messages = [{"role": "user", "content": request}]
    with Sandbox.create(template="code-interpreter", ttl_seconds=1800) as sandbox:
        tools = Toolset(sandbox)
        while True:
            response = client.messages.create(model=MODEL, max_tokens=4096, tools=tools.anthropic(), messages=messages)
            messages.append({"role": "assistant", "content": response.content})
            if response.stop_reason != "tool_use":
                return "".join(block.text for block in response.content if block.type == "text")
            messages.append(tools.answer_anthropic(response))


if __name__ == "__main__":
    print(run(" ".join(sys.argv[1:]) or "What is the 30th Fibonacci number? Compute it, do not guess."))
