"""LangChain's deepagents with a sandbox as its backend: files in, analysis, report out. Needs `pip install
'./sdk/python[deepagents]' langchain-anthropic` and ANTHROPIC_API_KEY.
"""

from deepagents import create_deep_agent
from langchain_anthropic import ChatAnthropic

from husk import Sandbox
from husk.deepagents import HuskSandbox

with Sandbox.create(template="agent", ttl_seconds=1800) as sandbox:
    backend = HuskSandbox(sandbox)
    backend.upload_files([("/workspace/sales.csv", b"month,units\njan,12\nfeb,30\nmar,21\n")])
    agent = create_deep_agent(model=ChatAnthropic(model="claude-sonnet-5-5"), backend=backend)
    task = "Analyse /workspace/sales.csv and write a report to /workspace/report.md."
    for chunk in agent.stream({"messages": [{"role": "user", "content": task}]}):
        print(chunk)
    print(sandbox.filesystem.read_text("/workspace/report.md"))
