#!/usr/bin/python3
"""The agent template: what a coding agent needs, and a user of its own who may become root."""

# timeout: 2700
from lib.harness import *

TEMPLATE = "agent"


@test
def test_tools():
    box = create("-t", TEMPLATE)
    for command in (
        "node --version",
        "npm --version",
        "rg --version",
        "gcc --version",
        "g++ --version",
        "make --version",
        "git --version",
        "python3 --version",
        "pip --version",
        "jq --version",
        "sudo --version",
    ):
        husk("exec", box, "--", "sh", "-c", command, timeout=120)


@test
def test_user_with_sudo():
    box = create("-t", TEMPLATE)
    assert_equal(sh(box, "id -un; echo $HOME; pwd", "--user", "agent"), "agent\n/home/agent\n/home/agent")
    assert_equal(sh(box, "sudo -n id -u", "--user", "agent"), "0")
    assert_equal(
        sh(box, "touch ~/x && stat -c %U ~/x; touch /etc/x 2>/dev/null || echo denied", "--user", "agent"),
        "agent\ndenied",
    )


@test
def test_compile_and_run():
    box = create("-t", TEMPLATE)
    script = "cd ~ && printf '#include <stdio.h>\\nint main(void){puts(\"built\");}\\n' >x.c && gcc x.c -o x && ./x"
    assert_equal(sh(box, script, "--user", "agent", timeout=120), "built")


@test
def test_venv():
    box = create("-t", TEMPLATE)
    assert_equal(
        sh(
            box,
            "cd ~ && python3 -m venv v && v/bin/python -c 'import sys; print(sys.prefix)'",
            "--user",
            "agent",
            timeout=180,
        ),
        "/home/agent/v",
    )


@test
def test_agent_command_lines():
    box = create("-t", TEMPLATE)
    for program in ("claude", "codex"):
        done = husk("exec", "--user", "agent", box, "--", program, "--version", timeout=120, code=None)
        assert done.code == 0 and done.text.strip(), done


if __name__ == "__main__":
    main(TEMPLATE)
