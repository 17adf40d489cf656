"""The unmodified `e2b` package from PyPI against a Husk server, method by method, with Sandbox or AsyncSandbox
($HUSK_COMPAT_MODE). What a version does not have has a dash in the table."""

import asyncio
import datetime
import inspect
import io
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid

import e2b
from kit import ASYNC, Absent, check, equal, every, fails, now, run_all, until

Sandbox = e2b.AsyncSandbox if ASYNC else e2b.Sandbox
Template = e2b.AsyncTemplate if ASYNC else e2b.Template
Volume = e2b.AsyncVolume if ASYNC else e2b.Volume
Secret = getattr(e2b, "AsyncSecret" if ASYNC else "Secret", None)
RUN = uuid.uuid4().hex[:8]
UUID = r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
NOT_RUNNING = getattr(e2b, "SandboxNotRunningException", e2b.TimeoutException)  # what is documented for one that was killed or is paused
BOOT_ID = "/proc/sys/kernel/random/boot_id"
made, shared = [], {}


async def create(*arguments, **named):
    sandbox = await now(Sandbox.create(*arguments, **{"timeout": 120, **named}))
    made.append(sandbox)
    return sandbox


def box():
    return shared["box"]


def needs(thing, name):
    if not hasattr(thing, name):
        raise Absent(f"this version has no {name}")


async def shell(line, **named):
    return (await now(box().commands.run(line, **named))).stdout


