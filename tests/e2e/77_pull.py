#!/usr/bin/python3
"""Images of registries: pull, run, share, log in, break off, go on; registries that lie. The registry is Debian's."""

# timeout: 600
import base64
import contextlib
import json
import os
import random
import shutil
import subprocess
import tarfile
import threading
import time
import urllib.request

from lib.harness import *
from lib.http import daytona_created, server
from lib.registry import docker_config, proxy, registry
from lib.roots import Image, copy_program, small_root

STORE = f"{HOME}/images/pulled"
PATH = "PATH=/usr/bin:/bin"
DOCKER = "application/vnd.docker.distribution.manifest.v2+json"


def pull(name, *options, code=0, **more):
    return husk("pull", "--no-build", "--json", name, *options, code=code, timeout=120, **more)


def refused(name, *says, code=1, **more):
    result = pull(name, code=code, **more)
    for piece in says:
        assert_in(piece, result.error, str(result))
    assert "Traceback" not in result.error
    return result


def names():
    return [image["name"] for image in husk("image", "ls", "--json").json()]


def blobs():
    return set(os.listdir(f"{STORE}/blobs/sha256"))


def partial():
    return os.listdir(f"{STORE}/partial")


def forget():
    husk("image", "prune")
    husk("gc")
    assert_equal(names(), [])
    assert_equal((blobs(), partial()), (set(), []))


def noise(size, seed=1):
    """Text that does not get smaller when it is packed by much."""
    return base64.b64encode(random.Random(seed).randbytes(size)).decode()


def files(*contents, **config):
    """An image that is never run: a layer for each content."""
    image = Image(**config)
    for number, content in enumerate(contents):
        image.add((f"file{number}", content))
    return image


def hub_manifest(hub, path):
    asked = urllib.request.Request(f"http://{hub.host}/v2/{path}", headers={"Accept": f"{DOCKER}, application/json"})
    return urllib.request.urlopen(asked, timeout=30).read()


def is_blob(handler):
    return "/blobs/sha256:" in handler.path


@test
def test_pull_and_run():
    with scratch() as place, registry() as hub:
        says = Image([PATH, "GREETING=hello"], Entrypoint=["/bin/sh", "-c"], User="1000:50", WorkingDir="/data",
                     Cmd=["echo $GREETING; pwd; while read a b c; do case $a in Uid:|Gid:) echo $b;; esac; done </proc/self/status"])
        says.add_tree(small_root(place))
        says.add(("data", tarfile.DIRTYPE), ("data/file", "content"))
        foreign = files("another machine's", architecture="arm64")
        says.oci(place / "layout", "one", nest=1, more=[foreign.oci(place / "layout")])
        hub.push(place / "layout", "one", "team/tool:1", "--all")
        name = f"{hub.host}/team/tool:1"
        result = husk("run", "-t", name, timeout=120)
        assert_equal(result.text, "hello\n/data\n1000\n50\n")
        assert_in("pulled now", result.error)
        assert_in("2 layers", result.error)
        result = husk("run", "-t", name, "--", "cat", "file")
        assert_equal((result.text, "pulled" in result.error), ("content", False))
        assert_equal(husk("run", "-t", name, "--user", "root", "-w", "/", "--shell", "pwd").text, "/\n")
        assert_equal(husk("run", "-t", "team/tool:1", "--", "cat", "file", env={"HUSK_REGISTRY": hub.host}).text, "content")
        box = create("-t", name)
        assert_equal(sh(box, "pwd"), "/data")
        image = husk("image", "inspect", name).json()
        assert_equal((image["name"], image["built"], image["sandboxes"], len(image["layers"])), (name, True, 1, 2))
        assert_equal((image["user"], image["cwd"], image["command"][0]), ("1000:50", "/data", "/bin/sh"))
        assert_in(name, husk("image", "ls").text)
        assert_fails("image", "rm", name, code=1, says=["in use", "1 sandboxes"])
        assert_equal(husk("image", "prune", "--json").json()["images"], 0)
        assert_equal(sh(box, "cat file"), "content")
        remove(box)
        # By its digest, it is the same.
        exact = f"{hub.host}/team/tool@{image['digest']}"
        assert_equal(husk("run", "-t", exact, "--", "cat", "file", timeout=120).text, "content")
        assert_equal(husk("image", "rm", "--json", name).json(), [{"name": name, "removed": True}])
        assert_equal(names(), [exact])
        forget()
        assert not [each for each in husk("template", "ls", "--json").json() if each["name"].startswith("tool-")]
    assert_no_leaks()


