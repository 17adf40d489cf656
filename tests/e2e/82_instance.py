#!/usr/bin/python3
"""The instance: doctor, gc, events, logs, stats, completion, manual page, a missing runsc, two homes side by side."""

# timeout: 1800
import contextlib
import fcntl
import json
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import tempfile
import time

from lib.harness import *
from lib.http import server
from lib.runsc import current_runsc


F_OFD_SETLKW = 38  # not in Python 3.11's fcntl


def without_runsc(place):
    """An environment with everything but runsc, in `place`."""
    for directory in os.environ["PATH"].split(":"):
        if not os.path.isdir(directory):
            continue
        for name in os.listdir(directory):
            target = place / name
            if name != "runsc" and not os.path.lexists(target):
                os.symlink(os.path.join(directory, name), target)
    # Nor is there one of `make runsc`, or one that the tests were told to use.
    return {"PATH": str(place), "HUSK_RUNSC": str(place / "runsc") if other_runsc() else None}


def other_runsc():
    """A runsc that is not found by PATH; None: there is none."""
    named = os.environ.get("HUSK_RUNSC")
    return named or (str(BUILD / "runsc") if (BUILD / "runsc").exists() else None)


@test
def test_pool_drain():
    box = create()
    # What was prepared meanwhile, and what is on its way, is gone; the sandbox is not, and the next one comes all the same.
    until(lambda: husk("pool", "drain", "--json").json()["pool"] == 0, "nothing is left to end")
    assert_equal(sh(box, "echo lives"), "lives")
    assert_equal(sh(create(), "echo another"), "another")


def prepared():
    """How many machines wait in the pool for a fork or a wake."""
    with contextlib.closing(sqlite3.connect(f"file:{HOME}/catalog.db?mode=ro", uri=True)) as catalog:
        return catalog.execute("SELECT count(*) FROM sandboxes WHERE state IN ('pool', 'preparing') AND NOT warm").fetchone()[0]


@test
def test_pool_is_ready_for_the_next_fork():
    box = create()
    children = fork(box, "-n", "3")
    until(lambda: prepared() == 3, "one for each child")
    remove(*fork(box, "-n", "3"))  # their supervisors end before they have replaced what they used
    until(lambda: prepared() == 3, "one for each child, although the children have ended")
    husk("pool", "drain")
    for _ in range(10):
        assert_equal(prepared(), 0, "no refill from before the drain adds one")
        time.sleep(0.1)
    assert_equal(sh(children[0], "echo lives"), "lives")


