#!/usr/bin/env python3
"""The Python SDK against the real server: every method, blocking and asyncio, over the unix socket and over TCP with a
token; a server that is killed and started again; tools for models; directories that a hostile sandbox packed.
"""
# timeout: 900

import asyncio
import contextlib
import io
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import urllib.parse
import urllib.request
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import pypi  # noqa: E402
from harness import (  # noqa: E402
    BUILD,
    HOME,
    TOP,
    adopt,
    adopt_snapshot,
    assert_equal,
    assert_in,
    ending,
    husk,
    main,
    scratch,
    test,
    until,
)

SDK = TOP / "sdk/python"
sys.path.insert(0, str(SDK))
warnings.simplefilter("error")  # an unclosed socket is a failure
import husk as sdk  # noqa: E402
from husk import AsyncSandbox, Sandbox  # noqa: E402
from husk import _archive  # noqa: E402
from husk.tools import AsyncToolset, Toolset  # noqa: E402

for name in ("HUSK_URL", "HUSK_TOKEN", "HUSK_SOCKET"):
    os.environ.pop(name, None)

SOCKET = f"{HOME}/run/huskd.sock"


# ---- the server ----


class Server:
    """huskd of this instance, on its socket and on a port of its own."""

    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = None
        self.log = open(f"{HOME}/huskd.log", "ab")

    def start(self):
        command = [str(BUILD / "huskd"), "--listen", f"127.0.0.1:{self.port}", "--stop-seconds", "2"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        until(self.answers, "huskd answers")

    def answers(self):
        assert self.process.poll() is None, f"huskd ended: {open(self.log.name).read()[-500:]}"
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1):
                pass
            with socket.socket(socket.AF_UNIX) as local:
                local.connect(SOCKET)
            return True
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait(30)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        self.log.close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"


SERVER = Server()


def create(**options):
    sandbox = Sandbox.create(**options)
    adopt(sandbox.id)
    return sandbox


def raises(kind, function, *arguments, says=(), **options):
    try:
        function(*arguments, **options)
    except kind as error:
        for piece in [says] if isinstance(says, str) else says:
            assert_in(piece, str(error))
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


# ---- the package itself ----


@test
def test_generated_code_is_current():
    done = subprocess.run([sys.executable, str(SDK / "generate.py"), "--check"], capture_output=True, text=True)
    assert_equal(done.returncode, 0, done.stderr)


@test
def test_import_is_light():
    code = "import sys, husk; print([m for m in ('asyncio', 'ssl', 'deepagents') if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(SDK)}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert_equal(done.stdout.strip(), "[]", done.stderr)


@test
def test_both_forms_have_the_same_methods():
    from husk import aio

    pairs = [(Sandbox, AsyncSandbox), (sdk.Filesystem, aio.AsyncFilesystem), (sdk.Process, aio.AsyncProcess)]
    pairs += [(sdk.Pty, aio.AsyncPty), (sdk.Snapshot, aio.AsyncSnapshot), (sdk.Template, aio.AsyncTemplate)]
    pairs += [(sdk.Client, aio.AsyncClient), (Toolset, AsyncToolset)]
    for plain, later in pairs:
        names = [{name for name in vars(each) if not name.startswith("_")} for each in (plain, later)]
        assert_equal(names[0] - {"close"}, names[1] - {"aclose"}, plain.__name__)


@test
def test_endpoint():
    from husk._endpoint import resolve

    assert_equal(str(resolve()), f"unix:{SOCKET}")
    assert_equal(str(resolve(token="t")), "http://127.0.0.1:7820")
    assert_equal(str(resolve("https://husk.example.com/api")), "https://husk.example.com")
    assert_equal(resolve("unix:///run/x.sock").socket, "/run/x.sock")
    for bad in ("127.0.0.1:7820", "ftp://x", "http://", "http://x:0", "http://x:99999", "unix:"):
        raises(sdk.InvalidError, resolve, bad, says="server")
    assert "secret" not in repr(resolve(token="secret"))


@test
def test_nobody_listens():
    nowhere = sdk.Client("unix:///nowhere/huskd.sock")
    error = raises(sdk.ConnectionFailedError, Sandbox.list, client=nowhere, says="husk serve")
    assert isinstance(error, ConnectionError)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        deaf = sdk.Client(url, "t")
        raises(sdk.ConnectionFailedError, Sandbox.list, client=deaf, says=["nothing listens", "husk serve"])


# ---- life ----


@test
def test_out_of_memory_is_told_with_what_to_do():
    with Sandbox.create(memory="128M", ttl_seconds=120) as sandbox:
        adopt(sandbox.id)
        raises(sdk.CommandError, sandbox.exec, "python3 -c 'bytearray(10**9)'", check=True, says=["exit code 137 (out of memory: Sandbox.create(memory=…)"])


@test
def test_create_and_context_manager():
    with Sandbox.create(
        template="base",
        ttl_seconds=900,
        metadata={"task": "one", "run": "7"},
        env={"COLOUR": "red"},
        memory="512M",
        cpus=1,
    ) as sandbox:
        adopt(sandbox.id)
        assert_equal(sandbox.state, "running")
        assert_equal(sandbox.metadata, {"task": "one", "run": "7"})
        assert_equal(sandbox.info.memory_bytes, 512 << 20)
        assert_equal(sandbox.info.environment, ["COLOUR"])
        result = sandbox.exec("echo $COLOUR; echo oops >&2; exit 3", timeout_seconds=60)
        assert_equal((result.stdout, result.stderr, result.exit_code), ("red\n", "oops\n", 3))
        assert result.duration_ms >= 0 and not result.ok
    assert_equal(sandbox.refresh().state, "ended")
    assert_equal(sandbox.refresh().end_reason, "killed")
    assert_equal(sandbox.kill(), False)


@test
def test_persistent_survives_the_context_manager():
    with Sandbox.create(persistent=True) as sandbox:
        adopt(sandbox.id)
        assert sandbox.expires_at is None
    assert_equal(sandbox.refresh().state, "running")
    assert_equal(sandbox.kill(), True)


@test
def test_error_in_the_block_is_not_hidden():
    def body():
        with Sandbox.create() as sandbox:
            adopt(sandbox.id)
            raise KeyError("mine")

    raises(KeyError, body)