@test
def test_warm():
    with scratch() as place, registry() as hub:
        image = Image([PATH])
        image.add_tree(small_root(place))
        image.oci(place / "layout", "one")
        hub.push(place / "layout", "one", "warm:1")
        name = f"{hub.host}/warm:1"
        seen = lambda word=name: husk("run", "-t", word, "--", "sh", "-c", "cat /run/mark; kill -0 $(cat /run/pid) && echo runs", code=None, timeout=120).text
        husk("pull", name, "--warm", "sleep 1000 & echo $! >/run/pid; echo warm >/run/mark", timeout=120)
        assert_equal(seen(), "warm\nruns\n")
        # One that fails changes nothing.
        assert_fails("pull", name, "--warm", "echo why >&2; exit 3", code=1, says=["exit code 3", "why"], timeout=120)
        # It belongs to the image: what begins with it, and a build that is forced to be made anew, have it too.
        husk("pull", name, "--warm", "sleep 1000 & echo $! >/run/pid; echo again >/run/mark", timeout=120)
        (place / "Dockerfile").write_text(f"FROM {name}\nCOPY Dockerfile /said\n")
        husk("build", "-t", "upon", str(place), timeout=300)
        assert_equal((seen(), seen("upon")), ("again\nruns\n", "again\n"))  # of the base: its files
        husk("build", "-t", "upon", "--warm", "cat /said >/run/mark", str(place), timeout=300)
        assert_in("COPY Dockerfile", seen("upon"))
        husk("pull", name, timeout=120)
        assert_equal(seen(), "")
        assert_fails("pull", "--no-build", "--warm", "true", name, code=2, says=["--no-build"])
        assert_fails("template", "build", "base", "--warm", "true", code=2, says=["definition", "warm:"])
        husk("image", "rm", "upon")
        forget()
    assert_no_leaks()


@test
def test_layers_are_kept_once():
    with scratch() as place, registry() as hub:
        files(noise(50000), "one").oci(place / "first", "x")
        files(noise(50000), "two").oci(place / "second", "x")
        files("docker's own format").oci(place / "third", "x")
        hub.push(place / "first", "x", "first")
        hub.push(place / "second", "x", "second:2")
        hub.push(place / "third", "x", "third:3", "--format", "v2s2")
        with proxy(hub.host) as seen:
            one = pull(f"{seen.host}/first").json()
            assert_equal(one["name"], f"{seen.host}/first:latest")
            seen.seen.clear()
            pull(f"{seen.host}/second:2")
            fetched = [path for path, _ in seen.seen if "/blobs/" in path]
            assert len(fetched) == 2 and not any(one["layers"][0]["digest"] in path for path in fetched), fetched
            seen.seen.clear()
            pull(f"{seen.host}/second:2")
            assert_equal([path for path, _ in seen.seen if "/blobs/" in path], [])
            # Two at once share the work as well.
            pause = threading.Event()
            seen.rule = lambda handler: is_blob(handler) and pause.wait(20) is None
            seen.seen.clear()
            with ending(start("pull", "--no-build", f"{seen.host}/third:3")) as one_more, ending(
                start("pull", "--no-build", f"{seen.host}/third:3")
            ) as another:
                until(lambda: sum("/manifests/" in path for path, _ in seen.seen) == 2, "both are under way")
                pause.set()
                assert_equal((one_more.wait(60), another.wait(60)), (0, 0))
            fetched = [path for path, _ in seen.seen if "/blobs/" in path]
            assert_equal(len(fetched), len(set(fetched)), "each blob is fetched once")
            assert_equal(json.loads(hub_manifest(hub, "third/manifests/3"))["mediaType"], DOCKER)
            shared = one["layers"][0]["digest"].removeprefix("sha256:")
            husk("image", "rm", f"{seen.host}/first")
            assert shared in blobs()
            assert one["layers"][1]["digest"].removeprefix("sha256:") not in blobs()
            for blob in blobs():
                told = subprocess.run(["sha256sum", f"{STORE}/blobs/sha256/{blob}"], capture_output=True, text=True).stdout
                assert told.startswith(blob)
            assert_fails("image", "rm", f"{seen.host}/first", code=3, says=["not here", "image ls"])
            assert_fails("image", "inspect", f"{seen.host}/secon:2", code=3, says=f"did you mean '{seen.host}/second:2'")
        forget()


