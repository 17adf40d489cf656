#!/usr/bin/python3
"""Killed in the middle of anything: a supervisor, a client, an engine. The next call finds it, clears it, says so."""

# timeout: 1800
import contextlib
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import time

from lib.harness import *


def kill_supervisor(box):
    pid = supervisor_pid(box)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not runs(pid), "the supervisor is gone")


@test
def test_killed_supervisor_is_cleared_and_told():
    box, other = create(), create()
    start_counter(box)
    kill_supervisor(box)
    assert box not in listed(), "the next call does not list it any more"
    entry = inspect(box)
    assert_equal((entry["state"], entry["end_reason"]), ("ended", "crashed"))
    kinds = event_kinds(box)
    assert "recovered" in kinds and kinds[-1] == "ended", kinds
    assert_fails("exec", box, "--", "true", code=125, says=box)
    assert_equal(sh(other, "echo fine"), "fine")
    assert_no_leaks()


@test
def test_nothing_of_the_machine_outlives_its_supervisor():
    box = create("-e", "E2E=1")
    kernels = set(engine_processes())
    husk("exec", "-d", box, "--", "sleep", "1000")
    kill_supervisor(box)
    until(lambda: not kernels <= set(engine_processes()), "its kernel dies with it, without any husk call")
    husk("ls")
    assert_no_leaks()


@test
def test_client_of_a_killed_supervisor():
    box = create()
    with ending(start("exec", box, "--", "sleep", "1000")) as client:
        until(lambda: husk("ps", "--json", box).json(), "it runs")
        kill_supervisor(box)
        _, err = client.communicate(timeout=30)
        assert client.returncode == 125 and err.startswith(b"husk: "), (client.returncode, err)


def pool_supervisors():
    """Those that wait in the pool, or are on their way into it: whoever was started for it and has no sandbox yet."""
    found, mine = [], set()
    for box in listed():
        with contextlib.suppress(OSError):  # it is hibernated
            mine.add(supervisor_pid(box))
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it ended meanwhile
            name = pathlib.Path(f"/proc/{entry}/comm").read_text(encoding="utf-8").strip()
            words = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            if name == "husk-supervise" and b"--pool" in words and HOME.encode() in words and int(entry) not in mine:
                found.append(int(entry))
    return found


def fill_pool():
    return until(pool_supervisors, "the pool has machines")


@test
def test_wake_past_a_dead_pool():
    for number in (signal.SIGKILL, signal.SIGSTOP):
        box = create()
        start_counter(box)
        husk("hibernate", box)
        fill_pool()
        for pid in pool_supervisors():
            os.kill(pid, number)
        try:
            assert_equal(sh(box, "echo awake"), "awake", f"with the pool after {number.name}")
            assert_ticking(box)
            assert_equal(inspect(box)["state"], "running")
            remove(box)
        finally:
            for pid in pool_supervisors():
                os.kill(pid, signal.SIGCONT)
    husk("gc", "--all")
    assert_no_leaks()


@test
def test_rm_all_leaves_no_prepared_machine():
    create()
    fill_pool()
    husk("rm", "--all")
    until(lambda: not pool_supervisors(), "the supervisors of the pool go away")
    assert_no_leaks()


@contextlib.contextmanager
def ending_group(process):
    """As `ending`, with all that the process has started."""
    with ending(process):
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@test
def test_snapshots_beside_others_that_clear_up():
    """Every call clears up after killed ones; it must not take a snapshot for abandoned that is finished at that moment."""
    box = create()
    others = "for i in 1 2 3 4; do while :; do \"$0\" ls >/dev/null; done & done; wait"
    with ending_group(subprocess.Popen(["sh", "-c", others, HUSK], env=environment(), start_new_session=True)):
        made = [adopt_snapshot(husk("snapshot", "create", "--json", box).json()["id"]) for _ in range(25)]
    kept = {entry["id"] for entry in husk("snapshot", "ls", "--json").json()}
    assert set(made) <= kept, set(made) - kept


@test
def test_snapshot_of_a_dead_client_waits_for_its_image():
    """The client is killed while the supervisor works for it. Others that clear up leave the snapshot alone until its image is
    written, and then remove both; without that, the image is written when nothing leads to it any more."""
    box = create()
    supervisor, kernel = supervisor_pid(box), kernel_of(box)
    os.kill(kernel, signal.SIGSTOP)  # the supervisor waits for the guest
    try:
        with ending(start("snapshot", "create", box)) as client:
            until(lambda: locks_of_snapshots(supervisor), "the supervisor has the lock of the snapshot", seconds=30)
            client.kill()
            client.wait(10)
        for _ in range(3):
            husk("ls")
    finally:
        os.kill(kernel, signal.SIGCONT)
    until(lambda: not locks_of_snapshots(supervisor), "the image is written, or given up")
    husk("ls")
    assert_equal([entry["id"] for entry in husk("snapshot", "ls", "--json").json()], [])
    assert_equal(os.listdir(f"{HOME}/snapshots"), [])
    assert_equal(sh(box, "echo fine"), "fine")
    assert_no_leaks()


