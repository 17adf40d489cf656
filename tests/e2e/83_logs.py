#!/usr/bin/python3
"""What can be read afterwards: the log of a sandbox with its levels and request ids, the console of its guest, and that
neither holds a secret, grows without end, or lets a guest write lines of its own."""

import json
import os
import pathlib
import re
import signal
import time

from lib.harness import *
from lib.http import *

LINE = re.compile(
    r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (error|warn|info|debug) (\w+)( sandbox=[\w.-]+)?( request=[\w.-]+)?: .*$"
)
CONSOLE_MAX = 512 << 10


def log_files(sandbox):
    directory = pathlib.Path(HOME, "sandboxes", sandbox)
    return sorted(path for path in directory.iterdir() if path.is_file())


def log(sandbox):
    return husk("logs", sandbox).text


def needs_gvisor():
    if isolation() != "gvisor":
        raise Skip("how the console is reached from the guest is gVisor's")


def say(sandbox, script):
    """On the console: what the guest's pid 1 has as its standard error."""
    sh(sandbox, f"({script}) > /proc/1/fd/2")


# ---- the console ----


@test
def test_console_after_the_end():
    needs_gvisor()
    box = create()
    say(box, "echo the last words")
    until(lambda: "the last words" in husk("logs", "--console", box).text, "the console while it runs")
    assert "the last words" not in log(box), "a guest's words are not Husk's"
    husk("rm", box)
    assert_in("the last words", husk("logs", "--console", box).text)
    shown = husk("logs", "--console", "--json", box).json()
    assert_equal((shown["id"], shown["source"]), (box, "console"))
    assert_in("the last words", shown["log"])
    with server() as huskd:
        path = f"/v1/sandboxes/{box}/logs"
        assert_in("the last words", huskd.get(f"{path}?source=console").text)
        assert "the last words" not in huskd.get(path).text
        assert_equal(huskd.get(f"{path}?source=log").text, huskd.get(path).text)
        huskd.get(f"{path}?source=both", status=400).error("invalid", field="source")
        huskd.get(f"{path}?sauce=log", status=400).error("invalid")


@test
def test_console_of_a_crash():
    needs_gvisor()
    box = create()
    say(box, "echo before the crash")
    sh(box, "kill -9 1", code=None)
    until(lambda: inspect(box)["state"] == "ended", "its end")
    assert_equal(inspect(box)["end_reason"], "crashed")
    console = husk("logs", "--console", box).text
    assert_in("before the crash", console)
    assert_in("the machine's process ended with exit status 137", console)
    assert_in('"reason":"crashed"', log(box))


@test
def test_console_of_a_killed_supervisor():
    needs_gvisor()
    box = create()
    say(box, "echo nobody was there")
    until(lambda: "nobody was there" in husk("logs", "--console", box).text, "the console")
    os.kill(supervisor_pid(box), signal.SIGKILL)
    until(lambda: inspect(box)["state"] == "ended", "its recovery")
    assert_in("nobody was there", husk("logs", "--console", box).text)


@test
def test_console_over_hibernation():
    needs_gvisor()
    box = create()
    say(box, "echo first life")
    husk("hibernate", box)
    assert_in("first life", husk("logs", "--console", box).text)
    say(box, "echo second life")
    husk("rm", box)
    assert_equal(re.findall(r"\w+ life", husk("logs", "--console", box).text), ["first life", "second life"])
    assert_in("woken", log(box))


@test
def test_log_of_a_pooled_machine_moves():
    """A pool machine that wakes a sandbox logs to the sandbox's log, and leaves no directory of its own behind."""
    box = create()
    husk("hibernate", box)
    sh(box, "true")
    assert_in("woken", log(box))
    husk("rm", box)

    def empty():
        husk("gc", "--all")  # again: a machine for the pool may still be in the making
        return not list(pathlib.Path(HOME, "sandboxes").iterdir())

    until(empty, "no directory is left")


@test
def test_a_noisy_console():
    needs_gvisor()
    box = create()
    say(box, "yes noise | head -c 3000000; echo the end of it")
    until(lambda: husk("logs", "--console", box).text.endswith("the end of it\n"), "the newest line")
    husk("rm", box)
    kept = [path for path in log_files(box) if path.name.startswith("console")]
    assert kept and sum(path.stat().st_size for path in kept) <= 2 * CONSOLE_MAX, kept
    assert husk("logs", "--console", box).text.endswith("the end of it\n")
    assert_equal(husk("logs", "--console", "-n", "2", box).text, "noise\nthe end of it\n")


@test
def test_a_forging_console():
    needs_gvisor()
    box = create()
    say(box, r"printf '\033[2J\r2026-01-01T00:00:00.000Z error supervisor: gone\r\n\233\000'")
    found = until(lambda: husk("logs", "--console", box).text, "the console")
    assert_in(r"\x1b[2J\x0d2026-01-01T00:00:00.000Z error supervisor: gone", found)
    assert "\033" not in found and "\0" not in found and "\r" not in found
    assert "gone" not in log(box)
    with server() as huskd:
        body = huskd.get(f"/v1/sandboxes/{box}/logs?source=console").body
        assert b"\033" not in body and b"\0" not in body, body