@test
def test_logins():
    with scratch() as place, registry(login="me:s3cret") as hub:
        files("private").oci(place / "layout", "x")
        hub.push(place / "layout", "x", "private:1")
        name = f"{hub.host}/private:1"
        nobody = docker_config(place)

        def login(text):
            return {hub.host: {"auth": base64.b64encode(text.encode()).decode()}}

        refused(name, "log in", env={"DOCKER_CONFIG": nobody})
        refused(name, "log in again", env={"DOCKER_CONFIG": docker_config(place, auths=login("me:wrong"))})
        refused(name, "cannot be read", code=2, env={"DOCKER_CONFIG": docker_config(place, auths={hub.host: {"auth": "?"}})})
        assert_equal(names(), [])
        pull(name, env={"DOCKER_CONFIG": docker_config(place, auths=login("me:s3cret"))})
        forget()
        helper = place / "docker-credential-e2e"
        helper.write_text('#!/bin/sh\nread server\n[ "$1 $server" = "get %s" ] || exit 1\n'
                          'echo \'{"Username": "me", "Secret": "s3cret"}\'\n' % hub.host)
        helper.chmod(0o755)
        found = {"PATH": f"{place}:{os.environ['PATH']}"}
        pull(name, env={"DOCKER_CONFIG": docker_config(place, credHelpers={hub.host: "e2e"}), **found})
        forget()
        refused(name, "helper", env={"DOCKER_CONFIG": docker_config(place, credsStore="none-such")})
        refused(name, "helper", code=2, env={"DOCKER_CONFIG": docker_config(place, credsStore="../x")})
        forget()


