#!/usr/bin/env python3
"""The Model Context Protocol, over stdio and over HTTP: the official SDK's clients of both generations from npm (tests/compat/mcp),
the protocol's own checkers, and by hand what they do not try: versions, sessions that outlive a server, commands that are
come back to, hostile messages, and that nothing stays when a host goes, however it goes."""
# timeout: 900

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import time

from lib.harness import HUSK, TOP, adopt, assert_no_leaks, create, ending, environment, husk, inspect, main, sh, start, test, until
from lib.http import end_server, server, start_server, token
from lib.npm import installed, node

SOURCE = TOP / "tests/compat/mcp"
LEGACY = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05", "2024-10-07"]
MODERN = "2026-07-28"
BOTH = {"Accept": "application/json, text/event-stream"}
META = "io.modelcontextprotocol/"


# ---- the clients ----


def run(*command, cwd, env=None, timeout=240, code=0):
    done = subprocess.run(command, cwd=cwd, env=environment(env), capture_output=True, timeout=timeout, check=False, text=True)
    assert code is None or done.returncode == code, f"{' '.join(map(str, command))} -> {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def suite(transport, era, env=None):
    """Its lines are ours. Somebody else's sandbox is there to be left alone."""
    where = installed("mcp")
    foreign = create("--ttl", "600")
    done = subprocess.run([node(), "suite.mjs", transport, era], cwd=where, env=environment({"HUSK": HUSK, "HUSK_FOREIGN_SANDBOX": foreign, **(env or {})}),
                          stdout=subprocess.PIPE, timeout=400, check=False, text=True)
    print(done.stdout, end="")
    assert inspect(foreign)["state"] == "running"
    for snapshot in husk("snapshot", "ls", "--json").json():
        if (snapshot["name"] or "").startswith("mcp-"):
            husk("snapshot", "rm", snapshot["id"])
    return done.returncode


def made_over_mcp():
    return {one["id"] for one in husk("ls", "--json").json() if "husk.mcp_session" in one["metadata"]}


@test
def the_legacy_client_over_stdio():
    before = made_over_mcp()
    assert suite("stdio", "legacy") == 0
    assert made_over_mcp() == before


@test
def the_modern_client_over_stdio():
    before = made_over_mcp()
    assert suite("stdio", "modern") == 0
    assert made_over_mcp() == before


@test
def the_legacy_client_over_http():
    before = made_over_mcp()
    with server() as huskd, token("mcp-legacy") as secret:
        assert suite("http", "legacy", {"HUSK_MCP_URL": f"http://127.0.0.1:{huskd.port}/mcp", "HUSK_TOKEN": secret}) == 0
    assert made_over_mcp() == before


@test
def the_modern_client_over_http():
    """It has no sessions: what it made stays until its time is up, and is bounded by it."""
    before = made_over_mcp()
    with server() as huskd, token("mcp-modern") as secret:
        assert suite("http", "modern", {"HUSK_MCP_URL": f"http://127.0.0.1:{huskd.port}/mcp", "HUSK_TOKEN": secret}) == 0
    left = made_over_mcp() - before
    for sandbox in left:
        found = inspect(adopt(sandbox))
        assert found["expires_at"] and found["idle_seconds"], found
    assert left


# ---- the checkers ----


