#!/usr/bin/python3
"""A guest whose PID 1 is the attacker's. tests/adversary is husk-agent with a man in the middle of its link: it bakes and
creates like any other until it is told which rule of the protocol to break. Whatever it breaks: calls return, the
supervisor neither dies nor grows, `husk rm` and the TTL end the sandbox, and nothing of it stays."""

# timeout: 900
import concurrent.futures
import contextlib
import glob
import os
import pathlib
import re
import shutil
import socket
import struct
import sys
import threading
import time

from lib.harness import *
from lib.http import start_server

TEMPLATE = "hostile"
ADVERSARY = BUILD / "adversary"
WORKERS = 8
END_SECONDS = 25  # rm answers, a TTL that has passed has ended it, calls of an ended sandbox have returned: no step of the guest is waited for (35 s)
ANSWER_SECONDS = 120  # a step of the sandbox that its guest holds up (35 s), then the patience of the call itself (45 s)
SETTLE_SECONDS = 1.5  # how long a rule is broken before the end comes
GROWTH = 128 << 20  # of the supervisor's memory, whatever is called at once
GROWTH_OF_ONE = 12 << 20  # by one call whose client does not read: its credit is 4 MiB
TTL_SECONDS = 4

# enum wire_method
EXEC, ATTACH, PS, SIGNAL = 1, 2, 3, 4
READ, WRITE, STAT, LIST, MKDIR, MOVE, REMOVE, CHMOD, TAR_READ, TAR_WRITE, WATCH = range(20, 31)
DIAL, STATS = 40, 41
IDENTITY, FREEZE, THAW, OOM, NETWORK, LIMITS_WATCH, VOLUME, MOUNT, LIMITS = range(60, 69)

_work = None  # files of the host's for the calls
_huskd = None


# ---- calls ----


def wire_field(tag, value):
    return struct.pack("<HHI", tag, 0, len(value)) + value


def wire_int(tag, value):
    return wire_field(tag, struct.pack("<q", value))


def wire_frame(channel, kind, payload):
    return struct.pack("<IIBBH", len(payload), channel, kind, 0, 0) + payload


