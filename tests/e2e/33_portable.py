#!/usr/bin/env python3
"""Portable machines: snapshots and templates that leave their host in a file, over a registry and over the API, and go on elsewhere;
who is trusted; what does not travel; files that somebody changed; hosts that cannot continue one; kill -9 in the middle."""

import base64
import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import tarfile
import tempfile
import time

from lib.harness import (
    HOME, Skip, adopt, adopt_snapshot, assert_equal, assert_fails, assert_in, assert_no_leaks, create, husk, main, scratch, sh, start, test,
    until,
)
from lib.http import server
from lib.registry import registry
from lib.roots import Image, small_root
from lib.runsc import current_runsc

COUNTER = "n=0; while :; do n=$((n+1)); echo $n >/tmp/n; sleep 0.02; done"


@contextlib.contextmanager
def other(trusts=True):
    """Another instance, which stands for another host. Yields the environment of its calls."""
    home = tempfile.mkdtemp(prefix="husk-there.", dir="/var/tmp")
    env = {"HUSK_HOME": home, "HUSK_POOL": "0"}
    try:
        if trusts:
            husk("key", "trust", husk("key", "show").text.strip(), "friend", env=env)
        yield env
    finally:
        husk("rm", "--all", env=env, code=None, timeout=60)
        shutil.rmtree(home, ignore_errors=True)


def kept(env):
    """What an instance keeps of machines."""
    home = env["HUSK_HOME"]
    return {name: sorted(os.listdir(f"{home}/{name}")) if os.path.isdir(f"{home}/{name}") else []
            for name in ("snapshots", "templates", "machines")}


def nothing_left(env):
    husk("gc", env=env)
    assert_equal(kept(env), {"snapshots": [], "templates": [], "machines": []})
    assert_equal(husk("snapshot", "ls", "--json", env=env).json(), [])


_template = []


def small():
    """A template of a few files, made once."""
    if not _template:
        with scratch() as place:
            husk("template", "build", "small", "--rootfs", small_root(place), timeout=120)
        _template.append("small")
    return "small"


def counting(name, *options):
    """A sandbox with a counter in the memory of a process."""
    box = create("-t", small(), *options)
    husk("exec", "-d", box, "--", "/bin/sh", "-c", COUNTER)
    until(lambda: count(box) > 5, "the counter starts")
    adopt_snapshot(name)
    husk("snapshot", "create", box, name)
    return box


def count(box, env=None):
    """0: the counter has not started. Between two numbers the file is empty for a moment."""
    for _ in range(10):
        result = husk("exec", box, "--", "cat", "/tmp/n", code=None, env=env)
        if result.code == 0 and result.text.strip().isdigit():
            return int(result.text)
    return 0


def goes_on(name, env, at_least):
    box = husk("create", "--from", name, env=env, timeout=60).text.split()[0]
    first = count(box, env)
    assert first >= at_least, (first, at_least)
    until(lambda: count(box, env) > first + 3, "the counter goes on")
    husk("rm", "-f", box, env=env)


class Machine:
    """An exported machine in the hands of somebody who changes it."""

    def __init__(self, path):
        with tarfile.open(path) as archive:
            self.files = {each.name: archive.extractfile(each).read() for each in archive.getmembers()}
        self.manifest = self.blob(json.loads(self.files["index.json"])["manifests"][0]["digest"])
        self.description = json.loads(self.raw(self.manifest["config"]["digest"]))

    def raw(self, digest):
        return self.files[f"blobs/sha256/{digest.removeprefix('sha256:')}"]

    def blob(self, digest):
        return json.loads(self.raw(digest))

    def put(self, data):
        digest = hashlib.sha256(data).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = data
        return f"sha256:{digest}"

    def add(self, name, data):
        """A file of one chunk, in the place of one with that name."""
        packed = subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout
        chunk = [self.put(packed).removeprefix("sha256:"), len(packed), len(data)]
        others = [each for each in self.description["files"] if each["name"] != name]
        self.description["files"] = [*others, {"name": name, "size": len(data), "chunks": [chunk]}]

    def seal(self, key=None):
        """New documents for a changed description; signed if there is a key, else with the old signature."""
        text = json.dumps(self.description).encode()
        digest = self.put(text)
        self.manifest["config"].update(digest=digest, size=len(text))
        if key:
            with scratch() as place:
                (place / "m").write_bytes(f"husk portable machine 1\n{digest}\n".encode())
                signed = subprocess.run(["openssl", "pkeyutl", "-sign", "-rawin", "-inkey", key, "-in", place / "m"],
                                        check=True, capture_output=True).stdout
            self.manifest["annotations"]["dev.husk.signature"] = base64.b64encode(signed).decode()
        self.index()

    def index(self):
        data = json.dumps(self.manifest).encode()
        index = json.loads(self.files["index.json"])
        index["manifests"][0].update(digest=self.put(data), size=len(data))
        self.files["index.json"] = json.dumps(index).encode()

    def write(self, path):
        with tarfile.open(path, "w") as archive:
            for name, data in self.files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        return path


