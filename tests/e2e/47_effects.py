#!/usr/bin/env python3
# timeout: 900
"""Held effects: what a sandbox sends to a held host is kept, survives every kill, and reaches the host once, when its owner sends
it or promotes the branch. The guest is hostile: bodies that are too long, chunked, slow, pipelined, upgrades, HTTP/2."""

import contextlib
import json
import os
import signal
import threading
import time

from lib import internet

internet.enter()

from lib.harness import (  # noqa: E402
    HOME, SLOW, assert_equal, assert_fails, assert_in, assert_no_leaks, create, ending, fork, husk, inspect, main, sh, start, supervisor_pid,
    adopt, test, until,
)
from lib.http import server  # noqa: E402

CURL = f"curl -sS -m {20 * SLOW:.0f}"
VALUE = "sk-held-and-never-kept-12345"


def effects(box, *words, code=0):
    return husk("effects", "--json", box, *words, code=code).json()


def states(box):
    return [(one["number"], one["state"]) for one in effects(box)]


def arrived(*paths):
    """The requests for these paths that the world got: (method, path, body)."""
    return [(one["method"], one["path"], one["body"]) for one in internet.requests() if one.get("path") in paths]


def post(box, url, body="x", *words):
    return json.loads(sh(box, f"{CURL} {' '.join(words)} -d '{body}' {url}"))


# ---- held and sent ----


@test
def test_held_and_sent_once_in_order():
    box = create("--hold", "api.test", "--allow", "allowed.test")
    assert_equal(husk("egress", "--json", box).json()["hold"], ["api.test"])
    assert_in("hold    api.test", husk("egress", box).text)
    answer = sh(box, f"{CURL} -D - -d 'one' http://api.test/a1")
    assert_in("HTTP/1.1 202 Accepted", answer)
    assert_in("X-Husk-Effect: 1", answer)
    assert_in('"held": true', answer)
    assert_in("has not been sent", answer)
    # TLS is opened with the sandbox's own authority; every method that is not known to read is held.
    assert_equal(post(box, "https://api.test/a2?q=1", "two")["effect"], 2)
    for number, method in ((3, "PUT"), (4, "PATCH"), (5, "DELETE")):
        assert_equal(post(box, f"https://api.test/a{number}", "more", "-X", method)["effect"], number)
    assert_equal(post(box, "http://api.test/a6", "six", "-X GET -H 'X_HTTP-Method_Override: DELETE'")["effect"], 6)
    # What only reads passes, and so does all to other hosts.
    for scheme in ("http", "https"):
        assert_in('"path": "/read"', sh(box, f"{CURL} {scheme}://api.test/read"))
    sh(box, f"{CURL} -d other http://allowed.test/a1")
    assert_equal(arrived("/a1", "/a2?q=1", "/a3", "/a4", "/a5", "/a6"), [("POST", "/a1", "other")])
    listed = effects(box)
    assert_equal([(one["method"], one["url"], one["bytes"], one["state"]) for one in listed][:2],
                 [("POST", "http://api.test/a1", 3, "held"), ("POST", "https://api.test/a2?q=1", 3, "held")])
    assert_in("a2?q=1", husk("effects", box).text)
    assert_in("\r\n\r\ntwo", husk("effects", box, "show", "2").text)
    events = [one["verdict"] for one in husk("egress", "--json", "--log", box).json()]
    assert "held" in events, events

    assert_equal([one["state"] for one in effects(box, "drop", "4", "5", "6")], ["dropped"] * 3)
    sent = effects(box, "send", "3")
    assert_equal([(one["number"], one["state"], one["status"]) for one in sent], [(3, "sent", 200)])
    sent = effects(box, "send")
    assert_equal([(one["number"], one["state"], one["status"]) for one in sent], [(1, "sent", 200), (2, "sent", 200)])
    assert_equal(arrived("/a1", "/a2?q=1", "/a3", "/a4", "/a5", "/a6"),
                 [("POST", "/a1", "other"), ("PUT", "/a3", "more"), ("POST", "/a1", "one"), ("POST", "/a2?q=1", "two")])
    assert_equal(effects(box, "send"), [])
    for number, says in (("1", "was sent"), ("4", "was dropped"), ("9", "no effect 9")):
        assert_fails("effects", box, "send", number, code=None, says=says)
    assert_fails("effects", box, "send", "x", code=2, says="not the number")
    assert_fails("effects", box, "burn", code=2, says="ls, show, send or drop")
    assert_fails("effects", box, "show", "1", code=None, says="no longer stored")

    # Another policy: no longer held. What is held stays.
    assert_equal(post(box, "http://api.test/a7")["effect"], 7)
    husk("egress", box, "--release", "api.test")
    sh(box, f"{CURL} -d now http://api.test/a8")
    assert_equal(arrived("/a8"), [("POST", "/a8", "now")])
    assert_equal(states(box)[-1], (7, "held"))
    # The end of the sandbox: what it held can be read, and is not sent.
    husk("rm", box)
    assert_equal(states(box)[-1], (7, "held"))
    assert_fails("effects", box, "send", code=None, says="has ended")
    assert_equal(arrived("/a7"), [])


