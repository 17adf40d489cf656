"""deepagents as LangChain and Daytona document it, with Daytona's own client and LangChain's own backend for it: nothing here knows
Husk. DAYTONA_API_URL and DAYTONA_API_KEY name the server. Needs daytona, langchain-daytona and langchain-anthropic.
"""

import contextlib
import os
import pathlib

from daytona import Daytona
from deepagents import create_deep_agent
from langchain_anthropic import ChatAnthropic
from langchain_daytona import DaytonaSandbox

import model

FILING = pathlib.Path(__file__).parent / "data/filing.txt"
TASKS = (
    "Write and run a script for the first 50 prime numbers.",
    "Analyse the filing in /workspace/filing.txt and write a report in Markdown.",
)

with contextlib.ExitStack() as stack:
    if not os.environ.get("ANTHROPIC_API_KEY"):
        os.environ.update(ANTHROPIC_BASE_URL=stack.enter_context(model.serve()), ANTHROPIC_API_KEY="none needed")
    daytona = Daytona()
    sandbox = daytona.create()
    stack.callback(sandbox.delete)
    sandbox.fs.upload_file(FILING.read_bytes(), "/workspace/filing.txt")
    backend = DaytonaSandbox(sandbox=sandbox)
    agent = create_deep_agent(model=ChatAnthropic(model="claude-sonnet-4-6"), backend=backend)
    for task in TASKS:
        for chunk in agent.stream({"messages": [{"role": "user", "content": task}]}):
            for node, update in chunk.items():
                for message in (update or {}).get("messages", ()):
                    print(f"{node}: {message.text or [call['name'] for call in message.tool_calls]}")
    report = sandbox.fs.download_file("/workspace/report.md")
    print(report.decode())
