#!/usr/bin/python3
"""Wrong words on the command line, help pages, exit statuses, and the shape of --json for every command."""

# timeout: 1800
import os
import subprocess

from lib.harness import *

COMMANDS = [
    "run",
    "create",
    "exec",
    "attach",
    "ps",
    "ls",
    "inspect",
    "rm",
    "cp",
    "port",
    "fork",
    "snapshot create",
    "snapshot ls",
    "snapshot rm",
    "hibernate",
    "wake",
    "pause",
    "resume",
    "extend",
    "code",
    "logs",
    "stats",
    "events",
    "template build",
    "template ls",
    "template rm",
    "serve",
    "mcp",
    "mcp install",
    "mcp uninstall",
    "token create",
    "token ls",
    "token rm",
    "volume create",
    "volume ls",
    "volume inspect",
    "volume rm",
    "volume files",
    "volume read",
    "volume write",
    "doctor",
    "gc",
]


@test
def test_help_of_a_family():
    page = husk("snapshot", "--help").text
    for command in ("create", "ls", "rm"):
        assert_in(f"\n  snapshot {command} ", page)
    assert_equal(husk("help", "snapshot").text, page)
    assert_equal(husk("snapshot", "-h").text, page)


@test
def test_help():
    overview = husk("--help").text
    for command in COMMANDS:
        assert_in(command, overview)
        page = husk(*command.split(), "--help").text
        assert page.startswith(f"usage: husk {command}"), page[:100]
        assert_in("--json", page, command)
        assert_equal(husk("help", *command.split()).text, page)
    result = husk(code=2)
    assert_equal(result.out, b"")
    assert_equal(result.error.count("\n  husk "), 3, "three things to try")
    assert_in("husk help", result.error)
    assert_in("husk ", husk("version").text)
    assert_equal(husk("--version").text, husk("version").text)


@test
def test_help_needs_no_instance():
    husk("create", "--help", env={"HUSK_HOME": "/proc/nowhere"})


@test
def test_unknown_words():
    assert_fails("crate", code=2, says=["crate", "create"])
    assert_fails("xyzzy", code=2, says="xyzzy")
    assert_fails("snapshot", code=2, says="create, ls, rm")
    assert_fails("snapshot", "frob", code=2, says=["frob", "create"])
    for command in COMMANDS:
        program = command in ("run", "exec", "attach", "code")
        result = husk(*command.split(), "--no-such-option", code=125 if program else 2)
        assert_in("--no-such-option", result.error, command)
        assert_equal(result.out, b"")
    assert_fails("create", "--tt", "5", code=2, says=["--tt", "--ttl"])
    assert_fails("ls", "-z", code=2, says="-z")
    assert_fails("ls", "--all=yes", code=2, says="--all")
    assert_fails("create", "--ttl", code=2, says="--ttl")
    assert_fails("ls", "extra", code=2, says="extra")
    assert_fails("inspect", code=2, says="SANDBOX")
    assert_fails("run", code=125, says="command")


@test
def test_types_and_ranges():
    for option, values in {
        "--ttl": ["x", "0", "-5", "1.5.2", "400d", "99999999999999999999", ""],
        "--idle": ["x", "-1", "5y"],
        "--memory": ["x", "0", "1", "-1", "1X", "99999999999999999T", "10k"],
        "--disk": ["x", "0", "-1", "1X"],
        "--cpus": ["x", "0", "-1", "1,5", "99999999", "0.0001"],
        "--pids": ["x", "0", "-1", "1.5", "99999999999"],
        "--metadata": ["novalue", "=x", ""],
        "--isolation": ["none", "docker"],
    }.items():
        for value in values:
            result = husk("create", f"{option}={value}", code=None)
            if result.code == 0:
                adopt(result.text.strip())
            assert result.code == 2, f"create {option}={value}: {result}"
            assert result.error.startswith("husk: ") and result.out == b"", result
            assert option.strip("-") in result.error, f"the message does not name {option}: {result}"
    box = create()
    assert_fails("exec", "--timeout", "x", box, "--", "true", code=125, says="timeout")
    assert_fails("exec", "--timeout", "-1", box, "--", "true", code=125, says="timeout")
    assert_fails("extend", box, "x", code=2, says="x")
    assert_fails("extend", box, code=2, says="extend")
    assert_fails("ls", "--state", "asleep", code=2, says=["asleep", "hibernated"])
    assert_fails("events", "--after", "x", code=2, says="x")
    assert_fails("events", "--since", "-1", code=2, says="-1")


