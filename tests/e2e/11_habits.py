#!/usr/bin/python3
"""What people type who come from other tools: aliases, advice, ports, a host's configuration; and who is not root."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import time
import urllib.request

from lib.harness import *


@test
def test_words_of_other_tools():
    box = create("--name", "e2e-habits")
    assert_in(box, husk("list").text)
    assert_in(box, husk("ps").text)
    assert_equal(husk("ps", "--json").json(), husk("ls", "--json").json())
    assert_equal(husk("images", "--json").json(), husk("image", "ls", "--json").json())
    assert_equal(husk("template", "list", "--json").json(), husk("template", "ls", "--json").json())
    stopped = husk("stop", "e2e-habits")
    assert_equal(stopped.text.strip(), box)
    assert_in("hibernate", stopped.error)
    assert_equal(husk("inspect", box, "--json").json()["state"], "hibernated")
    husk("start", box)
    assert_equal(husk("inspect", box, "--json").json()["state"], "running")
    husk("kill", box)
    assert_equal(husk("inspect", box, "--json").json()["state"], "ended")


@test
def test_advice_is_one_line():
    for words, says in {
        ("run", "-p", "8080:80", "true"): "husk port",
        ("create", "--rm"): "husk rm",
        ("create", "-d"): "exec -d",
        ("create", "--network", "host"): "--allow",
        ("run", "-v", "data:/data", "true"): "--volume",
        ("run", "--rm", "-d", "true"): "--ttl",
    }.items():
        result = husk(*words, code=125 if words[0] == "run" else 2)
        assert_equal(result.out, b"", words)
        assert_equal(result.error.count("\n"), 1, words)
        assert_in(says, result.error, words)
    assert_equal(husk("run", "--rm", "--", "echo", "hi").text, "hi\n")


@test
def test_a_missing_command():
    box = create()
    result = husk("exec", box, code=125, stdin=b"")
    assert_in(f"husk exec {box} -- COMMAND", result.error)
    assert_in(f"husk exec -it {box}", result.error)


@test
def test_a_shell_on_a_terminal():
    box = create()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(HUSK, [str(HUSK), "exec", box])
    said, deadline = b"", time.monotonic() + 60
    os.write(terminal, b"echo $((6*7))-is-it; exit 5\n")
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            piece = os.read(terminal, 4096)
        except OSError:
            break
        if not piece:
            break
        said += piece
    os.close(terminal)
    assert_equal(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 5, said)
    assert_in(b"42-is-it", said)


@test
def test_run_in_the_background():
    started = husk("run", "-d", "--ttl", "5m", "--", "sh", "-c", "sleep 0.2; echo late; exit 4")
    box = adopt(started.text.strip())
    pid = re.search(rf"husk attach {box} (\d+)", started.error).group(1)
    assert_equal(husk("attach", box, pid, code=4).text, "late\n")
    assert_equal(husk("inspect", box, "--json").json()["state"], "running")
    before = husk("ls", "-q").text
    husk("run", "-d", "--", "no-such-program", code=127)
    assert_equal(husk("ls", "-q").text, before, "a sandbox whose command never started is left")


@test
def test_one_shape_of_json():
    box = create()
    ran = husk("run", "--json", "--", "sh", "-c", "exit 3", code=3).json()
    done = husk("exec", "--json", box, "--", "sh", "-c", "exit 3", code=3).json()
    assert_equal(sorted(ran), sorted(done))
    assert_equal((done["id"], done["template"], done["create_ms"], done["denied"]), (box, ran["template"], None, []))


@test
def test_no_network_is_told():
    box = create()
    result = husk("exec", box, "--", "sh", "-c", "echo 'curl: (6) Could not resolve host: a.example' >&2; exit 6", code=6)
    assert_in("blocked: this sandbox has no network; it requires --allow", result.error)
    denied = husk("exec", "--json", box, "--", "python3", "-c", "import socket; socket.getaddrinfo('a.example', 80)", code=1)
    assert_in("no network", denied.json()["denied"][0]["text"])


@test
def test_a_missing_file():
    box = create()
    assert_in("no such file: '/nope'", husk("cp", f"{box}:/nope", "x", code=3).error)


@test
def test_stats_have_names():
    box = create("--name", "e2e-named")
    assert_in("e2e-named", husk("stats", box).text)
    assert_equal(husk("stats", box, "--json").json()["name"], "e2e-named")


@test
def test_not_root():
    with scratch() as place:
        os.chmod(place, 0o777)
        home = place / "home"
        for words in (["ls"], ["run", "--", "true"], ["template", "build", "base"]):
            result = subprocess.run(
                [HUSK, *words], user=65534, group=65534, extra_groups=[], env={"HUSK_HOME": str(home), "PATH": "/bin"},
                capture_output=True, text=True, timeout=60, check=False,
            )
            assert result.returncode != 0, result
            assert_equal(result.stderr.count("\n"), 1, result.stderr)
            assert_in("sudo", result.stderr)
        assert not home.exists(), "something was made"


# ---- ports ----


def forward(*words):
    process = subprocess.Popen([HUSK, "port", *words], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert select.select([process.stdout], [], [], 60)[0], "no address came"
    return process


def finish(process, number=signal.SIGINT):
    process.send_signal(number)
    out, error = process.communicate(timeout=60)
    return process.returncode, out, error.decode()


@test
def test_port():
    box = create("--name", "e2e-port")
    husk("exec", "-d", box, "--", "sh", "-c", "cd /etc && exec python3 -m http.server --bind 127.0.0.1 8000")
    process = forward("e2e-port", "0:8000")
    address = process.stdout.readline().decode().strip()
    try:
        sh(box, "for i in $(seq 100); do grep -q ':1F40 ' /proc/net/tcp && break; sleep 0.1; done")
        assert_in(b"debian", urllib.request.urlopen(f"http://{address}/os-release", timeout=30).read())
        host, number = address.split(":")
        with socket.create_connection((host, int(number)), timeout=30) as stream:
            stream.sendall(b"GET /os-release HTTP/1.0\r\n\r\n")
            stream.shutdown(socket.SHUT_WR)
            said = b"".join(iter(lambda: stream.recv(65536), b""))
        assert said.startswith(b"HTTP/1.0 200"), said[:100]
        assert_fails("port", box, f"{number}:8000", code=1, says=["in use", "0:8000"])
    finally:
        code, _, error = finish(process)
    assert_equal((code, error), (0, ""))


@test
def test_port_bytes_both_ways():
    box = create()
    server = "import socket; s = socket.create_server(('127.0.0.1', 9000)); c = s.accept()[0]\nwhile True:\n d = c.recv(65536)\n if not d: break\n c.sendall(d)"
    husk("exec", "-d", box, "--", "python3", "-c", server)
    sh(box, "for i in $(seq 100); do grep -q ':2328 ' /proc/net/tcp && break; sleep 0.1; done")
    process = forward("--json", box, "0:9000")
    text = b""
    while not text.rstrip().endswith(b"]\n}"):
        text += process.stdout.readline()
    document = json.loads(text)
    assert_equal((document["id"], document["ports"][0]["port"]), (box, 9000))
    sent = os.urandom(1 << 20) * 8
    got = bytearray()
    try:
        with socket.create_connection(("127.0.0.1", document["ports"][0]["local_port"]), timeout=60) as stream:
            stream.setblocking(False)
            left, deadline = memoryview(sent), time.monotonic() + 120
            while len(got) < len(sent):
                assert time.monotonic() < deadline, f"{len(got)} of {len(sent)} bytes came back"
                readable, writable, _ = select.select([stream], [stream] if left else [], [], 5)
                if readable:
                    piece = stream.recv(1 << 16)
                    assert piece, "closed too early"
                    got += piece
                if writable:
                    left = left[stream.send(left[: 1 << 16]) :]
        assert bytes(got) == sent, "other bytes came back"
    finally:
        assert_equal(finish(process, signal.SIGTERM)[0], 0)


@test
def test_port_of_nothing():
    box = create()
    for words in (["99999"], ["x"], ["80:0"], ["80:"], [":80"], ["-5"]):
        assert_equal(husk("port", box, *words, code=2).out, b"", words)
    assert_fails("port", "sb-nosuchone", "80", code=3, says="sb-nosuchone")
    assert_fails("port", box, "80", "--bind", "here", code=2, says="--bind")
    process = forward(box, "0:8000")
    address = process.stdout.readline().decode().strip()
    host, number = address.split(":")
    with socket.create_connection((host, int(number)), timeout=30) as stream:
        assert_equal(stream.recv(10), b"", "nothing listens inside")
    husk("rm", box)
    assert_equal(process.wait(timeout=60), 1, "it goes on after the end of the sandbox")
    error = process.stderr.read().decode()
    assert "port 8000" in error and "ended" in error, error


# ---- a host's configuration ----


def mcp(place, *words, code=0, **variables):
    return husk("mcp", *words, code=code, env={"HOME": str(place), "CODEX_HOME": None, "CLAUDE_CONFIG_DIR": None, **variables})


@test
def test_mcp_install_json():
    with scratch() as place:
        file = place / ".claude.json"
        before = {"numStartups": 7, "cost": 0.1, "mcpServers": {"other": {"command": "x"}}, "z": [1, {"a": None}]}
        file.write_text(json.dumps(before))
        file.chmod(0o640)
        mcp(place, "install", "claude", "--", "-t", "code-interpreter", "--allow", "docs.example.com")
        after = json.loads(file.read_text())
        entry = after["mcpServers"].pop("husk")
        assert_equal(after, before)
        assert_equal(entry["args"], ["mcp", "-t", "code-interpreter", "--allow", "docs.example.com"])
        assert_equal((entry["type"], os.path.realpath(HUSK)), ("stdio", entry["command"]))
        assert_equal(file.stat().st_mode & 0o777, 0o640)
        assert_equal([each.name for each in place.iterdir()], [".claude.json"], "something is left beside it")
        again = mcp(place, "install", "claude", "--json").json()
        assert_equal((again["changed"], again["file"]), (True, str(file)))
        assert_equal(mcp(place, "install", "claude", "--json").json()["changed"], False)
        mcp(place, "uninstall", "claude")
        assert_equal(json.loads(file.read_text()), before)
        assert_equal(mcp(place, "uninstall", "claude", "--json").json()["changed"], False)


@test
def test_mcp_install_everywhere():
    files = {"claude": ".claude.json", "codex": ".codex/config.toml", "vscode": ".config/Code/User/mcp.json"}
    files.update(cursor=".cursor/mcp.json", gemini=".gemini/settings.json")
    with scratch() as place:
        for host, file in files.items():
            shown = mcp(place, "install", host, "--print")
            assert_in(str(place / file), shown.error)
            assert not (place / file).exists(), "--print has written"
            mcp(place, "install", host)
            assert_equal((place / file).read_text(), shown.text, host)
            mcp(place, "uninstall", host)
            assert "husk" not in (place / file).read_text()
        mcp(place, "install", "codex", CODEX_HOME=str(place / "other"))
        assert "husk" in (place / "other/config.toml").read_text()


@test
def test_mcp_install_toml():
    before = """# mine
