#!/usr/bin/python3
"""Hibernate and wake: nothing left running, everything going on afterwards; by hand, by idleness, by the next call."""

# timeout: 1800
import os
import time

from lib.harness import *


def machines_of(box):
    """Whether the sandbox has a process on the host."""
    return os.path.exists(f"{HOME}/run/{box}.sock")


@test
def test_hibernate_and_wake():
    box = create()
    start_counter(box)
    pid = supervisor_pid(box)
    before = len(ticks(box))
    husk("hibernate", box)
    assert_equal(inspect(box)["state"], "hibernated")
    until(lambda: not runs(pid), "its supervisor ends")
    assert not machines_of(box), "nothing of it listens"
    husk("wake", box)
    assert_equal(inspect(box)["state"], "running")
    assert len(assert_ticking(box)) > before
    assert_equal(sh(box, "hostname"), box)
    assert_equal([kind for kind in event_kinds(box)], ["created", "hibernated", "woken"])
    husk("wake", box)  # awake already: fine
    assert_no_leaks()


@test
def test_a_reboot_keeps_the_files_or_changes_nothing():
    box = create()
    start_counter(box)
    sh(box, "echo kept >/root/kept")
    done = husk("reboot", box, code=None)
    if done.code == 0:  # a cloned disk
        assert_equal(sh(box, "cat /root/kept; pgrep -c python3 || true"), "kept\n0")
        husk("hibernate", box)
        husk("restart", box)
        assert_equal(sh(box, "cat /root/kept; hostname"), f"kept\n{box}")
        assert_equal(event_kinds(box), ["created"] + ["hibernated", "rebooted"] * 2)
    else:
        assert_in("cannot reboot", done.error)
        assert_ticking(box)
        husk("hibernate", box)
        assert_in("cannot reboot", husk("reboot", box, code=done.code).error)
        assert_equal(inspect(box)["state"], "hibernated")
        assert_ticking(box)
    assert_fails("reboot", "nobody", code=3, says="not found")
    assert_no_leaks()


@test
def test_survives_the_death_of_everything():
    box = create()
    start_counter(box)
    sh(box, "echo kept >/root/note")
    before = len(ticks(box))
    husk("hibernate", box)
    kill_instance()
    assert not instance_processes(), "something of Husk still runs"
    assert_equal(sh(box, "cat /root/note"), "kept", "the next exec wakes it")
    assert len(assert_ticking(box)) > before
    assert_no_leaks()


@test
def test_again_and_again():
    box = create()
    start_counter(box)
    for _ in range(3):
        husk("hibernate", box)
        assert_ticking(box)
    assert_equal(event_kinds(box), ["created"] + ["hibernated", "woken"] * 3)


@test
def test_output_and_processes_come_along():
    box = create()
    pid = husk("exec", "-d", "--json", box, "--", "sh", "-c", "echo early; sleep 1; echo late; exit 4").json()["pid"]
    until(lambda: husk("ps", "--json", box).json()[-1]["stdout_bytes"], "it has spoken")
    husk("hibernate", box)
    assert_equal(husk("attach", box, str(pid), code=4).out, b"early\nlate\n")


@test
def test_clock_is_right_after_a_sleep():
    box = create()
    husk("hibernate", box)
    time.sleep(3)
    before = time.time()
    inside = float(sh(box, "date +%s.%N"))
    assert before - 2 <= inside <= time.time() + 2, (before, inside)


@test
def test_idle():
    box = create("--idle", "1")
    start_counter(box)
    before = len(ticks(box))
    until(lambda: inspect(box)["state"] == "hibernated", "it hibernates when idle")
    assert len(assert_ticking(box)) > before, "and wakes by the next call"
    until(lambda: inspect(box)["state"] == "hibernated", "and again")


@test
def test_not_idle_while_a_call_is_open():
    box = create("--idle", "1")
    assert_equal(sh(box, "sleep 3; echo undisturbed"), "undisturbed")
    assert "hibernated" not in event_kinds(box)


@test
def test_persistent_is_not_put_to_sleep():
    box = create("--idle", "1", "--persistent")
    time.sleep(3)
    assert_equal(inspect(box)["state"], "running")


@test
def test_ttl_of_a_hibernated_one():
    box = create("--ttl", "4")
    husk("hibernate", box)
    time.sleep(4)
    assert_fails("exec", box, "--", "true", code=125, says=[box, "ttl"])
    assert_equal((inspect(box)["state"], inspect(box)["end_reason"]), ("ended", "ttl"))
    assert_no_leaks()


@test
def test_what_works_on_a_hibernated_one():
    box = create()
    husk("hibernate", box)
    assert_in(box, listed("--state", "hibernated"))
    husk("hibernate", box, code=None)
    assert_equal(inspect(box)["state"], "hibernated", "being told twice does not wake it")
    husk("extend", box, "2h")
    husk("stats", code=0)
    assert_equal(inspect(box)["state"], "hibernated", "looking and extending do not wake it")
    children = fork(box, "-n", "2")
    assert_equal([sh(child, "echo ok") for child in children], ["ok", "ok"])
    husk("hibernate", box)
    husk("rm", box)
    assert box not in listed()
    assert not os.path.exists(f"{HOME}/sandboxes/{box}/image"), "its image is gone"


@test
def test_many_wakers_at_once():
    box = create()
    start_counter(box)
    husk("hibernate", box)
    callers = [start("exec", box, "--", "echo", str(n)) for n in range(6)]
    for n, caller in enumerate(callers):
        with ending(caller):
            out, err = caller.communicate(timeout=60 * SLOW)
            assert_equal((out, caller.returncode), (f"{n}\n".encode(), 0), err.decode())
    assert_equal(event_kinds(box).count("woken"), 1)
    assert_ticking(box)


if __name__ == "__main__":
    main("base")
