"""Runs the commands in documents as printed, and compares their output with the printed output below them.

A block of code with lines that begin with "$ " is a session: each such line is a command for bash, and the lines below it
are its output. Values that differ between runs (ids, times, numbers) are compared by their form.
"""

import os
import pathlib
import re
import select
import signal
import subprocess
import time

COMMAND_SECONDS = 240
LAST = "documents-last"  # printed after each command, with its status

SHAPES = [
    (re.compile(r"\b(sb|sn|vol|tk)-[a-z0-9]{10}\b"), r"\1-ID"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"husk_[A-Za-z0-9_-]+…?"), "TOKEN"),
    (re.compile(r"\b[0-9a-f]{8}-[a-z0-9]{8}\b"), "VERSION"),
    (re.compile(r"0x[0-9a-f]+"), "ADDRESS"),
    (re.compile(r"\b(ms|s|m|h|d|B|KiB|MiB|GiB)\b(?=,| of| out| in|$|  )"), "UNIT"),
    (re.compile(r"\d+(\.\d+)?"), "N"),
    (re.compile(r"\s+"), " "),
]


def shape(line):
    for pattern, word in SHAPES:
        line = pattern.sub(word, line)
    return line.strip()


def sections(path, level="##"):
    """(heading, blocks) of a document, in order; a block is (kind, lines)."""
    found, block = [("", [])], None
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            if block is None:
                block = (line[3:].strip(), [])
                found[-1][1].append(block)
            else:
                block = None
        elif block is not None:
            block[1].append(line)
        elif line.startswith(f"{level} "):
            found.append((line[len(level) + 1 :], []))
    assert block is None, f"{path} has a block without an end"
    return found


def commands(lines):
    """(command, output) of a session's lines."""
    found = []
    for line in lines:
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
    return found


class Shell:
    """A bash that keeps its directory, variables and jobs between commands, as a reader's shell does."""

    def __init__(self, cwd, env):
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )
        os.set_blocking(self.process.stdout.fileno(), False)
        self.run("set -m") # jobs have numbers

    def run(self, command):
        """Returns its output and exit status."""
        pause = "; sleep 2" if command.split("#")[0].rstrip().endswith("&") else ""
        text = f"{command}\n__status=$?{pause}\necho\necho {LAST} $__status\n"
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()
        said, deadline = b"", time.monotonic() + COMMAND_SECONDS
        while not (end := re.search(rf"\n{LAST} (\d+)\n".encode(), said)):
            assert time.monotonic() < deadline, f"{command!r} does not end: {said[-500:]!r}"
            assert self.process.poll() is None, f"bash ended in {command!r}: {said[-500:]!r}"
            if select.select([self.process.stdout], [], [], 1)[0]:
                said += self.process.stdout.read() or b""
        return said[: end.start()].decode(), int(end.group(1))

    def close(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        for job in self._children():
            try:
                os.kill(job, signal.SIGTERM)
            except ProcessLookupError:
                pass
        self.process.kill()
        self.process.communicate()

    def _children(self):
        path = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(word) for word in path.read_text().split()] if path.exists() else []


NAMED = re.compile(r"\b(?:sb|sn|vol|tk)-[a-z0-9]{10}\b|^\d+$")


def learn(names, printed, said):
    """Learns which id or pid of this run replaces the printed one in later commands."""
    for old, new in zip(printed, said.splitlines()):
        names.update(zip(NAMED.findall(old), NAMED.findall(new)))


def translate(names, command):
    return re.sub(r"(?<=\s)[^\s;]+", lambda word: names.get(word.group(), word.group()), command)


def check(command, printed, said, loose):
    """Asserts that the output is as printed; for a `loose` command only the first line."""
    wanted = [shape(line) for line in printed if line.strip()]
    got = [shape(line) for line in said.splitlines() if line.strip() and not re.match(r"\[\d+\][+-]?\s", line)]
    got = [line for line in got if not line.startswith("TIME info husk: ")]  # the log of -v, not the command's output
    if loose:
        wanted, got = wanted[:1], got[:1]
    assert wanted == got, f"{command!r} is printed with {wanted}, and says {got}"
