#!/usr/bin/python3
"""kill -9 at moments nobody chose, over fork, hibernate, wake, snapshot and bake: of the supervisor, the machine's kernel,
the client, the server, or any process of the instance. After each, one plain `husk ls` has put everything in order: no
row waits for somebody who is dead, no half image counts, and what was acknowledged is there.

HUSK_MOMENTS: how many (40). HUSK_SEED: the seed of an earlier run, which it prints; with HUSK_MOMENT=N that moment alone."""

# timeout: 3600
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import threading
import time

from lib.harness import *
from lib.http import end_server, start_server
from lib.roots import copy_program, small_root

MOMENTS = int(os.environ.get("HUSK_MOMENTS", "40"))
SEED = os.environ.get("HUSK_SEED") or os.urandom(4).hex()
ONLY = os.environ.get("HUSK_MOMENT")
TEMPLATE = "moments"
RETURN_SECONDS = 60  # a call whose supervisor was killed has returned
SETTLE_SECONDS = 15  # and what was half done is cleared, or finished by those who are alive

# All it knows is in its memory: a token that was given to this process alone, and a count.
WORK = r"""
n=0
while :; do
    n=$((n + 1))
    echo "$TOKEN $n" >/root/tick.new
    mv /root/tick.new /root/tick
    sleep 0.02
done
"""

OPERATIONS = ("hibernate", "wake", "fork", "snapshot", "bake")
VICTIMS = {
    "hibernate": ("supervisor", "kernel", "client", "server", "any"),
    "wake": ("waker", "waker", "kernel", "client", "server", "any"),
    "fork": ("supervisor", "kernel", "client", "server", "any"),
    "snapshot": ("supervisor", "kernel", "client", "server", "any"),
    "bake": ("client", "client", "any"),
}
_usual = {}  # seconds that each takes when nobody is killed
_place = None  # of the small root
_baked = 0


# ---- the machine whose life it is ----


class Machine:
    def __init__(self):
        self.box = adopt(husk("create", "--json", "-t", TEMPLATE, "--ttl", "20m").json()["id"])
        self.note = os.urandom(8).hex()
        sh(self.box, f"echo {self.note} >/root/note")
        self.token = os.urandom(8).hex()
        husk("exec", "-d", "-e", f"TOKEN={self.token}", self.box, "--", "sh", "-c", WORK)
        self.count = until(lambda: self.tick(self.box), "the work begins", pause=0.02)[1]

    @staticmethod
    def tick(box):
        words = sh(box, "cat /root/tick 2>/dev/null || true").split()
        return (words[0], int(words[1])) if len(words) == 2 else None

    def assert_whole(self, box):
        """Disk and memory of it are there, and its process goes on."""
        assert_equal(sh(box, "cat /root/note"), self.note, f"the file in {box}")
        token, count = self.tick(box)
        assert_equal(token, self.token, f"the memory of {box}")
        assert count >= self.count, f"{box} went back from {self.count} to {count}"
        until(lambda: self.tick(box)[1] > count, f"the work of {box} goes on", pause=0.02)


# ---- calls and kills ----


class Request:
    """One call of the server on a thread, shaped like a process: poll, wait, returncode 0 for success."""

    def __init__(self, huskd, method, path, body):
        self.returncode = None
        self.text = ""
        self._thread = threading.Thread(target=self._run, args=(huskd, method, path, body), daemon=True)
        self._thread.start()

    def _run(self, huskd, method, path, body):
        try:
            answer = huskd.call(method, path, body, status=None, timeout=RETURN_SECONDS)
            self.text = answer.text
            self.returncode = 0 if answer.status < 300 else 1
        except Exception:  # the connection was cut with the server
            self.returncode = -9

    def poll(self):
        return self.returncode

    def wait(self, seconds):
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"the server's call did not return within {seconds} s"


def begin_bake():
    """Another version of the template each time, or there would be nothing to do."""
    global _baked
    _baked += 1
    (_place / "root/etc/who").write_text(f"version {SEED} {_baked}\n")
    return start("template", "build", "--rootfs", str(_place / "root"), "baked")


def begin(operation, machine, huskd):
    if operation == "bake":
        return begin_bake()
    box = machine.box
    if huskd:
        path = f"/v1/sandboxes/{box}/" + ("snapshots" if operation == "snapshot" else operation)
        return Request(huskd, "POST", path, {"count": 2} if operation == "fork" else {})
    words = {
        "hibernate": ["hibernate", box],
        "wake": ["wake", box],
        "fork": ["fork", box, "-n", "2", "--ttl", "10m", "--json"],
        "snapshot": ["snapshot", "create", box, "--json"],
    }
    return start(*words[operation])


def kill(pid):
    with contextlib.suppress(ProcessLookupError, TypeError):
        os.kill(pid, signal.SIGKILL)


