#!/usr/bin/python3
"""Lifecycle of a sandbox: create, find, inspect, exec, environment, time to live, and the end."""

# timeout: 1800
import os
import signal
import time

from lib.harness import *


@test
def test_create_exec_rm():
    box = husk("create").text.strip()
    adopt(box)
    assert_in(box, listed())
    assert_equal(sh(box, "echo hello"), "hello")
    assert_equal(husk("rm", box).text.strip(), box)
    assert box not in listed(), "it is still listed"
    assert_in(box, listed("--all"))
    ended = inspect(box)
    assert_equal((ended["state"], ended["end_reason"]), ("ended", "killed"))
    assert_equal(event_kinds(box), ["created", "ended"])
    assert_fails("exec", box, "--", "true", code=125, says=[box, "ended"])


@test
def test_names():
    box = create("--name", "e2e-first")
    assert_equal(inspect("e2e-first")["id"], box)
    assert_equal(sh("e2e-first", "echo $((1+1))"), "2")
    assert_fails("create", "--name", "e2e-first", code=1, says="e2e-first")
    husk("rm", "e2e-first")
    again = create("--name", "e2e-first")  # a name is free again when its sandbox has ended
    assert again != box
    assert_equal(inspect("e2e-first")["id"], again)
    for wrong in ("Upper", "-x", "sb-abc", "a/b", "a b", "", "x" * 64, "é"):
        result = husk("create", f"--name={wrong}", code=None)
        assert result.code == 2 and "name" in result.error, result


@test
def test_metadata_and_filters():
    one = create("-m", "team=red", "-m", "task=a b=c")
    two = create("-m", "team=blue")
    assert_equal(inspect(one)["metadata"], {"team": "red", "task": "a b=c"})
    assert_equal(listed("-m", "team=red"), [one])
    assert_equal(listed("-m", "team=red", "-m", "task=a b=c"), [one])
    assert_equal(listed("-m", "team=red", "-m", "task=other"), [])
    assert {one, two} <= set(listed("--state", "running"))
    husk("hibernate", two)
    assert_equal([box for box in listed("--state", "hibernated") if box in (one, two)], [two])
    assert two in listed() and two not in listed("--state", "running")
    husk("rm", two)
    assert_in(two, listed("--state", "ended", "-m", "team=blue"))
    assert_equal(husk("ls", "-q", "-m", "team=red").text, one + "\n")
    assert_in(one, husk("ls").text)
    assert_in("running", husk("ls").text)


@test
def test_inspect_says_everything():
    box = create(
        "--memory", "256M", "--cpus", "0.5", "--pids", "100", "--ttl", "10m", "--idle", "1h", "--name", "e2e-all"
    )
    seen = inspect(box)
    assert_equal((seen["memory_bytes"], seen["cpus"], seen["pids"], seen["idle_seconds"]), (256 << 20, 0.5, 100, 3600))
    assert_equal(
        (seen["template"], seen["state"], seen["persistent"], seen["name"]), ("base", "running", False, "e2e-all")
    )
    assert_equal(seen["isolation"], isolation())
    assert seen["boundary"] and seen["created_at"] and seen["expires_at"], seen
    text = husk("inspect", box).text
    for piece in (box, "e2e-all", "256 MiB", seen["isolation"], seen["boundary"]):
        assert_in(piece, text)


