#!/usr/bin/python3
"""The microvm engine where there is real KVM: boots the lab (see tests/lab/README.md) and runs its short proof there.

The whole of it is `make lab`. Where the lab cannot be had, because QEMU or Debian's packages are missing, this is a
skip that says so; and so it is where QEMU fails twice, or the machine is too busy or too slow for a machine inside of a
machine: none of that is Husk's doing. What a step of the proof finds wrong is a failure.
"""

# timeout: 600
# alone
import os
import pathlib
import subprocess
import sys
import time

LAB = pathlib.Path(__file__).resolve().parent.parent / "lab"
SECONDS = 270  # for all of it
LEAST = 60  # for a second try
STARVED, TIME_UP, FAILED, STOOD_STILL, UNAVAILABLE = 123, 124, 125, 126, 77
SKIPS = {STARVED: "this machine is too busy: QEMU waited for a CPU longer than it had one",
         UNAVAILABLE: "it cannot be had here; the reason stands above",
         FAILED: "its host ended without a result, twice; the last it said stands above",
         STOOD_STILL: "QEMU stood still, twice",
         TIME_UP: f"this machine is too slow for it: it was not done in {SECONDS} s"}


def attempt(seconds):
    command = [sys.executable, LAB / "run", "--timeout", str(int(seconds)), "--", "tests/lab/smoke"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


def main():
    if os.environ.get("LAB"):
        print("skip lab: this is the lab")
        return 77
    end = time.monotonic() + SECONDS
    status, output = attempt(SECONDS)
    left = end - time.monotonic()
    if status in (FAILED, STOOD_STILL) and left >= LEAST:
        print(f"# the lab ended with status {status}; once more")
        status, output = attempt(left)
    if status in SKIPS:
        print("".join(f"# {line}\n" for line in output.splitlines()), end="")
        print(f"skip lab: {SKIPS[status]}")
        return 77
    print(output, end="")
    return status


if __name__ == "__main__":
    sys.exit(main())
