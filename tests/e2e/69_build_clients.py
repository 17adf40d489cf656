#!/usr/bin/env python3
"""Builds of the server's clients: Dockerfile text that Daytona's SDKs send goes through the builder of husk build. What a tenant
builds is its own, and so are its kept steps. E2B's SDKs send a list of steps, which the same builder carries out. The SDKs themselves run in 92_e2b.py and
94_daytona.py."""

# timeout: 600
import io
import tarfile
import urllib.request

from lib.harness import *
from lib.http import daytona_created, server
from lib.roots import copy_program, small_root

PROGRAMS = ("bash", "grep", "sed", "mkdir", "chown", "cp", "id", "rm", "cat", "env", "head", "stat", "readlink")
HASH = "ab" * 32  # of the files of a COPY; Husk does not compute it
_keys = {}


def key(name, *options):
    if name not in _keys:
        husk("token", "rm", name, code=None)  # of a run that failed
        _keys[name] = husk("token", "create", name, "--tenant", name, *options, "--json").json()["token"]
    return _keys[name]


def build(huskd, text, works=True, who="one", **more):
    """A sandbox of the image; or why the build failed."""
    made = daytona_created(huskd, {"buildInfo": {"dockerfileContent": text}, "user": "root", **more}, key(who))
    assert_equal(made["state"], "started" if works else "build_failed", made)
    return adopt(made["id"]) if works else made["errorReason"]


def built(huskd, text, script, **more):
    """What a command of the built sandbox prints, through Daytona's wire."""
    box = build(huskd, text, **more)
    try:
        token = key(more.get("who", "one"))
        answer = huskd.post(f"/daytona/toolbox/{box}/process/execute", {"command": script}, token=token, status=200).json()
        assert_equal(answer["exitCode"], 0, answer["result"])
        return answer["result"].strip()
    finally:
        husk("rm", box)


def forget(huskd, who="one"):
    for each in huskd.get("/daytona/snapshots", token=key(who), status=200).json()["items"]:
        if not each["general"]:
            huskd.call("DELETE", f"/daytona/snapshots/{each['name']}", token=key(who), status=200)


@test
def test_base():
    husk("rm", "--all")  # sandboxes of other files, which wait for their TTL: the tests below expect none
    with scratch() as place:
        root = small_root(place)
        for program in PROGRAMS:
            copy_program(root, f"/usr/bin/{program}" if program in ("env", "head", "stat", "id", "readlink") else f"/bin/{program}")
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nweb:x:1000:50:web:/home/web:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\nstaff:x:50:\n")
        (root / "etc/profile.d").mkdir()
        (root / "etc/profile").write_text("PATH=/usr/bin:/bin; export PATH\nfor each in /etc/profile.d/*.sh; do [ ! -r $each ] || . $each; done\n")
        husk("template", "build", "--rootfs", str(root), "--name", "small", timeout=120)


@test
def test_what_a_dockerfile_can():
    """Stages, heredocs, variables in FROM, other shells, users: what an interpreter of single lines cannot do."""
    text = (
        "# syntax=docker/dockerfile:1\nARG BASE=small\nFROM ${BASE} AS made\nARG WORD=first\nRUN mkdir -p /out && echo $WORD >/out/word\n"
        "FROM small\nSHELL [\"/bin/bash\", \"-c\"]\nCOPY --from=made --chmod=640 --chown=web:staff /out/word /opt/word\n"
        "COPY <<EOF /opt/script\ntwo\nlines\nEOF\nRUN <<EOF\nset -e\nmkdir /opt/made\necho ${BASH_VERSION%%.*} >/opt/shell\nEOF\n"
        "RUN --mount=type=cache,target=/cache echo kept >/cache/x\nENV A=1 B=\"$A two\"\nENV C=${NONE:-three}\nUSER web\nWORKDIR /opt/$C\n"
        "USER root\nRUN id -u >/opt/user; pwd >>/opt/user; ls / >/opt/all\n"
    )
    with server() as huskd:
        said = built(huskd, text, "cat /opt/word /opt/script /opt/shell /opt/user; echo $A:$B:$C; stat -c '%a %U %G' /opt/word; grep -c cache /opt/all; echo")
        assert_equal(said.splitlines(), ["first", "two", "lines", "5", "0", "/opt/three", "1: two:three", "640 web staff", "0"])
        forget(huskd)


