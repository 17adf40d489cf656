#!/usr/bin/python3
"""Ending wins: `husk rm` and the TTL end a sandbox whatever the guest, its supervisor, its engine and the disk are at, and
every call beside a supervisor that stands still, or is none, returns with a reason."""

# timeout: 900
import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

from lib.harness import *
from lib.roots import small_root

END_SECONDS = 10  # rm has answered, a TTL that has passed has ended it; on a loaded host, where 2 is the goal
RETURN_SECONDS = 45  # a call beside a supervisor that does not answer has returned
TTL = 3


def runs(pid):
    """Whether there is such a process; one that nobody has waited for yet is none any more."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


class Life:
    """A sandbox and the processes that it is made of on the host."""

    def __init__(self, *options):
        self.box = create("--ttl", "10m", *options)
        self.supervisor = supervisor_pid(self.box)
        self.kernel = kernel_of(self.box)

    def stop(self, pid):
        os.kill(pid, signal.SIGSTOP)

    def rm(self):
        husk("rm", self.box, timeout=END_SECONDS)
        self.assert_over("killed")

    def give_ttl(self):
        husk("extend", self.box, f"{TTL}s")
        self.expires = time.monotonic() + TTL

    def expire(self):
        time.sleep(max(0, self.expires - time.monotonic()))
        until(lambda: not runs(self.kernel), "the TTL has passed, and the machine runs", seconds=END_SECONDS)
        self.assert_over("ttl")

    def assert_over(self, reason):
        until(lambda: not runs(self.kernel), "the machine is gone", seconds=END_SECONDS)
        until(lambda: not runs(self.supervisor), "the supervisor is gone", seconds=END_SECONDS)
        until(lambda: inspect(self.box)["state"] == "ended", "the row says so", seconds=END_SECONDS)
        assert_equal(inspect(self.box)["end_reason"], reason)


@contextlib.contextmanager
def life(*options):
    """Ended for sure afterwards: what is stopped is killed first."""
    one = Life(*options)
    try:
        yield one
    finally:
        for pid in (one.kernel, one.supervisor):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        try:
            husk("rm", "-f", one.box, code=None, timeout=END_SECONDS)
        except AssertionError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.supervisor, signal.SIGKILL)
            husk("ls", code=None)


@contextlib.contextmanager
def beside(*words):
    """A call under way; it has returned when its sandbox is over."""
    with ending(start(*words)) as call:
        yield call
        try:
            call.communicate(timeout=END_SECONDS * SLOW)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"husk {' '.join(words)} did not return although its sandbox is over") from None


# ---- a checkpoint is under way, of much memory ----

TOUCH = """
import os, sys
size = int(sys.argv[1])
piece = os.urandom(1 << 20)
held = [bytes(piece) + bytes([i & 255]) for i in range(size >> 20)]
open('/tmp/touched', 'w').close()
import time
time.sleep(10000)
"""


def much_memory():
    """Bytes to touch: 4 GiB, or less where the host has not twice as much."""
    with open("/proc/meminfo", encoding="ascii") as file:
        available = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable")) << 10
    if available < 4 << 30:
        raise Skip("the host has no 4 GiB to spare")
    return 4 << 30 if available > 10 << 30 else 2 << 30


@contextlib.contextmanager
def large_life():
    size = much_memory()
    with life("--memory", "6G") as one:
        husk("exec", "-d", one.box, "--", "python3", "-c", TOUCH, str(size))
        sh(one.box, "until test -e /tmp/touched; do sleep 0.2; done", timeout=180)
        yield one


@test
def test_rm_during_a_checkpoint_of_much_memory():
    with large_life() as one, beside("snapshot", "create", one.box):
        time.sleep(1)
        one.rm()
    for snapshot in husk("snapshot", "ls", "--json").json():
        adopt_snapshot(snapshot["id"])
    assert_no_leaks()


@test
def test_ttl_during_a_checkpoint_of_much_memory():
    with large_life() as one:
        one.give_ttl()
        with beside("hibernate", one.box):
            time.sleep(max(0, one.expires - time.monotonic()))
            until(lambda: not runs(one.kernel), "the end by TTL", seconds=END_SECONDS)
            until(lambda: not runs(one.supervisor), "the supervisor goes away", seconds=END_SECONDS)
        # What was whole on disk before its time was up sleeps; then its end is the next call's business.
        until(lambda: inspect(one.box)["state"] == "ended", "it has ended", seconds=END_SECONDS)
    assert_no_leaks()


@test
def test_rm_of_much_memory():
    with large_life() as one:
        one.rm()
    assert_no_leaks()


# ---- other states ----


@test
def test_paused():
    with life() as one:
        husk("pause", one.box)
        one.rm()
    with life() as one:
        one.give_ttl()
        husk("pause", one.box)
        one.expire()
    assert_no_leaks()


@test
def test_hibernating():
    for delay in (0.0, 0.03, 0.1, 0.2):
        with life() as one, beside("hibernate", one.box):
            time.sleep(delay)
            husk("rm", "-f", one.box, timeout=END_SECONDS)
            until(lambda: inspect(one.box)["state"] == "ended", "it has ended", seconds=END_SECONDS)
            assert_equal(inspect(one.box)["end_reason"], "killed")
    assert_no_leaks()


@test
def test_creating():
    for number, delay in enumerate((0.0, 0.03, 0.06, 0.1, 0.2)):
        name = f"e2e-ending-{number}"
        with beside("create", "--name", name, "--ttl", "60s"):
            time.sleep(delay)
            husk("rm", "-f", name, timeout=END_SECONDS)
        husk("rm", "-f", name, timeout=END_SECONDS)
        assert name not in husk("ls").text
    assert_no_leaks()


@test
def test_waking():
    for delay in (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2):  # by a machine of the pool and by a new one
        box = create("--ttl", "10m")
        husk("hibernate", box)
        with beside("wake", box):
            time.sleep(delay)
            husk("rm", "-f", box, timeout=END_SECONDS)
        until(lambda: inspect(box)["state"] == "ended", f"{delay} s into waking: it has ended", seconds=END_SECONDS)
    assert_no_leaks()


# ---- what stands still ----

HOLD = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.ptrace(16, 1, 0, 0)
time.sleep(10000)
"""


