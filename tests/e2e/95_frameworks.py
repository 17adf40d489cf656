#!/usr/bin/env python3
"""Agent frameworks with pinned packages from PyPI, against a real server: what they call is theirs, or the part of our SDK that they
load. Programs and suites are in tests/compat/frameworks. When all have run, the table in docs/frameworks.md is written from what
they found (HUSK_COMPAT_WRITE=1), or compared with it."""
# timeout: 2400

import concurrent.futures
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as tree

from lib import pypi
from lib.harness import HOME, TOP, Skip, assert_equal, assert_in, assert_no_leaks, environment, husk, main, scratch, test
from lib.http import server

PLACE = TOP / "tests/compat/frameworks"
SEEDS = TOP / "tests/e2e/seeds"
DOCUMENT = TOP / "docs/frameworks.md"
BEGIN, END = "<!-- table: written by tests/e2e/95_frameworks.py -->", "<!-- end of table -->"

DEEPAGENTS = ("deepagents==0.7.32", "langchain-daytona==0.0.9", "daytona==0.226.1", "langchain-tests==1.1.9", "langchain-anthropic==1.7.7")
DEEPAGENTS_0_6 = ("deepagents==0.6.12", "langchain-daytona==0.0.7", "daytona==0.226.1", "langchain-tests==1.1.9")
SMOLAGENTS = ("smolagents==1.26.0", "e2b-code-interpreter==2.11.5", "e2b==2.63.0", "python-dotenv==1.2.4")
INSPECT = ("inspect-ai==0.3.285", "pytest==9.2.0", "pytest-asyncio==1.4.1.post1")
HARBOR = ("harbor[e2b]==0.24.0", "e2b==2.63.0")
OPENAI_AGENTS = ("openai-agents[daytona,e2b]==0.24.0", "daytona==0.226.1")

SUITE = "the standard suite of langchain-tests 1.1.9"
CHANGED = " (the other two ask for what deepagents 0.7 changed)"
ROWS = (
    ("deepagents", "deepagents 0.7.32 with `husk.deepagents`", SUITE + CHANGED),
    ("langchain-daytona", "deepagents 0.7.32 with langchain-daytona 0.0.9", SUITE + CHANGED),
    ("deepagents-0.6", "deepagents 0.6.12 with `husk.deepagents`", "of that suite, glob and write"),
    ("langchain-daytona-0.6", "deepagents 0.6.12 with langchain-daytona 0.0.7", "of that suite, glob and write"),
    ("seed", "deepagents 0.7.32 with langchain-daytona 0.0.9", "an agent with two tasks"),
    ("openai-e2b", "openai-agents 0.24.0, its E2B client", "`tests/compat/frameworks/openai_agents.py`"),
    ("openai-daytona", "openai-agents 0.24.0, its Daytona client", "the same"),
    ("openai-husk", "openai-agents 0.24.0 with `husk.openai_agents`", "the same"),
    ("smolagents", "smolagents 1.26.0, its E2B executor", "a `CodeAgent` with state, a tool and an error"),
    ("harbor", "harbor 0.24.0, its E2B environment", "a task of our own, with its oracle"),
    ("inspect", "inspect-ai 0.3.285, sandbox `husk`", "its own `self_check`, and an eval"),
)
_results = {}
_numbers = itertools.count()


# ---- running one ----


def python(packages, name, minor=9):
    """The interpreter that has the packages; they need Python 3.`minor`."""
    try:
        return pypi.python(packages, name, pypi.python_since(minor))
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        raise Skip(f"Debian's mirror or PyPI cannot be reached: {str(error)[-200:]}") from error


