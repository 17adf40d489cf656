#!/usr/bin/env python3
"""The TypeScript SDK, built with the pinned compiler from npm and run against a real server: sdk/typescript/test/sdk.ts
prints a line per test. The example of the documentation is run as it stands there."""
# timeout: 900

import json
import os
import pathlib
import re
import shutil
import subprocess

from lib.harness import BUILD, TOP, environment, main, scratch, test
from lib.http import server, token

SOURCE = TOP / "sdk/typescript"
BUILT = BUILD / "sdk-typescript"


README = re.search(r"```ts\n(.*?)```", (TOP / "README.md").read_text(encoding="utf-8"), re.S).group(1)

# Every kind of thing whose type could come from Node's types, or from a browser's.
PROGRAM = """
import { Sandbox, toolbox } from "@husk/sdk";

await using sandbox = await Sandbox.create({ ttlSeconds: 900, egress: { allow: ["api.example.com"] } });
const { stdout, denied } = await sandbox.exec("uname -sr");
for await (const event of sandbox.execStream("ls")) if (event.type === "stdout") String(event.bytes.length);
const bytes: Uint8Array = await sandbox.filesystem.read("/etc/hostname");
const images: Uint8Array[] = (await sandbox.runCode("1")).images;
const terminal = await sandbox.pty({ rows: 24, columns: 80 });
export { bytes, denied, images, stdout, terminal };
export const tools = toolbox(sandbox).anthropic;
"""


def run(*command, cwd=BUILT, env=None, timeout=180):
    done = subprocess.run(command, cwd=cwd, env=environment(env), capture_output=True, timeout=timeout, check=False, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))} -> {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def built():
    """The package compiled beside our build, so that the source tree stays clean."""
    if BUILT.exists():
        shutil.rmtree(BUILT)
    skip = shutil.ignore_patterns("node_modules", "dist", "dist-test")
    shutil.copytree(SOURCE, BUILT, ignore=skip)
    (BUILT / "test/readme.ts").write_text(README)
    run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
    run("npx", "--no-install", "tsc")
    run("npx", "--no-install", "tsc", "-p", "tsconfig.test.json")
    return BUILT


@test
def the_sdk_against_a_real_server():
    where = built()
    with server() as huskd, token("typescript") as secret:
        env = {"HUSK_URL": f"http://127.0.0.1:{huskd.port}", "HUSK_TOKEN": secret, "HUSK_PROGRAM": str(BUILD / "husk")}
        done = subprocess.run(
            ["node", "dist-test/sdk.js"], cwd=where, env=environment(env), capture_output=True, timeout=300, check=False, text=True
        )
        print(done.stdout, end="")
        assert done.returncode == 0, done.stderr[-3000:]


@test
def the_program_of_the_readme():
    with server():
        said = run("node", "dist-test/readme.js", env={"HUSK_URL": None, "HUSK_TOKEN": None})
        assert said.startswith("Linux") and said.endswith("1\n2\n3\n"), said


@test
def the_quick_start_works_over_the_unix_socket():
    with server():
        said = run("node", "examples/quickstart.mjs", env={"HUSK_URL": None, "HUSK_TOKEN": None})
        assert "hello from the sandbox" in said and "hello.py" in said, said


@test
def programs_need_no_types_of_node():
    with scratch() as place:
        (place / "node_modules/@husk").mkdir(parents=True)
        (place / "node_modules/@husk/sdk").symlink_to(BUILT)
        (place / "package.json").write_text('{"type": "module"}')
        options = {"module": "nodenext", "target": "es2022", "lib": ["es2022"], "types": [], "strict": True, "noEmit": True}
        (place / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": ["program.ts"]}))
        (place / "program.ts").write_text(PROGRAM)
        run("node", BUILT / "node_modules/typescript/bin/tsc", cwd=place)


@test
def the_package_holds_what_it_should():
    names = run("npm", "pack", "--dry-run", "--json", "--ignore-scripts")
    for name in ("dist/index.js", "dist/index.d.ts", "README.md", "package.json"):
        assert f'"{name}"' in names, f"{name} is not in the package: {names}"
    lock = pathlib.Path(SOURCE / "package-lock.json").read_text(encoding="utf-8")
    assert "resolved" not in lock, "the lock file names a registry"
    assert os.path.getsize(SOURCE / "package-lock.json") > 0


if __name__ == "__main__":
    main("base")
