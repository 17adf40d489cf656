"""Daytona's Python SDK, unmodified from PyPI, against a Husk server: a line per method, and the results as JSON. The same
checks run with the blocking client and, through a small adapter, with the one for asyncio."""

import asyncio
import base64
import inspect
import json
import os
import struct
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request

import daytona
from daytona import (
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    CreateSecretParams,
    CreateSnapshotParams,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    FileDownloadRequest,
    FileUpload,
    Image,
    ListSandboxesQuery,
    Resources,
    SandboxState,
    SessionExecuteRequest,
    VolumeMount,
)
from daytona.common.errors import DaytonaFileNotFoundError, DaytonaGitBranchNotFoundError, DaytonaLspServerNotInitializedError
from daytona.common.lsp_server import LspCompletionPosition
from daytona.common.process import CodeRunParams
from daytona.common.pty import PtySize

MODE = os.environ.get("HUSK_COMPAT_MODE", "sync")
RESULTS = os.environ.get("HUSK_COMPAT_RESULTS")
ONLY = sys.argv[1:]
NEEDS = os.environ.get("HUSK_COMPAT_NEEDS")  # "code", "desktop": the checks for the template code-interpreter, desktop
_loop = asyncio.new_event_loop()
_checks, _results = [], []


class Blocking:
    """An object of the asyncio client whose coroutines are awaited at once."""

    def __init__(self, inner):
        object.__setattr__(self, "inner", inner)

    def __getattr__(self, name):
        return wrap(getattr(self.inner, name))


def unwrap(value):
    return value.inner if isinstance(value, Blocking) else value


async def _collect(items):
    return [item async for item in items]


def settle(value):
    if inspect.isawaitable(value):
        return settle(_loop.run_until_complete(value))
    if hasattr(value, "__aiter__") and not hasattr(value, "wait_for_connection"):
        return [wrap(item) for item in _loop.run_until_complete(_collect(value))]
    return wrap(value)


def wrap(value):
    if callable(value) and not isinstance(value, type):
        return lambda *args, **kwargs: settle(value(*[unwrap(a) for a in args], **{k: unwrap(v) for k, v in kwargs.items()}))
    if type(value).__module__.startswith("daytona._async") or "pty_handle" in type(value).__module__:
        return Blocking(value)
    return value


def client():
    if MODE == "sync":
        return daytona.Daytona()

    async def make():
        return daytona.AsyncDaytona()

    return Blocking(_loop.run_until_complete(make()))


def check(name, needs=None):
    """`needs`: "code" or "desktop", if it needs what only the template code-interpreter or desktop has."""

    def add(function):
        if needs == NEEDS:
            _checks.append((name, function))
        return function

    return add


def equal(found, wanted):
    assert found == wanted, f"{found!r} is not {wanted!r}"


