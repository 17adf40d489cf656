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
    # the guest's kernel counts a few processes late
    assert 5 <= int(count) <= 64 and "temporarily unavailable" in why, result


@test
def test_disk_filler():
    neighbour = create()
    box = create("--disk", "128M")
    result = husk("exec", box, "--", "sh", "-c", "head -c 1G /dev/zero >/root/filler; echo $?", timeout=120)
    assert_in("No space left", result.error)
    written = int(sh(box, "stat -c %s /root/filler"))
    assert 32 << 20 < written <= 128 << 20, written
    assert_neighbour(neighbour)
    assert_equal(sh(box, "rm /root/filler; echo again >/root/f && cat /root/f"), "again")
    assert_in("No space left", husk("exec", box, "--", "sh", "-c", "cd /tmp; head -c 1G /dev/zero >f; true").error)


@test
def test_disk_limit_holds_after_a_fork_and_a_sleep():
    box = create("--disk", "96M")
    sh(box, "head -c 50000000 /dev/zero >/root/half")
    (child,) = fork(box)
    husk("hibernate", box)
    for one in (box, child):
        result = husk("exec", one, "--", "sh", "-c", "head -c 100000000 /dev/zero >/root/more; true", timeout=120)
        assert_in("No space left", result.error)
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


@test
def test_limits_are_seen_inside():
    box = create("--memory", "256M", "--disk", "200M")
    size = int(sh(box, "df -B1 --output=size / | tail -1"))
    assert 150 << 20 <= size <= 220 << 20, size
    stats = husk("stats", "--json", box).json()
    assert_equal((stats["memory_limit"], stats["disk_limit"] <= 220 << 20), (256 << 20, True))


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


if __name__ == "__main__":
    main("base")
