#!/usr/bin/env python3
"""husk build on a server: as an ordinary user over its unix socket, as a tenant over TCP with a token, and as the owner. What is sent,
what is streamed, whose the result is, the end by Ctrl-C, and forms and tars of somebody who wishes harm."""

# timeout: 900
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile

from lib.harness import *
from lib.http import server
from lib.roots import copy_program, small_root

USER_ID, GROUP_ID = 54331, 54399  # nobody's numbers on this machine
PROGRAMS = ("/usr/bin/id", "/usr/bin/env", "/usr/bin/stat")
TEXT = """ARG BASE=small
FROM ${BASE} AS made
ARG WORD
RUN --mount=type=secret,id=key echo $WORD > /word; cat /run/secrets/key > /dev/null && echo secret seen
FROM small
COPY --from=made /word /word
COPY --chmod=644 src/*.txt keep* /files/
RUN --mount=type=bind,source=list,target=/list cat /list > /listed; sleep 7654 &
ENV GREETING=hello
USER web
WORKDIR /files
ENTRYPOINT ["/bin/cat"]
CMD ["/word", "/listed", "a.txt"]
"""


class Remote:
    """husk against a server, as somebody."""

    def __init__(self, huskd, token=None, user=None):
        self.place = tempfile.mkdtemp(prefix="husk-build-server.", dir="/var/tmp")
        os.chmod(self.place, 0o755)
        self.program = f"{self.place}/husk"
        shutil.copy(HUSK, self.program)
        host = f"http://127.0.0.1:{huskd.port}" if token else f"unix:{huskd.socket_path}"
        self.environment = environment({"HUSK_HOME": None, "HUSK_HOST": host, "HUSK_TOKEN": token, "HOME": self.place})
        member = ["setpriv", "--reuid", str(user), "--regid", str(user), "--groups", str(GROUP_ID), "--inh-caps=-all", "--bounding-set=-all", "--"]
        self.before = member if user else []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.place)

    def __call__(self, *words, code=0, timeout=300, **more):
        done = subprocess.run([*self.before, self.program, *words], capture_output=True, env=self.environment, timeout=timeout * SLOW, check=False, **more)
        result = Result(words, done.returncode, done.stdout, done.stderr)
        assert code is None or result.code == code, f"expected exit status {code}: {result}"
        return result

    def start(self, *words, **more):
        return subprocess.Popen([*self.before, self.program, *words], env=self.environment, **more)


def tenant(name, *options):
    husk("token", "rm", name, code=None)  # of a run that failed
    return husk("token", "create", name, "--tenant", name, *options, "--json").json()["token"]


def project(place):
    for name, text in {"Dockerfile": TEXT, "src/a.txt": "a\n", "src/b.txt": "b\n", "src/c.md": "no\n", "keep": "k\n", "list": "listed\n", "token": "s3cret-9182\n",
                       "large": "x" * 4_000_000, "secret.env": "never sent\n", ".dockerignore": "secret.env\nsrc/b.txt\n"}.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder, _, names in os.walk(place):
        os.chmod(folder, 0o755)
        for name in names:
            os.chmod(f"{folder}/{name}", 0o644)


