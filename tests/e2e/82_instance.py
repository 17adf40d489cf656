#!/usr/bin/python3
"""The instance: doctor, gc, events, logs, stats, completion, manual page, a missing runsc, two homes side by side."""

# timeout: 1800
import os
import shutil
import signal
import subprocess
import tempfile

from lib.harness import *


def path_without_runsc(place):
    """A PATH with everything but runsc, in `place`."""
    for directory in os.environ["PATH"].split(":"):
        if not os.path.isdir(directory):
            continue
        for name in os.listdir(directory):
            target = place / name
            if name != "runsc" and not os.path.lexists(target):
                os.symlink(os.path.join(directory, name), target)
    return str(place)


@test
def test_doctor():
    checks = {entry["name"]: entry for entry in husk("doctor", "--json").json()}
    assert_equal((checks[isolation()]["result"], checks["isolation"]["result"]), ("ok", "ok"))
    for name in ("kernel", "user", "cgroups", "agent", "templates"):
        assert_equal(checks[name]["result"], "ok", name)
    text = husk("doctor").text
    for piece in ("gvisor", "microvm", f"auto takes {isolation()}"):
        assert_in(piece, text)
    assert_in("no leaks", husk("doctor", "--leaks").text)


def need_gvisor():
    if isolation() != "gvisor":
        raise Skip("sandboxes do not need runsc here")


@test
def test_missing_runsc():
    need_gvisor()
    with scratch() as place, scratch() as home:
        os.chmod(home, 0o700)
        os.mkdir(place / "bin")
        without = {"PATH": path_without_runsc(place / "bin"), "HUSK_HOME": str(home)}
        result = husk("doctor", "--json", code=1, env=without)
        checks = {entry["name"]: entry for entry in result.json()}
        assert checks["gvisor"]["result"] != "ok" and checks["isolation"]["result"] == "fail", checks
        assert_in("runsc", checks["gvisor"]["text"])
        os.mkdir(place / "root")
        (place / "root/x").write_text("x")
        result = husk("template", "build", "--rootfs", place / "root", "--name", "x", env=without, code=None)
        assert result.code == 1 and "runsc" in result.error and "install" in result.error, result
        assert_equal(husk("template", "ls", "--json", env=without).json()[0].get("built"), False)
        husk("doctor", "--leaks", env=without)


@test
def test_runsc_goes_missing_later():
    need_gvisor()
    with scratch() as place:
        os.mkdir(place / "bin")
        husk("gc", "--all")  # no prepared machine may help out
        result = husk("create", env={"PATH": path_without_runsc(place / "bin"), "HUSK_POOL": "0"}, code=None)
        if result.code == 0:
            adopt(result.text.strip())
        assert result.code == 1 and "runsc" in result.error, result
    assert_no_leaks()


@test
def test_events():
    box = create("-m", "a=b")
    husk("hibernate", box)
    husk("wake", box)
    husk("rm", box)
    mine = events(box)
    assert_equal([event["kind"] for event in mine], ["created", "hibernated", "woken", "ended"])
    assert_equal([event["sequence"] for event in mine], sorted(event["sequence"] for event in mine))
    assert_equal(mine[-1]["detail"]["reason"], "killed")
    assert all(event["sandbox"] == box and event["at"].endswith("Z") for event in mine), mine
    later = husk("events", "--json", "--after", str(mine[1]["sequence"]), box).json()
    assert_equal([event["kind"] for event in later], ["woken", "ended"])
    assert_in("hibernated", husk("events", box).text)
    assert_in(box, husk("events", "--since", "10m").text)
    with ending(start("events", "--follow")) as follower:
        other = create()
        line = b""
        while other.encode() not in line:
            line = follower.stdout.readline()
            assert line, "the events end"
        follower.send_signal(signal.SIGINT)
        follower.communicate(timeout=10)


@test
def test_logs():
    box = create()
    husk("logs", box)
    husk("rm", box)
    husk("logs", box)  # also after its end
    assert_equal(husk("logs", "--json", box).json()["id"], box)