@contextlib.contextmanager
def bridge(huskd, secret):
    """A URL that needs no token."""
    env = environment({"HUSK_MCP_URL": f"http://127.0.0.1:{huskd.port}/mcp", "HUSK_TOKEN": secret})
    process = subprocess.Popen([node(), SOURCE / "bridge.mjs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True)
    with ending(process):
        yield process.stdout.readline().strip()


CONFORMANCE = ["server-initialize", "server-session-lifecycle", "server-stateless", "ping", "tools-list", "dns-rebinding-protection",
               "http-header-validation", "server-sse-multiple-streams", "sep-2164-resource-not-found",
               "input-required-result-unsupported-methods", "input-required-result-ignore-extra-params"]


@test
def the_protocols_conformance_checks_pass():
    """Those that need no tools of a test server. Some of those in server-stateless do, and say so: they are not counted."""
    where = installed("mcp/checkers")
    checker = where / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    with server() as huskd, token("mcp-conformance") as secret, bridge(huskd, secret) as url:
        for scenario in CONFORMANCE:
            said = run(node(), checker, "server", "--url", url, "--scenario", scenario, cwd=where, code=None, timeout=90)
            plain = re.sub(r"\x1b\[[0-9;]*m", "", said)
            assert re.search(r"Passed: \d+/\d+", plain), f"{scenario}: {plain[-2000:]}"
            failed = len(re.findall(r"\] FAILURE ", plain))
            excused = len(re.findall(r"Error: Not testable: server does not list the diagnostic tool", plain))
            assert failed == excused, f"{scenario}: {plain[-4000:]}"
            print(f"# {scenario}: {re.search(r'Passed: .*', plain)[0]}{f', {excused} not testable' if excused else ''}")


@test
def the_inspector_works_with_both_transports():
    where = installed("mcp/checkers")
    cli = [node(), where / "node_modules/.bin/mcp-inspector", "--cli"]
    # It hands its own environment on only in part, so what we need goes by name.
    passed = [word for name in ("HUSK_HOME", "HUSK_CACHE") for word in ("-e", f"{name}={os.environ[name]}")]
    own = {"HOME": str(where)}  # it keeps a catalogue of its own there
    ask = ["--method", "tools/call", "--tool-name", "run_command", "--tool-arg", "command=echo inspected"]
    tools = json.loads(run(*cli, *passed, HUSK, "mcp", "--method", "tools/list", cwd=where, env=own))["tools"]
    assert {"run_code", "run_command", "rewind_sandbox"} <= {tool["name"] for tool in tools}, tools
    assert json.loads(run(*cli, *passed, HUSK, "mcp", *ask, cwd=where, env=own))["structuredContent"]["stdout"] == "inspected\n"
    with server() as huskd, token("mcp-inspector") as secret:
        url = f"http://127.0.0.1:{huskd.port}/mcp"
        said = run(*cli, url, "--transport", "http", "--header", f"Authorization: Bearer {secret}", *ask, cwd=where, env=own)
        result = json.loads(said)["structuredContent"]
        assert result["stdout"] == "inspected\n"
        if inspect(result["sandbox"])["state"] != "ended":
            adopt(result["sandbox"])


# ---- by hand, over stdio ----


class Stdio:
    """husk mcp, and messages one by one."""

    def __init__(self, *options, env=None):
        self.process = start("mcp", *options, stdin=subprocess.PIPE, env=env)
        self.buffer = b""
        self.number = 0

    def send(self, message):
        data = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def receive(self, seconds=60):
        deadline = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no message within {seconds} s"
            piece = os.read(self.process.stdout.fileno(), 65536)
            assert piece, "husk mcp ended"
            self.buffer += piece
        line, _, self.buffer = self.buffer.partition(b"\n")
        return json.loads(line)

    def ask(self, method, params=None):
        self.number += 1
        self.send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params or {}})
        while (answer := self.receive()).get("id") != self.number:
            pass
        return answer

    def tool(self, name, **arguments):
        return self.ask("tools/call", {"name": name, "arguments": arguments})["result"]

    def box(self):
        return self.tool("run_command", command="true")["structuredContent"]["sandbox"]

    def end(self):
        self.process.stdin.close()
        return self.process.wait(30)


@contextlib.contextmanager
def stdio(*options, env=None):
    client = Stdio(*options, env=env)
    with ending(client.process):
        yield client


def begin(version=LEGACY[0]):
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "by hand", "version": "0"}}


@test
def every_version_is_negotiated():
    with stdio() as client:
        for version in LEGACY:
            assert client.ask("initialize", begin(version))["result"]["protocolVersion"] == version
        for version in (MODERN, "1999-01-01"):
            assert client.ask("initialize", begin(version))["result"]["protocolVersion"] == LEGACY[0]
        meta = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}
        found = client.ask("server/discover", {"_meta": meta})["result"]
        assert found["supportedVersions"] == [MODERN, *LEGACY] and found["resultType"] == "complete", found
        refused = client.ask("tools/list", {"_meta": {**meta, META + "protocolVersion": "2030-01-01"}})["error"]
        assert refused["code"] == -32022 and refused["data"]["supported"][0] == MODERN, refused
        assert client.ask("tools/list", {"_meta": {META + "protocolVersion": MODERN}})["error"]["code"] == -32602
        assert client.ask("ping", {"_meta": meta})["error"]["code"] == -32601
        assert client.ask("ping")["result"] == {}
        assert client.end() == 0


