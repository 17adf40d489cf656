#!/usr/bin/env python3
"""The Claude Agent SDK from PyPI, unmodified, living in a sandbox (seeds/claude_agent_sdk.py), with a model of the test's own in the test
internet. Its wheels are fetched before that is entered."""
# timeout: 900

import os
import subprocess

from lib import internet, pypi

PACKAGES = ("claude-agent-sdk==0.2.182",)
KEY = "sk-ant-the-real-one-4711"
problem = None
os.environ.setdefault("HUSK_CACHE", "/var/cache/husk-test")
try:
    wheels = pypi.wheels(PACKAGES, "claude")  # inside, the second time, they are there, or cannot be had
except (AssertionError, subprocess.TimeoutExpired) as error:
    problem = str(error)[-200:]
internet.enter()

import sys  # pylint: disable=wrong-import-position

from lib.harness import TOP, Skip, assert_equal, assert_no_leaks, environment, husk, main, test  # pylint: disable=wrong-import-position
from lib.http import server, token  # pylint: disable=wrong-import-position

SEEDS = TOP / "tests/e2e/seeds"


@test
def the_whole_agent_lives_in_the_sandbox():
    if problem:
        raise Skip(f"PyPI cannot be reached: {problem}")
    with server() as huskd, token("claude") as secret:
        settings = {"HUSK_URL": f"http://127.0.0.1:{huskd.port}", "HUSK_TOKEN": secret, "PYTHONPATH": str(TOP / "sdk/python"), "PYTHONDONTWRITEBYTECODE": "1"}
        settings.update(ANTHROPIC_API_KEY=KEY, MODEL_HOST="api.test")
        command = [sys.executable, SEEDS / "claude_agent_sdk.py", wheels]
        done = subprocess.run(command, env=environment(settings), capture_output=True, text=True, timeout=600, check=False)
    print("".join(f"# {line}\n" for line in done.stdout.splitlines()), end="")
    assert_equal(done.returncode, 0, done.stderr[-2000:])
    lines = [line.strip() for line in done.stdout.splitlines()]
    wanted = ["the key inside: a placeholder", "while it runs:", "> Bash: python3 /tmp/primes.py", "There are 50 of them, and the last is 229.", "exit code 0"]
    assert_equal([line for line in wanted if line not in lines], [], done.stdout[-1500:])
    asked = [request for request in internet.requests() if request.get("path", "").startswith("/v1/messages")]
    keys = {request["headers"].get("x-api-key") for request in asked}
    assert_equal(keys, {KEY}, "what the model's host saw")


@test
def nothing_is_left_behind():
    husk("rm", "--all", code=None)
    assert_no_leaks()


if __name__ == "__main__":
    main("code-interpreter")
