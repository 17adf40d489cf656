"""Work inside a sandbox against the same work inside plain runsc, in turns: the same current gVisor (tests/e2e/lib/runsc.py), the
same root image (template `agent`), two processors. Each script times itself, so the calls do not count. bench/run's part
`inside`."""

import pathlib
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/e2e"))
from lib import npm, runsc  # noqa: E402

TEMPLATE = "agent"
GOAL = 1.05  # 0.95 of the speed
ROUNDS = 10  # at most
GIT = """
git init -q r; cd r; git config user.email a@b.c; git config user.name a
for i in 1 2 3 4 5; do mkdir d$i; for f in 1 2 3 4 5 6 7 8 9 10; do seq $i $((i * 300)) >d$i/$f; done; git add .; git commit -qm $i; done
git log --stat >../log; git clone -q . ../c; cd ../c; git status -s
"""
MAKE = """
for i in $(seq 12); do printf '#include <stdio.h>\\n#include <stdlib.h>\\nint f%d(int n) { return n * %d + rand(); }\\n' $i $i >f$i.c; done
echo 'int main(void) { return 0; }' >main.c
printf 'all: $(patsubst %%.c,%%.o,$(wildcard *.c))\\n\\t$(CC) -o program $^\\n' >Makefile
make -s -j2 CFLAGS=-O1
"""
NPM = "tar -xf ../project.tar; npm ls --all >list || true; cp -r node_modules other; rm -r other"
SCRIPTS = (("git: five commits, log, clone", GIT), ("make -j2 of 13 files", MAKE), ("npm: unpack, ls, copy", NPM))


def timed(script):
    """Prints the milliseconds that the script took, in an empty directory."""
    return f"""set -e; export HOME=/tmp LC_ALL=C; mkdir /tmp/w; cd /tmp/w; begin=$(date +%s%N)
{script}
end=$(date +%s%N); cd /; rm -r /tmp/w; echo $(((end - begin) / 1000))"""


def run(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"work inside: {done.stdout[-500:]} {done.stderr[-500:]}")
    return int(done.stdout.split()[-1]) / 1000


def project_tar(place):
    """A project with its packages: 245 of them."""
    path = place / "project.tar"
    subprocess.run(["tar", "-C", npm.installed("mcp/checkers"), "-cf", path, "package.json", "node_modules"], check=True)
    return path


def begin(ours, peer_of, path):
    """(how to run a script in ours, how in the peer, the peer)"""
    ours.begin()
    ours.husk("template", "build", TEMPLATE)
    box = ours.husk("create", "--cpus", "2", "--memory", "4G", "--template", TEMPLATE).strip()
    peer = peer_of(ours.rootfs(TEMPLATE), path)
    name = peer.start(["/bin/sleep", "1000000"])
    tar = project_tar(peer.place)
    ours.husk("cp", str(tar), f"{box}:/tmp/project.tar")
    with open(tar, "rb") as file:
        peer.runsc("exec", name, "/bin/sh", "-c", "cat >/tmp/project.tar", stdin=file)
    mine = lambda script: float(ours.husk("exec", box, "--", "sh", "-c", timed(script)).split()[-1]) / 1000
    return mine, lambda script: run(peer.command("exec", name, "/bin/sh", "-c", timed(script))), peer


def rows(row, ours, peer_of, count, progress):
    path, why = runsc.build()
    if path is None:
        progress(f"inside: left out: {why}")
        return
    ours.environment["HUSK_RUNSC"], peer = path, None
    found = {}
    try:
        mine, theirs, peer = begin(ours, peer_of, path)
        for turn in range(min(count, ROUNDS) + 1):
            progress(f"inside: {turn} of {min(count, ROUNDS)}")
            for name, script in SCRIPTS:
                pair = mine(script), theirs(script)
                if turn:
                    found.setdefault(name, []).append(pair)
    finally:
        if peer:
            peer.end()
        ours.end()
    for name, pairs in found.items():
        yield row(f"{name} / in plain runsc", "ms", *zip(*pairs), GOAL)