@test
def test_secrets_are_put_in_when_sent():
    box = create("--hold", "api.test", "--secret", f"TOKEN={VALUE}@api.test")
    post(box, "https://api.test/secret", "body", '-H "Authorization: Bearer $TOKEN"')
    shown = husk("effects", box, "show", "1").text
    assert_in("husk-secret-TOKEN-hidden", shown)
    holders = os.popen(f"grep -rlsF {VALUE} {HOME} 2>/dev/null").read().split()
    assert all(name.endswith("/secrets") for name in holders), holders
    effects(box, "send")
    [request] = [one for one in internet.requests() if one.get("path") == "/secret"]
    assert_equal(request["headers"]["authorization"], f"Bearer {VALUE}")


@test
def test_refused_where_it_cannot_be_read():
    for words, says in (
        (("--hold", "10.1.2.3"), "is an address"),
        (("--egress", "open", "--hold", "api.test"), "mode allow"),
        (("--egress", "off", "--hold", "api.test"), "mode allow"),
        (("--hold", "*"), "every name"),
    ):
        assert_fails("create", *words, code=2, says=says)
    box = create("--allow", "allowed.test")
    assert_fails("egress", box, "--hold", "203.0.113.10", code=2, says="is an address")
    assert_fails("egress", box, "--release", "api.test", code=3, says="is not held")
    # A connection that is open before the rule does not lead around it.
    husk("egress", box, "--allow", "api.test:8080")
    husk("exec", "-d", box, "--", "python3", "-c",
         "import http.client as h, os, time\nc = h.HTTPConnection('api.test', 8080); c.request('GET', '/open'); c.getresponse().read()\n"
         "open('/tmp/open', 'w')\nwhile not os.path.exists('/tmp/go'): time.sleep(0.05)\n"
         "try: c.sock.sendall(b'POST /around HTTP/1.1\\r\\nHost: api.test:8080\\r\\nContent-Length: 0\\r\\n\\r\\n')\n"
         "finally: open('/tmp/tried', 'w')")
    sh(box, "until test -e /tmp/open; do sleep 0.05; done")
    husk("egress", box, "--hold", "api.test:8080")
    sh(box, "touch /tmp/go; until test -e /tmp/tried; do sleep 0.05; done")
    husk("egress", box, "--hold", "api.test")  # and its own authority is trusted from now on
    assert_equal(post(box, "https://api.test/later")["effect"], 1)
    # An address rule does not lead around it, not even for who never asked for the name.
    husk("egress", box, "--allow", f"{internet.WEB}:8080", "--allow", f"{internet.WEB}:443", "--hold", "api.test:8080")
    raw = sh(box, f"printf 'POST /around HTTP/1.1\\r\\nHost: other\\r\\nContent-Length: 0\\r\\n\\r\\n' | "
                  f"timeout 5 nc -w 3 {internet.WEB} 8080; curl -sk -m 5 -d x https://{internet.WEB}/around; true")
    assert "/around" not in raw, raw
    assert_equal(arrived("/around", "/later"), [])


