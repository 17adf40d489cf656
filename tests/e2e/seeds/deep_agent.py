"""LangChain's deepagents with a sandbox as its backend: the loop and the model's key stay here, commands and files are
there. Both of its tasks: a script that computes, and a filing that becomes a report. Needs deepagents and
langchain-anthropic.
"""

import contextlib
import os
import pathlib

from deepagents import create_deep_agent
from husk import Sandbox
from husk.deepagents import HuskSandbox
from langchain_anthropic import ChatAnthropic

import model

FILING = pathlib.Path(__file__).parent / "data/filing.txt"
TASKS = (
    "Write and run a script for the first 50 prime numbers.",
    "Analyse the filing in /workspace/filing.txt and write a report in Markdown.",
)

with contextlib.ExitStack() as stack:
    scripted = not os.environ.get("ANTHROPIC_API_KEY")
    options = {"base_url": stack.enter_context(model.serve()), "api_key": "none needed"} if scripted else {}
    sandbox = stack.enter_context(Sandbox.create(template="agent", ttl_seconds=900))
    backend = HuskSandbox(sandbox)
    backend.upload_files([("/workspace/filing.txt", FILING.read_bytes())])
    chat = ChatAnthropic(model=os.environ.get("MODEL", "claude-sonnet-5-5"), **options)
    agent = create_deep_agent(model=chat, backend=backend)
    for task in TASKS:
        for chunk in agent.stream({"messages": [{"role": "user", "content": task}]}):
            for node, update in chunk.items():
                for message in (update or {}).get("messages", ()):
                    print(f"{node}: {message.text or [call['name'] for call in message.tool_calls]}")
    (report,) = backend.download_files(["/workspace/report.md"])
    print(report.content.decode())
