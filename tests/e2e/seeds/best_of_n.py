"""Best of N: set up once, fork at the moment of choice, try another strategy in each copy, keep the one that passes.
The copies start from the very same machine and never see each other, so one of them may well wreck its own. The winner's
changes are shown, the notes of the others are merged into it, and it takes the place of the machine that they came from.
"""

from concurrent.futures import ThreadPoolExecutor

from husk import Sandbox

PROJECT = {
    "package.json": '{"name": "shop", "version": "1.0.0", "scripts": {"test": "node test.js"}}\n',
    "price.js": "exports.parse = (text) => parseInt(text);\n",
    "test.js": (
        'const assert = require("assert");\nconst { parse } = require("./price");\n'
        'assert.strictEqual(parse("4.50"), 4.5);\nassert.throws(() => parse("free"));\n'
    ),
}

COMMIT = "git init -q && git add . && git -c user.name=agent -c user.email=agent@localhost commit -qm start"

STRATEGIES = {
    "parse the fraction": "sed -i s/parseInt/parseFloat/ price.js",
    "relax the test": "rm -rf node_modules price.js && echo '// nothing to see here' >price.js",
    "parse and validate": (
        "printf 'exports.parse = (text) => {\\n  const price = Number(text);\\n"
        '  if (Number.isNaN(price)) throw new Error("no price: " + text);\\n  return price;\\n};\\n\' >price.js'
    ),
}


def attempt(branch):
    (plan, patch), sandbox = branch
    sandbox.filesystem.write("/workspace/plan.txt", plan)
    sandbox.filesystem.write(f"/workspace/notes/{plan}.txt", f"tried to {plan}\n")
    sandbox.exec(patch, cwd="/workspace/shop", timeout_seconds=60, check=True)
    return sandbox.exec("npm test", cwd="/workspace/shop", timeout_seconds=180).exit_code == 0


base = Sandbox.create(template="agent", ttl_seconds=900)
branches, winner = [], None
try:
    for name, text in PROJECT.items():
        base.filesystem.write(f"/workspace/shop/{name}", text)
    base.exec(COMMIT, cwd="/workspace/shop", timeout_seconds=60, check=True)

    branches = list(zip(STRATEGIES.items(), base.fork(len(STRATEGIES), ttl_seconds=600)))
    with ThreadPoolExecutor() as pool:
        for ((plan, _), sandbox), passed in zip(branches, pool.map(attempt, branches)):
            print(f"{plan}: {'PASS' if passed else 'fail'}")
            winner = sandbox if passed else winner
    if winner:
        for change in winner.diff(path="/workspace/shop"):  # since the fork
            print(change.change, change.path)
        for _, sandbox in branches:
            if sandbox is not winner:
                winner.merge(sandbox, path="/workspace/notes")
        winner.promote()  # the base goes on as the winner, and the branches end
        branches = []
        print("kept:", base.filesystem.read_text("/workspace/plan.txt"))
        print("notes:", len(base.filesystem.list("/workspace/notes")))
        print(base.exec("git diff --stat", cwd="/workspace/shop").stdout, end="")
finally:
    for _, sandbox in branches:
        sandbox.kill()
    base.kill()
