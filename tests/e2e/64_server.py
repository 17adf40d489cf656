#!/usr/bin/python3
"""The HTTP server: sandboxes, snapshots, templates and events over it; who may ask; bad input; and what happens when it
is stopped, killed, or met by thousands of clients, slow ones and vanishing ones."""

# timeout: 1500
import concurrent.futures
import contextlib
import json
import os
import pathlib
import resource
import signal
import socket
import sqlite3
import threading
import time

from lib.harness import *
from lib.http import *

MIB = 1 << 20


# ---- the instance ----


@test
def test_health():
    with server() as huskd:
        assert_equal(huskd.get("/healthz").json()["status"], "ok")
        assert_equal(huskd.get("/healthz", token="").json()["status"], "ok", "public over TCP")
        description = huskd.get("/openapi.json", token="").json()
        assert description["openapi"].startswith("3.1"), description["openapi"]
        assert_equal(huskd.call("HEAD", "/healthz").body, b"")
        mine = huskd.get("/healthz", headers={"X-Request-Id": "my-id.1"})
        assert_equal(mine.headers["X-Request-Id"], "my-id.1")
        other = huskd.get("/healthz", headers={"X-Request-Id": 'x" y\t'})
        assert other.headers["X-Request-Id"].startswith("rq"), other.headers["X-Request-Id"]


@test
def test_metrics():
    with server() as huskd, token("metrics") as secret:
        huskd.create()
        huskd.get("/v1/sandboxes/none", status=404)
        # A request counts once its answer is sent, which its client may read before.
        missing = 'husk_http_requests_total{method="GET",route="/v1/sandboxes/{id}",status="404"} 1'
        until(lambda: missing in huskd.get("/metrics").text, "the request counts")
        text = huskd.get("/metrics").text
        assert_in('husk_sandboxes{state="running"} ', text)
        assert_in('husk_http_request_duration_seconds_count{method="POST",route="/v1/sandboxes"} 1', text)
        assert_in("process_resident_memory_bytes", text)
        huskd.get("/metrics", status=403, token=secret).error("forbidden")
        huskd.get("/metrics", status=401, token="").error("unauthorized")


@test
def test_idle_memory():
    with server() as huskd:
        huskd.get("/healthz")
        assert_memory(huskd, 15 * MIB, "an idle huskd")


# ---- sandboxes ----


@test
def test_life():
    with server() as huskd:
        made = huskd.create(
            name="life", ttl_seconds=900, metadata={"a": "1"}, env={"SECRET": "s3cr3t"}, cpus=0.5, memory="256M"
        )
        path = f"/v1/sandboxes/{made['id']}"
        assert_equal(made["memory_bytes"], 256 * MIB)
        assert_equal(made["cpus"], 0.5)
        assert_equal(made["environment"], ["SECRET"])
        assert_equal(huskd.get("/v1/sandboxes/life").json()["id"], made["id"])
        assert_equal(huskd.put(f"{path}/metadata", {"b": "2"}).json()["metadata"], {"b": "2"})
        patched = huskd.call("PATCH", path, {"metadata": {}, "ttl_seconds": 60}).json()
        assert_equal(patched["metadata"], {})
        assert patched["expires_at"] < made["expires_at"], patched
        assert_equal(huskd.post(f"{path}/ttl", {"persistent": True}).json(), {"expires_at": None})
        assert_equal(huskd.get(path).json()["persistent"], True)
        for action, state in (
            ("pause", "paused"),
            ("resume", "running"),
            ("hibernate", "hibernated"),
            ("wake", "running"),
        ):
            assert_equal(huskd.post(f"{path}/{action}").json()["state"], state, action)
        stats = huskd.get(f"{path}/stats").json()
        assert stats["memory_bytes"] > 0 and stats["memory_limit"] == 256 * MIB, stats
        assert_equal(huskd.get(f"{path}/logs").headers["Content-Type"], "text/plain; charset=utf-8")
        huskd.delete(path)
        assert_equal(huskd.get(path).json()["end_reason"], "killed")
        huskd.post(f"{path}/pause", status=410).error("gone")
        assert "s3cr3t" not in huskd.log(), "a value of the environment is in the log"


