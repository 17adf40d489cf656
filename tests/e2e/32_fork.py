#!/usr/bin/python3
"""Fork: children that go on from one instant of the parent, each its own machine, none able to hurt another."""

# timeout: 1800
from lib.harness import *


@test
def test_counter_goes_on_in_every_child():
    box = create("-e", "E2E_KEPT=1", "-m", "kind=parent")
    start_counter(box)
    at_least = len(ticks(box))
    children = fork(box, "-n", "3")
    assert_equal(len(set(children)), 3)
    first = set()
    for child in children:
        seen = assert_ticking(child)
        own = [line[0] for line in seen if line[2] == child]
        assert own and own[0] > at_least, f"{child} did not go on under its own name: {seen[-3:]}"
        assert_equal({line[2] for line in seen}, {box, child})
        first.add(own[0])
        entry = inspect(child)
        assert_equal((entry["parent"], entry["state"], entry["metadata"]), (box, "running", {"kind": "parent"}))
        assert_equal(sh(child, "echo $E2E_KEPT"), "1")
    assert_equal(len(first), 1, f"children did not go on from one instant: {first}")
    parent = assert_ticking(box)
    assert_equal({line[2] for line in parent}, {box})
    assert len(parent) >= first.pop()
    assert_in("forked", event_kinds(box))


@test
def test_each_has_its_own_identity():
    box = create()
    children = fork(box, "-n", "3")
    everyone = [box, *children]
    for command in (
        "hostname",
        "cat /proc/sys/kernel/hostname",
        "cat /etc/machine-id",
        "od -An -tx8 -N16 /dev/urandom",
        "python3 -c 'import random,os; print(random.random(), os.getrandom(8))'",
    ):
        answers = [sh(one, command) for one in everyone]
        assert_equal(len(set(answers)), len(everyone), f"{command}: {answers}")
    assert_equal([sh(one, "hostname") for one in everyone], everyone)
    for one in everyone:
        assert_equal(sh(one, "getent hosts $(hostname) >/dev/null && echo known"), "known", "its own name resolves")


@test
def test_clock_is_right_in_children():
    import time

    box = create()
    (child,) = fork(box)
    for one in (box, child):
        before = time.time()
        inside = float(sh(one, "date +%s.%N"))
        assert before - 2 <= inside <= time.time() + 2, (before, inside)


@test
def test_files_are_independent():
    box = create()
    sh(box, "echo common >/root/common")
    one, two = fork(box, "-n", "2")
    sh(one, "echo one >/root/own; echo changed >/root/common")
    assert_equal(sh(two, "cat /root/common; ls /root/own 2>/dev/null || echo none"), "common\nnone")
    assert_equal(sh(box, "cat /root/common; ls /root/own 2>/dev/null || echo none"), "common\nnone")
    sh(box, "echo parent >/root/own")
    assert_equal(sh(one, "cat /root/own"), "one")


@test
def test_destruction_stays_inside():
    box = create()
    start_counter(box)
    one, two = fork(box, "-n", "2")
    husk("exec", one, "--", "rm", "-rf", "--no-preserve-root", "/", code=None, timeout=120)
    for other in (box, two):
        assert_ticking(other)
        assert_equal(sh(other, "python3 -c 'print(6*7)'"), "42")
    assert_equal(husk("run", "--", "echo", "fresh").text, "fresh\n", "nor is the template hurt")


@test
def test_forks_of_forks():
    line = [create()]
    start_counter(line[0])
    for _ in range(3):
        line.append(fork(line[-1])[0])
        assert_ticking(line[-1])
    assert_equal({entry[2] for entry in ticks(line[3])}, set(line), "the last one remembers its whole line")
    for one in line:
        assert_ticking(one)
    assert_equal([inspect(one)["parent"] for one in line], [None, *line[:3]])


@test
def test_children_outlive_the_parent():
    box = create()
    start_counter(box)
    children = fork(box, "-n", "2")
    husk("rm", box)
    for child in children:
        assert_ticking(child)


@test
def test_open_processes_and_output_come_along():
    box = create()
    pid = husk("exec", "-d", "--json", box, "--", "sh", "-c", "echo early; sleep 2; echo late").json()["pid"]
    until(lambda: husk("ps", "--json", box).json()[-1]["stdout_bytes"], "it has spoken")
    (child,) = fork(box)
    for one in (box, child):
        assert_equal(husk("attach", one, str(pid)).out, b"early\nlate\n")


@test
def test_options():
    box = create("--memory", "512M")
    (child,) = fork(box, "--name", "e2e-child", "--memory", "300M", "--ttl", "5m", "-m", "a=b", "-e", "E2E_NEW=1")
    entry = inspect("e2e-child")
    assert_equal((entry["id"], entry["memory_bytes"], entry["metadata"]), (child, 300 << 20, {"a": "b"}))
    assert_equal(sh(child, "echo $E2E_NEW"), "1")
    assert_fails("fork", box, "-n", "2", "--name", "x", code=2, says="name")
    for count in ("0", "-1", "100000", "x"):
        assert_fails("fork", box, "-n", count, code=2, says=count)
    assert_fails("fork", "sb-nosuchone", code=3, says="sb-nosuchone")
    assert_fails("fork", box, "--name", "e2e-child", code=1, says="e2e-child")


@test
def test_while_it_is_busy():
    # A fork in the middle of much output and many processes loses nothing of either, in parent and child.
    box = create()
    script = "for i in $(seq 1 30000); do echo line $i; done; echo end"
    with ending(start("exec", box, "--", "sh", "-c", script)) as client:
        until(lambda: husk("ps", "--json", box).json(), "it has started")
        (child,) = fork(box)
        out, err = client.communicate(timeout=120 * SLOW)
    wanted = b"".join(b"line %d\n" % n for n in range(1, 30001)) + b"end\n"
    assert_equal(client.returncode, 0, err.decode())
    assert_equal(out, wanted, "the parent's client")
    pid = husk("ps", "--json", child).json()[-1]["pid"]
    assert_equal(husk("attach", child, str(pid), timeout=120).out, wanted, "the child's copy")


@test
def test_eight_at_once():
    box = create()
    start_counter(box)
    children = fork(box, "-n", "8", timeout=120)
    for child in children:
        assert_ticking(child)


@test
def test_fork_ends_with_its_parent():
    box = create("--ttl", "15m", "--on-expiry", "hibernate")
    parent = inspect(box)
    (child,) = fork(box)
    (told,) = fork(box, "--ttl", "2h", "--on-expiry", "kill")
    assert_equal((inspect(child)["expires_at"], inspect(child)["on_expiry"]), (parent["expires_at"], "hibernate"))
    assert_equal(inspect(told)["on_expiry"], "kill")
    assert inspect(told)["expires_at"] > parent["expires_at"], (inspect(told), parent)


if __name__ == "__main__":
    main("base")
