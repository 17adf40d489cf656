#!/usr/bin/python3
"""The microvm engine where there is real KVM: boots the lab (see tests/lab/README.md) and runs its short proof there.

The whole of it is `make lab`. Where the lab cannot be had, because QEMU or Debian's packages are missing, this is a
skip that says so.
"""

# timeout: 900
import os
import pathlib
import subprocess
import sys

LAB = pathlib.Path(__file__).resolve().parent.parent / "lab"
SECONDS = 600
FAILURES = {124: f"the lab took longer than {SECONDS} s", 125: "the lab itself failed"}


def main():
    if os.environ.get("LAB"):
        print("skip lab: this is the lab")
        return 77
    command = [sys.executable, LAB / "run", "--timeout", str(SECONDS), "--", "tests/lab/smoke"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="")
    if done.returncode == 77:
        print("skip lab: it cannot be had here; the reason stands above")
    elif done.returncode in FAILURES:
        print(f"not ok lab: {FAILURES[done.returncode]}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
