#!/usr/bin/python3
"""The command line over a server: as an ordinary user on its unix socket, by the kernel's word alone, and over TLS with a token.
The files of the local tests run again each way, as they are: $HUSK is a program that starts husk so. Then what is only there
remotely: tenants of users, quotas, contexts, and each way in which a server can be missing, closed, strange or gone."""

# timeout: 900
import atexit
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time

from lib.harness import *
from lib.http import start_server

# Nobody's numbers on this machine: no account is made, the kernel needs none.
USER_ID, OTHER_ID, GROUP_ID = 54321, 54322, 54399

# What tells most of each file; the rest looks at the host's side, or takes long.
CHOSEN = {
    "10_run.py": [
        "forty_two", "exit_status", "not_found_is_127", "killed_is_128", "timeout_is_124", "stdin_only", "stderr_is", "binary",
        "big_output", "json_of_run", "options_of", "keep", "interrupt_reaches",
    ],
    "12_sandbox.py": [
        "create_exec_rm", "names", "metadata", "inspect_says", "environment", "exec_options", "many_execs", "persistent",
        "pause_and", "rm_many",
    ],
    "14_processes.py": ["detached_ps", "from_an_offset", "client_was_killed", "slow_writer", "test_signals", "not_there"],
    "16_terminal.py": ["resize", "control_c", "detach_and", "given_back"],
    "20_files.py": ["both_ways", "big_file", "odd_names", "tar_streams", "cp_wakes"],
    "30_snapshot.py": ["create_from", "list_and", "bad_input"],
    "32_fork.py": ["counter", "test_options"],
    "34_hibernate.py": ["hibernate_and_wake", "come_along", "what_works"],
    "46_volumes.py": ["share_one", "in_use_stays", "bad_input"],
    "83_logs.py": ["test_follow"],
}  # fmt: skip


class Place:
    """A directory that others can look into, with the program, a certificate, and a server over the test's instance."""

    def __init__(self):
        self.path = tempfile.mkdtemp(prefix="husk-remote.", dir="/var/tmp")
        atexit.register(shutil.rmtree, self.path, True)  # whatever becomes of the test
        os.chmod(self.path, 0o755)
        self.program = f"{self.path}/husk"  # where nobody's directory is in the way
        shutil.copy(HUSK, self.program)
        self.certificate, key = f"{self.path}/cert.pem", f"{self.path}/key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
             "-keyout", key, "-out", self.certificate, "-subj", "/CN=localhost",
             "-addext", "subjectAltName=DNS:localhost"],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        self.options = ["--socket", f"{self.path}/h.sock", "--group", str(GROUP_ID), "--cert", self.certificate, "--key", key]
        self.server = start_server(*self.options)
        self.unix = f"unix:{self.path}/h.sock"
        self.token = husk("token", "create", "remote", "--json").json()["token"]

    @property
    def tls(self):
        return f"https://localhost:{self.server.port}"

    def restart(self, *options):
        self.server.kill()
        self.server = start_server(*self.options, *options)

    def close(self):
        husk("token", "rm", "remote", code=None)
        self.server.stop()
        shutil.rmtree(self.path)


_place = []
BEFORE = {entry["id"] for entry in husk("ls", "--json").json()}  # what other files left, until its time is over


def place():
    if not _place:
        _place.append(Place())
    return _place[0]


def as_user(user=USER_ID, groups=(GROUP_ID,), capabilities=""):
    """The words before a command that make it this user's, and nothing else of root's."""
    member = ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    caps = [f"--inh-caps=-all{capabilities}", f"--ambient-caps=-all{capabilities}", f"--bounding-set=-all{capabilities}"]
    return ["setpriv", "--reuid", str(user), "--regid", str(user), *member, *caps, "--no-new-privs", "--"]


def remotely(*arguments, host=None, user=USER_ID, groups=(GROUP_ID,), code=0, env=None, stdin=None, timeout=60):
    """husk as that user; `host` None: the unix socket."""
    merged = environment({"HUSK_HOME": None, "HUSK_HOST": host or place().unix, "HOME": place().path, **(env or {})})
    done = subprocess.run(
        [*(as_user(user, groups) if user else []), place().program, *arguments],
        capture_output=True, input=stdin, env=merged, timeout=timeout, check=False,
    )  # fmt: skip
    result = Result(arguments, done.returncode, done.stdout, done.stderr)
    assert code is None or result.code == code, f"expected exit status {code}: {result}"
    return result