def http_get(host, path="/", **headers):
    """By the Host header: not every resolver knows *.localhost."""
    server = os.environ["E2B_API_URL"]
    request = urllib.request.Request(server + path, headers={"Host": host, **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


# ---- sandboxes


@check("Sandbox.create")
async def _():
    metadata = {"run": RUN, "purpose": "shared & common"}
    shared["box"] = await create(timeout=900, metadata=metadata, envs={"GREETING": "hello there"})
    assert box().sandbox_id
    equal(await shell("echo $GREETING; id -un; pwd"), "hello there\nuser\n/home/user\n")


@check("Sandbox.create (unknown template, wrong key, bad timeout)")
async def _():
    await fails(e2b.SandboxException, Sandbox.create, "no-such-template", says="not found")
    await fails(e2b.AuthenticationException, Sandbox.create, api_key="e2b_" + "0" * 40)
    await fails(e2b.SandboxException, Sandbox.create, timeout=-5, says="400")


@check("Sandbox.create (idempotency_key)")
async def _():
    if "idempotency_key" not in inspect.signature(Sandbox.create).parameters:
        raise Absent("this version has no idempotency_key")
    one, two = [await create(idempotency_key=f"key-{RUN}") for _ in range(2)]
    equal(one.sandbox_id, two.sandbox_id)
    await now(one.kill())


@check("Sandbox.connect")
async def _():
    other = await now(Sandbox.connect(box().sandbox_id))
    equal((await now(other.commands.run("echo connected"))).stdout, "connected\n")
    await now(box().connect(timeout=900))
    await fails(e2b.SandboxException, Sandbox.connect, "sb-aaaaaaaaaa", says="not found")


@check("sandbox.get_info")
async def _():
    info = await now(box().get_info())
    equal((info.sandbox_id, info.template_id, info.state.value), (box().sandbox_id, "base", "running"))
    equal(info.metadata, {"run": RUN, "purpose": "shared & common"})
    assert info.end_at - info.started_at > datetime.timedelta(seconds=800)
    equal((await now(Sandbox.get_info(box().sandbox_id))).sandbox_id, box().sandbox_id)
    await fails(e2b.NotFoundException, Sandbox.get_info, "sb-aaaaaaaaaa")


@check("Sandbox.list")
async def _():
    other = await create(metadata={"run": RUN, "number": "2"})
    ids = lambda found: [each.sandbox_id for each in found]
    listing = lambda **query: Sandbox.list(query=e2b.SandboxQuery(**{"metadata": {"run": RUN}, **query}), limit=1)
    equal(ids(await every(listing())), [other.sandbox_id, box().sandbox_id])
    equal(ids(await every(listing(metadata={"run": RUN, "number": "2"}))), [other.sandbox_id])
    equal(ids(await every(listing(state=[e2b.SandboxState.PAUSED]))), [])
    if "template" in e2b.SandboxQuery.__annotations__:
        equal(ids(await every(listing(template="base"))), [other.sandbox_id, box().sandbox_id])
        started = (await now(other.get_info())).started_at
        equal(ids(await every(listing(started_after=started))), [other.sandbox_id])
    await now(other.kill())


@check("sandbox.is_running, set_timeout")
async def _():
    equal(await now(box().is_running()), True)
    await now(box().set_timeout(900))
    left = (await now(box().get_info())).end_at - datetime.datetime.now(datetime.timezone.utc)
    assert abs(left.total_seconds() - 900) < 30, left
    await now(Sandbox.set_timeout(box().sandbox_id, 900))
    await fails(e2b.NotFoundException, Sandbox.set_timeout, "sb-aaaaaaaaaa", 10)


@check("sandbox.kill")
async def _():
    other = await create()
    running = await now(other.commands.run("sleep 1000", background=True, timeout=0))
    equal(await now(other.kill()), True)
    equal(await now(other.kill()), False)
    equal(await now(Sandbox.kill(other.sandbox_id)), False)
    equal(await now(Sandbox.kill("sb-aaaaaaaaaa")), False)
    equal(await now(other.is_running()), False)
    await fails(e2b.SandboxException, running.wait)
    await fails(NOT_RUNNING, other.commands.run, "true")
    await fails(NOT_RUNNING, other.files.read, "x")


@check("a command whose sandbox is killed")
async def _():
    other = await create()
    killer = threading.Timer(2, e2b.Sandbox.kill, [other.sandbox_id])
    killer.start()
    try:
        await fails(NOT_RUNNING, other.commands.run, "sleep 1000", timeout=0, says="was killed or reached its end of life")
    finally:
        killer.join()


@check("sandbox timeout")
async def _():
    other = await create(timeout=1)
    await until(lambda: gone(other), "the sandbox ends")
    if hasattr(Sandbox, "fork"):  # clients before it take 0 for their default
        none = await create(timeout=0)
        await until(lambda: gone(none), "a timeout of 0 ends it at once")


async def gone(sandbox):
    return not await now(sandbox.is_running())


@check("sandbox.pause and connect")
async def _():
    other = await create(metadata={"run": RUN})
    await now(other.commands.run("echo kept > kept.txt"))
    counter = await now(other.commands.run("while true; do sleep 0.1; done", background=True, timeout=0))
    await now(other.pause())
    equal((await now(other.get_info())).state.value, "paused")
    paused = await every(Sandbox.list(query=e2b.SandboxQuery(metadata={"run": RUN}, state=[e2b.SandboxState.PAUSED])))
    equal([each.sandbox_id for each in paused], [other.sandbox_id])
    await fails(NOT_RUNNING, other.commands.run, "true")
    await fails(NOT_RUNNING, other.files.read, "kept.txt")
    again = await now(other.connect(timeout=60))
    equal(await now(again.files.read("kept.txt")), "kept\n")
    assert any(each.pid == counter.pid for each in await now(again.commands.list())), "processes survive"
    await now(Sandbox.pause(other.sandbox_id))
    await now(Sandbox.connect(other.sandbox_id, timeout=60))
    await now(again.kill())
    await fails(e2b.NotFoundException, Sandbox.pause, "sb-aaaaaaaaaa")


@check("sandbox.pause (keep_memory=False)")
async def _():
    other = await create()
    await now(other.files.write("kept.txt", "on disk"))
    boots = [await now(other.files.read(BOOT_ID))]
    for _ in range(2):
        await now(other.commands.run("sleep 1000", background=True, timeout=0))
        await now(other.pause(keep_memory=False))
        again = await now(Sandbox.connect(other.sandbox_id, timeout=60))
        equal(await now(again.files.read("kept.txt")), "on disk")
        equal(await now(again.commands.list()), [])
        boots.append(await now(again.files.read(BOOT_ID)))
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n", boots[-1]), boots
    equal(len(set(boots)), 3)
    await now(again.pause())
    await now(Sandbox.connect(other.sandbox_id, timeout=60))
    equal(await now(again.files.read(BOOT_ID)), boots[-1])  # a pause with its memory is no boot
    await now(again.kill())


@check("Sandbox.create (lifecycle)")
async def _():
    other = await create(timeout=60, lifecycle={"on_timeout": "pause", "auto_resume": True})
    equal(dict((await now(other.get_info())).lifecycle), {"on_timeout": "pause", "auto_resume": True})
    await now(other.set_timeout(1))
    await until(lambda: state_is(other, "paused"), "it pauses itself")
    equal((await now(other.commands.run("echo awake"))).stdout, "awake\n")
    await now(other.kill())


async def state_is(sandbox, state):
    return (await now(sandbox.get_info())).state.value == state


@check("sandbox.fork")
async def _():
    needs(Sandbox, "fork")
    await now(box().files.write("forked.txt", "before"))
    children = await now(box().fork(timeout=60, count=2))
    made.extend(children)
    for child in children:
        equal(await now(child.files.read("forked.txt")), "before")
        await now(child.files.write("forked.txt", child.sandbox_id))
    equal(await now(box().files.read("forked.txt")), "before")
    for child in children:
        await now(child.kill())


@check("sandbox.create_snapshot, list_snapshots, delete_snapshot")
async def _():
    await now(box().files.write("snapped.txt", "in the snapshot"))
    snapshot = await now(box().create_snapshot())
    found = await every(box().list_snapshots())
    equal([each.snapshot_id for each in found], [snapshot.snapshot_id])
    other = await create(snapshot.snapshot_id)
    equal(await now(other.files.read("snapped.txt")), "in the snapshot")
    await now(other.kill())
    equal(await now(Sandbox.delete_snapshot(snapshot.snapshot_id)), True)
    equal(await now(Sandbox.delete_snapshot(snapshot.snapshot_id)), False)


@check("sandbox.get_metrics")
async def _():
    metrics = await now(box().get_metrics())
    assert metrics and metrics[-1].mem_total >= 512 << 20 and metrics[-1].disk_total > 0, metrics
    await fails(e2b.SandboxException, Sandbox.get_metrics, "sb-aaaaaaaaaa")


@check("sandbox.get_host")
async def _():
    host = box().get_host(8123)
    equal(http_get(host)[0], 502)
    assert "port is not open" in http_get(host)[1]
    await now(box().files.write("www/index.html", "a page from inside"))
    server = await now(box().commands.run("python3 -m http.server 8123 --directory www", background=True, timeout=0))
    await until(lambda: http_get(host) == (200, "a page from inside"), "the server inside answers")
    await now(server.kill())
    other = await create(network={"allow_public_traffic": False})
    closed = other.get_host(8123)
    equal(http_get(closed)[0], 403)
    equal(http_get(closed, **{"e2b-traffic-access-token": other.traffic_access_token})[0], 502)
    await now(other.kill())
    equal(http_get(closed)[0], 502)
    assert "The sandbox was not found" in http_get(closed)[1]


@check("sandbox.update_network, allow_internet_access")
async def _():
    reach = "timeout 5 bash -c '</dev/tcp/192.0.2.1/80' 2>/dev/null && echo open || echo closed"
    other = await create(allow_internet_access=False)
    equal((await now(other.commands.run(reach))).stdout, "closed\n")
    await now(other.update_network({"deny_out": ["0.0.0.0/0"], "allow_out": ["198.51.100.7"]}))
    network = (await now(other.get_info())).network
    equal((network["allow_out"], network["deny_out"]), (["198.51.100.7"], ["0.0.0.0/0"]))
    await now(other.kill())


@check("Sandbox.create (mcp)")
async def _():
    """The gateway is a program of the template: one that says how it was started."""
    other = await create()
    gateway = '#!/bin/sh\nmkdir -p /etc/mcp-gateway\nprintf %s "$GATEWAY_ACCESS_TOKEN" > /etc/mcp-gateway/.token\necho "$*" > /tmp/started\n'
    await now(other.files.write("/usr/local/bin/mcp-gateway", gateway, user="root"))
    await now(other.commands.run("chmod 755 /usr/local/bin/mcp-gateway", user="root"))
    template = (await now(other.create_snapshot())).snapshot_id
    await now(other.kill())
    other = await now(Sandbox.create(template, timeout=300, mcp={"duckduckgo": {}}))
    equal(await now(other.files.read("/tmp/started", user="root")), '--config {"duckduckgo": {}}\n')
    equal(await now((await now(Sandbox.connect(other.sandbox_id))).get_mcp_token()), await now(other.get_mcp_token()))
    await now(other.kill())
    await now(Sandbox.delete_snapshot(template))
    mark = {"mcp": RUN}
    await fails(Exception, Sandbox.create, "base", timeout=300, metadata=mark, mcp={"duckduckgo": {}}, says="mcp-gateway")
    for left in await every(Sandbox.list(query=e2b.SandboxQuery(metadata=mark))):  # by a client that does not clean up
        await now(Sandbox.kill(left.sandbox_id))
    await fails(e2b.SandboxException, Sandbox.create, mcp={"duckduckgo": {}}, says="mcp-gateway")


# ---- commands


@check("commands.run")
async def _():
    done = await now(box().commands.run("echo out; echo err >&2"))
    equal((done.stdout, done.stderr, done.exit_code), ("out\n", "err\n", 0))
    error = await fails(e2b.CommandExitException, box().commands.run, "echo said; exit 7")
    equal((error.exit_code, error.stdout), (7, "said\n"))
    equal(await shell("pwd; echo $X", cwd="/tmp", envs={"X": "é ☃"}), "/tmp\né ☃\n")
    marks = "echo $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID"
    equal(await shell(marks), f"true {box().sandbox_id} {(await now(box().get_info())).template_id}\n")
    equal(await shell("cd /run/e2b; echo $(cat .E2B_SANDBOX) $(cat .E2B_SANDBOX_ID) $(cat .E2B_TEMPLATE_ID)"), await shell(marks))
    equal(await shell(marks, envs={"E2B_SANDBOX": "mine"}), f"mine {box().sandbox_id} {(await now(box().get_info())).template_id}\n")
    equal(await shell("sudo id -un"), "root\n")
    equal(await shell("id -un; pwd", user="root"), "root\n/root\n")
    await fails(e2b.AuthenticationException, box().commands.run, "true", user="nobody-here")
    await fails(e2b.SandboxException, box().commands.run, "true", cwd="/no/such/directory")
    await fails(e2b.TimeoutException, box().commands.run, "sleep 30", timeout=1)
    equal(len(await shell("head -c 3000000 /dev/zero | tr '\\0' x")), 3000000)
    equal(await shell("cat; echo no stdin"), "no stdin\n")


@check("commands.run (out of memory)")
async def _():
    error = await fails(e2b.CommandExitException, box().commands.run, "python3 -c 'bytearray(3 * 10**9)'", says="ran out of memory")
    assert error.exit_code != 0 and "memory_mb" in error.stderr, error.stderr
    equal(await shell("echo lives"), "lives\n")


@check("commands.run (callbacks)")
async def _():
    heard = []
    named = {"on_stdout": lambda text: heard.append(("out", text)), "on_stderr": lambda text: heard.append(("err", text))}
    await now(box().commands.run("echo one; sleep 0.3; echo two >&2", **named))
    equal(heard, [("out", "one\n"), ("err", "two\n")])


@check("commands.run (many at once)")
async def _():
    if ASYNC:
        done = await asyncio.gather(*[box().commands.run(f"echo {i}") for i in range(20)])
        equal([each.stdout for each in done], [f"{i}\n" for i in range(20)])
        return
    found = {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: box().commands.run(f"echo {i}").stdout})) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(found, {i: f"{i}\n" for i in range(20)})


