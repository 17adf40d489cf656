"""A command that a model wrote, run with nothing to reach and nothing to steal: no network, none of this program's
credentials, hard limits. What is denied fails at once and in words, so that an agent can read it and go on.
"""

import os

from husk import Sandbox

os.environ["AWS_SECRET_ACCESS_KEY"] = "do-not-leak"  # ours; the sandbox gets only what it is given by name

COMMANDS = {
    "work": "python3 -c 'import statistics; print(statistics.mean([2, 4, 6, 8]))'",
    "the internet": "curl -sS --max-time 20 http://192.0.2.1/",
    "a name": "python3 -c 'import socket; socket.getaddrinfo(\"example.com\", 80)'",
    "cloud metadata": "curl -sS --max-time 20 http://169.254.169.254/latest/meta-data/",
    "our environment": "printenv AWS_SECRET_ACCESS_KEY",
    "our files": f"cat {os.path.abspath(__file__)}",
    "too much memory": "python3 -c 'data = bytearray(4 << 30)'",
    "too many processes": "for i in $(seq 500); do sleep 9 & done 2>&1; echo started them all",
    "no end": "while :; do :; done",
}

for what, command in COMMANDS.items():
    # One sandbox per task: whatever a command does, the next one does not meet it.
    with Sandbox.create(
        template="code-interpreter", ttl_seconds=300, memory="512M", pids=200, metadata={"task": "agent-tool-call"}
    ) as sandbox:
        result = sandbox.exec(command, timeout_seconds=5)
        said = (result.stdout + result.stderr).strip().splitlines()
        end = " out of memory" * result.out_of_memory + " timed out" * result.timed_out
        print(f"{what}: exit {result.exit_code}{end}: {said[-1] if said else ''}")
