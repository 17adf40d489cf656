"""Second architecture: the whole agent moves in. Its files and its key go into the sandbox, it runs there, and what it
prints arrives while it runs: it asks before it acts, and gets its answer from here.

A sandbox has no network, so the scripted model moves in as well, as one more process. Where a sandbox may reach the
real one, leave out that process and ANTHROPIC_BASE_URL.
"""

import pathlib

from husk import Sandbox

HERE = pathlib.Path(__file__).parent
AGENT = """
import subprocess
import agent

TOOL = {"name": "run_shell", "description": "Run a shell command.", "input_schema": {
    "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}

def answer(response):
    results = []
    for block in response.content:
        if block.type == "tool_use":
            done = subprocess.run(block.input["command"], shell=True, text=True, capture_output=True)
            results.append({"type": "tool_result", "tool_use_id": block.id, "content": done.stdout + done.stderr})
    return {"role": "user", "content": results}

def show(line):
    print(line, flush=True)

print("may I begin?", flush=True)
assert input() == "yes"
show(agent.run("Write and run a script for the first 50 prime numbers.", [TOOL], answer, show))
"""

with Sandbox.create(ttl_seconds=900, memory="1G") as sandbox:
    for name in ("agent.py", "model.py", "scripts.py"):
        sandbox.filesystem.upload(HERE / name, f"/workspace/{name}")
    sandbox.filesystem.write("/workspace/main.py", AGENT)
    model = sandbox.start("python3 model.py 8080", cwd="/workspace", label="model")
    with model.stream() as said:
        next(said)  # it says when it listens

    process = sandbox.start(
        "python3 main.py",
        cwd="/workspace",
        env={"ANTHROPIC_API_KEY": "sk-it-lives-in-the-box", "ANTHROPIC_BASE_URL": "http://127.0.0.1:8080"},
        stdin=True,
    )
    with process.stream() as stream:
        for piece in stream:
            print(piece.text, end="", flush=True)
            if "may I begin?" in piece.text:
                process.write("yes\n")
    print("exit code", stream.exit_code)