def locks_of_snapshots(pid):
    """Open files of a process that are locks of snapshots."""
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            path = os.readlink(f"/proc/{pid}/fd/{number}")
            if re.search(r"/sn-[^/]*\.lock$", path):
                found.append(path)
    return found


@test
def test_killed_engine():
    box = create()
    os.kill(kernel_of(box), signal.SIGKILL)
    until(lambda: box not in listed(), "it ends")
    assert_equal(inspect(box)["end_reason"], "crashed")
    assert_no_leaks()


@test
def test_terminated_supervisor_ends_properly():
    box = create()
    os.kill(supervisor_pid(box), signal.SIGTERM)
    until(lambda: box not in listed(), "it ends")
    assert_equal(inspect(box)["end_reason"], "killed")
    assert_no_leaks()


@test
def test_everything_killed_at_once():
    boxes = [create() for _ in range(3)]
    assert kill_instance() > 3
    assert not set(boxes) & set(listed())
    assert_equal({inspect(box)["end_reason"] for box in boxes}, {"crashed"})
    assert_no_leaks()
    assert_equal(husk("run", "--", "echo", "works").text, "works\n")


@test
def test_killed_clients_leave_nothing():
    # create, fork, snapshot and hibernate with the client killed at some moment of each.
    dice = random.Random(11)
    box = create()
    for _ in range(4):
        for command in (
            ["create"],
            ["fork", box, "-n", "2"],
            ["snapshot", "create", box],
            ["run", "--", "sleep", "100"],
        ):
            with ending(start(*command)) as client:
                time.sleep(dice.uniform(0, 0.25))
                client.kill()
    for one in listed():
        if one != box:
            adopt(one)
    for snapshot in husk("snapshot", "ls", "--json").json():
        adopt_snapshot(snapshot["id"])
    assert_equal(sh(box, "echo fine"), "fine", "the parent of it all")
    until(lambda: all(entry["state"] == "running" for entry in husk("ls", "--json").json()), "none hangs half-made")
    husk("gc")
    assert_no_leaks()


@test
def test_killed_while_hibernating():
    dice = random.Random(12)
    for _ in range(6):
        box = create()
        sh(box, "echo kept >/root/note")
        with ending(start("hibernate", box)) as client:
            time.sleep(dice.uniform(0, 0.2))
            try:
                os.kill(supervisor_pid(box), signal.SIGKILL)
            except OSError:
                pass  # it has gone to sleep already
            client.wait(30)
        entry = inspect(box)
        assert entry["state"] in ("hibernated", "ended"), entry
        if entry["state"] == "hibernated":
            assert_equal(sh(box, "cat /root/note"), "kept", "what calls itself hibernated can be woken")
        husk("rm", "-f", box)
    assert_no_leaks()


@test
def test_interrupted_create():
    before = set(listed())
    for delay in (0.0, 0.02, 0.05, 0.1):
        with ending(start("create", start_new_session=True)) as client:
            time.sleep(delay)
            client.send_signal(signal.SIGINT)
            out, _ = client.communicate(timeout=30)
            if client.returncode == 0:
                adopt(out.decode().strip())
                before.add(out.decode().strip())
    until(lambda: set(listed()) <= before, "an interrupted create leaves no sandbox")
    assert_no_leaks()


@test
def test_lock_without_a_sandbox():
    # A client that was killed after it took the lock and before it wrote the row.
    stray = f"{HOME}/run/sb-aaaaaaaaaa.lock"
    open(stray, "wb").close()
    assert_in(stray, husk("doctor", "--leaks", code=1).text)
    husk("gc")
    assert not os.path.exists(stray)
    box = create()
    husk("gc")
    assert_equal(sh(box, "echo fine"), "fine", "one that is held stays")
    assert_no_leaks()


@test
def test_socket_without_a_supervisor():
    """A supervisor that was killed between the last change of its row and its own end: the row says hibernated or ended, or
    is gone, and leads nobody to the socket."""
    asleep, ended, awake = create(), create(), create()
    husk("hibernate", asleep)
    remove(ended)
    strays = [f"{HOME}/run/{name}.sock" for name in (asleep, ended, "sb-aaaaaaaaaa")]

    def leave_sockets():
        for path in strays:
            with socket.socket(socket.AF_UNIX) as gone:
                gone.bind(path)

    leave_sockets()
    husk("rm", asleep)
    assert_equal([path for path in strays if os.path.exists(path)], [], "after the next call")
    leave_sockets()
    assert_equal(sh(awake, "echo fine"), "fine", "one that has its supervisor stays")
    assert os.path.exists(f"{HOME}/run/{awake}.sock")
    assert_no_leaks()


if __name__ == "__main__":
    main("base")