@test
def test_connect_list_extend_metadata():
    first = create(name="sdk-first", metadata={"batch": "a", "n": "1"}, ttl_seconds=600)
    second = create(metadata={"batch": "a", "n": "2"})
    assert_equal(Sandbox.connect("sdk-first").id, first.id)
    assert_equal([each.id for each in Sandbox.list(metadata={"batch": "a"})], [second.id, first.id])
    assert_equal([each.id for each in Sandbox.list(metadata={"batch": "a"}, limit=1)], [second.id])
    assert_equal([each.id for each in Sandbox.list(metadata={"batch": "a", "n": "1"}, state="running")], [first.id])
    assert_equal(Sandbox.list(metadata={"batch": "nowhere"}), [])
    before = first.expires_at
    assert first.extend(3600) > before and first.expires_at > before
    first.resize(memory="512M", cpus=1)
    assert first.exec("nproc").stdout == "1\n"
    first.extend(persistent=True)
    assert first.persistent and first.expires_at is None
    first.set_metadata({"batch": "b"})
    assert_equal(Sandbox.connect(first.id).metadata, {"batch": "b"})


@test
def test_create_is_idempotent():
    key = os.urandom(8).hex()
    first = create(idempotency_key=key, metadata={"k": "v"})
    again = Sandbox.create(idempotency_key=key, metadata={"k": "v"})
    assert_equal(again.id, first.id)
    raises(sdk.ConflictError, Sandbox.create, idempotency_key=key, metadata={"k": "other"})


@test
def test_egress():
    sandbox = create(egress={"allow": ["example.test", "10.9.8.0/24:443"], "limits": {"rate": "1M"}})
    assert_equal(sandbox.info.egress, "allow")
    assert_equal(sandbox.egress().allow, ["example.test", "10.9.8.0/24:443"])
    line = "blocked: denied.test is not allowed; it requires --allow denied.test"
    answer = Toolset(sandbox).run_shell("getent hosts denied.test")
    assert_in(line, answer.text)
    result = sandbox.exec("getent hosts denied.test")
    assert_equal((result.blocked, result.denied[0].rule), ([line], "denied.test"))
    assert_in(line, str(raises(sdk.CommandError, result.check)))
    assert_equal(sandbox.exec("getent hosts denied.test", on_stdout=print).blocked, [line], "streamed")
    assert_equal(sandbox.exec("true").blocked, [], "of an earlier command")
    raised = sandbox.run_code("import socket; socket.getaddrinfo('denied.test', 80)")
    assert_equal(raised.blocked, [line])
    assert_in(line, Toolset(sandbox).run_code("socket.getaddrinfo('denied.test', 80)").text)
    denied = [each for each in sandbox.egress_log() if each.verdict == "denied"]
    assert_equal({(each.host, each.rule) for each in denied}, {("denied.test", "denied.test")})
    assert_equal(sandbox.set_egress("off").mode, "off")
    assert_equal(raises(sdk.InvalidError, sandbox.set_egress, allow=["not a host"]).field, "egress")


@test
def test_pause_hibernate_wake_stats_events_logs():
    sandbox = create()
    sandbox.filesystem.write("/tmp/kept", "here")
    sandbox.pause()
    assert_equal(sandbox.state, "paused")
    sandbox.resume()
    assert_equal(sandbox.state, "running")
    sandbox.hibernate()
    assert_equal(sandbox.state, "hibernated")
    sandbox.wake()
    assert_equal(sandbox.state, "running")
    assert_equal(sandbox.filesystem.read_text("/tmp/kept"), "here")
    stats = sandbox.stats()
    assert stats.memory_limit > 0 and stats.memory_bytes > 0
    kinds = [event.kind for event in sandbox.events()]
    for kind in ("created", "hibernated", "woken"):
        assert_in(kind, kinds)
    assert sandbox.events()[0].at is not None
    assert_in("created", sandbox.logs())
    assert isinstance(sandbox.logs("console"), str)


@test
def test_follow_events():
    sandbox = create()
    seen = []
    with sandbox.follow_events() as events:
        threading.Timer(0.3, sandbox.kill).start()
        for event in events:
            seen.append(event.kind)
            if event.kind == "ended":
                assert_equal(event.detail.get("reason"), "killed")
                break
    assert_in("created", seen)


@test
def test_volumes():
    volume = sdk.Volume.create("sdk-volume", size="64M")
    try:
        volume.write("/in/a", "from outside")
        with Sandbox.create(volumes={"/data": volume, "/library": {"volume": "sdk-volume", "read_only": True}}) as box:
            assert_equal(box.exec("cat /data/in/a; echo inside > /data/b; cat /library/b").stdout, "from outsideinside\n")
            assert_equal([each["path"] for each in box.info.volumes], ["/data", "/library"])
            raises(sdk.ConflictError, volume.remove)
        assert_equal(volume.read("/b"), b"inside\n")
        assert_equal([each.path for each in volume.files("/", depth=2)], ["/b", "/in", "/in/a"])
        volume.delete("/in")
        assert_in(volume.id, [each.id for each in sdk.Volume.list()])
        assert_equal(sdk.Volume.get("sdk-volume").info.limit_bytes, 64 << 20)
    finally:
        volume.remove()
    raises(sdk.NotFoundError, sdk.Volume.get, "sdk-volume")


@test
def test_fork_and_snapshot():
    base = create(metadata={"who": "base"})
    base.filesystem.write("/root/state", "common")
    child = base.fork()
    adopt(child.id)
    assert_equal([each["id"] for each in child.tree()["children"]], [child.id])
    children = base.fork(2, metadata={"who": "child"})
    for each in children:
        adopt(each.id)
    assert_equal(len(children), 2)
    assert_equal(children[0].metadata["who"], "child")
    child.filesystem.write("/root/state", "changed")
    assert_equal([each.filesystem.read_text("/root/state") for each in (base, *children)], ["common"] * 3)
    snapshot = base.snapshot("sdk-snapshot")
    adopt_snapshot(snapshot.id)
    base.kill()
    again = create(snapshot=snapshot)
    assert_equal(again.filesystem.read_text("/root/state"), "common")
    assert_in(snapshot.id, [each.id for each in sdk.Snapshot.list()])
    assert_equal(sdk.Snapshot.get("sdk-snapshot").id, snapshot.id)
    again.kill()
    with scratch() as place:
        snapshot.export(place / "machine.tar")
        copy = sdk.Snapshot.import_file(place / "machine.tar", name="sdk-copy")
        adopt_snapshot(copy.id)
        carried = create(snapshot=copy)
        assert_equal(carried.filesystem.read_text("/root/state"), "common")
        carried.kill()
        raises(sdk.ConflictError, sdk.Snapshot.import_file, place / "machine.tar", name="sdk-copy")
        assert_equal([each.name for each in place.iterdir()], ["machine.tar"])
        copy.remove()
    snapshot.remove()
    raises(sdk.NotFoundError, sdk.Snapshot.get, snapshot.id)


