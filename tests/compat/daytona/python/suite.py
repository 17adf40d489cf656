"""Daytona's Python SDK, unmodified from PyPI, against a Husk server: a line per method, and the results as JSON. The same
checks run with the blocking client and, through a small adapter, with the one for asyncio."""

import asyncio
import inspect
import json
import os
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
FULL = "HUSK_COMPAT_FULL" in os.environ
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


def check(name, full=False):
    """`full`: it needs what only the template code-interpreter has."""

    def add(function):
        if full == FULL:
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


@check("sandbox.resize: refused by name")
def resize():
    error = raises(DaytonaError, Box.sandbox.resize, Resources(cpu=2))
    equal(error.status_code, 501)


@check("sandbox.create_ssh_access, computer_use: refused by name")
def refused():
    equal(raises(DaytonaError, Box.sandbox.create_ssh_access).status_code, 501)
    error = raises(DaytonaError, Box.sandbox.computer_use.start)
    equal(error.status_code, 501)
    assert "computer use" in str(error)


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


@check("volume.create, list, get, delete; mounted")
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


@check("process.code_run: typescript, javascript", full=True)
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
    return server, f"{project}/{file}"


@check("sandbox.create_lsp_server: python", full=True)
def lsp_python():
    server, path = language_server("python", "main.py", PROGRAM_PY, 9)
    error = raises(DaytonaError, server.workspace_symbols, "Greeter")  # pylsp has none
    assert "pylsp refused workspace/symbol" in str(error), error
    raises(DaytonaNotFoundError, server.did_open, path + ".none")
    server.did_close(path)
    server.stop()
    raises(DaytonaLspServerNotInitializedError, server.document_symbols, path)
    raises(DaytonaLspServerNotInitializedError, server.stop)


@check("sandbox.create_lsp_server: typescript", full=True)
def lsp_typescript():
    server, path = language_server("typescript", "main.ts", PROGRAM_TS, 6)
    equal([symbol.name for symbol in server.workspace_symbols("Greeter")], ["Greeter"])
    equal([symbol.name for symbol in server.sandbox_symbols("Greeter")], ["Greeter"])
    server.did_close(path)
    server.stop()


@check("sandbox.create_lsp_server: javascript", full=True)
def lsp_javascript():
    server, path = language_server("javascript", "main.js", PROGRAM_TS.replace(": string", ""), 6)
    server.did_close(path)
    server.stop()


def main():
    Box.client = client()
    Box.sandbox = Box.client.create()
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
