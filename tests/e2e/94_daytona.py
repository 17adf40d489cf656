#!/usr/bin/env python3
"""Daytona's own clients, unmodified from PyPI and npm at pinned versions, against a real server: tests/compat/daytona prints
a line per method and version. When all have run, the tables in docs/compat.md are written from what they found
(HUSK_COMPAT_WRITE=1), or compared with it: the document never says what the tests did not see."""
# timeout: 2700

import concurrent.futures
import json
import os
import subprocess

from lib import compat, pypi
from lib.harness import BUILD, BUILD_SECONDS, HOME, TOP, Skip, assert_equal, assert_no_leaks, environment, husk, main, test, until
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


def run_client(huskd, name, command, cwd, env=None, timeout=600):
    given = {"DAYTONA_API_URL": f"http://127.0.0.1:{huskd.port}/daytona", "DAYTONA_API_KEY": key(name)}
    try:
        return subprocess.run(command, cwd=cwd, env=environment({**given, **(env or {})}), capture_output=True, text=True, timeout=timeout, check=False)
    finally:
        husk("token", "rm", name, code=None)


def run_suite(huskd, column, command, cwd, env):
    results = os.path.join(HOME, f"compat-daytona-{column}.json")
    done = run_client(huskd, f"compat-daytona-{column}", command, cwd, {**env, "HUSK_COMPAT_RESULTS": results})
    print(done.stdout, end="")
    assert os.path.exists(results), f"it did not get to its end: {done.stderr[-2000:]} {done.stdout[-500:]}"
    with open(results, encoding="utf-8") as file:
        _results.setdefault(column, []).extend(json.load(file))
    os.unlink(results)
    assert_equal(done.returncode, 0)


def python_suites(needs=None):
    """The blocking client and the one for asyncio."""
    env = {"HUSK_COMPAT_NEEDS": needs} if needs else {}
    return [(mode, [python(), "suite.py"], PYTHON, {"HUSK_COMPAT_MODE": mode, **env}) for mode in ("sync", "async")]


def node_suites(needs=None):
    installed("daytona/node")
    env = {"HUSK_COMPAT_NEEDS": needs} if needs else {}
    versions = (("newest", "@daytonaio/sdk"), ("oldest", "daytona-oldest"))
    return [(label, [node(), "suite.mjs"], NODE, {"HUSK_COMPAT_PACKAGE": package, "HUSK_COMPAT_LABEL": label, **env}) for label, package in versions]


def run_suites(suites):
    """At the same time, each with a token of its own; much of a suite is waiting."""
    with server() as huskd, concurrent.futures.ThreadPoolExecutor() as pool:
        running = [pool.submit(run_suite, huskd, *suite) for suite in suites]
        concurrent.futures.wait(running)
        log = huskd.log()
    for done in running:
        done.result()
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
        done = run_client(huskd, "compat-daytona", [interpreter, "-c", program], HOME)
        assert_equal((done.returncode, done.stdout), (0, "hello from the sandbox\n\n"))
        left = set(husk("ls", "-q").text.split()) - set(before)
        assert not left, f"sandboxes are left: {left}"


@test
def the_clients_for_python():
    run_suites(python_suites())


@test
def the_clients_for_node():
    run_suites(node_suites())


def build_code_interpreter():
    husk("template", "build", "code-interpreter", "--json", timeout=BUILD_SECONDS)


@test
def a_sandbox_without_a_language_server_says_how_to_get_one():
    secret = key("compat-daytona")
    try:
        with server() as huskd:
            made = huskd.call("POST", "/daytona/sandbox", {"snapshot": "base"}, status=200, token=secret).json()
            lsp = f"/daytona/toolbox/{made['id']}/lsp"
            for language, package in (("python", "pip install python-lsp-server"), ("typescript", "npm install -g typescript-language-server")):
                said = huskd.call("POST", f"{lsp}/start", {"languageId": language, "pathToProject": "/tmp"}, status=400, token=secret).json()["message"]
                assert package in said and "code-interpreter" in said, said
            for body, word in (
                ({"languageId": "cobol", "pathToProject": "/tmp"}, "python, typescript and javascript"),
                ({"languageId": "python"}, "pathToProject"),
                ({"languageId": "python", "pathToProject": "/none"}, "/none"),
            ):
                said = huskd.call("POST", f"{lsp}/start", body, status=400, token=secret).json()["message"]
                assert word in said, said
            huskd.call("DELETE", f"/daytona/sandbox/{made['id']}", status=200, token=secret)
    finally:
        husk("token", "rm", "compat-daytona")


