"""Machines that have worked against fresh ones, in turns, with the current gVisor (tests/e2e/lib/runsc.py): what a fork, a sleep and
a wake cost follows what changed, not what the machine holds. The fresh one and one with an npm project are also held against a
checkpoint and restore by plain runsc of the same version, with the same files in memory. Also: what ten snapshots take on disk, and files in a volume against
files on the disk of the sandbox. bench/run's part `work`."""

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
FILES = """
import os, shutil, sys, time
top, start = sys.argv[1] + '/bench', time.monotonic()
for d in range(10):
    os.makedirs(f'{top}/{d}')
    for f in range(50):
        with open(f'{top}/{d}/{f}', 'wb') as file:
            file.write(b'x' * 4000)
for folder, _, names in os.walk(top):
    for name in names:
        with open(f'{folder}/{name}', 'rb') as file:
            file.read()
shutil.rmtree(top)
print((time.monotonic() - start) * 1000)
"""
SLEEP = ["/bin/sleep", "1000000"]
GOAL = 1.5
RUNSC_GOAL, SLEEP_GOAL = 1.0, 1.6
SNAPSHOTS, SNAPSHOTS_GOAL = 10, 1.2
VOLUME_GOAL = 2.0  # each name is looked up on the host, because other sandboxes may have changed it
ROUNDS = 10  # at most: each leaves the machines of the pool to be made again


def fill_npm(ours, box, peer, name):
    """A project with its packages, as `npm ci` leaves it: some 700 packages of the registry, at the versions of a lock file."""
    project = npm.installed("web")
    ours.husk("cp", str(project), f"{box}:/project")
    with subprocess.Popen(["tar", "-C", project, "-c", "."], stdout=subprocess.PIPE) as tar:
        peer.runsc("exec", name, "/bin/tar", "-C", "/tmp", "-x", stdin=tar.stdout)


def machines(ours, peer):
    """(what it has done, its id, a container of the peer's with the same or None), a fresh one first."""

    def new():
        return ours.do("create", "base")[1][0]

    yield "fresh", new(), peer.start(SLEEP)
    box = new()
    ours.husk("exec", box, "--", "sh", "-c", ONE_FILE)
    yield "200 MB in a file", box, None
    box = new()
    ours.husk("exec", box, "--", "python3", "-c", MANY_FILES)
    yield "400 MB in 7,500 files", box, None
    box, name = new(), peer.start(SLEEP)
    try:
        fill_npm(ours, box, peer, name)
        yield "npm project", box, name
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


def measure(ours, peer, boxes, count, progress):
    """{(what, box): milliseconds}, in turns; the first round, which writes what is not on disk yet, does not count."""
    found = {}
    for turn in range(count + 1):
        progress(f"work: {turn} of {count}")
        for name, box, container in boxes:
            for what, step in (("fork", fork), ("hibernate", sleep), ("wake", wake)):
                took = step(ours, box)
                if turn:
                    found.setdefault((what, name), []).append(took)
            if container:
                took = peer.copy(container)
                if turn:
                    found.setdefault(("runsc", name), []).append(took)
    return found


def disk_mb(ours):
    """What disks and snapshots take on the host."""
    os.sync()
    home = pathlib.Path(ours.home)
    files = [home / "disks.btrfs", *(path for path in (home / "snapshots").rglob("*") if path.is_file())]
    return sum(path.stat().st_blocks * 512 for path in files) / 1e6


def snapshots(ours, box):
    """What the machine and one snapshot of it take, and the machine and ten."""
    ours.husk("snapshot", "create", box)
    one = disk_mb(ours)
    for _ in range(SNAPSHOTS - 1):
        ours.husk("snapshot", "create", box)
    return one, disk_mb(ours)


def volume_turns(ours, count):
    """Milliseconds for the same files in a volume and on the disk, in turns."""
    ours.husk("volume", "create", "bench")
    box = ours.husk("create", "--volume", "bench:/data").strip()
    found = {"/data": [], "/w": []}
    for turn in range(count + 1):
        for top, times in found.items():
            took = float(ours.husk("exec", box, "--", "python3", "-c", FILES, top))
            if turn:
                times.append(took)
    return found["/data"], found["/w"]


def rows(row, ours, peer_of, count, progress):
    path, why = runsc.build()
    if path is None:
        progress(f"work: left out: {why}")
        return
    ours.environment["HUSK_RUNSC"], peer = path, None
    os.makedirs(ours.home, mode=0o700)
    try:
        ours.begin()
        peer = peer_of(ours.rootfs(), path)
        boxes = list(machines(ours, peer))
        ours.settle()
        found = measure(ours, peer, boxes, min(count, ROUNDS), progress)
        last, box, _ = boxes[-1]
        one, ten = snapshots(ours, box)
        volume, disk = volume_turns(ours, count)
    finally:
        if peer:
            peer.end()
        ours.end()
    yield row("fork, fresh / runsc checkpoint+restore", "ms", found["fork", "fresh"], found["runsc", "fresh"], RUNSC_GOAL)
    for name, _, _ in boxes[1:]:
        for what in ("fork", "hibernate", "wake"):
            yield row(f"{what}, {name} / fresh", "ms", found[what, name], found[what, "fresh"], GOAL)
    if ("runsc", "npm project") in found:
        both = [a + b for a, b in zip(found["hibernate", last], found["wake", last])]
        yield row("hibernate + wake, npm project / runsc checkpoint+restore", "ms", both, found["runsc", last], SLEEP_GOAL)
    yield row(f"disk with ten snapshots, {last} / with one", "MB", [ten], [one], SNAPSHOTS_GOAL)
    yield row("500 files in a volume / on the disk", "ms", volume, disk, VOLUME_GOAL)
