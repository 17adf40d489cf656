"""Shared by the end-to-end tests: calls of the real husk, sandboxes that are removed again, and reports of results.

A script marks its tests with @test and ends with main(). Each test prints one line: `ok NAME`, `not ok NAME: why` or
`skip NAME: reason`. Every call of husk has a time limit, and no test asserts how long anything took. Whatever a test created
is removed, even if the test failed.

The instance is $HUSK_HOME; without it the script creates an instance and removes it. $HUSK is the program (build/husk),
$HUSK_CACHE keeps built root filesystems between runs.
"""

import atexit
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback

TOP = pathlib.Path(__file__).resolve().parents[3]
BUILD = TOP / os.environ.get("HUSK_BUILD", "build")
HUSK = os.environ.get("HUSK") or str(BUILD / "husk")
SLOW = float(os.environ.get("HUSK_TEST_SLOW", "1"))  # how many times slower than usual everything is: with sanitizers, and …
LAB_SLOW = 5  # … in the lab
USER = int(os.environ.get("HUSK_TEST_USER", "0"))  # the user of $HUSK, if it is not root (63_remote.py)
CALL_SECONDS = 60  # on a usual machine, like all limits of calls
BUILD_SECONDS = 1500


class Skip(Exception):
    """A test that cannot run here; the text is the reason."""


# ---- the instance ----


def _instance():
    """(home, true if this script removes it)"""
    home = os.environ.get("HUSK_HOME")
    if home:
        os.makedirs(home, mode=0o700, exist_ok=True)
        return os.path.realpath(home), False
    # Short: the path of a unix socket must fit 107 bytes.
    home = tempfile.mkdtemp(prefix="husk-e2e.", dir="/var/tmp")
    atexit.register(_remove_unused, home, os.getpid())
    return home, True


def _remove_unused(home, maker):
    """A program that only borrows from this file, such as bench/run, has no main() to remove the instance."""
    if os.getpid() == maker:
        with contextlib.suppress(OSError):
            os.rmdir(home)


HOME, _OWN_HOME = _instance()
os.environ["HUSK_HOME"] = HOME
os.environ.setdefault("HUSK_CACHE", "/var/cache/husk-test")
_created = []  # sandboxes to remove at the end of the test that is running
_snapshots = []  # snapshots likewise


class Result:
    """The result of one call of husk."""

    def __init__(self, arguments, code, out, err):
        self.arguments = arguments
        self.code = code
        self.out = out
        self.err = err

    @property
    def text(self):
        return self.out.decode(errors="replace")

    @property
    def error(self):
        return self.err.decode(errors="replace")

    def json(self):
        try:
            return json.loads(self.out)
        except ValueError as error:
            raise AssertionError(f"{self}: not one JSON document: {error}") from error

    def __str__(self):
        words = " ".join(str(word) for word in self.arguments)
        return f"husk {words[:200]} -> {self.code}, stdout {self.out[:300]!r}, stderr {self.err[-500:]!r}"