@test
def test_fork_and_snapshot():
    with server() as huskd:
        parent = huskd.create()
        path = f"/v1/sandboxes/{parent['id']}"
        children = huskd.post(f"{path}/fork", {"count": 2, "metadata": {"k": "v"}}, status=201).json()["sandboxes"]
        for child in children:
            adopt(child["id"])
            assert_equal(child["parent"], parent["id"])
            assert_equal(child["metadata"], {"k": "v"})
        snapshot = huskd.post(f"{path}/snapshots", {"name": "snap64"}, status=201).json()
        adopt_snapshot(snapshot["id"])
        assert_equal(huskd.get("/v1/snapshots/snap64").json(), snapshot)
        assert_in(snapshot["id"], [each["id"] for each in huskd.get("/v1/snapshots").json()["snapshots"]])
        again = huskd.create(snapshot="snap64")
        assert_equal(again["parent"], snapshot["id"])
        huskd.delete(f"/v1/snapshots/{snapshot['id']}", status=204)
        huskd.get("/v1/snapshots/snap64", status=404).error("not_found")


@test
def test_list():
    label = f"x{time.time()}"  # the ended ones of an earlier run stay
    with server() as huskd:
        made = [huskd.create(metadata={"list": label, "n": str(n)})["id"] for n in range(3)]
        first = huskd.get(f"/v1/sandboxes?metadata.list={label}&limit=2").json()
        assert_equal([each["id"] for each in first["sandboxes"]], [made[2], made[1]])
        second = huskd.get(f"/v1/sandboxes?metadata.list={label}&limit=2&cursor={first['next_cursor']}").json()
        assert_equal([each["id"] for each in second["sandboxes"]], [made[0]])
        assert_equal(second["next_cursor"], None)
        only = huskd.get(f"/v1/sandboxes?metadata.list={label}&metadata.n=1").json()["sandboxes"]
        assert_equal([each["id"] for each in only], [made[1]])
        huskd.delete(f"/v1/sandboxes/{made[0]}")
        assert_equal(len(huskd.get(f"/v1/sandboxes?metadata.list={label}").json()["sandboxes"]), 2)
        assert_equal(len(huskd.get(f"/v1/sandboxes?metadata.list={label}&ended=true").json()["sandboxes"]), 3)
        assert_equal(len(huskd.get(f"/v1/sandboxes?metadata.list={label}&state=ended").json()["sandboxes"]), 1)
        assert_equal(huskd.get(f"/v1/sandboxes?metadata.list={label}&template=other").json()["sandboxes"], [])
        for query, field in (
            ("limit=0", "limit"),
            ("limit=x", "limit"),
            ("state=asleep", "state"),
            ("ended=maybe", "ended"),
            ("lmit=3", "lmit"),
        ):
            huskd.get(f"/v1/sandboxes?{query}", status=400).error("invalid", field)
        huskd.get("/v1/sandboxes?cursor=sb-none", status=400).error("invalid")


@test
def test_idempotency():
    with server() as huskd:
        headers = {"Idempotency-Key": f"key-{os.getpid()}-{time.time()}"}
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            calls = [
                pool.submit(huskd.post, "/v1/sandboxes", {"metadata": {"once": "1"}}, 201, headers=headers)
                for _ in range(4)
            ]
            made = {call.result().json()["id"] for call in calls}
        for each in made:
            adopt(each)
        assert_equal(len(made), 1, "sandboxes made with one key")
        huskd.post("/v1/sandboxes", {"metadata": {"once": "2"}}, status=409, headers=headers).error("conflict")


@test
def test_a_burst_of_creates():
    """More at once than the pool has, and than may start at the same time: every one answers."""
    with server() as huskd, concurrent.futures.ThreadPoolExecutor(24) as pool:
        calls = [pool.submit(huskd.post, "/v1/sandboxes", {}, 201) for _ in range(24)]
        made = {adopt(call.result().json()["id"]) for call in calls}
    assert_equal(len(made), 24)
    for box in list(made)[:3]:
        assert_equal(sh(box, "echo here"), "here")
    husk("rm", *made)
    until(lambda: husk("pool", "drain", "--json").json()["pool"] == 0, "nothing is left to end")


@test
def test_idempotency_counts_every_part_of_a_volume():
    with server() as huskd:
        headers = {"Idempotency-Key": f"part-{os.getpid()}-{time.time()}"}
        huskd.post("/v1/volumes", {"name": "parts64"}, status=201)
        try:
            mount = {"volume": "parts64", "path": "/data", "subpath": "one"}
            box = adopt(huskd.post("/v1/sandboxes", {"volumes": [mount]}, 201, headers=headers).json()["id"])
            assert_equal(huskd.post("/v1/sandboxes", {"volumes": [mount]}, 201, headers=headers).json()["id"], box)
            mount["subpath"] = "two"
            huskd.post("/v1/sandboxes", {"volumes": [mount]}, status=409, headers=headers).error("conflict")
            remove(box)
        finally:
            huskd.delete("/v1/volumes/parts64", status=None)


