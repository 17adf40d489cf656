#!/usr/bin/python3
"""`husk run`: a command's output, input and exit status come through exactly, and the sandbox is gone afterwards."""

# timeout: 1800
import base64
import hashlib
import os
import signal
import subprocess
import time

from lib.harness import *


def assert_nothing_left(before):
    until(lambda: set(listed()) <= before, "run removes its sandbox")


@test
def test_forty_two():
    before = set(listed())
    result = husk("run", "--", "python3", "-c", "print(6*7)")
    assert_equal(result.out, b"42\n")
    assert_nothing_left(before)


@test
def test_exit_status():
    husk("run", "--", "sh", "-c", "exit 7", code=7)
    husk("run", "--", "false", code=1)
    husk("run", "--", "sh", "-c", "exit 255", code=255)


@test
def test_command_not_found_is_127():
    result = husk("run", "--", "no-such-command", code=127)
    assert_in("no-such-command", result.error, "the message names the command")


@test
def test_not_executable_is_126():
    husk("run", "--", "/etc/passwd", code=126)
    husk("run", "--", "/etc", code=126)


@test
def test_killed_is_128_and_the_signal():
    husk("run", "--", "sh", "-c", "kill -9 $$", code=128 + 9)
    husk("run", "--", "sh", "-c", "kill -15 $$", code=128 + 15)
    done = husk("run", "--json", "--", "sh", "-c", "kill -11 $$", code=128 + 11).json()
    assert_equal(done["signal"], 11)
    assert_equal(done["exit_code"], 139)


@test
def test_timeout_is_124_and_kills_the_group():
    box = create()
    script = "sleep 1000 & sleep 1000 & echo started; wait"
    done = husk("exec", "--json", "--timeout", f"{1 * SLOW:.0f}s", box, "--", "sh", "-c", script, code=124).json()
    assert done["timed_out"] is True, done
    assert_equal(done["exit_code"], 124)
    assert_equal(done["stdout"], "started\n")
    until(lambda: sh(box, "ps ax 2>/dev/null | grep -c '[s]leep 1000' || true") in ("0", ""), "the group is killed")
    assert_in("timeout", husk("run", "--timeout", "0.3", "--", "sleep", "100", code=124).error)


@test
def test_stdin_only_when_asked():
    assert_equal(husk("run", "-i", "--", "cat", stdin=b"through\0and\xffback").out, b"through\0and\xffback")
    assert_equal(husk("run", "--", "cat", stdin=b"not read").out, b"")
    assert_equal(husk("run", "-i", "--", "wc", "-c", stdin=b"x" * 3_000_000).text.strip(), "3000000")


@test
def test_stderr_is_separate():
    result = husk("run", "--", "sh", "-c", "echo out; echo err >&2; exit 3", code=3)
    assert_equal(result.out, b"out\n")
    assert_equal(result.err, b"err\n")


@test
def test_binary_output():
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 40)"
    assert_equal(husk("run", "--", "python3", "-c", code).out, bytes(range(256)) * 40)
    done = husk("run", "--json", "--", "python3", "-c", code).json()
    assert_equal(base64.b64decode(done["stdout_base64"]), bytes(range(256)) * 40)


@test
def test_big_output_is_intact():
    code = (
        "import sys,hashlib,random; r=random.Random(7); h=hashlib.sha256()\n"
        "for _ in range(50):\n b=r.randbytes(1<<20); h.update(b); sys.stdout.buffer.write(b)\n"
        "sys.stdout.flush(); sys.stderr.write(h.hexdigest())"
    )
    result = husk("run", "--", "python3", "-c", code, timeout=180)
    assert_equal(len(result.out), 50 << 20)
    assert_equal(hashlib.sha256(result.out).hexdigest(), result.error)


@test
def test_json_of_run():
    done = husk("run", "--json", "--", "sh", "-c", "echo hi; exit 3", code=3).json()
    assert_equal(
        (done["exit_code"], done["stdout"], done["stderr"], done["timed_out"], done["out_of_memory"]),
        (3, "hi\n", "", False, False),
    )
    assert done["id"] and done["boundary"] and done["isolation"] == isolation(), done


@test
def test_options_of_the_process():
    assert_equal(husk("run", "--cwd", "/usr", "--", "pwd").text, "/usr\n")
    assert_equal(husk("run", "--user", "nobody", "--", "id", "-un").text, "nobody\n")
    assert_equal(husk("run", "-c", "echo $((6*7)) | tr 4 x").text, "x2\n")
    assert_equal(husk("run", "-e", "A=b=c d", "--", "printenv", "A").text, "b=c d\n")
    assert_equal(husk("run", "--", "printf", "%s|", "a b", "", "*", "--json", "$x").text, "a b||*|--json|$x|")


@test
def test_keep():
    before = set(listed())
    result = husk("run", "--keep", "--", "touch", "/kept")
    (kept,) = set(listed()) - before
    adopt(kept)
    assert_in(kept, result.error)
    sh(kept, "test -e /kept")


@test
def test_interrupt_reaches_the_command_and_nothing_stays():
    before = set(listed())
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    with ending(start("run", "--", "sh", "-c", script, start_new_session=True)) as process:
        assert_equal(process.stdout.readline(), b"ready\n")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30 * SLOW)
        assert_equal((out, process.returncode), (b"caught\n", 9))
    with ending(
        start("run", "--", "sh", "-c", "trap '' INT; echo ready; sleep 100", start_new_session=True)
    ) as process:
        assert_equal(process.stdout.readline(), b"ready\n")
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30 * SLOW)
        assert_equal(process.returncode, 128 + signal.SIGINT)
    assert_nothing_left(before)


@test
def test_reader_that_leaves():
    before = set(listed())
    with ending(start("run", "--", "yes")) as process:
        process.stdout.read(10)
        process.stdout.close()
        process.wait(30)
    assert_nothing_left(before)


@test
def test_full_output_device_is_an_error():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([HUSK, "ls", "--json"], stdout=full, stderr=subprocess.PIPE, timeout=30 * SLOW, check=False)
    assert done.returncode != 0 and b"No space" in done.stderr, done


@test
def test_example_program():
    program = BUILD / "examples/fork"
    if not os.access(program, os.X_OK):
        raise Skip("build/examples/fork was not built")
    done = subprocess.run([program], capture_output=True, timeout=120 * SLOW, check=False, env=environment({"HUSK_BIN": HUSK}))
    assert_equal(done.returncode, 0, (done.stdout + done.stderr).decode(errors="replace"))
    assert_equal(done.stdout.count(b"written before the fork\n"), 2)
    assert_equal(done.stdout.count(b"changed in the first child\n"), 1)


@test
def test_terminal_needs_one():
    before = set(listed())
    for words in (["run", "-it", "--", "bash"], ["run", "--tty", "-i", "--", "bash"]):
        assert_fails(*words, code=125, says=["not a terminal", "-i"], timeout=60)
    assert_nothing_left(before)


@test
def test_one_signal_is_enough():
    # The command takes no notice, and nothing is asked twice.
    before = set(listed())
    script = "trap '' INT TERM HUP; echo ready; while :; do sleep 0.1; done"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with ending(start("run", "--", "sh", "-c", script, start_new_session=True)) as process:
            assert_equal(process.stdout.readline(), b"ready\n")
            process.send_signal(number)
            process.communicate(timeout=60 * SLOW)
            assert_equal(process.returncode, 128 + number)
        assert_nothing_left(before)


if __name__ == "__main__":
    main("base")
