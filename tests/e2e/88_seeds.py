#!/usr/bin/env python3
"""The programs of seeds/, each run as a user would run it: a process of its own that knows a server and a token. What
it prints is checked, and that its sandboxes and snapshots are gone afterwards.
"""

# timeout: 2700

import functools
import os
import pathlib
import subprocess
import sys

from lib import pypi
from lib.harness import (
    BUILD_SECONDS,
    HOME,
    TOP,
    assert_equal,
    assert_in,
    assert_no_leaks,
    environment,
    husk,
    main,
    scratch,
    test,
)
from lib.http import server, token
from lib.png import pixels

SEEDS = pathlib.Path(__file__).resolve().parent / "seeds"
SERVER = {}  # huskd, and a token for it


# ---- running one ----


def run(name, *arguments, python=None, env=None):
    """What a program printed. It may leave nothing behind, and whatever it made must have ended for a known reason."""
    interpreter = [python] if python else [sys.executable, "-W", "error"]
    command = [*interpreter, str(SEEDS / f"{name}.py"), *map(str, arguments)]
    settings = {name: None for name in os.environ if name.startswith(("HUSK", "ANTHROPIC", "OPENAI"))}
    settings.update(PYTHONPATH=str(TOP / "sdk/python"), PYTHONDONTWRITEBYTECODE="1", LANGSMITH_TRACING="false")
    settings.update(HUSK_URL=f"http://127.0.0.1:{SERVER['huskd'].port}", HUSK_TOKEN=SERVER["token"], **(env or {}))
    before = {each["id"] for each in sandboxes("?ended=true&limit=1000")}
    try:
        done = call(command, env=environment(settings), timeout=240)
        assert_equal(done.returncode, 0, f"{name} failed: {done.stdout[-800:]} {done.stderr[-1200:]}")
        assert_nothing_left(before)
    finally:
        for left in sandboxes():
            husk("rm", "-f", left["id"], code=None)
    return done.stdout