def husk(*arguments, code=0, stdin=None, timeout=CALL_SECONDS, env=None, cwd=None):
    """Calls husk. `code`: the required exit status; None: any. `env`: added to the environment; None removes a variable."""
    command = [HUSK, *(str(word) if isinstance(word, pathlib.Path) else word for word in arguments)]
    try:
        done = subprocess.run(
            command,
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout * SLOW,
            env=environment(env),
            cwd=cwd,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(
            f"husk {' '.join(map(str, arguments))[:200]} did not end within {timeout * SLOW:.0f} s; "
            f"stdout {(error.stdout or b'')[-300:]!r}, stderr {(error.stderr or b'')[-300:]!r}"
        ) from None
    result = Result(arguments, done.returncode, done.stdout, done.stderr)
    if code is not None:
        assert result.code == code, f"expected exit status {code}: {result}"
    return result


def environment(changes=None):
    merged = dict(os.environ)
    for key, value in (changes or {}).items():
        merged.pop(key, None)
        if value is not None:
            merged[key] = value
    return merged


def start(*arguments, env=None, **options):
    """husk in the background; the caller ends it (see `ending`)."""
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    options.setdefault(
        "bufsize", 0
    )  # lines that a test reads must not stay in a buffer before communicate()
    return subprocess.Popen([HUSK, *arguments], env=environment(env), **options)


@contextlib.contextmanager
def ending(process):
    """Makes sure that a background process has ended."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()


# ---- sandboxes ----


def create(*options, timeout=CALL_SECONDS, env=None):
    """Creates a sandbox and returns its id; it is removed when the test ends."""
    made = husk("create", "--json", *options, timeout=timeout, env=env).json()
    return adopt(made["id"])


def adopt(sandbox):
    """Removes a sandbox when the test ends."""
    _created.append(sandbox)
    return sandbox


def adopt_snapshot(snapshot):
    _snapshots.append(snapshot)
    return snapshot


def sh(sandbox, script, *options, code=0, timeout=CALL_SECONDS, **more):
    """Runs a shell script in the sandbox; returns its output as text, without the last newline."""
    return husk("exec", *options, sandbox, "--", "sh", "-c", script, code=code, timeout=timeout, **more).text.rstrip(
        "\n"
    )


def fork(sandbox, *options, timeout=CALL_SECONDS):
    return [adopt(child["id"]) for child in husk("fork", sandbox, "--json", *options, timeout=timeout).json()]


def inspect(sandbox):
    return husk("inspect", "--json", sandbox).json()


def listed(*options):
    return [entry["id"] for entry in husk("ls", "--json", *options).json()]


def events(sandbox=None):
    return husk("events", "--json", *([sandbox] if sandbox else [])).json()


def event_kinds(sandbox):
    return [event["kind"] for event in events(sandbox)]


def remove(*sandboxes):
    husk("rm", "-f", *sandboxes)


def until(condition, what, seconds=30, pause=0.1):
    """Waits for a condition; returns its first true value. The limit is against hanging, and measures nothing."""
    deadline = time.monotonic() + seconds * SLOW
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(pause)


# A process whose whole state is in memory: a random token and a count. Each tick writes a line with the current host
# name, so that the ticks of a copy differ from those of its original.
COUNTER = """
import os, time
token, n = os.urandom(8).hex(), 0
ticks = open('/tmp/ticks', 'a', buffering=1)
while True:
    n += 1
    ticks.write(f'{n} {token} {os.uname().nodename}\\n')
    time.sleep(0.02)
"""


def start_counter(sandbox):
    husk("exec", "-d", sandbox, "--", "python3", "-c", COUNTER)
    until(lambda: len(ticks(sandbox)) > 10, "the counter starts")


def ticks(sandbox):
    """[(n, token, hostname)] so far; checks that no tick is missing or repeated."""
    lines = [line.split() for line in sh(sandbox, "cat /tmp/ticks 2>/dev/null || true").splitlines()]
    seen = [(int(line[0]), line[1], line[2]) for line in lines if len(line) == 3]
    numbers = [line[0] for line in seen]
    assert numbers == list(range(1, len(numbers) + 1)), f"the counter did not go on in {sandbox}: {numbers[-20:]}"
    assert len({line[1] for line in seen}) <= 1, f"the counter lost its memory in {sandbox}"
    return seen


def assert_ticking(sandbox):
    """Asserts that the counter moves; returns its ticks."""
    before = len(ticks(sandbox))
    until(lambda: len(ticks(sandbox)) > before, f"the counter of {sandbox} moves")
    return ticks(sandbox)


def processes(sandbox):
    """The number of processes inside, without the threads of a guest kernel."""
    return int(sh(sandbox, "grep -l . /proc/[0-9]*/cmdline 2>/dev/null | wc -l"))


def isolation():
    """The default engine of sandboxes here."""
    checks = {check["name"]: check for check in husk("doctor", "--json", code=None).json()}
    return checks["isolation"]["text"].removeprefix("auto takes ").removesuffix(" here")


# ---- processes on the host ----


def supervisor_pid(sandbox):
    """The process that listens on the sandbox's socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(f"{HOME}/run/{sandbox}.sock")
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[0]


def runs(pid):
    """True if the process exists. A zombie does not count, but only once its last thread has ended: until then the threads
    keep its descriptors open, and with them its locks."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return fields[0] != "Z" or int(fields[17]) > 1
    return False


def _processes():
    """(pid, words of its command line) of every process."""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # the process ended meanwhile
                yield int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")


def _is_monitor(pid, words):
    """True for a virtual machine monitor of this instance. Its command line does not name the instance, but its log does."""
    with contextlib.suppress(OSError):
        return words[0] == b"husk-vmm" and os.readlink(f"/proc/{pid}/fd/1").startswith(HOME + "/")
    return False


def instance_processes():
    """{pid: command line} of every process of this instance that Husk itself started."""
    found = {}
    for pid, words in _processes():
        mine = any(HOME.encode() in word for word in words)
        if _is_monitor(pid, words) or (mine and (b"supervise" in words or b"runsc" in words[0])):
            found[pid] = words
    return found


def engine_processes():
    """{pid: machine} of this instance's sandboxed kernels."""
    return {
        pid: (words[1] if words[0] == b"husk-vmm" else words[-2]).decode()
        for pid, words in instance_processes().items()
        if b"boot" in words or words[0] == b"husk-vmm"
    }


def kernel_of(sandbox):
    """The process of the sandbox's kernel."""
    supervisor = supervisor_pid(sandbox)
    mine = [pid for pid in engine_processes() if _supervisor_above(pid) == supervisor]
    assert len(mine) == 1, f"kernels under supervisor {supervisor} of {sandbox}: {mine}"
    return mine[0]


def _supervisor_above(pid):
    """The nearest supervisor: one that prepares machines for the pool is an ancestor of their processes."""
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
        except OSError:
            return None
        if name == "husk-supervise":
            return pid
        pid = int(rest.split()[1])
    return None


def kill_instance():
    """kill -9 of every process of this instance; returns how many there were."""
    found = instance_processes()
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in found), "the killed processes go away")
    return len(found)