@test
def test_checkpoint_and_rewind():
    box = create()
    box.filesystem.write("/root/state", "one")
    first = box.checkpoint("first")
    assert_equal((first.number, first.label, first.parent, first.current), (1, "first", None, True))
    box.filesystem.write("/root/state", "two")
    assert_equal(box.checkpoint().parent, 1)
    assert_equal([each.files_changed for each in box.history()], [None, None])
    assert_equal([(each.files_changed, each.files) for each in box.history(files=True)], [
        (1, [{"path": "/root/state", "change": "added"}]), (1, [{"path": "/root/state", "change": "changed"}])])
    done = box.rewind("first")
    assert_equal((done.checkpoint, done.label, done.dropped, done.not_undone), (1, "first", 0, []))
    assert_equal(box.state, "running")
    assert_equal(box.filesystem.read_text("/root/state"), "one")
    box.rewind(2)
    assert_equal(box.filesystem.read_text("/root/state"), "two")
    assert_equal(box.rewind(1, drop_later=True).dropped, 1)
    assert_equal([(each.number, each.current) for each in box.history()], [(1, True)])
    box.remove_checkpoint("first")
    raises(sdk.NotFoundError, box.rewind)
    box.kill()


@contextlib.contextmanager
def project():
    """A directory of ours, in a git work tree, and the program that brings it in."""
    with scratch() as place:
        directory = place / "project"
        directory.mkdir()
        subprocess.run(["git", "init", "-q", directory], check=True)
        (directory / ".gitignore").write_text("*.o\n")
        (directory / "a.o").write_text("object")
        (directory / "notes").write_text("one\ntwo\nthree\nfour\nfive\n")
        os.environ.update(HUSK_PROGRAM=str(BUILD / "husk"), XDG_STATE_HOME=str(place / "state"))
        try:
            yield directory
        finally:
            del os.environ["HUSK_PROGRAM"], os.environ["XDG_STATE_HOME"]


@test
def test_workspace():
    with project() as directory:
        box = create(workspace=f"{directory}:/srv/work")
        assert_equal([each.label for each in box.history()], ["workspace"])
        assert_equal(box.exec("ls -A", cwd="/srv/work").stdout, ".git\n.gitignore\nnotes\n")
        assert_equal((box.workspace.diff(), box.workspace.changes(), box.workspace.apply().changes), ("", [], []))
        box.exec("sed -i s/one/ONE/ notes; echo new >result; chmod 755 result", cwd="/srv/work", check=True)
        assert_in("-one\n+ONE\n", box.workspace.diff())
        assert_equal([(each.path, each.change) for each in box.workspace.changes()], [("notes", "changed"), ("result", "added")])
        (directory / "notes").write_text("one\ntwo\nthree\nfour\nFIVE\n")
        planned = box.workspace.apply(dry_run=True)
        assert_equal((planned.written, (directory / "result").exists()), (False, False))
        done = box.workspace.apply()
        assert_equal((done.written, done.conflicts, done.target), (True, 0, str(directory)))
        assert_equal([(each["path"], each["change"], each["merged"]) for each in done.changes], [("notes", "changed", True), ("result", "added", False)])
        assert_equal((directory / "notes").read_text(), "ONE\ntwo\nthree\nfour\nFIVE\n")
        assert os.access(directory / "result", os.X_OK)
        # A conflict is a result and no error; nothing is written, unless told how.
        box.exec("echo theirs >result", cwd="/srv/work", check=True)
        (directory / "result").write_text("ours\n")
        done = box.workspace.apply()
        assert_equal((done.written, done.conflicts, (directory / "result").read_text()), (False, 1, "ours\n"))
        raises(sdk.InvalidError, lambda: box.workspace.apply(conflicts="never"), says="never")
        raises(sdk.HuskError, lambda: box.workspace.apply(limit="many"))
        assert box.workspace.apply(conflicts="theirs").written
        assert_equal((directory / "result").read_text(), "theirs\n")
        # A fork has the workspace of its parent.
        child = box.fork()
        child.exec("echo child >result", cwd="/srv/work", check=True)
        assert_equal([each.path for each in child.workspace.changes()], ["result"])
        child.kill()
        box.kill()
        raises(sdk.HuskError, box.workspace.apply, says="ended")


@test
def test_workspace_both_ways():
    with project() as directory:
        box = create(workspace=f"{directory}:/srv/work")
        assert_equal(box.workspace.sync(), [])
        box.exec("echo there >theirs; sed -i s/one/ONE/ notes; echo two >both", cwd="/srv/work", check=True)
        (directory / "mine").write_text("here\n")
        (directory / "notes").write_text("one\ntwo\nthree\nfour\nFIVE\n")
        (directory / "both").write_text("one\n")
        done = box.workspace.sync()
        assert_equal(sorted({(each.path, each.to, bool(each.conflict)) for each in done}), [
            ("both", "neither", True), ("mine", "sandbox", False), ("notes", "directory", False), ("theirs", "directory", False)])
        assert_equal([each.merged for each in done if each.path == "notes"], [True])
        merged = "ONE\ntwo\nthree\nfour\nFIVE\n"
        assert_equal(((directory / "notes").read_text(), box.exec("cat notes mine both", cwd="/srv/work").stdout), (merged, merged + "here\ntwo\n"))
        assert_equal([(each.path, each.to) for each in box.workspace.sync(conflicts="theirs")], [("both", "directory")])
        assert_equal(((directory / "both").read_text(), box.workspace.sync()), ("two\n", []))
        raises(sdk.InvalidError, lambda: box.workspace.sync(conflicts="never"), says="never")
        raises(sdk.HuskError, lambda: box.workspace.sync(limit="many"))
        box.kill()
        raises(sdk.HuskError, box.workspace.sync, says="ended")


