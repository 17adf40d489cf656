"""The part `leash` of bench/run: what the network leash costs.

What goes through the leash is measured against the bare wire of the same engine: a sandbox without a policy, whose
gateway namespace this process enters to listen there itself, in the place of the leash. Both talk to the same server,
here on the host; under the leash it is reached by a rule for the host's own address.
"""

import ctypes
import os
import socket
import threading
import time

MEGABYTES = 192
CROWD_MAX, CROWD_EACH_MB = 500, 24
REST_S = 75  # a sandbox in which nothing happens falls asleep after a minute
RULES = 50

# In the guest: bytes out, bytes in, and the time from connect to the first byte back. Prints a number for each.
GUEST = """
import socket, sys, time
address, port, megabytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def dial(word):
    s = socket.create_connection((address, port), 10); s.sendall(word); return s
block = bytes(1 << 20)
def out():
    s = dial(b"i"); begin = time.monotonic()
    for _ in range(megabytes): s.sendall(block)
    s.shutdown(1); s.recv(1); return megabytes / (time.monotonic() - begin)
def into():
    s = dial(b"o"); total, buffer = 0, bytearray(1 << 20); begin = time.monotonic()
    while total < megabytes << 20: total += s.recv_into(buffer)
    return megabytes / (time.monotonic() - begin)
def connect():
    times = []
    for _ in range(40):
        begin = time.monotonic(); s = dial(b"p"); s.recv(1); times.append(time.monotonic() - begin); s.close()
    return sorted(times)[len(times) // 2] * 1000
print({"out": out, "into": into, "connect": connect}[sys.argv[4]]())
"""


class Server:
    """Takes bytes ("i"), gives bytes ("o") or answers at once ("p"), as the first byte of a connection says."""

    def __init__(self, listener):
        self.listener = listener
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        buffer = bytearray(1 << 20)
        with connection:
            try:
                word = connection.recv(1)
                if word == b"p":
                    connection.sendall(b"x")
                while word == b"i" and connection.recv_into(buffer):
                    pass
                if word == b"i":
                    connection.sendall(b"x")
                while word == b"o":
                    connection.sendall(buffer)
            except OSError:
                pass

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def own_address():
    """An address of the host that a guest can name; None when it has loopback only."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.254", 9))
            address = probe.getsockname()[0]
        except OSError:
            return None
    return None if address.startswith("127.") else address


def supervisor_of(bench, box):
    """The process that holds the lock of this sandbox."""
    lock = f"{bench.ours.home}/run/{box}.lock"
    for pid in bench.ours.processes():
        try:
            if os.path.samefile(f"/proc/{pid}/fd/3", lock):
                return pid
        except OSError:
            continue
    raise RuntimeError(f"no supervisor of {box}")


def listen_in_gateway(bench, box):
    """A listener where the leash would have its resolver: the one port that the rules bring to without a leash."""
    pid = supervisor_of(bench, box)
    own = os.readlink("/proc/self/ns/net")
    spaces = [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
    spaces = [path for path in spaces if (os.path.lexists(path) and os.readlink(path).startswith("net:["))]
    [space] = [path for path in spaces if os.readlink(path) != own]
    result = []

    def enter():
        libc = ctypes.CDLL(None, use_errno=True)
        fd = os.open(space, os.O_RDONLY)
        if libc.setns(fd, 0x40000000) == 0:
            result.append(socket.create_server(("0.0.0.0", 53), backlog=512))
        os.close(fd)

    thread = threading.Thread(target=enter)  # the namespace is the thread's own, and goes with it
    thread.start()
    thread.join()
    if not result:
        raise RuntimeError("cannot enter the gateway namespace")
    return result[0]


def guest(bench, box, address, port, what):
    words = ["exec", box, "--", "python3", "-c", GUEST, address, str(port), str(MEGABYTES), what]
    return float(bench.ours.husk(*words, timeout=300))


def crowd_size():
    """500, or as many as the host has memory for; $HUSK_BENCH_CROWD says otherwise."""
    with open("/proc/meminfo", encoding="ascii") as file:
        available = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    return int(os.environ.get("HUSK_BENCH_CROWD") or min(CROWD_MAX, (available >> 10) // CROWD_EACH_MB))


def rows(bench):
    address = own_address()
    if not address:
        print("bench: leash: skipped, this host has no address but loopback")
        return
    server = Server(socket.create_server((address, 0), backlog=512))
    port = server.listener.getsockname()[1]
    rule = f"{address}:{port}"
    try:
        yield from create_rows(bench, rule)
        yield from path_rows(bench, address, port, rule)
    finally:
        server.close()


def create_rows(bench, rule):
    def under_policy():
        took, made = bench.ours.do("leash", bench.template, rule, RULES)
        bench.ours.do("kill", made[0])
        bench.ours.settle()
        return took

    rows = bench.turns("create under a policy", under_policy, bench.create_once)
    yield bench.row("create under a policy of 50 rules / without", "ms", *rows, 1.25)


def path_rows(bench, address, port, rule):
    leashed, bare = bench.ours.do("leash", bench.template, rule, RULES)[1][0], bench.new()
    bench.ours.settle()
    plain = Server(listen_in_gateway(bench, bare))
    gateway = "10.201.0.1"
    few = max(5, bench.count // 6)

    def turns(what):
        return bench.turns(
            what,
            lambda: guest(bench, leashed, address, port, what),
            lambda: guest(bench, bare, gateway, 53, what),
            few,
        )

    yield bench.row("bytes out through the leash / bare wire", "MB/s", *turns("out"), 0.7, "higher")
    yield bench.row("bytes in through the leash / bare wire", "MB/s", *turns("into"), 0.7, "higher")
    yield bench.row("connect to first byte, leash / bare wire", "ms", *turns("connect"), 3.0)
    yield from crowd_rows(bench, leashed, address, port, rule, few)
    for box in (leashed, bare):
        bench.ours.do("kill", box)
    plain.close()


def crowd_rows(bench, leashed, address, port, rule, few):
    """Many alive, each on a leash of its own; with none before and after, so that a change of the host's mood counts for both."""
    crowd = crowd_size()

    def into():
        return [guest(bench, leashed, address, port, "into") for _ in range(few)]

    def changes(boxes):
        turns = range(bench.count + 1)
        return [bench.ours.do("egress", boxes[turn % len(boxes)], rule, RULES)[0] for turn in turns][1:]

    alone, few_changes = into(), changes([leashed])
    boxes = [bench.ours.do("leash", bench.template, rule, RULES)[1][0] for _ in range(crowd)]
    bench.ours.settle(60)
    many_changes = changes(boxes)
    bench.ours.settle(60)
    time.sleep(REST_S)
    crowded = into()
    for box in boxes:
        bench.ours.do("kill", box)
    bench.ours.settle(60)
    alone += into()
    yield bench.row(f"policy change with {crowd} alive / with none", "ms", many_changes, few_changes, 2.0)
    yield bench.row(f"bytes in with {crowd} alive / with none", "MB/s", crowded, alone, 0.8, "higher")