# ---- a hostile guest ----

PROGRAM = """
import socket, sys
def talk(*parts, half=False):
    s = socket.create_connection(("api.test", 80), 20)
    try:
        for part in parts:
            s.sendall(part)
        if half:
            s.shutdown(socket.SHUT_WR)
        data = b""
        while chunk := s.recv(65536):
            data += chunk
    except OSError as error:
        data += str(error).encode()
    return data.decode("latin-1")
"""


def talk(box, expression):
    return sh(box, f"python3 - <<'END'\n{PROGRAM}\nprint(repr({expression}))\nEND")


@test
def test_a_hostile_guest():
    box = create("--hold", "api.test")
    head = 'b"POST /h HTTP/1.1\\r\\nHost: api.test\\r\\n'
    # Chunked, in small pieces: kept without its framing.
    answer = talk(box, f'talk({head}Transfer-Encoding: chunked\\r\\n\\r\\n", b"3\\r\\nabc\\r\\n", b"2\\r\\nde\\r", b"\\n0\\r\\n\\r\\n")')
    assert_in("202 Accepted", answer)
    assert_in("\r\n\r\nabcde", husk("effects", box, "show", "1").text)
    # Expect: 100-continue is answered, and anything else it expects is not.
    answer = talk(box, f'talk({head}Expect: 100-continue\\r\\nContent-Length: 2\\r\\n\\r\\n", b"ok")')
    assert answer.index("100 Continue") < answer.index("202 Accepted"), answer
    assert_in("417", talk(box, f'talk({head}Expect: miracles\\r\\nContent-Length: 2\\r\\n\\r\\nok")'))
    # Pipelined: the first is held and the last of its connection.
    answer = talk(box, f'talk({head}Content-Length: 1\\r\\n\\r\\n1POST /h HTTP/1.1\\r\\nHost: api.test\\r\\nContent-Length: 1\\r\\n\\r\\n2")')
    assert_equal(answer.count("202 Accepted"), 1)
    # Too long, announced or not; cut short; malformed; a body that begins like a request.
    assert_in("413", talk(box, f'talk({head}Content-Length: 99999999\\r\\n\\r\\n")'))
    assert_in("413", talk(box, f'talk({head}Transfer-Encoding: chunked\\r\\n\\r\\n", b"110000\\r\\n" + bytes(0x110000) + b"\\r\\n0\\r\\n\\r\\n")'))
    assert "202" not in talk(box, f'talk({head}Content-Length: 10\\r\\n\\r\\nabc", half=True)')
    assert_in("400", talk(box, f'talk({head}Content-Length: 3\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\nabc")'))
    assert_in("400", talk(box, f'talk({head}Content-Length: 24\\r\\n\\r\\nGET /stolen HTTP/1.1\\r\\n\\r\\n")'))
    # A WebSocket cannot be held; HTTP/2 is not spoken; another upgrade is not passed on.
    socket = "GET /ws HTTP/1.1\\r\\nHost: api.test\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n"
    assert_in("403", talk(box, f'talk(b"{socket}")'))
    assert_in("400", talk(box, 'talk(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n")'))
    answer = talk(box, f'talk({head}Upgrade: h2c\\r\\nHTTP2-Settings: AAAA\\r\\nConnection: Upgrade\\r\\nContent-Length: 0\\r\\n\\r\\n")')
    assert_in("202 Accepted", answer)
    assert "h2c" not in husk("effects", box, "show", "4").text
    sh(box, f"{CURL} --http2 -d h2 https://api.test/h")  # falls back to HTTP/1.1
    # The path of a full url is held as it is, whatever its query looks like.
    url = 'b"POST http://api.test{} HTTP/1.1\\r\\nHost: api.test\\r\\nContent-Length: 0\\r\\n\\r\\n"'
    assert_in("202 Accepted", talk(box, f'talk({url.format("/full?to=/other")})'))
    assert_in("POST /full?to=/other HTTP/1.1", husk("effects", box, "show", "6").text)
    assert_in("400", talk(box, f'talk({url.format("?to=/other")})'))
    assert_in("414", talk(box, f'talk({url.format("/" + 9000 * "x")})'))
    assert_equal([state for _, state in states(box)], ["held"] * 6)

    # The queue is bounded in bytes and in number, and says so. Header lines count.
    long = "X-Long: " + "x" * 60000
    filled = talk(box, f'[talk({head}{long}\\r\\nContent-Length: 0\\r\\n\\r\\n")[:12] for _ in range(150)]')
    assert_in("507", filled)
    effects(box, "drop")
    filled = talk(box, f'[talk({head}Content-Length: 1000000\\r\\n\\r\\n" + bytes(1000000))[:30] for _ in range(9)]')
    assert_in("507", filled)
    assert_in("larger than 8 MiB", talk(box, f'talk({head}Content-Length: 1000000\\r\\n\\r\\n" + bytes(1000000))'))
    effects(box, "drop")
    filled = talk(box, f'[talk({head}Content-Length: 0\\r\\n\\r\\n")[:12] for _ in range(257)]')
    assert_equal(filled.count("202"), 256)
    assert_in("507", filled)
    assert_equal(arrived("/h", "/stolen"), [])