@test
def test_steps_are_kept():
    """A later build continues from a step that is the same; another tenant's does not see it."""
    first = "FROM small\nRUN bash -c 'echo $RANDOM$RANDOM$RANDOM' >/number\n"
    with server() as huskd:
        numbers = [built(huskd, f"{first}RUN echo {i}\n", "cat /number") for i in range(2)]
        assert_equal(numbers[0], numbers[1])
        assert built(huskd, f"{first}RUN echo 1\n", "cat /number", who="two") != numbers[0]
        assert built(huskd, f"{first}RUN echo 1\n", "cat /number", disk=3) != numbers[0]  # another disk is another machine
        for who in ("one", "two"):
            shown = huskd.get("/daytona/snapshots", token=key(who), status=200).json()["items"]
            assert not [each for each in shown if each["name"].startswith("step-")], shown
            assert_equal(len([each for each in shown if not each["general"]]), 3 if who == "one" else 1)
            forget(huskd, who)
        assert_equal(huskd.get("/daytona/sandbox", token=key("one"), status=200).json()["items"], [])


@test
def test_processes_continue():
    """A snapshot has processes, and those of its base are needed."""
    with server() as huskd:
        text = "FROM small\nRUN sleep 7654 >/dev/null 2>&1 &\nRUN true\n"
        assert_equal(built(huskd, text, "cat /proc/[0-9]*/cmdline | grep -ac sleep.7654"), "1")
        forget(huskd)


def start_snapshot(huskd, name, text, status=200):
    return huskd.post("/daytona/snapshots", {"name": name, "buildInfo": {"dockerfileContent": text}}, token=key("one"), status=status).json()


def get_snapshot(huskd, word, status=200):
    return huskd.get(f"/daytona/snapshots/{word}", token=key("one"), status=status).json()


def finished(huskd, started):
    """The snapshot when its build has ended."""
    until(lambda: get_snapshot(huskd, started["id"])["state"] != "building", "the build ends", seconds=120)
    return get_snapshot(huskd, started["id"])


def read_log(huskd, started, follow=True):
    url = huskd.get(f"/daytona/snapshots/{started['id']}/build-logs-url", token=key("one"), status=200).json()["url"]
    request = urllib.request.Request(url + ("?follow=true" if follow else ""), headers={"Authorization": f"Bearer {key('one')}"})
    return urllib.request.urlopen(request, timeout=120)


@test
def test_a_snapshot_and_its_log():
    """The request is answered at once. The log can be followed while the build runs, read afterwards, and is the caller's alone."""
    with server() as huskd:
        started = start_snapshot(huskd, "Logged:1", "FROM small\nRUN echo one; sleep 600\n")
        assert_equal([started["state"], started["name"]], ["building", "logged.1"])
        log = read_log(huskd, started)
        said = b""
        while b"one\n" not in said.partition(b"Step 1/1 : RUN echo one; sleep 600\n")[2]:
            said += log.readline()
        assert_equal(get_snapshot(huskd, started["id"])["state"], "building")
        assert_in("logged.1", [each["name"] for each in huskd.get("/daytona/snapshots", token=key("one"), status=200).json()["items"]])
        start_snapshot(huskd, "logged:1", "FROM small\n", status=409)
        huskd.get(f"/daytona/snapshots/{started['id']}", token=key("two"), status=404)
        assert_equal(huskd.get(f"/daytona/snapshots/{started['id']}/build-logs", token=key("two"), status=200).text, "")
        huskd.call("DELETE", f"/daytona/snapshots/{started['id']}", token=key("one"), status=200)
        log.read()  # its end
        get_snapshot(huskd, started["id"], status=404)

        started = start_snapshot(huskd, "Logged:1", "FROM small\nRUN echo out; echo why >&2; exit 3\n")
        failed = finished(huskd, started)
        assert_equal(failed["state"], "build_failed")
        for word in ("Dockerfile:2:1", "status 3", "why"):
            assert_in(word, failed["errorReason"])
        whole = read_log(huskd, started).read().decode()
        assert_equal(whole.splitlines()[:3], ["Step 1/1 : RUN echo out; echo why >&2; exit 3", "out", "why"])
        assert_equal(read_log(huskd, started, follow=False).read().decode(), whole)

        made = finished(huskd, start_snapshot(huskd, "Logged:1", "FROM small\nRUN echo two\n"))  # the failed one gives way
        assert_equal([made["state"], made["name"], made["id"][:3]], ["active", "logged.1", "sn-"])
        again = start_snapshot(huskd, "Logged:2", "FROM small\nRUN echo two\n")
        assert_equal(read_log(huskd, again).read().decode().splitlines(), ["Step 1/1 : RUN echo two (kept)"])
        finished(huskd, again)
        forget(huskd)


