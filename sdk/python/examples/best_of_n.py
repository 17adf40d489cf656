"""Best of N: set up once, fork, try another strategy in each copy, keep the one that passes."""

from husk import Sandbox

STRATEGIES = {
    "quote the value": "sed -i 's/value=$1/value=\"$1\"/' greet.sh",
    "drop the check": "sed -i 's/^test .*$/true/' greet.sh",
    "rewrite it": 'printf \'#!/bin/sh\\nprintf "hello %%s\\\\n" "$*"\\n\' > greet.sh',
}

base = Sandbox.create(template="base", ttl_seconds=600)
branches = []
winner = None
try:
    base.filesystem.write("/workspace/greet.sh", "#!/bin/sh\nvalue=$1\ntest -n $value\necho hello $2\n", mode=0o755)
    base.filesystem.write("/workspace/check.sh", 'test "$(./greet.sh big world)" = "hello big world"\n')

    # One pause of the parent, three children that share its memory until they differ.
    branches = list(zip(STRATEGIES.items(), base.fork(len(STRATEGIES))))
    for (plan, patch), child in branches:
        child.exec(patch, cwd="/workspace", timeout_seconds=60, check=True)
        passed = child.exec("sh check.sh", cwd="/workspace", timeout_seconds=60).exit_code == 0
        print(f"{plan}: {'pass' if passed else 'fail'}")
        if passed and winner is None:
            winner = child
finally:
    for _, child in branches:
        if child is not winner:
            child.kill()
    base.kill()

if winner:
    with winner:  # the agent would go on here
        print("kept", winner.id)
        print(winner.filesystem.read_text("/workspace/greet.sh"))