@check("commands.run (background), handle.kill, wait, disconnect")
async def _():
    handle = await now(box().commands.run("echo begun; sleep 1000", background=True, timeout=0))
    assert any(each.pid == handle.pid for each in await now(box().commands.list()))
    equal(await now(handle.kill()), True)
    await fails(e2b.CommandExitException, handle.wait)
    short = await now(box().commands.run("sleep 0.3; echo end", background=True))
    equal((await now(short.wait())).stdout, "end\n")
    left = await now(box().commands.run("sleep 1000", background=True, timeout=0))
    await now(left.disconnect())
    assert any(each.pid == left.pid for each in await now(box().commands.list())), "it runs on"
    equal(await now(box().commands.kill(left.pid)), True)
    equal(await now(box().commands.kill(left.pid)), False)


@check("commands.send_stdin, close_stdin")
async def _():
    handle = await now(box().commands.run("cat", background=True, stdin=True, timeout=0))
    await now(box().commands.send_stdin(handle.pid, "one\n"))
    await now(handle.send_stdin("zwei ☃\n"))
    await now(box().commands.close_stdin(handle.pid))
    equal((await now(handle.wait())).stdout, "one\nzwei ☃\n")
    await fails(e2b.NotFoundException, box().commands.send_stdin, 99999, "x")