HOSTILE = """import json, sys, time
def frame(document):
    text = json.dumps(document)
    sys.stdout.write(f"Content-Length: {len(text)}\\r\\n\\r\\n{text}")
    sys.stdout.flush()
def ask():
    size = 0
    while (line := sys.stdin.buffer.readline()) not in (b"\\r\\n", b""):
        size = int(line.split(b":")[1])
    return json.loads(sys.stdin.buffer.read(size)) if size else sys.exit()
while True:
    message = ask()
    method = message.get("method")
    if method == "initialize":
        frame({"jsonrpc": "2.0", "id": 7, "method": "client/registerCapability", "params": {}})
        refused = ask()
        frame({"jsonrpc": "2.0", "id": message["id"], "result": refused})
    elif method == "textDocument/completion":
        sys.stdout.write("noise Content-Length: 5\\n[[[Content-Length: 9\\r\\n\\r\\n" + "[" * 9 + "Content-Length: 200000\\r\\n\\r\\n" + "[" * 200000)
        frame({"jsonrpc": "2.0", "id": "another", "result": [{"label": "not asked for"}]})
        frame({"jsonrpc": "2.0", "id": message["id"], "result": {"isIncomplete": 7, "items": [7, {}, {"label": 1}, {"label": "x", "kind": "y", "documentation": "d", "extra": 1}]}})
    elif method == "textDocument/documentSymbol":
        sys.stdout.write("Content-Length: 999999999\\r\\n\\r\\n")
        sys.stdout.flush()
    elif method == "workspace/symbol":
        print("it breaks", file=sys.stderr, flush=True)
        sys.exit(3)
"""


@test
def a_hostile_language_server_is_held_to_the_protocol():
    secret = key("compat-daytona")
    try:
        with server() as huskd:
            made = huskd.call("POST", "/daytona/sandbox", {"snapshot": "base"}, status=200, token=secret).json()
            toolbox = f"/daytona/toolbox/{made['id']}"
            script = f"mkdir -p .local/bin; cat >.local/bin/pylsp <<'END'\n#!/usr/bin/python3\n{HOSTILE}END\nchmod +x .local/bin/pylsp"
            huskd.call("POST", f"{toolbox}/process/execute", {"command": script}, status=200, token=secret)
            body = {"languageId": "python", "pathToProject": "/tmp", "uri": "file:///tmp/a.py", "position": {"line": 0, "character": 0}}
            query = "languageId=python&pathToProject=/tmp&uri=file:///tmp/a.py&query=x"
            huskd.call("POST", f"{toolbox}/lsp/start", body, status=200, token=secret)
            for _ in range(2):
                answer = huskd.call("POST", f"{toolbox}/lsp/completions", body, status=200, token=secret).json()
                assert_equal(answer, {"isIncomplete": False, "items": [{"label": "x", "documentation": {"kind": "plaintext", "value": "d"}}]})
            said = huskd.call("GET", f"{toolbox}/lsp/document-symbols?{query}", status=400, token=secret).json()["message"]
            assert "larger than 4 MiB" in said, said
            answer = huskd.call("GET", f"{toolbox}/lsp/workspacesymbols?{query}", status=400, token=secret).json()
            assert_equal(answer["code"], "LSP_SERVER_NOT_INITIALIZED")
            assert "exit code 3: it breaks" in answer["message"], answer
            huskd.call("DELETE", f"/daytona/sandbox/{made['id']}", status=200, token=secret)
    finally:
        husk("token", "rm", "compat-daytona")


@test
def language_servers():
    build_code_interpreter()
    run_suites(python_suites("code") + node_suites("code"))


@test
def computer_use():
    husk("template", "build", "desktop", "--json", timeout=BUILD_SECONDS)
    run_suites(python_suites("desktop"))
    run_suites(node_suites("desktop"))


@test
def a_language_server_outlives_the_server_sleep_and_a_fork():
    build_code_interpreter()
    secret = key("compat-daytona")
    body = {"languageId": "python", "pathToProject": "/home/daytona"}
    query = "languageId=python&pathToProject=/home/daytona&uri=file:///home/daytona/a.py"
    try:
        with server() as huskd:
            made = huskd.call("POST", "/daytona/sandbox", {}, status=200, token=secret).json()
            box, toolbox = f"/daytona/sandbox/{made['id']}", f"/daytona/toolbox/{made['id']}"
            huskd.call("POST", f"{toolbox}/process/execute", {"command": "echo 'def kept(): pass' >a.py"}, status=200, token=secret)
            huskd.call("POST", f"{toolbox}/lsp/start", body, status=200, token=secret)
            huskd.kill()
        with server() as huskd:
            child = huskd.call("POST", f"{box}/fork", {}, status=200, token=secret).json()["id"]
            huskd.call("POST", f"{box}/stop", status=200, token=secret)
            huskd.call("POST", f"{box}/start", status=200, token=secret)
            for place in (toolbox, f"/daytona/toolbox/{child}"):
                symbols = huskd.call("GET", f"{place}/lsp/document-symbols?{query}", status=200, token=secret).json()
                assert_equal([symbol["name"] for symbol in symbols], ["kept"])
                huskd.call("POST", f"{place}/lsp/stop", body, status=200, token=secret)
            for name in (made["id"], child):
                huskd.call("DELETE", f"/daytona/sandbox/{name}", status=200, token=secret)
    finally:
        husk("token", "rm", "compat-daytona")


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
                ("POST", "/daytona/toolbox/sb-aaaaaaaaaa/computeruse/start", None, 404, secret),
                ("GET", "/daytona/toolbox/sb-aaaaaaaaaa/computeruse/a11y/tree", None, 501, secret),
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