@test
def test_follow():
    needs_gvisor()
    box = create()
    say(box, "echo one")
    with ending(start("logs", "--console", "-f", box)) as follower:
        assert_equal(follower.stdout.readline(), b"one\n")
        say(box, "echo two")
        assert_equal(follower.stdout.readline(), b"two\n")
        husk("rm", box)
        out, err = follower.communicate(timeout=30)
        assert_equal((follower.returncode, out, err), (0, b"", b""))
    with ending(start("logs", "-f", create())) as follower:
        assert_in(b" info supervisor ", follower.stdout.readline())
        follower.send_signal(signal.SIGINT)
        follower.communicate(timeout=30)
        assert_equal(follower.returncode, 0)
    assert_fails("logs", "-f", "--json", box, code=2, says="--follow")


# ---- the log ----


@test
def test_form_and_levels():
    # From the pool a machine comes with the level of whoever prepared it: ask for one of our own.
    alone = {"HUSK_POOL": "0"}
    for level, words in (("debug", ("debug", "created")), (None, ("created",)), ("error", ())):
        husk("gc", "--all")
        box = create(env={**alone, "HUSK_LOG": level})
        sh(box, "true")
        text = log(box)
        for word in words:
            assert_in(word, text, level)
        if not words:
            assert_equal(text, "")
        if level is None:
            assert " debug " not in text, text
        for line in text.splitlines():
            found = LINE.match(line)
            assert found and found[3] == f" sandbox={box}", line
        remove(box)


@test
def test_bad_level():
    assert_fails("ls", code=2, says=("HUSK_LOG", "loud", "debug"), env={"HUSK_LOG": "loud"})
    box = create()  # a machine of the pool may have been prepared by a supervisor; that one only warns
    assert " warn " not in log(box), log(box)
    assert_fails("serve", "--log-level", "loud", code=2, says="log-level")


@test
def test_verbose():
    """What is for the user keeps its form; -v shows what Husk does as well."""
    quiet, loud = husk("create"), husk("create", "-v")
    for made in (quiet, loud):
        adopt(made.text.strip())
    assert_equal(quiet.error, "")
    assert_fails("inspect", "sb-none", code=3, says="husk: ")


# ---- requests ----


@test
def test_request_id_to_the_supervisor():
    with server("--log-level", "debug") as huskd:
        husk("gc", "--all")
        made = huskd.post("/v1/sandboxes", {"template": "base"}, status=201, headers={"X-Request-Id": "make.1"})
        assert_equal(made.headers["X-Request-Id"], "make.1")
        box = adopt(made.json()["id"])
        path = f"/v1/sandboxes/{box}"
        assert_in("request=make.1: event", log(box), "the create")
        own = huskd.post(f"{path}/exec", {"cmd": "true"}).headers["X-Request-Id"]
        assert own.startswith("rq"), own
        huskd.post(f"{path}/exec", {"cmd": "true"}, headers={"X-Request-Id": "exec.2"})
        bad = huskd.post(f"{path}/exec", {"cmd": "true"}, headers={"X-Request-Id": "a b=c"}).headers["X-Request-Id"]
        assert bad.startswith("rq"), bad
        huskd.delete(path, headers={"X-Request-Id": "end.3"})
        text = log(box)
        for name in (own, "exec.2", bad):
            assert_in(f" debug supervisor sandbox={box} request={name}: call: exec", text)
        assert_in(f" info supervisor sandbox={box} request=end.3: call: kill", text)
        lines = until(
            lambda: [line for line in huskd.log().splitlines() if "request=end.3: request " in line], "its access line"
        )
        assert LINE.match(lines[0]), lines[0]
        for part in (" info huskd ", "method=DELETE", "route=/v1/sandboxes/{id}", f"sandbox={box}", "status=204", "ms=", "bytes="):
            assert_in(part, lines[0])


@test
def test_access_level():
    with server("--log-level", "warn") as huskd:
        huskd.get("/v1/sandboxes")
        assert_equal(huskd.log(), "")
    with server() as huskd:
        huskd.get("/v1/sandboxes")
        until(lambda: "route=/v1/sandboxes status=200" in huskd.log(), "an access line")


# ---- secrets ----


@test
def test_no_secret_in_any_log():
    secret, value = "hunter2-in-the-vault", "hunter2-in-the-environment"
    with server("--log-level", "debug") as huskd, token("logs") as bearer:
        made = huskd.post(
            "/v1/sandboxes",
            {
                "template": "base",
                "env": {"PASSWORD": value},
                "metadata": {"note": "kept"},
                "egress": {
                    "mode": "allow",
                    "secrets": [{"name": "KEY", "value": secret, "hosts": ["api.test"]}],
                },
            },
            status=201,
            token=bearer,
        )
        box = adopt(made.json()["id"])
        path = f"/v1/sandboxes/{box}"
        huskd.post(f"{path}/exec", {"cmd": f"echo {value}", "env": {"OTHER": value}}, token=bearer)
        huskd.put(f"{path}/files?path=/tmp/x&signature={secret}", value, status=None, token=bearer)
        huskd.get(f"{path}/files?path=/{value}", status=None, token=bearer)
        huskd.delete(path, token=bearer)
        texts = {path: path.read_text(errors="replace") for path in log_files(box)}
        texts["huskd"] = huskd.log()
    assert texts["huskd"] and len(texts) > 1, texts
    for where, text in texts.items():
        for word in (secret, value, bearer):
            assert word not in text, f"{where}: {text}"


main("base")