@check("commands.stream_input")
async def _():
    needs(box().commands, "stream_input")
    handle = await now(box().commands.run("cat", background=True, stdin=True, timeout=0))
    if ASYNC:
        async with await now(box().commands.stream_input(handle.pid)) as stream:
            for piece in ("one\n", b"two\n"):
                await stream.send(piece)
    else:
        box().commands.stream_input(handle.pid, iter(["one\n", b"two\n"]))
    await now(box().commands.close_stdin(handle.pid))
    equal((await now(handle.wait())).stdout, "one\ntwo\n")


@check("commands.connect")
async def _():
    first = await now(box().commands.run("echo before; sleep 2; echo after", background=True, timeout=0))
    await now(first.disconnect())
    again = await now(box().commands.connect(first.pid))
    done = await now(again.wait())
    assert done.stdout.endswith("after\n"), done.stdout
    await fails(e2b.NotFoundException, box().commands.connect, 99999)


@check("pty.create, send_stdin, resize, kill, connect")
async def _():
    seen = []
    size = e2b.PtySize(rows=24, cols=80)
    if ASYNC:
        handle = await box().pty.create(size, on_data=lambda data: seen.append(data), timeout=0)
    else:
        handle = box().pty.create(size, timeout=0)
    await now(box().pty.resize(handle.pid, e2b.PtySize(rows=30, cols=100)))
    await now(box().pty.send_stdin(handle.pid, b"stty size; echo $TERM; exit 3\n"))
    await now(box().pty.connect(handle.pid, *([lambda data: None] if ASYNC else [])))
    named = {} if ASYNC else {"on_pty": seen.append}
    error = await fails(e2b.CommandExitException, handle.wait, **named)
    equal(error.exit_code, 3)
    text = b"".join(seen).decode()
    assert "30 100" in text and "xterm" in text, text
    other = await now(box().pty.create(size, *([lambda data: None] if ASYNC else []), timeout=0))
    equal(await now(box().pty.kill(other.pid)), True)
    equal(await now(box().pty.kill(other.pid)), False)