@contextlib.contextmanager
def every_place_taken():
    """As if other machines were starting: no supervisor of this instance gets a place (src/supervisor/gate.c)."""
    with open(f"{HOME}/run/runtime/starting", "ab") as file:
        fcntl.fcntl(file, F_OFD_SETLKW, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        yield


def is_creating(name):
    return [entry["state"] for entry in husk("ls", "--json").json() if entry["name"] == name] == ["creating"]


@test
def test_starts_wait_for_a_place():
    create()  # the file is there
    with every_place_taken():
        husk("pool", "drain")
        waits = start("create", "--name", "waits", stdout=subprocess.PIPE)
        with ending(waits):
            until(lambda: is_creating("waits"), "it is being created")
            # What waits can be removed, and its creator learns of it.
            husk("rm", "waits")
            assert waits.wait(60) != 0
        waits = start("create", "--name", "waits", stdout=subprocess.PIPE)
        until(lambda: is_creating("waits"), "another is being created")
    with ending(waits):
        assert_equal(waits.wait(60), 0)
        assert_equal(sh(adopt(waits.stdout.read().decode().strip()), "echo came"), "came")


@test
def test_rm_all_of_some():
    boxes = [create() for _ in range(10)]
    removed = [entry["id"] for entry in husk("rm", "--all", "--json").json()]
    assert set(boxes) <= set(removed), (boxes, removed)
    assert_equal(husk("ls", "--json").json(), [])


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


@test
def test_doctor_in_a_container():
    # Seen as podman marks it, in a mount namespace of its own.
    script = 'mount -t tmpfs tmpfs /run && : >/run/.containerenv && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", HUSK, "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, timeout=CALL_SECONDS, check=False, env=environment())
    texts = [entry["text"] for entry in json.loads(done.stdout) if entry["name"] == "host"]
    assert any("--privileged" in text for text in texts), texts
    assert_equal([entry for entry in husk("doctor", "--json").json() if entry["name"] == "host" and "namespaces" in entry["text"]], [])


def need_gvisor():
    if isolation() != "gvisor":
        raise Skip("sandboxes do not need runsc here")


@test
def test_missing_runsc():
    need_gvisor()
    with scratch() as place, scratch() as home:
        os.chmod(home, 0o700)
        os.mkdir(place / "bin")
        without = {**without_runsc(place / "bin"), "HUSK_HOME": str(home)}
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
        result = husk("create", env={**without_runsc(place / "bin"), "HUSK_POOL": "0"}, code=None)
        if result.code == 0:
            adopt(result.text.strip())
        assert result.code == 1 and "runsc" in result.error, result
    assert_no_leaks()


@test
def test_doctor_fix():
    """In an /etc of its own, which has no group husk and where nothing else is wrong."""
    with scratch() as place:
        for name in ("upper", "work"):
            (place / name).mkdir()
        script = (
            f"mount -t overlay overlay -o lowerdir=/etc,upperdir={place}/upper,workdir={place}/work /etc && "
            f"(groupdel husk 2>/dev/null; {HUSK} doctor --fix >/dev/null; grep -c ^husk: /etc/group; {HUSK} doctor --fix >/dev/null)"
        )
        done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=300, check=False)
        assert_equal((done.stdout, done.returncode), ("1\n", 0), done.stderr)
        assert_in("fixed: made the group husk", done.stderr)
        assert_in("there is nothing that --fix could repair", done.stderr)
    if not USER:
        unprivileged = subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", HUSK, "doctor", "--fix"], capture_output=True, text=True,
                                      env={"PATH": os.environ["PATH"], "HUSK_HOME": "/nowhere"}, check=False)
        assert unprivileged.returncode != 0 and "root" in unprivileged.stderr, unprivileged


