#!/usr/bin/python3
"""Templates from a directory and from a tar, rebuilt only when changed; definitions that are wrong; agents that lie."""

# timeout: 1800
import io
import os
import shutil
import tarfile

from lib.harness import *
from lib.roots import Image, copy_program, small_root


def build(*options, **more):
    return husk("template", "build", "--json", *options, timeout=300, **more)


def names():
    return {entry["name"] for entry in husk("template", "ls", "--json").json() if entry["built"]}


@test
def test_from_a_directory_and_only_when_changed():
    with scratch() as place:
        root = small_root(place)
        try:
            first = build("--rootfs", root, "--name", "e2e-dir").json()
            assert first["fresh"] and first["digest"], first
            assert_equal(husk("run", "-t", "e2e-dir", "--", "cat", "/etc/who").text, "version one\n")
            assert_equal(build("--rootfs", root, "--name", "e2e-dir").json()["fresh"], False)
            old = create("-t", "e2e-dir")
            (root / "etc/who").write_text("version two\n")
            second = build("--rootfs", root, "--name", "e2e-dir").json()
            assert second["fresh"] and second["digest"] != first["digest"], second
            assert_equal(husk("run", "-t", "e2e-dir", "--", "cat", "/etc/who").text, "version two\n")
            assert_equal(sh(old, "cat /etc/who"), "version one", "a sandbox keeps the version it was made from")
            husk("hibernate", old)
            husk("gc")
            assert_equal(
                sh(old, "cat /etc/who"), "version one", "also when asleep, with the old version unused otherwise"
            )
            assert_in("e2e-dir", names())
            assert_equal(build("--rootfs", root, "--name", "e2e-dir", "--force").json()["fresh"], True)
        finally:
            husk("template", "rm", "e2e-dir", code=None)
    assert "e2e-dir" not in names()
    assert_equal(sh(old, "cat /etc/who"), "version one", "and outlives the template's removal")


@test
def test_from_a_tar():
    with scratch() as place:
        root = small_root(place)
        for mode, name in (("w", "e2e-tar"), ("w:gz", "e2e-tar-gz")):
            with tarfile.open(place / "root.tar", mode) as archive:
                archive.add(root, ".")
            try:
                build("--tar", place / "root.tar", "--name", name)
                assert_equal(husk("run", "-t", name, "--", "cat", "/etc/who").text, "version one\n")
                assert_equal(build("--tar", place / "root.tar", "--name", name).json()["fresh"], False)
            finally:
                husk("template", "rm", name, code=None)


@test
def test_hostile_tar():
    with scratch() as place:
        for what, name, kind, target in (
            ("dot dot", "../../e2e-escaped", tarfile.REGTYPE, None),
            ("absolute", "/var/tmp/e2e-escaped", tarfile.REGTYPE, None),
            ("through a link", "l/e2e-escaped", tarfile.SYMTYPE, "/var/tmp"),
        ):
            with tarfile.open(place / "bad.tar", "w") as archive:
                if target:
                    link = tarfile.TarInfo("l")
                    link.type, link.linkname = kind, target
                    archive.addfile(link)
                entry = tarfile.TarInfo(name)
                entry.size = 1
                archive.addfile(entry, io.BytesIO(b"x"))
            result = husk("template", "build", "--tar", place / "bad.tar", "--name", "e2e-bad", code=None, timeout=120)
            assert not os.path.exists("/var/tmp/e2e-escaped"), f"{what}: it came out on the host"
            if target:  # links of a root lead where they like inside of it; what matters is that nothing followed it
                husk("template", "rm", "e2e-bad", code=None)
            else:
                assert result.code != 0, f"{what} is taken: {result}"
        (place / "bad.tar").write_bytes(os.urandom(5000))
        assert_fails("template", "build", "--tar", place / "bad.tar", "--name", "e2e-bad", code=None, says="bad.tar")
    assert "e2e-bad" not in names()
    assert_no_leaks()