@test
def test_a_snapshot_as_the_base():
    with server() as huskd:
        finished(huskd, start_snapshot(huskd, "Mine:1", "FROM small\nENV PATH=/mine:$PATH ONE=1\nRUN echo 1 >/one\n"))
        said = built(huskd, "FROM Mine:1\nENV TWO=2\nRUN cat /one >/two\n", "echo $ONE $TWO $PATH; cat /two")
        assert_equal(said.splitlines()[1], "1")
        assert said.startswith("1 2 /mine:/usr/"), said
        assert_in("Mine:1", build(huskd, "FROM Mine:1\n", works=False, who="two"))
        assert_in("snapshot", build(huskd, "FROM small\nCOPY --from=Mine:1 /one /x\n", works=False))
        forget(huskd)


@test
def test_errors():
    """Each names the place, and nothing is left."""
    with server() as huskd:
        for text, *says in (
            ("FROM small\nRUN echo before; echo why >&2; exit 3\n", "Dockerfile:2:1", "status 3", "exit 3", "why"),
            ("FROM small\n\nFETCH x\n", "Dockerfile:3:1", "FETCH"),
            ("FROM small\nRUN true\nCOPY x /x\n", "Dockerfile:3:1", "no context"),
            ("FROM small\nRUN --mount=type=ssh true\n", "Dockerfile:2:", "ssh"),
            ("RUN true\n", "FROM"),
            ("FROM nowhere:1\n", "Dockerfile:1:1", "nowhere:1", "HUSK_PULL_REGISTRIES"),
            ("FROM small\nADD https://x.example/y /y\n", "Dockerfile:2:", "cannot be reached"),
            ("FROM small\nENV A=${B\n", "Dockerfile:2:5"),
            ("FROM small\nUSER nobody-here\nRUN true\n", "Dockerfile:3:1", "nobody-here"),
            ("FROM ../../etc\n", "Dockerfile:1:1"),
            (" ", "no FROM"),
        ):
            message = build(huskd, text, works=False)
            for word in says:
                assert word in message, f"{word!r} is not said of {text!r}: {message}"
        assert_equal([each for each in huskd.get("/daytona/snapshots", token=key("one"), status=200).json()["items"] if not each["general"]], [])


@test
def test_a_quota_removes_kept_steps():
    """They count as snapshots of the tenant, and give way to those that it can see."""
    with server() as huskd:
        husk("rm", build(huskd, "FROM small\nRUN echo 0 >/a\n"))
        size = max(each["bytes"] for each in husk("snapshot", "ls", "--json").json())
        forget(huskd)
        key("tight", "--max-snapshots", f"{size * 5 // 2048}K")  # a kept step and its result, and not two kept steps and a result
        for i in range(3):
            husk("rm", build(huskd, f"FROM small\nRUN echo {i} >/a\n", who="tight"))
            forget(huskd, "tight")


def e2b_template(huskd, *steps, who="one", base="small", files=None, **more):
    """The last status of a build with E2B's steps: (type, arguments …), or an object. `files`: a tar, for each COPY."""
    asked = {"headers": {"X-API-Key": e2b_key(who)}, "token": ""}
    made = huskd.post("/v3/templates", {"name": "steps"}, status=202, **asked).json()
    if files is not None:
        link = huskd.get(f"/templates/steps/files/{HASH}", status=201, **asked).json()["url"]
        urllib.request.urlopen(urllib.request.Request(link, data=files, method="PUT"), timeout=60).read()
    path = f"/templates/{made['templateID']}/builds/{made['buildID']}"
    listed = [step if isinstance(step, dict) else {"type": step[0], "args": list(step[1:]), "filesHash": HASH} for step in steps]
    huskd.post(f"/v2{path}", {"fromTemplate": base, "steps": listed, **more}, status=202, **asked)
    last = {}

    def ended():
        last.update(huskd.get(f"{path}/status", status=200, **asked).json())
        return last["status"] in ("ready", "error")

    until(ended, "the build ends", 120)
    return last


