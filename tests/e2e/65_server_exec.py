#!/usr/bin/python3
"""huskd: commands, processes, terminals and code over HTTP; with clients and servers that go away in the middle."""

# timeout: 1200
import base64
import concurrent.futures
import hashlib
import os
import threading

from lib import websocket
from lib.harness import *
from lib.http import *

_server = []


def huskd():
    """One server for all tests of this file."""
    if not _server:
        _server.append(start_server())
    return _server[0]


def path(box, rest):
    return f"/v1/sandboxes/{box}/{rest}"


def run(box, cmd=None, status=200, **fields):
    body = {"cmd": cmd, **fields} if cmd is not None else fields
    return huskd().post(path(box, "exec"), body, status=status).json()


def follow(box, cmd, **fields):
    return huskd().events("POST", path(box, "exec"), {"cmd": cmd, "stream": True, **fields})


def output(events, kind="stdout"):
    """The bytes of a stream's events, checked to be without gap."""
    whole = b""
    for event in events:
        if event.kind == kind:
            assert event.data["offset"] == len(whole), f"gap at {len(whole)}: {event}"
            text = event.data.get("text")
            whole += text.encode() if text is not None else base64.b64decode(event.data["base64"], validate=True)
    return whole


def processes(box):
    return {entry["pid"]: entry for entry in huskd().get(path(box, "processes")).json()["processes"]}


def threads():
    return len(os.listdir(f"/proc/{huskd().pid}/task"))


def terminal(box, query="", **options):
    return websocket.connect_unix(huskd().socket_path, path(box, f"pty{query}"), **options)


def control(socket):
    """The next message that is not the terminal's."""
    return next(message for message in iter(socket.receive, None) if isinstance(message, dict))


# ---- blocking ----


@test
def test_blocking():
    box = create()
    done = run(box, "echo out; echo err >&2; exit 3")
    assert done.pop("pid") > 0 and done.pop("duration_ms") >= 0
    assert_equal(
        done,
        {
            "stdout": "out\n",
            "stderr": "err\n",
            "stdout_lost": 0,
            "stderr_lost": 0,
            "exit_code": 3,
            "signal": None,
            "timed_out": False,
            "out_of_memory": False,
            "denied": [],
        },
    )
    done = run(box, argv=["printf", "%s|", "a b", "$HOME", ""])
    assert_equal((done["stdout"], done["exit_code"]), ("a b|$HOME||", 0))
    done = run(box, "echo $WHO; pwd; id -un", env={"WHO": "me"}, cwd="/tmp", user="nobody", label="the label")
    assert_equal(done["stdout"], "me\n/tmp\nnobody\n")
    assert_equal(processes(box)[done["pid"]]["label"], "the label")
    done = run(box, "sleep 60", timeout_seconds=0.3)
    assert_equal((done["timed_out"], done["exit_code"]), (True, 124))
    done = run(box, "kill -TERM $$")
    assert_equal((done["signal"], done["exit_code"]), (15, 143))
    assert_equal(run(box, argv=["/no/such"])["exit_code"], 127)
    assert_equal(run(box, "stty size", rows=33, columns=99)["stdout"], "33 99\r\n")
    by_name = create("--name", "by-name")
    assert_equal(run("by-name", "hostname")["stdout"], run(by_name, "hostname")["stdout"])


@test
def test_many_at_once_lose_nothing():
    """More ends in one turn of the agent's loop than it hears of at once."""
    box = create()
    with concurrent.futures.ThreadPoolExecutor(80) as pool:
        for _ in range(12):
            said = list(pool.map(lambda number: run(box, f"echo {number}")["stdout"], range(80)))
            assert_equal(said, [f"{number}\n" for number in range(80)])
    remove(box)


@test
def test_bytes():
    box = create()
    done = run(box, r"printf 'a\377b'")
    assert_equal(base64.b64decode(done["stdout_base64"]), b"a\xffb")
    assert_equal(done["stdout"], "a�b")
    assert "stdout_base64" not in run(box, "printf 'ä\\0b'")
    done = run(box, "head -c 20971520 /dev/zero | tr '\\0' x; exit 1")
    assert_equal((len(done["stdout"]), done["stdout_lost"], done["exit_code"]), (16 << 20, 4 << 20, 1))