# ---- branches ----


@test
def test_the_winner_alone_is_sent():
    box = create("--hold", "api.test", "--name", "held-tree")
    post(box, "http://api.test/common", "before the fork")
    left, right = fork(box, "-n", "2")
    assert_equal(effects(left), [])
    post(box, "http://api.test/parent", "after the fork")
    post(left, "http://api.test/left")
    post(right, "http://api.test/right1")
    post(right, "http://api.test/right2")
    done = husk("promote", "--json", right).json()
    assert_equal([(one["url"].rpartition("/")[2], one["state"], one["status"]) for one in done["effects"]],
                 [("common", "sent", 200), ("right1", "sent", 200), ("right2", "sent", 200)])
    assert_equal([path for _, path, _ in arrived("/common", "/parent", "/left", "/right1", "/right2")], ["/common", "/right1", "/right2"])
    assert_equal([(one["url"].rpartition("/")[2], one["state"]) for one in effects(box)],
                 [("common", "sent"), ("parent", "dropped"), ("right1", "sent"), ("right2", "sent")])
    assert_equal(inspect(left)["state"], "ended")
    assert_fails("effects", left, "send", code=None, says="has ended")


@test
def test_rewind_drops_and_sleep_keeps():
    box = create("--hold", "api.test")
    post(box, "http://api.test/r1")
    husk("checkpoint", box)
    post(box, "http://api.test/r2")
    post(box, "http://api.test/r3")
    husk("hibernate", box)
    assert_equal([state for _, state in states(box)], ["held"] * 3)
    told = husk("rewind", "--json", box).json()
    assert_equal([one["url"] for one in told["effects"]], ["http://api.test/r2", "http://api.test/r3"])
    assert_equal([state for _, state in states(box)], ["held", "dropped", "dropped"])
    # A snapshot has the rule, and no queue.
    snapshot = husk("snapshot", "create", box).text.split()[0]
    copy = create("--from", snapshot)
    assert_equal(effects(copy), [])
    assert_equal(post(copy, "https://api.test/copied")["effect"], 1)
    husk("rm", copy)
    husk("snapshot", "rm", snapshot)
    # A fork may get the rule that its parent does not have, and keeps the rest of the policy.
    plain = create("--allow", "allowed.test", "--allow", "api.test")
    [child] = fork(plain, "--hold", "api.test")
    assert_equal(post(child, "http://api.test/forked")["effect"], 1)
    sh(child, f"{CURL} -d x http://allowed.test/forked2")
    husk("promote", child)  # its parent may reach the host too
    assert_equal([path for _, path, _ in arrived("/forked", "/forked2")], ["/forked2", "/forked"])
    # Sending wakes a sandbox; a paused one sends too.
    husk("hibernate", box)
    assert_equal([one["state"] for one in effects(box, "send")], ["sent"])
    post(box, "http://api.test/r4")
    husk("pause", box)
    assert_equal([one["state"] for one in effects(box, "send")], ["sent"])