# ---- templates and events ----


@test
def test_templates():
    with server() as huskd:
        listed = {each["name"]: each for each in huskd.get("/v1/templates").json()["templates"]}
        assert_equal(listed["base"]["built"], True)
        assert_equal(listed["browser"]["built"], False)
        told = huskd.events("POST", "/v1/templates", {"bundled": "base"})
        assert_equal(told[-1].kind, "done", str(told))
        assert_equal(told[-1].data["fresh"], False)
        assert_equal(told[-1].data["template"]["name"], "base")
        huskd.post("/v1/templates", {"bundled": "bsae"}, status=404).error("not_found", says="base")
        huskd.post("/v1/templates", {"bundle": "base"}, status=400).error("invalid", "bundle")
        huskd.post("/v1/templates", {}, status=400).error("invalid", "bundled")
        tar = {"Content-Type": "application/x-tar"}
        huskd.post("/v1/templates", b"x", status=400, headers=tar).error("invalid", "name")
        huskd.post("/v1/templates?name=t64", b"", status=400, headers=tar).error("invalid")
        told = huskd.events("POST", "/v1/templates?name=t64", b"not a tar" * 1000, headers=tar)
        assert_equal(told[-1].kind, "error", str(told))
        huskd.delete("/v1/templates/none", status=404)
        huskd.post("/v1/sandboxes", {"template": "bsae"}, status=404).error("not_found", says="base")


@test
def test_template_upload():
    with server() as huskd:
        # the root that was built for `base`, under another name
        cached = sorted(pathlib.Path(os.environ["HUSK_CACHE"]).glob("base-*.tar"))
        if not cached:
            raise Skip("no built root filesystem in the cache")
        with open(cached[0], "rb") as body:
            headers = {"Content-Type": "application/x-tar"}
            told = huskd.events("POST", "/v1/templates?name=t64", body, headers=headers, timeout=300)
        assert_equal(told[-1].kind, "done", str(told[-3:]))
        assert any(event.kind == "log" for event in told), str(told)
        try:
            huskd.create(template="t64")
        finally:
            huskd.delete("/v1/templates/t64")


@test
def test_events():
    with server() as huskd:
        made = huskd.create()["id"]
        listed = huskd.get(f"/v1/sandboxes/{made}/events").json()["events"]
        assert_equal(listed[0]["kind"], "created")
        assert_equal(set(listed[0]), {"sequence", "at", "sandbox", "kind", "detail"})
        with huskd.stream("GET", f"/v1/sandboxes/{made}/events?follow=true") as events:
            first = next(events)
            assert_equal(first.kind, "created")
            huskd.delete(f"/v1/sandboxes/{made}")
            rest = list(events)  # it ends with the sandbox
        assert_equal(rest[-1].kind, "ended")
        assert_equal(rest[-1].data["detail"]["reason"], "killed")
        with huskd.stream(
            "GET", f"/v1/sandboxes/{made}/events", headers={"Accept": "text/event-stream", "Last-Event-ID": first.id}
        ) as events:
            assert_equal([event.id for event in events], [event.id for event in rest])
        page = huskd.get(f"/v1/events?after={first.id}&limit=1").json()["events"]
        assert_equal(len(page), 1)
        huskd.get("/v1/sandboxes/sb-none/events?follow=true", status=404).error("not_found")


# ---- who may ask ----