@test
def test_environment():
    secret = {"E2E_SECRET": "do-not-leak", "E2E_PASSED": "by name"}
    box = create("-e", "E2E_GIVEN=1 2", "-e", "E2E_PASSED", env=secret)
    seen = husk("exec", "-e", "E2E_MORE=x", box, "--", "env", env=secret).text.splitlines()
    for pair in ("E2E_GIVEN=1 2", "E2E_PASSED=by name", "E2E_MORE=x"):
        assert_in(pair, seen)
    assert not [line for line in seen if "E2E_SECRET" in line or "HUSK_" in line or HOME in line], seen
    assert_equal(sorted(inspect(box)["environment"]), ["E2E_GIVEN", "E2E_PASSED"])
    assert b"do-not-leak" not in husk("inspect", "--json", box).out
    assert b"by name" not in husk("inspect", "--json", box).out
    everything = sh(box, "cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
    assert "do-not-leak" not in everything and HOME not in everything, everything
    assert_fails("create", "-e", "E2E_NOT_SET_HERE", code=2, says="E2E_NOT_SET_HERE")


@test
def test_exec_options():
    box = create()
    assert_equal(sh(box, "pwd", "--cwd", "/usr/lib"), "/usr/lib")
    assert_equal(sh(box, "id -u; id -g", "--user", "nobody").split(), ["65534", "65534"])
    assert_equal(sh(box, "echo $HOME; pwd; id -un"), "/root\n/root\nroot")
    assert_equal(husk("exec", "-i", box, "--", "cat", stdin=b"abc").out, b"abc")
    husk("exec", box, "--", "sh", "-c", "exit 9", code=9)
    husk("exec", box, "--", "no-such-thing", code=127)
    husk("exec", box, "--", "/etc/hostname", code=126)
    husk("exec", box, "--", "sh", "-c", "kill -9 $$", code=137)
    done = husk("exec", "--json", box, "--", "sh", "-c", "echo o; echo e >&2", code=0).json()
    assert_equal((done["id"], done["stdout"], done["stderr"], done["exit_code"]), (box, "o\n", "e\n", 0))
    assert_fails("exec", "--cwd", "/nowhere", box, "--", "true", code=125, says="/nowhere")
    assert_fails("exec", "--user", "nosuchuser", box, "--", "true", code=125, says="nosuchuser")


@test
def test_many_execs_at_once():
    box = create()
    running = [start("exec", box, "--", "sh", "-c", f"sleep 0.2; echo {n}; exit {n}") for n in range(20)]
    for n, process in enumerate(running):
        with ending(process):
            out, err = process.communicate(timeout=60 * SLOW)
            assert_equal((out, process.returncode), (f"{n}\n".encode(), n), err.decode())


@test
def test_files_last_between_calls():
    box = create()
    sh(box, "echo kept >/root/note; mkdir -p /srv/a; echo 1 >/etc/own")
    assert_equal(sh(box, "cat /root/note /etc/own; test -d /srv/a && echo there"), "kept\n1\nthere")


@test
def test_ttl():
    box = create("--ttl", "2")
    until(lambda: box not in listed(), "the time to live ends it")
    ended = inspect(box)
    assert_equal((ended["state"], ended["end_reason"]), ("ended", "ttl"))
    assert_fails("exec", box, "--", "true", code=125, says=[box, "ttl"])


@test
def test_ttl_holds_when_every_client_is_gone():
    # The one who made it is killed at once, and nobody calls husk until after its time: the supervisor alone ends it.
    with ending(start("exec", create("--ttl", "3", "--name", "e2e-alone"), "--", "sleep", "1000")) as client:
        box = inspect("e2e-alone")["id"]
        pid = supervisor_pid(box)
        client.send_signal(signal.SIGKILL)
    until(lambda: not runs(pid), "the supervisor ends by itself")
    assert_equal(inspect(box)["end_reason"], "ttl")


@test
def test_extend():
    seconds = round(3 * SLOW)
    box = create("--ttl", str(seconds))
    before = inspect(box)["expires_at"]
    told = husk("extend", box, "1h").text.strip()
    after = inspect(box)["expires_at"]
    assert after > before and after == told, (before, told, after)
    time.sleep(seconds + 1)
    assert_equal(sh(box, "echo alive"), "alive")
    husk("extend", box, "1")
    until(lambda: box not in listed(), "the shorter time counts too")
    assert_equal([kind for kind in event_kinds(box) if kind == "extended"], ["extended"] * 2)


@test
def test_persistent():
    box = create("--persistent", "--ttl", "1")
    assert_equal((inspect(box)["persistent"], inspect(box)["expires_at"]), (True, None))
    seconds = round(2 * SLOW)
    other = create("--ttl", str(seconds))
    assert_equal(husk("extend", other, "--persistent").text.strip(), "never")
    time.sleep(seconds + 1)
    assert {box, other} <= set(listed())


@test
def test_pause_and_resume():
    box = create()
    start_counter(box)
    husk("pause", box)
    assert_equal(inspect(box)["state"], "paused")
    assert_fails("exec", box, "--", "true", code=125, says=["paused", "resume"])
    husk("resume", box)
    assert_ticking(box)
    assert_fails("resume", box, code=1, says=box)


@test
def test_rm_many_and_all():
    boxes = [create() for _ in range(3)]
    removed = husk("rm", "--json", *boxes[:2]).json()
    assert_equal([entry["id"] for entry in removed], boxes[:2])
    result = husk("rm", boxes[2], "sb-nosuchone", code=3)
    assert_in("sb-nosuchone", result.error)
    assert boxes[2] not in listed(), "the other one is removed all the same"
    husk("rm", "-f", "sb-nosuchone")


@test
def test_what_dies_when_its_sandbox_is_removed():
    box = create()
    with ending(start("exec", box, "--", "sleep", "1000")) as client:
        until(lambda: husk("ps", "--json", box).json(), "it runs")
        husk("rm", box)
        _, err = client.communicate(timeout=30 * SLOW)
        assert client.returncode == 125 and err.startswith(b"husk: "), (client.returncode, err)


@test
def test_slow_machine_keeps_its_clock():
    # What a create asks of the machine is answered late: nothing is wrong with its clock for that.
    if isolation() != "gvisor":
        raise Skip("stops the processes of a gVisor sandbox")
    create()  # and with it the pool begins to fill
    sandboxes = set(listed())

    def waiting():
        names = {name[:-5] for name in os.listdir(f"{HOME}/run") if name.endswith(".sock") and name.startswith("sb-")}
        found = {}
        for name in names - sandboxes:
            with contextlib.suppress(AssertionError, OSError):  # it is just being made
                found[name] = kernel_of(name)
        return found if len(found) >= 2 else None

    entries = until(waiting, "the pool is filled", seconds=60)
    kernels = list(entries.values())
    for pid in kernels:
        os.kill(pid, signal.SIGSTOP)
    try:
        with ending(start("create", "--json")) as client:
            time.sleep(4)
            for pid in kernels:
                os.kill(pid, signal.SIGCONT)
            out, err = client.communicate(timeout=60 * SLOW)
    finally:
        for pid in kernels:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert_equal(client.returncode, 0, err.decode())
    made = adopt(json.loads(out)["id"])
    if made not in entries:
        raise Skip("a machine that came meanwhile was taken, which was not slow")
    assert abs(int(sh(made, "date +%s")) - time.time()) < 30


if __name__ == "__main__":
    main("base")