@test
def test_workspace_over_tcp_and_its_refusals():
    with project() as directory, token("sdk-workspace") as secret, sdk.Client(SERVER.url, secret) as client:
        box = Sandbox.create(workspace=directory, workspace_all=True, client=client)
        adopt(box.id)
        box.exec("echo 2 >>/workspace/a.o", check=True)
        assert_equal([each["path"] for each in box.workspace.apply().changes], ["a.o"])
        assert_equal((directory / "a.o").read_text(), "object2\n")
        box.kill()
        before = {each.id for each in Sandbox.list()}
        raises(sdk.HuskError, lambda: Sandbox.create(workspace=directory / "nowhere"), says="nowhere")
        os.environ["HUSK_PROGRAM"] = "/nowhere/husk"
        raises(sdk.UnavailableError, lambda: Sandbox.create(workspace=directory), says=["'/nowhere/husk' was not found", "HUSK_PROGRAM"])
        assert_equal({each.id for each in Sandbox.list()}, before, "a sandbox without its workspace does not stay")
        plain = create()
        os.environ["HUSK_PROGRAM"] = str(BUILD / "husk")
        raises(sdk.NotFoundError, plain.workspace.diff, says="has no workspace")
        assert_equal(plain.workspace.bring(directory), "/workspace")
        assert_equal(plain.exec("ls /workspace").stdout, "notes\n")
        plain.kill()


@test
def test_workspace_with_asyncio():
    async def work(directory):
        async with AsyncSandbox.create(workspace=directory) as box:
            adopt(box.id)
            await box.exec("echo async >/workspace/notes", check=True)
            assert_in("+async\n", await box.workspace.diff())
            assert (await box.workspace.apply()).written
            assert_equal((directory / "notes").read_text(), "async\n")

    with project() as directory:
        asyncio.run(work(directory))


@test
def test_diff():
    box = create()
    box.filesystem.write("/root/a", "one")
    assert_equal([(each.path, each.change, each.size) for each in box.diff()], [("/root/a", "added", 3)])
    child = box.fork()
    child.filesystem.write("/root/a", "two")
    child.filesystem.write("/etc/b", "three")
    assert_equal([(each.path, each.change) for each in child.diff(box)], [("/etc/b", "added"), ("/root/a", "changed")])
    assert_equal([each.path for each in child.diff(box.id, path="/root")], ["/root/a"])
    raises(sdk.NotFoundError, lambda: child.diff("nobody"))
    done = child.promote()
    assert_equal((done.sandbox, done.ended), (box.id, [child.id]))
    assert_equal(box.filesystem.read_text("/root/a"), "two")
    raises(sdk.InvalidError, box.promote)
    assert_equal((done.effects, box.effects(), box.send_effects(), box.drop_effects()), ([], [], [], []))
    raises(sdk.NotFoundError, lambda: box.send_effects(1))
    held = box.set_egress(hold=["api.example.com"])
    assert_equal((held.mode, held.hold), ("allow", ["api.example.com"]))
    box.kill()
    careful = create(checkpoints="each-call")
    careful.exec("echo once")
    assert_equal([(each.automatic, each.ran) for each in careful.history()], [(True, "echo once")])
    careful.kill()


@test
def test_merge_and_explore():
    box = create()
    left, right = box.fork(2)
    left.filesystem.write("/root/left", "l")
    assert_equal(right.merge(left, path="/root", dry_run=True).written, False)
    done = right.merge(left, path="/root")
    assert_equal((done.written, [each["path"] for each in done.changes]), (True, ["/root/left"]))
    assert_equal(right.filesystem.read_text("/root/left"), "l")
    raises(sdk.InvalidError, lambda: box.merge(box))
    left.kill(), right.kill()

    branches = box.explore(["echo 2 >/root/best", "exit 1", "echo 30 >/root/best"], "cat /root/best")
    assert_equal([(each.score, each.kept) for each in branches], [(30, True), (2, False), (None, False)])
    assert_equal(branches[2].error, "the command ended with 1")
    assert_equal(box.filesystem.read_text("/root/best"), "30\n")

    def fails(fork):
        raise RuntimeError("no")

    beam = box.explore([lambda fork: fork.exec("echo 7").stdout, fails, "true"], lambda fork, said: said if isinstance(said, str) else 1, keep=2)
    assert_equal([(each.score, each.kept) for each in beam], [(7, True), (1, True), (None, False)])
    assert_equal(beam[2].error, "RuntimeError: no")
    assert_equal(beam[0].sandbox.exec("cat /root/best").stdout, "30\n")
    slow = box.explore(["sleep 60", "sleep 60"], "echo 1", budget=1, parallel=1)
    assert_equal([each.score for each in slow], [None, None])
    raises(ValueError, lambda: box.explore([], "echo 1"))
    live = [each.id for each in sdk.Sandbox.list()]
    assert all((each.sandbox.id in live) == each.kept for each in beam), live
    for each in beam[:2]:
        each.sandbox.kill()
    box.kill()


@test
def test_templates():
    names = {each.name: each.info.built for each in sdk.Template.list()}
    assert names["base"] and "agent" in names
    lines = []
    built = sdk.Template.build("base", on_log=lines.append)
    assert_equal(built.name, "base")
    raises(sdk.NotFoundError, sdk.Template.build, "no-such-template")


# ---- commands ----


@test
def test_exec_forms():
    sandbox = create()
    assert_equal(sandbox.exec(["printf", "%s|", "a b", "$HOME"]).stdout, "a b|$HOME|")
    assert_equal(sandbox.exec("cat", stdin="text in").stdout, "text in")
    result = sandbox.exec("cat", stdin=b"\xff\x00\xfe")
    assert_equal(result.stdout_bytes, b"\xff\x00\xfe")
    assert_in("\ufffd", result.stdout)
    assert_equal(sandbox.exec("pwd; echo $A", cwd="/tmp", env={"A": "b c"}).stdout, "/tmp\nb c\n")
    late = sandbox.exec("sleep 30", timeout_seconds=0.3)
    assert late.timed_out and late.exit_code == 124
    error = raises(sdk.CommandError, sandbox.exec, "echo why >&2; exit 9", check=True, says=["exit code 9", "why"])
    assert_equal(error.result.exit_code, 9)
    killed = sandbox.exec("kill -9 $$")
    assert_equal((killed.exit_code, killed.signal), (137, 9))
    raises(sdk.InvalidError, sandbox.exec, ["ls", 1], says="list of strings")


@test
def test_exec_streams():
    sandbox = create()
    out, err = [], []
    result = sandbox.exec(
        "for i in 1 2 3; do echo line $i; sleep 0.1; done; echo bad >&2; exit 4",
        on_stdout=out.append,
        on_stderr=err.append,
    )
    assert_equal("".join(out), "line 1\nline 2\nline 3\n")
    assert_equal(("".join(err), result.stderr, result.exit_code), ("bad\n", "bad\n", 4))
    assert len(out) >= 2, f"the output came in one piece: {out}"
    stream = sandbox.exec_stream("printf 'é'; sleep 0.2; printf '\\303'; sleep 0.2; printf '\\251'; exit 5")
    assert_equal("".join(piece.text for piece in stream), "éé")
    assert_equal(stream.exit_code, 5)
    big = sandbox.exec("head -c 3000000 /dev/zero | tr '\\0' x", on_stdout=lambda text: None)
    assert_equal(len(big.stdout), 3000000)
    with sandbox.exec_stream("yes") as endless:
        assert_in("y\n", next(endless).text)
    sandbox.process(endless.pid).kill()