@test
def test_over_the_api_and_from_elsewhere():
    with server() as huskd:
        box = huskd.create(egress={"hold": ["api.test"]})["id"]
        assert_equal(huskd.get(f"/v1/sandboxes/{box}/egress").json()["allow"], ["api.test"])
        for path in ("e1", "e2", "e3"):
            post(box, f"http://api.test/{path}")
        route = f"/v1/sandboxes/{box}/effects"
        assert_equal([one["state"] for one in huskd.get(route).json()["effects"]], ["held"] * 3)
        assert_in("POST /e1 HTTP/1.1", huskd.get(f"{route}/1").json()["request"])
        huskd.post(f"{route}/send", {"effects": [9]}, status=404)
        huskd.post(f"{route}/send", {"effects": ["1"]}, status=400).error("invalid", "effects")
        for action in ("send", "drop"):  # a list that was filtered to nothing does not mean all
            huskd.post(f"{route}/{action}", {"effects": []}, status=400).error("invalid", "effects")
        assert_equal([one["state"] for one in huskd.get(route).json()["effects"]], ["held"] * 3)
        assert_equal([one["number"] for one in huskd.post(f"{route}/drop", {"effects": [2]}).json()["effects"]], [2])
        assert_equal([one["status"] for one in huskd.post(f"{route}/send", {"effects": [1]}).json()["effects"]], [200])
        far = {"HUSK_HOST": f"unix://{huskd.socket_path}"}
        assert_equal(husk("effects", "--json", box, env=far).json(), effects(box))
        assert_in("/e3", husk("effects", box, "show", "3", env=far).text)
        assert_equal([one["number"] for one in husk("effects", "--json", box, "send", env=far).json()], [3])
        child = adopt(huskd.post(f"/v1/sandboxes/{box}/fork", status=201).json()["sandboxes"][0]["id"])
        post(child, "http://api.test/e4")
        assert_equal([one["status"] for one in husk("promote", "--json", child, env=far).json()["effects"]], [200])
        husk("checkpoint", box)
        post(box, "http://api.test/e5")
        done = husk("rewind", "--json", box, env=far).json()
        assert_equal([one["url"] for one in done["effects"]], ["http://api.test/e5"])
        assert_equal([path for _, path, _ in arrived("/e1", "/e2", "/e3", "/e4", "/e5")], ["/e1", "/e3", "/e4"])


# ---- failures and kills ----


@test
def test_a_host_that_fails():
    box = create("--hold", "api.test", "--hold", "api.test:8099", "--hold", "impostor.test:443")
    post(box, "http://api.test/f1")
    post(box, "http://api.test:8099/f2")  # nobody listens there
    post(box, "http://api.test/f3")
    done = husk("effects", "--json", box, "send", code=None)
    assert done.code != 0
    assert_equal([(one["number"], one["state"]) for one in done.json()], [(1, "sent"), (2, "held")])
    assert_in("cannot connect to api.test", done.json()[1]["detail"])
    assert_in("stays held", done.error)
    effects(box, "drop", "2")
    assert_equal([one["number"] for one in effects(box, "send")], [3])
    # An impostor's TLS is not opened.
    assert husk("exec", box, "--", "sh", "-c", f"{CURL} -d x https://impostor.test/f4", code=None).code != 0
    # Not allowed any more: it is not sent, and says why.
    post(box, "http://api.test/f5")
    husk("egress", box, "--mode", "allow", "--allow", "allowed.test")
    refused = husk("effects", "--json", box, "send", code=None).json()
    assert_equal(refused[0]["state"], "held")
    assert_in("not allowed", refused[0]["detail"])
    assert_equal([path for _, path, _ in arrived("/f1", "/f2", "/f3", "/f4", "/f5")], ["/f1", "/f3"])


def leash_pid(box):
    supervisor = supervisor_pid(box)
    for line in os.popen(f"ps -o pid=,args= --ppid {supervisor}").read().splitlines():
        if " leash " in line:
            return int(line.split()[0])
    raise AssertionError("no leash")


