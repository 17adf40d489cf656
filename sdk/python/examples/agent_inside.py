"""The whole program runs in the sandbox; its output is shown while it runs, and its report is fetched at the end."""

from husk import Sandbox

SCRIPT = """
import sys, time
found, n = [], 2
while len(found) < 50:
    if all(n % p for p in found):
        found.append(n)
        if len(found) % 10 == 0:
            print(f"prime number {len(found)} is {n}", flush=True)
            time.sleep(0.1)
    n += 1
open("/workspace/report.md", "w").write("# The first 50 primes\\n\\n" + ", ".join(map(str, found)) + "\\n")
"""

with Sandbox.create(template="base", ttl_seconds=900, memory="1G", env={"MODE": "demo"}) as sandbox:
    sandbox.filesystem.write("/workspace/agent.py", SCRIPT)
    result = sandbox.exec(
        "python3 /workspace/agent.py",
        timeout_seconds=300,
        on_stdout=lambda text: print(text, end="", flush=True),
        check=True,
    )
    print(sandbox.filesystem.read_text("/workspace/report.md"))
