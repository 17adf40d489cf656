#!/usr/bin/python3
"""Limits that hold: fork bomb, memory hog, disk filler and busy loop each end inside their own sandbox, with a reason,
while the neighbour and the host go on."""

# timeout: 1800
import os
import time

from lib.harness import *

HOG = "b = []\nwhile True: b.append(bytearray(b'x' * (8 << 20)))"


def assert_neighbour(box):
    assert_equal(sh(box, "echo fine", timeout=30), "fine", "the neighbour")
    assert_equal(os.popen("echo host").read(), "host\n")


@test
def test_memory_hog():
    neighbour = create()
    box = create("--memory", "192M")
    done = husk("exec", "--json", box, "--", "python3", "-c", HOG, code=137, timeout=120).json()
    assert_equal((done["out_of_memory"], done["exit_code"], done["timed_out"]), (True, 137, False))
    assert_neighbour(neighbour)
    assert_equal(sh(box, "echo lives", timeout=60), "lives", "its sandbox goes on")
    until(lambda: "oom" in event_kinds(box), "the event of it")
    result = husk("exec", box, "--", "python3", "-c", HOG, code=137, timeout=120)
    assert_in("memory", result.error)
    done = husk("run", "--json", "--memory", "192M", "--", "python3", "-c", HOG, code=137, timeout=120).json()
    assert_equal(done["out_of_memory"], True)


@test
def test_resize():
    box = create("--memory", "192M", "--cpus", "1")
    shown = "nproc; sed -n 's/MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo"
    big = "b = b'x' * (300 << 20); print(len(b))"
    stays = f"{big}; import time; time.sleep(100)"  # relief takes a moment
    husk("exec", box, "--", "python3", "-c", stays, code=137, timeout=120)
    husk("resize", box, "--memory", "512M", "--cpus", "2")
    assert_equal(sh(box, shown).split(), [str(min(2, os.cpu_count())), str(512 << 10)])
    assert_equal(sh(box, f'python3 -c "{big}"', timeout=120), str(300 << 20), "what did not fit before")
    found = husk("inspect", box, "--json").json()
    assert_equal((found["memory_bytes"], found["cpus"]), (512 << 20, 2))
    husk("resize", box, "--memory", "192M")
    husk("exec", box, "--", "python3", "-c", stays, code=137, timeout=120)
    husk("hibernate", box)
    husk("resize", box, "--memory", "1G", "--cpus", "1")
    assert_equal(sh(box, shown).split(), ["1", str(1 << 20)])
    husk("pause", box)
    assert_in("resume it first", husk("resize", box, "--cpus", "2", code=None).error)
    husk("resume", box)
    assert_in("needs a limit", husk("resize", box, code=2).error)
    husk("resize", box, "--memory", "1M", code=2)


@test
def test_two_resizes_at_once_undo_nothing_of_each_other():
    box = create("--memory", "512M", "--cpus", "2")
    for asleep in (False, True):
        for turn in range(1, 7):
            if asleep and turn == 1:
                husk("hibernate", box)
            memory, cpus = 256 + 16 * turn, 0.5 + turn / 10
            with ending(start("resize", box, "--memory", f"{memory}M")) as one:
                with ending(start("resize", box, "--cpus", f"{cpus:.1f}")) as other:
                    assert_equal((one.wait(60), other.wait(60)), (0, 0))
            entry = inspect(box)
            assert_equal((entry["memory_bytes"] >> 20, entry["cpus"]), (memory, cpus), f"turn {turn}, asleep: {asleep}")
    assert_equal(inspect(box)["state"], "hibernated")


@test
def test_memory_hog_of_a_helper():
    # As python3 of code-interpreter: a helper runs it in a session of its own, and the one that asked ends as it does.
    box = create("--memory", "192M")
    helper = f"until [ -e /tmp/go ]; do sleep 0.1; done; setsid python3 -c \"{HOG}\"; touch /tmp/dead; sleep 600"
    husk("exec", "-d", box, "--", "sh", "-c", helper)
    asks = "touch /tmp/go; until [ -e /tmp/dead ]; do sleep 0.1; done; kill -9 $$"
    done = husk("exec", "--json", box, "--", "sh", "-c", asks, code=137, timeout=120).json()
    assert_equal(done["out_of_memory"], True)