@test
def test_stats():
    box = create("--memory", "512M")
    before = husk("stats", "--json", box).json()
    husk(
        "exec",
        box,
        "--",
        "python3",
        "-c",
        "x = bytearray(b'y' * (64 << 20)); sum(range(10**6)); open('/root/f','wb').write(x)",
    )
    after = husk("stats", "--json", box).json()
    assert after["cpu_us"] > before["cpu_us"], (before, after)
    assert after["disk_bytes"] >= before["disk_bytes"] + (60 << 20), (before, after)
    assert 0 < before["memory_bytes"] < before["memory_limit"] == 512 << 20, before
    husk("exec", "-d", box, "--", "sleep", "1000")
    assert_equal(husk("stats", "--json", box).json()["processes"], after["processes"] + 1)
    assert_in(box, husk("stats").text)
    assert_in(box, [entry["id"] for entry in husk("stats", "--json").json()])


@test
def test_gc():
    box = create()
    husk("rm", box)
    cleared = husk("gc", "--json").json()
    assert set(cleared) >= {"sandboxes", "snapshots", "templates", "pool", "bytes"}, cleared
    keeper = create()
    husk("gc", "--all")
    assert_equal(sh(keeper, "echo fine"), "fine", "gc leaves what lives alone")
    assert_in("base", husk("template", "ls").text)
    assert box not in listed("--all"), "and forgets what ended"


@test
def test_two_homes_never_meet():
    box = create("--name", "e2e-here")
    with tempfile.TemporaryDirectory(prefix="husk-other.", dir="/var/tmp") as other:
        os.chmod(other, 0o700)
        env = {"HUSK_HOME": other}
        assert_equal(husk("ls", "--json", env=env).json(), [])
        husk("inspect", box, code=3, env=env)
        husk("gc", "--all", env=env)
        husk("doctor", "--leaks", env=env)
    assert_equal(sh(box, "echo fine"), "fine")


@test
def test_completion():
    script = TOP / "completion/husk.bash"
    if not script.exists():
        raise AssertionError("completion/husk.bash is missing")
    box = create("--name", "e2e-complete")

    def complete(line):
        words = line.split(" ")
        code = (
            f"source {script}; COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1};"
            f"COMP_LINE={line!r}; COMP_POINT={len(line)}; f=$(complete -p husk | sed 's/.*-F \\([^ ]*\\).*/\\1/');"
            "$f husk; printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        env = environment({"PATH": os.path.dirname(HUSK) + ":" + os.environ["PATH"]})
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=30, env=env, check=False)
        return [word.strip() for word in done.stdout.split("\n") if word.strip()]

    assert_in("hibernate", complete("husk hib"))
    assert_in("create", complete("husk snapshot "))
    assert_in("--template", complete("husk create --te"))
    assert any(word in ("e2e-complete", box) for word in complete("husk inspect e2e-co")), complete(
        "husk inspect e2e-co"
    )


@test
def test_manual_page():
    page = TOP / "docs/husk.1"
    text = page.read_text(encoding="utf-8")
    for word in ("run", "create", "exec", "fork", "hibernate", "snapshot", "template", "doctor", "HUSK_HOME"):
        assert_in(word, text)
    if shutil.which("man"):
        done = subprocess.run(
            ["man", "--warnings", "-l", str(page)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment({"MANWIDTH": "100", "LC_ALL": "C.UTF-8"}),
        )
        assert_equal((done.returncode, done.stderr), (0, ""))


@test
def test_first_use_bakes():
    # A shipped template that was never built here is built by its first use, with progress on stderr.
    with tempfile.TemporaryDirectory(prefix="husk-new.", dir="/var/tmp") as other:
        os.chmod(other, 0o700)
        env = {"HUSK_HOME": other}
        try:
            result = husk("run", "--", "echo", "first", timeout=BUILD_SECONDS, env=env)
            assert_equal(result.out, b"first\n", "stdout is the command's alone")
            assert_in("base", result.error)
        finally:
            husk("rm", "--all", env=env, code=None)
            husk("gc", "--all", env=env, code=None)
            until(
                lambda: not [1 for pid in os.listdir("/proc") if pid.isdigit() and other in command_line(pid)],
                "the other instance ends",
            )


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    main("base")