@test
def test_kill_9_while_it_is_sent():
    """The leash, the client or the supervisor is killed after the host got the request: it is never sent again."""
    for victim in ("leash", "client", "supervisor"):
        box = create("--hold", "api.test")
        path = f"/stall-{victim}"
        post(box, f"http://api.test{path}")
        post(box, f"http://api.test/after-{victim}")
        pids = {"leash": leash_pid(box), "supervisor": supervisor_pid(box)}
        client = start("effects", "--json", box, "send")
        with ending(client):
            until(lambda: arrived(path), "the host has the request")
            os.kill(pids.get(victim, client.pid), signal.SIGKILL)
            if victim != "client":
                client.communicate(timeout=60 * SLOW)
                assert client.returncode != 0
        if victim == "client":  # nobody waits for the answer any more; the leash does
            os.kill(pids["leash"], signal.SIGKILL)
        until(lambda: states(box)[0] == (1, "uncertain"), "it says that it may have been sent")
        assert_equal(states(box)[1], (2, "held"))
        if victim == "supervisor":
            assert_equal(inspect(box)["state"], "ended")
        else:
            assert_fails("effects", box, "send", "1", code=None, says="may have been sent")
            until(lambda: effects(box, "send", code=None)[0]["state"] == "sent", "the next leash sends the other one")
            assert_equal(states(box)[1], (2, "sent"))
        assert_equal(len(arrived(path)), 1)
        husk("rm", box, code=None)


@test
def test_kill_9_over_a_promotion():
    """The fork's requests are sent, or they are not; never those of both sides, and none twice."""
    for moment in range(3):
        box = create("--hold", "api.test")
        [child] = fork(box)
        post(box, f"http://api.test/parent{moment}")
        post(child, f"http://api.test/child{moment}")
        client = start("promote", child)
        with ending(client):
            time.sleep(0.25 * SLOW * moment)
            with contextlib.suppress(ProcessLookupError):
                os.kill(client.pid, signal.SIGKILL)
            client.communicate(timeout=60 * SLOW)
        until(lambda: inspect(box)["state"] != "creating", "it settles")
        if inspect(child)["state"] == "ended" and "child" not in husk("effects", box).text:
            husk("rewind", box, child)  # its checkpoint has the label of the fork
        mine = {one["url"].rpartition("/")[2]: one["state"] for one in effects(box)}
        if f"child{moment}" in mine:
            assert_equal(mine[f"parent{moment}"], "dropped")
            assert mine[f"child{moment}"] in ("held", "sent", "sending", "uncertain"), mine
        else:
            assert_equal(mine, {f"parent{moment}": "held"})
            assert_equal([one["state"] for one in effects(child)], ["held"])
        assert_equal(arrived(f"/parent{moment}"), [])
        assert len(arrived(f"/child{moment}")) <= 1
        husk("rm", box, child, code=None)


@test
def test_what_is_acknowledged_survives():
    """202 means on disk: the supervisor is killed while requests come in."""
    box = create("--hold", "api.test")
    pid = supervisor_pid(box)
    acknowledged = []
    stream = start("exec", box, "--", "sh", "-c", f"for i in $(seq 200); do {CURL} -d $i http://api.test/many; done")

    def read():
        for line in stream.stdout:
            if b'"effect":' in line:
                acknowledged.append(int(line.split(b":")[1].strip(b" ,\n")))
            if len(acknowledged) == 8:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    with ending(stream):
        reader = threading.Thread(target=read)
        reader.start()
        reader.join(120 * SLOW)
        assert len(acknowledged) >= 8, acknowledged
    until(lambda: inspect(box)["state"] == "ended", "it is found dead")
    kept = [number for number, state in states(box) if state == "held"]
    assert set(acknowledged) <= set(kept), (acknowledged, kept)
    assert_equal(arrived("/many"), [])


@test
def test_zz_nothing_is_left():
    assert_no_leaks()


if __name__ == "__main__":
    main("base")
