"""A sandbox, a command, a file, some code. The sandbox is gone when the block ends."""

from husk import Sandbox

with Sandbox.create(template="base", ttl_seconds=300) as sandbox:
    result = sandbox.exec("echo hello from the sandbox; uname -r", timeout_seconds=60)
    print(result.stdout, f"(exit code {result.exit_code}, {result.duration_ms} ms)")

    sandbox.filesystem.write("/workspace/numbers.txt", "\n".join(str(n) for n in range(10)))
    answer = sandbox.run_code("sum(int(line) for line in open('/workspace/numbers.txt'))")
    print("the sum is", answer.text)
