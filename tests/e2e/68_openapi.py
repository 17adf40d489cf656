#!/usr/bin/env python3
"""docs/openapi.json against the server: every route is in it and nothing else, every operation is called, and every answer,
good or bad, is what the document says. The server's own list of routes comes from `huskd --routes`."""
# timeout: 300

import io
import json
import socket
import subprocess
import tarfile

from lib.harness import TOP, main, test
from lib.http import HUSKD, server, token
from lib.schema import problems
from lib.websocket import WebSocket

DOCUMENT = json.loads((TOP / "docs/openapi.json").read_text(encoding="utf-8"))
METHODS = {"get", "put", "post", "delete", "patch", "head"}


def operations():
    return {(method, path): each for path, item in DOCUMENT["paths"].items() for method, each in item.items()}


class Checked:
    """Calls operations by their id and checks each answer; remembers which were called."""

    def __init__(self, huskd):
        self.huskd = huskd
        self.by_id = {each["operationId"]: (method, path, each) for (method, path), each in operations().items()}
        self.called = set()

    def __call__(self, operation, /, body=None, status=200, query="", headers=None, **parameters):
        method, path, each = self.by_id[operation]
        for key, value in parameters.items():
            path = path.replace("{" + key + "}", str(value))
        assert "{" not in path, f"{operation}: parameters are missing in {path}"
        answer = self.huskd.call(method.upper(), path + query, body, status, headers=headers)
        self.check(operation, each, answer)
        return answer

    def check(self, name, each, answer):
        self.called.add(name)
        said = each["responses"].get(str(answer.status), each["responses"]["default"] if answer.status >= 400 else None)
        assert said, f"{name}: status {answer.status} is not in the document"
        kinds = said.get("content", {})
        kind = (answer.headers["Content-Type"] or "").split(";")[0]
        if not kinds:
            assert not answer.body, f"{name}: a body where the document has none: {answer}"
            return
        assert kind in kinds, f"{name}: {kind!r} is not one of {list(kinds)}"
        if kind == "application/json":
            wrong = problems(DOCUMENT, kinds[kind]["schema"], answer.json(), name)
            assert not wrong, "\n".join(wrong)


@test
def every_route_is_documented_and_every_documented_route_exists():
    lines = subprocess.run([HUSKD, "--routes"], capture_output=True, check=True, timeout=20, text=True).stdout.split("\n")
    served = {tuple(line.split()) for line in lines if line}
    # What is forwarded into a sandbox is the sandbox's to document, and MCP and E2B document their own.
    ours = ("/v1/", "/healthz", "/metrics", "/openapi.json")
    served = {(method.lower(), path.replace("*}", "}")) for method, path in served if method != "*" and path.startswith(ours)}
    assert served == set(operations()), f"differ: {served ^ set(operations())}"


@test
def the_document_is_whole():
    with server() as huskd:
        assert huskd.get("/openapi.json").json() == DOCUMENT
    assert DOCUMENT["openapi"].startswith("3.1")
    names = [each["operationId"] for each in operations().values()]
    assert len(names) == len(set(names)), "operation ids repeat"
    text = json.dumps(DOCUMENT)
    for name in DOCUMENT["components"]["schemas"]:
        assert f'"#/components/schemas/{name}"' in text, f"schema {name} is not used"
    for (method, path), each in operations().items():
        assert method in METHODS
        inside = {part[1:-1] for part in path.split("/") if part.startswith("{")}
        told = {p["name"] for p in each.get("parameters", []) if p["in"] == "path"}
        assert inside == told, f"{method} {path}: path parameters {told}"


