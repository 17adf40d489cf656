"""First architecture: the agent's loop, the model and its key are here; the sandbox is only where its commands run."""

from husk import Sandbox
from husk.tools import Toolset

import agent

TASK = "Write and run a script for the first 50 prime numbers."

with Sandbox.create(ttl_seconds=900) as sandbox:
    tools = Toolset(sandbox, ["run_shell"])
    print(agent.run(TASK, tools.anthropic(), tools.answer_anthropic))