@test
def test_memory_hog_of_many_processes():
    neighbour = create()
    box = create("--memory", "256M")
    script = f"for i in 1 2 3 4; do python3 -c \"{HOG}\" & done; wait; exit 3"
    husk("exec", box, "--", "sh", "-c", script, code=None, timeout=180)
    until(lambda: "oom" in event_kinds(box), "the event of it")
    assert_neighbour(neighbour)
    assert_equal(sh(box, "echo lives", timeout=60), "lives")


@test
def test_memory_hog_in_tmpfs():
    neighbour = create()
    box = create("--memory", "192M")
    script = "mkdir -p /mnt/t; mount -t tmpfs none /mnt/t || exit 0; head -c 2G /dev/zero >/mnt/t/f; echo end $?"
    husk("exec", box, "--", "sh", "-c", script, code=None, timeout=180)
    assert_neighbour(neighbour)
    # Either it is refused inside, or the sandbox is ended for memory and says so: never a bare dead run.
    entry = inspect(box)
    if entry["state"] == "ended":
        assert_equal(entry["end_reason"], "oom")


@test
def test_fork_bomb():
    neighbour = create()
    box = create("--pids", "64", "--memory", "512M")
    bomb = "bomb() { bomb | bomb & }; bomb 2>/tmp/err; sleep 3; exit 0"
    husk("exec", "--timeout", "20", box, "--", "sh", "-c", bomb, code=None, timeout=120)
    assert_neighbour(neighbour)
    count = processes(neighbour)
    assert count < 50, f"the neighbour sees {count} processes"


@test
def test_process_limit_is_a_clear_error():
    box = create("--pids", "32")
    script = (
        "import os,sys,time\nn=0\ntry:\n while True:\n  p=os.fork()\n  if p==0: time.sleep(1000)\n  n+=1\n"
        "except OSError as e: print(n, e.strerror)"
    )
    result = husk("exec", "--timeout", "60", box, "--", "python3", "-c", script, timeout=120, code=None)
    assert result.code == 0, result
    count, why = result.text.split(" ", 1)
    # Debian's gVisor looks at the limit in one of seven forks only (docs/security.md): 160 is a chance of 1 in 400 million.
    # The current one, and a kernel, look at each; a program of the sandbox's own may be there beside python.
    most = 32 if os.environ.get("HUSK_RUNSC") else 160
    assert 5 <= int(count) <= most and "temporarily unavailable" in why, result


def assert_full(text):
    """The disk is: a cloned one (38_clones.py) says so in other words."""
    assert "No space left" in text or ("Disk quota exceeded" in text and has_cloned_disks()), text


def has_cloned_disks():
    return any("cloned by btrfs" in check["text"] for check in husk("doctor", "--json", code=None).json())


@test
def test_disk_filler():
    neighbour = create()
    box = create("--disk", "128M")
    result = husk("exec", box, "--", "sh", "-c", "head -c 1G /dev/zero >/root/filler; echo $?", timeout=120)
    assert_full(result.error)
    written = int(sh(box, "stat -c %s /root/filler"))
    assert 32 << 20 < written <= 128 << 20, written
    assert_neighbour(neighbour)
    until(lambda: "disk" in event_kinds(box), "the event of it")
    (event,) = [entry["detail"] for entry in husk("events", "--json", box).json() if entry["kind"] == "disk"]
    assert event["disk_limit"] == 128 << 20 and 100 << 20 < event["disk"] <= 128 << 20, event
    assert_equal(sh(box, "rm /root/filler; echo again >/root/f && cat /root/f"), "again")
    if has_cloned_disks():
        time.sleep(6)  # it is looked at every 5 s: the room must be seen too
    assert_full(husk("exec", box, "--", "sh", "-c", "cd /tmp; head -c 1G /dev/zero >f; true").error)
    until(lambda: event_kinds(box).count("disk") == 2, "full again, another event")