@contextlib.contextmanager
def agent_stopped():
    """The guest's root is PID 1's tracer and lets it stand."""
    with life() as one:
        husk("exec", "-d", one.box, "--", "python3", "-c", HOLD)
        time.sleep(1)
        yield one


@test
def test_rm_with_a_stopped_agent():
    with agent_stopped() as one, beside("snapshot", "create", one.box), beside("stats", one.box):
        time.sleep(0.5)
        one.rm()
    assert_no_leaks()


@test
def test_ttl_with_a_stopped_agent():
    with agent_stopped() as one:
        one.give_ttl()
        with beside("hibernate", one.box), beside("exec", one.box, "--", "true"):
            one.expire()
    assert_no_leaks()


@test
def test_rm_with_a_stopped_engine():
    with life() as one:
        one.stop(one.kernel)
        with beside("snapshot", "create", one.box), beside("exec", one.box, "--", "true"):
            time.sleep(0.5)
            one.rm()
    assert_no_leaks()


@test
def test_ttl_with_a_stopped_engine():
    with life() as one:
        one.give_ttl()
        one.stop(one.kernel)
        with beside("hibernate", one.box):
            one.expire()
    assert_no_leaks()


@test
def test_rm_with_a_stopped_supervisor():
    with life() as one:
        one.stop(one.supervisor)
        one.rm()
    assert_no_leaks()


@test
def test_ttl_with_a_stopped_supervisor():
    # Nobody who is alive keeps its clock: the next call that looks does.
    with life() as one:
        one.give_ttl()
        one.stop(one.supervisor)
        time.sleep(TTL)

        def ended():
            husk("ls", code=None, timeout=RETURN_SECONDS)
            return inspect(one.box)["state"] == "ended"

        until(ended, "its time is over, and `husk ls` leaves it alone", seconds=2 * END_SECONDS)
        one.assert_over("ttl")
    assert_no_leaks()


@test
def test_rm_all_with_one_stopped_supervisor():
    if set(listed()):
        raise Skip("other sandboxes live in this instance")
    with life() as one, life() as other:
        one.stop(one.supervisor)
        husk("rm", "--all", timeout=2 * END_SECONDS)
        one.assert_over("killed")
        other.assert_over("killed")
    assert_no_leaks()


# ---- calls beside a supervisor that does not answer ----