def lifecycle(call, box):
    call("getSandbox", id=box)
    call("listSandboxes", query="?state=running&limit=1")
    call("patchSandbox", {"metadata": {"a": "1"}, "ttl_seconds": 500, "idle_seconds": 300}, id=box)
    call("extendSandbox", {"ttl_seconds": 400}, id=box)
    call("setMetadata", {"b": "2"}, id=box)
    for step in ("pause", "resume", "hibernate", "wake"):
        call(step + "Sandbox", id=box)
    children = call("forkSandbox", {"count": 2, "ttl_seconds": 100}, 201, id=box).json()["sandboxes"]
    for child in children:
        call("killSandbox", status=204, id=child["id"])
    call("stats", id=box)
    here = call("logs", id=box).headers["X-Husk-Position"]
    call("logs", id=box, query=f"?position={here}")
    call("logs", id=box, query="?position=there", status=400)
    call("sandboxEvents", id=box)
    call("events", query="?limit=3&wait_ms=10")
    made = call("createSnapshot", {"name": "conform"}, 201, id=box).json()
    call("listSnapshots")
    call("getSnapshot", id=made["id"])
    call("rebootSandbox", status=404, id="no-such-sandbox")
    machine = call("exportSnapshot", id=made["id"]).body
    call("removeSnapshot", status=204, id=made["id"])
    tar = {"Content-Type": "application/x-tar"}
    copy = call("importSnapshot", machine, 201, query="?name=conform-copy", headers=tar).json()
    call("removeSnapshot", status=204, id=copy["id"])
    call("importSnapshot", b"not a machine", 400, headers=tar)
    call("createCheckpoint", {"label": "conform"}, 201, id=box)
    call("listCheckpoints", id=box)
    call("listCheckpoints", id=box, query="?files=true")
    call("listCheckpoints", id=box, query="?files=some", status=400)
    call("rewindSandbox", {"checkpoint": "conform"}, id=box)
    call("removeCheckpoint", status=204, id=box, point="conform")
    call("rewindSandbox", status=404, id=box)
    call("diffSandbox", id=box)
    call("diffSystem", id=box)
    call("exploreSandbox", {"plans": ["true", "false"], "score": "echo 1", "promote": False}, id=box)
    call("exploreSandbox", {"plans": [], "score": "echo 1"}, status=400, id=box)
    child = call("forkSandbox", {"count": 1}, 201, id=box).json()["sandboxes"][0]["id"]
    call("mergeSandbox", {"from": child, "base": child, "dry_run": True}, id=box)
    call("mergeSandbox", {"from": child, "conflicts": "never"}, status=400, id=box)
    call("promoteSandbox", {"keep": True}, id=child)
    call("promoteSandbox", status=400, id=box)
    call("listEffects", id=box)
    call("getEffect", status=404, id=box, number="1")
    call("sendEffects", {}, id=box)
    call("sendEffects", {"effects": [7]}, status=404, id=box)
    call("dropEffects", id=box)
    call("diffSandbox", id=box, query=f"?against={box}&path=/root")
    call("diffSandbox", id=box, query="?against=nobody", status=404)
    call("tree", query="?all=true")
    call("tree", query=f"?of={box}")
    call("tree", status=404, query="?of=nobody")


def processes(call, box):
    call("exec", {"cmd": "echo hi; printf '\\377' >&2"}, id=box)
    call("exec", {"cmd": "echo hi", "stream": True}, id=box)
    pid = call("exec", {"cmd": "cat", "detach": True, "keep_stdin": True, "label": "l"}, 201, id=box).json()["pid"]
    call("listProcesses", id=box)
    call("stdin", b"abc", 204, "?close=true", id=box, pid=pid)
    call("attach", id=box, pid=pid)
    pid = call("exec", {"argv": ["sleep", "600"], "detach": True}, 201, id=box).json()["pid"]
    call("signal", {"signal": "KILL"}, 204, id=box, pid=pid)
    call("runCode", {"code": "1+1"}, id=box)
    call("runCode", {"code": "1/0"}, id=box)
    call("runCode", {"code": "2", "stream": True}, id=box)
    call("listContexts", id=box)
    call("restartContext", status=204, id=box, name="default")
    call("removeContext", status=204, id=box, name="default")


def files(call, box):
    call("writeFile", b"bytes", 201, "?path=/root/f/x", id=box)
    call("readFile", query="?path=/root/f/x", id=box)
    call("readFile", status=206, query="?path=/root/f/x", headers={"Range": "bytes=1-2"}, id=box)
    call("stat", query="?path=/root/f/x", id=box)
    call("listFiles", query="?path=/root/f&depth=1", id=box)
    call("mkdir", {"path": "/root/g/h"}, 201, id=box)
    call("move", {"path": "/root/f/x", "target": "/root/f/y"}, 200, id=box)
    call("chmod", {"path": "/root/f/y", "mode": "0600"}, 200, id=box)
    tar = call("readTar", query="?path=/root/f", id=box).body
    assert "y" in "".join(tarfile.open(fileobj=io.BytesIO(tar)).getnames())
    call("writeTar", tar, 204, "?path=/root/g", id=box)
    call("removeFile", status=204, query="?path=/root/f", id=box)
    call("signUrl", {"expires_seconds": 60}, id=box, port=8000)