@test
def test_names_that_no_image_can_have():
    with scratch() as place:
        for what, name, says in (
            ("8 KB", "deep/" * 1640 + "file", ["deep/deep", "4032 bytes"]),
            ("one name of 300 bytes", "etc/" + "n" * 300, ["nnnn", "255 bytes"]),
            ("a thousand directories", "d/" * 1000 + "file", ["d/d/", "512 directories"]),
        ):
            with tarfile.open(place / "long.tar", "w", format=tarfile.PAX_FORMAT) as archive:
                archive.addfile(tarfile.TarInfo(name))
            result = husk("template", "build", "--tar", place / "long.tar", "--name", "e2e-bad", code=2, timeout=120)
            for piece in ["long.tar", *says]:
                assert_in(piece, result.error, what)
            image = Image()
            image.add((name, "x"))
            image.oci(place / "layout")
            result = husk("template", "build", "--image", place / "layout", "--name", "e2e-bad", code=2, timeout=120)
            assert_in(says[0], result.error, what)
        # Short in the tar, and long behind the links of the layer below.
        image = Image()
        long = "/".join(["x" * 200] * 19)
        image.add((long, tarfile.DIRTYPE), ("link", tarfile.SYMTYPE, long))
        image.add((f"link/{'y' * 200}/{'y' * 200}/file", "x"))
        image.oci(place / "linked")
        result = husk("template", "build", "--image", place / "linked", "--name", "e2e-bad", code=2, timeout=120)
        assert_in("4032 bytes", result.error)
        root = small_root(place)
        os.chown(root / "etc/who", 70000, 0)
        result = husk("template", "build", "--rootfs", root, "--name", "e2e-bad", code=2, timeout=120)
        assert_in("etc/who", result.error)
    assert "e2e-bad" not in names()
    assert_no_leaks()


@test
def test_owners_and_modes_are_kept():
    with scratch() as place:
        root = small_root(place)
        for name, uid, gid, mode in (("one", 1000, 1001, 0o640), ("two", 65534, 65535, 0o4755), ("three", 0, 42, 0o2000)):
            (root / name).write_text(name)
            os.chown(root / name, uid, gid)
            os.chmod(root / name, mode)
        os.link(root / "one", root / "again")
        (root / "grüße").write_text("x")
        copy_program(root, "/usr/bin/stat")
        try:
            build("--rootfs", root, "--name", "e2e-owners")
            shown = husk(
                "run", "-t", "e2e-owners", "--", "stat", "-c", "%n %u %g %a %h", "/one", "/again", "/two", "/three", "/grüße"
            ).text
            assert_equal(
                shown,
                "/one 1000 1001 640 2\n/again 1000 1001 640 2\n/two 65534 65535 4755 1\n/three 0 42 2000 1\n"
                "/grüße 0 0 644 1\n",
            )
        finally:
            husk("template", "rm", "e2e-owners", code=None)


@test
def test_definitions_that_are_wrong():
    with scratch() as place:
        definition = place / "e2e-def"
        os.makedirs(definition)
        for text, says in (
            ("pakages: bash\n", ["template:1", "pakages", "packages"]),
            ("description: x\nnonsense\n", ["template:2", "nonsense"]),
            ("packages: bash\ndisk: 1Q\n", ["template:2", "1Q"]),
            ("disk: 1M\n", ["1M"]),
            ("npm: left-pad\n", ["left-pad"]),
            ("user: Root sudo x\n", ["Root"]),
            ("env: NOVALUE\n", ["NOVALUE"]),
            ("script: ../x\n", ["../x"]),
            ("script: missing.sh\n", ["missing.sh"]),
            ("packages: bash --foo\n", ["--foo"]),
            ("description: a\ndescription: b\n", ["description", "twice"]),
        ):
            (definition / "template").write_text(text)
            result = husk("template", "build", definition, code=None, timeout=120)
            assert_equal(result.code, 3 if "missing" in text else 2, f"{text!r}: {result}")
            for piece in says:
                assert_in(piece, result.error, f"{text!r}")
    assert_fails("template", "build", "bas", code=3, says=["bas", "base"])
    assert_fails("template", "build", code=2, says="NAME")
    assert_fails("template", "build", "--rootfs", "/etc", code=2, says="--name")
    assert_fails("template", "build", "--rootfs", "/nowhere", "--name", "e2e-x", code=None, says="/nowhere")
    assert_fails("template", "build", "--rootfs", "/etc/passwd", "--name", "e2e-x", code=None, says="/etc/passwd")
    assert_fails("template", "build", "--rootfs", "/etc", "--name", "../x", code=2, says="../x")
    assert_fails("template", "rm", "nosuch", code=3, says="nosuch")
    assert_no_leaks()