# ---- files


@check("files.write and read")
async def _():
    files = box().files
    wrote = await now(files.write("dir/ünï code ☃.txt", "héllo"))
    equal((wrote.name, wrote.path), ("ünï code ☃.txt", "/home/user/dir/ünï code ☃.txt"))
    equal(await now(files.read("dir/ünï code ☃.txt")), "héllo")
    await now(files.write("~/tilde", b"\x00\xff"))
    equal(bytes(await now(files.read("/home/user/tilde", format="bytes"))), b"\x00\xff")
    await now(files.write("empty", ""))
    equal(await now(files.read("empty")), "")
    await now(files.write("stream", io.BytesIO(b"from a stream")))
    pieces = await now(files.read("stream", format="stream"))
    equal(b"".join([piece async for piece in pieces] if ASYNC else list(pieces)), b"from a stream")
    many = await now(files.write_files([{"path": f"many/{i}", "data": str(i)} for i in range(10)]))
    equal([each.name for each in many], [str(i) for i in range(10)])
    equal(await shell("cat many/*"), "0123456789")
    await now(files.write("/root/of-root", "x", user="root"))
    equal(await shell("stat -c %U /root/of-root", user="root"), "root\n")


@check("files.write and read (100 MB)")
async def _():
    big = os.urandom(1 << 20) * 100
    await now(box().files.write("big", big, request_timeout=120))
    back = await now(box().files.read("big", format="bytes", request_timeout=120))
    assert bytes(back) == big, "it comes back as it was"
    await now(box().files.remove("big"))


@check("files.write in place")
async def _():
    files = box().files
    await now(files.write("place.txt", "a long first content"))
    await shell("chmod 755 place.txt && ln place.txt hard.txt && ln -sf place.txt soft.txt")
    await shell("chown root:root /home/user/place.txt", user="root")
    await now(files.write("soft.txt", "second"))
    equal(await shell("stat -c '%a %U %h' place.txt; cat hard.txt; test -L soft.txt && echo link"), "755 root 2\nsecondlink\n")
    await now(files.remove("place.txt"))


@check("files errors")
async def _():
    files = box().files
    await fails(e2b.NotFoundException, files.read, "no/such/file")
    await fails(e2b.InvalidArgumentException, files.read, "/etc")
    await fails(e2b.InvalidArgumentException, files.write, "/etc", "x")
    await fails(e2b.NotFoundException, files.list, "no/such/directory")
    await fails(e2b.InvalidArgumentException, files.list, "/etc/passwd")
    await fails(e2b.AuthenticationException, files.write, "x", "y", user="nobody-here")


@check("files.list, exists, get_info")
async def _():
    files = box().files
    await shell("mkdir -p tree/sub && echo text > tree/file && ln -sf file tree/link && ln -sf ../../../etc tree/up && touch tree/sub/deep")
    found = await now(files.list("tree"))
    equal([each.name for each in found], ["file", "link", "sub", "up"])
    equal([each.symlink_target for each in found], [None, "/home/user/tree/file", None, "/etc"])
    equal([each.type.value for each in found[:3]], ["file", "file", "dir"])
    assert "/home/user/tree/sub/deep" in [each.path for each in await now(files.list("tree", depth=2))]
    equal([await now(files.exists(path)) for path in ("tree", "tree/file", "tree/none")], [True, True, False])
    info = await now(files.get_info("tree/file"))
    equal((info.size, info.permissions, info.owner, info.group), (5, "-rw-r--r--", "user", "user"))
    await fails(e2b.NotFoundException, files.get_info, "tree/none")