@test
def test_tokens():
    with server() as huskd:
        for path in ("/v1/sandboxes", "/v1/events", "/metrics"):
            refused = huskd.get(path, status=401, token="")
            refused.error("unauthorized", says="husk token create")
            assert_equal(refused.headers["WWW-Authenticate"], "Bearer")
        huskd.get("/v1/sandboxes", status=401, token="husk_nonsense").error("unauthorized")
        for value in ("Basic eDp5", "Bearer", "Bearer ", "bearer" + " x" * 3000):
            huskd.get("/v1/sandboxes", status=401, token="", headers={"Authorization": value}).error("unauthorized")
        with token("mine") as secret:
            assert_equal(huskd.get("/v1/sandboxes", token=secret).json()["sandboxes"], [])
            huskd.get("/v1/sandboxes", token="", headers={"X-Husk-Token": secret})
            husk("token", "rm", "mine")
            huskd.get("/v1/sandboxes", status=401, token=secret).error("unauthorized", says="revoked")
        with token("brief", "--ttl", "1s") as secret:
            huskd.get("/v1/sandboxes", token=secret)
            until(lambda: huskd.get("/v1/sandboxes", status=None, token=secret).status == 401, "the token expires")
            huskd.get("/v1/sandboxes", status=401, token=secret).error("unauthorized", says="expired")
        for said in (secret, "husk_nonsense"):
            assert said not in huskd.log(), "a token is in the log"


@test
def test_tenants():
    with server() as huskd, token("red") as red, token("blue", "--max-sandboxes", "1") as blue, token(
        "all", "--admin"
    ) as admin:
        made = huskd.create(token=red, name="same")
        path = f"/v1/sandboxes/{made['id']}"
        for method, suffix, body in (
            ("GET", "", None),
            ("DELETE", "", None),
            ("PATCH", "", {"ttl_seconds": 5}),
            ("POST", "/exec", {"cmd": "true"}),
            ("POST", "/fork", {}),
            ("POST", "/snapshots", {}),
            ("POST", "/hibernate", {}),
            ("GET", "/events", None),
            ("GET", "/events?follow=true", None),
            ("GET", "/logs", None),
            ("GET", "/stats", None),
        ):
            huskd.call(method, path + suffix, body, status=404, token=blue).error("not_found")
        assert_equal(huskd.get("/v1/sandboxes", token=blue).json()["sandboxes"], [])
        own = huskd.create(token=blue, name="same")
        assert own["id"] != made["id"], "a tenant's names are its own"
        huskd.post("/v1/sandboxes", {}, status=429, token=blue).error("limit")
        assert_equal(huskd.get("/v1/sandboxes/same", token=red).json()["id"], made["id"])
        seen = {each["id"] for each in huskd.get("/v1/sandboxes", token=admin).json()["sandboxes"]}
        assert {made["id"], own["id"]} <= seen, seen
        rows = {line.split()[0]: line.split()[-1] for line in husk("ls").text.split("\n") if line}
        assert_equal((rows["ID"], rows[made["id"]], rows[own["id"]]), ("TENANT", "red", "blue"))
        assert_fails("exec", "same", "--", "true", code=125, says=["not found", "has one of this name: use its id, sb-"])
        told = huskd.get("/v1/events", token=red).json()["events"]
        assert own["id"] not in {event["sandbox"] for event in told}, "another's events"
        huskd.get("/metrics", token=admin)


@test
def test_beyond_loopback():
    for each in husk("token", "ls", "--json").json():
        if not each["revoked"]:
            husk("token", "rm", each["id"])
    huskd = start_server("--listen", "0.0.0.0:0", ready=False)
    try:
        assert_equal(huskd.process.wait(20), 1)
        assert_in("without any token", huskd.log())
    finally:
        end_server(huskd)
    with server() as huskd:
        second = start_server(ready=False)
        try:
            assert_equal(second.process.wait(20), 1)
            assert_in("another huskd", second.log())
        finally:
            end_server(second)


@test
def test_tls():
    with scratch() as directory, token("tls") as secret:
        options, context = certificate(directory)
        with server(*options) as huskd:
            connection = http.client.HTTPSConnection("127.0.0.1", huskd.port, timeout=30, context=context)
            connection.request("GET", "/v1/sandboxes", headers={"Authorization": f"Bearer {secret}"})
            assert_equal(connection.getresponse().status, 200)
            connection.close()
            made = huskd.create()["id"]
            events = http.client.HTTPSConnection("127.0.0.1", huskd.port, timeout=30, context=context)
            events.request("GET", "/v1/events?follow=true", headers={"Authorization": f"Bearer {secret}"})
            assert_equal(events.getresponse().status, 200)
            huskd.delete(f"/v1/sandboxes/{made}")
            events.close()


# ---- bad input ----