def streams(call, box):
    """Those without an end of their own: the first event, or the handshake."""
    huskd = call.huskd
    with huskd.stream("GET", f"/v1/sandboxes/{box}/files/watch?path=/root") as events:
        huskd.put(f"/v1/sandboxes/{box}/files?path=/root/seen", b"x", 201)
        assert any(event.kind == "change" for event in events)
    call.called.add("watch")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(huskd.socket_path)
        WebSocket(connection, f"/v1/sandboxes/{box}/pty?cmd=sh&rows=24&columns=80")
    call.called.add("pty")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(huskd.socket_path)
        request = f"GET /v1/sandboxes/{box}/wire HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: husk-wire/%d\r\n\r\n"
        connection.sendall((request % 1).encode())
        assert connection.recv(12) == b"HTTP/1.1 101", "no upgrade"
    call.called.add("wire")
    call("wire", status=400, id=box)
    call("wire", status=400, id=box, headers={"Connection": "Upgrade", "Upgrade": "husk-wire/99"})


def desktop(call, box):
    """This machine has none; 78_desktop.py compares answers of one that has."""
    for operation in ("getDesktop", "getScreenshot", "getClipboard", "listWindows", "readTree"):
        call(operation, status=503, id=box)
    call("actOnDesktop", {"actions": [{"action": "left_click"}], "screenshot": True}, 503, id=box)
    call("actOnDesktop", {"action": []}, 400, id=box)
    call("resizeDesktop", {"width": 1280, "height": 800}, 503, id=box)
    call("resizeDesktop", {"width": 1}, 400, id=box)
    call("setClipboard", {"text": "x"}, 503, id=box)
    call("moveWindow", {"focus": True}, 503, id=box, window=5)
    call("closeWindow", status=503, id=box, window=5)
    call("closeWindow", status=400, id=box, window="x")


def network(call, box):
    call("getEgress", id=box)
    call("setEgress", {"allow": ["example.test", "10.9.8.0/24:443"], "limits": {"rate": "1M"}}, id=box)
    call("exec", {"cmd": "getent hosts denied.test; true"}, id=box)
    assert call("egressLog", query="?limit=10", id=box).json()["events"], "a denied lookup is not in the log"
    call("setEgress", {"mode": "off"}, id=box)
    call("setEgress", {"allow": ["not a host"]}, 400, id=box)


def desktop_view(call, box):
    """Of a sandbox without a desktop; tests/e2e/79_desktop_view.py has the others."""
    call("desktopUrl", {"view_only": False, "expires_seconds": 60}, id=box)
    call("desktopUrl", {"expires_seconds": 0}, 400, id=box)
    assert b"desktop.js" in call("desktopView", id=box).body
    assert b"import" in call("asset", name="desktop.js").body
    call("asset", status=404, name="none.js")
    call("desktopControl", id=box)
    call("requestHuman", {"reason": "log in"}, id=box)
    call("takeControl", {"name": "Ada", "holder": "one", "ttl_seconds": 30}, id=box)
    call("takeControl", {"name": "Bob"}, 409, id=box)
    call("giveBackControl", status=409, query="?holder=two", id=box)
    call("giveBackControl", status=204, query="?holder=one", id=box)
    assert call("desktopControl", id=box).json()["request"]["state"] == "done"
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg=="}
    call("desktopVnc", status=409, id=box, headers=upgrade)
    call("startRecording", {"max_seconds": 5}, 409, id=box)
    call("startRecording", {"max_bytes": "1"}, 400, id=box)
    call("listRecordings", id=box)
    for name in ("getRecording", "removeRecording", "stopRecording", "recordedScreen", "recordedActions"):
        call(name, status=404, id=box, recording="rec-none")
    call("exportRecording", status=404, query="?format=json", id=box, recording="rec-none")
    call("exportRecording", status=400, query="?format=gif", id=box, recording="rec-none")
    call("startBrowser", {"url": "https://example.test/"}, 409, id=box)
    call("startBrowser", {"url": "--version"}, 400, id=box)
    call("saveProfile", status=503, id=box)
    call("loadProfile", b"no tar", 503, id=box, headers={"Content-Type": "application/x-tar"})
    call("browserCdp", status=409, id=box, headers=upgrade)
    call("browserTarget", status=409, id=box, rest="page/F00", headers=upgrade)
    call("browserJson", status=409, id=box, rest="version")