class Call:
    """A call under way: of the program, or over HTTP. It must return; what it says is another matter."""

    def __init__(self, name, box):
        self.name = name
        self.started = time.monotonic()
        self.code = self.out = self.err = None
        self.process = None
        self.reads = threading.Event()
        command = CALLS[name](box)
        if name.endswith("-unread"):
            self.thread = threading.Thread(target=self._unread, args=(box,), daemon=True)
        elif isinstance(command, tuple):
            self.thread = threading.Thread(target=self._over_http, args=command, daemon=True)
        else:
            self.process = start(*command)
            self.thread = threading.Thread(target=self._over_pipes, daemon=True)
        self.thread.start()

    def _over_pipes(self):
        self.out, self.err = self._communicate()
        self.code = self.process.returncode

    def _unread(self, box):
        """A client of the supervisor's socket that makes its call and then reads nothing, until go_on."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"{HOME}/run/{box}.sock")
            connection.sendall(wire_frame(0, 1, wire_int(1, 1)))
            connection.sendall(wire_frame(1, 2, wire_int(2, EXEC) + wire_field(20, b"echo")))
            self.reads.wait()
            while connection.recv(1 << 20):
                pass
        self.code = 0

    def go_on(self):
        self.reads.set()

    def _communicate(self):
        """At most 64 MiB of each: what a hostile guest sends has no end."""
        kept = [b"", b""]

        def take(place, stream):
            while piece := stream.read(1 << 16):
                if len(kept[place]) < 64 << 20:
                    kept[place] += piece

        threads = [
            threading.Thread(target=take, args=(place, stream), daemon=True)
            for place, stream in enumerate((self.process.stdout, self.process.stderr))
        ]
        for thread in threads:
            thread.start()
        self.process.wait()
        for thread in threads:
            thread.join(5)
        return kept

    def _over_http(self, method, path, body=None):
        try:
            connection, answer = _huskd.open(method, path, body, timeout=ANSWER_SECONDS + 30)
            with contextlib.closing(connection):
                self.out, self.code = b"", answer.status
                while len(self.out) < 64 << 20 and (piece := answer.read1(1 << 16)):
                    self.out += piece
        except OSError as error:
            self.err, self.code = str(error).encode(), -1
        except Exception as error:  # http.client's own, for an answer that was cut
            self.err, self.code = repr(error).encode(), -1

    def wait(self, seconds):
        self.thread.join(max(0, seconds * SLOW))
        return not self.thread.is_alive()

    def kill(self):
        self.go_on()
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.thread.join(5)
            with contextlib.suppress(OSError):
                self.process.stdout.close()
                self.process.stderr.close()

    def __str__(self):
        return f"{self.name} -> {self.code}, {(self.out or b'')[:200]!r}, {(self.err or b'')[-200:]!r}"


def files(box, what="", path="/root"):
    return f"/v1/sandboxes/{box}/files{what}?path={path}"


CALLS = {
    "exec": lambda box: ["exec", box, "--", "echo", "hello"],
    "exec-unread": lambda box: ["exec", box, "--", "echo", "hello"],
    "exec-in": lambda box: ["exec", "-c", "cat >/dev/null", "-i", box],
    "detached": lambda box: ["exec", "-d", box, "--", "sleep", "100"],
    "ps": lambda box: ["ps", box],
    "ps-json": lambda box: ["ps", "--json", box],
    "attach": lambda box: ["attach", box, "2"],
    "stats": lambda box: ["stats", box],
    "cp-in": lambda box: ["cp", f"{_work}/large", f"{box}:/root/large"],
    "cp-out": lambda box: ["cp", f"{box}:/usr/bin/git", f"{_work}/out-{box}"],
    "cp-tree-in": lambda box: ["cp", f"{_work}/tree", f"{box}:/root/"],
    "cp-tree-out": lambda box: ["cp", f"{box}:/etc", f"{_work}/tree-{box}"],
    "snapshot": lambda box: ["snapshot", "create", box],
    "fork": lambda box: ["fork", box, "--ttl", "60s"],
    "hibernate": lambda box: ["hibernate", box],
    "pause": lambda box: ["pause", box],
    "code": lambda box: ["code", box, "1 + 1"],
    "egress": lambda box: ["egress", box, "--mode", "open"],
    "inspect": lambda box: ["inspect", box],
    "resize": lambda box: ["resize", box, "--memory", "300M"],
    "reboot": lambda box: ["reboot", box],
    "stat": lambda box: ("GET", files(box, "/stat")),
    "list": lambda box: ("GET", files(box, "/list")),
    "mkdir": lambda box: ("POST", f"/v1/sandboxes/{box}/files/mkdir", {"path": "/root/made"}),
    "read": lambda box: ("GET", files(box, path="/etc/passwd")),
    "write": lambda box: ("PUT", files(box, path="/root/new"), b"x" * 100000),
    "watch": lambda box: ("GET", files(box, "/watch")),
    "dial": lambda box: ("GET", f"/v1/sandboxes/{box}/ports/8000/"),
    "metrics": lambda box: ("GET", f"/v1/sandboxes/{box}/stats"),
}


# ---- one sandbox with a rule broken in it ----


def memory_of(pid, field="VmHWM"):
    with contextlib.suppress(OSError, TypeError):
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            return int(re.search(rf"{field}:\s+(\d+) kB", file.read())[1]) << 10
    return 0


class Trial:
    """A sandbox, its supervisor, the calls under way; all of it gone afterwards, whatever came of it."""

    def __init__(self, *options):
        made = husk("create", "--json", "-t", TEMPLATE, "--ttl", "10m", *options).json()
        self.box = made["id"]
        self.supervisor = supervisor_pid(self.box)
        self.before = memory_of(self.supervisor, "VmRSS")
        self.peak = self.before
        self.calls = []
        self.growth = GROWTH
        self.expires = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        for call in self.calls:
            call.kill()
        try:
            husk("rm", "-f", self.box, code=None, timeout=END_SECONDS)
        except AssertionError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.supervisor, 9)
            husk("rm", "-f", self.box, code=None, timeout=120)

    def break_rule(self, rule, method=None):
        self.run(["/.husk/break", rule] + ([str(method)] if method else []))

    def run(self, command, *options):
        done = husk("exec", *options, self.box, "--", *command, code=None, timeout=30)
        late = self.expires and "has ended" in done.error  # by its TTL, on a busy machine
        assert done.code == 0 or late, str(done)

    def call(self, *names):
        self.calls += [Call(name, self.box) for name in names]
        return self.calls[-1] if names else None

    def measure(self):
        self.peak = max(self.peak, memory_of(self.supervisor))

    def settle(self, seconds=SETTLE_SECONDS):
        """Lets the rule be broken for a while, or until every call is over."""
        until_then = time.monotonic() + seconds * SLOW
        while time.monotonic() < until_then and any(call.thread.is_alive() for call in self.calls):
            time.sleep(0.05)
            self.measure()
        self.measure()

    def expect_answers(self, seconds):
        end = time.monotonic() + seconds * SLOW
        late = [call.name for call in self.calls if not call.wait((end - time.monotonic()) / SLOW)]
        assert not late, f"calls that did not return within {seconds} s: {', '.join(late)}"

    def end_by_rm(self):
        started = time.monotonic()
        try:
            # It may have ended by itself, of what the guest did.
            husk("rm", "-f", self.box, timeout=END_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"rm: {error}") from None
        return time.monotonic() - started

    def end_by_ttl(self):
        """`husk extend` was called before; no other call is needed for the end."""
        time.sleep(max(0, self.expires - time.monotonic()))
        until(
            lambda: not runs(self.supervisor),
            f"the end by TTL: {TTL_SECONDS} s have passed, and the supervisor is still there",
            seconds=END_SECONDS,
        )

    def give_ttl(self):
        husk("extend", self.box, f"{TTL_SECONDS}s", timeout=30)
        self.expires = time.monotonic() + TTL_SECONDS

    def check(self):
        """After the end: nobody waits any more, the supervisor is gone, by itself, and never grew."""
        for call in self.calls:
            call.go_on()
        self.expect_answers(END_SECONDS)
        until(lambda: not runs(self.supervisor), "the supervisor goes away", seconds=END_SECONDS)
        entry = inspect(self.box)
        assert_equal(entry["state"], "ended")
        assert entry["end_reason"] in ("killed", "ttl", "crashed", "oom", "protocol", "hijacked"), entry["end_reason"]
        assert "recovered" not in event_kinds(self.box), "the supervisor died"
        self.check_growth()
        for call in self.calls:
            assert call.process is None or call.code >= 0, f"husk was killed by a signal: {call}"
            if call.process and call.code == 125:
                assert b"husk: " in call.err, f"no reason given: {call}"
        return entry["end_reason"]

    def check_growth(self):
        grown = self.peak - self.before
        assert grown < self.growth, f"the supervisor grew by {grown >> 20} MiB"


# ---- cases that run beside each other, each a test of its own ----

_cases = {}  # name of the function: what to run
_futures = {}
_pool = None


def _submit_all():
    """All that were chosen on the command line, at the first that is asked for."""
    global _pool
    _pool = concurrent.futures.ThreadPoolExecutor(WORKERS)
    names = sys.argv[1:]
    for name, run in _cases.items():
        if not names or any(part in name for part in names):
            _futures[name] = _pool.submit(run)


def case(name, run):
    name = "test_" + name.replace("-", "_").replace(" ", "_")

    def wait():
        if not _futures:
            _submit_all()
        _futures[name].result()

    assert name not in _cases, name
    wait.__name__ = name
    _cases[name] = run
    test(wait)


def breaking(rule, *calls, method=None, end="rm", options=(), answers=False, name=None, settle=SETTLE_SECONDS):
    """A rule is broken, calls are made beside it, and then the end comes. `answers`: the calls must return before."""

    def run():
        with contextlib.ExitStack() as stack:
            if "VOLUME" in options:
                stack.enter_context(volume_of(rule))
            trial = stack.enter_context(Trial(*(f"{rule}:/data" if word == "VOLUME" else word for word in options)))
            if end == "ttl":
                trial.give_ttl()
            trial.break_rule(rule, method)
            trial.call(*calls)
            if "exec-unread" in calls:
                trial.growth = GROWTH_OF_ONE
            trial.settle(settle)
            if answers:
                trial.expect_answers(ANSWER_SECONDS)
            if end == "ttl":
                trial.end_by_ttl()
            else:
                trial.end_by_rm()
            trial.check()

    label = name or (rule if method is None else f"{rule} {METHOD_NAMES[method]}")
    case(label + (" ttl" if end == "ttl" else ""), run)


@contextlib.contextmanager
def volume_of(name):
    husk("volume", "create", name)
    try:
        yield
    finally:
        husk("volume", "rm", name, code=None)


METHOD_NAMES = {
    value: key.lower() for key, value in list(globals().items()) if key.isupper() and isinstance(value, int) and value < 70
}

# ---- the first: a template with the hostile agent in it ----


def build(template, directory, **options):
    tars = sorted(glob.glob(f"{os.environ['HUSK_CACHE']}/base-*.tar"), key=os.path.getmtime)
    return husk(
        "template", "build", "--tar", tars[-1], template, env={"HUSK_LIBDIR": str(directory)}, **options
    )


@test
def test_a_hostile_agent_is_baked():
    global _work, _huskd
    if isolation() != "gvisor":
        print("skip all: the hostile agent is made for gVisor's link", flush=True)
        sys.exit(77)
    build(TEMPLATE, ADVERSARY, timeout=BUILD_SECONDS)
    _work = f"{HOME}/hostile"
    os.makedirs(f"{_work}/tree", exist_ok=True)
    with open(f"{_work}/large", "wb") as file:
        file.truncate(64 << 20)
    for number in range(50):
        with open(f"{_work}/tree/{number}", "wb") as file:
            file.write(os.urandom(100000))
    _huskd = start_server()
    with Trial() as trial:
        assert_equal(sh(trial.box, "echo honest"), "honest", "until it is told to, it breaks no rule")
        assert_equal(husk("exec", trial.box, "--", "/.husk/break", "no-such-rule", code=None).code, 1)


# ---- calls that must return by themselves ----

# First, because they take the longest: an agent that does not answer one method, or any.
breaking("never-answer", "stats", "metrics", method=STATS, answers=True)
breaking("never-answer", "ps", "ps-json", method=PS, answers=True)
breaking("never-answer", "stat", method=STAT, answers=True)
breaking("never-answer", "mkdir", method=MKDIR, answers=True)
breaking("never-answer", "detached", "exec", method=EXEC, answers=True)
breaking("never-answer", "snapshot", method=FREEZE, answers=True)
breaking("never-answer", "snapshot", "stats", method=THAW, answers=True)
breaking("never-answer", "egress", method=NETWORK, answers=True)
breaking("answer-late", "hibernate", method=FREEZE, answers=True)
breaking("deaf", "stats", "ps", "snapshot", "fork", "inspect", answers=True, name="deaf answers")
breaking("mute", "stats", "ps", "hibernate", "stat", "inspect", answers=True, name="mute answers")
breaking("no-ends", "stats", "ps", "stat", answers=True)

# ---- what is read and answered ----

EVERYTHING = ("cp-in", "cp-out", "exec", "stats", "ps", "code", "list", "read", "write", "inspect")

breaking("deaf", *EVERYTHING, "snapshot", "hibernate")
breaking("deaf", *EVERYTHING, "hibernate", end="ttl")
breaking("deaf", "exec", "pause", "hibernate", "snapshot", end="ttl", name="deaf pause")
breaking("sip", "cp-in", "stats", "exec", "snapshot")
breaking("sip", "cp-in", "write", "hibernate", end="ttl")
breaking("mute", *EVERYTHING, "snapshot")
breaking("mute", *EVERYTHING, "fork", end="ttl")
breaking("deaf-and-mute", "cp-in", "stats", "hibernate", end="ttl")
breaking("no-credit", "cp-in", "cp-tree-in", "write", "exec-in")

# ---- checkpoints ----

breaking("never-answer", "hibernate", "stats", method=FREEZE, end="ttl")
breaking("never-answer", "snapshot", "exec", method=FREEZE, name="never-answer freeze rm")
breaking("answer-late", "snapshot", "exec", method=FREEZE, name="answer-late freeze rm")
breaking("refuse", "snapshot", "hibernate", "fork", method=FREEZE, answers=True)
breaking("lie", "snapshot", "exec", method=FREEZE, answers=True)
breaking("talk-while-frozen", "snapshot", "exec", method=FREEZE)
breaking("exit", "snapshot", "stats", method=FREEZE, answers=True)
breaking("answer-and-exit", "hibernate", "stats", method=FREEZE)
breaking("never-answer", "snapshot", "stats", method=THAW, end="ttl")
breaking("refuse", "snapshot", "stats", method=THAW, answers=True)
breaking("never-answer", "egress", "stats", method=NETWORK, name="never-answer network rm")
breaking("refuse", "egress", method=NETWORK, answers=True)

breaking("end-before-open", "snapshot", "exec", "stats", "ps", method=FREEZE, answers=True)
breaking("end-before-open", "hibernate", "exec", "stats", end="ttl", method=FREEZE)
breaking("end-again-later", "snapshot", "exec", "stats", "ps", method=FREEZE)
breaking("empty-message-flood", "snapshot", "exec", "stats", method=FREEZE)
breaking("credit-flood", "fork", "exec", "stats", method=FREEZE, end="ttl")
breaking("answer-and-exit", "fork", "stats", method=FREEZE, name="answer-and-exit fork")
breaking("answer-late", "reboot", "stats", method=FREEZE, name="answer-late reboot")
breaking("exit", "reboot", "exec", method=FREEZE, answers=True, name="exit reboot")

# ---- limits ----

breaking("never-answer", "resize", "stats", method=LIMITS, answers=True)
breaking("never-answer", "resize", "resize", "snapshot", method=LIMITS, end="ttl")
breaking("refuse", "resize", "stats", method=LIMITS, answers=True)
breaking("lie", "resize", "stats", method=LIMITS, answers=True)
breaking("exit", "resize", "exec", method=LIMITS, answers=True)
breaking("answer-and-exit", "resize", "resize", method=LIMITS)
breaking("large-message-flood", "resize", "stats", method=LIMITS)
breaking("message-flood", "fork", "stats", method=LIMITS_WATCH, name="message-flood limits watch")

# ---- frames that are none ----

for _rule in (
    "garbage", "frame-too-long", "frame-of-4-gib", "frame-of-type-zero", "frame-of-unknown-type",
    "frame-of-unknown-stream", "frame-with-reserved-bytes", "credit-of-no-bytes", "data-on-channel-0",
    "hello-on-a-channel", "channel-4095", "channel-4096", "channel-2-31", "end-of-no-channel", "hello-again",
    "hello-other-version", "open-from-the-guest", "cancel-from-the-guest", "close-the-link", "exit",
):  # fmt: skip
    breaking(_rule, "exec", "ps", "cp-in", answers=True)
breaking("half-a-header", "exec", "stats", "hibernate")
breaking("half-a-frame", "exec", "cp-out", "snapshot", end="ttl")
breaking("hello-flood", "exec", "cp-in", "stats")

# ---- calls that go wrong in the middle ----

for _rule in ("end-twice", "data-after-end", "field-past-the-end", "field-overflows", "field-cut-short", "exit"):
    breaking(_rule, "exec", "stats", "cp-in", method=EXEC, answers=True)
breaking("close-the-link", "cp-in", "exec", "stats", method=EXEC, answers=True)
for _rule in ("eof-twice", "eof-with-content", "data-after-eof", "data-on-the-hosts-stream"):
    breaking(_rule, "exec", "stats", method=EXEC)
breaking("data-past-credit", "exec", method=EXEC)
breaking("data-past-credit", "exec-unread", method=EXEC, name="data-past-credit unread")

# ---- floods, with a client that reads and with one that does not ----

for _rule in (
    "data-for-ever", "crumbs-for-ever", "empty-data-flood", "eof-flood", "credit-huge", "credit-flood",
    "credit-zero-flood", "message-flood", "message-flood-deaf", "empty-message-flood", "large-message-flood",
):  # fmt: skip
    breaking(_rule, "exec", "stats", method=EXEC, settle=2)
    breaking(_rule, "exec-unread", method=EXEC, settle=8, name=f"{_rule} unread")
breaking("empty-data-flood", "exec-unread", method=EXEC, end="ttl")
breaking("message-flood", "ps", method=PS)
breaking("large-message-flood", "list", method=LIST)
breaking("data-for-ever", "read", method=READ)
breaking("data-for-ever", "cp-out", method=READ, name="data-for-ever cp")
breaking("data-for-ever", "cp-tree-out", method=TAR_READ)
breaking("data-for-ever", "dial", method=DIAL)
breaking("empty-data-flood", "dial", method=DIAL)
breaking("message-flood", "dial", method=DIAL)
breaking("message-flood", "watch", method=WATCH)
breaking("large-message-flood", "watch", method=WATCH)
breaking("credit-flood", "cp-in", method=WRITE)
breaking("credit-flood", "cp-tree-in", method=TAR_WRITE)
breaking("data-for-ever", "code", method=EXEC, name="data-for-ever code")
breaking("message-flood", "stats", method=STATS)
breaking("data-past-credit", "stats", method=STATS)
breaking("large-message-flood", "snapshot", method=FREEZE)
breaking("empty-data-flood", "hibernate", method=FREEZE, end="ttl")

# ---- volumes ----

VOLUME_OPTIONS = ("--volume", "VOLUME")
for _rule in (
    "volume-empty-request", "volume-short-request", "volume-wrong-size", "volume-long-request", "volume-nonsense",
    "volume-flood", "volume-credit-flood", "volume-message-flood", "volume-ends",
):  # fmt: skip
    breaking(_rule, "exec", "stats", options=VOLUME_OPTIONS)
breaking("volume-flood-deaf", "snapshot", "stats", "cp-in", options=VOLUME_OPTIONS, end="ttl")
breaking("volume-no-messages", "snapshot", "stats", options=VOLUME_OPTIONS)

# ---- the machine itself ----

breaking("fork-bomb", "exec", "stats", "hibernate", settle=3)
breaking("fork-bomb", "exec", "snapshot", end="ttl")
breaking("stop-itself", "cp-in", "snapshot", "stats", end="ttl")
breaking("eat-memory", "exec", "stats", options=("--memory", "256M"), settle=6, end="ttl")


def over_its_memory(rule, end):
    """A process takes more than its sandbox may have; PID 1 is asked to end the largest, and breaks the rule."""

    def run():
        with Trial("--memory", "200M") as trial:
            if end == "ttl":  # before the memory is taken: a slow relief may end the sandbox too
                trial.give_ttl()
            trial.break_rule(rule, OOM)
            trial.run(["python3", "-c", "b = []\nwhile True: b.append(bytearray(1 << 20))"], "-d")
            trial.call("stats", "ps")
            trial.settle(3)
            trial.end_by_ttl() if end == "ttl" else trial.end_by_rm()
            trial.check()

    case(f"{rule} oom {end}", run)


over_its_memory("never-answer", "ttl")
over_its_memory("never-answer", "rm")
over_its_memory("lie", "ttl")
over_its_memory("terminal-escapes", "ttl")
over_its_memory("message-flood", "ttl")

# ---- identity: a create, a fork or a wake that the guest does not go along with ----


def refusing_identity(rule):
    """A snapshot with the rule in it: nothing comes of a create, and nothing is left of it."""

    def run():
        with Trial() as trial:
            trial.break_rule(rule, IDENTITY)
            snapshot = husk("snapshot", "create", "--json", trial.box).json()["id"]
            try:
                before = {entry["id"] for entry in husk("ls", "--json", "--all").json()}
                made = husk("create", "--from", snapshot, "--json", code=None, timeout=ANSWER_SECONDS)
                assert made.code != 0, f"an identity that nobody took: {made}"
                assert "husk: " in made.error, made
                new = {entry["id"]: entry for entry in husk("ls", "--json").json()}
                assert not [one for one in new if one not in before and new[one]["parent"] == trial.box], new
                forked = husk("fork", trial.box, "--json", code=None, timeout=ANSWER_SECONDS)
                assert forked.code != 0, f"a child without an identity: {forked}"
            finally:
                husk("snapshot", "rm", snapshot, code=None)
            trial.end_by_rm()
            trial.check()

    case(f"{rule} identity", run)


for _rule in ("refuse", "never-answer", "end-without-status", "garbage", "exit"):
    refusing_identity(_rule)


def waking_without_identity():
    with Trial() as trial:
        trial.break_rule("never-answer", IDENTITY)
        husk("hibernate", trial.box)
        woken = husk("wake", trial.box, code=None, timeout=ANSWER_SECONDS)
        assert woken.code != 0, woken
        assert inspect(trial.box)["state"] in ("hibernated", "ended"), inspect(trial.box)
        trial.supervisor = 2**22  # it has none
        trial.end_by_rm()
        assert_equal(inspect(trial.box)["state"], "ended")


case("never-answer identity wake", waking_without_identity)


def waking_is_ended_by_rm():
    with Trial() as trial:
        trial.break_rule("never-answer", IDENTITY)
        husk("hibernate", trial.box)
        with ending(start("wake", trial.box)) as waking:
            time.sleep(1)
            trial.end_by_rm()
            waking.wait(END_SECONDS)
        assert_equal(inspect(trial.box)["state"], "ended")


case("never-answer identity wake rm", waking_is_ended_by_rm)


def booting(rule, method, end):
    """Its own disk arms the agent that a reboot starts. The machine from before is not lost by that: it goes on."""

    def run():
        with Trial() as trial:
            sh(trial.box, f"mkdir -p /.husk/guest && echo '{rule} {method}' >/.husk/guest/break")
            with ending(start("reboot", trial.box)) as reboot:
                if end == "rm":
                    time.sleep(3)
                    trial.end_by_rm()
                reboot.wait(ANSWER_SECONDS * SLOW)
            assert reboot.returncode > 0, f"a reboot that the agent broke: {reboot.returncode}"
            if end == "answer":
                assert_equal(sh(trial.box, "echo on"), "on", "as if nothing had been asked")
                trial.end_by_rm()
            assert_equal(inspect(trial.box)["state"], "ended")

    case(f"{rule} reboot {METHOD_NAMES[method] if method else 'hello'} {end}", run)


for _rule, _method, _end in (
    ("never-answer", IDENTITY, "answer"), ("never-answer", IDENTITY, "rm"), ("exit", IDENTITY, "answer"),
    ("refuse", IDENTITY, "answer"), ("garbage", 0, "answer"), ("mute", 0, "rm"), ("end-twice", IDENTITY, "answer"),
):  # fmt: skip
    booting(_rule, _method, _end)

# ---- messages: every field of every answer is a lie ----

LIES = (
    "wrong-types", "negative-numbers", "smallest-numbers", "largest-numbers", "empty-fields", "nul-bytes",
    "terminal-escapes", "giant-texts", "many-fields", "end-without-status", "end-absurd-status",
)  # fmt: skip


def lying(method, *calls):
    """Every lie about every method, one after the other in one sandbox: none of them ends it."""

    def run():
        with Trial() as trial:
            for lie in LIES:
                trial.break_rule(lie, method)
                trial.calls.clear()
                trial.call(*calls)
                if method not in (WATCH, DIAL):
                    trial.expect_answers(30)
                trial.settle(0.5)
                for call in trial.calls:
                    said = (call.err or b"") + (call.out or b"" if not call.name.startswith(("exec", "attach", "read")) else b"")
                    assert b"\x1b" not in said or call.process is None, f"{lie}: escapes reach the terminal: {call}"
                    assert call.process is None or call.code is None or call.code >= 0, f"{lie}: {call}"
                    if call.process is None and call.code is not None and method not in (DIAL,):
                        assert call.code < 600, f"{lie}: {call}"
                trial.measure()
                assert _huskd.process.poll() is None, f"{lie}: huskd has ended"
                husk("exec", trial.box, "--", "/.husk/break", "lie", "99", timeout=30)  # arms nothing
                assert_equal(sh(trial.box, "echo on"), "on", f"after {lie} about {METHOD_NAMES[method]}")
                for call in trial.calls:
                    call.kill()
            trial.calls.clear()
            trial.end_by_rm()
            trial.check()

    case(f"lies about {METHOD_NAMES[method]}", run)


lying(EXEC, "exec", "detached")
lying(ATTACH, "attach")
lying(PS, "ps", "ps-json")
lying(STATS, "stats", "metrics")
lying(STAT, "stat", "cp-out")
lying(LIST, "list")
lying(READ, "read", "cp-out")
lying(WRITE, "write", "cp-in")
lying(TAR_READ, "cp-tree-out")
lying(TAR_WRITE, "cp-tree-in")
lying(MKDIR, "mkdir")
lying(WATCH, "watch")
lying(DIAL, "dial")

# ---- what needs a hand of its own ----

HIJACK = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
SEIZE, INTERRUPT, ATTACH = 0x4206, 0x4207, 16
if libc.ptrace(ATTACH, 1, 0, 0) < 0 and (libc.ptrace(SEIZE, 1, 0, 0) < 0 or libc.ptrace(INTERRUPT, 1, 0, 0) < 0):
    sys.exit(os.strerror(ctypes.get_errno()))
open('/tmp/held', 'w').close()
time.sleep(1000)
"""