@test
def test_stdin():
    box = create()
    assert_equal(run(box, "cat", stdin="hällo")["stdout"], "hällo")
    assert_equal(run(box, "wc -c", stdin="")["stdout"], "0\n")
    assert_equal(run(box, "cat; echo end")["stdout"], "end\n", "without stdin there is none")
    data = os.urandom(7 << 20)
    encoded = base64.b64encode(data).decode()
    wanted = hashlib.sha256(data).hexdigest()
    assert_in(wanted, run(box, "sha256sum", stdin_base64=encoded)["stdout"])
    # More than fits anywhere on the way, in both directions at once.
    assert_equal(hashlib.sha256(output(follow(box, "cat", stdin_base64=encoded))).hexdigest(), wanted)
    assert_equal(run(box, "head -c 3; exit 5", stdin_base64=encoded)["exit_code"], 5, "it need not read all")
    done = run(box, "sleep 1; cat >/tmp/given", stdin_base64=encoded, status=201, detach=True)
    until(lambda: not processes(box)[done["pid"]]["running"], "the detached process reads all and ends")
    assert_in(wanted, run(box, "sha256sum /tmp/given")["stdout"])


# ---- streams ----


@test
def test_stream():
    box = create()
    events = follow(box, "echo one; sleep 0.3; echo two >&2; exit 4")
    assert_equal([event.kind for event in events], ["start", "stdout", "stderr", "exit"])
    assert_equal(events[0].data["pid"] in processes(box), True)
    assert_equal((events[1].data, events[1].id), ({"text": "one\n", "offset": 0}, "4-0"))
    assert_equal((events[2].data, events[2].id), ({"text": "two\n", "offset": 0}, "4-4"))
    assert_equal(set(events[3].data), {"exit_code", "signal", "timed_out", "out_of_memory", "duration_ms", "denied"})
    assert_equal(events[3].data["exit_code"], 4)
    accept = huskd().events("POST", path(box, "exec"), {"cmd": "echo hi"}, headers={"Accept": "text/event-stream"})
    assert_equal(output(accept), b"hi\n")
    refused = huskd().post(path(box, "exec"), {"cmd": "x", "stream": True, "cwd": "no"}, status=400)
    refused.error("invalid", "cwd")


@test
def test_stream_keeps_characters_whole():
    box = create()
    script = "for b in '\\303' '\\244' '\\342' '\\202' '\\254'; do printf $b; sleep 0.01; done; echo"
    events = follow(box, script)
    assert_equal(output(events), "ä€\n".encode())
    assert all("text" in event.data for event in events if event.kind == "stdout"), events
    events = follow(box, r"printf '\303'; sleep 0.5; printf 'x\360\237'")
    assert_equal(output(events), b"\xc3x\xf0\x9f", "what never becomes a character comes as it is")


@test
def test_stream_of_much():
    box = create()
    script = "import random,sys;random.seed(1);[sys.stdout.buffer.write(random.randbytes(65536)) for _ in range(200)]"
    run(box, argv=["sh", "-c", f'python3 -c "{script}" >/root/much'])
    wanted = run(box, "sha256sum /root/much")["stdout"].split()[0]
    assert_equal(hashlib.sha256(output(follow(box, "cat /root/much"))).hexdigest(), wanted)


