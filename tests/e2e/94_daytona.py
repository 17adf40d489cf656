#!/usr/bin/env python3
"""Daytona's own clients, unmodified from PyPI and npm at pinned versions, against a real server: tests/compat/daytona prints
a line per method and version. When all have run, the tables in docs/compat.md are written from what they found
(HUSK_COMPAT_WRITE=1), or compared with it: the document never says what the tests did not see."""
# timeout: 1500

import json
import os
import subprocess

from lib import compat, pypi
from lib.harness import BUILD, HOME, TOP, Skip, assert_equal, assert_no_leaks, environment, husk, main, test, until
from lib.http import server
from lib.npm import installed, node

PACKAGES = ("daytona==0.226.1",)
PYTHON = TOP / "tests/compat/daytona/python"
NODE = BUILD / "compat/daytona-node"
_results = {}


def python(packages=PACKAGES):
    try:
        return pypi.python(packages, "daytona")
    except AssertionError as error:
        raise Skip(f"PyPI cannot be reached: {error}") from error


def key(name, *options):
    return husk("token", "create", name, *options, "--json").json()["token"]


def run_client(huskd, command, cwd, env=None, timeout=600):
    given = {"DAYTONA_API_URL": f"http://127.0.0.1:{huskd.port}/daytona", "DAYTONA_API_KEY": key("compat-daytona")}
    try:
        return subprocess.run(command, cwd=cwd, env=environment({**given, **(env or {})}), capture_output=True, text=True, timeout=timeout, check=False)
    finally:
        husk("token", "rm", "compat-daytona", code=None)


def run_suite(column, command, cwd, env):
    results = os.path.join(HOME, f"compat-daytona-{column}.json")
    with server() as huskd:
        done = run_client(huskd, command, cwd, {**env, "HUSK_COMPAT_RESULTS": results})
        print(done.stdout, end="")
        log = huskd.log()
    assert os.path.exists(results), f"it did not get to its end: {done.stderr[-2000:]} {done.stdout[-500:]}"
    with open(results, encoding="utf-8") as file:
        _results[column] = json.load(file)
    os.unlink(results)
    assert_equal(done.returncode, 0)
    for word in ("the-secret-value", "DAYTONA_API_KEY", "some input"):
        assert word not in log, f"the log has {word!r}"


@test
def the_lines_of_the_seeds_run_word_for_word():
    program = (
        "from daytona import Daytona\ndaytona = Daytona()\nsandbox = daytona.create()\n"
        'response = sandbox.process.exec("echo hello from the sandbox")\nprint(response.result)\n'
        'sandbox.fs.upload_file(b"data", "/home/daytona/data.txt")\nsandbox.delete()\n'
    )
    interpreter = python()
    with server() as huskd:
        before = husk("ls", "-q").text.split()
        done = run_client(huskd, [interpreter, "-c", program], HOME)
        assert_equal((done.returncode, done.stdout), (0, "hello from the sandbox\n\n"))
        left = set(husk("ls", "-q").text.split()) - set(before)
        assert not left, f"sandboxes are left: {left}"


@test
def the_client_for_python():
    run_suite("sync", [python(), "suite.py"], PYTHON, {"HUSK_COMPAT_MODE": "sync"})


@test
def the_client_for_asyncio():
    run_suite("async", [python(), "suite.py"], PYTHON, {"HUSK_COMPAT_MODE": "async"})


@test
def the_newest_client_for_node():
    installed("daytona/node")
    run_suite("newest", [node(), "suite.mjs"], NODE, {"HUSK_COMPAT_PACKAGE": "@daytonaio/sdk", "HUSK_COMPAT_LABEL": "newest"})


@test
def the_oldest_client_for_node():
    installed("daytona/node")
    run_suite("oldest", [node(), "suite.mjs"], NODE, {"HUSK_COMPAT_PACKAGE": "daytona-oldest", "HUSK_COMPAT_LABEL": "oldest"})


TABLES = [
    ("python", [("sync", "daytona 0.226.1"), ("async", "daytona 0.226.1, asyncio")]),
    ("node", [("newest", "@daytonaio/sdk 0.218.0"), ("oldest", "@daytonaio/sdk 0.143.0")]),
]


