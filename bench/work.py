"""Machines that have worked against fresh ones, in turns, with the current gVisor (tests/e2e/lib/runsc.py): what a fork, a sleep and
a wake cost follows what changed, not what the machine holds. bench/run's part `work`."""

import os
import pathlib
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/e2e"))
from lib import npm, runsc  # noqa: E402

ONE_FILE = "dd if=/dev/urandom of=/big bs=1M count=200 status=none"
MANY_FILES = """
import os
for d in range(75):
    os.makedirs(f'/w/{d}')
    for f in range(100):
        with open(f'/w/{d}/{f}', 'wb') as file:
            file.write(os.urandom(54000))
"""
GOAL = 1.5
ROUNDS = 10  # at most: each leaves the machines of the pool to be made again


def fill_npm(ours, box):
    """A project with its packages, as `npm ci` leaves it: 245 packages of the registry, at the versions of a lock file."""
    project = npm.installed("mcp/checkers")
    ours.husk("cp", str(project), f"{box}:/project")


def machines(ours):
    """(what it has done, its id), a fresh one first."""

    def new():
        return ours.do("create", "base")[1][0]

    yield "fresh", new()
    box = new()
    ours.husk("exec", box, "--", "sh", "-c", ONE_FILE)
    yield "200 MB in a file", box
    box = new()
    ours.husk("exec", box, "--", "python3", "-c", MANY_FILES)
    yield "400 MB in 7,500 files", box
    box = new()
    try:
        fill_npm(ours, box)
        yield "npm project", box
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        print(f"bench: no npm project: {error}", file=sys.stderr)


def fork(ours, box):
    took, children = ours.do("fork", box, 1)
    for child in children:
        ours.do("kill", child)
    ours.settle()
    return took


def sleep(ours, box):
    took, _ = ours.do("hibernate", box)
    return took


def wake(ours, box):
    took, _ = ours.do("wake", box)
    ours.settle()
    return took


def measure(ours, boxes, count, progress):
    """{(what, box): milliseconds}, in turns; the first round, which writes what is not on disk yet, does not count."""
    found = {}
    for turn in range(count + 1):
        progress(f"work: {turn} of {count}")
        for name, box in boxes:
            for what, step in (("fork", fork), ("hibernate", sleep), ("wake", wake)):
                took = step(ours, box)
                if turn:
                    found.setdefault((what, name), []).append(took)
    return found


def rows(row, ours, count, progress):
    path, why = runsc.build()
    if path is None:
        progress(f"work: left out: {why}")
        return
    ours.environment["HUSK_RUNSC"] = path
    os.makedirs(ours.home, mode=0o700)
    try:
        ours.begin()
        boxes = list(machines(ours))
        ours.settle()
        found = measure(ours, boxes, min(count, ROUNDS), progress)
    finally:
        ours.end()
    for name, _ in boxes[1:]:
        for what in ("fork", "hibernate", "wake"):
            yield row(f"{what}, {name} / fresh", "ms", found[what, name], found[what, "fresh"], GOAL)
