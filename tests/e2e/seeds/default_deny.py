"""Commands that a model wrote, each in a sandbox with nothing to reach and nothing to steal: no network, none of this
program's credentials, hard limits. What is denied fails at once and in words, so that an agent can read it and go on.
"""

import os

from husk import Sandbox

os.environ["AWS_SECRET_ACCESS_KEY"] = "do-not-leak"  # ours; a sandbox gets only what it is given by name


def run(what, command, template="base"):
    metadata = {"task": "agent-tool-call"}
    with Sandbox.create(template=template, ttl_seconds=300, memory="512M", pids=64, metadata=metadata) as sandbox:
        result = sandbox.exec(command, timeout_seconds=10)
    said = (result.stdout + result.stderr).strip().splitlines()
    end = ", out of memory" * result.out_of_memory + ", timed out" * result.timed_out
    print(f"{what}: exit {result.exit_code}{end}: {said[-1] if said else '-'}")


run("work", "python3 -c 'import statistics; print(statistics.mean([2, 4, 6, 8]))'", template="code-interpreter")
run("the internet", "curl -sS --max-time 9 http://192.0.2.1/")
run("a name", "python3 -c 'import socket; socket.getaddrinfo(\"example.com\", 80)'")
run("cloud metadata", "curl -sS --max-time 9 http://169.254.169.254/latest/meta-data/")
run("our environment", "printenv AWS_SECRET_ACCESS_KEY")
run("our files", f"cat {os.path.abspath(__file__)}")
run("much memory", "python3 -c 'data = bytearray(4 << 30)'")
run("many processes", "for i in $(seq 200); do sleep 60 >/dev/null 2>&1 & done; echo started them all")
run("no end", "while :; do :; done")
