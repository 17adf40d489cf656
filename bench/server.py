"""The server against libhusk: what HTTP costs on top, in the same run. bench/run's part `server`."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time

STREAMS = 1000
BURST = 100
IDLE_MB, STREAMS_MB = 15.0, 100.0


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Server:
    """A huskd over the benchmark's instance."""

    def __init__(self, ours, build):
        self.ours, self.socket = ours, f"{ours.home}/run/huskd.sock"
        self.process = subprocess.Popen(
            [build / "huskd", "--listen", "127.0.0.1:0"],
            env=ours.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.url = re.search(r"http://\S+?:\d+", self.process.stdout.readline())[0]

    def memory_mb(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read())[1]) * 1024 / 1e6

    def end(self):
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()


def lags(server, box, count):
    """How late each line of streamed output came, in milliseconds, as the driver measures it for libhusk."""
    script = f"import time\nfor i in range({count}): print(time.time_ns(), flush=True); time.sleep(0.05)"
    connection, found = UnixConnection(server.socket), []
    body = json.dumps({"argv": ["python3", "-c", script], "stream": True})
    connection.request("POST", f"/v1/sandboxes/{box}/exec", body, {"Content-Type": "application/json"})
    kind = None
    for line in connection.getresponse():
        now = time.time_ns()
        if line.startswith(b"event:"):
            kind = line.split()[1]
        elif line.startswith(b"data:") and kind == b"stdout":
            # On a busy machine several lines come as one.
            found += [(now - int(word)) / 1e6 for word in json.loads(line[5:])["text"].split()]
    connection.close()
    return found


def idle_streams(server):
    """The server's memory with a thousand clients that follow events which do not come."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with contextlib.ExitStack() as stack:
        for _ in range(STREAMS):
            connection = stack.enter_context(contextlib.closing(UnixConnection(server.socket)))
            connection.request("GET", "/v1/events?follow=true&after=1000000000")
            connection.getresponse()
        time.sleep(1)
        return server.memory_mb()


def measure(bench, Row, build, top):
    """Yields the rows."""
    ours = bench.ours
    server = Server(ours, build)
    try:
        time.sleep(1)
        yield Row("huskd when idle, RSS / a budget of 15 MB", "MB", [server.memory_mb()], [IDLE_MB], 1.0)
        yield from overhead(bench, Row, server)
        yield from python_create(bench, Row, server, top)
        yield from storm(bench, Row, server)
        yield from burst(bench, Row, server)
        yield Row("huskd with 1,000 idle streams, RSS / 100 MB", "MB", [idle_streams(server)], [STREAMS_MB], 1.0)
    finally:
        server.end()


def overhead(bench, Row, server):
    ours, box = bench.ours, bench.new()
    ours.settle()
    over, plain = bench.turns(
        "exec over HTTP",
        lambda: ours.do("http-exec", server.socket, box)[0],
        lambda: ours.do("exec", box)[0],
        max(100, bench.count),
    )
    yield Row("exec of true over HTTP / libhusk", "ms", over, plain, 1.15)
    count = max(60, bench.count)
    plain = [int(lag) / 1000 for lag in ours.do("lag", box, count)[1]]
    yield Row("lag of streamed output over HTTP / libhusk", "ms", lags(server, box, count), plain, 2.5)
    ours.do("kill", box)


def python_create(bench, Row, server, top):
    """From the Python SDK over TCP with a token, connection included; each ends with the output of true."""
    ours = bench.ours
    secret = json.loads(ours.husk("token", "create", "bench", "--json"))["token"]
    sys.path.insert(0, str(top / "sdk/python"))
    os.environ.update({"HUSK_URL": server.url, "HUSK_TOKEN": secret})
    from husk import Sandbox  # pylint: disable=import-outside-toplevel

    def theirs():
        begin = time.monotonic()
        box = Sandbox.create(template="base", memory="2G")
        box.exec(["true"])
        took = (time.monotonic() - begin) * 1000
        box.kill()
        box.close()
        ours.settle()
        return took

    rows = bench.turns("create from Python", theirs, bench.create_once)
    yield Row("create from Python over HTTP / libhusk", "ms", *rows, 1.15)


def storm(bench, Row, server):
    ours, boxes = bench.ours, [bench.new() for _ in range(20)]
    ours.settle(30)
    rows = bench.turns(
        "200 execs at once",
        lambda: ours.do("http-storm", server.socket, 10, *boxes)[0],
        lambda: ours.do("storm", 10, *boxes)[0],
        10,
    )
    for box in boxes:
        ours.do("kill", box)
    rate = lambda times: [200 / (took / 1000) for took in times]
    yield Row("200 execs at once in 20 sandboxes over HTTP / libhusk", "1/s", *map(rate, rows), 0.8, "higher")


def busy_seconds():
    """CPU time that the machine has spent on work. Its own processes should be all that run."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _wait, interrupts, soft, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def burst(bench, Row, server):
    """Creates at once, more than the pool has: each must answer, and they cost no more CPU time than one after the other."""
    ours = bench.ours

    def create(_=None):
        with contextlib.closing(UnixConnection(server.socket)) as connection:
            connection.timeout = 600
            connection.request("POST", "/v1/sandboxes", "{}", {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 201:
                raise RuntimeError(f"a create of a burst: {answer.status} {text[:500]}")
            return json.loads(text)["id"]

    def at_once():
        with concurrent.futures.ThreadPoolExecutor(BURST) as pool:
            return list(pool.map(create, range(BURST)))

    found = []
    for work in (at_once, lambda: [create() for _ in range(BURST)]):
        ours.settle(30)
        before = busy_seconds()
        boxes = work()
        ours.settle(30)
        found.append(busy_seconds() - before)
        for box in boxes:
            ours.do("kill", box)
    yield Row(f"CPU of {BURST} creates at once over HTTP / one by one", "s", found[:1], found[1:], 1.0)