@check("files.make_dir, rename, remove")
async def _():
    files = box().files
    equal(await now(files.make_dir("new/deep")), True)
    equal(await now(files.make_dir("new/deep")), False)
    await now(files.write("new/a", "moved"))
    moved = await now(files.rename("new/a", "new/deep/b"))
    equal(moved.path, "/home/user/new/deep/b")
    equal(await now(files.read("new/deep/b")), "moved")
    await fails(e2b.NotFoundException, files.rename, "new/none", "new/x")
    await now(files.remove("new"))
    await now(files.remove("new"))
    equal(await now(files.exists("new")), False)


@check("files.watch_dir")
async def _():
    files, events = box().files, []
    await now(files.make_dir("watched"))
    await now(files.write("watched/old", "x"))
    if ASYNC:
        handles = [await files.watch_dir("watched", on_event=events.append) for _ in range(5)]
    else:
        handles = [files.watch_dir("watched") for _ in range(5)]

    def take():
        if not ASYNC:
            events.extend(handles[0].get_new_events())
        return [(each.type.value, each.name) for each in events]

    await now(files.write("watched/old", "y" * (1 << 20)))
    await now(files.write("watched/new", "z"))
    await now(files.rename("watched/new", "watched/newer"))
    await now(files.remove("watched/newer"))
    copies = 5 if ASYNC else 1
    await until(lambda: take().count(("remove", "newer")) == copies, "the last change is told")
    wanted = [("write", "old"), ("create", "new"), ("chmod", "new"), ("write", "new")]
    wanted += [("rename", "new"), ("create", "newer"), ("remove", "newer")]
    equal(sorted(take()), sorted(wanted * copies))
    if not ASYNC:  # an answer has every change that happened before the question
        for i in range(20):
            files.write(f"watched/{i}", "x")
            equal([(each.type.value, each.name) for each in handles[0].get_new_events()], [(kind, str(i)) for kind in ("create", "chmod", "write")])
            files.write(f"watched/{i}", "y")
            equal([(each.type.value, each.name) for each in handles[0].get_new_events()], [("write", str(i))])
    for handle in handles:
        await now(handle.stop())
    listener = [events.append] if ASYNC else []
    await fails(e2b.SandboxException, files.watch_dir, "no/such/directory", *listener)
    await fails(e2b.SandboxException, files.watch_dir, "/etc/passwd", *listener)


@check("files.watch_dir (recursive)")
async def _():
    files, events = box().files, []
    await now(files.make_dir("deep/down"))
    handle = await now(files.watch_dir("deep", *([events.append] if ASYNC else []), recursive=True))
    await now(files.write("deep/down/file", "x"))

    def seen():
        if not ASYNC:
            events.extend(handle.get_new_events())
        return any(each.name == "down/file" and each.type.value == "write" for each in events)

    await until(seen, "a change below is told")
    assert not any(".husk" in each.name for each in events), events
    await now(handle.stop())


@check("sandbox.download_url, upload_url")
async def _():
    await now(box().files.write("signed.txt", "signed content"))

    def fetch(url, data=None, content=None):
        request = urllib.request.Request(url, data=data, headers={"Content-Type": content} if content else {})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    equal(fetch(box().download_url("signed.txt")), (200, "signed content"))
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nuploaded\r\n--b--\r\n'
    status, _ = fetch(box().upload_url("up.txt", use_signature_expiration=60), form, "multipart/form-data; boundary=b")
    equal((status, await now(box().files.read("up.txt"))), (200, "uploaded"))
    status, text = fetch(box().download_url("signed.txt", use_signature_expiration=-10))
    assert status == 401 and "signature is already expired" in text, (status, text)