model = "o"
text = \"\"\"
[mcp_servers.husk]
not a table
\"\"\"

[mcp_servers.other] # a comment
args = [
  "[mcp_servers.husk]", ["nested"],
]

[profiles.husk]
x = 1
"""
    with scratch() as place:
        file = place / ".codex/config.toml"
        file.parent.mkdir()
        file.write_text(before)
        mcp(place, "install", "codex")
        after = file.read_text()
        assert after.startswith(before) and after.count("\n[mcp_servers.husk]\n") == 2, after
        file.write_text(after.replace('args = ["mcp"]\n', 'args = ["old"]\n\n[mcp_servers.husk.env]\nA = "1"\n\n[last]\ny = 2\n'))
        mcp(place, "install", "codex")
        assert_equal(file.read_text().count('args = ["mcp"]'), 1)
        assert "husk.env" not in file.read_text() and "[last]\ny = 2\n" in file.read_text(), file.read_text()
        mcp(place, "uninstall", "codex")
        assert_equal(file.read_text(), before + "\n[last]\ny = 2\n\n")


@test
def test_mcp_install_refuses():
    with scratch() as place:
        assert_in("claude", mcp(place, "install", "emacs", code=2).error)
        assert_in("--bogus", mcp(place, "install", "claude", "--", "--bogus", code=2).error)
        assert_equal(list(place.iterdir()), [])
        for host, name, text in (
            ("claude", ".claude.json", '{"mcpServers": '),
            ("claude", ".claude.json", '{"mcpServers": []}'),
            ("claude", ".claude.json", '{"a": 1, "a": 2}'),
            ("cursor", ".cursor/mcp.json", '{\n// mine\n"mcpServers": {}}'),
            ("codex", ".codex/config.toml", 'mcp_servers = { husk = { command = "x" } }\n'),
            ("codex", ".codex/config.toml", '[mcp_servers]\nhusk.command = "x"\n'),
            ("codex", ".codex/config.toml", 'x = "no end\n'),
        ):
            file = place / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
            for command in ("install", "uninstall"):
                result = mcp(place, command, host, code=2)
                assert_in("--print", result.error, text)
                assert_equal(file.read_text(), text)


@test
def test_mcp_install_keeps_a_link():
    with scratch() as place:
        (place / "dotfiles").mkdir()
        (place / "dotfiles/claude").write_text("{}")
        (place / ".claude.json").symlink_to("dotfiles/claude")
        mcp(place, "install", "claude")
        assert (place / ".claude.json").is_symlink()
        assert_in("husk", (place / "dotfiles/claude").read_text())


if __name__ == "__main__":
    main()