@test
def test_two_versions_of_runsc():
    """What one version saved goes on in that one only; another is told so, and loses nothing."""
    need_gvisor()
    found = [path for path in (other_runsc() or current_runsc(), shutil.which("runsc")) if path]
    said = [subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.split()[2] for path in found]
    if len(set(said)) < 2:
        raise Skip("the runsc of this machine is the current one, and there is no other")
    for mine, other in (found, found[::-1]):
        env = {"HUSK_RUNSC": mine, "HUSK_POOL": "0"}
        assert_in(said[found.index(mine)], husk("doctor", "-v", env=env, code=None).text)  # what others left may be of another version
        box = adopt(husk("create", env=env, timeout=300).text.strip())
        husk("exec", box, "--", "sh", "-c", "echo kept >/kept", env=env)
        husk("hibernate", box, env=env, timeout=120)
        refused = husk("exec", box, "--", "cat", "/kept", env={**env, "HUSK_RUNSC": other}, code=None, timeout=120)
        assert refused.code != 0, refused
        for word in (said[found.index(mine)], said[found.index(other)], "HUSK_RUNSC"):
            assert_in(word, refused.error)
        assert_equal(husk("exec", box, "--", "cat", "/kept", env=env, timeout=120).text, "kept\n")
        husk("rm", box)
    husk("gc", "--all")


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
    box = create("--name", "e2e-complete")

    def complete(line):
        words = line.split(" ")
        code = (
            f"source <(husk completion bash); COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1};"
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
    # A shipped template that was never built here is built by its first use, with progress on stderr, also when a
    # tenant of a server is the first. (The first use without a server is what every other test begins with.)
    with tempfile.TemporaryDirectory(prefix="husk-new.", dir="/var/tmp") as other:
        os.chmod(other, 0o700)
        env = {"HUSK_HOME": other}
        try:
            secret = husk("token", "create", "tenant", "--json", env=env).json()["token"]
            with server(env=env) as huskd:
                far = {"HUSK_HOST": f"http://127.0.0.1:{huskd.port}", "HUSK_TOKEN": secret, "HUSK_HOME": None}
                assert_fails("run", "-t", "bsae", "--", "true", code=125, says="did you mean 'base'?", env=far)
                result = husk("run", "--", "echo", "first", timeout=BUILD_SECONDS, env=far)
                assert_equal(result.out, b"first\n", "stdout is the command's alone")
                assert_in("baking", result.error)
                assert_in("'base' is ready", result.error)
                assert_equal(husk("run", "--", "true", env=far).error, "", "built once")
            base = [each for each in husk("template", "ls", "--json", env=env).json() if each["name"] == "base"]
            assert_equal([each.get("tenant") for each in base], [None], "it is everybody's")
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


def files_with(text):
    return subprocess.run(["grep", "-ralF", text, HOME], capture_output=True, text=True, check=False).stdout.split()


@test
def test_values_of_an_environment_go_with_the_sandbox():
    value = "a-value-" + os.urandom(8).hex()
    with server():  # which has the catalog open all the time
        box = create("-e", f"KEY={value}", "--name", "values")
        assert_equal(sh(box, "printenv KEY"), value)
        husk("hibernate", box)
        assert_equal(sh(box, "printenv KEY"), value, "after its sleep")
        (child,) = fork(box)
        assert_equal(sh(child, "printenv KEY"), value, "in a fork")
        snapshot = adopt_snapshot(husk("snapshot", "create", box, "--json").json()["id"])
        copy = create("--from", snapshot)
        assert_equal(sh(copy, "printenv KEY"), value, "from a snapshot")
        assert_equal(inspect(copy)["environment"], ["KEY"])
        remove(box, child, copy)
        husk("snapshot", "rm", snapshot)
        assert_equal(files_with(value), [], "after the end")


@test
def test_emptied_catalog_is_refused():
    with scratch() as place:
        env = {"HUSK_HOME": str(place)}
        assert_equal(husk("ls", "--json", env=env).json(), [])
        (place / "templates" / "kept").mkdir(parents=True, exist_ok=True)
        os.truncate(place / "catalog.db", 0)
        assert_fails("ls", code=1, says=["catalog.db is empty", "move it away"], env=env)
        assert (place / "templates" / "kept").is_dir()
        for name in ("catalog.db", "catalog.db-wal", "catalog.db-shm"):
            (place / name).unlink(missing_ok=True)
        assert_equal(husk("ls", "--json", env=env).json(), [])


@test
def test_hibernates_when_its_time_is_over():
    plain = create("--ttl", "4", "-m", "husk.on-expiry=hibernate")
    box = create("--ttl", "4", "--on-expiry", "hibernate")
    assert_equal((inspect(plain)["on_expiry"], inspect(box)["on_expiry"]), ("kill", "hibernate"))
    until(lambda: inspect(plain)["state"] == "ended", "metadata has no power over its end", seconds=60)
    until(lambda: inspect(box)["state"] == "hibernated", "it sleeps in place of its end", seconds=60)
    assert_equal((inspect(box)["expires_at"], inspect(box)["persistent"]), (None, False))
    assert_equal(sh(box, "echo awake"), "awake")
    assert inspect(box)["expires_at"], "awake it has an end again"
    assert_fails("create", "--on-expiry", "nothing", code=2, says=["kill", "hibernate"])


if __name__ == "__main__":
    main("base")