def form(options, context=None, parts=()):
    """Body and headers of a request."""
    pieces = [("options", json.dumps(options).encode())] if options is not None else []
    pieces += [("context", context)] if context is not None else []
    body = b"".join(b'--B\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), data) for name, data in [*pieces, *parts]) + b"--B--\r\n"
    return body, {"Content-Type": "multipart/form-data; boundary=B"}


def tar(*entries):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, kind, value in entries:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            if kind == tarfile.REGTYPE:
                entry.size = len(value)
                archive.addfile(entry, io.BytesIO(value))
            else:
                entry.linkname = value
                archive.addfile(entry)
    return made.getvalue()


def events(huskd, token, options, context=None):
    body, headers = form(options, context)
    return list(huskd.events("POST", "/v1/templates/build", body, token=token, headers=headers, timeout=300 * SLOW))


def left():
    """Contexts and images of unfinished builds."""
    return [name for name in os.listdir("/var/tmp") if name.startswith("husk-upload.")] + [
        name for name in os.listdir(f"{HOME}/machines") if os.path.isdir(f"{HOME}/machines/{name}/context")]


@test
def test_base():
    husk("rm", "--all")  # sandboxes of other files, which wait for their TTL: the tests below expect none
    with scratch() as place:
        root = small_root(place)
        for program in PROGRAMS:
            copy_program(root, program)
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nweb:x:1000:50:web:/home/web:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\nstaff:x:50:\n")
        husk("template", "build", "--rootfs", str(root), "--name", "small", timeout=120)


@test
def test_a_tenant():
    with scratch() as place, server() as huskd, Remote(huskd, tenant("one")) as one, Remote(huskd, tenant("two")) as two:
        project(place)
        options = ["--build-arg", "WORD=mine", "--secret", f"id=key,src={place}/token", str(place)]
        result = one("build", "-t", "tool", *options)
        assert_equal(result.text, "tool\n")
        assert_in("secret seen\n", result.error)
        assert_in("[made 1/1] RUN", result.error)
        assert_in("tool is built: husk run -t tool", result.error)
        assert_equal(one("run", "-t", "tool").text, "mine\nlisted\na\n")
        assert_equal(one("run", "-t", "tool", "--shell", "echo $GREETING; pwd; id -un; ls; stat -c %a a.txt; cat /proc/[0-9]*/cmdline").text.split("\n")[:6],
                     ["hello", "/files", "web", "a.txt", "keep", "644"])
        assert "7654" not in one("run", "-t", "tool", "--shell", "cat /proc/[0-9]*/cmdline").text
        # It is that tenant's template, and no image of the instance.
        assert "tool" not in two("template", "ls").text + husk("template", "ls").text
        assert "tool" not in [image["name"].split("/")[-1].split(":")[0] for image in husk("image", "ls", "--json").json()]
        # Later builds continue from kept steps; JSON lines are those of a build on this host.
        (place / "src/a.txt").write_text("changed\n")
        result = one("build", "-t", "tool", "--progress", "json", *options)
        seen = [json.loads(line) for line in result.text.splitlines()]
        assert_equal([each["text"] for each in seen if each["event"] == "cached"], ["COPY --from=made /word /word"])
        assert_equal((seen[-1]["event"], seen[-1]["image"]["template"], seen[-1]["image"]["user"]), ("built", "tool", "web"))
        assert_equal(one("run", "-t", "tool").text, "mine\nlisted\nchanged\n")
        one("build", "-t", "tool", "--warm", "cat /word >/tmp/mark", *options)
        assert_equal(one("run", "-t", "tool", "--", "cat", "/tmp/mark").text, one("run", "-t", "tool", "--", "cat", "/word").text)
        one("template", "rm", "tool")
        assert_equal((listed(), left()), ([], []))


@test
def test_what_is_sent():
    """Only what the Dockerfile can name; with variables in a word, all that .dockerignore leaves."""
    with scratch() as place, server() as huskd, Remote(huskd, tenant("sends")) as who:
        project(place)
        for dockerfile, sent in (("FROM small\nCOPY keep /x\n", False), ("FROM small\nARG F=keep\nCOPY $F /x\n", True)):
            (place / "Dockerfile").write_text(dockerfile)
            listener = socket.create_server(("127.0.0.1", 0))
            process = who.start("--host", f"http://127.0.0.1:{listener.getsockname()[1]}", "build", "-t", "x", str(place), stderr=subprocess.PIPE)
            connection, _ = listener.accept()
            connection.settimeout(20 * SLOW)
            body = b""
            while b"\r\n0\r\n\r\n" not in body:
                piece = connection.recv(1 << 20)
                assert piece, body[-200:]
                body += piece
            connection.close()
            assert_equal((b"k\n" in body, b"x" * 1000 in body, b"never sent" in body), (True, sent, False))
            _, errors = process.communicate(timeout=60 * SLOW)
            assert process.returncode, errors
            listener.close()


@test
def test_an_ordinary_user():
    with scratch() as place, scratch() as outside, server("--socket", f"{outside}/h.sock", "--group", str(GROUP_ID)) as huskd:
        os.chmod(outside, 0o755)
        huskd.socket_path = f"{outside}/h.sock"
        project(place)
        with Remote(huskd, user=USER_ID) as user:
            user("build", "-t", "mine", "--build-arg", "WORD=w", "--secret", f"id=key,src={place}/token", str(place))
            assert_equal(user("run", "-t", "mine").text, "w\nlisted\na\n")
            assert "mine" not in husk("template", "ls").text
            assert_in("template's name", user("build", "-t", "example.org/mine:1", str(place), code=2).error)
            user("template", "rm", "mine")
        # The owner gets an image, as on this host.
        with Remote(huskd) as owner:
            owner("build", "-t", "team/tool:2", "--build-arg", "WORD=o", "--secret", f"id=key,src={place}/token", str(place))
            assert_equal(husk("run", "-t", "team/tool:2").text, "o\nlisted\na\n")
            husk("image", "rm", "team/tool:2")
            # A base that wants a file of whoever builds on it: the Dockerfile does not name the file, and it is sent nevertheless.
            (place / "base").write_text("FROM small\nONBUILD COPY list /wanted\n")
            husk("build", "-t", "wants", "-f", str(place / "base"), str(place), timeout=120)
            (place / "Dockerfile").write_text("FROM wants\nCOPY keep /keep\n")
            owner("build", "-t", "gets", str(place))
            assert_equal(husk("run", "-t", "gets", "--shell", "cat /wanted /keep").text, "listed\nk\n")
            husk("image", "rm", "gets")
            husk("image", "rm", "wants")


@test
def test_failures():
    with scratch() as place, server() as huskd, Remote(huskd, tenant("fails")) as who:
        project(place)
        for steps, code, says in (
            ("RUNN x", 2, "Dockerfile:2:1: unknown instruction 'RUNN'; did you mean RUN?"),
            ("COPY nothing /x", 2, "Dockerfile:2:1: 'nothing' is not in the context"),
            ("COPY secret.env /x", 2, "Dockerfile:2:1: 'secret.env' is not in the context"),
            ("RUN echo why >&2; exit 3", 1, "Dockerfile:2:1: RUN: the command ended with status 3"),
            ("ADD https://example.com/x /x", 2, "Dockerfile:2:1: ADD of a URL needs the network"),
        ):
            (place / "Dockerfile").write_text(f"FROM small\n{steps}\n")
            result = who("build", "-f", str(place / "Dockerfile"), "-t", "bad", str(place), code=code)
            assert_in(says, result.error)
        (place / "Dockerfile").write_text("FROM registry.example/x\n")
        assert_in("HUSK_PULL_REGISTRIES", who("build", "-t", "bad", str(place), code=None).error)
        assert_in("--debug", who("build", "--debug", "-t", "bad", str(place), code=None).error)
        # Ctrl-C ends the build, and so does a client that is killed.
        (place / "Dockerfile").write_text("FROM small\nRUN echo begun; sleep 600\n")
        for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
            with open(place / "err", "wb") as log:
                process = who.start("build", "-t", "bad", str(place), stderr=log)
            until(lambda: "begun\n" in (place / "err").read_text().replace("echo begun;", ""), "the RUN has begun")
            process.send_signal(number)
            assert_equal(process.wait(timeout=30 * SLOW), code)
            until(lambda: listed() == [], "its sandboxes have ended")
        assert "bad" not in who("template", "ls").text
        until(lambda: left() == [], "nothing is left")


@test
def test_a_server_that_is_killed():
    """Nothing half-made has a name; what the server had on the disk goes when the next one tends the instance."""
    with scratch() as place:
        project(place)
        (place / "Dockerfile").write_text("FROM small\nCOPY keep /x\nRUN echo begun; sleep 600\n")
        with server() as huskd, Remote(huskd, tenant("killed")) as who:
            with open(place / "err", "wb") as log:
                process = who.start("build", "-t", "bad", str(place), stderr=log)
            until(lambda: "begun\n" in (place / "err").read_text().replace("echo begun;", ""), "the RUN has begun")
            assert_equal(len(left()), 1)
            huskd.process.kill()
            assert process.wait(timeout=60 * SLOW)
            assert_in("was lost", (place / "err").read_text())
        husk("rm", "--all")
        with server() as huskd, Remote(huskd, tenant("killed-too")) as who:
            until(lambda: left() == [], "the context is gone")
            assert "bad" not in who("template", "ls").text


@test
def test_quotas():
    with scratch() as place, server() as huskd, Remote(huskd, tenant("small-one", "--max-sandboxes", "1")) as who:
        project(place)
        result = who("build", "-t", "x", "--build-arg", "WORD=w", "--secret", f"id=key,src={place}/token", str(place), code=None)
        assert result.code
        assert_in("sandbox", result.error)
        assert_equal((listed(), left()), ([], []))


@test
def test_hostile_forms():
    with server() as huskd:
        token = tenant("hostile")
        good = {"name": "h", "dockerfile": "FROM small\nCOPY . /all\n"}
        plain = tar(("a", tarfile.REGTYPE, b"a"))

        def post(body, headers, status=400):
            return huskd.call("POST", "/v1/templates/build", body, status, token=token, headers=headers)

        post(*form(None), 400).error("invalid", "options")
        post(*form([1])).error("invalid", "options")
        post(*form({**good, "odd": 1})).error("invalid", "odd")
        post(*form({"name": "h"})).error("invalid", "dockerfile")
        post(*form({"dockerfile": "FROM small\n"})).error("invalid", "name")
        post(*form({**good, "name": "../h"})).error("invalid", "name")
        post(*form({**good, "egress": {"odd": 1}})).error("invalid")
        post(*form(good, plain, [("context", plain)])).error("invalid", says="once each")
        post(b"{}", {"Content-Type": "application/json"}).error("invalid")
        post(form(good, plain)[0][:-20], form(good)[1]).error("invalid")
        for context in (b"", b"not a tar" * 200, subprocess.run(["gzip", "-c"], input=plain, capture_output=True, check=True).stdout):
            post(*form(good, context)).error("invalid", "context")
        for entry in (("../up", tarfile.REGTYPE, b"x"), ("/etc/e2e-escaped", tarfile.REGTYPE, b"x"), ("dev", tarfile.CHRTYPE, "")):
            body, headers = form(good, tar(entry))
            huskd.call("POST", "/v1/templates/build", body, None, token=token, headers=headers)
        assert not os.path.exists("/etc/e2e-escaped")
        # A link that leads out of the context leads nowhere.
        last = events(huskd, token, {"name": "h", "dockerfile": "FROM small\nCOPY out/passwd /x\n"}, tar(("out", tarfile.SYMTYPE, "/etc")))[-1]
        assert_equal(last.kind, "error")
        assert_in("is not in the context", last.data["error"]["message"])
        sparse = io.BytesIO()
        with scratch() as place:
            with open(place / "hole", "wb") as file:
                file.truncate(1 << 40)
            subprocess.run(["tar", "--sparse", "-cf", place / "s.tar", "-C", place, "hole"], check=True)
            sparse = (place / "s.tar").read_bytes()
        answer = post(*form(good, sparse), None)
        assert answer.status >= 400, answer
        kinds = [each.kind for each in events(huskd, token, good, plain)]
        assert_equal((kinds[0], kinds[-1]), ("step", "built"))
        huskd.call("DELETE", "/v1/templates/h", None, 204, token=token)
        assert_equal((listed(), left()), ([], []))
    assert_no_leaks()


main()