@test
def test_attach():
    box = create()
    pid = run(box, "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.2; done; echo done >&2", status=201, detach=True)["pid"]
    where = path(box, f"processes/{pid}/output")
    events = huskd().events("GET", where)
    assert_equal(
        events[0].data,
        {"pid": pid, "stdout_offset": 0, "stderr_offset": 0, "stdout_dropped": 0, "stderr_dropped": 0},
    )
    whole = output(events)
    assert_equal(whole, b"".join(b"line %d\n" % n for n in range(1, 7)))
    assert_equal(events[-1].kind, "exit")
    again = huskd().events("GET", where, headers={"Last-Event-ID": "14-0"})
    assert_equal((again[0].data["stdout_offset"], again[1].data["offset"]), (14, 14))
    assert_equal(b"".join(event.data["text"].encode() for event in again if event.kind == "stdout"), whole[14:])
    again = huskd().events("GET", f"{where}?stdout_offset=35&stderr_offset=5")
    assert_equal([event.kind for event in again], ["start", "stdout", "exit"][:1] + [e.kind for e in again[1:]])
    assert_equal([event.data["text"] for event in again[1:-1]], ["line 6\n"])
    huskd().get(f"{where}?stdout_offset=9999", status=400).error("invalid")
    huskd().get(f"{where}?stdout_ofset=1", status=400).error("invalid", "stdout_ofset", "stdout_offset")
    huskd().get(where, status=400, headers={"Last-Event-ID": "x"}).error("invalid", "Last-Event-ID")
    huskd().get(path(box, "processes/99999/output"), status=404).error("not_found")
    huskd().get(path(box, "processes/abc/output"), status=400).error("invalid", "pid")


# ---- processes ----


@test
def test_signals():
    box = create()
    for given, number in (("TERM", 15), ("SIGUSR1", 10), (9, 9)):
        pid = run(box, argv=["sleep", "100"], status=201, detach=True)["pid"]
        huskd().post(path(box, f"processes/{pid}/signal"), {"signal": given}, status=204)
        until(lambda pid=pid: not processes(box)[pid]["running"], "it ends")
        assert_equal(processes(box)[pid]["exit_code"], 128 + number)
    where = path(box, f"processes/{pid}/signal")
    huskd().post(where, {"signal": "TERM"}, status=404).error("not_found", says="is over")
    for bad in ("NOPE", 0, 1000, True, None, [], "term"):
        huskd().post(where, {"signal": bad}, status=400).error("invalid", "signal")


@test
def test_input():
    box = create()
    pid = run(box, "cat; echo end", status=201, detach=True, keep_stdin=True)["pid"]
    where = path(box, f"processes/{pid}/stdin")
    huskd().post(where, b"one\n", status=204)
    huskd().post(where, b"two\n", status=204)
    huskd().post(f"{where}?close=true", b"three\n", status=204)
    assert_equal(output(huskd().events("GET", path(box, f"processes/{pid}/output"))), b"one\ntwo\nthree\nend\n")
    huskd().post(where, b"x", status=409).error("conflict", says="has ended")
    # What was answered comes before what is sent next, whatever the connections do.
    pid = run(box, "cat", status=201, detach=True, keep_stdin=True)["pid"]
    lines = [b"%d\n" % number for number in range(60)]
    for line in lines:
        huskd().post(path(box, f"processes/{pid}/stdin"), line, status=204)
    huskd().post(path(box, f"processes/{pid}/stdin?close=1"), b"", status=204)
    assert_equal(output(huskd().events("GET", path(box, f"processes/{pid}/output"))), b"".join(lines))
    pid = run(box, "sleep 100", status=201, detach=True)["pid"]
    huskd().post(path(box, f"processes/{pid}/stdin"), b"x", status=409).error("conflict", says="without stdin")
    huskd().post(path(box, "processes/99999/stdin"), b"x", status=404).error("not_found")
    data = os.urandom(5 << 20)
    pid = run(box, "sleep 1; sha256sum", status=201, detach=True, keep_stdin=True)["pid"]
    huskd().post(path(box, f"processes/{pid}/stdin?close=1"), data, status=204)
    assert_in(
        hashlib.sha256(data).hexdigest(), output(huskd().events("GET", path(box, f"processes/{pid}/output"))).decode()
    )


# ---- going away ----


