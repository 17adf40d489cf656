"""The Claude Agent SDK with the whole agent inside: installed there with pip, its script uploaded and launched there, and what it
does is shown while it does it. The key is a secret of the sandbox: what is in its environment is a placeholder, which becomes
the key on the way to the model's host alone.

    python3 claude_agent_sdk.py [WHEELS]     # a folder for pip, where the sandbox may not reach PyPI

MODEL_HOST is the model's host, api.anthropic.com unless told.
"""

import os
import pathlib
import sys

from husk import Sandbox

HOST = os.environ.get("MODEL_HOST", "api.anthropic.com")
KEY = {"name": "ANTHROPIC_API_KEY", "value": os.environ["ANTHROPIC_API_KEY"], "hosts": [HOST]}
TASK = "Write and run a script for the first 50 prime numbers."
AGENT = f"""
import anyio
from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ResultMessage, TextBlock, ToolUseBlock, query

async def main():
    options = ClaudeAgentOptions(allowed_tools=["Bash"], cwd="/workspace")
    async for message in query(prompt={TASK!r}, options=options):
        for block in message.content if isinstance(message, AssistantMessage) else ():
            if isinstance(block, ToolUseBlock):
                print(f"> {{block.name}}: {{block.input['command'].splitlines()[0]}}", flush=True)
            elif isinstance(block, TextBlock):
                print(block.text, flush=True)
        if isinstance(message, ResultMessage):
            print(f"{{message.subtype}} after {{message.num_turns}} turns", flush=True)

anyio.run(main)
open("/tmp/over", "w").close()
"""
ENVIRONMENT = {
    "ANTHROPIC_BASE_URL": f"https://{HOST}",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "NODE_EXTRA_CA_CERTS": "/etc/ssl/certs/ca-certificates.crt",  # with the authority that swaps the placeholder
}

allowed = [HOST, "pypi.org", "files.pythonhosted.org"]
with Sandbox.create(template="code-interpreter", ttl_seconds=900, egress={"allow": allowed, "secrets": [KEY]}) as sandbox:
    environment = {}
    if sys.argv[1:]:
        for wheel in pathlib.Path(sys.argv[1]).glob("*.whl"):
            sandbox.filesystem.upload(wheel, f"/tmp/wheels/{wheel.name}")
        environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/tmp/wheels"}
    sandbox.exec("pip install -q claude-agent-sdk", env=environment, check=True)
    sandbox.filesystem.write("/tmp/agent.py", AGENT)
    print("the key inside:", sandbox.exec("echo $ANTHROPIC_API_KEY").stdout.strip() != KEY["value"] and "a placeholder")
    with sandbox.exec_stream("python3 /tmp/agent.py", env=ENVIRONMENT, timeout_seconds=300) as stream:
        for piece in stream:
            if ">" in piece.text and not sandbox.filesystem.exists("/tmp/over"):
                print("while it runs:")
            print(piece.text, end="", flush=True)
    print("exit code", stream.exit_code, "out of memory" if stream.exit.out_of_memory else "")
