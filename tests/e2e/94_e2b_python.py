#!/usr/bin/env python3
"""E2B's clients for Python, unmodified from PyPI at pinned versions, against a real server: tests/compat/e2b/python prints a line
per method, with the blocking and the asyncio classes of each version. When all have run, the second table of
docs/compat.md is written from what they found (HUSK_COMPAT_WRITE=1), or compared with it."""
# timeout: 1500

import json
import os
import subprocess

from lib import compat, pypi
from lib.harness import HOME, TOP, Skip, assert_no_leaks, environment, husk, main, test
from lib.http import server

PLACE = TOP / "tests/compat/e2b/python"
BEGIN, END = "<!-- table: written by tests/e2e/94_e2b_python.py -->", "<!-- end of table of Python -->"
VERSIONS = ("2.31.0", "2.63.0")
COLUMNS = [(version, mode) for version in VERSIONS for mode in ("sync", "async")]
_results = {}


def interpreter(version):
    try:
        return str(pypi.environment((f"e2b=={version}",), "e2b") / "bin/python")
    except (AssertionError, subprocess.TimeoutExpired) as error:
        raise Skip(f"PyPI cannot be reached: {str(error)[-200:]}") from error


def start(huskd, key, version, mode):
    url = f"http://127.0.0.1:{huskd.port}"
    label = f"{version}-{mode}"
    env = {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_VOLUME_API_URL": url, "E2B_API_KEY": key, "E2B_DOMAIN": None, "E2B_DEBUG": None}
    env.update(HUSK_COMPAT_MODE=mode, HUSK_COMPAT_LABEL=label, HUSK_COMPAT_RESULTS=os.path.join(HOME, f"python-{label}.json"))
    env.update(PYTHONDONTWRITEBYTECODE="1")
    command = [interpreter(version), "suite.py"]
    return subprocess.Popen(command, cwd=PLACE, env=environment(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run_version(version):
    """Both kinds of classes at once: most of it is waiting."""
    interpreter(version)
    with server() as huskd:
        keys, running = [], {}
        try:
            for mode in ("sync", "async"):
                keys.append(f"python-{mode}")  # of a tenant each: neither lists the sandboxes of the other
                key = husk("token", "create", keys[-1], "--tenant", keys[-1], "--e2b", "--json").json()["token"]
                running[mode] = start(huskd, key, version, mode)
            said = {mode: process.communicate(timeout=900)[0] for mode, process in running.items()}
        finally:
            for process in running.values():
                process.kill()
            husk("token", "rm", *keys, code=None)
    for mode, text in said.items():
        print(text, end="")
        path = os.path.join(HOME, f"python-{version}-{mode}.json")
        assert os.path.exists(path), f"it did not get to its end: {text[-2000:]}"
        with open(path, encoding="utf-8") as file:
            _results[(version, mode)] = json.load(file)
        os.unlink(path)
    failed = [mode for mode, process in running.items() if process.returncode != 0]
    assert not failed, f"failed with {version}: {failed}"


@test
def the_oldest_client():
    run_version(VERSIONS[0])


@test
def the_newest_client():
    run_version(VERSIONS[1])


@test
def the_table_in_the_documentation_is_what_was_seen():
    if len(_results) != len(COLUMNS):
        raise Skip("not every version was run")
    headings = [(column, "e2b {} {}".format(*column)) for column in COLUMNS]
    compat.compare({(BEGIN, END): compat.table(_results, headings)}, "94_e2b_python.py")


@test
def nothing_is_left_behind():
    assert_no_leaks()


if __name__ == "__main__":
    main("base")