def e2b_box(huskd, *steps, who="one", **more):
    """A sandbox of what the steps make, and the log of its build."""
    last = e2b_template(huskd, *steps, who=who, **more)
    assert_equal(last["status"], "ready", last)
    answer = huskd.post("/sandboxes", {"templateID": "steps"}, status=201, headers={"X-API-Key": e2b_key(who)}, token="").json()
    return adopt(answer["sandboxID"]), [line["message"] for line in last["logEntries"]]


def e2b_key(name, *options):
    return key(f"e2b-{name}", "--e2b", *options)


def e2b_forget(huskd, *names, who="one"):
    for name in names or ("steps",):
        huskd.call("DELETE", f"/templates/{name}", status=204, headers={"X-API-Key": e2b_key(who)}, token="")


@test
def test_variables_of_e2b_steps():
    """As in the Dockerfile that E2B's SDKs made the steps from, and as E2B's own server does."""
    with server() as huskd:
        box, _ = e2b_box(
            huskd, ("ENV", "PATH", "/it's/bin:$PATH", "PLAIN", "costs \\$5"), ("ENV", "PLACE", "/opt", "SAME", "${PLACE:-none}"),
            ("ENV", "DEEP", "$PLACE/${NAME:-deep}", "LINES", "two\nlines", "MINE", "$HOME"), ("WORKDIR", "$DEEP/er"),
            ("RUN", "pwd >/tmp/where; echo $PATH >>/tmp/where"),
        )  # fmt: skip
        where = sh(box, "cat /tmp/where").splitlines()
        assert_equal(where[0], "/opt/deep/er")
        path = sh(box, "bash -l -c 'echo $PATH'")
        assert path.startswith("/it's/bin:/usr/") and where[1] == path, (path, where)
        assert_equal(sh(box, 'echo "$PLAIN:$SAME:$DEEP:$MINE:$PATH:$LINES"'), f"costs $5:none:/opt/deep:/home/user:{path}:two\nlines")
        husk("rm", box)
        box, _ = e2b_box(huskd, ("ENV", "MORE", "$DEEP/$LINES"), ("RUN", 'pwd; echo "$MORE" >/tmp/more'), base="steps")  # what it had still holds
        assert_equal(sh(box, "cat /tmp/more; echo $PLAIN"), "/opt/deep/two\nlines\ncosts $5")
        husk("rm", box)
        e2b_forget(huskd)


@test
def test_e2b_steps_are_kept():
    """As those of a Dockerfile, and not with those of one. A step with `force` runs, and so do those after it."""
    first, second = ("RUN", "bash -c 'echo $RANDOM$RANDOM' >number; id -un >who"), ("RUN", "cat number >copied")
    said = [f"RUN {command}" for _, command in (first, second)]

    def built(*steps, **more):
        box, log = e2b_box(huskd, *steps, who="kept", **more)
        number = sh(box, "cd /home/user; cat number copied who").splitlines()
        husk("rm", box)
        assert number[0] == number[1] and number[2] == "user", number
        return number[0], log[1:]

    with server() as huskd:
        e2b_key("kept", "--max-sandboxes", "1")  # a build needs one at a time
        number, log = built(first, second)
        assert_equal(log, said)
        assert_equal(built(first, second, ("ENV", "LATER", "1")), (number, [f"CACHED {line}" for line in said]))
        forced = {"type": "RUN", "args": [second[1]], "force": True}
        assert_equal(built(first, forced), (number, [f"CACHED {said[0]}", said[1]]))
        other, log = built(first, second, force=True)
        assert other != number and log == said, (other, log)
        assert_equal(built(first, second)[0], other)  # the newest is kept
        shown = huskd.get("/snapshots", status=200, headers={"X-API-Key": e2b_key("kept")}, token="").json()
        assert_equal([each["names"] for each in shown], [["steps"]], shown)
        e2b_forget(huskd, who="kept")


