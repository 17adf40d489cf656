#!/usr/bin/python3
"""Processes that outlive their client: detached starts, the list, attaching from an offset, slow readers, signals."""

# timeout: 1800
import os
import signal
import subprocess

from lib.harness import *


def detached(box, *command, options=()):
    return husk("exec", "-d", "--json", *options, box, "--", *command).json()["pid"]


def process(box, pid):
    return next(entry for entry in husk("ps", "--json", box).json() if entry["pid"] == pid)


@test
def test_fresh_sandbox_has_no_processes():
    assert_equal(husk("ps", "--json", create()).json(), [], "what the template's bake ran is not the sandbox's")


@test
def test_detached_ps_attach():
    box = create()
    pid = detached(
        box, "sh", "-c", "echo one; echo two >&2; sleep 0.5; echo three; exit 5", options=["--label", "work"]
    )
    seen = process(box, pid)
    assert_equal((seen["label"], seen["argv"][0], seen["user"]), ("work", "sh", "root"))
    result = husk("attach", box, str(pid), code=5)
    assert_equal((result.out, result.err), (b"one\nthree\n", b"two\n"))
    seen = process(box, pid)
    assert_equal((seen["running"], seen["exit_code"], seen["stdout_bytes"], seen["stderr_bytes"]), (False, 5, 10, 4))
    assert_equal(husk("attach", box, str(pid), code=5).out, b"one\nthree\n", "a finished process replays")
    assert_in("work", husk("ps", box).text)
    assert_equal(husk("exec", "-d", box, "--", "true").text.strip().isdigit(), True)


@test
def test_attach_from_an_offset():
    box = create()
    pid = detached(box, "sh", "-c", "printf 0123456789; printf abcdef >&2")
    husk("attach", box, str(pid))
    done = husk("attach", "--json", "--offset", "4", "--stderr-offset", "2", box, str(pid)).json()
    assert_equal((done["stdout"], done["stderr"]), ("456789", "cdef"))
    assert_equal((done["stdout_offset"], done["stderr_offset"], done["stdout_dropped"]), (4, 2, 0))
    assert_fails("attach", box, "999999", code=125, says="999999")
    assert_fails("attach", box, "x1", code=125, says="x1")


@test
def test_dropped_output_is_counted():
    box = create()
    pid = detached(box, "sh", "-c", "head -c 40000000 /dev/zero | tr '\\0' x; printf END")
    until(lambda: not process(box, pid)["running"], "it ends though nobody reads", seconds=60)
    done = husk("attach", "--json", box, str(pid), timeout=120).json()
    total = process(box, pid)["stdout_bytes"]
    assert_equal(total, 40000003)
    kept = len(done["stdout"]) + done["stdout_lost"]
    assert_equal(done["stdout_offset"] + kept, total, "offset and what is kept add up")
    assert_equal(done["stdout_dropped"], done["stdout_offset"], "what is not kept is counted")
    assert done["stdout"].endswith("END") and done["stdout_dropped"] > 0, done["stdout_dropped"]


@test
def test_more_output_is_kept_on_the_disk():
    """Beyond 1 MiB in a file: whole, then as a ring, through a fork, and with less room on the disk than was asked for."""
    box = create("--disk", "256M")
    numbers = ["sh", "-c", "seq 1 1000000; printf END"]  # 6,888,899 bytes
    wanted = b"".join(b"%d\n" % i for i in range(1, 1000001)) + b"END"
    pids = {size: husk("exec", "-d", "--keep-output", size, box, "--", *numbers).text.strip() for size in ("16M", "4M")}
    for pid in map(int, pids.values()):
        until(lambda: not process(box, pid)["running"], "it ends though nobody reads", seconds=60)
    assert_equal(husk("attach", box, pids["16M"], timeout=120).out, wanted, "all of it")
    assert_equal(husk("attach", "--offset", "3000000", box, pids["16M"], timeout=120).out, wanted[3000000:])
    done = husk("attach", "--json", box, pids["4M"], timeout=120).json()
    assert_equal(done["stdout"].encode(), wanted[-(4 << 20):], "the newest 4 MiB")
    assert_equal(done["stdout_dropped"], len(wanted) - (4 << 20))
    child = husk("fork", box).text.strip()
    assert_equal(husk("attach", child, pids["16M"], timeout=120).out, wanted, "in a fork")
    held = f"while [ -e /root/hold ]; do sleep 0.05; done; {numbers[2]}"
    husk("exec", box, "--", "touch", "/root/hold")
    late = husk("exec", "-d", "--keep-output", "16M", "-c", held, box).text.strip()
    husk("exec", box, "--", "sh", "-c", "dd if=/dev/zero of=/root/fill bs=1M 2>/dev/null; rm /root/hold")
    until(lambda: not process(box, int(late))["running"], "it ends on a full disk too", seconds=60)
    tail = husk("attach", box, late, timeout=120).out
    assert len(tail) >= (1 << 20) and wanted.endswith(tail), len(tail)
    assert_fails("exec", "-d", "--keep-output", "2T", box, "--", "true", code=125, says="keep-output")