def raises(kind, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


class Box:
    """One client and one sandbox for all checks that do not need their own."""

    client = None
    sandbox = None


def fresh(**options):
    return Box.client.create(CreateSandboxFromSnapshotParams(**options))


# ---- sandboxes


@check("daytona.create")
def create():
    sandbox = fresh(name="compat-one", labels={"team": "compat"}, env_vars={"MOOD": "calm"}, auto_stop_interval=30, auto_archive_interval=60, auto_delete_interval=120)
    try:
        equal(sandbox.state.value, "started")
        equal(sandbox.name, "compat-one")
        equal(sandbox.labels["team"], "compat")
        equal(sandbox.env, {"MOOD": "calm"})
        equal([int(sandbox.auto_stop_interval), int(sandbox.auto_archive_interval), int(sandbox.auto_delete_interval)], [30, 60, 120])
        equal(sandbox.process.exec("echo $MOOD").result, "calm\n")
        raises(DaytonaConflictError, fresh, name="compat-one")
    finally:
        sandbox.delete()


@check("create: bad input")
def create_bad():
    raises(DaytonaNotFoundError, fresh, snapshot="there-is-none")
    raises(DaytonaError, fresh, labels={"husk.x": "y"})
    raises(DaytonaError, fresh, env_vars={"NOT A NAME": "x"})


@check("daytona.get")
def get():
    found = Box.client.get(Box.sandbox.id)
    equal(found.id, Box.sandbox.id)
    equal(Box.client.get(Box.sandbox.name).id, Box.sandbox.id)
    raises(DaytonaNotFoundError, Box.client.get, "sb-aaaaaaaaaa")


@check("daytona.list")
def list_sandboxes():
    others = [fresh(labels={"page": "yes"}) for _ in range(2)]
    try:
        found = list(Box.client.list(ListSandboxesQuery(labels={"page": "yes"}, limit=1)))
        equal({each.id for each in found}, {each.id for each in others})
        equal(list(Box.client.list(ListSandboxesQuery(labels={"page": "no"}))), [])
        names = [each.id for each in Box.client.list(ListSandboxesQuery(states=[SandboxState.STARTED]))]
        assert Box.sandbox.id in names
        equal(list(Box.client.list(ListSandboxesQuery(states=[SandboxState.STOPPED], labels={"page": "yes"}))), [])
    finally:
        for each in others:
            each.delete()


@check("sandbox.delete")
def delete():
    sandbox = fresh()
    sandbox.delete(wait=True)
    raises(DaytonaNotFoundError, Box.client.get, sandbox.id)


@check("sandbox.stop, start")
def stop_start():
    sandbox = fresh()
    try:
        sandbox.fs.upload_file(b"kept", "kept.txt")
        sandbox.stop()
        equal(sandbox.state.value, "stopped")
        raises(DaytonaError, sandbox.process.exec, "true")
        sandbox.start()
        equal(sandbox.state.value, "started")
        equal(sandbox.fs.download_file("kept.txt"), b"kept")
    finally:
        sandbox.delete()


@check("sandbox.pause, archive, recover")
def pause_archive():
    sandbox = fresh()
    try:
        sandbox.pause()
        equal(sandbox.state.value, "paused")
        sandbox.start()
        raises(DaytonaError, sandbox.archive)
        sandbox.stop()
        sandbox.archive()
        equal(sandbox.state.value, "archived")
        sandbox.start()
        equal(sandbox.process.exec("echo back").result, "back\n")
        raises(DaytonaError, sandbox.recover)
    finally:
        sandbox.delete()


@check("ephemeral: deleted when stopped")
def ephemeral():
    sandbox = fresh(ephemeral=True)
    equal(int(sandbox.auto_delete_interval), 0)
    sandbox.stop()
    raises(DaytonaNotFoundError, Box.client.get, sandbox.id)


@check("sandbox.set_autostop_interval, set_auto_archive_interval, set_auto_delete_interval, set_auto_pause_interval, set_ttl")
def intervals():
    sandbox = fresh()
    try:
        sandbox.set_autostop_interval(0)
        sandbox.set_auto_pause_interval(7)
        sandbox.set_auto_archive_interval(90)
        sandbox.set_auto_delete_interval(45)
        sandbox.set_ttl(600)
        sandbox.refresh_data()
        found = [sandbox.auto_stop_interval, sandbox.auto_pause_interval, sandbox.auto_archive_interval, sandbox.auto_delete_interval]
        equal([int(each) for each in found], [0, 7, 90, 45])
        assert sandbox.auto_destroy_at
        raises(DaytonaError, sandbox.set_autostop_interval, 5)
    finally:
        sandbox.delete()


@check("sandbox.set_labels")
def labels():
    equal(Box.sandbox.set_labels({"code-toolbox-language": "python", "tier": "gold"})["tier"], "gold")
    equal(Box.client.get(Box.sandbox.id).labels["tier"], "gold")


@check("sandbox.fork")
def fork():
    Box.sandbox.fs.upload_file(b"before the fork", "forked.txt")
    child = Box.sandbox.fork(name="compat-fork")
    try:
        equal(child.fs.download_file("forked.txt"), b"before the fork")
        child.process.exec("echo child > forked.txt")
        equal(Box.sandbox.fs.download_file("forked.txt"), b"before the fork")
    finally:
        child.delete()


@check("sandbox.create_snapshot, create from it; snapshot.list, get, delete")
def snapshots():
    Box.sandbox.fs.upload_file(b"in the snapshot", "snapped.txt")
    Box.sandbox.create_snapshot("compat-snap")
    try:
        found = Box.client.snapshot.get("compat-snap")
        equal(found.state.value if hasattr(found.state, "value") else found.state, "active")
        assert any(each.name == "compat-snap" for each in Box.client.snapshot.list().items)
        sandbox = fresh(snapshot="compat-snap")
        try:
            equal(sandbox.snapshot, "compat-snap")
            equal(sandbox.fs.download_file("snapped.txt"), b"in the snapshot")
        finally:
            sandbox.delete()
    finally:
        Box.client.snapshot.delete(Box.client.snapshot.get("compat-snap"))
    raises(DaytonaNotFoundError, Box.client.snapshot.get, "compat-snap")


@check("create from an image: Dockerfile text")
def image():
    made = Image.base("base").run_commands("echo built > /opt/built").env({"FLAVOUR": "plain text"}).workdir("/opt/work")
    sandbox = Box.client.create(CreateSandboxFromImageParams(image=made), timeout=300)
    try:
        equal(sandbox.process.exec("cat /opt/built; echo $FLAVOUR").result, "built\nplain text\n")
    finally:
        sandbox.delete()
    dockerfile = (
        "ARG UNUSED=1\nFROM base\nARG VERSION=3\nENV PATH=\"/opt/bin:$PATH\" RELEASE=v${VERSION} LITERAL='$PATH' ESCAPED=\\$PATH\n"
        "ENV OLD two words\nRUN mkdir -p /opt/bin && \\\n    # a comment\n    printf '#!/bin/sh\\necho tool %s\\n' \"$VERSION\" >/opt/bin/tool && chmod +x /opt/bin/tool\n"
        'RUN ["sh", "-c", "echo \\"$RELEASE\\" >/opt/form"]\nWORKDIR /opt/$RELEASE\nRUN pwd >>/opt/form\n'
    )
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(dockerfile)
        file.flush()
        made = Image.from_dockerfile(file.name)
    sandbox = Box.client.create(CreateSandboxFromImageParams(image=made), timeout=300)
    try:
        found = sandbox.process.exec("tool; cat /opt/form; echo $LITERAL $ESCAPED $OLD; echo $PATH; echo none: $VERSION").result
        equal(found.splitlines()[:4], ["tool 3", "v3", "/opt/v3", "$PATH $PATH two words"])
        assert found.splitlines()[4].startswith("/opt/bin:/usr/"), found
        equal(found.splitlines()[5], "none:")  # an ARG is the build's alone
    finally:
        sandbox.delete()
    with tempfile.NamedTemporaryFile() as file:
        error = raises(DaytonaError, Box.client.create, CreateSandboxFromImageParams(image=Image.base("base").add_local_file(file.name, "/x")))
    assert "COPY or ADD of local files" in str(error) and "over http" in str(error), error
    error = raises(DaytonaError, Box.client.create, CreateSandboxFromImageParams(image="no/such:image"))
    assert "no/such:image" in str(error)
    error = raises(DaytonaError, Box.client.create, CreateSandboxFromImageParams(image=Image.base("base").run_commands("exit 3")), timeout=300)
    assert "exit 3" in str(error)


@check("create from an image: on_snapshot_create_logs")
def image_logs():
    said, words = [], f"said by a step at {time.time()}"
    wanted = CreateSandboxFromImageParams(name=f"logged-{MODE}", image=Image.base("base").run_commands(f"echo {words}"), labels={"of": "logs"})
    sandbox = Box.client.create(wanted, timeout=300, on_snapshot_create_logs=said.append)
    try:
        assert words in "\n".join(said).splitlines(), said
        equal([sandbox.state.value, sandbox.name, sandbox.labels["of"]], ["started", f"logged-{MODE}", "logs"])
        equal(sandbox.process.exec("echo works").result, "works\n")  # by the id that the create announced
        sandbox.refresh_data()
        equal(Box.client.get(f"logged-{MODE}").id, sandbox.id)
        error = raises(DaytonaError, Box.client.create, wanted, timeout=300)
        assert "exist" in str(error) or "name" in str(error), error
    finally:
        sandbox.delete()


@check("snapshot.create: on_logs")
def snapshot_logs():
    service, said, words = Box.client.snapshot, [], f"said by a step at {time.time()}"  # a step that is kept says nothing
    text = Image.base("base").run_commands(f"echo {words}")
    made = service.create(CreateSnapshotParams(name=f"compat:logged-{MODE}", image=text), on_logs=said.append)
    try:
        equal([made.state.value, made.name], ["active", f"compat.logged-{MODE}"])
        assert words in "\n".join(said).splitlines(), said
        assert said[-1].startswith("Created snapshot"), said
    finally:
        service.delete(made)
    failing = CreateSnapshotParams(name=f"compat:failing-{MODE}", image=Image.base("base").run_commands("echo before; exit 3"))
    said.clear()
    error = raises(DaytonaError, service.create, failing, on_logs=said.append)
    assert "exit 3" in str(error) and "before" in "\n".join(said).splitlines(), (error, said)


@check("resources: of an image, of a snapshot")
def resources():
    size = Resources(cpu=1, memory=1, disk=3)
    sandbox = Box.client.create(CreateSandboxFromImageParams(image=Image.base("base"), resources=size), timeout=300)
    try:
        equal([sandbox.cpu, sandbox.memory, sandbox.disk], [1, 1, 3])
        equal(sandbox.process.exec("nproc").result, "1\n")
    finally:
        sandbox.delete()
    made = Box.client.snapshot.create(CreateSnapshotParams(name=f"sized-{MODE}", image=Image.base("base"), resources=size), timeout=300)
    try:
        equal([made.cpu, made.mem, made.disk], [1, 1, 3])
        sandbox = fresh(snapshot=f"sized-{MODE}")
        equal([sandbox.cpu, sandbox.memory, sandbox.disk], [1, 1, 3])
        sandbox.delete()
    finally:
        Box.client.snapshot.delete(made)


@check("sandbox.refresh_activity, refresh_data, get_metrics_latest")
def activity():
    Box.sandbox.refresh_activity()
    Box.sandbox.refresh_data()
    found = Box.sandbox.get_metrics_latest()
    assert found.mem_total > 0 and found.disk_total > 0, found


@check("sandbox.update_network_settings")
def network():
    sandbox = fresh(network_block_all=True)
    try:
        equal(sandbox.network_block_all, True)
        sandbox.update_network_settings(network_block_all=False, network_allow_list="10.9.8.0/24")
        equal([sandbox.network_block_all, sandbox.network_allow_list], [False, "10.9.8.0/24"])
        sandbox.update_network_settings(network_allow_list="", domain_allow_list="example.com,*.example.org")
        equal(sandbox.domain_allow_list, "example.com,*.example.org")
        raises(DaytonaError, sandbox.update_network_settings, network_allow_list="not an address")
    finally:
        sandbox.delete()


@check("sandbox.resize")
def resize():
    sandbox = fresh()
    try:
        cpu, memory, disk = sandbox.cpu, sandbox.memory, sandbox.disk
        sandbox.resize(Resources(cpu=cpu, memory=memory + 1))  # while it runs
        equal([sandbox.cpu, sandbox.memory, sandbox.state.value], [cpu, memory + 1, "started"])
        total = int(sandbox.process.exec("sed -n 's/MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo").result)
        equal(total, (memory + 1) << 20)
        for bad, words in (
            (Resources(cpu=cpu), "No resource changes specified"),
            (Resources(memory=memory), "must be in stopped state to decrease memory"),
            (Resources(disk=disk + 1), "can only be performed on a stopped sandbox"),
        ):
            error = raises(DaytonaError, sandbox.resize, bad)
            equal(error.status_code, 400)
            assert words in str(error), error
        sandbox.stop()
        equal(raises(DaytonaError, sandbox.resize, Resources(disk=disk + 1)).status_code, 501)
        sandbox.resize(Resources(cpu=1, memory=memory))
        sandbox.start()
        equal([sandbox.cpu, sandbox.memory, sandbox.process.exec("nproc").result], [1, memory, "1\n"])
    finally:
        sandbox.delete()


@check("sandbox.create_ssh_access: refused by name")
def refused():
    equal(raises(DaytonaError, Box.sandbox.create_ssh_access).status_code, 501)


@check("computer_use: a sandbox without a desktop")
def no_desktop():
    for call in (Box.sandbox.computer_use.start, Box.sandbox.computer_use.get_status, Box.sandbox.computer_use.screenshot.take_full_screen):
        error = raises(DaytonaError, call)
        equal(error.status_code, 503)
        assert "desktop" in str(error), error


@check("sandbox.get_user_home_dir, get_work_dir")
def directories():
    equal(Box.sandbox.get_user_home_dir(), "/home/daytona")
    equal(Box.sandbox.get_work_dir(), "/home/daytona")


@check("sandbox.update_env")
def environment():
    Box.sandbox.update_env({"LATER": "set"}, unset=["GONE"])
    equal(Box.sandbox.process.exec("echo $LATER").result, "set\n")


# ---- processes


@check("process.exec")
def execute():
    run = Box.sandbox.process.exec
    equal([run("echo hello").exit_code, run("echo hello").result], [0, "hello\n"])
    equal(run("exit 7").exit_code, 7)
    equal(run("echo one; echo two >&2").result, "one\ntwo\n")
    equal(run("pwd", cwd="/tmp").result, "/tmp\n")
    Box.sandbox.fs.create_folder("work", "755")
    equal(run("pwd", cwd="work").result, "/home/daytona/work\n")
    equal(run("echo $A-$B", env={"A": "1", "B": "a b"}).result, "1-a b\n")
    equal(run("whoami").result, "daytona\n")
    equal(run("printf 'ä€'").result, "ä€")
    equal(len(run("head -c 300000 /dev/zero | tr '\\0' x").result), 300000)
    equal(run("true\n# a comment\necho $((1 + 1)); [[ a == a ]] && echo bash").result, "2\nbash\n")
    raises(DaytonaError, run, "true", cwd="/no/such/directory")
    raises(DaytonaError, run, "")


@check("process.exec: timeout")
def execute_timeout():
    started = time.monotonic()
    error = raises(DaytonaError, Box.sandbox.process.exec, "sleep 60", timeout=1)
    equal(error.status_code, 408)
    assert time.monotonic() - started < 50


@check("process.code_run")
def code_run():
    run = Box.sandbox.process.code_run
    equal(run("print(sum(range(10)))").result, "45\n")
    equal(run("import sys, os\nprint(sys.argv[1:], os.environ['X'])", CodeRunParams(argv=["a", "b c"], env={"X": "y"})).result, "['a', 'b c'] y\n")
    failed = run("raise ValueError('no')")
    equal(failed.exit_code, 1)
    assert "ValueError: no" in failed.result
    equal(run("import sys; sys.exit(3)").exit_code, 3)
    told = run("import os\nprint(*[os.environ['DAYTONA_SANDBOX_' + name] for name in ('ID', 'SNAPSHOT', 'USER')])").result
    equal(told, f"{Box.sandbox.id} {Box.sandbox.snapshot} daytona\n")


@check("process.create_session, execute_session_command, get_session, list_sessions, delete_session")
def sessions():
    process = Box.sandbox.process
    process.create_session("build")
    raises(DaytonaConflictError, process.create_session, "build")
    run = lambda command: process.execute_session_command("build", SessionExecuteRequest(command=command))
    run("cd /tmp && export WHO=session")
    found = run("echo $WHO in $(pwd); echo oops >&2; false")
    equal([found.exit_code, found.stdout, found.stderr], [1, "session in /tmp\n", "oops\n"])
    equal(found.output, "session in /tmp\noops\n")
    equal(run("if true; then echo nested; fi").stdout, "nested\n")
    equal(run("syntax error here (").exit_code != 0, True)
    equal(run("echo still there").stdout, "still there\n")
    equal([each.exit_code for each in process.get_session("build").commands][:2], [0, 1])
    assert "build" in [each.session_id for each in process.list_sessions()]
    raises(DaytonaNotFoundError, process.execute_session_command, "none", SessionExecuteRequest(command="true"))
    process.delete_session("build")
    raises(DaytonaNotFoundError, process.get_session, "build")


@check("process: session commands in the background, logs, input")
def background():
    process = Box.sandbox.process
    process.create_session("bg")
    started = process.execute_session_command("bg", SessionExecuteRequest(command="echo first; read line; echo got $line; echo bad >&2; exit_code=4; (exit 4)", run_async=True))
    assert started.cmd_id and started.exit_code is None
    equal(process.get_session_command("bg", started.cmd_id).exit_code, None)
    process.send_session_command_input("bg", started.cmd_id, "some input")
    out, err = [], []
    follow = lambda: process.get_session_command_logs_async("bg", started.cmd_id, out.append, err.append)
    if MODE == "sync":
        _loop.run_until_complete(follow())
    else:
        follow()
    equal("".join(out), "first\nsome input\ngot some input\n")
    equal("".join(err), "bad\n")
    equal(process.get_session_command("bg", started.cmd_id).exit_code, 4)
    logs = process.get_session_command_logs("bg", started.cmd_id)
    equal([logs.stdout, logs.stderr], ["first\nsome input\ngot some input\n", "bad\n"])
    error = raises(DaytonaError, process.send_session_command_input, "bg", started.cmd_id, "too late")
    equal(error.status_code, 410)
    process.delete_session("bg")


@check("process: a session whose shell ends")
def session_ends():
    process = Box.sandbox.process
    process.create_session("ends")
    raises(DaytonaError, process.execute_session_command, "ends", SessionExecuteRequest(command="exit 5"))
    error = raises(DaytonaError, process.execute_session_command, "ends", SessionExecuteRequest(command="true"))
    equal(error.status_code, 410)
    process.delete_session("ends")


@check("process.create_pty_session, list, info, resize")
def pty():
    process = Box.sandbox.process
    seen = []
    take = seen.append
    if MODE == "sync":
        handle = process.create_pty_session(id="term", pty_size=PtySize(rows=30, cols=100), envs={"FROM_ENV": "given"})
    else:
        handle = process.create_pty_session("term", take, pty_size=PtySize(rows=30, cols=100), envs={"FROM_ENV": "given"})
    found = process.get_pty_session_info("term")
    equal([found.rows, found.cols, found.active], [30, 100, True])
    equal([each.id for each in process.list_pty_sessions()], ["term"])
    resized = process.resize_pty_session("term", PtySize(rows=40, cols=120))
    equal([resized.rows, resized.cols], [40, 120])
    equal(process.get_pty_session_info("term").cols, 120)
    handle.send_input("echo $FROM_ENV $(stty size); exit 3\n")
    result = handle.wait(take) if MODE == "sync" else handle.wait()
    text = b"".join(seen).decode()
    assert "given 40 120" in text, text
    equal(result.exit_code, 3)
    raises(DaytonaNotFoundError, process.get_pty_session_info, "term")


@check("process.kill_pty_session")
def pty_kill():
    process = Box.sandbox.process
    handle = process.create_pty_session(id="victim") if MODE == "sync" else process.create_pty_session("victim", lambda data: None)
    process.kill_pty_session("victim")
    handle.wait()
    raises(DaytonaNotFoundError, process.kill_pty_session, "victim")
    handle.disconnect()


# ---- code interpreter


@check("code_interpreter.run_code, contexts")
def interpreter():
    interpreter = Box.sandbox.code_interpreter
    interpreter.run_code("x = 41")
    equal(interpreter.run_code("print(x + 1)").stdout, "42\n")
    equal(interpreter.run_code("x").stdout, "")
    ended = interpreter.run_code("import sys; print('before'); sys.exit(3)")
    equal([ended.stdout, ended.error], ["before\n", None])
    failed = interpreter.run_code("1 / 0")
    equal(failed.error.name, "ZeroDivisionError")
    context = interpreter.create_context()
    assert "NameError" in interpreter.run_code("print(x)", context=context).error.name
    equal(interpreter.run_code("import os; print(os.environ['Q'])", envs={"Q": "a"}).stdout, "a\n")
    assert context.id in [each.id for each in interpreter.list_contexts()]
    interpreter.delete_context(context)
    raises(daytona.DaytonaTimeoutError, interpreter.run_code, "import time; time.sleep(60)", timeout=1)


# ---- files


@check("fs.upload_file, upload_files, download_file, download_files")
def transfer():
    fs = Box.sandbox.fs
    fs.upload_file(b"bytes \x00\xff", "a/b/c.bin")
    equal(fs.download_file("a/b/c.bin"), b"bytes \x00\xff")
    equal(fs.download_file("/home/daytona/a/b/c.bin"), b"bytes \x00\xff")
    big = os.urandom(3 << 20)
    with tempfile.TemporaryDirectory() as place:
        with open(f"{place}/big", "wb") as file:
            file.write(big)
        fs.upload_file(f"{place}/big", "big.bin")
        fs.download_file("big.bin", f"{place}/again")
        with open(f"{place}/again", "rb") as file:
            assert file.read() == big
    fs.upload_files([FileUpload(f"content {i}".encode(), f"many/{i} ü.txt") for i in range(5)])
    found = fs.download_files([FileDownloadRequest(source=f"many/{i} ü.txt") for i in range(5)] + [FileDownloadRequest(source="many/none")])
    equal([each.result for each in found[:5]], [f"content {i}".encode() for i in range(5)])
    assert found[5].error
    raises(DaytonaNotFoundError, fs.download_file, "many/none")
    equal(fs.get_file_info("a/b/c.bin").permissions, "0644")
    raises(DaytonaError, fs.upload_file, b"x", "/etc/denied")
    Box.sandbox.process.exec("echo secret > shut; chmod 000 shut")
    raises(DaytonaError, fs.download_file, "shut")


@check("fs: a write is in place")
def in_place():
    fs = Box.sandbox.fs
    Box.sandbox.process.exec("echo old > script.sh; chmod 751 script.sh; ln -f script.sh other-name")
    fs.upload_file(b"new\n", "script.sh")
    equal(Box.sandbox.process.exec("cat other-name; stat -c %a script.sh").result, "new\n751\n")


@check("fs.upload_file_stream, download_file_stream")
def streams():
    fs = Box.sandbox.fs
    fs.upload_file_stream(b"streamed" * 1000, "stream.txt")
    parts = fs.download_file_stream("stream.txt")
    equal(b"".join(parts), b"streamed" * 1000)


@check("fs.list_files, get_file_info, create_folder, delete_file, move_files, set_file_permissions")
def tree():
    fs = Box.sandbox.fs
    fs.create_folder("tree/deep", "750")
    fs.upload_file(b"12345", "tree/file.txt")
    found = {each.name: each for each in fs.list_files("tree")}
    equal(sorted(found), ["deep", "file.txt"])
    equal([found["deep"].is_dir, found["file.txt"].is_dir, found["file.txt"].size], [True, False, 5])
    equal([found["deep"].permissions, found["deep"].mode], ["0750", "drwxr-x---"])
    fs.move_files("tree/file.txt", "tree/deep/moved.txt")
    equal(sorted(each.path for each in fs.list_files("tree", depth=2)), ["/home/daytona/tree/deep", "/home/daytona/tree/deep/moved.txt"])
    fs.set_file_permissions("tree/deep/moved.txt", mode="600")
    equal(fs.get_file_info("tree/deep/moved.txt").permissions, "0600")
    raises(DaytonaError, fs.delete_file, "tree")
    fs.delete_file("tree/deep/moved.txt")
    fs.delete_file("tree", recursive=True)
    raises(DaytonaNotFoundError, fs.get_file_info, "tree")
    raises(DaytonaNotFoundError, fs.list_files, "tree")
    raises(DaytonaNotFoundError, fs.move_files, "tree", "elsewhere")


@check("fs.find_files, search_files, replace_in_files")
def search():
    fs = Box.sandbox.fs
    fs.upload_files([FileUpload(b"alpha\nTODO: one\n", "code/a.py"), FileUpload(b"TODO: two.*\n", "code/sub/b.py"), FileUpload(b"x", "code/c.txt")])
    found = {(each.file, each.line, each.content) for each in fs.find_files("code", "TODO:")}
    equal(found, {("/home/daytona/code/a.py", 2, "TODO: one"), ("/home/daytona/code/sub/b.py", 1, "TODO: two.*")})
    equal(len(fs.find_files("code", "two.*")), 1)
    equal(sorted(fs.search_files("code", "*.py").files), ["/home/daytona/code/a.py", "/home/daytona/code/sub/b.py"])
    equal(fs.search_files("code", "sub/**/*.py").files, ["/home/daytona/code/sub/b.py"])
    fs.upload_file(b"x", "100%d\\n/odd.txt")
    equal(fs.search_files("100%d\\n", "*.txt").files, ["/home/daytona/100%d\\n/odd.txt"])
    equal(fs.search_files("code/none", "*.py").files, [])
    results = fs.replace_in_files(["code/a.py", "code/none"], "TODO", "DONE")
    equal([each.success for each in results], [True, False])
    equal(fs.download_file("code/a.py"), b"alpha\nDONE: one\n")


@check("sandbox.download_url, upload_url, rotate_signing_key")
def signed():
    Box.sandbox.fs.upload_file(b"signed", "signed.txt")
    url = Box.sandbox.download_url("signed.txt")
    equal(urllib.request.urlopen(url, timeout=30).read(), b"signed")
    broken = raises(urllib.error.HTTPError, urllib.request.urlopen, url.replace("signed.txt", "other.txt"), timeout=30)
    equal(broken.code, 401)
    boundary = "----compat"
    body = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nuploaded\r\n--{boundary}--\r\n'.encode()
    post = urllib.request.Request(Box.sandbox.upload_url("up.txt"), data=body, headers={"Content-Type": f"multipart/form-data; boundary={boundary}"})
    urllib.request.urlopen(post, timeout=30).read()
    equal(Box.sandbox.fs.download_file("up.txt"), b"uploaded")
    Box.sandbox.rotate_signing_key()
    equal(raises(urllib.error.HTTPError, urllib.request.urlopen, url, timeout=30).code, 401)


# ---- git


@check("git.init, add, commit, status, branches, checkout, clone, push, pull")
def git():
    git, run = Box.sandbox.git, Box.sandbox.process.exec
    git.init("repo", initial_branch="main")
    Box.sandbox.fs.upload_file(b"one\n", "repo/file.txt")
    status = git.status("repo")
    equal([status.current_branch, status.file_status[0].name], ["main", "file.txt"])
    git.add("repo", ["file.txt"])
    commit = git.commit("repo", "the first", "Ann Author", "ann@example.com")
    equal(len(commit.sha), 40)
    Box.sandbox.fs.upload_file(b"a name of one letter", "repo/x")
    equal([(each.name, each.worktree.value) for each in git.status("repo").file_status], [("x", "Untracked")])
    Box.sandbox.fs.delete_file("repo/x")
    raises(DaytonaFileNotFoundError, git.add, "repo", ["none.txt"])
    raises(DaytonaGitBranchNotFoundError, git.checkout_branch, "repo", "none")
    equal(type(raises(DaytonaConflictError, git.delete_branch, "repo", "main")), DaytonaConflictError)  # it is checked out
    git.create_branch("repo", "feature")
    equal(sorted(git.branches("repo").branches), ["feature", "main"])
    git.checkout_branch("repo", "main")
    git.delete_branch("repo", "feature")
    equal(git.branches("repo").branches, ["main"])
    run("git clone -q --bare repo remote.git")
    git.clone("/home/daytona/remote.git", "clone")
    Box.sandbox.fs.upload_file(b"two\n", "clone/second.txt")
    git.add("clone", ["."])
    git.commit("clone", "the second", "Ann Author", "ann@example.com")
    equal(git.status("clone").ahead, 1)
    git.push("clone")
    equal(git.status("clone").ahead, 0)
    git.clone("/home/daytona/remote.git", "third")
    equal(run("cat third/second.txt").result, "two\n")
    git.pull("clone")
    raises(DaytonaError, git.clone, "/no/such/repository", "fourth")
    raises(DaytonaError, git.status, "no-repository")


# ---- the rest


@check("volume.create, list, get, delete; mounted, with subpath")
def volumes():
    volume = Box.client.volume.create("compat-volume")
    try:
        equal(Box.client.volume.get("compat-volume").id, volume.id)
        assert volume.id in [each.id for each in Box.client.volume.list()]
        for content in ("first", "second"):
            sandbox = fresh(volumes=[VolumeMount(volume_id=volume.id, mount_path="/home/daytona/data")])
            try:
                equal([(each.volume_id, each.mount_path) for each in sandbox.volumes], [(volume.id, "/home/daytona/data")])
                if content == "second":
                    equal(sandbox.process.exec("sudo cat /home/daytona/data/f 2>/dev/null || cat /home/daytona/data/f").result, "first\n")
                sandbox.process.exec(f"echo {content} > /tmp/f; sudo cp /tmp/f /home/daytona/data/f || cp /tmp/f /home/daytona/data/f")
            finally:
                sandbox.delete()
        sandbox = fresh(volumes=[VolumeMount(volume_id=volume.id, mount_path="/one", subpath="users/one"), VolumeMount(volume_id=volume.id, mount_path="/all")])
        try:
            equal([each.subpath for each in sandbox.volumes], ["users/one", None])
            equal(sandbox.process.exec("echo mine >/one/f; ls /one; cat /all/users/one/f; ls /one/..//all").result, "f\nmine\nf\nusers\n")
        finally:
            sandbox.delete()
        equal(raises(DaytonaError, fresh, volumes=[VolumeMount(volume_id=volume.id, mount_path="/one", subpath="../other")]).status_code, 400)
    finally:
        Box.client.volume.delete(volume)
    raises(DaytonaNotFoundError, Box.client.volume.get, "compat-volume")
    raises(DaytonaError, fresh, volumes=[VolumeMount(volume_id="none", mount_path="/data")])


@check("secret.create, list, delete; in a sandbox as a placeholder")
def secrets():
    made = Box.client.secret.create(CreateSecretParams(name="COMPAT_Key", value="the-secret-value", hosts=["api.example.com"]))
    try:
        equal([made.name, made.hosts], ["COMPAT_Key", ["api.example.com"]])
        assert made.id in [each.id for each in Box.client.secret.list().items]
        sandbox = fresh(secrets={"API_KEY": "COMPAT_Key"})
        try:
            seen = sandbox.process.exec("echo $API_KEY").result.strip()
            assert seen and seen != "the-secret-value", seen
        finally:
            sandbox.delete()
    finally:
        Box.client.secret.delete(made.id)
    raises(Exception, Box.client.secret.get, made.id)  # the SDK passes its own on


def fetch(url, headers=None):
    """By the address of the server: names below .localhost need no resolver here."""
    parts = urllib.parse.urlsplit(url)
    request = urllib.request.Request(f"http://127.0.0.1:{parts.port}{parts.path or '/'}", headers={"Host": parts.netloc, **(headers or {})})
    try:
        return urllib.request.urlopen(request, timeout=30).status
    except urllib.error.HTTPError as error:
        return error.code


@check("sandbox.get_preview_link, create_signed_preview_url, expire_signed_preview_url, set_public")
def previews():
    Box.sandbox.process.exec("mkdir -p www && cd www && nohup python3 -m http.server 8123 >/dev/null 2>&1 &")
    link = Box.sandbox.get_preview_link(8123)
    deadline = time.monotonic() + 60
    while fetch(link.url, {"X-Daytona-Preview-Token": link.token}) != 200 and time.monotonic() < deadline:
        time.sleep(0.2)
    equal(fetch(link.url, {"X-Daytona-Preview-Token": link.token}), 200)
    assert fetch(link.url) in (401, 403)
    assert fetch(link.url, {"X-Daytona-Preview-Token": "wrong"}) in (401, 403)
    signed = Box.sandbox.create_signed_preview_url(8123, 300)
    equal(fetch(signed.url), 200)
    Box.sandbox.expire_signed_preview_url(8123, signed.token)
    assert fetch(signed.url) in (401, 403, 404)
    Box.sandbox.set_public(True)
    equal(fetch(link.url), 200)
    Box.sandbox.set_public(False)
    assert fetch(link.url) in (401, 403)


# ---- what needs the template code-interpreter


PROGRAM_PY = "import os\n\n\nclass Greeter:\n    def greet(self, name):\n        return os.path.join('/', name)\n\n\ndef main():\n    return Greeter().gr\n"
PROGRAM_TS = "export class Greeter {\n  greet(name: string): string {\n    return 'hello ' + name\n  }\n}\n\nconst text = new Greeter().gr\n"


DRAWING = """import datetime, sys
import matplotlib.pyplot as plt
print("drawing", sys.argv[1:], __name__)
plt.plot([datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)], [3, 4], label="sales")
plt.title("Sales")
plt.show()
plt.bar(["a", "b"], [1, 2.5])
plt.show()
plt.subplots(1, 2)
plt.show()
"""


@check("process.code_run: charts", needs="code")
def code_run_charts():
    run = Box.sandbox.process.code_run
    done = run(DRAWING, CodeRunParams(argv=["x"]))
    equal([done.exit_code, done.result], [0, "drawing ['x'] __main__\n"])
    line, bar, both = done.artifacts.charts
    equal([line.type, line.title, line.elements[0].label, [point[1] for point in line.elements[0].points]], ["line", "Sales", "sales", [3, 4]])
    equal(len(line.x_ticks), len(line.x_tick_labels))
    equal([(each.label, each.value) for each in bar.elements], [("a", "1.0"), ("b", "2.5")])
    equal([both.type, len(both.elements)], ["composite_chart", 2])
    assert all(base64.b64decode(chart.png).startswith(b"\x89PNG") for chart in (line, bar, both))
    failed = run("import matplotlib\ndef f():\n    return 1 / 0\nf()\n")
    equal([failed.exit_code, failed.artifacts.charts], [1, []])
    equal(failed.result.splitlines()[:2], ["Traceback (most recent call last):", '  File "<string>", line 4, in <module>'])
    equal(run("import matplotlib, sys; sys.exit(3)").exit_code, 3)


@check("process.code_run: typescript, javascript", needs="code")
def code_run_node():
    for language, code in (("typescript", "enum E { two = 2 }\nconst n: number = 40\nconsole.log(n + E.two)"), ("javascript", "console.log(6 * 7)")):
        sandbox = fresh(language=language)
        try:
            equal(sandbox.process.code_run(code).result, "42\n")
            equal(sandbox.process.code_run("throw new Error('broken')").exit_code, 1)
        finally:
            sandbox.delete()


def language_server(language, file, program, line):
    """A server for a project that has one file, whose last word can be completed."""
    Box.sandbox.fs.upload_file(program.encode(), f"lsp/{language} project/{file}")
    project = f"/home/daytona/lsp/{language} project"
    server = Box.sandbox.create_lsp_server(language, project)
    raises(DaytonaLspServerNotInitializedError, server.did_open, f"{project}/{file}")
    server.start()
    server.start()  # it runs already
    server.did_open(f"{project}/{file}")
    symbols = {symbol.name: symbol for symbol in server.document_symbols(f"{project}/{file}")}
    assert {"Greeter", "greet"} <= set(symbols), set(symbols)
    equal(symbols["Greeter"].kind, 5)
    equal(symbols["Greeter"].location.uri, f"file:///home/daytona/lsp/{language}%20project/{file}")
    equal(symbols["greet"].location.range.start.line, symbols["Greeter"].location.range.start.line + 1)
    character = len(program.splitlines()[line])
    found = server.completions(f"{project}/{file}", LspCompletionPosition(line=line, character=character))
    labels = [item.label for item in found.items]
    assert any(label.startswith("greet") for label in labels), labels[:20]
    relative = Box.sandbox.create_lsp_server(language, f"lsp/{language} project")  # the same, as a client may also name it
    equal(len(relative.document_symbols(file)), len(symbols))
    equal(len(relative.document_symbols(f"lsp/{language} project/{file}")), len(symbols))  # from the home
    return server, f"{project}/{file}"


@check("sandbox.create_lsp_server: python", needs="code")
def lsp_python():
    server, path = language_server("python", "main.py", PROGRAM_PY, 9)
    found = {symbol.name: symbol for symbol in server.sandbox_symbols("Greeter")}
    equal((found["Greeter"].kind, found["Greeter"].location.uri.split("/")[-1]), (5, "main.py"))
    equal(server.workspace_symbols("nothing-of-this-name"), [])
    raises(DaytonaNotFoundError, server.did_open, path + ".none")
    server.did_close(path)
    server.stop()
    raises(DaytonaLspServerNotInitializedError, server.document_symbols, path)
    raises(DaytonaLspServerNotInitializedError, server.stop)


@check("sandbox.create_lsp_server: typescript", needs="code")
def lsp_typescript():
    server, path = language_server("typescript", "main.ts", PROGRAM_TS, 6)
    equal([symbol.name for symbol in server.workspace_symbols("Greeter")], ["Greeter"])
    equal([symbol.name for symbol in server.sandbox_symbols("Greeter")], ["Greeter"])
    server.did_close(path)
    server.stop()


@check("sandbox.create_lsp_server: javascript", needs="code")
def lsp_javascript():
    server, path = language_server("javascript", "main.js", PROGRAM_TS.replace(": string", ""), 6)
    server.did_close(path)
    server.stop()


# ---- what needs the template desktop


def size_of(image):
    """Width and height of a picture in base64, by its first bytes."""
    data = base64.b64decode(image)
    if data.startswith(b"\x89PNG"):
        return struct.unpack(">II", data[16:24])
    at = 2  # JPEG: to the frame header
    while data[at + 1] not in (0xC0, 0xC2):
        at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    return struct.unpack(">HH", data[at + 5 : at + 9])[::-1]


def pointer():
    place = Box.sandbox.process.exec("DISPLAY=:0 xdotool getmouselocation").result
    return [int(word.split(":")[1]) for word in place.split()[:2]]


def window(title):
    """The window whose title has this text, when it is there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for each in Box.sandbox.computer_use.display.get_windows().windows:
            if title in each.title:
                return each
        time.sleep(0.1)
    raise AssertionError(f"no window has the title {title}")


@check("computer_use.start, get_status, get_process_status, get_process_logs, get_process_errors", needs="desktop")
def computer_start():
    computer = Box.sandbox.computer_use
    equal(computer.get_status().status, "partial")  # the display is there from the beginning
    started = computer.start()
    equal({name: each.running for name, each in started.status.items()}, {"xvfb": True, "xfce4": True, "x11vnc": True, "novnc": True})
    assert started.status["xvfb"].pid > 1
    equal(computer.get_status().status, "active")
    equal(computer.get_process_status("xfce4").running, True)
    assert "5901" in computer.get_process_logs("x11vnc").logs + computer.get_process_errors("x11vnc").errors
    raises(DaytonaError, computer.get_process_status, "none")
    link = Box.sandbox.get_preview_link(6080)
    equal(fetch(link.url + "/vnc.html", {"X-Daytona-Preview-Token": link.token}), 200)


@check("computer_use.display.get_info, get_windows", needs="desktop")
def computer_display():
    shown = Box.sandbox.computer_use.display.get_info().displays
    equal([(each.width, each.height, each.is_active) for each in shown], [(1280, 800, True)])
    Box.sandbox.process.exec("DISPLAY=:0 setsid mousepad --disable-server note.txt >/dev/null 2>&1 </dev/null &")
    found = window("note.txt")
    assert found.width > 100 and found.height > 100 and found.id > 0, found


@check("computer_use.screenshot.take_full_screen, take_region, take_compressed, take_compressed_region", needs="desktop")
def computer_screenshot():
    from daytona import ScreenshotOptions, ScreenshotRegion

    shot = Box.sandbox.computer_use.screenshot
    whole = shot.take_full_screen()
    equal(size_of(whole.screenshot), (1280, 800))
    Box.sandbox.computer_use.mouse.move(300, 200)
    seen = shot.take_full_screen(show_cursor=True)
    equal([seen.cursor_position.x, seen.cursor_position.y], [300, 200])
    assert seen.screenshot != shot.take_full_screen(show_cursor=False).screenshot
    region = ScreenshotRegion(x=10, y=20, width=200, height=100)
    equal(size_of(shot.take_region(region).screenshot), (200, 100))
    small = shot.take_compressed(ScreenshotOptions(fmt="jpeg", quality=50, scale=0.5))
    equal(size_of(small.screenshot), (640, 400))
    equal(small.size_bytes, len(base64.b64decode(small.screenshot)))
    assert small.size_bytes < len(base64.b64decode(whole.screenshot))
    equal(size_of(shot.take_compressed_region(region, ScreenshotOptions(fmt="png", scale=0.5)).screenshot), (100, 50))
    raises(DaytonaError, shot.take_region, ScreenshotRegion(x=0, y=0, width=0, height=0))


@check("computer_use.mouse.move, get_position, click, drag, down, up, scroll", needs="desktop")
def computer_mouse():
    mouse = Box.sandbox.computer_use.mouse
    moved = mouse.move(123, 234)
    equal([moved.x, moved.y], [123, 234])
    equal(pointer(), [123, 234])
    place = mouse.get_position()
    equal([place.x, place.y], [123, 234])
    before = window("note.txt")
    at = (before.x + before.width // 2, before.y + 12)  # its title
    dragged = mouse.drag(at[0], at[1], at[0] + 60, at[1] + 40)
    equal([dragged.x, dragged.y], [at[0] + 60, at[1] + 40])
    after = window("note.txt")
    assert abs(after.x - before.x - 60) <= 10 and abs(after.y - before.y - 40) <= 10, (before, after)
    clicked = mouse.click(after.x + 100, after.y + 150)
    equal([clicked.x, clicked.y], [after.x + 100, after.y + 150])
    equal(mouse.scroll(after.x + 100, after.y + 150, "down", 2), True)
    equal(mouse.scroll(after.x + 100, after.y + 150, "right", 1, modifiers=["ctrl"]), True)
    mouse.down(after.x + 50, after.y + 150)
    up = mouse.up(after.x + 90, after.y + 150)
    equal([up.x, up.y], [after.x + 90, after.y + 150])
    for broken in (lambda: mouse.click(5000, 10), lambda: mouse.click(1, 1, "fourth"), lambda: mouse.scroll(1, 1, "inwards"), lambda: mouse.click(1, 1, clicks=0)):
        equal(raises(DaytonaError, broken).status_code, 400)


@check("computer_use.keyboard.type, press, hotkey, down, up", needs="desktop")
def computer_keyboard():
    computer, keyboard = Box.sandbox.computer_use, Box.sandbox.computer_use.keyboard
    place = window("note.txt")
    computer.mouse.click(place.x + 100, place.y + 150)
    keyboard.type("hello wörld")
    keyboard.press("enter")
    keyboard.type("ab", delay=20)
    keyboard.press("a", ["shift"])
    keyboard.press("num_plus")
    keyboard.press("Return")
    computer.mouse.click(place.x + 100, place.y + 150, clicks=1)
    keyboard.down("shift")
    keyboard.press("b")
    keyboard.up("shift")
    keyboard.hotkey("ctrl + s")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not Box.sandbox.process.exec("cat note.txt 2>/dev/null || true").result:
        time.sleep(0.1)
    text = Box.sandbox.process.exec("cat note.txt 2>/dev/null || true").result
    assert text.startswith("hello wörld\nabA+\n") and "B" in text, text
    equal(raises(DaytonaError, keyboard.press, "nosuchkey").status_code, 400)
    equal(raises(DaytonaError, keyboard.press, "!").status_code, 400)
    equal(raises(DaytonaError, keyboard.press, "a", ["hyper"]).status_code, 400)
    equal(raises(DaytonaError, keyboard.hotkey, "ctrl+").status_code, 400)


@check("computer_use.recording.start, list, get, stop, download, delete", needs="desktop")
def computer_recording():
    recording = Box.sandbox.computer_use.recording
    equal(recording.list().recordings, [])
    made = recording.start("the first")
    equal(made.status, "recording")
    raises(DaytonaError, recording.delete, made.id)
    for step in range(10):
        Box.sandbox.computer_use.mouse.move(100 + 20 * step, 300)
    done = recording.stop(made.id)
    equal([done.id, done.status], [made.id, "completed"])
    assert done.duration_seconds > 0 and done.size_bytes > 1000 and "the first" in done.file_name, done
    equal([each.id for each in recording.list().recordings], [made.id])
    equal(recording.get(made.id).file_path, done.file_path)
    with tempfile.TemporaryDirectory() as folder:
        recording.download(made.id, f"{folder}/out.mp4")
        with open(f"{folder}/out.mp4", "rb") as file:
            data = file.read()
    equal([len(data), data[4:8]], [done.size_bytes, b"ftyp"])
    probe = f"ffprobe -v error -select_streams v -count_frames -show_entries stream=codec_name,width,height,nb_read_frames -of csv=p=0 '{done.file_path}'"
    codec, width, height, frames = Box.sandbox.process.exec(probe).result.strip().split(",")
    equal([codec, width, height], ["h264", "1280", "800"])
    assert int(frames) >= 2, frames
    recording.delete(made.id)
    raises(DaytonaNotFoundError, recording.get, made.id)
    raises(DaytonaNotFoundError, recording.stop, made.id)
    equal(raises(DaytonaError, recording.start, "a/b").status_code, 400)


@check("computer_use.accessibility: refused by name", needs="desktop")
def computer_accessibility():
    error = raises(DaytonaError, Box.sandbox.computer_use.accessibility.get_tree)
    equal(error.status_code, 501)
    assert "accessibility" in str(error), error


@check("computer_use.restart_process, stop", needs="desktop")
def computer_stop():
    computer = Box.sandbox.computer_use
    computer.restart_process("novnc")
    equal(computer.get_process_status("novnc").running, True)
    stopped = computer.stop()
    equal([each.running for each in stopped.status.values()], [False] * 4)
    equal(computer.get_status().status, "inactive")
    raises(DaytonaError, computer.screenshot.take_full_screen)
    computer.start()
    equal(size_of(computer.screenshot.take_full_screen().screenshot), (1280, 800))


def main():
    Box.client = client()
    Box.sandbox = fresh(snapshot="desktop") if NEEDS == "desktop" else Box.client.create()
    bad = 0
    for name, function in _checks:
        if ONLY and function.__name__ not in ONLY:
            continue
        try:
            function()
            result = "yes"
            print(f"ok {MODE}: {name}", flush=True)
        except Exception as error:  # every check is its own
            bad += 1
            result = "no"
            print(f"not ok {MODE}: {name}: {type(error).__name__}: {error}", flush=True)
            if os.environ.get("HUSK_COMPAT_TRACE"):
                traceback.print_exc()
        _results.append({"method": name, "result": result})
    Box.sandbox.delete()
    if RESULTS:
        with open(RESULTS, "w", encoding="utf-8") as file:
            json.dump(_results, file)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