def first_chunk(machine, file):
    return next(each for each in machine.description["files"] if each["name"] == file)["chunks"][0][0]


@test
def test_in_a_file():
    box = counting("walker", "-e", "NOTE=kept")
    at = count(box)
    with scratch() as place, other(trusts=False) as there:
        husk("snapshot", "export", "walker", place / "m.tar")
        assert_equal(os.listdir(place), ["m.tar"])
        key = husk("key", "show").text.strip()
        assert_fails("snapshot", "import", place / "m.tar", code=1, says=["not trusted", f"husk key trust {key}"], env=there)
        nothing_left(there)
        husk("key", "trust", key, "friend", env=there)
        assert_equal([each["name"] for each in husk("key", "ls", "--json", env=there).json()], ["own", "friend"])
        found = husk("snapshot", "import", place / "m.tar", "--json", env=there).json()
        assert_equal((found["name"], found["template"]), ("walker", "small"))
        goes_on("walker", there, 1)
        assert_fails("snapshot", "import", place / "m.tar", code=1, says=["named 'walker' already"], env=there)
        # A second one shares the root image of the first.
        husk("snapshot", "import", "-", "--name", "again", stdin=(place / "m.tar").read_bytes(), env=there)
        assert_equal(len(kept(there)["templates"]), 1)
        goes_on("again", there, 1)
        husk("snapshot", "rm", "walker", "again", env=there)
        nothing_left(there)
        husk("key", "rm", "friend", env=there)
        assert_fails("snapshot", "import", place / "m.tar", code=1, says=["not trusted"], env=there)
        # By the machine's settings.
        husk("snapshot", "import", place / "m.tar", env={**there, "HUSK_TRUSTED_KEYS": f"{key}"})
        # Over a pipe, and at home, where the key is one's own.
        assert husk("snapshot", "export", "walker", "-").out[:10] == b"oci-layout"
        adopt_snapshot("home")
        husk("snapshot", "import", place / "m.tar", "--name", "home")
        assert count(adopt(husk("create", "--from", "home").text.split()[0])) >= min(at, 1)
        assert_fails("snapshot", "export", "nobody", place / "x", code=3, says=["not found"])
        assert_fails("snapshot", "export", "walker", "/nowhere/x", code=3, says=["/nowhere/x"])
        assert_equal(os.listdir(place), ["m.tar"])