def stopped_from_inside(how, end):
    """The guest's root stops PID 1: by a signal, or as its tracer, which is how it is taken over."""

    def run():
        with Trial() as trial:
            script = "kill -STOP 1" if how == "signal" else "exec python3 -c \"$0\""
            husk("exec", "-d", trial.box, "--", "sh", "-c", script, HIJACK)
            if end == "ttl":
                trial.give_ttl()
            time.sleep(1)
            trial.call("cp-in", "stats", "snapshot", "hibernate")
            trial.settle()
            trial.end_by_ttl() if end == "ttl" else trial.end_by_rm()
            trial.check()

    case(f"pid 1 stopped by {how} {end}", run)


stopped_from_inside("signal", "ttl")
stopped_from_inside("ptrace", "ttl")
stopped_from_inside("ptrace", "rm")


def broken_at_the_boot(rule):
    """A bake whose machine breaks the rule from the first byte on: it fails, and leaves nothing."""

    def run():
        with scratch() as directory:
            shutil.copy(ADVERSARY / "husk-agent", directory / "husk-agent")
            (directory / "guest").mkdir()
            (directory / "guest/break").write_text(rule)
            result = build(f"boot-{rule}", directory, code=None, timeout=250)
            assert result.code != 0 and "husk: " in result.error, result
            names = [entry["name"] for entry in husk("template", "ls", "--json").json()]
            assert f"boot-{rule}" not in names, names

    case(f"{rule} at the boot", run)