@test
def test_client_goes_away():
    box = create()
    idle = threads()
    for stream in (False, True):
        for kill in (False, True):
            body = {"argv": ["sleep", "100"], "stream": stream, "kill_on_disconnect": kill, "label": f"{stream}-{kill}"}
            connection = huskd().connect()
            connection.request("POST", path(box, "exec"), body=json.dumps(body))
            label = body["label"]

            def state(label=label):
                return [entry["running"] for entry in processes(box).values() if entry["label"] == label]

            until(lambda state=state: state() == [True], "it runs")
            connection.close()
            if kill:
                until(lambda state=state: state() == [False], "it ends with its client")
            else:
                until(lambda: threads() <= idle + 2, "the server lets go")
                assert_equal(state(), [True], "it goes on without its client")
    # Also one that never stops talking.
    connection = huskd().connect()
    connection.request("POST", path(box, "exec"), body=json.dumps({"cmd": "yes", "kill_on_disconnect": True}))
    until(lambda: any("yes" in entry["argv"] for entry in processes(box).values()), "it runs")
    connection.close()
    until(lambda: not any("yes" in e["argv"] and e["running"] for e in processes(box).values()), "it is killed")
    until(lambda: threads() <= idle + 2, "the server lets go of all")


@test
def test_server_goes_away():
    box = create()
    seen, last = b"", ""
    script = "i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo line $i; sleep 0.02; done"
    pid = run(box, script, status=201, detach=True)["pid"]
    for _ in range(100):
        with start_and_end() as mine:
            options = {"headers": {"Last-Event-ID": last}} if last else {}
            with mine.stream("GET", path(box, f"processes/{pid}/output"), **options) as events:
                for number, event in enumerate(events):
                    if event.kind == "stdout":
                        assert_equal(event.data["offset"], len(seen), "where it goes on")
                        seen += event.data["text"].encode()
                        last = event.id
                    if event.kind == "exit":
                        break
                    if number == 60:
                        mine.kill()
                else:
                    continue
            break
    assert_equal(seen, b"".join(b"line %d\n" % n for n in range(1, 401)))


@contextlib.contextmanager
def start_and_end():
    """A server of its own on another socket, beside the one of all tests."""
    with scratch() as directory:
        socket_path = str(directory / "s")
        mine = start_server("--socket", socket_path)
        mine.socket_path = socket_path
        try:
            yield mine
        finally:
            end_server(mine)


@test
def test_sandbox_goes_away():
    box = create()
    with huskd().stream("POST", path(box, "exec"), {"cmd": "echo here; sleep 100", "stream": True}) as events:
        assert_equal([next(events).kind, next(events).kind], ["start", "stdout"])
        remove(box)
        rest = list(events)
    assert_equal([event.kind for event in rest], ["error"], rest)
    assert_equal(rest[0].data["error"]["code"], "gone")
    huskd().post(path(box, "exec"), {"cmd": "true"}, status=None).error("gone")
    box = create()
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(huskd().post(path(box, "exec"), {"cmd": "sleep 100"}, None)))
    waiting.start()
    until(lambda: processes(box), "it runs")
    remove(box)
    waiting.join(30)
    answers[0].error("gone")
    assert_equal(answers[0].status, 410)


# ---- bad input ----


