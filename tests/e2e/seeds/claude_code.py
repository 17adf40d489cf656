"""The whole agent inside, and a real one: Claude Code, which the agent template ships, works on a task in the sandbox
and what it does is shown while it does it. The key is in the sandbox with it, and the sandbox is what guards the key.

As in agents_home.py the scripted model moves in too, because a sandbox has no network.
"""

import json
import pathlib

from husk import Sandbox

HERE = pathlib.Path(__file__).parent
ENVIRONMENT = {
    "ANTHROPIC_API_KEY": "sk-it-lives-in-the-box",
    "ANTHROPIC_BASE_URL": "http://127.0.0.1:8080",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}
TASK = "Write and run a script for the first 50 prime numbers."
COMMAND = ["claude", "-p", TASK, "--allowedTools", "Bash", "--output-format", "stream-json", "--verbose"]


def lines(stream):
    """Whole lines of a stream's standard output."""
    rest = ""
    for piece in stream:
        if piece.stream == "stdout":
            *whole, rest = (rest + piece.text).split("\n")
            yield from whole


with Sandbox.create(template="agent", ttl_seconds=900, memory="4G") as sandbox:
    for name in ("model.py", "scripts.py"):
        sandbox.filesystem.upload(HERE / name, f"/workspace/{name}")
    model = sandbox.start("python3 model.py 8080", cwd="/workspace", label="model")
    with model.stream() as said:
        next(said)  # it says when it listens

    with sandbox.exec_stream(COMMAND, user="agent", env=ENVIRONMENT, timeout_seconds=300) as stream:
        for line in lines(stream):
            event = json.loads(line)
            for block in event.get("message", {}).get("content", ()):
                if block["type"] == "tool_use":
                    print(f"> {block['name']}: {block['input']['command'].splitlines()[0]}", flush=True)
            if event["type"] == "result":
                print(event["result"])
    print("exit code", stream.exit_code)
