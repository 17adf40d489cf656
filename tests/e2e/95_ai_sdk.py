#!/usr/bin/env python3
"""Vercel's AI SDK (`ai` of npm at a pinned version) with a sandbox from our TypeScript SDK (`@husk/sdk/ai`), against a real server:
tests/compat/ai/suite.mjs prints a line for each thing it tries. Our shape is compared with the package's types by the compiler."""
# timeout: 900

import json
import pathlib
import subprocess

from lib import npm
from lib.harness import TOP, Skip, assert_equal, assert_no_leaks, environment, main, scratch, test
from lib.http import server, token

PROGRAM = """
import type { Experimental_SandboxSession } from "ai";
import { Sandbox } from "@husk/sdk";
import { sandboxSession, type SandboxSession } from "@husk/sdk/ai";

const ours: SandboxSession = await sandboxSession(await Sandbox.create(), { workingDirectory: "/work", user: "user" });
export const session: Experimental_SandboxSession = ours;
const process = await ours.spawn({ command: "cat", stdin: true });
export const input: WritableStream<Uint8Array> = process.stdin;
"""
OPTIONS = {"module": "nodenext", "target": "es2022", "lib": ["es2022", "esnext.disposable"], "types": ["node"], "strict": True, "skipLibCheck": True, "noEmit": True}


def run(*command, cwd, env=None, timeout=300):
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment(env), capture_output=True, timeout=timeout, check=False, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))} -> {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def installed():
    """The folder of the suite, with the package and our SDK, compiled, beside it."""
    try:
        place, node = npm.with_sdk("ai"), npm.node()
    except (AssertionError, subprocess.TimeoutExpired) as error:
        raise Skip(f"npm cannot be reached: {str(error)[-200:]}") from error
    return place, node


@test
def every_function_of_the_sandbox_and_an_agent_that_uses_it():
    place, node = installed()
    with server() as huskd, token("ai-sdk") as secret:
        settings = {"HUSK_URL": f"http://127.0.0.1:{huskd.port}", "HUSK_TOKEN": secret}
        done = subprocess.run([node, "suite.mjs"], cwd=place, env=environment(settings), capture_output=True, timeout=600, check=False, text=True)
    print("".join(f"# {line}\n" for line in done.stdout.splitlines()), end="")
    wrong = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
    assert done.returncode == 0 and done.stdout and not wrong, f"{wrong} {done.stderr[-2000:]}"


@test
def our_shape_is_the_packages():
    place, node = installed()
    with scratch() as where:
        (where / "node_modules").symlink_to(place / "node_modules")
        (where / "package.json").write_text('{"type": "module"}')
        compiler = place / "node_modules/@husk/sdk/node_modules"
        options = {**OPTIONS, "typeRoots": [str(compiler / "@types")]}
        (where / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": ["program.ts"]}))
        (where / "program.ts").write_text(PROGRAM)
        run(node, compiler / "typescript/bin/tsc", cwd=where)


@test
def those_who_do_not_use_it_load_nothing_of_it():
    sdk = installed()[0] / "node_modules/@husk/sdk"
    package = json.loads((sdk / "package.json").read_text(encoding="utf-8"))
    assert_equal([key for key in ("dependencies", "peerDependencies") if package.get(key)], [])
    for file in pathlib.Path(sdk / "dist").glob("*.js"):
        text = file.read_text(encoding="utf-8")
        assert '"./ai.js"' not in text and 'from "ai"' not in text, f"{file.name} loads it"


@test
def nothing_is_left_behind():
    assert_no_leaks()


if __name__ == "__main__":
    main("base")