@test
def test_disk_limit_holds_after_a_fork_and_a_sleep():
    box = create("--disk", "96M")
    sh(box, "head -c 50000000 /dev/zero >/root/half")
    (child,) = fork(box)
    husk("hibernate", box)
    for one in (box, child):
        result = husk("exec", one, "--", "sh", "-c", "head -c 100000000 /dev/zero >/root/more; true", timeout=120)
        assert_full(result.error)
        total = int(sh(one, "du -sb /root | cut -f1"))
        assert total <= 96 << 20, total


@test
def test_cpu_limit():
    # Counts CPU time that was used, not how long anything took.
    box = create("--cpus", "0.2")
    husk("exec", "-d", box, "--", "sh", "-c", "while :; do :; done")
    husk("exec", "-d", box, "--", "sh", "-c", "while :; do :; done")
    first, begin = husk("stats", "--json", box).json()["cpu_us"], time.monotonic()
    time.sleep(3)
    used, took = husk("stats", "--json", box).json()["cpu_us"] - first, time.monotonic() - begin
    assert used / 1e6 < took * 0.45, f"used {used / 1e6:.2f} s of CPU in {took:.2f} s"
    assert_equal(sh(box, "echo slow but there"), "slow but there")


def seen(box):
    """What programs ask: (MemTotal, MemAvailable, processors by affinity, online and listed, /dev/shm), sizes in bytes."""
    script = (
        "awk '/^Mem(Total|Available):/ {print $2 * 1024}' /proc/meminfo; nproc; cat /sys/devices/system/cpu/online; "
        "grep -c ^processor /proc/cpuinfo; df -B1 --output=size /dev/shm | tail -1"
    )
    return [word if "-" in word else int(word) for word in sh(box, script).split()]


@test
def test_limits_are_what_programs_see():
    box = create("--memory", "300M", "--cpus", "0.5")
    total, available, affinity, online, listed, shm = seen(box)
    assert_equal((total, affinity, online, listed, shm), (300 << 20, 1, 0, 1, 150 << 20))
    # At least half: the kernel of a virtual machine counts its own memory and its reserves as in use.
    assert total // 2 <= available <= total, available
    # The group that holds or shows it: a virtual machine's, gVisor's of the first version, gVisor's of the second.
    files = ("memory/memory.limit_in_bytes", "memory/workload/memory.limit_in_bytes", "workload/memory.max")
    group = "cat " + " ".join(f"/sys/fs/cgroup/{file}" for file in files)
    assert_equal(int(husk("exec", box, "--", "sh", "-c", group, code=None).text.split()[-1]), 300 << 20)
    # What is in use is seen soon, and its end too.
    hold = "b = bytearray(100 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\nimport time; time.sleep(600)"
    pid = husk("exec", "-d", box, "--", "python3", "-c", hold).text.strip()
    until(lambda: seen(box)[1] < available - (80 << 20), "less is available")
    sh(box, f"kill -9 {pid}")
    until(lambda: seen(box)[1] > available - (40 << 20), "it is available again")
    # In each life: its copy has the same, and what lay in /dev/shm.
    sh(box, "echo here >/dev/shm/file")
    child = husk("fork", box).text.strip()
    assert_equal((seen(child)[0], seen(child)[2], seen(child)[5]), (300 << 20, 1, 150 << 20))
    assert_equal(sh(child, "cat /dev/shm/file"), "here")
    other = create("--memory", "1G", "--cpus", "2")
    assert_equal((seen(other)[0], seen(other)[2], seen(other)[5]), (1 << 30, min(2, os.cpu_count()), 512 << 20))


@test
def test_out_of_memory_is_who_was_killed():
    # The child of one that goes on is killed: that one has ended as it liked. The event names the killed one.
    box = create("--memory", "192M")
    script = f"python3 -c \"{HOG}\"; echo went on; exit 3"
    done = husk("exec", "--json", box, "--", "sh", "-c", script, code=3, timeout=120).json()
    assert_equal((done["out_of_memory"], done["stdout"].split("\n")[-2]), (False, "went on"))
    until(lambda: "oom" in event_kinds(box), "the event of it")
    event = next(entry for entry in husk("events", "--json", box).json() if entry["kind"] == "oom")
    assert_in("python3", str(event))


