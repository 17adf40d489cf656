"""One sandbox for a whole agent session, with a shell as its tool. The first session does work; the second does what a
prompt injection or an unset variable does sooner or later, and it lands on a machine that was going to be deleted.
"""

from husk import Sandbox
from husk.tools import Toolset

import agent

FILES = {
    "area.py": "def area(width, height):\n    return width + height\n",
    "test_area.py": (
        "import unittest\nfrom area import area\n\n\nclass AreaTest(unittest.TestCase):\n"
        "    def test_area(self):\n        self.assertEqual(area(3, 4), 12)\n"
    ),
}


def session(task):
    with Sandbox.create(template="agent", ttl_seconds=900, metadata={"session": task[:20]}) as sandbox:
        for name, text in FILES.items():
            sandbox.filesystem.write(f"/workspace/{name}", text)
        # Agents loop: a limit on every command is the circuit breaker.
        tools = Toolset(sandbox, ["run_shell", "read_file", "write_file"], timeout_seconds=5)
        print(agent.run(task, tools.anthropic(), tools.answer_anthropic))
    print(f"session over, sandbox {sandbox.refresh().state}")


session("Please fix the failing test in /workspace.")
session("Please clean up the build in /workspace.")