@test
def test_background_process():
    sandbox = create()
    process = sandbox.start("while read line; do echo got $line; done; echo end", stdin=True, label="reader")
    process.write("one\n")
    with process.stream() as stream:
        assert_equal(next(stream).text, "got one\n")
    at = stream.stdout_offset
    info = process.info()
    assert info.running and info.label == "reader"
    raises(sdk.TimedOutError, process.wait, 0.3)
    process.write(b"two\n")
    process.close_stdin()
    assert_equal("".join(piece.text for piece in process.stream(stdout_offset=at)), "got two\nend\n")
    result = process.wait()
    assert_equal((result.stdout, result.exit_code), ("got one\ngot two\nend\n", 0))
    sleeper = sandbox.start(["sleep", "100"])
    sleeper.signal(signal.SIGTERM)
    assert_equal(sleeper.wait(20).exit_code, 143)
    assert_in(sleeper.pid, [each.pid for each in sandbox.processes()])
    raises(sdk.NotFoundError, sandbox.process(999999).info)


@test
def test_pty():
    sandbox = create()
    with sandbox.pty(rows=30, columns=100) as terminal:
        terminal.write("stty size; echo ready-$((40+2))\n")
        shown = b""
        while not re.search(rb"ready-42[^#]*# ", shown):  # before the prompt, bash puts back the size it has read
            shown += terminal.read(20)
        assert_in(b"30 100", shown)
        terminal.resize(40, 120)
        terminal.write("stty size\n")
        while b"40 120" not in shown:
            shown += terminal.read(20)
        raises(sdk.TimedOutError, lambda: [terminal.read(0.3) for _ in range(100)])
    pid, offset = terminal.pid, terminal.offset
    with sandbox.pty(pid=pid, offset=offset) as again:
        again.write("echo back-$((1+1)); exit 7\n")
        shown = b"".join(again)
        assert_in(b"back-2", shown)
        assert_equal(again.exit.exit_code, 7)
    raises(sdk.NotFoundError, sandbox.pty, pid=999999)


# ---- files ----


@test
def test_files():
    sandbox = create()
    files = sandbox.filesystem
    data = bytes(range(256)) * 1000
    entry = files.write("/srv/deep/data.bin", data, mode=0o600)
    assert_equal((entry.path, entry.size, entry.mode, entry.is_file), ("/srv/deep/data.bin", len(data), "0600", True))
    assert files.read("/srv/deep/data.bin") == data
    assert_equal(files.read("/srv/deep/data.bin", offset=254, length=4), b"\xfe\xff\x00\x01")
    assert_equal(files.read("/srv/deep/data.bin", offset=len(data) + 5), b"")
    with files.open("/srv/deep/data.bin") as pieces:
        assert b"".join(pieces) == data
    files.write("/srv/text", "grüße\n")
    assert_equal(files.read_text("/srv/text"), "grüße\n")
    files.write("/srv/pieces", (str(number).encode() for number in range(5)))
    assert_equal(files.read("/srv/pieces"), b"01234")
    files.write("/srv/empty", b"")
    assert_equal(files.read("/srv/empty"), b"")
    files.mkdir("/srv/new/er")
    files.move("/srv/text", "/srv/new/er/text")
    files.chmod("/srv/new/er/text", "0700")
    assert_equal(files.stat("/srv/new/er/text").mode, "0700")
    assert files.exists("/srv/new") and not files.exists("/srv/text")
    assert_equal(sorted(each.name for each in files.list("/srv")), ["deep", "empty", "new", "pieces"])
    assert_in("/srv/new/er/text", [each.path for each in files.list("/srv", depth=3)])
    files.remove("/srv/new")
    assert not files.exists("/srv/new")
    raises(sdk.NotFoundError, files.read, "/srv/nothing", says="/srv/nothing")
    raises(sdk.InvalidError, files.read, "/srv", says="directory")
    raises(sdk.InvalidError, files.read, "/srv/empty", offset=-1)
    assert_in(b"Linux", files.read("/proc/version"))


@test
def test_large_file_from_disk():
    sandbox = create()
    with scratch() as place:
        (place / "big").write_bytes(os.urandom(1 << 20) * 24)
        assert_equal(sandbox.filesystem.upload(place / "big", "/root/big").size, 24 << 20)
        assert_equal(sandbox.filesystem.download("/root/big", place / "back"), 24 << 20)
        assert (place / "big").read_bytes() == (place / "back").read_bytes()
        raises(sdk.NotFoundError, sandbox.filesystem.download, "/root/none", place / "none")
        assert_equal(sorted(each.name for each in place.iterdir()), ["back", "big"])


@test
def test_directories():
    sandbox = create()
    with scratch() as place:
        (place / "in/sub").mkdir(parents=True)
        (place / "in/a.txt").write_text("a")
        (place / "in/sub/run.sh").write_text("#!/bin/sh\necho ran\n")
        (place / "in/sub/run.sh").chmod(0o755)
        (place / "in/link").symlink_to("sub/run.sh")
        (place / ("in/" + "n" * 150)).write_bytes(b"x" * 1000)
        sandbox.filesystem.upload_dir(place / "in", "/root/project")
        assert_equal(sandbox.exec("/root/project/link").stdout, "ran\n")
        sandbox.exec("cd /root/project && mkdir out && echo result > out/r && ln -s /etc/passwd evil", check=True)
        left_out = sandbox.filesystem.download_dir("/root/project", place / "out")
        assert_equal([pathlib.Path(each).name for each in left_out], ["evil"])
        found = sorted(str(each.relative_to(place / "out")) for each in (place / "out").rglob("*"))
        assert_equal(found, sorted(["a.txt", "link", "n" * 150, "out", "out/r", "sub", "sub/run.sh"]))
        assert_equal((place / "out/link").read_text(), "#!/bin/sh\necho ran\n")
        raises(sdk.InvalidError, sandbox.filesystem.upload_dir, place / "nothing", "/root/x", says="not a directory")


