"""suite.py SHAPE URL SANDBOX: a session on the screen of a sandbox, as a model at URL wants it (tests/e2e/lib/computer_model.py), with
the vendor's own package. `async-` before a shape: the same with asyncio. Prints what the safety checks asked."""

import asyncio
import json
import sys
import urllib.request

from husk import AsyncSandbox, Sandbox
from husk.computer_use import (
    AnthropicComputer,
    AsyncAnthropicComputer,
    AsyncGeminiComputer,
    AsyncOpenAIComputer,
    GeminiComputer,
    OpenAIComputer,
)

SHAPE, URL, ID = sys.argv[1:]
PROMPT = "fill in the form, download the report, and show it"
asked = []


def approve(question):
    asked.append(question)
    return True


async def approve_later(question):
    return approve(question)


def anthropic():
    from anthropic import Anthropic

    members = set()
    computer = AnthropicComputer(Sandbox.connect(ID), confirm=lambda context: members.add(context.member) or True)
    client = Anthropic(base_url=URL, api_key="k")
    messages = [{"role": "user", "content": PROMPT}]
    runner = client.beta.messages.tool_runner(model="m", max_tokens=1000, tools=[computer], messages=messages)
    assert runner.until_done().content[0].text == "done"
    asked.append(sorted(members))


async def async_anthropic():
    from anthropic import AsyncAnthropic

    sandbox = await AsyncSandbox.connect(ID)
    # A smaller picture: the model's coordinates are within it.
    computer = AsyncAnthropicComputer(sandbox, confirm=lambda context: True, max_edge=1000)
    client = AsyncAnthropic(base_url=URL, api_key="k")
    messages = [{"role": "user", "content": PROMPT}]
    runner = client.beta.messages.tool_runner(model="m", max_tokens=1000, tools=[computer], messages=messages)
    assert (await runner.until_done()).content[0].text == "done"


def openai():
    from openai import OpenAI
    from openai.lib.computer import ComputerToolset

    toolset = ComputerToolset(OpenAIComputer(Sandbox.connect(ID)))
    client = OpenAI(base_url=f"{URL}/v1", api_key="k")
    safe = lambda call: approve([each.message for each in call.pending_safety_checks])
    response = toolset.run(client, {"model": "m", "input": PROMPT}, max_steps=90, approve_safety_checks=safe)
    assert response.output_text == "done"


async def async_openai():
    from openai import AsyncOpenAI
    from openai.lib.computer import AsyncComputerToolset

    toolset = AsyncComputerToolset(AsyncOpenAIComputer(await AsyncSandbox.connect(ID)))
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="k")
    response = await toolset.run(client, {"model": "m", "input": PROMPT}, max_steps=90, approve_safety_checks=approve_later)
    assert response.output_text == "done"


def gemini():
    from google import genai

    client = genai.Client(api_key="k", http_options={"base_url": URL})
    computer = GeminiComputer(Sandbox.connect(ID), confirm=approve)
    assert computer.run(client, "m", PROMPT).text == "done"


async def async_gemini():
    from google import genai

    client = genai.Client(api_key="k", http_options={"base_url": URL}).aio
    computer = AsyncGeminiComputer(await AsyncSandbox.connect(ID), confirm=approve_later)
    assert (await computer.run(client, "m", PROMPT)).text == "done"


def plain():
    """Without a vendor's package: what the SDK itself does."""
    desktop, picture = Sandbox.connect(ID).desktop, None
    while True:
        request = urllib.request.Request(f"{URL}/plain", json.dumps({"picture": picture}).encode())
        wanted = json.load(urllib.request.urlopen(request))
        if wanted["done"]:
            break
        picture = desktop.act(wanted["actions"], screenshot=True).screenshot.data


run = globals()[SHAPE.replace("-", "_")]
if asyncio.iscoroutinefunction(run):
    asyncio.run(run())
else:
    run()
print(json.dumps(asked))