@test
def test_encrypted():
    """With a passphrase in a file, on the caller's side: also over a server, which never sees the passphrase."""
    counting("walker")
    with scratch() as place, server() as here:
        (place / "words").write_text("correct horse battery\n")
        (place / "wrong").write_text("correct horse batter\n")
        (place / "short").write_text("no\n")
        (place / "empty").write_text("\n")
        words, wrong = ("--passphrase-file", place / "words"), ("--passphrase-file", place / "wrong")
        url = {"HUSK_HOST": f"unix:{here.socket_path}"}
        husk("snapshot", "export", "walker", place / "plain")
        for env in (None, url):
            husk("snapshot", "export", "walker", place / "sealed", *words, env=env)
            data = (place / "sealed").read_bytes()
            assert data.startswith(b"husk sealed 1\n")
            assert b"oci-layout" not in data and b"vnd.husk.machine" not in data
            assert_fails("snapshot", "import", place / "sealed", "--name", "back", code=2, says=["encrypted", "--passphrase-file"], env=env)
            assert_fails("snapshot", "import", place / "sealed", "--name", "back", *wrong, code=1, says=["passphrase is wrong"], env=env)
            assert_fails("snapshot", "import", place / "plain", "--name", "back", *words, code=2, says=["not encrypted"], env=env)
            for changed in (data[:-1], data[: len(data) // 2], data[:5000] + b"x" + data[5001:], data[:5000] + data[5001:], data + b"x"):
                (place / "changed").write_bytes(changed)
                assert_fails("snapshot", "import", place / "changed", "--name", "back", *words, code=1, says=["changed"], env=env)
            adopt_snapshot("back")
            husk("snapshot", "import", place / "sealed", "--name", "back", *words, env=env)
            assert count(adopt(husk("create", "--from", "back").text.split()[0])) > 0
            husk("rm", "--all")
            husk("snapshot", "rm", "back")
        # Over pipes, and a template.
        data = husk("snapshot", "export", "walker", "-", *words).out
        adopt_snapshot("piped")
        husk("snapshot", "import", "-", "--name", "piped", *words, stdin=data)
        husk("template", "export", small(), place / "t", *words)
        husk("template", "import", place / "t", "--name", "opened", *words)
        assert_equal(husk("run", "-t", "opened", "--", "cat", "/etc/who").text, "version one\n")
        husk("template", "rm", "opened")
        for name, says in (("short", "fewer than 8"), ("empty", "holds no passphrase"), ("none", "none")):
            assert_fails("snapshot", "export", "walker", place / "x", "--passphrase-file", place / name, code=None, says=[says])
        assert not (place / "x").exists()
        assert_fails("snapshot", "push", "walker", "localhost:1/x:1", *words, code=2, says=["passphrase-file"])


@test
def test_over_a_registry():
    box = counting("walker")
    sh(box, "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo line $i of the work that is done here; done >/root/work")
    adopt_snapshot("first")
    adopt_snapshot("second")
    husk("snapshot", "create", box, "first")
    with registry() as hub, other() as there:
        name = f"{hub.host}/machines/walker:1"
        sent = husk("snapshot", "push", "first", name, "--json").json()
        assert sent["sent_chunks"] == sent["chunks"] > 3, sent
        again = husk("snapshot", "push", "first", name, "--json").json()
        assert_equal((again["sent_chunks"], again["bytes"]), (0, sent["bytes"]))
        sh(box, "echo more >>/root/work")
        husk("snapshot", "create", box, "second")
        # What changed is sent; the root image is not.
        more = husk("snapshot", "push", "second", f"{hub.host}/machines/walker:2", "--json").json()
        assert 0 < more["sent_bytes"] < more["bytes"] / 2, more
        husk("snapshot", "pull", f"{hub.host}/machines/walker:2", env=there)
        goes_on("second", there, 1)
        there_box = husk("create", "--from", "second", env=there).text.split()[0]
        assert_in("more", husk("exec", there_box, "--", "cat", "/root/work", env=there).text)
        husk("rm", "-f", there_box, env=there)
        husk("snapshot", "rm", "second", env=there)
        nothing_left(there)
        # A registry that lies.
        manifest = json.loads(hub.blob(sent["digest"]).read_text())
        blob = hub.blob(manifest["layers"][0]["digest"])
        right = blob.read_bytes()
        blob.write_bytes(bytes([right[0] ^ 1]) + right[1:])
        assert_fails("snapshot", "pull", name, code=1, says=["digest mismatch"], env=there)
        blob.write_bytes(right + b"more")
        assert_fails("snapshot", "pull", name, code=1, says=["registry"], env=there)
        nothing_left(there)
        assert_fails("snapshot", "pull", f"{hub.host}/machines/nobody:1", code=3, says=["not in that registry"], env=there)
        assert_fails("snapshot", "push", "first", "plain", code=2, says=["REGISTRY/NAME:TAG"])
        # A container image is not a machine.
        with scratch() as place:
            image = Image()
            image.add(("file", "content"))
            image.oci(place / "layout", "x")
            hub.push(place / "layout", "x", "image:1")
        assert_fails("snapshot", "pull", f"{hub.host}/image:1", code=2, says=["not a portable machine", "husk pull"], env=there)


@test
def test_an_image_of_its_files_over_a_registry():
    box = create("-t", small())
    sh(box, "echo done >/root/work")
    with registry(login="me:secret") as hub, other() as there, scratch() as place:
        name = f"{hub.host}/team/box:1"
        assert_fails("commit", box, "plain", "--push", code=2, says=["names no registry"])
        assert_fails("commit", box, name, "--push", code=1, says=["was made, and not pushed", "log in"])
        login = {"HOME": str(place), "DOCKER_CONFIG": str(place)}
        husk("login", hub.host, "-u", "me", "--password-stdin", stdin=b"secret", env=login)
        assert_in("sha256:", husk("image", "push", name, env=login).text)
        assert_in("0 of 2 blobs", husk("image", "push", name, f"{hub.host}/team/box:2", env=login).error)
        assert_equal(husk("run", "-t", f"{hub.host}/team/box:2", "--", "cat", "/root/work", env={**there, **login}, timeout=120).text, "done\n")
        assert_fails("image", "push", "nobody/x:1", code=3, says=["nobody/x"])
    husk("image", "prune")


@test
def test_over_the_api():
    counting("walker")
    with scratch() as place, server() as here:
        token = husk("token", "create", "someone", "--tenant", "t").text.strip()
        data = here.get("/v1/snapshots/walker/export").body
        assert_equal(here.get("/v1/snapshots/walker/export", status=404, token=token).json()["error"]["code"], "not_found")
        here.post("/v1/snapshots/import?name=mine", data, status=403, token=token)
        adopt_snapshot("sent")
        made = here.post("/v1/snapshots/import?name=sent", data, status=201).json()
        assert_equal(made["name"], "sent")
        here.post("/v1/snapshots/import?name=sent", data, status=409)
        here.post("/v1/snapshots/import?nam=sent", data, status=400)
        here.post("/v1/snapshots/import", data[: len(data) // 2], status=400)
        here.post("/v1/snapshots/import", b"", status=400)
        url = {"HUSK_HOST": f"unix:{here.socket_path}"}
        husk("snapshot", "export", "walker", place / "m.tar", env=url)
        adopt_snapshot("carried")
        husk("snapshot", "import", place / "m.tar", "--name", "carried", env=url)
        assert count(adopt(husk("create", "--from", "carried").text.split()[0])) > 0
        template = here.get("/v1/templates/small/export").body
        assert_equal(here.post("/v1/templates/import?name=copy", template, status=201).json()["name"], "copy")
        assert_equal(husk("run", "-t", "copy", "--", "cat", "/etc/who").text, "version one\n")
        here.delete("/v1/templates/copy")
        assert_fails("snapshot", "push", "walker", "localhost:1/x:1", code=1, says=["on the server's host"], env=url)


@test
def test_what_does_not_travel():
    secret, variable = "s3cr3t-of-the-leash", "VALUE-of-a-variable"
    box = create("-t", small(), "-e", f"TOKEN={variable}", "--secret", "API_KEY@example.com", env={"API_KEY": secret})
    adopt_snapshot("bearer")
    husk("snapshot", "create", box, "bearer")
    with scratch() as place, other() as there:
        husk("snapshot", "export", "bearer", place / "m.tar")
        machine = Machine(place / "m.tar")
        everything = b"".join(machine.files.values())
        chunks = [machine.raw(layer["digest"]) for layer in machine.manifest["layers"]]
        unpacked = subprocess.run(["zstd", "-dc"], input=b"".join(chunks), capture_output=True, check=True).stdout
        assert len(unpacked) > len(b"".join(chunks))
        with open(f"{HOME}/portable.key", encoding="ascii") as file:
            private = file.read().splitlines()[1]
        for hidden in (secret, private):
            assert hidden.encode() not in everything and hidden.encode() not in unpacked, hidden
        # Of the environment its names are described. What the agent had in memory is memory.
        documents = json.dumps(machine.description) + json.dumps(machine.manifest)
        assert_equal(machine.description["environment"], ["TOKEN"])
        assert variable not in documents and "BEGIN" not in documents
        husk("snapshot", "import", place / "m.tar", env=there)
        assert_fails("create", "--from", "bearer", code=2, says=["API_KEY"], env=there)
    husk("volume", "create", "data")
    box = create("-t", small(), "--volume", "data:/data")
    adopt_snapshot("bound")
    husk("snapshot", "create", box, "bound")
    assert_fails("snapshot", "export", "bound", "-", code=1, says=["volumes"])
    husk("rm", "-f", box)
    husk("volume", "rm", "data", code=None)


@test
def test_changed_by_somebody():
    counting("walker")
    with scratch() as place, other() as there:
        husk("snapshot", "export", "walker", place / "m.tar")
        good = (place / "m.tar").read_bytes()

        def refused(path, *says, code=None):
            result = husk("snapshot", "import", path, env=there, code=None, timeout=60)
            assert result.code in ((1, 2) if code is None else (code,)), str(result)
            for piece in says:
                assert_in(piece, result.error, str(result))

        machine = Machine(place / "m.tar")
        name = f"blobs/sha256/{first_chunk(machine, 'image/pages.img')}"
        machine.files[name] = machine.files[name][:-1] + bytes([machine.files[name][-1] ^ 1])
        refused(machine.write(place / "1"), "was changed", "sha256")
        machine = Machine(place / "m.tar")
        del machine.files[f"blobs/sha256/{first_chunk(machine, 'root/rootfs.img')}"]
        refused(machine.write(place / "2"), "missing")
        machine = Machine(place / "m.tar")
        machine.description["memory_bytes"] *= 2
        machine.seal()
        refused(machine.write(place / "3"), "signature", code=1)
        machine = Machine(place / "m.tar")
        del machine.manifest["annotations"]
        machine.index()
        refused(machine.write(place / "4"), "not signed", code=1)
        for number, data in enumerate((b"", b"x" * 5000, good[: len(good) // 3], good[512:], b"\0" * 10240)):
            (place / f"raw{number}").write_bytes(data)
            refused(place / f"raw{number}", "not a portable machine")
        # Signed, and still not believed.
        for number, change in enumerate((
            lambda d: d["files"][0].update(name="root/../../../x"), lambda d: d["files"][0].update(size=1 << 50),
            lambda d: d["files"][0]["chunks"][0].__setitem__(2, 1 << 40), lambda d: d.update(files=[]),
            lambda d: d["template"].update(name="../x"), lambda d: d.update(name="Bad Name"), lambda d: d.update(needs=None),
            lambda d: d.update(memory_bytes=1), lambda d: d.update(pids=1), lambda d: d.update(egress="[]"),
            lambda d: d["needs"]["features"].append("a\nb"), lambda d: d["files"].pop(0),
        )):
            machine = Machine(place / "m.tar")
            change(machine.description)
            machine.seal(f"{HOME}/portable.key")
            refused(machine.write(place / f"signed{number}"))
        # Names that mean something on this host alone: a disk of the image, which a removal removes; that it was flushed.
        for name in ("image/disk.name", "image/durable", "root/bake.lock", "files/other"):
            machine = Machine(place / "m.tar")
            machine.add(name, b"v-aaaaaaaa")
            machine.seal(f"{HOME}/portable.key")
            refused(machine.write(place / "named"), f"'{name}'", code=2)
        nothing_left(there)


@test
def test_a_template_that_makes_no_sense():
    small()
    with scratch() as place, other() as there:
        husk("template", "export", "small", place / "t.tar")
        assert_equal(Machine(place / "t.tar").description["template"]["description"], "from root")
        for change, says in (
            (lambda m: m.description.update(egress="[]"), "egress"),
            (lambda m: m.description.update(disk_bytes=1), "disk must be"),
            (lambda m: m.add("root/recipe.json", b"["), "recipe.json"),
        ):
            machine = Machine(place / "t.tar")
            change(machine)
            machine.seal(f"{HOME}/portable.key")
            result = husk("template", "import", machine.write(place / "x"), env=there, code=None, timeout=120)
            assert result.code in (1, 2), str(result)
            assert_in(says, result.error)
            assert_equal(kept(there)["templates"], [])
        # What was refused is not found by the next import of that version.
        husk("template", "import", place / "t.tar", env=there, timeout=120)
        assert_equal(husk("run", "-t", "small", "--", "cat", "/etc/who", env=there).text, "version one\n")


@test
def test_where_an_export_goes():
    counting("walker")
    with scratch() as place, other() as there:
        # A device stays one.
        os.mknod(place / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        husk("snapshot", "export", "walker", place / "null")
        assert stat.S_ISCHR(os.stat(place / "null").st_mode)
        # Nobody can have put a link in the way.
        (place / "victim").write_text("mine")
        os.symlink(place / "victim", place / "m.tar.partial")
        husk("snapshot", "export", "walker", place / "m.tar")
        husk("snapshot", "export", "walker", place / "m.tar")  # again, over the first
        assert_equal((place / "victim").read_text(), "mine")
        assert_equal(sorted(os.listdir(place)), ["m.tar", "m.tar.partial", "null", "victim"])
        process = start("snapshot", "export", "walker", str(place / "half"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        assert_equal([name for name in os.listdir(place) if name.startswith("half")], [])
        # Pages of zeros take no room.
        machine = Machine(place / "m.tar")
        machine.add("image/zeros", bytes(4 << 20))
        machine.seal(f"{HOME}/portable.key")
        found = husk("snapshot", "import", machine.write(place / "x"), "--json", env=there).json()
        zeros = os.stat(f"{there['HUSK_HOME']}/snapshots/{found['id']}/zeros")
        assert_equal((zeros.st_size, zeros.st_blocks), (4 << 20, 0))


@test
def test_several_at_once():
    counting("walker")
    with scratch() as place, other() as there:
        husk("snapshot", "export", "walker", place / "m.tar")
        for _ in range(3):
            names = [f"at-once-{number}" for number in range(4)]
            processes = [start("snapshot", "import", str(place / "m.tar"), "--name", name, env=there, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE) for name in names]
            for process in processes:
                _, error = process.communicate(timeout=120)
                assert process.returncode == 0, error
            assert_equal(len(kept(there)["templates"]), 1)
            husk("snapshot", "rm", *names, env=there)
            nothing_left(there)


@test
def test_interrupted():
    counting("walker")
    with other() as there:
        process = start("snapshot", "import", "-", env=there, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        process.wait(60)  # the pipe stays open
        assert_equal((process.returncode, process.stderr.read()), (130, b"husk: interrupted\n"))
        process.stdin.close()
        nothing_left(there)
    # Nothing is packed for a registry that does not answer.
    assert_fails("snapshot", "push", "walker", "127.0.0.1:1/machines/walker:1", code=1, says=["127.0.0.1:1"])


@test
def test_a_host_that_cannot():
    counting("walker")
    with scratch() as place, other() as there:
        husk("snapshot", "export", "walker", place / "m.tar")
        for change, says in (
            (lambda d: d["needs"].update(architecture="sparc"), ["architecture sparc"]),
            (lambda d: d["needs"].update(isolation="other"), ["engine 'other'"]),
            (lambda d: d["needs"]["features"].append("amx_future"), ["processor", "amx_future"]),
            (lambda d: d.update(format=2, husk="9.9"), ["format 2", "husk 9.9", "update"]),
        ):
            machine = Machine(place / "m.tar")
            change(machine.description)
            machine.seal(f"{HOME}/portable.key")
            result = husk("snapshot", "import", machine.write(place / "x"), env=there, code=1)
            for piece in says:
                assert_in(piece, result.error)
        assert_fails("snapshot", "import", place / "m.tar", "--disk-only", code=2, says=["--files"], env=there)
        # Exported with its files, they can be had in any case.
        husk("snapshot", "export", "walker", "--files", place / "f.tar")
        machine = Machine(place / "f.tar")
        machine.description["needs"]["features"].append("amx_future")
        machine.seal(f"{HOME}/portable.key")
        machine.write(place / "y")
        assert_fails("snapshot", "import", place / "y", code=1, says=["amx_future", "--disk-only"], env=there)
        husk("snapshot", "import", place / "y", "--disk-only", "--name", "files", env=there, timeout=120)
        assert_in("version one", husk("run", "-t", "files", "--", "cat", "/etc/who", env=there).text)
        husk("template", "rm", "files", env=there)
        nothing_left(there)


@test
def test_templates():
    small()
    with scratch() as place, registry() as hub, other() as there:
        husk("template", "export", "small", place / "t.tar")
        assert_equal(husk("template", "import", place / "t.tar", env=there, timeout=120).text, "small\n")
        assert_equal(husk("run", "-t", "small", "--", "cat", "/etc/who", env=there).text, "version one\n")
        assert_fails("snapshot", "import", place / "t.tar", code=2, says=["it is a template"], env=there)
        husk("template", "rm", "small", env=there)
        husk("template", "push", "small", f"{hub.host}/templates/small:1")
        husk("template", "pull", f"{hub.host}/templates/small:1", "--name", "pulled", env=there, timeout=120)
        assert_equal(husk("run", "-t", "pulled", "--", "cat", "/etc/who", env=there).text, "version one\n")


def disks(env):
    """The disks of an instance without a running machine; None while the kernel still has them open."""
    file = f"{env['HUSK_HOME']}/disks.btrfs"
    with scratch() as place:
        if subprocess.run(["mount", "-o", "loop,ro", file, place], capture_output=True, check=False).returncode != 0:
            return None
        try:
            return sorted(os.listdir(place))
        finally:
            subprocess.run(["umount", place], check=True)


@test
def test_cloned_disks():
    """With a current runsc the disk is beside the memory, and goes along."""
    runsc = {"HUSK_RUNSC": current_runsc()}
    with scratch() as place, other(trusts=False) as here, other(trusts=False) as there:
        here, there = {**here, **runsc}, {**there, **runsc}
        husk("template", "build", "small", "--isolation", "gvisor", "--rootfs", small_root(place), env=here, timeout=120)
        checks = {check["name"]: check["text"] for check in husk("doctor", "--json", code=None, env=here).json()}
        if "cloned" not in checks["gvisor"]:
            raise Skip(f"no cloned disks here: {checks['gvisor']}")
        box = husk("create", "-t", "small", env=here).text.split()[0]
        husk("exec", "-d", box, "--", "/bin/sh", "-c", COUNTER, env=here)
        until(lambda: count(box, here) > 5, "the counter starts")
        husk("exec", box, "--", "/bin/sh", "-c", "echo mine >/root/work; echo more >>/etc/group; : >/etc/who", env=here)
        husk("snapshot", "create", box, "walker", env=here)
        husk("snapshot", "export", "walker", place / "m.tar", env=here)
        assert "image/outside.stream" in [each["name"] for each in Machine(place / "m.tar").description["files"]]
        husk("key", "trust", husk("key", "show", env=here).text.strip(), env=there)
        husk("snapshot", "import", place / "m.tar", env=there)
        goes_on("walker", there, 1)
        copy = husk("create", "--from", "walker", env=there).text.split()[0]
        assert_equal(husk("exec", copy, "--", "cat", "/root/work", "/etc/who", env=there).text, "mine\n")
        assert_in("more", husk("exec", copy, "--", "cat", "/etc/group", env=there).text)
        husk("rm", "-f", copy, env=there)
        husk("snapshot", "rm", "walker", env=there)
        # A stream that ends early leaves no disk.
        machine = Machine(place / "m.tar")
        stream = next(each for each in machine.description["files"] if each["name"] == "image/outside.stream")
        chunks = [subprocess.run(["zstd", "-dc"], input=machine.raw(chunk[0]), capture_output=True, check=True).stdout for chunk in stream["chunks"]]
        whole = b"".join(chunks)
        machine.add("image/outside.stream", whole[: len(whole) // 2])
        machine.seal(f"{here['HUSK_HOME']}/portable.key")
        assert_fails("snapshot", "import", machine.write(place / "x"), code=1, says=["cannot continue", "btrfs"], env=there)
        nothing_left(there)
        until(lambda: disks(there) is not None, "the kernel closes the disks")
        assert_equal([name for name in disks(there) if name.startswith("m-")], [])
        # A host without that runsc says so.
        with other(trusts=False) as old:
            husk("key", "trust", husk("key", "show", env=here).text.strip(), env=old)
            debian = {**old, "HUSK_RUNSC": shutil.which("runsc") or ""}
            if debian["HUSK_RUNSC"]:
                assert_fails("snapshot", "import", place / "m.tar", code=1, says=["cannot continue the snapshot"], env=debian)
                nothing_left(old)
        husk("rm", "--all", env=here, timeout=60)


@test
def test_killed_in_the_middle():
    counting("walker")
    with scratch() as place, other() as there:
        husk("snapshot", "export", "walker", place / "m.tar")
        began = time.monotonic()
        husk("snapshot", "import", place / "m.tar", "--name", "timed", env=there)
        whole = time.monotonic() - began
        husk("snapshot", "rm", "timed", env=there)
        for part in (0.2, 0.4, 0.6, 0.8, 0.95):
            process = start("snapshot", "import", str(place / "m.tar"), env=there, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(whole * part)
            process.send_signal(signal.SIGKILL)
            process.wait(30)
            husk("snapshot", "rm", "walker", env=there, code=None)
            nothing_left(there)
        before = sorted(os.listdir(HOME))
        process = start("snapshot", "export", "walker", str(place / "half"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        assert_equal(sorted(os.listdir(HOME)), before)
        husk("snapshot", "import", place / "m.tar", env=there)
        goes_on("walker", there, 1)
    assert_no_leaks()


if __name__ == "__main__":
    main()