@test
def test_hostile_archive_stays_inside():
    def member(name, kind=tarfile.REGTYPE, target="", data=b"x", mode=0o644):
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.mode, info.size = kind, target, mode, len(data) if kind == tarfile.REGTYPE else 0
        archive.addfile(info, io.BytesIO(data))

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member("../outside")
        member("/absolute")
        member("a/../../outside")
        member("up", tarfile.SYMTYPE, "..")
        member("aside", tarfile.SYMTYPE, "dir")
        member("tricky", tarfile.SYMTYPE, "aside/../../secret")
        member("aside/through")
        member("etc", tarfile.SYMTYPE, "/etc")
        member("etc/passwd")
        member("hard", tarfile.LNKTYPE, "../secret")
        member("device", tarfile.CHRTYPE)
        member("pipe", tarfile.FIFOTYPE)
        member("suid", mode=0o4755)
        member("dir", tarfile.DIRTYPE, mode=0o555)
        member("dir/good")
        member("dir", data=b"now a file")
        member("fine", tarfile.SYMTYPE, "dir/good")
    packed.seek(0)
    with scratch() as place:
        (place / "secret").write_text("secret")
        left_out = _archive.unpack(packed, place / "target")
        assert_equal(sorted(each.name for each in place.iterdir()), ["secret", "target"])
        found = sorted(str(each.relative_to(place / "target")) for each in (place / "target").rglob("*"))
        assert_equal(found, ["aside", "dir", "dir/good", "etc", "etc/passwd", "fine", "suid"])
        assert not (place / "target/etc").is_symlink()
        assert_equal((place / "target/suid").stat().st_mode & 0o7777, 0o755)
        assert_equal(len(left_out), 11, str(left_out))


@test
def test_watch():
    sandbox = create()
    sandbox.filesystem.mkdir("/root/watched/sub")
    with sandbox.filesystem.watch("/root/watched", recursive=True) as changes:
        sandbox.filesystem.write("/root/watched/sub/new", "x")
        for change in changes:
            if change.path == "/root/watched/sub/new":
                break
    raises(sdk.NotFoundError, lambda: next(sandbox.filesystem.watch("/root/none")))


# ---- code ----


@test
def test_run_code():
    sandbox = create()
    result = sandbox.run_code("x = 20\nprint('hi')\nx * 2 + 2", language="python")
    assert_equal((result.stdout, result.text, result.exit_code), ("hi\n", "42", 0))
    assert_equal(sandbox.run_code("x").text, "20")
    raised = sandbox.run_code("1/0")
    assert_equal((raised.exit_code, raised.error.name), (1, "ZeroDivisionError"))
    assert_in("ZeroDivisionError", raised.stderr)
    raises(sdk.CodeError, sandbox.run_code, "1/0", check=True, says="ZeroDivisionError")
    late = sandbox.run_code("import time\nwhile True: time.sleep(1)", timeout_seconds=1)
    assert late.timed_out and late.exit_code == 124
    assert_equal(sandbox.run_code("y = 1; y", context="other").text, "1")
    assert_in("other", [each.name for each in sandbox.contexts()])
    sandbox.restart_context("other")
    assert_equal(sandbox.run_code("'y' in globals()", context="other").text, "False")
    sandbox.remove_context("other")
    out, results = [], []
    streamed = sandbox.run_code("print('a')\n6*7", on_stdout=out.append, on_result=results.append)
    assert_equal(("".join(out), streamed.stdout, streamed.text, results[-1].text), ("a\n", "a\n", "42", "42"))
    png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    shown = sandbox.run_code(
        f"class P:\n  def _repr_png_(s):\n    import base64\n    return base64.b64decode('{png}')\nP()"
    )
    assert_equal(shown.images[0][:4], b"\x89PNG")


# ---- ports ----


@test
def test_get_url():
    sandbox = create()
    sandbox.filesystem.write("/srv/www/index.html", "served from inside")
    sandbox.start("cd /srv/www && python3 -m http.server 8000")
    signed = sandbox.sign_url(8000, expires_seconds=300)
    assert signed.expires_at is not None
    url = sandbox.get_url(8000)
    # The name is for a browser; what resolves it here need not know *.localhost.
    parts = urllib.parse.urlsplit(url)
    request = urllib.request.Request(f"{SERVER.url}{parts.path}?{parts.query}", headers={"Host": parts.netloc})

    def fetched():
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.read()
        except OSError:
            return None

    assert_equal(until(fetched, "the server inside answers"), b"served from inside")


# ---- tokens, errors, connections ----


@contextlib.contextmanager
def token(name):
    """A tenant's token, by its secret; revoked at the end."""
    secret = husk("token", "create", name, "--json").json()["token"]
    try:
        yield secret
    finally:
        husk("token", "rm", name, code=None)


@test
def test_tokens():
    with token("sdk-tenant") as secret:
        client = sdk.Client(SERVER.url, secret)
        with client, Sandbox.create(client=client) as sandbox:
            assert_equal(sandbox.exec("echo over tcp").stdout, "over tcp\n")
            assert_equal([each.id for each in Sandbox.list(client=client)], [sandbox.id])
            mine = create()
            raises(sdk.NotFoundError, Sandbox.connect, mine.id, client=client)
            raises(sdk.ForbiddenError, client.metrics)
    with sdk.Client(SERVER.url, secret) as revoked:
        raises(sdk.AuthenticationError, Sandbox.list, client=revoked)
    with sdk.Client(SERVER.url, "husk_nobody") as stranger:
        error = raises(sdk.AuthenticationError, Sandbox.list, client=stranger)
        assert_equal(error.status, 401)
        assert "husk_nobody" not in str(error)
    with sdk.Client(SERVER.url) as nobody:
        raises(sdk.AuthenticationError, Sandbox.list, client=nobody, says="HUSK_TOKEN")


@test
def test_tls():
    import ssl

    with scratch() as place, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        files = ["-keyout", str(place / "key.pem"), "-out", str(place / "cert.pem")]
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *files, *names],
            check=True,
            capture_output=True,
        )
        command = [str(BUILD / "huskd"), "--listen", f"127.0.0.1:{port}", "--socket", str(place / "s")]
        command += ["--cert", str(place / "cert.pem"), "--key", str(place / "key.pem")]
        with (
            ending(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            ),
            token("sdk-tls") as secret,
        ):
            until((place / "s").exists, "huskd listens")
            url = f"https://localhost:{port}"
            with sdk.Client(url, secret) as careful:
                raises(sdk.ConnectionFailedError, careful.health, says="certificate")
            context = ssl.create_default_context(cafile=str(place / "cert.pem"))
            with sdk.Client(url, secret, tls_context=context) as client, Sandbox.create(client=client) as sandbox:
                assert_equal(sandbox.exec("echo over tls").stdout, "over tls\n")
                data = os.urandom(3 << 20)
                sandbox.filesystem.write("/root/data", data)
                assert sandbox.filesystem.read("/root/data") == data
                with sandbox.pty() as terminal:
                    terminal.write("echo tls-$((1+1)); exit\n")
                    assert_in(b"tls-2", b"".join(terminal))

            async def body():
                async with sdk.AsyncClient(url, secret, tls_context=context) as client:
                    async with AsyncSandbox.create(client=client) as sandbox:
                        assert_equal((await sandbox.exec("echo async tls")).stdout, "async tls\n")
                        await sandbox.filesystem.write("/root/data", data)
                        assert await sandbox.filesystem.read("/root/data") == data

            run(body())


