#!/usr/bin/env python3
"""The long test (`make soak`): for SOAK_MINUTES, sandboxes live, fork, sleep, wake and become snapshots, two at a time, and
one in five loses its supervisor to kill -9 at some moment. After each round of lives every row that is left must answer
or be over, and there must be no leak; every few rounds huskd is killed in the middle of a call. One sandbox and the server
live through all of it, and their memory and descriptors must not rise. A line per round goes to the log."""

import concurrent.futures
import contextlib
import http.client
import os
import pathlib
import random
import re
import signal
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "e2e"))

from lib.harness import *  # noqa: E402
from lib.http import end_server, start_server  # noqa: E402

MINUTES = float(os.environ.get("SOAK_MINUTES", "60"))
SEED = int(os.environ.get("SOAK_SEED", time.time()))
LIVES = 60  # in a round
KILLED = 0.2  # of them
ROUNDS_PER_SERVER = 5
RISE_BYTES, RISE_DESCRIPTORS = 8 << 20, 8  # from a quarter of the way to the end
NOTE = "cat /root/note"


# ---- one life ----


def fork_twice(box):
    children = husk("fork", box, "-n", "2", "--json").json()
    for child in children:
        assert_equal(sh(child["id"], NOTE), "kept", "a child's note")
    husk("rm", *[child["id"] for child in children])


def sleep_and_wake(box):
    husk("hibernate", box)
    assert_equal(sh(box, NOTE), "kept", "the note after a sleep")


def become_a_snapshot(box):
    snapshot = husk("snapshot", "create", box, "--json").json()["id"]
    copy = husk("create", "--from", snapshot, "--ttl", "10m", "--json").json()["id"]
    assert_equal(sh(copy, NOTE), "kept", "the snapshot's note")
    husk("rm", copy)
    husk("snapshot", "rm", snapshot)


def run_commands(box):
    for number in range(3):
        assert_equal(sh(box, f"echo {number}; {NOTE}"), f"{number}\nkept")


OPERATIONS = (fork_twice, sleep_and_wake, become_a_snapshot, run_commands)


def kill_later(box, delay):
    """kill -9 of the supervisor that the sandbox has then, if it has one."""
    time.sleep(delay)
    with contextlib.suppress(OSError):
        os.kill(supervisor_pid(box), signal.SIGKILL)


def live(number):
    dice = random.Random(SEED * 1000003 + number)
    operation, killed, delay = dice.choice(OPERATIONS), dice.random() < KILLED, dice.uniform(0, 0.6)
    box = husk("create", "--ttl", "10m", "--json").json()["id"]
    sh(box, "echo kept >/root/note")
    if not killed:
        operation(box)
        husk("rm", box)
        return
    killer = threading.Thread(target=kill_later, args=(box, delay))
    killer.start()
    with contextlib.suppress(AssertionError):  # the call may fail; what it leaves behind is looked at after the round
        operation(box)
    killer.join()


# ---- after a round ----


def settle(resident):
    """Whatever killed lives left must answer or be over, and goes. Returns how many rows there were."""
    left = [entry for entry in husk("ls", "--json").json() if entry["id"] not in resident]
    for entry in left:
        answer = husk("exec", entry["id"], "--", "sh", "-c", NOTE, code=None)
        state = inspect(entry["id"])["state"]
        assert state == "ended" or answer.text == "kept\n", f"{entry['id']} is {state} and does not answer: {answer}"
        husk("rm", "-f", entry["id"])
    for snapshot in husk("snapshot", "ls", "--json").json():
        husk("snapshot", "rm", snapshot["id"])
    assert_equal({entry["id"] for entry in husk("ls", "--json").json()}, set(resident), "rows that are stuck")
    husk("gc")
    assert_no_leaks()
    return len(left)


class Watched:
    """A process whose memory and descriptors are noted."""

    def __init__(self, name, pid):
        self.name, self.pid = name, pid
        self.samples = []

    def note(self):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as file:
            memory = int(re.search(r"VmRSS:\s+(\d+) kB", file.read())[1]) << 10
        self.samples.append((memory, len(os.listdir(f"/proc/{self.pid}/fd"))))
        return f"{self.name} {memory >> 10} KiB, {self.samples[-1][1]} descriptors"

    def check(self):
        """Caches fill and threads start in the first quarter; after it nothing may grow."""
        (memory, descriptors), last = self.samples[len(self.samples) // 4], self.samples[-1]
        assert last[0] - memory < RISE_BYTES, f"the memory of {self.name} rises: {[each[0] >> 10 for each in self.samples]} KiB"
        assert last[1] - descriptors < RISE_DESCRIPTORS, f"{self.name} keeps descriptors: {[each[1] for each in self.samples]}"


class Server:
    """huskd, and a sandbox that was made over it."""

    def __init__(self):
        self.huskd = start_server()
        self.box = self.huskd.post("/v1/sandboxes", {"template": "base", "ttl_seconds": int(MINUTES * 60) + 3600}, 201).json()["id"]
        self.watched = []
        self.watch()

    def watch(self):
        self.watched.append(Watched("huskd", self.huskd.pid))

    def call(self, count):
        for number in range(count):
            said = self.huskd.post(f"/v1/sandboxes/{self.box}/exec", {"cmd": f"echo {number}"}).json()
            assert_equal(said["stdout"], f"{number}\n", "over HTTP")

    def replace(self):
        """kill -9 in the middle of a call; the next server finds what the last one made."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            threading.Timer(0.5, self.huskd.process.kill).start()
            self.huskd.post(f"/v1/sandboxes/{self.box}/exec", {"cmd": "sleep 5"}, None)
        self.huskd.process.wait(30)
        end_server(self.huskd)
        self.huskd = start_server()
        self.watch()
        self.call(1)


@test
def lives_and_kills():
    end, rounds, number = time.monotonic() + MINUTES * 60, 0, 0
    server = Server()
    resident = adopt(server.box)
    supervisor = Watched("the resident's supervisor", supervisor_pid(resident))
    print(f"# SOAK_SEED={SEED}", flush=True)
    try:
        while rounds < 2 or time.monotonic() < end:
            with concurrent.futures.ThreadPoolExecutor(2) as workers:
                for life in [workers.submit(live, number + each) for each in range(LIVES)]:
                    life.result()
                    server.call(1)
            left = settle([resident])
            rounds, number = rounds + 1, number + LIVES
            print(f"# {number} lives, {left} rows were left; {supervisor.note()}; {server.watched[-1].note()}", flush=True)
            if rounds % ROUNDS_PER_SERVER == 0:
                server.replace()
        for watched in (supervisor, *server.watched):
            if len(watched.samples) >= ROUNDS_PER_SERVER:
                watched.check()
    finally:
        end_server(server.huskd)


@test
def nothing_stays():
    husk("gc", "--all")
    until(lambda: not instance_processes(), "no process stays when the pool is emptied", seconds=60)
    for folder, kind in (("machines", ""), ("run", "sb-")):
        assert_equal([name for name in os.listdir(f"{HOME}/{folder}") if name.startswith(kind)], [], f"left in {folder}")
    assert_no_leaks()


if __name__ == "__main__":
    main("base")
