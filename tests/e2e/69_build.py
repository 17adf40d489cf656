#!/usr/bin/env python3
"""husk build and husk commit: Dockerfiles with their steps, caches, secrets, network and failures; images that podman runs.

Most builds begin with a template of a few files, so that each takes a second or two. Runs in a test internet (lib/internet.py)."""

# timeout: 600
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time

from lib import internet

internet.enter()

from lib.harness import *  # noqa: E402
from lib.registry import registry  # noqa: E402
from lib.roots import Image, copy_program, small_root  # noqa: E402

SECRET = "s3cret-of-a-build-91723"
PROGRAMS = ("/usr/bin/id", "/usr/bin/env", "/usr/bin/curl", "/bin/tar", "/bin/gzip", "/usr/bin/stat", "/usr/bin/seq")


def write(place, **files):
    """Files of a context; "__" in a name is "/", and "_d_" a dot."""
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = place / name.replace("__", "/").replace("_d_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


def build(place, dockerfile, name, *options, code=0, **more):
    (place / "Dockerfile").write_text(dockerfile)
    return husk("build", "-t", name, *options, str(place), code=code, timeout=300, **more)


def cached(result):
    return [line.split("cached: ")[1] for line in result.error.splitlines() if "cached: " in line]


def forget(*names):
    for name in names:
        husk("image", "rm", name)


def static_program(place):
    """A program without libraries: the agent that every guest has is one, and prints how it is used."""
    (place / "hello.c").write_text('#include <unistd.h>\nint main(void) { return write(1, "hello from nothing\\n", 19) != 19; }\n')
    subprocess.run(["gcc", "-static", "-Os", "-o", place / "hello", place / "hello.c"], check=True)


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
def test_steps():
    with scratch() as place:
        write(place, src__main="v1\n", src__deep__data="deep\n", a_d_txt="a\n", b_d_txt="b\n", skip_d_log="no\n", keep_d_log="yes\n",
              _d_dockerignore="*.log\n!keep.log\nDockerfile\n")
        os.symlink("main", place / "src/link")
        text = """
# syntax=docker/dockerfile:1
ARG BASE=small
FROM ${BASE} AS build
ARG WHO=nobody
ENV GREETING="hello $WHO" \\
    # a comment between lines
    PATH=/opt/bin:$PATH
WORKDIR /work/src
COPY src .
RUN read line < main; echo "$line $GREETING $PWD $(id -un)" > ../out
RUN <<EOF
set -e
for i in $(seq 3); do echo $i; done > /work/numbers
EOF
RUN ["/bin/sh", "-c", "echo json > /work/json"]

FROM small AS unused
RUN exit 7

FROM small
LABEL org.example.title="a title" org.example.kind=test
COPY --from=build --chown=web:staff /work/out /work/n* /data/
COPY --chmod=0750 *.txt keep.log /files/
COPY . /all
COPY --chmod=755 <<one <<"two" /bin/
#!/bin/sh
cat /data/out; cat /data/numbers; pwd; id -u; id -g
one
$GREETING
two
EXPOSE 8080 9000/udp
HEALTHCHECK --interval=30s --retries=3 CMD cat /data/out
STOPSIGNAL SIGINT
USER web:50
WORKDIR /data
SHELL ["/bin/sh", "-e", "-c"]
CMD one
"""
        result = build(place, text, "steps", "--build-arg", "WHO=tester")
        assert_equal(result.text, "steps\n")
        assert_equal(cached(result), [])
        assert_equal(husk("run", "-t", "steps").text, "v1 hello tester /work/src root\n1\n2\n3\n/data\n1000\n50\n")
        box = create("-t", "steps")
        assert_equal(sh(box, "cd /all; echo *; ls src; stat -c '%a %u' /files/a.txt /data/out; cat /bin/two; ls -l src/link | cat"
                        " > /tmp/l; read -r l < /tmp/l; echo ${l##*link}").splitlines(),
                     ["a.txt b.txt keep.log src", "deep", "link", "main", "750 0", "644 1000", "$GREETING", "-> main"])
        assert_equal(sh(box, "ls /.husk/guest >/dev/null; cat /etc/who"), "version one")
        remove(box)
        image = husk("image", "inspect", "steps").json()
        assert_equal((image["ports"], image["stop_signal"], image["user"]), (["8080/tcp", "9000/udp"], "SIGINT", "web:50"))
        assert_equal(image["labels"], {"org.example.title": "a title", "org.example.kind": "test"})
        assert_equal(image["healthcheck"], {"Test": ["CMD-SHELL", "cat /data/out"], "Interval": 30 * 10**9, "Retries": 3})
        assert_equal(image["command"], ["/bin/sh", "-e", "-c", "one"])
        # The same again, the same under another name, and one changed file.
        result = build(place, text, "steps", "--build-arg", "WHO=tester")
        assert_in("nothing changed", result.error)
        build(place, text, "steps-again:2", "--build-arg", "WHO=tester")
        assert_equal(husk("image", "inspect", "steps-again:2").json()["digest"], image["digest"])
        write(place, a_d_txt="another\n")
        result = build(place, text, "steps", "--build-arg", "WHO=tester")
        assert_equal(cached(result), ["COPY --from=build --chown=web:staff /work/out /work/n* /data/"], result.error)
        result = build(place, text, "steps", "--build-arg", "WHO=else")
        assert_equal(cached(result), ["WORKDIR /work/src", "COPY src ."], result.error)
        assert_in("hello else", husk("run", "-t", "steps").text)
        # Kept results are nobody's snapshots, and gc removes them.
        assert_equal(husk("snapshot", "ls", "--json").json(), [])
        assert husk("gc", "--all", "--json").json()["snapshots"] >= 8
        result = build(place, text, "steps", "--target", "build", "--progress", "json")
        seen = [json.loads(line) for line in result.text.splitlines()]
        assert_equal([one["text"] for one in seen if one["event"] == "step"][:2], ["WORKDIR /work/src", "COPY src ."])
        assert_equal((seen[-1]["event"], seen[-1]["image"]["template"]), ("built", "steps"))
        forget("steps", "steps-again:2")
    assert_no_leaks()


@test
def test_nothing_to_begin_with():
    with scratch() as place:
        static_program(place)
        with tarfile.open(place / "tree.tar", "w") as archive:
            archive.add(place / "hello", "in/tar")
        build(place, "FROM scratch\nCOPY hello /bin/hello\nADD tree.tar /from\nRUN [\"/bin/hello\"]\nENTRYPOINT [\"/bin/hello\"]\n"
                     "ONBUILD ADD more.txt /more\nONBUILD ENV MORE=1\n", "nothing")
        assert_equal(husk("run", "-t", "nothing").text, "hello from nothing\n")
        assert_equal(husk("run", "-t", "nothing", "--", "/from/in/tar").text, "hello from nothing\n")
        write(place, more_d_txt="of the trigger\n")
        subprocess.run(["tar", "-czf", place / "packed.tgz", "-C", place, "more.txt"], check=True)
        build(place, "FROM nothing AS a\nFROM small\nCOPY --from=a /more /bin/hello /got/\nADD packed.tgz /packed/\nADD more.txt /plain\n", "more")
        assert_equal(husk("run", "-t", "more", "--shell", "cat /got/more /packed/more.txt /plain; /got/hello").text,
                     "of the trigger\n" * 3 + "hello from nothing\n")
        assert_equal(husk("image", "inspect", "nothing").json()["layers"][0]["bytes"] < 2 << 20, True)
        forget("more", "nothing")


@test
def test_mounts():
    with scratch() as place:
        write(place, list="from the context\n", token=SECRET)
        text = """FROM small AS other
RUN echo of a stage > /file
FROM small
ARG ROUND
RUN echo mine > /root/own
RUN --mount=type=cache,target=/root echo $ROUND >> /root/log; cat /root/log; ls /root
RUN --mount=type=secret,id=token --mount=type=secret,id=token,env=TOKEN cat /run/secrets/token > /dev/null; \\
    case $TOKEN in s3cret-*) echo seen;; esac
RUN --mount=type=bind,source=list,target=/list --mount=type=bind,from=other,source=/file,target=/f --mount=type=tmpfs,target=/t \\
    cat /list /f; echo x > /t/x
RUN ls /root /run; ls /list /f /t 2>/dev/null || echo gone
"""
        options = ["--secret", f"id=token,src={place}/token"]
        result = build(place, text, "mounts", "--build-arg", "ROUND=1", *options)
        for piece in ("1\nlog\n", "\nseen\n", "from the context\nof a stage\n", "own\n", "gone\n"):
            assert_in(piece, result.error)
        result = build(place, text, "mounts", "--build-arg", "ROUND=2", *options)
        assert_in("1\n2\nlog\n", result.error)
        # The secret is in no image and in no kept result.
        found = subprocess.run(["grep", "-rlaF", SECRET, HOME, "--exclude-dir=run"], capture_output=True, text=True, check=False)
        assert_equal(found.stdout, "")
        box = create("-t", "mounts")
        assert_equal(sh(box, "ls /root; ls -d /run/secrets /list /t 2>/dev/null | cat"), "own")
        remove(box)
        assert_fails("build", "-t", "mounts", str(place), "--secret", "src=x", code=2, says=["id=ID"])
        forget("mounts")


@test
def test_network():
    with scratch() as place:
        ask = "FROM small\nRUN curl -sS -m 5 -o /page http://allowed.test/\n"
        result = build(place, ask, "net", code=1)
        assert_in("Dockerfile:2:1: RUN: the command ended with status", result.error)
        result = build(place, ask.replace("allowed", "evil"), "net", "--allow", "allowed.test", code=1)
        assert_in("RUN: the command ended", result.error)
        build(place, ask + "RUN --network=none ! curl -sS -m 5 http://allowed.test/\nRUN curl -sS -m 5 http://allowed.test/ > /again\n",
              "net", "--allow", "allowed.test")
        assert_equal(husk("run", "-t", "net", "--shell", "stat -c %s /page").text != "0\n", True)
        # What the build may reach is not what its sandboxes may reach.
        assert husk("run", "-t", "net", "--shell", "curl -sS -m 5 http://allowed.test/", code=None).code != 0
        forget("net")


@test
def test_urls():
    """ADD of a URL: by the build's own egress policy, which redirects and names of private addresses do not get around."""
    files = internet.SCRATCH / "files"
    files.mkdir()
    (files / "plain.txt").write_text("of the web\n")
    os.utime(files / "plain.txt", (1_000_000_000, 1_000_000_000))
    with scratch() as place:
        write(place, inside="packed\n")
        subprocess.run(["tar", "-czf", files / "packed.tgz", "-C", place, "inside"], check=True)
        digest = hashlib.sha256((files / "plain.txt").read_bytes()).hexdigest()
        allow = ("--allow", "allowed.test")
        web = "https://allowed.test/files"
        text = f"""FROM small
ARG FILE=plain.txt
ADD {web}/$FILE?q=1 /data/
ADD --chown=web --chmod=640 --checksum=sha256:{digest.upper()} http://allowed.test/to/{web}/plain.txt /data/other
ADD {web}/packed.tgz {web}/pl%61in.txt /two/
"""
        result = build(place, text, "urls", *allow)
        assert_equal(cached(result), [])
        show = "cat /data/*; stat -c '%a %U %Y' /data/*; ls /two; tar -tf /two/packed.tgz"
        assert_equal(husk("run", "-t", "urls", "--shell", show).text,
                     "of the web\n" * 2 + "640 web 1000000000\n600 root 1000000000\npacked.tgz\nplain.txt\ninside\n")
        # What has not changed is not added again. With a checksum it is not even asked for.
        result = build(place, text + "RUN true\n", "urls", *allow)
        assert_equal(len(cached(result)), 3, result.error)
        asked = len(internet.requests())
        build(place, f"FROM small\nADD --checksum=sha256:{digest} {web}/plain.txt /x\n", "urls2", *allow)
        build(place, f"FROM small\nADD --checksum=sha256:{digest} {web}/plain.txt /x\nRUN true\n", "urls2", *allow)
        assert_equal([each["path"] for each in internet.requests()[asked:] if each["kind"] == "https"], ["/files/plain.txt"])
        (files / "plain.txt").write_text("another\n")
        result = build(place, text.replace(f" --checksum=sha256:{digest.upper()}", ""), "urls", *allow)
        assert_equal(cached(result), [])
        assert_in("another\nanother\n", husk("run", "-t", "urls", "--shell", "cat /data/*").text)
        for url, says, *more in (
            (f"--checksum=sha256:{'0' * 64} {web}/plain.txt", "not the one of --checksum"),
            (f"{web}/none.txt", "the server answers 404: no such file"),
            ("https://allowed.test/", "has no name for the file", "/x/"),
            ("https://evil.test/files/plain.txt", "'evil.test' cannot be reached"),
            ("http://allowed.test/to/http://evil.test/files/plain.txt", "'evil.test' cannot be reached"),
            ("https://allowed.test/to/http://allowed.test/files/plain.txt", "redirects from https to http"),
            ("https://allowed.test/to/https://allowed.test:8443/files/plain.txt", "cannot download"),
            ("http://127.0.0.1:8080/x", "cannot download"),
            ("http://allowed.test/to/http://169.254.169.254/x", "cannot download"),
            ("http://allowed.test/to/file:///etc/passwd", "is not a URL of http or https"),
            ("https://me:secret@allowed.test/files/plain.txt", "has a user in it"),
        ):
            result = build(place, f"FROM small\nADD {url} {more[0] if more else '/x'}\n", "refused", *allow, code=None)
            assert result.code, url
            assert_in("Dockerfile:2:1: ", result.error)
            assert_in(says, result.error)
        assert not {each[1] for each in internet.arrivals()} & {internet.EVIL, internet.METADATA, internet.PRIVATE}
        # Every public address; private ones and the host's own are not, by whatever name.
        build(place, "FROM small\nADD http://evil.test/files/plain.txt /x\n", "urls2", "--egress", "open")
        for host in ("rebind.test", "meta.test", "host.test:8080", "loop.test", internet.PRIVATE, "203.0.113.1:8080"):
            result = build(place, f"FROM small\nADD http://{host}/files/plain.txt /x\n", "refused", "--egress", "open", code=None)
            assert result.code, host
            assert_in("cannot ", result.error)
        assert not {each[1] for each in internet.arrivals()} & {internet.METADATA, internet.PRIVATE}
        build(place, f"FROM small\nADD http://{internet.PRIVATE}/files/plain.txt /x\n", "urls2", "--allow", f"{internet.PRIVATE}:80")
        assert_equal(husk("run", "-t", "urls2", "--shell", "cat /x").text, "another\n")
        assert_fails("run", "-t", "refused", "--", "true", code=None, says=["refused"])
        forget("urls", "urls2")
    assert_no_leaks()


@test
def test_refused():
    cases = [
        ("RUNN x", "2:1: unknown instruction 'RUNN'; did you mean RUN?"),
        ("RUN --mount=type=ssh x", "2:5: --mount: type=ssh is not supported"),
        ("COPY --from=later a b\nFROM small AS later", "2:1: the stage 'later' comes later (line 3)"),
        ("COPY nothing /x", "2:1: 'nothing' is not in the context"),
        ("COPY ../../etc/passwd /x", "2:1: '../../etc/passwd' is not in the context"),
        ("COPY out /x", "2:1: 'out' is not in the context"),
        ("COPY *.none /x/", "2:1: no file of the context matches"),
        ("COPY a b /x", "2:1: several sources need a target"),
        ("COPY hidden /x", "2:1: 'hidden' is left out by .dockerignore"),
        ("ADD https://example.com/x /x", "2:1: ADD of a URL needs the network: husk build --allow HOST"),
        ("ADD https://example.com/x.git#main /x", "2:1: ADD of a git repository is not supported"),
        ("ARG WHERE=git@example.com:x\nADD $WHERE /x", "3:1: ADD of a git repository is not supported"),
        ("ADD ftp://example.com/x /x", "2:1: 'ftp://example.com/x' is not a URL of http or https"),
        ("COPY https://example.com/x /x", "2:1: COPY of a URL is not possible; ADD downloads it"),
        ("ADD --checksum=md5:12 https://example.com/x /x", "2:1: --checksum=md5:12 is not sha256:"),
        ("ADD --checksum=sha256:" + "0" * 64 + " a /x", "2:1: --checksum goes with one source, which is a URL"),
        ("ENV A=${B", "2:5: '${B' does not end"),
        ("EXPOSE http", "2:1: 'http' is not a port"),
        ("COPY --chmod=u+x a /x", "2:1: --chmod=u+x is not an octal mode"),
        ("HEALTHCHECK --interval=soon CMD x", "2:1: --interval=soon is not a time"),
    ]
    with scratch() as place:
        write(place, a="a", b="b", hidden="h", _d_dockerignore="hidden\n")
        os.symlink("/etc/hostname", place / "out")
        for steps, says in cases:
            # Nothing runs before the error is found: the RUN in front would be seen.
            result = build(place, f"FROM small\n{steps}\nRUN echo ran\n", "refused", code=2)
            assert_in("Dockerfile:" + says, result.error)
            assert "ran" not in result.error.replace("RUN echo ran", ""), result.error
        for name, says in (("base", "bundled template"), ("scratch", "bundled"), ("a@sha256:" + "0" * 64, "digest"), ("A b", "A b")):
            assert_in(says, build(place, "FROM small\n", name, code=2).error)
        assert_in("-t NAME", husk("build", str(place), code=2).error)
        assert_in("not a directory", husk("build", "-t", "x", f"{place}/a", code=2).error)
        assert_in("did you mean 'first'", build(place, "FROM small AS first\n", "x", "--target", "frist", code=2).error)
        assert_equal(husk("image", "ls", "--json").json(), [])
    assert_no_leaks()


@test
def test_failures():
    with scratch() as place:
        text = "FROM small\nRUN echo first > /first\nRUN cat /first; echo 5 > /left; cd /tmp; exit 5\n"
        result = build(place, text, "fails", code=1)
        assert_in("Dockerfile:3:1: RUN: the command ended with status 5", result.error)
        result = husk("build", "-t", "fails", "--debug", str(place), code=1, stdin=b"cat /left /first; echo $STAGE\n")
        assert_in("5\nfirst\n", result.text)
        assert_equal(cached(result), ["RUN echo first > /first"])
        result = build(place, "FROM small\nRUN sleep 60\n", "fails", "--timeout", "1", code=1)
        assert_in("did not end within 1 s", result.error)
        # A child that outlives its RUN ends with it.
        result = build(place, "FROM small\nRUN sleep 600 & echo $! > /pid\nRUN read pid < /pid; kill -0 $pid 2>/dev/null || echo ended\n", "fails")
        assert_in("\nended\n", result.error)
        forget("fails")
        (place / "Dockerfile").write_text("FROM small\nRUN echo begun; sleep 60\n")
        with open(place / "err", "wb") as log:
            process = start("build", "-t", "fails", str(place), stderr=log)
        until(lambda: "begun\n" in (place / "err").read_text().replace("echo begun;", ""), "the RUN has begun")
        process.send_signal(signal.SIGINT)
        assert_equal(process.wait(timeout=30), 130)
        assert_in("interrupted", (place / "err").read_text())
        assert_equal((listed(), husk("image", "ls", "--json").json()), ([], []))
    assert_no_leaks()


@test
def test_bases():
    with scratch() as place, registry() as hub:
        base = Image(["PATH=/usr/bin:/bin", "FROM_BASE=1"], Cmd=["cat", "/etc/who"], WorkingDir="/etc", OnBuild=["RUN echo $FROM_BASE > /trigger"])
        base.add_tree(small_root(place))
        base.oci(place / "layout", "one")
        hub.push(place / "layout", "one", "team/base:1")
        name = f"{hub.host}/team/base:1"
        result = build(write(place / "context"), f"FROM {name}\nRUN pwd > where\n", "bases")
        assert_in("pulling", result.error)
        assert_equal(husk("run", "-t", "bases").text, "version one\n")
        assert_equal(husk("run", "-t", "bases", "--shell", "cat where /trigger; echo $FROM_BASE").text, "/etc\n1\n1\n")
        build(place / "context", f"FROM small\nCOPY --from={name} /etc/who /who\n", "bases")
        husk("template", "build", "of-a-file", "--dockerfile", str(place / "context/Dockerfile"), timeout=120)
        assert_equal(husk("run", "-t", "of-a-file", "--shell", "cat /who").text, "version one\n")
        forget("of-a-file")
        assert_fails("template", "build", "x", "--dockerfile", str(place / "none/Dockerfile"), code=None, says=["none/Dockerfile"])
        assert_equal(husk("run", "-t", "bases", "--shell", "cat /who").text, "version one\n")
        # An image made here goes to a registry and comes back.
        husk("image", "export", "bases", str(place / "out"))
        hub.push(place / "out", "latest", "team/made:1")
        assert_equal(husk("run", "-t", f"{hub.host}/team/made:1", "--shell", "cat /who", timeout=120).text, "version one\n")
        assert_fails("image", "export", "bases", str(place / "out"), code=1, says=["new directory"])
        forget("bases", name, f"{hub.host}/team/made:1")


@test
def test_commit():
    with scratch() as place:
        static_program(place)
        build(place, "FROM small\nENV KIND=committed\nCMD [\"/hello\"]\n", "before")
        box = create("-t", "before")
        husk("cp", str(place / "hello"), f"{box}:/hello")
        sh(box, "echo own > /root/own; echo x > /etc/hosts")
        made = husk("commit", box, "after:1", "-o", str(place / "layout"), "--json").json()
        assert_equal((made["name"], made["command"]), ("docker.io/library/after:1", ["/hello"]))
        assert_equal(sh(box, "cat /root/own"), "own")
        remove(box)
        assert_equal(husk("run", "-t", "after:1", timeout=120).text, "hello from nothing\n")
        assert_equal(husk("run", "-t", "after:1", "--shell", "cat /root/own; echo $KIND").text, "own\ncommitted\n")
        names = subprocess.run(["sh", "-c", "zstd -dc < \"$1\" | tar -t", "sh", place / "layout/blobs/sha256" / made["layers"][0]["digest"][7:]],
                               capture_output=True, text=True, check=True).stdout.splitlines()
        assert "./root/own" in names and "./hello" in names, names
        assert not [name for name in names if name.startswith("./.husk") or name in ("./etc/hosts", "./etc/resolv.conf", "./etc/machine-id")]
        assert_fails("commit", "no-such", "after:2", code=3, says=["not found"])
        forget("after:1", "before")
        podman(place, "run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=512:512", f"oci:{place}/layout")


def podman(place, *words):
    """The image runs in Debian's podman as well."""
    if not shutil.which("podman") or not shutil.which("runc"):
        raise Skip("podman or runc is not installed")
    command = ["podman", "--root", place / "pod", "--runroot", place / "run", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs",
               "--runtime", "runc", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert_equal((done.stdout, done.returncode), ("hello from nothing\n", 0), done.stderr[-500:])
    finally:
        subprocess.run(["podman", "--root", place / "pod", "--runroot", place / "run", "--storage-driver", "vfs", "system", "reset", "-f"],
                       capture_output=True, check=False, timeout=120)


main()