@test
def test_environment_names_the_server():
    code = "from husk import Sandbox\nwith Sandbox.create() as s: print(s.exec('echo hello').stdout, end='')"
    with token("sdk-environment") as secret:
        environment = {**os.environ, "PYTHONPATH": str(SDK), "HUSK_URL": SERVER.url, "HUSK_TOKEN": secret}
        environment["HUSK_HOME"] = "/nowhere"
        command = [sys.executable, "-W", "error", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        assert_equal((done.stdout, done.stderr), ("hello\n", ""))


@test
def test_errors_are_typed():
    error = raises(sdk.InvalidError, Sandbox.create, ttl_seconds=-5)
    assert_equal((error.field, error.status, error.code), ("ttl_seconds", 400, "invalid"))
    assert error.request_id
    raises(sdk.NotFoundError, Sandbox.create, template="agnet", says="agnet")
    raises(sdk.NotFoundError, Sandbox.connect, "no-such-sandbox", says="no-such-sandbox")
    raises(sdk.InvalidError, Sandbox.connect, "")
    raises(sdk.NotFoundError, Sandbox.connect, "../../etc/passwd")
    raises(sdk.InvalidError, Sandbox.list, state="sleepy", says="hibernated")
    # A server that refuses a large body says so before it has read it.
    nobody = sdk.Filesystem(sdk.Client(), "no-such-sandbox")
    raises(sdk.NotFoundError, nobody.write, "/root/x", (b"x" * 65536 for _ in range(400)), says="no-such-sandbox")
    create(name="sdk-taken")
    raises(sdk.ConflictError, Sandbox.create, name="sdk-taken")
    sandbox = create()
    raises(sdk.NotFoundError, sandbox.exec, "true", user="nobody-here", says="nobody-here")
    sandbox.kill()
    raises(sdk.GoneError, sandbox.exec, "true")
    raises(sdk.HuskError, sandbox.exec, "true")


@test
def test_client_is_shared_by_threads():
    sandbox = create()
    failures = []

    def work(number):
        try:
            for _ in range(5):
                assert_equal(sandbox.exec(["echo", str(number)]).stdout, f"{number}\n")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_equal(failures, [])


@test
def test_forked_process_uses_its_own_connections():
    sandbox = create()
    sandbox.exec("true")
    child = os.fork()
    if child == 0:
        os._exit(0 if sandbox.exec("echo child").stdout == "child\n" else 1)
    assert_equal(sandbox.exec("echo parent").stdout, "parent\n")
    assert_equal(os.waitpid(child, 0)[1], 0)


@test
def test_server_is_killed_and_comes_back():
    sandbox = create()
    got = []
    stream = sandbox.exec_stream("for i in $(seq 60); do echo $i; sleep 0.1; done")
    for piece in stream:
        got.append(piece.text)
        if len(got) in (5, 20):
            SERVER.kill()
            threading.Timer(0.4, SERVER.start).start()
    assert_equal("".join(got).split(), [str(number) for number in range(1, 61)])
    assert_equal(stream.exit_code, 0)
    until(SERVER.answers, "huskd is back")
    # A connection that waits in the pool has died with it: no call may notice.
    assert_equal(sandbox.exec("echo still there").stdout, "still there\n")
    SERVER.kill()
    SERVER.start()
    assert_equal(sandbox.exec("echo and again").stdout, "and again\n")


# ---- asyncio ----


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 120))


@test
def test_async_everything():
    async def body():
        async with AsyncSandbox.create(metadata={"form": "async"}, ttl_seconds=600) as sandbox:
            adopt(sandbox.id)
            result = await sandbox.exec("echo out; echo err >&2; exit 2")
            assert_equal((result.stdout, result.stderr, result.exit_code), ("out\n", "err\n", 2))
            await sandbox.filesystem.write("/root/f", "text")
            assert_equal(await sandbox.filesystem.read_text("/root/f"), "text")

            async def pieces():
                for number in range(3):
                    yield str(number).encode()

            await sandbox.filesystem.write("/root/g", pieces())
            async with sandbox.filesystem.open("/root/g") as opened:
                assert_equal(b"".join([piece async for piece in opened]), b"012")
            lines = []

            async def later(text):
                lines.append(text)

            await sandbox.exec("echo a", on_stdout=later)
            assert_equal(lines, ["a\n"])
            stream = sandbox.exec_stream("echo s; exit 3")
            assert_equal([piece.text async for piece in stream], ["s\n"])
            assert_equal(stream.exit_code, 3)
            process = await sandbox.start("cat", stdin=True)
            await process.write("through")
            await process.close_stdin()
            assert_equal((await process.wait(20)).stdout, "through")
            async with sandbox.pty() as terminal:
                await terminal.write("echo t-$((2+3))\n")
                shown = b""
                while b"t-5" not in shown:
                    shown += await terminal.read(20)
                with contextlib.suppress(sdk.TimedOutError):
                    while True:
                        await terminal.read(0.3)
                await terminal.write("exit 6\n")
                assert_equal((await terminal.wait(20)).exit_code, 6)
            assert_equal((await sandbox.run_code("6*7")).text, "42")
            child, *_ = await sandbox.fork(1)
            assert_equal(await child.filesystem.read_text("/root/f"), "text")
            assert await child.kill()
            with scratch() as place:
                await sandbox.filesystem.download_dir("/root", place / "root")
                assert_equal((place / "root/f").read_text(), "text")
                await sandbox.filesystem.upload_dir(place / "root", "/root/copy")
            assert await sandbox.filesystem.exists("/root/copy/g")
            assert_equal(len(await AsyncSandbox.list(metadata={"form": "async"})), 1)
            again = await AsyncSandbox.connect(sandbox.id)
            assert_equal(again.id, sandbox.id)
            await again.aclose()
        assert_equal((await sandbox.refresh()).state, "ended")

    run(body())
    run(body())  # a second event loop meets nothing of the first


