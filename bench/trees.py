"""Trees of machines: a diff of two forks and an apply of a workspace against one exec, and branches that are explored against the
same work in one machine, in turns. bench/run's part `trees`."""

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
WORK = "python3 -c 'sum(range(6000000))'"
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


def diffs(row, ours, count, progress):
    box = ours.do("create", "base")[1][0]
    ours.husk("exec", box, "--", "python3", "-c", FILES)
    left, right = ours.do("fork", box, 2)[1]
    for each in (left, right):
        ours.husk("exec", each, "--", "bash", "-c", CHANGE.format(root="/w"))
    ours.settle()
    found, execs = [], []
    for turn in range(count + 1):
        progress(f"trees: diff {turn} of {count}")
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
    yield row(f"explore, {BRANCHES} branches / their work in one machine", "ms", found, peer, 1.3)


def rows(row, ours, count, progress):
    os.makedirs(ours.home, mode=0o700)
    try:
        ours.begin()
        for part in (diffs, applies, explores):
            yield from part(row, ours, min(count, ROUNDS), progress)
    finally:
        ours.end()