def fails(*arguments, code, says, **options):
    result = remotely(*arguments, code=code, **options)
    for piece in says:
        assert_in(piece, result.error, str(result))
    assert_equal(result.out, b"", str(result))
    return result


# ---- the local tests again ----


def wrapper(way, file):
    """A program that is husk, as this way has it. What only the instance's owner can do goes to the instance itself."""
    path = f"{place().path}/husk-{way}"
    # Files of a test are root's; over the socket it is the user's number that counts, whatever files it may read.
    capable = ",+dac_override,+chown,+fowner,+mknod,+fsetid" if file == "20_files.py" else ""
    prefix = " ".join(as_user(capabilities=capable)) if way == "unix" else ""
    host = place().unix if way == "unix" else place().tls
    with open(path, "w", encoding="ascii") as script:
        script.write(
            f"""#!/bin/sh
case "$1" in
doctor | gc | pool | token | template) exec {HUSK} "$@" ;;
esac
unset HUSK_HOME
export HUSK_HOST={host} {f"HUSK_TOKEN={place().token} HUSK_CA={place().certificate}" if way == "tls" else ""}
exec {prefix} {place().program} "$@"
"""
        )
    os.chmod(path, 0o755)
    return path


def again(way, file):
    """Runs what is chosen of a file; its failures are this test's."""
    env = environment({"HUSK": wrapper(way, file), "HUSK_HOME": HOME})
    if way == "unix":
        env["HUSK_TEST_USER"] = str(USER_ID)
    done = subprocess.run(
        [sys.executable, str(TOP / "tests/e2e" / file), *CHOSEN[file]],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, timeout=400, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    bad = [line for line in lines if line.startswith("not ok")]
    good = [line for line in lines if line.startswith("ok ")]
    assert done.returncode == 0 and not bad, f"{way} {file}: {bad or done.stdout[-500:] + done.stderr[-500:]}"
    assert len(good) >= len(CHOSEN[file]), f"{way} {file}: fewer tests ran than were chosen: {lines}"


def _add(way, file):
    def run():
        again(way, file)

    run.__name__ = f"{way}_{file.removesuffix('.py')}"
    test(run)


for _way in ("unix", "tls"):
    for _file in CHOSEN:
        _add(_way, _file)


# ---- users are tenants ----


@test
def each_user_sees_only_its_own():
    mine = remotely("create", "--name", "shared-name", "--json").json()
    theirs = remotely("create", "--name", "shared-name", "--json", user=OTHER_ID).json()
    try:
        assert_equal((mine["tenant"], theirs["tenant"]), (f"uid-{USER_ID}", f"uid-{OTHER_ID}"))
        assert_equal([box["id"] for box in remotely("ls", "--json").json()], [mine["id"]])
        for arguments in (["exec", theirs["id"], "--", "true"], ["cp", f"{theirs['id']}:/etc/passwd", "-"], ["rm", theirs["id"]],
                          ["inspect", theirs["id"]], ["logs", theirs["id"]], ["fork", theirs["id"]]):  # fmt: skip
            result = remotely(*arguments, code=None)
            assert result.code in (1, 3, 125) and "not found" in result.error, str(result)
        assert not [event for event in remotely("events", "--json").json() if event["sandbox"] == theirs["id"]]
        # The instance's owner sees both, here and on the socket.
        assert {mine["id"], theirs["id"]} <= set(listed())
        owner = remotely("ls", "--json", user=None).json()
        assert {mine["id"], theirs["id"]} <= {box["id"] for box in owner}
        # What is the owner's is not a user's.
        for arguments in (["gc"], ["doctor"], ["token", "ls"], ["token", "create", "x", "--admin"], ["doctor", "--leaks"]):
            fails(*arguments, code=1, says=["instance's owner", "root on the unix socket"])
        remotely("doctor", "--leaks", user=None)
        assert "remote" in remotely("token", "ls", user=None).text
    finally:
        remotely("rm", mine["id"])
        remotely("rm", theirs["id"], user=OTHER_ID)


@test
def a_token_of_the_same_tenant_is_the_same_user_elsewhere():
    token = husk("token", "create", "laptop", "--tenant", f"uid-{USER_ID}", "--json").json()["token"]
    box = remotely("create", "--json").json()["id"]
    try:
        far = remotely("ls", "--json", host=place().tls, env={"HUSK_TOKEN": token, "HUSK_CA": place().certificate}).json()
        assert_equal([each["id"] for each in far], [box])
    finally:
        remotely("rm", box)
        husk("token", "rm", "laptop")


@test
def quotas_of_users():
    place().restart("--user-sandboxes", "1", "--user-memory", "1G")
    box = remotely("create", "--json").json()["id"]
    try:
        fails("create", code=1, says=["max_sandboxes", "1 of 1"])
        fails("fork", box, code=1, says=["max_sandboxes"])
        fails("create", "--memory", "2G", user=OTHER_ID, code=1, says=["max_memory"])
        made = remotely("create", "--json", user=None).json()["id"]  # root has none
        remotely("rm", made, user=None)
    finally:
        remotely("rm", box)
        place().restart()


@test
def the_guest_is_reached_and_nothing_of_the_supervisor():
    """The tunnel by hand: what the agent answers is there, what the supervisor answers is refused."""
    box = remotely("create", "--json").json()["id"]

    def ask(method):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(f"{place().path}/h.sock")
            head = f"GET /v1/sandboxes/{box}/wire HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: husk-wire/1\r\n\r\n"
            connection.sendall(head.encode())
            got = b""
            while b"\r\n\r\n" not in got:
                got += connection.recv(1)
            assert got.startswith(b"HTTP/1.1 101"), got
            field = struct.pack("<HHIq", 2, 0, 8, method)  # TAG_METHOD
            connection.sendall(struct.pack("<IIBBH", len(field), 1, 2, 0, 0) + field)  # OPEN
            while True:
                size, _, kind, _, _ = struct.unpack("<IIBBH", connection.recv(12, socket.MSG_WAITALL))
                payload = connection.recv(size, socket.MSG_WAITALL) if size else b""
                if kind == 7:  # END
                    return struct.unpack_from("<q", payload, 8)[0], payload  # TAG_STATUS comes first

    try:
        assert_equal(ask(41)[0], 0, "stats, the agent's")
        for method in (100, 101, 102, 103, 104, 105, 106, 108, 60, 61, 63, 66, 999):
            status, payload = ask(method)
            assert status == 5 and b"not for this client" in payload, f"method {method}: {status} {payload}"
        assert_equal(inspect(box)["state"], "running")
    finally:
        remotely("rm", box)


@test
def a_program_on_libhusk_works_as_it_is():
    """The example of the README, built for a local instance: with HUSK_HOST it is a user's, on the server."""
    copied = shutil.copy(BUILD / "examples/fork", place().path)
    done = subprocess.run(
        [*as_user(), copied], capture_output=True, timeout=120, check=False,
        env=environment({"HUSK_HOME": None, "HUSK_HOST": place().unix}),
    )  # fmt: skip
    assert_equal(done.returncode, 0, f"{done.stdout} {done.stderr}")
    assert_in(b"written before the fork", done.stdout)


@test
def agents_and_ports():
    """`husk mcp` makes a user's sandbox and runs code in it; `husk port` reaches a server inside."""
    box = remotely("create", "--name", "served", "--json").json()["id"]
    env = environment({"HUSK_HOME": None, "HUSK_HOST": place().unix})
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize",
         "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "run_command", "arguments": {"command": "echo 6*7=$((6*7))"}}},
    ]  # fmt: skip
    try:
        process = subprocess.Popen(
            [*as_user(), place().program, "mcp", "-t", "base"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        )
        with ending(process):
            process.stdin.write("".join(json.dumps(each) + "\n" for each in messages).encode())
            process.stdin.flush()
            seen = b""
            while b'"id":2' not in seen.replace(b" ", b""):
                line = process.stdout.readline()
                assert line, f"husk mcp ended: {seen} {process.stderr.read()}"
                seen += line
            assert_in(b"6*7=42", seen)
        remotely("exec", "-d", box, "--", "python3", "-m", "http.server", "--bind", "127.0.0.1", "8000")
        process = subprocess.Popen(
            [*as_user(), place().program, "port", box, "8000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        )
        with ending(process):
            port = re.search(rb"127\.0\.0\.1:(\d+)", process.stdout.readline() or process.stderr.readline())

            def answers():
                with contextlib.suppress(ConnectionError):  # it is not up yet
                    with socket.create_connection(("127.0.0.1", int(port[1])), 10) as connection:
                        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                        return b"200 OK" in connection.recv(65536)
                return False

            until(answers, "the server inside answers")
    finally:
        remotely("rm", "--all")


# ---- failures ----


@test
def the_socket_is_closed_to_others():
    mode = os.stat(f"{place().path}/h.sock")
    assert_equal((stat.S_IMODE(mode.st_mode), mode.st_gid), (0o660, GROUP_ID))
    fails("ls", groups=(), code=1, says=["is for root and for the group", f"sudo usermod -aG {GROUP_ID} {USER_ID}", "log in again"])
    fails("run", "--", "true", groups=(), code=125, says=["sudo usermod -aG"])
    place().restart("--group", "none")
    try:
        fails("ls", code=1, says=["for root alone", "sudo groupadd --system husk && sudo usermod -aG husk"])
        os.chmod(f"{place().path}/h.sock", 0o666)  # the mode is not the only door
        fails("ls", code=1, says=[f"user {USER_ID} may not use this socket"])
        remotely("ls", user=None)
    finally:
        place().restart()


@test
def each_failure_says_what_to_do():
    ca = {"HUSK_CA": place().certificate}
    fails("ls", host="unix:/nonexistent/h.sock", code=1, says=["no server listens", "sudo husk serve"])
    fails("ls", host="http://127.0.0.1:1", code=1, says=["cannot reach http://127.0.0.1:1", "husk serve --listen"])
    fails("ls", host="https://no-such-host.invalid", code=1, says=["cannot find the host", "check --host"])
    fails("ls", host=place().tls, code=1, says=["certificate", "is not trusted", "--ca FILE or HUSK_CA"])
    fails("ls", host=place().tls, env=ca, code=1, says=["wants a token", "husk token create", "HUSK_TOKEN"])
    fails("run", "--", "true", host=place().tls, env={**ca, "HUSK_TOKEN": "husk_wrong"}, code=125, says=["not known here"])
    fails("ls", host=place().tls.replace("https", "http"), code=1, says=["use https://"])
    fails("ls", host=place().tls.replace("localhost", "127.0.0.1"), env=ca, code=1, says=["is not trusted", "mismatch"])
    fails("ls", host="ftp://x", code=2, says=["'ftp://x'", "https://HOST"])
    fails("ls", host="https://x:99999", code=2, says=["is not an address of a server"])
    fails("ls", host=place().tls, env={"HUSK_CA": f"{place().path}/key.pem"}, code=2, user=None, says=["no certificate in PEM"])
    fails("template", "build", "--rootfs", "/tmp", "--name", "x", code=1, says=["cannot be done over", "--tar"])
    fails("template", "build", "no-such", code=3, says=["no-such"])


@test
def a_server_that_is_none():
    """Answers of every kind of stranger: each is one line that says so, within the time of a call, and never a crash."""
    def answer(body, status="200 OK", header=""):
        return f"HTTP/1.1 {status}\r\n{header}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    unknown = json.dumps({"error": {"code": "not_found", "message": "there is nothing at this path", "hint": None}})
    strange = {
        b"": "hung up without an answer",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n": "not HTTP",
        answer("hello"): "not JSON",
        answer("no", "404 Not Found"): "is not a Husk server",
        answer("", "302 Found", "Location: http://elsewhere/\r\n"): "is not a Husk server",
        answer('{"sandboxes": [1]}'): "another version",
        answer('{"sandboxes": [{"id": "sb-a", "state": "flying"}]}'): "another version",
        answer("{}"): "without 'sandboxes'",
        answer("[" * 200000): "not JSON",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{": "was lost",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n": "not HTTP",
        answer(unknown, "404 Not Found", "X-Husk-Version: 9.9.9\r\n"): "the server is version 9.9.9",
    }
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve():
            for each in strange:
                connection = listener.accept()[0]
                with connection:
                    connection.recv(65536)
                    connection.sendall(each)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        for each, says in strange.items():
            result = remotely("ls", host=f"http://127.0.0.1:{listener.getsockname()[1]}", code=None)
            assert result.code == 1 and says in result.error, f"{each[:80]} {says!r}: {result}"
        thread.join(10)


@test
def a_connection_that_is_lost():
    """kill -9 of the server in the middle of a stream: husk ends with 125 and says so, the process goes on, and can be found again."""
    box = remotely("create", "--json").json()["id"]
    env = environment({"HUSK_HOME": None, "HUSK_HOST": place().unix})
    try:
        process = subprocess.Popen(
            [*as_user(), place().program, "exec", box, "--", "sh", "-c", "echo begun; sleep 4; echo over; exec sleep 600"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
        )  # fmt: skip
        with ending(process):
            assert_equal(process.stdout.readline(), b"begun\n")
            place().restart()
            error = process.communicate(timeout=60)[1].decode()
            assert_equal(process.returncode, 125, error)
            assert_in("was lost", error)
            assert_in("husk attach", error)
        running = [each for each in remotely("ps", box, "--json").json() if each["running"]]
        assert_equal(len(running), 1)
        until(lambda: b"over" in remotely_output(box, running[0]["pid"]), "the process goes on")
    finally:
        remotely("rm", box)


def remotely_output(box, pid):
    """What a process has written so far; attach does not end while it runs."""
    env = environment({"HUSK_HOME": None, "HUSK_HOST": place().unix})
    process = subprocess.Popen(
        [*as_user(), place().program, "attach", box, str(pid)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    )
    with ending(process):
        time.sleep(1)
        process.send_signal(signal.SIGKILL)
        return process.stdout.read()


# ---- contexts ----


@test
def contexts():
    with scratch() as home:
        os.chown(home, USER_ID, USER_ID)
        env = {"HOME": str(home), "XDG_CONFIG_HOME": None, "HUSK_HOST": None}

        def context(*arguments, **options):
            return remotely(*arguments, env=env, **options)

        secret = place().token
        added = context(
            "context", "add", "lab", place().tls, "--ca", place().certificate, "--token-file", "-", stdin=secret.encode() + b"\n"
        )
        file = home / ".config/husk/contexts.json"
        assert_equal(stat.S_IMODE(file.stat().st_mode), 0o600)
        assert secret in file.read_text() and secret not in added.text + added.error
        context("context", "use", "lab")
        assert_equal(context("run", "--", "echo", "from afar").text, "from afar\n")
        shown = context("context", "ls")
        assert re.search(r"lab \*\s+https://localhost:\d+\s+yes", shown.text) and secret not in shown.text, shown.text
        assert_equal([each["current"] for each in context("context", "ls", "--json").json()], [False, True])
        context("context", "use", "local")
        assert_equal(context("--host", "lab", "ls", "--json").json(), [])
        for arguments, code, says in (
            (["context", "use", "nowhere"], 3, "context 'nowhere' not found"),
            (["context", "rm", "nowhere"], 3, "not found"),
            (["context", "add", "Bad Name", "unix:/x"], 2, "cannot be a context's name"),
            (["context", "add", "local", "unix:/x"], 2, "cannot be a context's name"),
            (["context", "add", "x", "nonsense"], 2, "not an address of a server"),
            (["--host", "nowhere", "ls"], 2, "neither a context"),
        ):
            assert_in(says, context(*arguments, code=code).error)
        context("context", "rm", "lab")
        assert secret not in file.read_text()
        file.write_text("{")
        assert_in("is damaged", context("context", "ls", code=2).error)


@test
def nothing_is_left():
    left = [entry for entry in remotely("ls", "--json", user=None).json() if entry["id"] not in BEFORE]
    assert_equal(left, [])
    place().close()
    assert_no_leaks()


if __name__ == "__main__":
    main("base")