@test
def test_bad_bodies():
    with server() as huskd:
        before = huskd.get("/v1/sandboxes").json()
        for body, says in (
            (b"{", "not JSON"),
            (b"{'a': 1}", "not JSON"),
            (b"[]", "JSON object"),
            (b"7", "JSON object"),
            (b'{"a":1,"a":2}', "not JSON"),
            (b'{"name":"\xff"}', "not JSON"),
            (b'{"name":"a\\u0000b"}', "not JSON"),
            (b"[" * 100000, "nested"),
            (b'{"a":' * 5000, "nested"),
        ):
            huskd.post("/v1/sandboxes", body, status=400).error("invalid", says=says)
        for body, field in (
            ({"tlt_seconds": 5}, "tlt_seconds"),
            ({"ttl_seconds": "60"}, "ttl_seconds"),
            ({"ttl_seconds": -1}, "ttl_seconds"),
            ({"ttl_seconds": 1e18}, "ttl_seconds"),
            ({"memory": "lots"}, "memory"),
            ({"memory": 1}, "memory"),
            ({"cpus": 0}, "cpus"),
            ({"cpus": "2"}, "cpus"),
            ({"pids": 1}, "pids"),
            ({"persistent": "yes"}, "persistent"),
            ({"metadata": {"a": 1}}, "metadata"),
            ({"metadata": ["a"]}, "metadata"),
            ({"env": {"A=B": "1"}}, None),
            ({"name": "../x"}, "name"),
            ({"name": "sb-x"}, "name"),
            ({"template": 5}, "template"),
            ({"isolation": "none"}, "isolation"),
            ({"template": "base", "snapshot": "x"}, "snapshot"),
        ):
            huskd.post("/v1/sandboxes", body, status=400).error("invalid", field)
        assert_equal(huskd.get("/v1/sandboxes").json(), before, "a refused create changed something")
        made = huskd.create()
        path = f"/v1/sandboxes/{made['id']}"
        huskd.call("PATCH", path, {"metadata": {"x": "1"}, "ttl_seconds": 0}, status=400).error(
            "invalid", "ttl_seconds"
        )
        huskd.call("PATCH", path, {"persistent": False}, status=400).error("invalid", "ttl_seconds")
        huskd.post(f"{path}/ttl", {}, status=400).error("invalid", "ttl_seconds")
        huskd.post(f"{path}/fork", {"count": 0}, status=400).error("invalid", "count")
        huskd.post(f"{path}/fork", {"count": 2, "name": "two"}, status=400).error("invalid")
        huskd.post(f"{path}/pause", {"now": True}, status=400).error("invalid", "now")
        assert_equal(huskd.get(path).json(), made, "a refused change changed something")


@test
def test_bad_paths():
    with server() as huskd:
        for path, status in (
            ("/", 404),
            ("/v1", 404),
            ("/v1/", 404),
            ("//v1/sandboxes", 404),
            ("/v1/sandboxes/", 404),
            ("/v1/sandboxes/none", 404),
            ("/v1/sandboxes/../../etc/passwd", 400),
            ("/v1/sandboxes/%2e%2e", 400),
            ("/v1/sandboxes/..%2f..%2fetc", 404),
            ("/v1/sandboxes/a%00b", 400),
            ("/v1/sandboxes/%zz", 400),
            ("/v1/sandboxes/%", 400),
            ("/v1/sandboxes/" + "x" * 5000, 404),
            ("/v1/sandboxes/" + "x" * 20000, 400),
            ("/v1/sandboxes/'%20or%201=1", 404),
            ("/v1%2fsandboxes", 404),
            ("/v1/sandboxes?limit=%", 400),
            ("/v1/sandboxes?" + "a=1&" * 200, 400),
        ):
            huskd.get(path, status=status).error("invalid" if status == 400 else "not_found")
        refused = huskd.call("PUT", "/v1/sandboxes", status=405)
        refused.error("method_not_allowed", says="POST")
        assert_equal(set(refused.headers["Allow"].split(", ")), {"GET", "HEAD", "POST"})
        huskd.call("BREW", "/v1/sandboxes", status=405)