@test
def test_unknown_ids():
    box = create("--name", "e2e-known")
    for command in ("inspect", "rm", "ps", "stats", "logs", "hibernate", "wake", "pause", "resume", "fork"):
        assert_fails(command, "sb-nosuchone", code=3, says="sb-nosuchone")
        assert_fails(command, "e2e-knwon", code=3, says=["e2e-knwon", "did you mean 'e2e-known'"])
    for command in (
        ["exec", "sb-nosuchone", "--", "true"],
        ["attach", "sb-nosuchone", "1"],
        ["code", "sb-nosuchone", "1"],
    ):
        assert_fails(*command, code=125, says="sb-nosuchone")
    assert_fails("events", "sb-nosuchone", code=3, says="sb-nosuchone")
    wrong = box[:-1] + ("a" if box[-1] != "a" else "b")
    assert_fails("inspect", wrong, code=3, says=[wrong, box])
    for odd in ("", " ", "../..", "a/b", "x" * 5000, "new\nline", "%s%n", "';drop table sandboxes;--"):
        assert husk("inspect", odd, code=None).code in (2, 3), odd
    result = subprocess.run([HUSK, "inspect", b"\xff\xfe"], capture_output=True, timeout=30, check=False)
    assert result.returncode in (2, 3), result
    assert_equal(sh(box, "echo fine"), "fine")


@test
def test_odd_paths_and_arguments():
    box = create()
    raw = [HUSK, "exec", box, "--", "printf", "%s", b"\xff\xfe\n\t"]
    assert_equal(subprocess.run(raw, capture_output=True, timeout=30, check=True).stdout, b"\xff\xfe\n\t")
    long = "x" * 100_000
    assert_equal(len(husk("exec", box, "--", "printf", "%s", long).out), 100_000)
    result = husk("exec", box, "--", "printf", "%s", *["y" * 100_000] * 15, code=None)
    assert result.code in (0, 125), f"too many arguments end in neither a result nor an error: {str(result)[-300:]}"
    assert_equal(sh(box, "echo fine"), "fine")
    assert_fails("exec", "--cwd", "relative/path", box, "--", "true", code=125, says="relative/path")
    assert_fails("exec", "-e", "=x", box, "--", "true", code=125, says="=x")
    assert_fails("exec", box, "--", "", code=125, says="empty")


@test
def test_json_shapes():
    box = create()
    pid = husk("exec", "-d", "--json", box, "--", "sleep", "100").json()
    assert_equal((pid["id"], pid["detached"]), (box, True))
    snapshot = adopt_snapshot(husk("snapshot", "create", "--json", box).json()["id"])
    assert snapshot.startswith("sn-")
    arrays = {
        "ls": [],
        "ps": [box],
        "snapshot ls": [],
        "template ls": [],
        "events": [],
        "doctor": [],
        "stats": [],
        "fork": [box],
    }
    for command, operands in arrays.items():
        document = husk(*command.split(), "--json", *operands).json()
        assert isinstance(document, list) and document, f"{command}: {document}"
        for entry in document:
            assert isinstance(entry, dict), command
            if command in ("ls", "snapshot ls", "stats", "fork"):
                assert entry["id"], command
        if command == "fork":
            adopt(document[0]["id"])
    for command in ("inspect", "stats", "logs"):
        assert_equal(husk(command, "--json", box).json()["id"], box, command)
    for command in (["extend", box, "2h"], ["pause", box], ["resume", box], ["hibernate", box], ["wake", box]):
        assert_equal(husk(command[0], "--json", *command[1:]).json()["id"], box, command[0])
    assert isinstance(husk("gc", "--json").json(), dict)
    assert_equal(husk("snapshot", "rm", "--json", snapshot).json()[0]["id"], snapshot)
    assert_equal(husk("rm", "--json", box).json()[0]["id"], box)
    assert_equal(husk("ls", "--json", "-m", "no=such").json(), [])
    assert_equal(list(husk("version", "--json").json()), ["version"])


@test
def test_json_with_odd_bytes():
    box = create("-m", "quote=\"'\\", "-m", "emoji=☃")
    assert_equal(inspect(box)["metadata"], {"quote": "\"'\\", "emoji": "☃"})
    done = husk("exec", "--json", box, "--", "printf", r"a\377\000b").json()
    assert_equal(done["stdout"], "a\ufffd\0b")
    raw = subprocess.run([HUSK, "create", "-m", b"k=\xff\xfe"], capture_output=True, timeout=60, check=False)
    if raw.returncode == 0:
        adopt(raw.stdout.decode().strip())
    husk("ls", "--json").json()


@test
def test_home_that_cannot_be():
    for home, says in (
        ("/proc/nowhere", "/proc/nowhere"),
        ("/etc/passwd", "/etc/passwd"),
        ("/var/tmp/" + "x" * 120, "too long"),
    ):
        result = husk("ls", code=None, env={"HUSK_HOME": home})
        assert result.code not in (0, None) and says in result.error, result
    with scratch() as place:
        os.chmod(place, 0o777)
        assert (
            husk("ls", code=None, env={"HUSK_HOME": str(place)}).code != 0
        ), "a home that others can write to is taken"


@test
def test_damaged_catalog():
    with scratch() as place:
        os.chmod(place, 0o700)
        (place / "catalog.db").write_bytes(os.urandom(8192))
        result = husk("ls", code=None, env={"HUSK_HOME": str(place)})
        assert result.code == 1 and "catalog.db" in result.error, result


if __name__ == "__main__":
    main("base")