@test
def test_bad_input():
    box = create()
    for body, field, says in (
        ({}, "cmd", "missing"),
        ({"cmd": ""}, "cmd", "empty"),
        ({"cmd": 5}, "cmd", "string"),
        ({"cmd": "a", "argv": ["b"]}, "argv", "both"),
        ({"argv": []}, "argv", "program"),
        ({"argv": [""]}, "argv", "program"),
        ({"argv": ["a", 5]}, "argv", "string"),
        ({"argv": "ls"}, "argv", "array"),
        ({"cmd": "x", "comand": 1}, "comand", "unknown"),
        ({"cmd": "x", "timout_seconds": 1}, "timout_seconds", "timeout_seconds"),
        ({"cmd": "x", "timeout_seconds": -1}, "timeout_seconds", ""),
        ({"cmd": "x", "timeout_seconds": "1"}, "timeout_seconds", ""),
        ({"cmd": "x", "env": {"A": 1}}, "env", ""),
        ({"cmd": "x", "env": []}, "env", ""),
        ({"cmd": "x", "cwd": "relative"}, "cwd", "absolute"),
        ({"cmd": "x", "rows": 24}, "columns", "both"),
        ({"cmd": "x", "rows": 0, "columns": 80}, "rows", ""),
        ({"cmd": "x", "rows": 70000, "columns": 80}, "rows", ""),
        ({"cmd": "x", "stdin": "a", "stdin_base64": "YQ=="}, "stdin_base64", "both"),
        ({"cmd": "x", "stdin_base64": "Y"}, "stdin_base64", "base64"),
        ({"cmd": "x", "stdin_base64": "Y==="}, "stdin_base64", "base64"),
        ({"cmd": "x", "stdin_base64": "YQ==\n"}, "stdin_base64", "base64"),
        ({"cmd": "x", "detach": True, "stream": True}, "stream", "detach"),
        ({"cmd": "x", "detach": True, "kill_on_disconnect": True}, "kill_on_disconnect", "detached"),
        ({"cmd": "x", "detach": "yes"}, "detach", ""),
    ):
        huskd().post(path(box, "exec"), body, status=400).error("invalid", field, says)
    assert_equal(processes(box), {}, "nothing was started")
    huskd().post(path(box, "exec"), b"{", status=400).error("invalid")
    huskd().post(path(box, "exec"), {"cmd": "x", "env": {"A=B": "c"}}, status=400).error("invalid")
    huskd().post(path(box, "exec"), {"cmd": "x", "user": "nosuchuser"}, status=None).error("not_found")
    huskd().post(path("sb-nosuch", "exec"), {"cmd": "x"}, status=404).error("not_found")
    huskd().get(path(box, "exec"), status=405).error("method_not_allowed")
    huskd().post(path(box, "exec"), {"cmd": "x" * 400000}, status=None).error("limit")


# ---- terminals ----


@test
def test_terminal():
    box = create()
    shell = terminal(box, "?rows=30&columns=100")
    pid = shell.receive()["start"]["pid"]
    shell.send(b"stty size; echo $TERM\n")
    shown = shell.read_until(b"30 100\r\nxterm-256color")
    if b"# " not in shown.rpartition(b"xterm-256color")[2]:
        shell.read_until(b"# ")  # before the prompt, bash puts back the size it has read
    shell.send({"resize": {"rows": 41, "columns": 121}})
    shell.send(b"stty size\n")
    shell.read_until(b"41 121")
    shell.send(b"top -d 0.5\n")
    shell.read_until(b"COMMAND")
    shell.read_until(b"top - ")
    shell.close()
    assert processes(box)[pid]["running"], "closing only detaches"
    assert_in("top", run(box, "ps -e -o comm")["stdout"])
    again = terminal(box, f"?pid={pid}&rows=25&columns=90")
    start = again.receive()["start"]
    assert_equal((start["pid"], start["dropped"]), (pid, 0))
    again.read_until(b"41 121")  # what was on it before
    again.send(b"q")
    again.read_until(b":~# ")  # leaving, it throws away what was typed ahead
    again.send(b"stty size; exit 7\n")
    again.read_until(b"25 90")
    assert_equal(control(again)["exit"]["exit_code"], 7)
    assert_equal((again.receive(), again.close_status), (None, 1000))
    over = terminal(box, f"?pid={pid}&offset={start['offset']}")
    assert_equal(over.receive()["start"]["pid"], pid, "one that is over can still be looked at")
    over.read_until(b"25 90")
    assert_equal(control(over)["exit"]["exit_code"], 7)
    over.drop()