@test
def what_makes_no_sense_is_told_and_harms_nothing():
    with stdio() as client:
        cases = [
            (b"{nonsense\n", -32700), (b"\xff\xfe\n", -32700), (b"[" * 100000 + b"\n", -32600), (b"5\n", -32600), (b"[]\n", -32600),
            (b'{"jsonrpc":"1.0","id":1,"method":"ping"}\n', -32600), (b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n', -32600),
            (b'{"jsonrpc":"2.0","id":{},"method":"ping"}\n', -32600), (b'{"jsonrpc":"2.0","id":1,"method":7}\n', -32600),
            (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}\n', -32600),
            (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":5}}\n', -32600),
            (b'{"jsonrpc":"2.0","id":1,"method":"ping","id":2}\n', -32700),
            (b'{"jsonrpc":"2.0","id":1,"method":"no/such"}\n', -32601), (b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}\n', -32602),
            (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_code","arguments":[]}}\n', -32602),
            (b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n', -32602), (b"a" * (17 << 20) + b"\n", -32600),
        ]
        for message, code in cases:
            client.send(message)
            answer = client.receive()
            assert answer["error"]["code"] == code, f"{message[:80]}: {answer}"
        # No answer at all: notifications, answers to questions nobody asked, empty lines.
        client.send(b'\n\r\n{"jsonrpc":"2.0","method":"no/such"}\n{"jsonrpc":"2.0","id":9,"result":{}}\n')
        client.send(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}\n')
        client.send(b'[{"jsonrpc":"2.0","id":"a","method":"ping"},{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":"b","method":"ping"}]\n')
        assert [one["id"] for one in client.receive()] == ["a", "b"]
        assert client.ask("ping")["result"] == {}
        assert client.end() == 0


@test
def more_calls_than_are_allowed_at_once_are_refused_one_by_one():
    with stdio() as client:
        box = client.box()
        for number in range(1000, 1090):
            client.send({"jsonrpc": "2.0", "id": number, "method": "tools/call",
                         "params": {"name": "run_command", "arguments": {"command": "sleep 3", "sandbox": box}}})
        answers = [client.receive() for _ in range(90)]
        refused = [one for one in answers if "error" in one]
        assert len({one["id"] for one in answers}) == 90 and 0 < len(refused) <= 30, len(refused)
        assert all("under way" in one["error"]["message"] for one in refused), refused[0]
        assert client.end() == 0


@test
def the_sandbox_goes_with_its_host_however_it_goes():
    for how in ("close", signal.SIGTERM, signal.SIGINT):
        with stdio() as client:
            box = client.box()
            client.send({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "run_command", "arguments": {"command": "sleep 300"}}})
            if how == "close":
                assert client.end() == 0
            else:
                client.process.send_signal(how)
                client.process.wait(30)
            assert inspect(box)["state"] == "ended", how
    assert_no_leaks()


@test
def a_killed_host_leaves_no_more_than_its_time_limit_allows():
    with stdio(env={"HUSK_MCP_TTL": "60s", "HUSK_MCP_IDLE": "30s", "HUSK_MCP_MEMORY": "300M"}) as client:
        box = adopt(client.tool("run_command", command="true", timeout_seconds=5)["structuredContent"]["sandbox"])
        client.process.kill()
        client.process.wait(30)
        found = inspect(box)
        assert found["state"] == "running" and found["idle_seconds"] == 30 and found["memory_bytes"] == 300 << 20, found
        lifetime = time.strptime(found["expires_at"][:19], "%Y-%m-%dT%H:%M:%S")
        assert time.mktime(lifetime) - time.mktime(time.gmtime()) <= 60, found
    for name, value in (("HUSK_MCP_TTL", "soon"), ("HUSK_MCP_MEMORY", "much"), ("HUSK_MCP_CPUS", "all")):
        assert name in husk("mcp", code=2, env={name: value}).error


@test
def a_sandbox_that_was_given_is_used_and_left_alone():
    box = create()
    with stdio("--sandbox", box) as client:
        assert client.box() == box
        refused = client.tool("kill_sandbox", sandbox=box)
        assert refused["isError"] and "operator" in refused["content"][0]["text"], refused
        copy = client.tool("fork_sandbox")["structuredContent"]["forks"][0]
        # An agent branches itself: it goes on as the best of three, and sees what that changed since a checkpoint.
        client.tool("checkpoint_sandbox")
        tried = client.tool("explore_sandbox", plans=["echo 3 >/root/n", "echo 8 >/root/n", "exit 1"], score="cat /root/n")
        assert [each["score"] for each in tried["structuredContent"]["branches"]] == [8, 3, None], tried
        assert client.tool("run_command", command="cat /root/n")["structuredContent"]["stdout"] == "8\n"
        seen = client.tool("diff_sandbox", against=f"{box}@1", path="/root")["structuredContent"]["changes"]
        assert [(each["change"], each["path"]) for each in seen] == [("added", "/root/n")], seen
        assert client.tool("diff_sandbox", against="sn-others")["isError"]
        kept = client.tool("create_sandbox", keep=True, ttl_seconds=120)["structuredContent"]["sandbox"]
        adopt(kept)
        assert client.end() == 0
    assert [inspect(one)["state"] for one in (box, copy, kept)] == ["running", "ended", "running"]
    assert "not-there" in husk("mcp", "--sandbox", "not-there", code=3).error
    # What was kept can be used by a session to come; what others made cannot, unless the operator says so.
    other = create()
    with stdio() as client:
        assert not client.tool("run_command", command="true", sandbox=kept)["isError"]
        assert client.tool("run_command", command="true", sandbox=other)["isError"]
        mine = client.box()
        fork = adopt(husk("fork", mine, "--json").json()[0]["id"])
        assert client.box() == mine
        client.end()
    assert inspect(fork)["state"] == "running", "a copy that the operator took is the operator's"
    with stdio("--all") as client:
        assert not client.tool("run_command", command="true", sandbox=other)["isError"]
        client.end()


@test
def what_is_blocked_is_told_with_the_rule_that_would_allow_it():
    with stdio("--allow", "allowed.example.com") as client:
        failed = client.tool("run_command", command="curl -sS -m 10 https://blocked.example.com/")
        said = failed["content"][0]["text"]
        line = "blocked: blocked.example.com is not allowed; it requires --allow blocked.example.com"
        assert f"[{line}]" in said, said
        assert line in failed["structuredContent"]["blocked"], failed["structuredContent"]
        log = client.tool("egress_log")["structuredContent"]
        assert log["mode"] == "allow" and any(one["host"] == "blocked.example.com" for one in log["entries"]), log
        client.end()


@test
def a_subscription_is_acknowledged_and_ends_with_us():
    meta = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}
    with stdio() as client:
        for number in (1, 2):
            client.send({"jsonrpc": "2.0", "id": number, "method": "subscriptions/listen", "params": {"_meta": meta, "notifications": {"toolsListChanged": True}}})
            told = client.receive()
            assert told["method"] == "notifications/subscriptions/acknowledged" and told["params"]["_meta"][META + "subscriptionId"] == number, told
        client.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        client.process.stdin.close()
        ended = client.receive()
        assert ended["id"] == 2 and ended["result"]["resultType"] == "complete", ended
        assert client.process.wait(30) == 0


# ---- by hand, over HTTP ----


def answer_in(response):
    """The answer to a call: a JSON document or, if the call takes some time, the last event of a stream."""
    lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
    return json.loads(lines[-1].removeprefix("data: ")) if lines else response.json()


class Session:
    """A legacy session over HTTP."""

    def __init__(self, huskd, secret, version=LEGACY[0], path="/mcp"):
        self.huskd, self.secret, self.path, self.number = huskd, secret, path, 0
        answer = self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": begin(version)})
        self.id = answer.headers["Mcp-Session-Id"]
        self.version = answer.json()["result"]["protocolVersion"]

    def headers(self):
        known = {"Mcp-Session-Id": self.id, "MCP-Protocol-Version": self.version} if hasattr(self, "id") else {}
        return {**BOTH, **known}

    def post(self, message, status=200, headers=None):
        return self.huskd.post(self.path, message, status=status, token=self.secret, headers={**self.headers(), **(headers or {})})

    def tool(self, name, status=200, **arguments):
        self.number += 1
        message = {"jsonrpc": "2.0", "id": self.number, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
        return answer_in(self.post(message, status=status))["result"]

    def box(self):
        return self.tool("run_command", command="true")["structuredContent"]["sandbox"]


@test
def a_session_outlives_the_server_that_began_it():
    huskd = start_server()
    with token("mcp-restart") as secret:
        session = Session(huskd, secret)
        box = adopt(session.box())
        session.tool("write_file", path="/root/kept", content="still here")
        fresh = Session(huskd, secret)  # one without a sandbox yet
        huskd.kill()
        end_server(huskd)
        with server() as huskd:
            session.huskd = fresh.huskd = huskd
            assert session.box() == box
            assert session.tool("read_file", path="/root/kept")["structuredContent"]["text"] == "still here"
            other = fresh.box()
            assert other != box
            for one, gone in ((session, box), (fresh, other)):
                huskd.delete("/mcp", token=secret, headers=one.headers())
                assert inspect(gone)["state"] == "ended"
                assert one.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, status=404).json()["error"]


@test
def a_command_is_come_back_to_after_the_line_was_cut_even_by_another_server():
    huskd = start_server()
    with token("mcp-resume") as secret:
        session = Session(huskd, secret)
        box = adopt(session.box())
        call = {"jsonrpc": "2.0", "id": "the one", "method": "tools/call",
                "params": {"name": "run_command", "arguments": {"command": "echo first; sleep 4; echo last"}}}
        with huskd.stream("POST", "/mcp", call, token=secret, headers=session.headers()) as events:
            del events
            connection, answer = huskd.open("POST", "/mcp", {**call, "id": "other"}, token=secret, headers=session.headers())
            identity = None
            while not identity:
                found = re.match(rb"id: (.*)\r?\n", answer.readline())
                identity = found and found[1].decode()
            connection.close()
        huskd.kill()
        end_server(huskd)
        assert identity.startswith(box + "."), identity
        with server() as huskd:
            session.huskd = huskd
            with huskd.stream("GET", "/mcp", token=secret, headers={**session.headers(), "Last-Event-ID": identity}) as events:
                answer = [event.data for event in events]
            assert len(answer) == 1 and answer[0]["id"] == "other", answer
            result = answer[0]["result"]["structuredContent"]
            assert result["stdout"] == "first\nlast\n" and result["exit_code"] == 0, result
            for bad in ("nonsense", f"{box}.1", f"{box}.x.1", f"{box}.-1.1", f"{box}.1.{{}}", "." * 5000):
                huskd.get("/mcp", status=400, token=secret, headers={**session.headers(), "Last-Event-ID": bad[:5000]})
            with token("mcp-stranger") as stranger:
                spy = Session(huskd, stranger)
                with huskd.stream("GET", "/mcp", token=stranger, headers={**spy.headers(), "Last-Event-ID": identity}) as events:
                    refused = next(events).data["result"]
                assert refused["isError"] and "first" not in json.dumps(refused), refused


@test
def sessions_belong_to_who_began_them():
    with server() as huskd, token("mcp-a") as first, token("mcp-b") as second:
        session = Session(huskd, first)
        box = adopt(session.box())
        thief = Session(huskd, second)
        thief.id, own = session.id, thief.id
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        thief.post(ping, status=404)
        thief.id = own
        assert thief.tool("run_command", command="id", sandbox=box)["isError"]
        assert box not in json.dumps(thief.tool("list_sandboxes"))
        for bad in ("x", session.id[:-1] + ("0" if session.id[-1] != "0" else "1"), session.id.upper(), "a" * 59):
            session.post(ping, status=404, headers={"Mcp-Session-Id": bad})
        huskd.post("/mcp", ping, status=400, token=first, headers=BOTH)
        huskd.post("/mcp", ping, status=401, token="", headers=BOTH)
        assert inspect(box)["state"] == "running"
        huskd.delete("/mcp", token=first, headers=session.headers())


@test
def what_is_no_request_is_refused_as_the_specification_says():
    with server() as huskd, token("mcp-refused") as secret:
        session = Session(huskd, secret)
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        json_type = {"Content-Type": "application/json"}

        def refused(body, status, code=None, **headers):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            answer = huskd.call("POST", "/mcp", body, status, token=secret, headers={**session.headers(), **json_type, **named})
            if code:
                assert answer.json()["error"]["code"] == code, answer

        refused(b"{nonsense", 400, -32700)
        refused(b"", 400, -32700)
        refused(b"[" * 100000, 400, -32600)
        refused(b"a" * (17 << 20), 400, -32600)
        refused({"id": 1, "method": "ping"}, 400, -32600)
        refused(b"{}", 415, Content_Type="text/plain")
        refused(ping, 403, Origin="http://evil.example.com")
        refused(ping, 403, Origin="null")
        refused(ping, 200, Origin="http://localhost:6274")
        refused(ping, 400, MCP_Protocol_Version="1999-01-01")
        refused(ping, 400, -32602, MCP_Protocol_Version=MODERN)
        refused([ping], 400, -32600)
        answer = huskd.post("/mcp", [ping, {**ping, "id": 2}], token=secret, headers={**BOTH, "Mcp-Session-Id": session.id}).json()
        assert [one["id"] for one in answer] == [1, 2]
        session.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, status=202)
        session.post({"jsonrpc": "2.0", "id": 4, "result": {}}, status=202)
        assert huskd.get("/mcp", status=405, token=secret, headers=BOTH).headers["Allow"] == "POST"
        huskd.delete("/mcp", status=405, token=secret)
        huskd.post("/mcp?tempalte=base", ping, status=400, token=secret, headers=session.headers()).error("invalid", "tempalte")
        huskd.post("/mcp?ttl_seconds=1", ping, status=400, token=secret, headers=session.headers()).error("invalid", "ttl_seconds")


@test
def the_address_shapes_what_is_made():
    with server() as huskd, token("mcp-address") as secret:
        session = Session(huskd, secret, path="/mcp?ttl_seconds=90&idle_seconds=45&memory=256M&allow=a.example.com,b.example.com")
        found = inspect(adopt(session.box()))
        assert found["idle_seconds"] == 45 and found["memory_bytes"] == 256 << 20, found
        assert session.tool("egress_log")["structuredContent"]["mode"] == "allow"
        huskd.delete(session.path, token=secret, headers=session.headers())


@test
def many_first_calls_at_once_make_one_sandbox():
    from concurrent.futures import ThreadPoolExecutor

    with server() as huskd, token("mcp-crowd") as secret:
        session = Session(huskd, secret)
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "run_command", "arguments": {"command": "true"}}}
        with ThreadPoolExecutor(6) as crowd:
            made = list(crowd.map(lambda n: answer_in(session.post({**call, "id": n})), range(6)))
        boxes = {one["result"]["structuredContent"]["sandbox"] for one in made}
        assert len(boxes) == 1, boxes
        huskd.delete("/mcp", token=secret, headers=session.headers())


@test
def a_modern_client_that_hangs_up_has_cancelled():
    meta = {META + "protocolVersion": MODERN, META + "clientCapabilities": {}}
    with server() as huskd, token("mcp-hangup") as secret:
        headers = {**BOTH, "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "=?base64?cnVuX2NvbW1hbmQ=?="}

        def message(command, **more):
            return {"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                    "params": {"_meta": meta, "name": "run_command", "arguments": {"command": command, **more}}}

        box = adopt(huskd.post("/mcp", message("true"), token=secret, headers=headers).json()["result"]["structuredContent"]["sandbox"])
        connection, _ = huskd.open("POST", "/mcp", message("sleep 4242", sandbox=box), token=secret, headers=headers)
        assert sh(box, "ps ax | grep '[s]leep 4242'")
        connection.close()
        until(lambda: sh(box, "ps ax | grep -c '[s]leep 4242' || true") == "0", "the command is killed")


if __name__ == "__main__":
    main("base")