@test
def test_tokens_and_redirects():
    """A token server, and storage elsewhere: neither the token nor the login goes where it should not."""
    with scratch() as place, registry() as hub:
        files("with a token", noise(1000)).oci(place / "layout", "x")
        hub.push(place / "layout", "x", "tool:1")

        def store(handler):
            handler.answer(200, hub.blob(handler.path.rsplit("/", 1)[1]).read_bytes())
            return True

        def front(handler):
            if handler.form:
                assert handler.path == "/token" and "scope=repository%3Atool%3Apull" in handler.form
                ours = "refresh_token=again%20and%20again" in handler.form and "Authorization" not in handler.headers
                handler.answer(200 if ours else 401, b'{"access_token": "tick.et"}')
            elif handler.path.startswith("/token") and broken:
                handler.answer(200, broken[0])
            elif handler.path.startswith("/token"):
                ours = handler.headers.get("Authorization") == "Basic " + base64.b64encode(b"me:s3cret").decode()
                assert "scope=repository%3Atool%3Apull" in handler.path and "service=e2e%20service" in handler.path
                handler.answer(200 if ours else 401, b'{"token": "tick.et"}')
            elif handler.headers.get("Authorization") != "Bearer tick.et":
                where = f'Bearer realm="http://{front_host[0]}/token",service="e2e service"'
                handler.answer(401, b"{}", WWW_Authenticate=where)
            elif is_blob(handler):
                handler.answer(307, Location=f"http://{elsewhere.host}/blob/{handler.path.rsplit(':', 1)[1]}")
            else:
                del handler.headers["Authorization"]
                return False
            return True

        front_host, broken = [], []
        with proxy(hub.host, store) as elsewhere, proxy(hub.host, front) as seen:
            front_host.append(seen.host)
            name = f"{seen.host}/tool:1"
            auth = {seen.host: {"auth": base64.b64encode(b"me:s3cret").decode()}}
            pull(name, env={"DOCKER_CONFIG": docker_config(place, auths=auth)})
            assert_equal(len(elsewhere.seen), 3)
            assert not [headers for _, headers in elsewhere.seen if "Authorization" in headers]
            assert_equal(len([path for path, _ in seen.seen if path.startswith("/token")]), 1, "tokens are kept")
            forget()
            refused(name, "log in", env={"DOCKER_CONFIG": docker_config(place)})
            identity = {seen.host: {"identitytoken": "again and again"}}
            pull(name, env={"DOCKER_CONFIG": docker_config(place, auths=identity)})
            forget()
            for answer in (b"{}", b'{"token": "a\\nb"}', b"[" * 1000, b" " * (1 << 20), b'{"token": "other"}'):
                broken[:] = [answer]
                refused(name, "token" if answer[-3:] != b'r"}' else "log in")
            broken.clear()

            # What a redirect leads to asks for a login in vain.
            def asks(handler):
                handler.answer(401, b"{}", WWW_Authenticate=f'Bearer realm="http://{elsewhere.host}/token"')
                return True

            elsewhere.rule, elsewhere.seen[:] = asks, []
            refused(name, "refuses", env={"DOCKER_CONFIG": docker_config(place, auths=auth)})
            assert not [path for path, _ in elsewhere.seen if "token" in path]

        def leads(location):
            return lambda handler: is_blob(handler) and (handler.answer(302, Location=location) or True)

        with proxy(hub.host) as seen:
            for location, says in (("file:///etc/passwd", "not http"), (f"http://{seen.host}/v2/tool/blobs/sha256:1", "circles")):
                seen.rule = leads(location)
                refused(f"{seen.host}/tool:1", says, code=None)
        forget()


@test
def test_breaks_and_resume():
    with scratch() as place, registry() as hub:
        image = files(noise(400000))
        image.oci(place / "layout", "x")
        hub.push(place / "layout", "x", "tool:1")
        cuts = []

        def breaks(handler):
            status, headers, body = handler.upstream()
            if is_blob(handler) and len(body) > 100000 and cuts:
                handler.relay(status, headers, body, cut=cuts.pop(0))
                return True
            return False

        with proxy(hub.host, breaks) as seen:
            name = f"{seen.host}/tool:1"
            cuts[:] = [70000, 0, 50000]
            layer = pull(name).json()["layers"][0]
            ranges = [headers.get("Range") for path, headers in seen.seen if layer["digest"] in path]
            assert_equal(ranges, [None, "bytes=70000-", "bytes=70000-", "bytes=120000-"])
            forget()
            # One that never gets through keeps what it has; the next pull goes on there.
            cuts[:] = [60000] + [0] * 20
            refused(name, "broke off", "60000", "next pull")
            assert_equal(partial(), [layer["digest"].removeprefix("sha256:")])
            assert_equal(names(), [])
            cuts[:], seen.seen[:] = [], []
            pull(name)
            ranges = [headers.get("Range") for path, headers in seen.seen if layer["digest"] in path]
            assert_equal((ranges, partial()), (["bytes=60000-"], []))
            husk("image", "rm", name)
            # A part that is wrong is thrown away, and all of it fetched again.
            cuts[:] = [60000] + [0] * 20
            refused(name, "broke off")
            with open(f"{STORE}/partial/{partial()[0]}", "r+b") as file:
                file.write(b"wrong")
            cuts[:] = []
            pull(name)
            husk("image", "rm", name)
            # What nobody goes on with, gc clears.
            cuts[:] = [60000] + [0] * 20
            refused(name, "broke off")
            husk("gc")
            assert_equal(partial(), [])

            # An interrupted one as well keeps what it has.
            def slow(handler):
                if is_blob(handler):
                    time.sleep(1.5)
                return False

            seen.rule, seen.seen[:] = slow, []
            with ending(start("pull", name)) as running:
                until(lambda: any("/blobs/" in path for path, _ in seen.seen), "the pull asks for blobs")
                running.send_signal(2)
                assert_equal(running.wait(30), 130)
        forget()


