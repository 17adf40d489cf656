#!/usr/bin/env python3
"""husk login and logout against a real registry, in docker's config.json and in a credential helper; and mirrors of registries."""

# timeout: 300
import json
import os
import stat

from lib.harness import *
from lib.registry import docker_config, registry
from lib.roots import Image

HELPER = """#!/bin/sh
# A credential helper in a file: the protocol of docker-credential-helpers.
case $1 in
store) cat > "$HELPER_FILE";;
get) cat > /dev/null; cat "$HELPER_FILE" 2>/dev/null || { echo 'credentials not found in native keychain'; exit 1; };;
erase) cat > /dev/null; rm -f "$HELPER_FILE";;
esac
"""


def image(place):
    made = Image()
    made.add(("file", "content"))
    made.oci(place / "layout", "one")


@test
def test_login():
    with scratch() as place, registry(login="me:s3cret") as hub:
        image(place)
        hub.push(place / "layout", "one", "private:1")
        name = f"{hub.host}/private:1"
        env = {"DOCKER_CONFIG": docker_config(place, auths={"other.example": {"auth": "eDp5"}}, HttpHeaders={"X": "kept"})}
        file = place / "docker/config.json"
        os.chmod(file, 0o644)
        words = ["login", hub.host, "-u", "me", "--password-stdin"]
        assert_fails("pull", "--no-build", name, code=1, says=[f"husk login {hub.host}"], env=env)
        assert_fails(*words, code=1, says=["refuses this login"], stdin=b"wrong\n", env=env)
        assert hub.host not in file.read_text()
        husk(*words, stdin=b"s3cret\n", env=env)
        kept = json.loads(file.read_text())
        assert_equal((sorted(kept["auths"]), kept["HttpHeaders"]), (sorted([hub.host, "other.example"]), {"X": "kept"}))
        assert_equal(stat.S_IMODE(os.stat(file).st_mode), 0o600)
        husk("pull", "--no-build", name, env=env)
        husk("logout", hub.host, env=env)
        assert_equal(list(json.loads(file.read_text())["auths"]), ["other.example"])
        assert_fails("logout", hub.host, code=3, says=["no login"], env=env)
        # Without a file there is a new one; what is given wrong is said.
        new = {"DOCKER_CONFIG": str(place / "new/folder")}
        assert_equal(husk(*words, "--json", stdin=b"s3cret", env=new).json(), {"registry": hub.host, "user": "me"})
        assert_equal(stat.S_IMODE(os.stat(place / "new/folder/config.json").st_mode), 0o600)
        assert_fails("login", hub.host, code=2, says=["--password-stdin"], stdin=b"x", env=new)
        assert_fails("login", "not-a-host", "-u", "me", "--password-stdin", code=2, says=["not the host"], stdin=b"x", env=new)
        assert_fails(*words, code=2, says=["nothing was given"], stdin=b"\n", env=new)
        husk("image", "rm", name)


@test
def test_helper():
    with scratch() as place, registry(login="me:s3cret") as hub:
        image(place)
        hub.push(place / "layout", "one", "private:1")
        program = place / "docker-credential-test"
        program.write_text(HELPER)
        program.chmod(0o755)
        env = {"DOCKER_CONFIG": docker_config(place, credsStore="test"), "PATH": f"{place}:{os.environ['PATH']}",
               "HELPER_FILE": str(place / "kept")}
        husk("login", hub.host, "-u", "me", "--password-stdin", stdin=b"s3cret\n", env=env)
        assert_equal(json.loads((place / "kept").read_text()), {"ServerURL": hub.host, "Username": "me", "Secret": "s3cret"})
        assert "s3cret" not in (place / "docker/config.json").read_text()
        name = f"{hub.host}/private:1"
        husk("pull", "--no-build", name, env=env)
        husk("logout", hub.host, env=env)
        assert not (place / "kept").exists()
        husk("image", "rm", name)


@test
def test_mirrors():
    with scratch() as place, registry() as mirror, registry() as upstream:
        image(place)
        mirror.push(place / "layout", "one", "cache/team/tool:1")
        upstream.push(place / "layout", "one", "team/other:1")
        env = {"HUSK_REGISTRY_MIRRORS": f"{upstream.host}=127.0.0.1:1,{upstream.host}={mirror.host}/cache"}
        got = husk("pull", "--no-build", "--json", f"{upstream.host}/team/tool:1", env=env).json()
        assert_equal(got["name"], f"{upstream.host}/team/tool:1")
        assert_equal(husk("pull", "--no-build", "--json", f"{upstream.host}/team/other:1", env=env).json()["name"], f"{upstream.host}/team/other:1")
        assert_fails("pull", f"{upstream.host}/team/none:1", code=3, says=["none"], env=env)
        assert_fails("pull", f"{upstream.host}/team/none:1", code=2, says=["HOST=MIRROR"], env={"HUSK_REGISTRY_MIRRORS": "odd"})
        husk("image", "prune")


main()