@test
def test_reattach_after_the_client_was_killed():
    box = create()
    script = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo line $i; sleep 0.05; done"
    with ending(start("exec", box, "--", "sh", "-c", script)) as client:
        seen = b"".join(client.stdout.readline() for _ in range(5))
        client.send_signal(signal.SIGKILL)
    pid = husk("ps", "--json", box).json()[-1]["pid"]
    rest = husk("attach", "--offset", str(len(seen)), box, str(pid)).out
    assert_equal(seen + rest, b"".join(b"line %d\n" % n for n in range(1, 61)), "no byte lost or doubled")


@test
def test_slow_reader_stalls_nobody():
    box = create()
    with ending(start("exec", box, "--", "sh", "-c", "yes | head -c 30000000; echo done >/tmp/finished")) as slow:
        slow.stdout.read(1)  # and then no more
        assert_equal(sh(box, "echo still here"), "still here")
        assert_equal(len(husk("exec", box, "--", "head", "-c", "5000000", "/dev/zero").out), 5000000)
        out, _ = slow.communicate(timeout=120 * SLOW)
        assert_equal(len(out), 30000000 - 1, "and the slow one gets everything")


@test
def test_slow_writer_stalls_nobody():
    box = create()
    with ending(start("exec", "-i", box, "--", "sleep", "1000", stdin=subprocess.PIPE)) as stuck:
        try:
            stuck.stdin.write(b"x" * 65536)
            stuck.stdin.flush()
        except BrokenPipeError:
            pass
        assert_equal(husk("exec", "-i", box, "--", "wc", "-c", stdin=b"y" * 4_000_000).text.strip(), "4000000")


@test
def test_signals():
    box = create()
    with ending(
        start("exec", box, "--", "sh", "-c", "trap 'echo term; exit 3' TERM; echo up; while :; do sleep 0.1; done")
    ) as p:
        assert_equal(p.stdout.readline(), b"up\n")
        p.send_signal(signal.SIGTERM)
        out, _ = p.communicate(timeout=30 * SLOW)
        assert_equal((out, p.returncode), (b"term\n", 3))


@test
def test_zombies_are_reaped():
    box = create()
    sh(box, "for i in $(seq 50); do (sh -c 'sleep 0.01 &' ) & done; wait; sleep 0.5")
    until(lambda: sh(box, "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true") == "0", "no zombie stays")


@test
def test_output_after_the_parent_ended():
    box = create()
    # A child that keeps the pipe open must not keep the call from ending for ever, nor lose what was said before.
    result = husk("exec", box, "--", "sh", "-c", "(sleep 300 &) ; echo said", timeout=30)
    assert_equal(result.out, b"said\n")


@test
def test_detached_program_that_is_not_there():
    box = create()
    assert_fails("exec", "-d", box, "--", "nosuchprogram", "x", code=127, says=["nosuchprogram", "not found"])
    assert_fails("exec", "-d", box, "--", "/etc/passwd", code=126, says=["/etc/passwd", "cannot be executed"])
    assert_equal(husk("ps", "--json", box).json(), [])
    assert int(husk("exec", "-d", box, "--", "true").text) > 1


@test
def test_a_signal_ends_exec_whatever_the_supervisor_does():
    box = create()
    with ending(start("exec", box, "--", "sh", "-c", "echo ready; sleep 1000", start_new_session=True)) as client:
        assert_equal(client.stdout.readline(), b"ready\n")
        supervisor = supervisor_pid(box)
        os.kill(supervisor, signal.SIGSTOP)
        try:
            client.send_signal(signal.SIGTERM)
            client.communicate(timeout=90 * SLOW)
        finally:
            os.kill(supervisor, signal.SIGCONT)
        assert_equal(client.returncode, 128 + signal.SIGTERM)


if __name__ == "__main__":
    main("base")
