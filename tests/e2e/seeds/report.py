"""A file in, analysis, a report out. The loop is here and the file system is there, so what the agent is to read is put
into the sandbox first, and what it wrote is fetched before the sandbox is gone.
"""

import pathlib

from husk import Sandbox
from husk.tools import Toolset

import agent

FILING = pathlib.Path(__file__).parent / "data/filing.txt"

with Sandbox.create(template="code-interpreter", ttl_seconds=900) as sandbox:
    sandbox.filesystem.upload(FILING, "/workspace/filing.txt")
    tools = Toolset(sandbox)
    task = "Analyse the filing in /workspace/filing.txt and write a report in Markdown."
    print(agent.run(task, tools.anthropic(), tools.answer_anthropic))
    report = sandbox.filesystem.read_text("/workspace/report.md")
print(report)