def find_victim(victim, operation, machine, call, huskd, before, dice):
    """Its pid; None when there is none at this moment."""
    with contextlib.suppress(OSError, AssertionError):
        if victim == "client":
            return None if isinstance(call, Request) else call.pid
        if victim == "server":
            return huskd.pid
        if victim == "waker":  # whoever is about to become the sandbox's supervisor: born since, or one of the pool
            now = [pid for pid, words in instance_processes().items() if b"supervise" in words]
            born = [pid for pid in now if pid not in before]
            return dice.choice(born or now) if now else None
        if victim == "any":
            return dice.choice(sorted(instance_processes()))
        if victim == "kernel":
            return kernel_of(machine.box)
        return supervisor_pid(machine.box)
    return None


class Moment:
    """What was done at one of them."""

    def __init__(self, number):
        self.dice = random.Random(f"{SEED} {number}")
        self.number = number
        self.operation = OPERATIONS[number % len(OPERATIONS)]
        self.victim = self.dice.choice(VICTIMS[self.operation])
        self.delay = self.dice.uniform(0, 1.1)  # of the usual time
        self.acknowledged = self.text = None

    def __str__(self):
        return (
            f"HUSK_SEED={SEED} HUSK_MOMENT={self.number}: {self.victim} killed {self.delay * 100:.0f} % into "
            f"{self.operation}, which was {'' if self.acknowledged else 'not '}acknowledged"
        )

    def strike(self, machine, huskd):
        before = set(instance_processes())
        call = begin(self.operation, machine, huskd)
        try:
            time.sleep(self.delay * _usual.get(self.operation, 0.2))
            early = call.poll() is not None  # acknowledged before anything was killed
            kill(find_victim(self.victim, self.operation, machine, call, huskd, before, self.dice))
            self.early = early
            if isinstance(call, Request):
                call.wait(RETURN_SECONDS * SLOW)
                self.text = call.text
            else:
                self.text = call.communicate(timeout=RETURN_SECONDS * SLOW)[0].decode(errors="replace")
            self.acknowledged = call.returncode == 0
        finally:
            if not isinstance(call, Request):
                with ending(call):
                    pass

    def made(self):
        """Ids that an acknowledged call named."""
        with contextlib.suppress(ValueError, TypeError, KeyError):
            said = json.loads(self.text)
            said = said.get("sandboxes", said) if isinstance(said, dict) else said
            return [one["id"] for one in (said if isinstance(said, list) else [said])]
        return []


# ---- what must hold afterwards ----


def wait_settled():
    """The rows after one `husk ls`: each says where it stands, soon, and without another word."""
    husk("ls", timeout=30)
    last = [None]

    def settled():
        last[0] = husk("ls", "--json", timeout=30).json()
        return all(row["state"] in ("running", "hibernated") for row in last[0])

    try:
        until(settled, "rows settle", seconds=SETTLE_SECONDS)
    except AssertionError:
        stuck = [(row["id"], row["state"]) for row in last[0] if row["state"] not in ("running", "hibernated")]
        raise AssertionError(f"stuck rows: {stuck}") from None
    return {row["id"]: row for row in last[0]}


def check_machine(moment, machine):
    entry = inspect(machine.box)
    if entry["state"] in ("running", "hibernated"):
        try:
            machine.assert_whole(machine.box)
            return
        except AssertionError:
            time.sleep(2 * SLOW)  # one that was killed is taken apart before its row says so
            entry = inspect(machine.box)
            if entry["state"] != "ended":
                raise
    assert_equal((entry["state"], entry["end_reason"]), ("ended", "crashed"))
    kinds = event_kinds(machine.box)
    assert moment.victim not in ("client", "server"), "it was ended by the death of a client"
    if moment.operation == "hibernate":
        assert not moment.acknowledged, "the hibernation was acknowledged"
    if moment.operation == "wake":
        assert "woken" in kinds, "it had not woken yet, and its image was whole"


def check_children(moment, machine, rows, known):
    new = [box for box in rows if box not in known and box != machine.box]
    for child in new:
        adopt(child)
    if moment.acknowledged and moment.victim in ("client", "server") and moment.operation == "fork":
        missing = set(moment.made()) - set(new)
        assert not missing, f"acknowledged children are gone: {missing}"
    for child in new:
        try:
            machine.assert_whole(child)
        except AssertionError:
            # What was killed may have been a process of the child's own.
            if moment.victim != "any" or inspect(child)["end_reason"] != "crashed":
                raise
        remove(child)


def check_snapshots(moment, machine):
    there = [entry["id"] for entry in husk("snapshot", "ls", "--json").json()]
    if moment.operation == "snapshot" and moment.acknowledged:
        missing = set(moment.made()) - set(there)
        assert not missing, f"an acknowledged snapshot is gone: {missing}"
    for snapshot in there:
        copy = create("--from", snapshot)
        machine.assert_whole(copy)
        remove(copy)
        husk("snapshot", "rm", snapshot)