@check("git")
async def _():
    git, repo = box().git, "/home/user/repo"
    await now(git.init(repo, initial_branch="main"))
    await now(git.configure_user("Tester", "tester@example.org"))
    await now(box().files.write(f"{repo}/a.txt", "a"))
    equal(len((await now(git.status(repo))).file_status), 1)
    await now(git.add(repo))
    await now(git.commit(repo, "first"))
    equal((await now(git.status(repo))).is_clean, True)
    await now(git.create_branch(repo, "work"))
    equal((await now(git.branches(repo))).current_branch, "work")
    await now(git.checkout_branch(repo, "main"))
    await now(git.delete_branch(repo, "work"))
    await now(box().files.write(f"{repo}/a.txt", "changed"))
    await now(git.restore(repo, paths=["a.txt"]))
    equal(await now(box().files.read(f"{repo}/a.txt")), "a")
    await now(git.reset(repo, mode="hard", target="HEAD"))
    await now(git.set_config("core.abbrev", "12", scope="local", path=repo))
    equal(await now(git.get_config("core.abbrev", scope="local", path=repo)), "12")
    await shell("git init -q --bare /home/user/remote.git")
    await now(git.remote_add(repo, "origin", "/home/user/remote.git"))
    equal((await now(git.remote_get(repo, "origin"))).strip(), "/home/user/remote.git")
    await now(git.push(repo, remote="origin", branch="main", set_upstream=True))
    await now(git.clone("/home/user/remote.git", path="/home/user/copy", branch="main"))
    await now(git.pull(repo))
    equal(await now(box().files.read("copy/a.txt")), "a")


# ---- templates


@check("Template.build, copy, run_cmd, set_envs, set_workdir, set_start_cmd; get_tags, assign_tags, remove_tags")
async def _():
    place, logs, name = tempfile.mkdtemp(), [], f"py-build-{RUN}"
    os.makedirs(f"{place}/folder/sub")
    for path in ("folder/a.txt", "folder/b.md", "folder/sub/c.txt"):
        with open(f"{place}/{path}", "w", encoding="utf-8") as file:
            file.write(path)
    template = (
        Template(file_context_path=place)
        .from_template("base")
        .set_envs({"COLOR": "it's blue"})
        .set_workdir("/opt/app")
        .copy("folder/*", "folder")
        .run_cmd("echo made by $(id -un) in $(pwd) > made.txt")
        .run_cmd("echo as root > /etc/compat", user="root")
        .set_start_cmd("python3 -m http.server 8125 --directory /opt/app/folder", e2b.wait_for_port(8125))
    )
    before = len(await every(Sandbox.list()))
    most = []

    def on_log(entry):
        logs.append(entry.message)

    built = await now(Template.build(template, name, memory_mb=512, on_build_logs=on_log))
    shutil.rmtree(place)
    most.append(len(await every(Sandbox.list())))
    assert re.match(UUID, built.build_id), built.build_id
    assert max(most) <= before, "machines that build are not listed"
    assert any("echo made by" in line for line in logs), logs
    equal(await now(Template.exists(name)), True)
    equal([(each.tag, each.build_id) for each in await now(Template.get_tags(name))], [("default", built.build_id)])
    other = await create(name)
    said = await now(other.commands.run("pwd; cat made.txt /etc/compat; echo $COLOR; find folder | sort; curl -s 127.0.0.1:8125/a.txt"))
    tree = "folder\nfolder/a.txt\nfolder/b.md\nfolder/sub\nfolder/sub/c.txt\n"
    equal(said.stdout, f"/opt/app\nmade by user in /opt/app\nas root\nit's blue\n{tree}folder/a.txt")
    info = await now(other.get_info())
    equal((info.template_id, info.memory_mb), (built.template_id, 512))
    await now(other.kill())
    assigned = await now(Template.assign_tags(f"{name}:default", ["stable", "v1"]))
    equal((sorted(assigned.tags), assigned.build_id), (["stable", "v1"], built.build_id))
    await now(Template.remove_tags(name, ["v1", "default"]))
    equal([each.tag for each in await now(Template.get_tags(name))], ["stable"])
    await now(Template.remove_tags(name, "stable"))
    equal(await now(Template.exists(name)), False)


@check("Template.build (a step that fails)")
async def _():
    template = Template().from_template("base").run_cmd("echo before; exit 3")
    await fails(e2b.BuildException, Template.build, template, f"py-broken-{RUN}", says="exit status 3")
    for broken, says in (
        (Template().from_template("base").run_cmd("whoami", user="nobody-here"), "invalid username: 'nobody-here'"),
        (Template().from_template("base").set_user("; exit 1"), "invalid username: '; exit 1'"),
        (Template().from_template("base").set_start_cmd("./not/there", "sleep 1"), "the start command failed: exit status 127"),
    ):
        await fails(e2b.BuildException, Template.build, broken, f"py-broken-{RUN}", says=says)