@test
def test_registries_that_lie():
    with scratch() as place, registry() as hub:
        files(noise(1000)).oci(place / "layout", "x")
        hub.push(place / "layout", "x", "tool:1")
        layer = pull(f"{hub.host}/tool:1").json()["layers"][0]["digest"]
        forget()
        # Changed in the registry's own storage, with the same size.
        data = hub.blob(layer).read_bytes()
        hub.blob(layer).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        refused(f"{hub.host}/tool:1", "digest mismatch", layer[7:19])
        hub.blob(layer).write_bytes(data)
        assert_equal((names(), partial()), ([], []))

        kind = "application/vnd.oci.image.manifest.v1+json"

        def lie(handler):
            is_manifest = "/manifests/" in handler.path
            if lying == "manifest" and is_manifest:
                status, headers, body = handler.upstream()
                handler.relay(status, headers, body + b" ")
            elif lying == "type" and is_manifest:
                handler.answer(200, b"{}", Content_Type="text/html")
            elif lying == "artifact" and is_manifest:
                body = {"config": {"mediaType": "application/vnd.cncf.helm.config.v1+json"}, "layers": []}
                handler.answer(200, json.dumps(body).encode(), Content_Type=kind)
            elif lying == "large" and is_manifest:
                handler.answer(200, b" " * (5 << 20), Content_Type=kind)
            elif lying == "deep" and is_manifest:
                handler.answer(200, b"[" * 100000, Content_Type=kind)
            elif lying == "longer" and layer in handler.path:
                handler.answer(200, data + b"more")
            elif lying == "range" and layer in handler.path:
                handler.relay(206, {"Content-Range": "bytes 5-9/10"}, data)
            elif lying == "busy" and is_manifest:
                if len(handler.server.seen) > 2:
                    return False
                handler.answer(429, b"{}", Retry_After="1")
            elif lying == "closed" and is_manifest:
                handler.answer(429, b"{}", Retry_After="7200")
            elif lying == "broken" and is_manifest:
                handler.answer(503, b"{}", Retry_After="0")
            else:
                return False
            return True

        with proxy(hub.host, lie) as seen:
            name = f"{seen.host}/tool:1"
            for lying, says in {
                "manifest": "digest mismatch", "type": "'text/html'", "artifact": "not of a container image",
                "large": "more than 4194304 bytes", "deep": "not JSON", "longer": "sends more than", "range": "another part",
                "closed": "too many requests", "broken": "503",
            }.items():
                seen.seen.clear()
                refused(name, says, code=None)
                assert_equal(names(), [], lying)
            lying = "busy"
            seen.seen.clear()
            pull(name)
        forget()