NEEDS_ANSWER = (["exec", "BOX", "--", "true"], ["stats", "BOX"], ["ps", "BOX"], ["cp", "/etc/hostname", "BOX:/root/"],
                ["pause", "BOX"], ["hibernate", "BOX"], ["fork", "BOX"], ["snapshot", "create", "BOX"],
                ["extend", "BOX", "5m"], ["egress", "BOX", "--mode", "open"])  # fmt: skip
NEEDS_NONE = (["ls"], ["ls", "--json"], ["inspect", "BOX"], ["gc"], ["events", "BOX"], ["logs", "BOX"], ["stats"])


def assert_all_return(box, needing=NEEDS_ANSWER, seconds=RETURN_SECONDS):
    """All at once; each with a reason, or its answer."""
    calls = []
    with contextlib.ExitStack() as stack:
        for words in (*needing, *NEEDS_NONE):
            words = [word.replace("BOX", box) for word in words]
            calls.append((words, stack.enter_context(ending(start(*words)))))
        end = time.monotonic() + seconds * SLOW
        late, silent = [], []
        for number, (words, call) in enumerate(calls):
            try:
                _, err = call.communicate(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                late.append(words[0])
                continue
            if number < len(needing) and not (call.returncode > 0 and b"husk: " in err):
                silent.append((words, call.returncode, err))
        assert not late, f"calls that did not return: {late}"
        assert not silent, f"calls that gave no reason: {silent}"


@test
def test_calls_beside_a_stopped_supervisor():
    with life() as one, life() as other:
        one.stop(one.supervisor)
        assert_all_return(one.box)
        assert_equal(sh(other.box, "echo fine"), "fine", "another sandbox")
        one.rm()
    assert_no_leaks()


@test
def test_exec_beside_a_stopped_supervisor_ends_on_sigterm():
    with life() as one:
        with ending(start("exec", one.box, "--", "sleep", "1000")) as call:
            until(lambda: husk("ps", "--json", one.box).json(), "it runs")
            one.stop(one.supervisor)
            call.send_signal(signal.SIGTERM)
            try:
                call.wait(3 * END_SECONDS * SLOW)  # the command has ten seconds to take the signal, husk fifteen to clear up
            except subprocess.TimeoutExpired:
                raise AssertionError("husk exec survived SIGTERM") from None


VERSION = struct.pack("<HHIq", 1, 0, 8, 1)
HELLO = struct.pack("<IIBBH", len(VERSION), 0, 1, 0, 0) + VERSION


def serve_each(listener, answer):
    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def serve_garbage(listener):
    def answer(connection):
        with contextlib.suppress(OSError), connection:
            connection.sendall(os.urandom(4096))
            connection.recv(1)

    serve_each(listener, answer)


def serve_half_an_answer(listener):
    """A true greeting; then five bytes of a frame, as of a supervisor that is stopped in the middle of one."""

    def answer(connection):
        with contextlib.suppress(OSError), connection:
            connection.recv(1 << 16)
            connection.sendall(HELLO)
            connection.recv(1 << 16)
            connection.sendall(b"\x10\0\0\0\1")
            while connection.recv(1 << 16):
                pass

    serve_each(listener, answer)


LONG_CALLS = (["hibernate"], ["fork"], ["snapshot", "create"], ["checkpoint"])


def serve_first_greetings(listener):
    """Greets each of LONG_CALLS and nobody after them, as a supervisor that is stopped during these calls."""
    left = threading.Semaphore(len(LONG_CALLS))

    def answer(connection):
        with contextlib.suppress(OSError), connection:
            if left.acquire(blocking=False):
                connection.recv(1 << 16)
                connection.sendall(HELLO)
            while connection.recv(1 << 16):
                pass

    serve_each(listener, answer)


def serve_nothing(listener):
    """Connections are made, by the kernel, and that is all."""


@contextlib.contextmanager
def fake_supervisor(box, serve):
    """Another listener, or none, under the name of the sandbox's socket; the true one comes back."""
    path = f"{HOME}/run/{box}.sock"
    os.rename(path, path + ".kept")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    if serve:
        listener.listen(64)
        serve(listener)
    try:
        yield
    finally:
        # A thread that still waits in accept() would go on with the next listener that gets the same descriptor.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        with contextlib.suppress(OSError):
            os.unlink(path)
        with contextlib.suppress(OSError):
            os.rename(path + ".kept", path)


@test
def test_a_supervisor_that_answers_garbage():
    with life() as one:
        with fake_supervisor(one.box, serve_garbage):
            assert_all_return(one.box)
        assert_equal(sh(one.box, "echo fine"), "fine", "the machine itself is well")


@test
def test_a_supervisor_that_answers_half():
    with life() as one:
        with fake_supervisor(one.box, serve_half_an_answer):
            assert_all_return(one.box, seconds=2 * RETURN_SECONDS)
        assert_equal(sh(one.box, "echo fine"), "fine", "the machine itself is well")


@test
def test_a_supervisor_that_stops_during_a_call():
    with life() as one, contextlib.ExitStack() as stack:
        with fake_supervisor(one.box, serve_first_greetings):
            calls = [stack.enter_context(ending(start(*words, one.box))) for words in LONG_CALLS]
            for words, call in zip(LONG_CALLS, calls):
                _, err = call.communicate(timeout=2 * RETURN_SECONDS * SLOW)
                assert_in(b"does not answer", err, str(words))
        assert_equal(sh(one.box, "echo fine"), "fine", "the machine itself is well")


@test
def test_a_supervisor_that_answers_nothing():
    with life() as one:
        with fake_supervisor(one.box, serve_nothing):
            assert_all_return(one.box)
        assert_equal(sh(one.box, "echo fine"), "fine", "the machine itself is well")


@test
def test_a_socket_without_a_listener():
    with life() as one:
        with fake_supervisor(one.box, None):
            assert_all_return(one.box)
        assert_equal(sh(one.box, "echo fine"), "fine", "the machine itself is well")


@test
def test_rm_past_a_fake_supervisor():
    for serve in (serve_garbage, serve_nothing, None):
        with life() as one:
            with fake_supervisor(one.box, serve):
                one.rm()
            with contextlib.suppress(OSError):
                os.unlink(f"{HOME}/run/{one.box}.sock")
    assert_no_leaks()


# ---- a disk that is full ----


@contextlib.contextmanager
def small_instance():
    """An instance on a disk of its own that can be filled; its environment, and a function that fills it."""
    place = f"/var/tmp/he.{os.getpid()}"
    os.makedirs(place)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m,mode=700", "none", place], check=False).returncode:
        os.rmdir(place)
        raise Skip("cannot mount a small tmpfs")

    def fill():
        with contextlib.suppress(OSError), open(f"{place}/filler", "wb", buffering=0) as file:
            while file.write(b"x" * (1 << 16)):
                pass

    env = {"HUSK_HOME": place, "HUSK_POOL": "0"}
    try:
        with scratch() as roots:
            husk("template", "build", "--rootfs", str(small_root(roots)), "small", env=env, timeout=300)
        yield place, env, fill
    finally:
        with contextlib.suppress(OSError):
            os.unlink(f"{place}/filler")
        husk("rm", "--all", env=env, code=None, timeout=60)
        husk("gc", "--all", env=env, code=None)
        subprocess.run(["umount", "-l", place], check=False)
        shutil.rmtree(place, ignore_errors=True)


def kernels_of(place):
    """The sandboxed kernels of the instance at a place."""
    found = subprocess.run(["pgrep", "-f", f"runsc.*{place}.* boot"], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split() if runs(int(pid))]


@test
def test_a_full_disk():
    with small_instance() as (place, env, fill):
        box = husk("create", "-t", "small", env=env).text.strip()
        timed = husk("create", "-t", "small", "--ttl", f"{TTL + 2}s", env=env).text.strip()
        until(lambda: len(kernels_of(place)) == 2, "both run")
        fill()
        husk("rm", box, env=env, code=None, timeout=END_SECONDS)  # what it can say, with nowhere to write it
        until(lambda: len(kernels_of(place)) <= 1, "rm ends the machine on a full disk", seconds=END_SECONDS)
        until(lambda: not kernels_of(place), "the TTL ends the machine on a full disk", seconds=TTL + END_SECONDS)
        os.unlink(f"{place}/filler")
        for one in (box, timed):
            until(
                lambda: one not in husk("ls", env=env, code=None).text, f"{one} is over", seconds=END_SECONDS
            )
        husk("doctor", "--leaks", env=env)


@test
def test_nothing_is_left_of_any():
    husk("gc")
    assert_no_leaks()


if __name__ == "__main__":
    main("base")