def lying_agent(place, script):
    """HUSK_LIBDIR with an agent that is a shell script."""
    libdir = place / "lib"
    shutil.rmtree(libdir, ignore_errors=True)
    os.makedirs(libdir)
    (libdir / "husk-agent").write_text(f"#!/bin/sh\n{script}\n")
    os.chmod(libdir / "husk-agent", 0o755)
    for name in ("guest", "templates"):
        source = TOP / name
        if source.is_dir():
            os.symlink(source, libdir / name)
    return {"HUSK_LIBDIR": str(libdir), "HUSK_BIN": HUSK}


@test
def test_agents_that_lie():
    # Whatever pid 1 says, the host ends with an error in time, and with nothing half-made.
    with scratch() as place:
        root = small_root(place)
        copy_program(root, "/usr/bin/head")
        for what, script in (
            ("garbage", "head -c 200000 /dev/urandom; sleep 1000"),
            ("a length beyond all bounds", r"printf '\377\377\377\377\001\000\000\000\001\000\000\000'; sleep 1000"),
            ("a length and no more", r"printf '\000\004\000\000\001\000\000\000\001\000\000\000abc'"),
            ("an early end", "exit 3"),
        ):
            result = husk(
                "template",
                "build",
                "--rootfs",
                root,
                "--name",
                "e2e-lies",
                code=None,
                timeout=240,
                env=lying_agent(place, script),
            )
            assert result.code not in (0, None) and "husk: " in result.error, f"{what}: {result}"
            assert "e2e-lies" not in names(), what
    assert_no_leaks()
    assert not [name for name in os.listdir(f"{HOME}/templates") if name.endswith(".partial")]


@test
def test_unknown_templates():
    assert_fails("create", "-t", "bsae", code=3, says=["bsae", "base"])
    assert_fails("run", "-t", "agnet", "--", "true", code=125, says=["agnet", "did you mean 'agent'"])
    assert_fails("create", "-t", "nothing-like-it", code=3, says="nothing-like-it")


@test
def test_listing():
    listing = {entry["name"]: entry for entry in husk("template", "ls", "--json").json()}
    assert {"base", "code-interpreter", "agent", "browser"} <= set(listing), listing
    assert_equal((listing["base"]["built"], listing["base"]["isolation"]), (True, isolation()))
    assert listing["base"]["bytes"] > 0 and listing["base"]["description"], listing["base"]
    assert_in("base", husk("template", "ls").text)
    result = husk("template", "build", "base")
    assert_in("nothing changed", result.error)


@test
def test_base_has_what_it_says():
    box = create()
    for command in (
        "bash --version",
        "python3 --version",
        "git --version",
        "curl --version",
        "test -s /etc/ssl/certs/ca-certificates.crt",
        "ls --version",
        "tar --version",
    ):
        husk("exec", box, "--", "sh", "-c", command)
    assert_equal(sh(box, "locale 2>&1 | grep -c 'Cannot set' || true"), "0")
    assert_equal(sh(box, "python3 -c 'import ssl, sqlite3, json, venv; print(1)' 2>&1"), "1")
    assert_equal(
        sh(
            box,
            "git init -q /tmp/r && cd /tmp/r && git -c user.name=a -c user.email=b commit -q --allow-empty -m x"
            " && git log --oneline | wc -l",
        ),
        "1",
    )
    assert_equal(sh(box, "test -w /tmp && stat -c %a /tmp /dev/shm"), "1777\n1777")
    assert_equal(
        sh(
            box,
            "echo x >/dev/null; head -c4 /dev/zero | wc -c; test -c /dev/full && ls /dev/fd >/dev/null && echo dev",
        ),
        "4\ndev",
    )


if __name__ == "__main__":
    main("base")