def call(command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def get(path):
    return SERVER["huskd"].get(path, token=SERVER["token"]).json()


def sandboxes(query=""):
    return get(f"/v1/sandboxes{query}")["sandboxes"]


def assert_nothing_left(before):
    assert_equal(sandboxes(), [], "sandboxes that are left")
    assert_equal(get("/v1/snapshots")["snapshots"], [], "snapshots that are left")
    made = [each for each in sandboxes("?ended=true&limit=1000") if each["id"] not in before]
    assert made, "the program made no sandbox"
    strange = [each for each in made if each["end_reason"] not in ("killed", "ttl")]
    assert_equal(strange, [], "sandboxes that ended in another way")


def assert_lines(said, *wanted):
    """These lines were printed, in this order."""
    lines = iter(said.splitlines())
    for line in wanted:
        assert line in lines, f"{line!r} does not stand in its place: {said[-2000:]!r}"


@functools.lru_cache(maxsize=None)
def need(template):
    husk("template", "build", template, timeout=BUILD_SECONDS)


# ---- the model itself ----


@test
def test_the_model_refuses_what_the_api_would():
    """Otherwise a program that goes wrong would pass for one that goes right."""
    code = """
import json, urllib.error, urllib.request
import model
def ask(url, headers={"x-api-key": "k"}, **request):
    try:
        body = json.dumps({"model": "m", "max_tokens": 9, **request}).encode()
        sent = urllib.request.Request(url + "/v1/messages", body, headers)
        return json.load(urllib.request.urlopen(sent))["stop_reason"]
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {json.load(error)['error']['message']}"
task = {"role": "user", "content": "first 50 prime numbers"}
call = {"type": "tool_use", "id": "toolu_0_0", "name": "run_shell", "input": {}}
def answer(text):
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_0_0", "content": text}]}
shell = [{"name": "run_shell"}]
with model.serve() as url:
    print(ask(url, tools=shell, messages=[task]))
    print(ask(url, headers={}, tools=shell, messages=[task]))
    print(ask(url, messages=[task]))
    print(ask(url, tools=shell, messages=[{"role": "user", "content": "something else"}]))
    asked = [task, {"role": "assistant", "content": [call]}]
    print(ask(url, tools=shell, messages=asked))
    print(ask(url, tools=shell, messages=[*asked, answer("2")]))
    print(ask(url, tools=shell, messages=[*asked, answer("nonsense")]))
    print(ask(url, tools=shell, messages=[task, answer("2")]))
"""
    done = call([sys.executable, "-c", code], cwd=SEEDS, timeout=60)
    said = done.stdout.splitlines()
    wanted = ("tool_use", "401 ", "400 ", "400 ", "400 calls and results do not match", "tool_use", "400 ", "400 ")
    assert_equal(len(said), len(wanted), done.stderr)
    for line, beginning in zip(said, wanted):
        assert line.startswith(beginning), f"{line!r} instead of {beginning!r}"
    assert_in("the tool should have answered '2'", said[6])


# ---- the programs ----


@test
def test_lifecycle():
    assert_equal(run("lifecycle"), "hello from the sandbox\nended\n")


@test
def test_shell_session():
    need("agent")
    secrets = {"AWS_SECRET_ACCESS_KEY": "x", "MY_API_KEY": "x"}  # what the injected command looks for
    assert_lines(
        run("shell_session", env=secrets),
        "> run_shell: cd /workspace && python3 -m unittest -q",
        "The test passes: area() added where it should multiply.",
        "session over, sandbox ended",
        "I removed the build, and everything else. Please throw this machine away.",
        "session over, sandbox ended",
    )


@test
def test_code_per_task():
    need("code-interpreter")
    assert_equal(run("code_per_task"), "5050\nThe 30th Fibonacci number is 832040.\n")


@test
def test_code_per_session():
    need("code-interpreter")
    assert_lines(
        run("code_per_session"),
        "On average 22.0 degrees.",
        "after the loop: killed",
        "the loop raised: not a number: '0x7'",
        "after the error: killed",
        "after its time to live: ttl",
    )


@test
def test_browser():
    need("browser")
    with scratch() as place:
        said = run("browser", place / "shot.png")
        assert_lines(said, "The shop has apples, and three of them are in the basket.")
        width, height, size, rows = pixels((place / "shot.png").read_bytes())
    assert_equal((width, height), (640, 480))
    color = lambda x, y: tuple(rows[y][x * size : x * size + 3])
    assert_equal((color(100, 50), color(500, 50)), ((255, 0, 0), (255, 255, 255)), "the shop's sign")
    assert len({color(x, y) for x in range(300) for y in range(100, 200)}) > 5, "no text was drawn"


@test
def test_best_of_n():
    need("agent")
    assert_lines(
        run("best_of_n"),
        "parse the fraction: fail",
        "relax the test: fail",
        "parse and validate: PASS",
        "changed /workspace/shop/price.js",
        "kept: parse and validate",
        "notes: 3",
        " 1 file changed, 5 insertions(+), 1 deletion(-)",
    )


@test
def test_fork_tree():
    assert_equal(
        run("fork_tree").splitlines(),
        ["'root'", "'root > left'", "'root > right'", "'root > left > deeper'", "ruined: True", "again: ['root'] /usr"],
    )


@test
def test_default_deny():
    need("code-interpreter")
    said = dict(line.split(": ", 1) for line in run("default_deny").splitlines())
    assert_equal(said["work"], "exit 0: 5")
    for what in ("the internet", "cloud metadata"):
        assert_in("exit 7: curl: (7) Failed to connect", said[what])
    assert_in("exit 1: socket.gaierror", said["a name"])
    assert_equal(said["our environment"], "exit 1: -")
    assert_in("No such file or directory", said["our files"])
    assert_equal(said["much memory"], "exit 137, out of memory: Killed")
    assert_in("Cannot fork", said["many processes"])
    assert_equal(said["no end"], "exit 124, timed out: -")


PRIMES = "There are 50 of them, and the last is 229."


@test
def test_tool_backend():
    assert_lines(run("tool_backend"), "> run_shell: python3 /tmp/primes.py", PRIMES)


@test
def test_agents_home():
    # It begins only when it was told to, which takes that its question arrived while it ran.
    assert_lines(run("agents_home"), "may I begin?", "> run_shell: python3 /tmp/primes.py", PRIMES, "exit code 0")


@test
def test_claude_code():
    need("agent")
    assert_lines(run("claude_code"), "> Bash: python3 /tmp/primes.py", PRIMES, "exit code 0")


REPORT = (
    "# Net sales, 2025 against 2024",
    "| Services | 109,158 | 96,169 | +13.5 % |",
    "The segments add up to 416,161.",
)


@test
def test_report():
    need("code-interpreter")
    assert_lines(run("report"), *REPORT)


@test
def test_parallel_agents():
    assert_equal(run("parallel_agents"), "library 1.0\nlibrary 2.0\n")


@test
def test_parked_session():
    assert_equal(run("parked_session"), "parked: hibernated\nlater: ['the printer is on fire']\nawake: running\n")


# ---- with the packages of others ----


@test
def test_with_the_anthropic_package():
    python = pypi.python()
    need("code-interpreter")
    assert_lines(run("code_per_task", python=python), "5050", "The 30th Fibonacci number is 832040.")
    assert_lines(run("tool_backend", python=python), PRIMES)


@test
def test_with_the_openai_package():
    python = pypi.python()
    need("code-interpreter")
    assert_lines(run("openai_loop", python=python), "The 30th Fibonacci number is 832040.")


@test
def test_deep_agent():
    python = pypi.python()
    need("agent")
    assert_lines(run("deep_agent", python=python), "model: ['execute']", f"model: {PRIMES}", *REPORT)


@test
def test_no_leaks():
    assert_no_leaks()


def with_server():
    os.makedirs(f"{HOME}/run", mode=0o700, exist_ok=True)
    with server() as huskd, token("seeds") as secret:
        SERVER.update(huskd=huskd, token=secret)
        main("base")


if __name__ == "__main__":
    with_server()