def assert_no_leaks():
    """The kernel may need a moment to clean up after a killed supervisor; what stays is a leak."""
    last = [None]

    def clean():
        last[0] = husk("doctor", "--leaks", "--json", code=None)
        return last[0].code == 0

    try:
        until(clean, "no leaks", seconds=20, pause=0.5)
    except AssertionError:
        raise AssertionError(f"leaks: {last[0]}") from None


@contextlib.contextmanager
def scratch():
    """A directory on the host, which is removed afterwards."""
    path = tempfile.mkdtemp(prefix="husk-scratch.", dir="/var/tmp")
    if USER:
        os.chown(path, USER, USER)
    try:
        yield pathlib.Path(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


# ---- checks ----


def assert_equal(found, wanted, what=""):
    assert found == wanted, f"{what or 'values differ'}: found {str(found)[:300]!r}, wanted {str(wanted)[:300]!r}"


def assert_in(part, whole, what=""):
    assert part in whole, f"{what or 'text'}: {part!r} is not in {str(whole)[:600]!r}"


def assert_fails(*arguments, code, says, **options):
    """husk fails with this status, one lower-case line that contains every part of `says`, and nothing on stdout."""
    result = husk(*arguments, code=code, **options)
    for piece in [says] if isinstance(says, str) else says:
        assert_in(piece, result.error, str(result))
    # progress may come before it
    assert any(line.startswith("husk: ") for line in result.error.split("\n")), f"no 'husk: ' in front: {result}"
    assert_equal(result.out, b"", f"stdout of a failing call: {result}")
    return result


# ---- running ----

_tests = []


def test(function):
    _tests.append(function)
    return function


def _clean():
    """Removes what the test that just ended has created."""
    sandboxes, snapshots = _created[:], _snapshots[:]
    _created.clear()
    _snapshots.clear()
    if sandboxes:
        husk("rm", "-f", *sandboxes, code=None, timeout=120)
    for snapshot in snapshots:
        husk("snapshot", "rm", snapshot, code=None)


def _tell():
    """Prints the logs of the sandboxes of a failed test, including the machine's."""
    for sandbox in _created:
        for line in husk("logs", sandbox, code=None).text.splitlines()[-40:]:
            print(f"# {sandbox}: {line}", flush=True)


def _run(function):
    name = function.__name__.removeprefix("test_")
    try:
        function()
        line, passed = f"ok {name}", True
    except Skip as reason:
        line, passed = f"skip {name}: {reason}", True
    except Exception as error:  # any failure: the other tests continue
        at = traceback.extract_tb(error.__traceback__)
        here = [frame for frame in at if frame.filename == function.__code__.co_filename]
        where = f"line {(here or at)[-1].lineno}"
        text = f"{type(error).__name__}: {error}" if not isinstance(error, AssertionError) else str(error)
        line, passed = f"not ok {name}: {where}: {' '.join(text.split())[:1500]}", False
    try:
        if not passed:
            _tell()
        _clean()
    except Exception as error:
        line, passed = f"not ok {name}: cleaning up: {' '.join(str(error).split())[:500]}", False
    print(line, flush=True)
    return passed


def _end_instance():
    if not _OWN_HOME:
        return
    husk("rm", "--all", code=None)
    husk("gc", "--all", code=None)
    kill_instance()
    shutil.rmtree(HOME, ignore_errors=True)


def main(template=None, slow=None):
    """Builds the template, if the tests need one and the instance lacks it. Then runs the tests, or only those named on the
    command line. Exits non-zero if one failed. `slow`: the tests to run where everything takes many times longer (in the
    lab)."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))
    names = sys.argv[1:] or (slow if SLOW >= LAB_SLOW else None)
    chosen = [function for function in _tests if not names or any(part in function.__name__ for part in names)]

    def test_template():
        husk("template", "build", template, "--json", timeout=BUILD_SECONDS)

    failed = 0
    try:
        if template and not _run(test_template):
            sys.exit(1)
        for function in chosen:
            failed += not _run(function)
    finally:
        _end_instance()
    sys.exit(1 if failed else 0)