def volumes(call):
    made = call("createVolume", {"name": "conform", "size": "64M"}, 201).json()
    volume = made["id"]
    try:
        call("createVolume", {"name": "conform"}, 409)
        call("createVolume", {"name": "no/name"}, 400)
        call("listVolumes")
        call("getVolume", id="conform")
        call("writeVolumeFile", b"bytes", 201, "?path=/a/b&mode=0600&uid=5", id=volume)
        assert call("readVolumeFile", query="?path=/a/b", id=volume).body == b"bytes"
        call("statVolumeFile", query="?path=/a/b", id=volume)
        call("statVolumeFile", status=404, query="?path=/a/c", id=volume)
        call("listVolumeFiles", query="?path=/&depth=2", id=volume)
        call("mkdirVolume", {"path": "/d/e", "mode": "0700"}, 201, id=volume)
        call("changeVolumeFile", {"path": "/a/b", "mode": "0640", "gid": 7}, id=volume)
        box = call("createSandbox", {"volumes": [{"volume": "conform", "path": "/data"}]}, 201).json()
        assert box["volumes"] == [{"volume": "conform", "path": "/data", "read_only": False}]
        call("removeVolume", status=409, id=volume)
        call("killSandbox", status=204, id=box["id"])
        call("createSandbox", {"volumes": [{"volume": "conform", "path": "relative"}]}, 400)
        call("removeVolumeFile", status=204, query="?path=/a", id=volume)
    finally:
        call("removeVolume", status=204, id=volume)


def instance(call):
    call("health")
    call("openapi")
    call("metrics")
    call("doctor")
    call("leaks")
    call("gc", {"all": False})
    call("drainPool")
    call("createToken", {"name": "conform-made", "tenant": "conform", "max_sandboxes": 3, "ttl_seconds": 60}, 201)
    call("createToken", {"name": "conform-made"}, 409)
    call("createToken", {"name": "No Name"}, 400)
    assert "token" not in call("listTokens").json()["tokens"][-1]
    call("revokeToken", status=204, id="conform-made")
    call("revokeToken", status=404, id="conform-made")
    call("listTemplates")
    call("buildTemplate", {"name": "base", "bundled": "base"})
    head = {"Content-Type": "multipart/form-data; boundary=B"}
    part = '--B\r\nContent-Disposition: form-data; name="options"\r\n\r\n'
    call("buildDockerfile", part + '{"name": "conform", "dockerfile": "FROM scratch AS x\\nFETCH x\\n"}\r\n--B--\r\n', headers=head)
    call("buildDockerfile", part + '{"name": "conform"}\r\n--B--\r\n', 400, headers=head)
    call("removeTemplate", status=404, name="no-such-template")
    call("exportTemplate", status=404, name="no-such-template")
    call("importTemplate", b"not a machine", 400, headers={"Content-Type": "application/x-tar"})


@test
def every_operation_answers_as_documented():
    with server() as huskd:
        call = Checked(huskd)
        made = call("createSandbox", {"metadata": {"t": "openapi"}, "env": {"A": "b"}}, 201).json()
        box = made["id"]
        try:
            lifecycle(call, box)
            processes(call, box)
            files(call, box)
            streams(call, box)
            desktop(call, box)
            network(call, box)
            desktop_view(call, box)
            volumes(call)
            instance(call)
        finally:
            call("killSandbox", status=204, id=box)
        missing = set(call.by_id) - call.called
        assert not missing, f"never called: {missing}"


@test
def errors_are_as_documented():
    with server() as huskd, token("conform-errors") as secret:
        call = Checked(huskd)
        call("getSandbox", status=404, id="sb-none")
        call("createSandbox", {"tlt_seconds": 3}, 400)
        call("createSandbox", {"ttl_seconds": "soon"}, 400)
        call("createSandbox", b"{", 400)
        call("createSandbox", {"template": "none"}, 404)
        call("createSandbox", {"egress": "most"}, 400)
        call("createSandbox", {"egress": {"alow": []}}, 400)
        call("removeSnapshot", status=404, id="sn-none")
        call("listSandboxes", status=400, query="?limit=-1")
        for path, method in (("/v1/nothing", "GET"), ("/v1/sandboxes", "DELETE")):
            wrong = huskd.call(method, path, None, None)
            assert not problems(DOCUMENT, DOCUMENT["components"]["schemas"]["Error"], wrong.json())
        denied = huskd.get("/v1/sandboxes", 401, token="husk_wrong")
        assert not problems(DOCUMENT, DOCUMENT["components"]["schemas"]["Error"], denied.json())
        huskd.get("/v1/sandboxes", token=secret)


if __name__ == "__main__":
    main("base")