@check("Template.build_in_background, get_build_status")
async def _():
    template = Template().from_base_image().run_cmd("sleep 1; echo done")
    built = await now(Template.build_in_background(template, f"py-later-{RUN}"))

    async def ready():
        return (await now(Template.get_build_status(built))).status in ("ready", getattr(e2b.TemplateBuildStatus, "READY", "ready"))

    await until(ready, "the build is ready", 60)
    equal(await now(Sandbox.delete_snapshot(f"py-later-{RUN}")), True)


@check("Template.build (from_image that is not here)", "501")
async def _():
    await fails(e2b.BuildException, Template.build, Template().from_image("ubuntu:22.04"), f"py-image-{RUN}", says="501")


# ---- volumes and secrets


@check("Volume.create, list, get_info, connect, destroy")
async def _():
    name = f"py-{RUN}"
    volume = await now(Volume.create(name))
    assert any(each.volume_id == volume.volume_id and each.name == name for each in await now(Volume.list()))
    equal((await now(Volume.get_info(volume.volume_id))).name, name)
    shared["volume"] = await now(Volume.connect(volume.volume_id))
    await fails(e2b.VolumeException, Volume.create, name)
    await fails(e2b.NotFoundException, Volume.get_info, "vol-aaaaaaaaaa")


@check("Volume: write_file, read_file, make_dir, list, exists, get_info, update_metadata, remove")
async def _():
    volume = shared["volume"]
    wrote = await now(volume.write_file("/notes/a.txt", "hello", mode=0o600, uid=1000, gid=1000))
    equal((wrote.name, wrote.path, wrote.size, wrote.mode), ("a.txt", "/notes/a.txt", 5, 0o600))
    equal(await now(volume.read_file("/notes/a.txt")), "hello")
    equal(bytes(await now(volume.read_file("/notes/a.txt", format="bytes"))), b"hello")
    await fails(e2b.VolumeException, volume.write_file, "/notes/a.txt", "no", force=False)
    await now(volume.write_file("/notes/a.txt", "yes", force=True))
    equal(await now(volume.read_file("/notes/a.txt")), "yes")
    await fails(e2b.NotFoundException, volume.make_dir, "/x/y")
    equal((await now(volume.make_dir("/x/y", force=True))).type.value, "directory")
    equal(sorted(each.name for each in await now(volume.list("/"))), ["notes", "x"])
    equal((await now(volume.update_metadata("/notes/a.txt", mode=0o644))).mode, 0o644)
    equal((await now(volume.get_info("/notes"))).type.value, "directory")
    await now(volume.remove("/x"))
    equal([await now(volume.exists(path)) for path in ("/x", "/notes/a.txt")], [False, True])
    await fails(e2b.NotFoundException, volume.read_file, "/none")


@check("Sandbox.create (volume_mounts)")
async def _():
    volume = shared["volume"]
    other = await create(volume_mounts={"/mnt/data": volume})
    equal((await now(other.commands.run("cat /mnt/data/notes/a.txt"))).stdout, "yes")
    await now(other.files.write("/mnt/data/from-inside", "x"))
    equal(await now(volume.read_file("/from-inside")), "x")
    await now(other.kill())
    equal(await now(Volume.destroy(volume.volume_id)), True)
    equal(await now(Volume.destroy(volume.volume_id)), False)


@check("Secret.create, get_info, exists, update, list, destroy, fill")
async def _():
    if not Secret:
        raise Absent("this version has no Secret")
    name = f"py-{RUN}"
    secret = await now(Secret.create(name, "a value nobody sees", metadata={"team": "a"}))
    equal((secret.name, secret.version), (name, 1))
    equal((await now(Secret.update(name, "a new value"))).version, 2)
    equal((await now(Secret.get_info(name))).metadata, {"team": "a"})
    assert name in [each.name for each in await every(Secret.list())]
    equal(await now(Secret.exists(name)), True)
    equal(Secret.fill(name), "${e2b.secrets." + name + "}")
    equal(await now(Secret.destroy(name)), True)
    equal(await now(Secret.destroy(name)), False)


async def main():
    failed = await run_all()
    for sandbox in made:
        try:
            await now(sandbox.kill())
        except Exception:  # pylint: disable=broad-except
            pass
    return failed


if __name__ == "__main__":
    begun = time.monotonic()
    code = asyncio.run(main())
    print(f"# {time.monotonic() - begun:.0f} s")
    sys.stdout.flush()
    os._exit(code)  # streams that were left open on purpose must not keep us here