@test
def test_bad_bytes():
    """What is not HTTP is refused by a closed connection or a 4xx, never by a crash."""
    with server() as huskd:
        for data in (
            b"\0" * 1000,
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n",
            b"GET /healthz\r\n\r\n",
            b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
            b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
            b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
            b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20000 + b"\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: x\r\nBig: " + b"x" * 200000 + b"\r\n\r\n",
            os.urandom(4096),
        ):
            got = huskd.raw(data, timeout=5)
            assert not got or got.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5", b"HTTP/1.0 4")), got[:200]
        assert_in(b" 431 ", huskd.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\nBig: " + b"x" * 200000 + b"\r\n\r\n")[:40])
        huskd.get("/healthz")


@test
def test_ambiguous_framing():
    """Where a body ends is said once: anything else is refused, and what follows is never a second request."""
    hidden = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
    with server() as huskd:
        for headers in (
            b"Content-Length: 0\r\nContent-Length: %d\r\n" % len(hidden),
            b"Content-Length: %d\r\nContent-Length: 0\r\n" % len(hidden),
            b"Content-Length: %d\r\nContent-Length: %d\r\n" % (len(hidden), len(hidden)),
            b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n" % len(hidden),
            b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
            b"Transfer-Encoding: gzip, chunked\r\n",
            b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
            b"Content-Length : %d\r\n" % len(hidden),
            b"Content-Length: +%d\r\n" % len(hidden),
        ):
            got = huskd.raw(b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n" + hidden, timeout=5)
            assert got.startswith(b"HTTP/1.1 400 "), (headers, got[:300])
            assert got.count(b"X-Request-Id") <= 1, (headers, got)
        assert "/hidden" not in huskd.log(), huskd.log()


@test
def test_idle_connections_keep_nobody_out():
    """More connections than the table has room for, from several addresses, none with a token."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    crowd = []
    with server() as huskd, token("known", "--admin") as secret:
        made = huskd.create()["id"]
        with socket.create_connection(("127.0.0.1", huskd.port), 30) as stream:
            stream.sendall(f"GET /v1/events?follow=true HTTP/1.1\r\nHost: x\r\nX-Husk-Token: {secret}\r\n\r\n".encode())
            assert stream.recv(4096).startswith(b"HTTP/1.1 200")
            try:
                for number in range(4600):
                    one = socket.socket()
                    crowd.append(one)
                    one.settimeout(30)
                    one.bind((f"127.0.0.{2 + number % 11}", 0))
                    one.connect(("127.0.0.1", huskd.port))
                    if number % 2:
                        with contextlib.suppress(ConnectionError):  # one past its address's share is closed at once
                            one.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")  # half a head
                    if number % 100 == 99:
                        huskd.get("/v1/sandboxes", token=secret)
                for _ in range(20):
                    huskd.get("/v1/sandboxes", token=secret)
                huskd.put(f"/v1/sandboxes/{made}/metadata", {"still": "here"})
                until(lambda: b"event: metadata" in stream.recv(65536), "a known client keeps its stream")
            finally:
                for one in crowd:
                    one.close()


@test
def test_a_slow_head_is_cut():
    with server() as huskd, socket.create_connection(("127.0.0.1", huskd.port), 5) as slow:
        slow.settimeout(1)
        begun, over = time.monotonic(), False
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        while not over and time.monotonic() - begun < 55:
            try:
                slow.sendall(b"x")
                over = slow.recv(100) == b""
            except TimeoutError:
                pass
            except ConnectionError:
                over = True
        assert over, "still open"


@test
def test_recovers_by_itself():
    """A supervisor that was killed is noticed although nobody asks."""
    with server() as huskd:
        made = huskd.create()["id"]
        os.kill(supervisor_pid(made), signal.SIGKILL)
        with contextlib.closing(sqlite3.connect(f"file:{HOME}/catalog.db?mode=ro", uri=True)) as catalog:
            def ended():
                return catalog.execute("SELECT state FROM sandboxes WHERE id = ?", (made,)).fetchone() == ("ended",)
            until(ended, "the row says so", seconds=120)
        until(lambda: "cleared up after 1 sandboxes" in huskd.log(), "the log says so, when all is cleared")


@test
def test_large_bodies():
    with server() as huskd:
        huskd.post("/v1/sandboxes", b" " * (16 * MIB) + b"{", status=413).error("too_large")
        # told before the body is sent: 100-continue
        head = b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n"
        answer = huskd.raw(head)
        assert answer.startswith(b"HTTP/1.1 413"), answer[:100]
        assert_in(b'"too_large"', answer)
        # without saying how long it is
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(huskd.socket_path)
            connection.sendall(b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            piece = b"%x\r\n" % MIB + b" " * MIB + b"\r\n"
            for _ in range(64):
                connection.sendall(piece)
            connection.sendall(b"0\r\n\r\n")
            assert_in(b" 413 ", connection.recv(4096))
        assert_memory(huskd, 40 * MIB, "after large bodies", seconds=10)


@test
def test_flood():
    """Bad requests, many at once and for a while: memory stays, and others are served."""
    with server() as huskd:

        def flood(number):
            for i in range(150):
                if number % 3 == 0:
                    huskd.get(f"/v1/nothing/{i}", status=404)
                elif number % 3 == 1:
                    huskd.get("/v1/sandboxes", status=401, token="husk_" + "x" * 40)
                else:
                    huskd.post("/v1/sandboxes", b'{"nothing":' + b'"x"' * 1000 + b"}", status=400)

        flood(0)
        before = huskd.memory()
        with concurrent.futures.ThreadPoolExecutor(9) as pool:
            work = [pool.submit(flood, number) for number in range(9)]
            while not all(each.done() for each in work):
                huskd.get("/healthz")
                time.sleep(0.05)
            for each in work:
                each.result()
        assert_memory(huskd, before + 8 * MIB, "after a flood")


# ---- streams ----


def idle_stream(huskd, path):
    """An open stream that nobody reads: the bare socket."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    connection.connect(huskd.socket_path)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    got = b""
    while b"\r\n\r\n" not in got:
        got += connection.recv(4096)
    assert got.startswith(b"HTTP/1.1 200"), got[:100]
    return connection


def assert_told(stream, event):
    """The event comes, perhaps after comments that keep the connection alive."""
    got = b""
    while event not in got:
        more = stream.recv(4096)
        assert more, f"the stream ended after {got}"
        got += more


@test
def test_thousand_streams():
    with server() as huskd:
        made = huskd.create()["id"]
        after = huskd.get(f"/v1/sandboxes/{made}/events").json()["events"][-1]["sequence"]
        streams = []
        try:
            for _ in range(1000):
                streams.append(idle_stream(huskd, f"/v1/events?follow=true&after={after}"))
            assert_memory(huskd, 100 * MIB, "1,000 idle streams")
            assert_in("husk_http_streams_open 1000", huskd.get("/metrics").text)
            huskd.get("/v1/sandboxes")
            huskd.put(f"/v1/sandboxes/{made}/metadata", {"tell": "all"})
            for stream in streams:
                assert_told(stream, b"event: metadata")
        finally:
            for stream in streams:
                stream.close()
        until(lambda: "husk_http_streams_open 0" in huskd.get("/metrics").text, "the streams of gone clients end")
        assert_memory(huskd, 60 * MIB, "after 1,000 streams", seconds=10)


@test
def test_slow_reader():
    """One that asks for much and reads nothing holds up nobody, and costs a bounded amount."""
    with server() as huskd:
        made = huskd.create()["id"]
        path = f"/v1/sandboxes/{made}/exec"
        body = json.dumps({"cmd": "head -c 50000000 /dev/zero | tr '\\0' x", "stream": True}).encode()
        slow = []
        try:
            for _ in range(5):
                connection = socket.socket(socket.AF_UNIX)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.connect(huskd.socket_path)
                head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)
                slow.append(connection)
            time.sleep(2)
            assert_equal(huskd.post(path, {"cmd": "echo others"}).json()["stdout"], "others\n")
            assert_memory(huskd, 64 * MIB, "five slow readers")
        finally:
            for connection in slow:
                connection.close()
        until(lambda: "husk_http_streams_open 0" in huskd.get("/metrics").text, "their streams end")


@test
def test_vanishing_clients():
    with server() as huskd:
        made = huskd.create()["id"]
        for _ in range(20):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(huskd.socket_path)
                connection.sendall(
                    f"PUT /v1/sandboxes/{made}/files?path=/tmp/half HTTP/1.1\r\n"
                    "Host: x\r\nContent-Length: 1000000\r\n\r\nabc".encode()
                )
        for _ in range(20):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(huskd.socket_path)
                connection.sendall(b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        until(lambda: "husk_http_requests_open 1\n" in huskd.get("/metrics").text, "their requests end")
        huskd.get(f"/v1/sandboxes/{made}/files/stat?path=/tmp/half", status=404)


# ---- the end of the server ----


def follow_output(huskd, made, pid, offset):
    """Reads a process's output until the server goes; the text and the offset reached."""
    text = ""
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        with huskd.stream("GET", f"/v1/sandboxes/{made}/processes/{pid}/output?stdout_offset={offset}") as events:
            for event in events:
                if event.kind == "stdout":
                    text += event.data["text"]
    return text, offset + len(text)


@test
def test_ten_kills():
    """kill -9 ten times: the sandbox, its processes, their output and its TTL are as before each time."""
    huskd = start_server()
    try:
        made = huskd.create(ttl_seconds=1200, metadata={"kept": "yes"})
        path = f"/v1/sandboxes/{made['id']}"
        pid = huskd.post(
            f"{path}/exec",
            {"cmd": "i=0; while true; do i=$((i+1)); echo $i; sleep 0.05; done", "detach": True},
            status=201,
        ).json()["pid"]
        text, offset = "", 0
        for _ in range(10):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                reading = pool.submit(follow_output, huskd, made["id"], pid, offset)
                time.sleep(0.4)
                huskd.kill()
                got, offset = reading.result(60)
            text += got
            end_server(huskd)
            huskd = start_server()
            now = huskd.get(path).json()
            assert_equal(now, made)
            running = huskd.get(f"{path}/processes").json()["processes"]
            assert_equal([each["running"] for each in running if each["pid"] == pid], [True])
        lines = text.split("\n")[:-1]
        assert len(lines) > 20, f"{len(lines)} lines in ten servers"
        assert_equal(lines, [str(n + 1) for n in range(len(lines))], "output across restarts")
        assert_equal(huskd.post(f"{path}/exec", {"cmd": "echo still"}).json()["stdout"], "still\n")
    finally:
        end_server(huskd)


@test
def test_graceful_stop():
    with server() as huskd:
        made = huskd.create()["id"]
        path = f"/v1/sandboxes/{made}/exec"
        idle = huskd.connect()
        idle.connect()
        with huskd.stream("POST", path, {"cmd": "echo one; sleep 2; echo two", "stream": True}) as events:
            until(lambda: next(events).kind == "stdout", "output")
            follower = threading.Thread(target=lambda: huskd.events("GET", "/v1/events?follow=true"))
            follower.start()
            time.sleep(0.3)
            huskd.process.send_signal(signal.SIGTERM)
            follower.join(10)
            assert not follower.is_alive(), "an endless stream ends at the beginning of the stop"
            refused = until(lambda: not os.path.exists(huskd.socket_path), "the socket goes at once")
            rest = list(events)
        assert_equal([event.data["text"] for event in rest if event.kind == "stdout"], ["two\n"])
        assert_equal(rest[-1].kind, "exit")
        assert_equal(huskd.process.wait(20), 0)
        idle.close()
        assert refused
        assert_in("stopped", huskd.log())


@test
def test_impatient_stop():
    for options, signals in ((("--stop-seconds", "1"), 1), ((), 2)):
        with server(*options) as huskd:
            made = huskd.create()["id"]
            with huskd.stream("POST", f"/v1/sandboxes/{made}/exec", {"cmd": "sleep 100", "stream": True}) as events:
                assert_equal(next(events).kind, "start")
                for _ in range(signals):
                    huskd.process.send_signal(signal.SIGTERM)
                    time.sleep(0.3)
                assert_equal(huskd.process.wait(10), 0)
                with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                    list(events)
        assert_equal(inspect(made)["state"], "running")


@test
def test_json_log():
    with server("--log", "json") as huskd, token("logged") as secret:
        huskd.get("/v1/sandboxes?metadata.password=hunter2", token=secret)
        huskd.get("/v1/sandboxes/none", status=404)
        lines = until(
            lambda: (found := [json.loads(line) for line in huskd.log().splitlines()]) and len(found) > 1 and found,
            "two lines",
        )
        first = lines[0]
        members = "time level process request message remote method route sandbox status ms bytes tenant"
        assert_equal(set(first), set(members.split()))
        assert_equal((first["level"], first["process"], first["message"]), ("info", "huskd", "request"))
        assert_equal(
            (first["method"], first["route"], first["status"], first["tenant"]), ("GET", "/v1/sandboxes", 200, "logged")
        )
        assert "hunter2" not in huskd.log() and secret not in huskd.log()


@test
def test_serve_command():
    process = start("serve", "--listen", "127.0.0.1:0")
    with ending(process):
        line = process.stdout.readline().decode()
        assert_in("listens on", line)
        assert_in("http://127.0.0.1:", line)
        process.send_signal(signal.SIGTERM)
        assert_equal(process.wait(20), 0)
    husk("serve", "--listen", "nowhere", code=2)
    husk("serve", "--cert", "/none", code=2)


main("base")