def check_template(moment):
    names = [entry["name"] for entry in husk("template", "ls", "--json").json()]
    if moment.acknowledged:
        assert_in("baked", names)
    if "baked" in names:
        said = husk("run", "-t", "baked", "--", "cat", "/etc/who").text
        assert said.startswith(f"version {SEED}"), said
        if moment.acknowledged:
            assert_equal(said, f"version {SEED} {_baked}\n", "the version that was acknowledged")


def live_through(moment):
    """One moment from start to end. The machine is a new one: its death must not be another moment's."""
    assert len(_usual) == len(OPERATIONS), "the operations do not even work undisturbed"
    known = set(listed())
    machine = None if moment.operation == "bake" else Machine()
    huskd = start_server() if moment.victim == "server" else None
    try:
        if moment.operation == "wake":
            husk("hibernate", machine.box)
        moment.strike(machine, huskd)
        rows = wait_settled()
        if machine:
            check_machine(moment, machine)
            check_children(moment, machine, rows, known)
            check_snapshots(moment, machine)
            husk("rm", "-f", machine.box)
        else:
            check_template(moment)
        assert_no_leaks()
    finally:
        if huskd:
            end_server(huskd)
        for snapshot in husk("snapshot", "ls", "--json").json():
            adopt_snapshot(snapshot["id"])
        for box in set(listed()) - known:
            adopt(box)
        husk("gc")  # what one moment left must not be found at the next


def measure(operation):
    machine = Machine()
    if operation == "wake":
        husk("hibernate", machine.box)
    started = time.monotonic()
    call = begin(operation, machine, None)
    with ending(call):
        out, err = call.communicate(timeout=RETURN_SECONDS * SLOW)
        assert call.returncode == 0, (operation, out, err)
    _usual[operation] = time.monotonic() - started
    if operation == "fork":
        remove(*[child["id"] for child in json.loads(out)])
    if operation == "snapshot":
        husk("snapshot", "rm", json.loads(out)["id"])
    husk("rm", "-f", machine.box)


@test
def test_each_operation_undisturbed():
    global _place
    _place = pathlib.Path(f"{HOME}/moments")
    _place.mkdir(exist_ok=True)
    copy_program(small_root(_place), "/bin/mv")
    husk("template", "build", "--rootfs", str(_place / "root"), TEMPLATE, timeout=300)
    for operation in OPERATIONS:
        measure(operation)
    print(f"# HUSK_SEED={SEED}, usual seconds: {({key: round(value, 2) for key, value in _usual.items()})}", flush=True)


def test_of(number):
    def run():
        moment = Moment(number)
        try:
            live_through(moment)
        except Exception as error:
            raise AssertionError(f"{moment}: {error}") from error

    moment = Moment(number)
    run.__name__ = f"test_{number:03}_{moment.victim}_killed_during_{moment.operation}"
    return run


for _number in [int(ONLY)] if ONLY else range(MOMENTS):
    test(test_of(_number))


def kill_at_first_change(box, image):
    """kill -9 of the sandbox's supervisor when the first name in its image is gone, or the image itself."""
    end = time.monotonic() + RETURN_SECONDS
    whole, pid = sorted(os.listdir(image)), None
    while time.monotonic() < end:
        if not pid:
            with contextlib.suppress(OSError):
                pid = supervisor_pid(box)
        try:
            if sorted(os.listdir(image)) == whole:
                continue
        except FileNotFoundError:
            pass
        kill(pid)
        return
    raise AssertionError(f"the image of {box} never changed")


def killed_as_its_image_goes(number):
    """The image of one that wakes goes at some point: killed right then, it still sleeps with all of it, or had woken."""

    def run():
        machine = Machine()
        husk("hibernate", machine.box)
        with ending(start("wake", machine.box)) as call:
            kill_at_first_change(machine.box, f"{HOME}/sandboxes/{machine.box}/image")
            call.communicate(timeout=RETURN_SECONDS * SLOW)
        wait_settled()
        entry = inspect(machine.box)
        if entry["state"] == "ended":
            assert_equal(entry["end_reason"], "crashed")
            assert_in("woken", event_kinds(machine.box), "it had not woken yet, and its image was whole")
        else:
            machine.assert_whole(machine.box)
        husk("rm", "-f", machine.box)
        husk("gc")  # it may have been about to fill the pool
        assert_no_leaks()

    run.__name__ = f"test_killed_as_its_image_goes_{number}"
    return run


for _number in range(4):
    test(killed_as_its_image_goes(_number))


@test
def test_nothing_is_left_of_any():
    husk("rm", "-f", "--all", code=None)  # children of a fork whose client was killed; the moment of the fork is kept for them
    husk("gc")
    assert_no_leaks()
    assert_equal(os.listdir(f"{HOME}/snapshots") if os.path.isdir(f"{HOME}/snapshots") else [], [])
    for name in (TEMPLATE, "baked"):
        husk("template", "rm", name, code=None)
    shutil.rmtree(_place, ignore_errors=True)


if __name__ == "__main__":
    main()
