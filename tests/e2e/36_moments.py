#!/usr/bin/python3
"""Snapshots at moments nobody chose, while a program writes to its disk and talks over its network without end. Each is
restored and checked to have gone on: not started anew, nothing lost. What shows it is a number that lives in memory
only, and a count."""

# timeout: 1800
import hashlib
import json
import os
import random
import time

from lib.harness import *

MOMENTS = 3 if SLOW < LAB_SLOW else 2

# Every turn changes the disk (a journal that must have no gap, a block that must read as it was written) and uses the
# network: loopback, and the wire to the gateway, whose answers do not matter. The nonce is told once, to its starter; an
# answer to a challenge shows that it is still known.
WORK = r"""
import hashlib, json, os, socket, threading, time
nonce, turns, faults = os.urandom(16).hex(), 0, []
print(nonce, flush=True)
server = socket.create_server(("127.0.0.1", 0))
def echo():
    while True:
        peer, _ = server.accept()
        with peer:
            while data := peer.recv(65536):
                peer.sendall(data)
threading.Thread(target=echo, daemon=True).start()
near = socket.create_connection(server.getsockname())
gateway = next((line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("nameserver")), None)
far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
far.setblocking(False)
question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04husk\x07invalid\x00\x00\x01\x00\x01"
journal = open("/root/journal", "a")
def check(what, found, wanted):
    if found != wanted:
        faults.append(f"{what} in turn {turns}")
while True:
    turns += 1
    block = hashlib.sha256(f"{nonce}{turns}".encode()).digest() * 2048
    with open("/root/block", "wb") as file:
        file.write(block)
    near.sendall(block[:32])
    got = b""
    while len(got) < 32:
        got += near.recv(32 - len(got))
    check("loopback", got, block[:32])
    for _ in range(4):
        try:
            if gateway:
                far.sendto(question, (gateway, 53))
                far.recv(512)
        except OSError:
            pass
    check("block", open("/root/block", "rb").read(), block)
    journal.write(f"{turns}\n")
    journal.flush()
    os.fsync(journal.fileno())
    time.sleep(0.005)  # others want a CPU too
    if os.path.exists("/root/challenge"):
        challenge = open("/root/challenge").read()
        answer = {"proof": hashlib.sha256((nonce + challenge).encode()).hexdigest(), "turns": turns, "faults": faults}
        with open("/root/answer.new", "w") as file:
            json.dump(answer, file)
        os.remove("/root/challenge")
        os.rename("/root/answer.new", "/root/answer")
"""


def start_work(box):
    husk("exec", "-d", box, "--", "sh", "-c", 'exec python3 -c "$0" >/root/nonce', WORK)
    return sh(box, "until test -s /root/nonce; do sleep 0.1; done; cat /root/nonce; rm /root/nonce")


ASK = """
rm -f /root/answer
printf %s "$0" >/root/challenge.new
mv /root/challenge.new /root/challenge
until test -e /root/answer; do sleep 0.05; done
cat /root/answer
echo
cat /root/journal
"""


def ask(box, nonce):
    """How many turns the work has made, told by one that still knows the nonce; the journal has each of them."""
    challenge = os.urandom(8).hex()
    answer, *lines = husk("exec", box, "--", "sh", "-c", ASK, challenge).text.splitlines()
    answer = json.loads(answer)
    assert_equal(answer["proof"], hashlib.sha256((nonce + challenge).encode()).hexdigest(), "the same memory")
    assert_equal(answer["faults"], [], "what it found wrong")
    assert_equal(lines, [str(n) for n in range(1, len(lines) + 1)], "the journal")
    assert len(lines) >= answer["turns"], f"{len(lines)} lines after {answer['turns']} turns"
    return answer["turns"]


@test
def test_snapshot_of_a_busy_machine_at_any_moment():
    box = create("--egress", "allow")
    nonce = start_work(box)
    seen = 0
    for number in range(MOMENTS):
        seen = ask(box, nonce)
        time.sleep(random.random())
        snapshot = adopt_snapshot(husk("snapshot", "create", "--json", box).json()["id"])
        copy = create("--from", snapshot)
        assert ask(copy, nonce) > seen, f"snapshot {number} went back"
        remove(copy)
    assert ask(box, nonce) > seen, "and the original goes on"


@test
def test_sleep_of_a_busy_machine_at_any_moment():
    box = create("--egress", "allow")
    nonce = start_work(box)
    seen = ask(box, nonce)
    time.sleep(random.random())
    husk("hibernate", box)
    assert ask(box, nonce) > seen, "it went back"


@test
def test_fork_of_a_busy_machine_at_any_moment():
    box = create("--egress", "allow")
    nonce = start_work(box)
    seen = ask(box, nonce)
    time.sleep(random.random())
    children = fork(box, "-n", "2")
    for one in (box, *children):
        assert ask(one, nonce) > seen, f"{one} went back"


if __name__ == "__main__":
    main("base")