def files_tar(*entries, mode="w:gz"):
    """Entries: (name, content, or None for a folder, or ["target"] for a link)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            entry.mode = 0o755 if content is None else 0o640
            entry.type = tarfile.DIRTYPE if content is None else tarfile.SYMTYPE if isinstance(content, list) else tarfile.REGTYPE
            entry.linkname = content[0] if isinstance(content, list) else ""
            entry.size = len(content) if isinstance(content, bytes) else 0
            tar.addfile(entry, io.BytesIO(content) if isinstance(content, bytes) else None)
    return out.getvalue()


@test
def test_files_of_e2b_steps():
    entries = (("d", None), ("d/x", b"x"), ("d/l", ["x"]), ("link", ["nowhere"]), ("e", b"e"))
    with server() as huskd:
        for mode in ("w", "w:gz"):
            box, log = e2b_box(
                huskd, ("COPY", "d", "there"), ("COPY", "link", "/opt/"), ("COPY", "e", "/opt/deep/e2", "root", "0700"), ("COPY", "d/*", "/opt/d"),
                files=files_tar(*entries, mode=mode), force=True,
            )  # fmt: skip
            assert_equal(log[1], "COPY d there")
            script = "cd /opt; stat -c '%n %U %a' /home/user/there /home/user/there/x deep/e2 d d/x; readlink link /home/user/there/l; cat deep/e2 d/x"
            assert_equal(sh(box, script).splitlines(),
                         ["/home/user/there user 755", "/home/user/there/x user 640", "deep/e2 root 700", "d user 755", "d/x user 640", "nowhere", "x", "ex"])  # fmt: skip
            husk("rm", box)
        e2b_forget(huskd)


@test
def test_errors_of_e2b_steps():
    """Each has the number of its step, and no line of a Dockerfile."""
    files = files_tar(("e", b"e"))
    with server() as huskd:
        for step, says, steps, given in (
            ("2", "does not end with", [("RUN", "true"), ("ENV", "A", "${B")], None),
            ("2", "exit status 7", [("ENV", "A", "1"), ("RUN", "exit 7")], None),
            ("1", "invalid username: 'ghost'", [("RUN", "true", "ghost")], None),
            ("2", "invalid username: 'ghost'", [("USER", "ghost"), ("WORKDIR", "/x")], None),
            ("finalize", "invalid username: 'ghost'", [("USER", "ghost")], None),
            ("1", "'A=B' cannot be the name", [("ENV", "A=B", "1")], None),
            ("1", "step 'FETCH' is not known", [("FETCH", "x")], None),
            ("2", "step '' is not known", [("RUN", "true"), {"args": 5}], None),
            ("1", "were not uploaded", [("COPY", "e", "/opt/")], None),
            ("2", "no files match 'f'", [("COPY", "e", "/opt/"), ("COPY", "f", "/opt/")], files),
            ("1", "not an octal mode", [("COPY", "e", "/opt/", "", "rwx")], files),
            ("1", "'ghost' does not exist", [("COPY", "e", "/opt/", "ghost")], files),
            ("1", "is not a tar", [("COPY", "e", "/opt/")], b"this is no tar"),
            ("1", "leads outside", [("COPY", "e", "/opt/")], files_tar(("../../e", b"e"))),
        ):
            reason = e2b_template(huskd, *steps, files=given)["reason"]
            assert reason["step"] == step and says in reason["message"] and "Dockerfile" not in reason["message"], (steps, reason)
        assert_in("template 'nowhere' not found", e2b_template(huskd, base="nowhere")["reason"]["message"])
        assert_equal(huskd.get("/templates/aliases/steps", status=404, headers={"X-API-Key": e2b_key("one")}, token="").json()["code"], 404)


@test
def test_a_server_that_ends_ends_the_builds_of_e2b():
    def alive():
        return [each["id"] for each in husk("ls", "--all", "--json").json() if each["state"] != "ended"]

    with server() as huskd:
        asked = {"headers": {"X-API-Key": e2b_key("one")}, "token": ""}
        for definition in ({"steps": [{"type": "RUN", "args": ["sleep 600"]}]}, {"steps": [], "readyCmd": "sleep 600"}):
            made = huskd.post("/v3/templates", {"name": "ends"}, status=202, **asked).json()
            huskd.post(f"/v2/templates/ends/builds/{made['buildID']}", {"fromTemplate": "small", **definition}, status=202, **asked)
        until(lambda: len(alive()) == 2, "both run", seconds=60)
        # A prepared machine is in the list for a moment, from its claim until it has the fields of its sandbox.
        until(lambda: husk("ls", "--json").json() == [], "machines that build are in no list")
        huskd.process.terminate()
        huskd.process.wait(60 * SLOW)
    assert_equal(alive(), [])


@test
def test_nothing_is_left():
    husk("token", "rm", *_keys)
    husk("gc", "--all")
    husk("template", "rm", "small")
    assert_no_leaks()


main()