def run(huskd, command, cwd=PLACE, env=None, timeout=900):
    """A program that knows a server and keys, and nothing else of ours but the SDK."""
    url, name = f"http://127.0.0.1:{huskd.port}", f"frameworks-{next(_numbers)}"
    native = husk("token", "create", name, "--json").json()["token"]
    e2b = husk("token", "create", f"{name}-e2b", "--e2b", "--json").json()["token"]
    settings = {each: None for each in os.environ if each.startswith(("HUSK", "ANTHROPIC", "OPENAI", "E2B", "DAYTONA"))}
    settings.update(HUSK_URL=url, HUSK_TOKEN=native, DAYTONA_API_URL=f"{url}/daytona", DAYTONA_API_KEY=native)
    settings.update(E2B_API_URL=url, E2B_SANDBOX_URL=url, E2B_API_KEY=e2b, LANGSMITH_TRACING="false")
    settings.update({"PYTHONPATH": str(TOP / "sdk/python"), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})})
    try:
        return subprocess.run([*map(str, command)], cwd=cwd, env=environment(settings), capture_output=True, text=True, timeout=timeout, check=False)
    finally:
        husk("token", "rm", name, f"{name}-e2b", code=None)


def run_suite(huskd, interpreter, file, *options, env=None):
    """A file of pytest: how many of its tests passed. None may be skipped, and none fail but those that say why they must."""
    with tempfile.TemporaryDirectory(dir=HOME) as place:
        report = os.path.join(place, "report.xml")
        command = [interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "-o", "asyncio_mode=auto", f"--junitxml={report}", file, *options]
        done = run(huskd, command, env=env)
        assert os.path.exists(report), f"it did not get to its end: {done.stdout[-2000:]} {done.stderr[-2000:]}"
        cases = list(tree.parse(report).iter("testcase"))
    expected = [case for case in cases if case.find("skipped") is not None and case.find("skipped").get("type") == "pytest.xfail"]
    wrong = [case.get("name") for case in cases if case not in expected and any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))]
    assert cases and not wrong and done.returncode == 0, f"{len(wrong)} of {len(cases)}: {wrong} {done.stdout[-3000:]}"
    return f"{len(cases) - len(expected)} of {len(cases)}"


def assert_lines(said, *wanted):
    """These lines were printed, in this order."""
    lines = iter(said.splitlines())
    for line in wanted:
        assert line in lines, f"{line!r} does not stand in its place: {said[-2000:]!r}"


# ---- deepagents ----


@test
def deepagents_standard_suite():
    """On our backend and on LangChain's own for Daytona; and with the deepagents that the suite was written for, what has changed since."""
    newest, oldest = python(DEEPAGENTS, "deepagents"), python(DEEPAGENTS_0_6, "deepagents")
    wanted = {
        "deepagents": (newest, "TestHusk"),
        "langchain-daytona": (newest, "TestDaytona"),
        "deepagents-0.6": (oldest, "TestHusk and (glob or write or overrides)"),
        "langchain-daytona-0.6": (oldest, "TestDaytona and (glob or write or overrides)"),
    }
    with server() as huskd, concurrent.futures.ThreadPoolExecutor() as pool:
        running = {row: pool.submit(run_suite, huskd, interpreter, "deepagents_suite.py", "-k", name) for row, (interpreter, name) in wanted.items()}
    for row, done in running.items():
        _results[row] = done.result()


@test
def the_deep_agent_of_the_seeds_on_daytonas_client():
    interpreter = python(DEEPAGENTS, "deepagents")
    with server() as huskd:
        done = run(huskd, [interpreter, SEEDS / "daytona_deep_agent.py"])
    assert_equal(done.returncode, 0, done.stderr[-2000:])
    assert_lines(done.stdout, "model: ['execute']", "model: There are 50 of them, and the last is 229.", "The segments add up to 416,161.")
    _results["seed"] = "yes"


# ---- the OpenAI Agents SDK ----


def run_program(huskd, interpreter, *command):
    """A program that prints a line for each thing it tried: how many were right."""
    done = run(huskd, [interpreter, *command])
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "not ok "))]
    print("".join(f"# {' '.join(map(str, command))}: {line}\n" for line in lines), end="")
    passed = [line for line in lines if line.startswith("ok ")]
    assert done.returncode == 0 and passed and len(passed) == len(lines), f"{done.stdout[-1500:]} {done.stderr[-2000:]}"
    return f"{len(passed)} of {len(lines)}"