@test
def test_terminal_signal_and_input():
    box = create()
    cat = terminal(box, "?cmd=" + "stty%20raw%20-echo%3B%20echo%20go%3B%20exec%20sha256sum")
    pid = cat.receive()["start"]["pid"]
    cat.read_until(b"go")
    cat.send_frame(websocket.PING, b"hello")
    # Not the characters that a terminal makes signals of: the sandbox's kernel does so in raw mode too.
    data = os.urandom(1 << 18).translate(bytes(range(32, 127)) * 2 + bytes(range(32, 98)))
    for at in range(0, len(data), 65536):
        cat.send(data[at : at + 65536])
    cat.send_frame(websocket.BINARY, b"ab", final=False)
    cat.send_frame(0, b"cd", final=True)
    cat.send({"signal": "NOPE"})
    assert_equal(control(cat)["error"]["field"], "signal")
    assert cat.pongs == 1, "a ping is answered"
    cat.send("not json")
    assert_equal(cat.receive()["error"]["code"], "invalid")
    cat.send({"resize": {"rows": 5}})
    assert_equal(cat.receive()["error"]["field"], "resize")
    cat.send({"signal": "KILL"})
    assert_equal(cat.receive()["exit"]["signal"], 9)
    cat.drop()
    assert_equal(processes(box)[pid]["exit_code"], 137)
    echo = terminal(box, "?cmd=" + "stty%20raw%20-echo%3B%20echo%20go%3B%20head%20-c%20262144%20|%20sha256sum")
    echo.receive()
    echo.read_until(b"go")
    echo.send(data)
    echo.read_until(hashlib.sha256(data).hexdigest().encode())
    echo.drop()
    typed = terminal(box, "?cmd=cat%20%3E/root/typed")
    typed.receive()
    typed.send(b"last words\n")
    typed.drop()
    until(lambda: run(box, "cat /root/typed")["stdout"] == "last words\n", "what was typed before leaving arrives")
    large = terminal(box)
    large.receive()
    with contextlib.suppress(OSError):
        large.send(b"x" * (2 << 20))
    with contextlib.suppress(OSError):
        while large.receive() is not None:
            pass
        assert_equal(large.close_status, 1009, "a message that is too long ends the connection")


@test
def test_terminal_refused():
    box = create()
    plain = run(box, "sleep 100", status=201, detach=True)["pid"]
    for query, status, field in (
        ("?rows=5", 400, "columns"),
        ("?rows=0&columns=1", 400, "rows"),
        ("?pid=x", 400, "pid"),
        ("?pid=99999", 404, None),
        (f"?pid={plain}", 409, None),
        (f"?pid={plain}&cmd=ls", 400, "cmd"),
        ("?offset=3", 400, "offset"),
        ("?cwd=relative", 400, "cwd"),
        ("?column=3", 400, "column"),
    ):
        try:
            terminal(box, query)
            raise AssertionError(f"{query} was accepted")
        except websocket.Refused as refused:
            assert_equal((refused.status, refused.json()["error"]["field"]), (status, field), query)
    huskd().get(path(box, "pty"), status=400).error("invalid", "Upgrade")
    handshake = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "12"}
    huskd().get(path(box, "pty"), status=400, headers=handshake).error("invalid", "Sec-WebSocket-Version", "13")
    handshake["Sec-WebSocket-Version"] = "13"
    huskd().get(path(box, "pty"), status=400, headers=handshake).error("invalid", "Sec-WebSocket-Key")
    assert_equal([entry["terminal"] for entry in processes(box).values()], [False], "no terminal was started")


@test
def test_terminal_sandbox_goes_away():
    box = create()
    shell = terminal(box)
    shell.receive()
    remove(box)
    said = [message for message in iter(shell.receive, None) if isinstance(message, dict)]
    assert_equal(said[-1]["error"]["code"], "gone")
    assert_equal(shell.close_status, 1011)


# ---- code ----


def code(box, source, status=200, **fields):
    return huskd().post(path(box, "code"), {"code": source, **fields}, status=status).json()


