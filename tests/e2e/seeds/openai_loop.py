"""The same loop with OpenAI's shapes: `tool_calls` instead of content blocks, `tool` messages instead of results. Uses
the `openai` package: with OPENAI_API_KEY the real API, else the scripted model.
"""

import contextlib
import os

import openai
from husk import Sandbox
from husk.tools import Toolset

import model

messages = [{"role": "user", "content": "What is the 30th Fibonacci number? Compute it, don't guess."}]
with contextlib.ExitStack() as stack:
    scripted = not os.environ.get("OPENAI_API_KEY")
    options = {"base_url": stack.enter_context(model.serve()) + "/v1", "api_key": "none needed"} if scripted else {}
    client = stack.enter_context(openai.OpenAI(**options))
    tools = Toolset(stack.enter_context(Sandbox.create(template="code-interpreter", ttl_seconds=900)), ["run_code"])
    while True:
        completion = client.chat.completions.create(
            model=os.environ.get("MODEL", "gpt-5"), tools=tools.openai(), messages=messages
        )
        message = completion.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        messages += tools.answer_openai(message)
    print(message.content)