@test
def test_e2b_from_image():
    """E2B's fromImage, where the server's owner lists the registry."""
    with scratch() as place, registry() as hub:
        root = small_root(place)
        for name in ("bash", "grep", "sed", "mkdir", "chown", "cp", "id", "rm"):
            copy_program(root, f"/bin/{name}")
        image = Image(["FROM_IMAGE=a variable"])
        image.add_tree(root)
        image.oci(place / "layout", "x")
        hub.push(place / "layout", "x", "team/tool:1")
        key = husk("token", "create", "e2e-pull", "--e2b", "--json").json()["token"]

        def build(huskd, image, status):
            made = huskd.post("/v3/templates", {"name": "e2e-from-image"}, headers={"X-API-Key": key}, token="", status=202).json()
            path = f"/templates/{made['templateID']}/builds/{made['buildID']}"
            steps = [{"type": "RUN", "args": ["echo $FROM_IMAGE > /tmp/made"], "force": False}]
            asked = {"fromImage": image, "steps": steps, "force": False}
            answer = huskd.post(f"/v2{path}", asked, headers={"X-API-Key": key}, token="", status=status)
            if status != 202:
                return answer.text
            last = {}

            def ended():
                last.update(huskd.get(f"{path}/status", headers={"X-API-Key": key}, token="", status=200).json())
                return last["status"] in ("ready", "error")

            until(ended, "the build ends", 120)
            return last

        try:
            with server() as huskd:
                assert_in("HUSK_PULL_REGISTRIES", build(huskd, f"{hub.host}/team/tool:1", 501))
            with server(env={"HUSK_PULL_REGISTRIES": f"a.example,{hub.host}"}) as huskd:
                build(huskd, "b.example/tool:1", 501)
                last = build(huskd, f"{hub.host}/team/none:1", 202)
                assert_equal(last["status"], "error")
                assert_in("not in that registry", last["reason"]["message"])
                last = build(huskd, f"{hub.host}/team/tool:1", 202)
                assert_equal(last["status"], "ready", last)
                assert_in("pulled", json.dumps(last["logEntries"]))
                made = huskd.post("/sandboxes", {"templateID": "e2e-from-image"}, headers={"X-API-Key": key}, token="", status=201).json()
                box = adopt(made["sandboxID"])
                assert_equal(sh(box, "cat /tmp/made"), "a variable")
                remove(box)
        finally:
            husk("token", "rm", "e2e-pull", code=None)
            for snapshot in husk("snapshot", "ls", "--json").json():
                husk("snapshot", "rm", snapshot["id"], code=None)
    forget()
    assert_no_leaks()


@test
def test_daytona_from():
    """FROM of Daytona's clients: an image that was pulled, and one of a registry that the server's owner lists."""
    with scratch() as place, registry() as hub:
        root = small_root(place)
        for name in ("bash", "grep", "sed", "mkdir", "chown", "cp", "id", "rm", "cat"):
            copy_program(root, f"/bin/{name}")
        for name in ("1", "2"):
            image = Image([f"FROM_IMAGE=tool {name}"])
            image.add_tree(root)
            image.oci(place / f"layout-{name}", "x")
            hub.push(place / f"layout-{name}", "x", f"team/tool:{name}")
        key = husk("token", "create", "e2e-pull", "--daytona", "--json").json()["token"]

        def create(huskd, image, works=True):
            asked = {"buildInfo": {"dockerfileContent": f"FROM {image}\nRUN echo $FROM_IMAGE >/made\n"}, "user": "root"}
            answer = daytona_created(huskd, asked, key)
            if not works:
                assert_equal(answer["state"], "build_failed", answer)
                return answer["errorReason"]
            box = adopt(answer["id"])
            made = sh(box, "cat /made")
            remove(box)
            return made

        try:
            with server() as huskd:
                assert_in("HUSK_PULL_REGISTRIES", create(huskd, f"{hub.host}/team/tool:1", works=False))
                pull(f"{hub.host}/team/tool:1")
                assert_equal(create(huskd, f"{hub.host}/team/tool:1"), "tool 1")
            with server(env={"HUSK_PULL_REGISTRIES": hub.host}) as huskd:
                assert_in("HUSK_PULL_REGISTRIES", create(huskd, "b.example/tool:1", works=False))
                assert_in("not in that registry", create(huskd, f"{hub.host}/team/none:1", works=False))
                assert_equal(create(huskd, f"{hub.host}/team/tool:2"), "tool 2")
                for each in huskd.get("/daytona/snapshots", token=key, status=200).json()["items"]:  # snapshots before templates
                    if not each["general"]:
                        huskd.call("DELETE", f"/daytona/snapshots/{each['name']}", token=key, status=200)
        finally:
            husk("token", "rm", "e2e-pull", code=None)
    forget()
    assert_no_leaks()


