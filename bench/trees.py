"""Trees of machines, in turns: a rewind against a wake of the same sandbox, a call with a checkpoint before it against a call and a
checkpoint, a diff of two forks and an apply of a workspace against one exec, and branches that are explored against the same work in
one machine. bench/run's part `trees`. The first round of each is not counted: a first diff of two forks looks at every file that was
written in them, later ones at what was noted since."""

import os
import pathlib
import time

FILES = """
import os
for d in range(100):
    os.makedirs(f'/w/{d}')
    for f in range(100):
        with open(f'/w/{d}/{f}', 'wb') as file:
            file.write(os.urandom(20000))
"""
CHANGE = "for i in $(seq 20); do echo $RANDOM$(date +%N) >>{root}/$i/7; done"
# Two seconds of a CPU, whatever CPU it is: little for a plan of an agent.
WORK = "python3 -c 'import time\nwhile time.process_time() < 2: sum(range(10000))'"
BRANCHES = 16
ROUNDS = 10


def timed(ours, *words):
    begin = time.monotonic()
    ours.husk(*words)
    return (time.monotonic() - begin) * 1000


def make_workspace(directory):
    for d in range(100):
        (directory / str(d)).mkdir(parents=True)
        for f in range(100):
            (directory / str(d) / str(f)).write_text(f"{d} {f}\n" * 20, encoding="ascii")


def rewinds(row, ours, count, progress):
    box = ours.do("create", "base")[1][0]
    ours.do("checkpoint", box)
    ours.settle()
    found, wakes = [], []
    for turn in range(count + 1):
        progress(f"trees: rewind {turn} of {count}")
        took, _ = ours.do("rewind", box)
        ours.settle()
        ours.do("hibernate", box)
        ours.settle()
        woken, _ = ours.do("wake", box)
        ours.settle()
        if turn:
            found.append(took)
            wakes.append(woken)
    yield row("rewind / wake of the same sandbox", "ms", found, wakes, 1.2)
    ours.do("kill", box)


def calls(row, ours, count, progress):
    box, careful = ours.do("create", "base")[1][0], ours.do("careful", "base")[1][0]
    ours.settle()
    found, apart = [], []
    for turn in range(count + 1):
        progress(f"trees: each-call {turn} of {count}")
        took, _ = ours.do("exec", careful)
        kept, made = ours.do("checkpoint", box)
        alone, _ = ours.do("exec", box)
        ours.do("forget", box, made[0])
        if turn:
            found.append(took)
            apart.append(kept + alone)
    yield row("exec with a checkpoint before it / a checkpoint and an exec", "ms", found, apart, 1.2)
    for each in (box, careful):
        ours.do("kill", each)


def diffs(row, ours, count, progress):
    box = ours.do("create", "base")[1][0]
    ours.husk("exec", box, "--", "python3", "-c", FILES)
    left, right = ours.do("fork", box, 2)[1]
    ours.settle()
    found, execs = [], []
    for turn in range(count + 1):
        progress(f"trees: diff {turn} of {count}")
        for each in (left, right):
            ours.husk("exec", each, "--", "bash", "-c", CHANGE.format(root="/w"))
        pair = timed(ours, "exec", left, "--", "true"), timed(ours, "diff", left, right)
        if turn:
            execs.append(pair[0])
            found.append(pair[1])
    yield row("diff of two forks, 20 changed of 10,000 files (200 MB) / exec", "ms", found, execs, 3.0)
    ours.husk("rm", box, left, right)


def applies(row, ours, count, progress):
    directory = pathlib.Path(ours.home) / "workspace"
    make_workspace(directory)
    box = ours.husk("create", "--workspace", str(directory)).strip()
    ours.settle()
    found, execs = [], []
    for turn in range(count + 1):
        progress(f"trees: apply {turn} of {count}")
        ours.husk("exec", box, "--", "bash", "-c", CHANGE.format(root="/workspace"))
        pair = timed(ours, "exec", box, "--", "true"), timed(ours, "apply", box)
        if turn:
            execs.append(pair[0])
            found.append(pair[1])
    yield row("apply, 20 changed of 10,000 files / exec", "ms", found, execs, 5.0)
    ours.husk("rm", box)


def explores(row, ours, count, progress):
    box = ours.do("create", "base")[1][0]
    alone = f"seq {BRANCHES} | xargs -P {os.cpu_count()} -I{{}} sh -c \"{WORK}\""
    found, peer = [], []
    for turn in range(min(count, 3) + 1):
        progress(f"trees: explore {turn}")
        pair = timed(ours, "exec", box, "--", "sh", "-c", alone), timed(ours, "explore", box, "--no-promote", "--parallel", str(os.cpu_count()), "--score", "echo 1", *[WORK] * BRANCHES)
        for each in ours.husk("ls", "-q").split():
            if each != box:
                ours.husk("rm", each)
        ours.settle()
        if turn:
            peer.append(pair[0])
            found.append(pair[1])
    yield row(f"explore, {BRANCHES} branches of two seconds / their work in one machine", "ms", found, peer, 1.3)


def rows(row, ours, count, progress):
    os.makedirs(ours.home, mode=0o700)
    try:
        ours.begin()
        for part in (rewinds, calls, diffs, applies, explores):
            yield from part(row, ours, min(count, ROUNDS), progress)
    finally:
        ours.end()