@test
def the_openai_agents_sdk():
    """Its own clients for E2B and Daytona, unmodified, and ours."""
    interpreter = python(OPENAI_AGENTS, "openai-agents")
    with server() as huskd, concurrent.futures.ThreadPoolExecutor() as pool:
        running = {name: pool.submit(run_program, huskd, interpreter, "openai_agents.py", name) for name in ("e2b", "daytona", "husk")}
    for name, done in running.items():
        _results[f"openai-{name}"] = done.result()


# ---- smolagents ----


@test
def smolagents():
    interpreter = python(SMOLAGENTS, "smolagents")
    with server() as huskd:
        _results["smolagents"] = run_program(huskd, interpreter, "smolagents_program.py")


# ---- Harbor ----


@test
def harbor():
    """A task (tests/compat/frameworks/harbor_task) in the E2B environment of Harbor, unmodified: a template from a Dockerfile, the
    oracle's solution, the verifier's reward. Harbor needs Python 3.12, which Debian 12 does not have."""
    interpreter = python(HARBOR, "harbor", minor=12)
    with scratch() as place, server() as huskd:
        command = [*pypi.python_since(12), os.path.join(os.path.dirname(interpreter), "harbor"), "run", "-p", PLACE / "harbor_task", "-a", "oracle", "-e", "e2b", "-o", place, "-n", "1", "-y"]
        done = run(huskd, command, env={"HOME": str(place), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HARBOR_TELEMETRY": "0", "DO_NOT_TRACK": "1"})
        said = f"{done.stdout[-2000:]} {done.stderr[-2000:]}"
        trials = [json.loads(path.read_text(encoding="utf-8")) for path in place.glob("*/*/result.json")]
    assert done.returncode == 0 and len(trials) == 1, said
    assert_equal(trials[0]["exception_info"], None, said)
    assert_equal(trials[0]["verifier_result"]["rewards"], {"reward": 1.0}, said)
    _results["harbor"] = "1 of 1"


# ---- Inspect AI ----


@test
def inspect_ai():
    """With our SDK installed as users install it: Inspect finds the provider by its entry point."""
    interpreter = python(INSPECT, "inspect")
    with scratch() as place, server() as huskd:
        shutil.copytree(TOP / "sdk/python", place / "source")
        command = [interpreter, "-m", "pip", "install", "-q", "--no-deps", "--target", place / "installed", place / "source"]
        done = run(huskd, command)
        assert_equal(done.returncode, 0, done.stderr[-1000:])
        _results["inspect"] = run_suite(huskd, interpreter, "inspect_suite.py", env={"PYTHONPATH": str(place / "installed")})


# ---- the document ----


@test
def the_table_in_the_documentation_is_what_was_seen():
    text = DOCUMENT.read_text(encoding="utf-8")
    missing = [row for row, *_ in ROWS if row not in _results]
    if missing:
        raise Skip(f"not everything was run: {', '.join(missing)}")
    table = "\n".join(["| packages | what ran | passed |", "|---|---|---|", *(f"| {what} | {ran} | {_results[row]} |" for row, what, ran in ROWS)])
    assert_in(BEGIN, text)
    fresh = re.sub(re.escape(BEGIN) + r"\n.*?" + re.escape(END), lambda _: f"{BEGIN}\n{table}\n{END}", text, flags=re.DOTALL)
    if os.environ.get("HUSK_COMPAT_WRITE"):
        DOCUMENT.write_text(fresh, encoding="utf-8")
        return
    assert fresh == text, "docs/frameworks.md is out of date; HUSK_COMPAT_WRITE=1 tests/e2e/95_frameworks.py writes it"


@test
def nothing_is_left_behind():
    assert_no_leaks()


if __name__ == "__main__":
    main("code-interpreter")