@test
def the_tables_in_the_documentation_are_what_was_seen():
    if not all(column in _results for _, columns in TABLES for column, _ in columns):
        raise Skip("not every client was run")
    compat.compare(
        {
            (f"<!-- daytona {name}: written by tests/e2e/94_daytona.py -->", "<!-- end of table -->"): compat.table(_results, columns)
            for name, columns in TABLES
        },
        "94_daytona.py",
    )


@test
def errors_have_the_shape_and_status_of_theirs():
    with server() as huskd:
        secret = key("compat-daytona")
        try:
            for method, path, body, status, token in (
                ("GET", "/daytona/sandbox/sb-aaaaaaaaaa", None, 404, secret),
                ("GET", "/daytona/sandbox/sb-aaaaaaaaaa", None, 401, "wrong"),
                ("POST", "/daytona/sandbox", {"autoStopInterval": -1}, 400, secret),
                ("POST", "/daytona/sandbox", {"labels": {"a": 1}}, 400, secret),
                ("POST", "/daytona/sandbox", {"snapshot": "none"}, 404, secret),
                ("POST", "/daytona/sandbox", {"gpu": 1}, 501, secret),
                ("POST", "/daytona/sandbox", b"{", 400, secret),
                ("GET", "/daytona/sandbox?limit=0", None, 400, secret),
                ("GET", "/daytona/no/such/path", None, 404, secret),
                ("GET", "/daytona/object-storage/push-access", None, 501, secret),
                ("GET", "/daytona/toolbox/sb-aaaaaaaaaa/files/info?path=x", None, 404, secret),
                ("POST", "/daytona/toolbox/sb-aaaaaaaaaa/computeruse/start", None, 501, secret),
            ):
                answer = huskd.call(method, path, body, status=status, token=token).json()
                assert_equal(answer["statusCode"], status)
                assert_equal(sorted(answer.keys() & {"message", "path", "timestamp", "method", "error"}), ["error", "message", "method", "path", "timestamp"])
        finally:
            husk("token", "rm", "compat-daytona")


@test
def what_a_sandbox_was_asked_to_be_outlives_the_server():
    secret = key("compat-daytona")
    try:
        with server() as huskd:
            made = huskd.call("POST", "/daytona/sandbox", {"autoStopInterval": 11, "labels": {"a": "b"}, "public": True}, status=200, token=secret).json()
            box = f"/daytona/toolbox/{made['id']}/process"
            huskd.call("POST", f"{box}/session", {"sessionId": "s"}, status=201, token=secret)
            huskd.call("POST", f"{box}/session/s/exec", {"command": "cd /tmp; X=kept"}, status=200, token=secret)
            huskd.kill()
        with server() as huskd:
            found = huskd.call("GET", f"/daytona/sandbox/{made['id']}", status=200, token=secret).json()
            assert_equal([found[name] for name in ("autoStopInterval", "labels", "public", "state")], [11, {"a": "b"}, True, "started"])
            answer = huskd.call("POST", f"{box}/session/s/exec", {"command": "echo $X $(pwd)"}, status=200, token=secret).json()
            assert_equal(answer["stdout"], "kept /tmp\n")
            huskd.call("DELETE", f"/daytona/sandbox/{made['id']}", status=200, token=secret)
    finally:
        husk("token", "rm", "compat-daytona")


@test
def intervals_are_husks_own_and_one_that_sleeps_is_deleted():
    secret = key("compat-daytona")
    try:
        with server() as huskd:
            made = huskd.call("POST", "/daytona/sandbox", {"autoStopInterval": 7}, status=200, token=secret).json()
            assert_equal(husk("inspect", made["id"], "--json").json()["idle_seconds"], 420)
            huskd.call("POST", f"/daytona/sandbox/{made['id']}/autostop/3", status=200, token=secret)
            assert_equal(husk("inspect", made["id"], "--json").json()["idle_seconds"], 180)
            huskd.call("POST", f"/daytona/sandbox/{made['id']}/autodelete/0", status=200, token=secret)
            husk("hibernate", made["id"])  # as its idle time would
            until(lambda: husk("inspect", made["id"], "--json").json()["state"] == "ended", "it is deleted", seconds=90)
    finally:
        husk("token", "rm", "compat-daytona")


@test
def nothing_is_left():
    husk("rm", "--all", code=None)
    assert_no_leaks()


if __name__ == "__main__":
    main("base")