@test
def test_limits_are_seen_inside():
    box = create("--memory", "256M", "--disk", "200M")
    if not has_cloned_disks():  # there df shows the filesystem that all of them are on
        size = int(sh(box, "df -B1 --output=size / | tail -1"))
        assert 150 << 20 <= size <= 220 << 20, size
    stats = husk("stats", "--json", box).json()
    assert_equal((stats["memory_limit"], stats["disk_limit"] <= 220 << 20), (256 << 20, True))
    for one in (box, *fork(box)):
        assert_equal(sh(one, ". /run/husk/limits; echo $disk_bytes"), str(200 << 20))


@test
def test_log_flood():
    # Output nobody reads is bounded inside the guest.
    neighbour = create()
    box = create("--memory", "256M")
    for _ in range(3):
        husk("exec", "-d", box, "--", "sh", "-c", "yes | head -c 200000000")
    until(lambda: not any(entry["running"] for entry in husk("ps", "--json", box).json()), "they end", seconds=120)
    assert_equal(sh(box, "echo ok"), "ok")
    assert "oom" not in event_kinds(box)
    assert_neighbour(neighbour)


BOMBS = {
    "sh": ["sh", "-c", "bomb() { bomb | bomb & }; bomb"],
    "bash": ["bash", "-c", ":(){ :|:& };:"],
    "deaf": ["sh", "-c", "trap '' HUP INT TERM; bomb() { setsid sh -c 'trap \"\" HUP INT TERM'; bomb | bomb & }; bomb"],
}


def pids_events(box):
    return event_kinds(box).count("pids")


def needs_pids_events():
    if isolation() != "gvisor":
        raise Skip("a guest with a kernel of its own holds the limit itself, and there is no event")


def assert_exec_answers(box, what):
    """An exec that begins while a bomb is being ended may be killed with it (docs/security.md); one of the next is not."""
    last = [None]

    def answers():
        last[0] = husk("exec", box, "--", "echo", "lives", code=None, timeout=60)
        return last[0].out == b"lives\n"

    try:
        until(answers, what, seconds=60)
    except AssertionError as error:
        raise AssertionError(f"{error}: {last[0]}") from None


def assert_bomb_is_over(name, pids):
    """It is ended, with an event. Where the limit is exact, a bomb may instead be held at the limit, waiting for ever."""
    box = create("--pids", str(pids))
    husk("exec", "-d", box, "--", *BOMBS[name])

    def over():
        return pids_events(box) or (os.environ.get("HUSK_RUNSC") and len(husk("ps", box, "--json").json()) <= pids + 2)

    until(over, f"the {name} bomb is over", seconds=60)
    assert_exec_answers(box, f"exec after the {name} bomb")
    if pids_events(box):
        until(lambda: len(husk("ps", box, "--json").json()) < 50, f"nothing is left of the {name} bomb")


@test
def test_fork_bombs_end():
    needs_pids_events()
    neighbour = create()
    for name in BOMBS:
        assert_bomb_is_over(name, 96)
    assert_neighbour(neighbour)


@test
def test_fork_bomb_at_the_default_limits():
    needs_pids_events()
    assert_bomb_is_over("sh", int(inspect(create())["pids"]))


@test
def test_slow_bomb_at_the_limit():
    # At the limit, and always trying for more: fork fails inside, and exec still answers.
    box = create("--pids", "64")
    script = (
        "import os,time\nn=0\nwhile True:\n try:\n  if os.fork()==0: time.sleep(1000)\n  n+=1\n"
        " except OSError:\n  open('/tmp/full','w').write(str(n)); time.sleep(0.05)"
    )
    husk("exec", "-d", box, "--", "python3", "-c", script)
    until(lambda: husk("exec", box, "--", "test", "-e", "/tmp/full", code=None).code == 0, "it is full", seconds=60)
    for _ in range(3):
        time.sleep(1)
        assert_exec_answers(box, "exec beside the bomb")


if __name__ == "__main__":
    main("base")