@test
def test_async_is_concurrent():
    async def body():
        async with AsyncSandbox.create() as sandbox:
            adopt(sandbox.id)
            results = await asyncio.gather(*(sandbox.exec(f"sleep 0.5; echo {number}") for number in range(10)))
            assert_equal([result.stdout for result in results], [f"{number}\n" for number in range(10)])

    run(body())


@test
def test_async_cancel_leaves_the_client_usable():
    async def body():
        async with AsyncSandbox.create() as sandbox:
            adopt(sandbox.id)
            task = asyncio.ensure_future(sandbox.exec("sleep 20; echo wrong"))
            await asyncio.sleep(0.3)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert_equal((await sandbox.exec("echo right")).stdout, "right\n")

    run(body())


# ---- tools ----


class Block:
    """As the SDKs of the models' makers give them: attributes, not keys."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


@test
def test_tools():
    sandbox = create()
    tools = Toolset(sandbox)
    assert_equal([each["name"] for each in tools.anthropic()], ["run_code", "run_shell", "read_file", "write_file"])
    for each in tools.openai():
        assert_equal((each["type"], each["function"]["parameters"]["type"]), ("function", "object"))
    json.dumps([tools.anthropic(), tools.openai()])
    block = Block(type="tool_use", id="t1", name="run_shell", input={"command": "echo hi; exit 2"})
    answer = tools.answer_anthropic(Block(content=[Block(type="text", text="…"), block]))
    assert_equal(answer["role"], "user")
    assert_equal(answer["content"][0]["tool_use_id"], "t1")
    assert_equal(answer["content"][0]["content"][0]["text"], "hi\n[exit code 2]")
    assert answer["content"][0]["is_error"]
    call = {"id": "c1", "type": "function", "function": {"name": "run_code", "arguments": '{"code": "print(6*7)"}'}}
    assert_equal(tools.answer_openai({"tool_calls": [call]}), [{"role": "tool", "tool_call_id": "c1", "content": "42"}])
    assert_equal(tools.call("run_code", {"code": "x = 1\nx + 1"}).text, "2")
    assert_in("ZeroDivisionError", tools.call("run_code", {"code": "1/0"}).text)
    assert_in("wrote 5 bytes", tools.call("write_file", {"path": "/root/a/b", "content": "a\nb\nc"}).text)
    assert_equal(tools.call("read_file", {"path": "/root/a/b"}).text, "a\nb\nc")
    assert_in("1 more lines", tools.call("read_file", {"path": "/root/a/b", "offset": 1, "limit": 1}).text)
    assert_in("ended after 0.3 seconds", tools.call("run_shell", {"command": "sleep 9", "timeout_seconds": 0.3}).text)
    for name, arguments, says in (
        ("read_file", {"path": "/root/none"}, "/root/none"),
        ("read_file", {"path": "/root"}, "directory"),
        ("read_file", {}, "needs 'path'"),
        ("run_shell", {"command": 7}, "string"),
        ("run_shell", {"cmd": "ls", "command": "ls"}, "no 'cmd'"),
        ("run_code", {"code": "1", "language": "cobol"}, "python"),
        ("delete_all", {}, "run_shell"),
    ):
        result = tools.call(name, arguments)
        assert result.is_error
        assert_in(says, result.text)
    bad = tools.openai_result({"id": "c", "function": {"name": "run_code", "arguments": "{not json"}})
    assert_in("not JSON", bad["content"])
    long = tools.run_shell("seq 100000").text
    assert len(long) < 40000 and "characters left out" in long
    sandbox.kill()
    raises(sdk.GoneError, tools.call, "run_shell", {"command": "true"})

    async def body():
        async with AsyncSandbox.create() as other:
            adopt(other.id)
            result = await AsyncToolset(other, ["run_shell"]).call("run_shell", {"command": "echo async"})
            assert_equal(result.text, "async")

    run(body())


@test
def test_deepagents():
    sys.path.append(pypi.packages())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from husk.deepagents import HuskSandbox
    sandbox = create()
    backend = HuskSandbox(sandbox)
    assert_equal(backend.id, sandbox.id)
    done = backend.execute("echo out; echo err >&2; echo more; exit 3")
    assert_equal((done.output, done.exit_code, done.truncated), ("out\nerr\nmore\n", 3, False))
    assert_in("ended after 1 seconds", backend.execute("sleep 9", timeout=1).output)
    sent = backend.upload_files([("/root/d/a.txt", b"alpha\n"), ("relative", b"x"), ("/proc/nope/x", b"x")])
    assert_equal([each.error for each in sent][:2], [None, "invalid_path"])
    assert sent[2].error
    got = backend.download_files(["/root/d/a.txt", "/root/none", "/root/d", "relative"])
    assert_equal([each.error for each in got], [None, "file_not_found", "is_directory", "invalid_path"])
    assert_equal(got[0].content, b"alpha\n")
    assert_equal(backend.read("/root/d/a.txt").file_data["content"].strip(), "alpha")
    assert backend.write("/root/d/b.txt", "beta").error is None
    assert backend.edit("/root/d/b.txt", "beta", "gamma").error is None
    assert_equal(sandbox.filesystem.read_text("/root/d/b.txt"), "gamma")
    assert_in("/root/d/b.txt", [each["path"] for each in backend.ls("/root/d").entries])
    assert_equal([each["path"] for each in backend.grep("gamma", "/root/d").matches], ["/root/d/b.txt"])


# ---- the examples ----


@test
def test_examples():
    environment = {**os.environ, "PYTHONPATH": str(SDK)}
    for name, says in (
        ("quick_start.py", "hello from the sandbox"),
        ("best_of_n.py", "kept"),
        ("agent_inside.py", "prime"),
        ("async_fan_out.py", "done"),
    ):
        done = subprocess.run(
            [sys.executable, "-W", "error", str(SDK / "examples" / name)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
        )
        assert_equal(done.returncode, 0, f"{name}: {done.stderr[-800:]}")
        assert_in(says, done.stdout, name)


def with_server():
    """The tests need the template before the server, and the server before the first of them."""
    if not (BUILD / "huskd").exists():
        print("skip all: huskd is not built")
        sys.exit(77)
    os.makedirs(f"{HOME}/run", mode=0o700, exist_ok=True)
    SERVER.start()
    try:
        main("base")
    finally:
        SERVER.stop()


if __name__ == "__main__":
    with_server()