@test
def test_code():
    box = create()
    code(box, "x = 20")
    done = code(box, "print('out'); import sys; print('err', file=sys.stderr); x * 2 + 2")
    assert_equal((done["stdout"], done["stderr"], done["text"], done["error"]), ("out\n", "err\n", "42", None))
    assert_equal(
        [(entry["main"], entry["text"], "data" in entry) for entry in done["results"]], [(True, "42", True)]
    )
    assert_equal(done["timed_out"], False)
    done = code(box, "1/0")
    assert_equal((done["error"]["name"], done["text"]), ("ZeroDivisionError", None))
    assert_in("Traceback", done["error"]["traceback"])
    assert_equal(code(box, "while True: pass", timeout_seconds=0.5)["timed_out"], True)
    assert_equal(code(box, "echo $((6*7))", language="bash")["stdout"], "42\n")
    assert_equal(code(box, "x = 'other'; x", context="other")["text"], "'other'")
    names = {(c["name"], c["language"]) for c in huskd().get(path(box, "contexts")).json()["contexts"]}
    assert_equal(names, {("default", "python"), ("default", "bash"), ("other", "python")})
    huskd().post(path(box, "contexts/other/restart"), {}, status=204)
    assert_equal(code(box, "x", context="other")["error"]["name"], "NameError")
    huskd().delete(path(box, "contexts/other"))
    huskd().delete(path(box, "contexts/other"), status=404).error("not_found")
    huskd().delete(path(box, "contexts/default"), status=409).error("conflict", says="language")
    huskd().delete(path(box, "contexts/bash:default"))


@test
def test_code_stream():
    box = create()
    events = huskd().events(
        "POST", path(box, "code"), {"code": "print('a', flush=True)\nprint('b')\n7", "stream": True}
    )
    kinds = [event.kind for event in events]
    assert_equal("".join(event.data["text"] for event in events if event.kind == "stdout"), "a\nb\n")
    assert_equal((kinds[-2:], events[-2].data["text"]), (["result", "done"], "7"))
    assert_equal(events[-1].data["timed_out"], False)
    events = huskd().events("POST", path(box, "code"), {"code": "raise ValueError('x')", "stream": True})
    assert_equal((events[0].kind, events[0].data["name"], events[-1].kind), ("error", "ValueError", "done"))
    huskd().post(path(box, "code"), {"code": "1", "language": "cobol", "stream": True}, status=400).error("invalid")
    # A client that goes away leaves the code running, and the server lets go of it.
    idle = threads()
    with huskd().stream("POST", path(box, "code"), {"code": "import time\nprint(1)\ntime.sleep(2)\ny = 5", "stream": True}) as live:
        next(live)
    until(lambda: threads() <= idle + 2, "the server lets go")
    assert_equal(code(box, "y")["text"], "5", "the code went on")


@test
def test_code_bad_input():
    box = create()
    for body, field in (
        ({}, "code"),
        ({"code": 5}, "code"),
        ({"code": "1", "langage": "python"}, "langage"),
        ({"code": "1", "timeout_seconds": "x"}, "timeout_seconds"),
    ):
        huskd().post(path(box, "code"), body, status=400).error("invalid", field)
    huskd().post(path(box, "code"), {"code": "1", "context": "a b"}, status=400).error("invalid")
    huskd().post(path("sb-nosuch", "code"), {"code": "1"}, status=404).error("not_found")


@test
def test_hostile_kernel():
    """A guest whose kernel program talks nonsense harms nobody but itself."""
    box = create()
    code(box, "1")
    code(box, "import os; fd = os.dup(1)")
    nonsense = (
        "import os, threading\n"
        "for fd in range(1, 30):\n"
        "    try: os.write(fd, b'[' * 200000 + b'\\n' + b'{\"a\":' * 3000 + b'1' + b'}' * 3000 + b'\\n\\xff\\xfe\\n')\n"
        "    except OSError: pass\n"
    )
    with contextlib.suppress(AssertionError):
        code(box, nonsense, timeout_seconds=5)
    assert huskd().process.poll() is None, "the server is still there"
    assert_equal(run(box, "echo fine")["stdout"], "fine\n")


@test
def test_last_nothing_is_left():
    until(lambda: threads() <= 6, f"the server's threads end: {threads()}")
    end_server(huskd())
    _server.clear()
    assert_no_leaks()


try:
    main("base")
finally:
    for left in _server:
        end_server(left)