@test
def test_names():
    with scratch() as place, registry() as hub:
        files("x", architecture="arm64").oci(place / "layout", "x")
        hub.push(place / "layout", "x", "arm:release-1")
        refused(f"{hub.host}/arm:release-1", "linux/arm64", "linux/amd64", code=2)
        refused(f"{hub.host}/arm:other", "not in that registry", "tag", code=3)
        refused(f"{hub.host}/arm:release1", f"did you mean '{hub.host}/arm:release-1'?", code=3)
        refused(f"{hub.host}/none:1", "not in that registry", code=3)
        assert_fails("run", "-t", f"{hub.host}/none:1", "--", "true", code=125, says="not in that registry")
        for bad, says in (("UPPER:1", "lower case"), ("a:b:c", "not a"), ("a@sha256:12", "64 hexadecimal"), ("a:" + "t" * 200, "tag"),
                          ("ho_st:1/a/b", "HOST"), ("a//b:1", "lower case"), ("../x:1", "HOST"), ("", "NAME"), ("x" * 900, "NAME")):
            refused(bad, says, code=2)
    refused("127.0.0.1:1/tool:1", "127.0.0.1:1")
    assert_fails("run", "-t", "no-such-thing", "--", "true", code=125, says=["not found", "no-such-thing:latest"])
    assert_equal(names(), [])


@test
def test_tls():
    """A registry that is not on loopback: TLS, with a certificate that the host does not know."""
    addresses = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    if not [each for each in addresses if "." in each] or not shutil.which("openssl"):
        raise Skip("this host has no address but loopback")
    address = [each for each in addresses if "." in each][0]
    with scratch() as place:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-subj", "/CN=e2e", "-addext", f"subjectAltName=IP:{address}", "-keyout", place / "key", "-out", place / "cert"],
            check=True, capture_output=True,
        )
        with registry(tls=(place / "cert", place / "key"), address=address) as hub:
            files("over TLS").oci(place / "layout", "x")
            hub.push(place / "layout", "x", "tool:1")
            refused(f"{hub.host}/tool:1", "TLS failed", "certs.d")
            refused(f"{hub.host}/tool:1", "answers 400", code=None, env={"HUSK_INSECURE_REGISTRIES": f"a.example,{hub.host}"})
            known = f"/etc/docker/certs.d/{hub.host}"
            there = [each for each in ("/etc/docker", "/etc/docker/certs.d") if os.path.exists(each)]
            os.makedirs(known)
            try:
                shutil.copy(place / "cert", f"{known}/ca.crt")
                assert_equal(pull(f"{hub.host}/tool:1").json()["name"], f"{hub.host}/tool:1")
            finally:
                shutil.rmtree(known)
                for each in ("/etc/docker/certs.d", "/etc/docker"):
                    if each not in there:
                        with contextlib.suppress(OSError):
                            os.rmdir(each)
    forget()


@test
def test_no_space():
    """A disk that is too small is found out before anything is fetched."""
    with scratch() as place, registry() as hub:
        files(noise(3 << 20)).oci(place / "layout", "x")
        hub.push(place / "layout", "x", "tool:1")
        os.makedirs(place / "home/images", mode=0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", place / "home/images"], check=True)
        try:
            refused(f"{hub.host}/tool:1", "no space", "image prune", env={"HUSK_HOME": str(place / "home")})
            assert_equal(os.listdir(place / "home/images/pulled/partial"), [])
        finally:
            subprocess.run(["umount", place / "home/images"], check=True)


main()