for _rule in ("hello-other-version", "garbage", "exit"):
    broken_at_the_boot(_rule)


def silent_in_a_bake():
    """Programs of the recipe run as root: one of them can take the agent over. The bake has a deadline of its own."""
    with scratch() as directory:
        shutil.copy(ADVERSARY / "husk-agent", directory / "husk-agent")
        (directory / "guest").mkdir()
        (directory / "guest/break").write_text(f"never-answer {EXEC}")
        (directory / "silent").mkdir()
        base = (TOP / "templates/base/template").read_text(encoding="utf-8")
        recipe = "".join(line for line in base.splitlines(True) if not line.startswith(("warm:", "start:")))
        (directory / "silent/template").write_text(recipe + "start: sleep 1000\n", encoding="utf-8")
        # The packages are those of base: its tar, in a cache of this test's own.
        tar = pathlib.Path(max(glob.glob(f"{os.environ['HUSK_CACHE']}/base-*.tar"), key=os.path.getmtime))
        (directory / "cache").mkdir()
        (directory / "cache" / tar.name.replace("base", "silent", 1)).symlink_to(tar)
        env = {"HUSK_LIBDIR": str(directory), "HUSK_CACHE": str(directory / "cache")}
        result = husk("template", "build", str(directory / "silent"), env=env, code=None, timeout=250)
        assert result.code != 0 and "did not answer" in result.error, result
        assert "silent" not in [entry["name"] for entry in husk("template", "ls", "--json").json()]


case("never-answer in a bake", silent_in_a_bake)


@test
def test_nothing_is_left_of_any():
    husk("gc")
    assert_no_leaks()
    assert _huskd.process.poll() is None, "huskd has ended"
    shutil.rmtree(_work, ignore_errors=True)


if __name__ == "__main__":
    main("base")
