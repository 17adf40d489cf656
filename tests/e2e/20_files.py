#!/usr/bin/python3
"""`husk cp` both ways: files, trees, odd names, big ones; and tar streams that mean harm, in either direction."""

# timeout: 1800
import hashlib
import io
import os
import random
import stat
import subprocess
import tarfile

from lib.harness import *

ODD_NAMES = [
    "with space",
    "new\nline",
    "tab\there",
    "-dash",
    "quote'\"",
    "ünïcode ☃",
    "semi;colon|pipe",
    "*glob?",
    "back\\slash",
]


def tar_bytes(*members):
    """A tar of (name, kind, target or content)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, kind, content in members:
            entry = tarfile.TarInfo(name)
            entry.type = kind
            if kind == tarfile.REGTYPE:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
            else:
                entry.linkname = content or ""
                archive.addfile(entry)
    return out.getvalue()


def tree(path):
    """{relative name: content, link target or None for a directory} of a tree on the host."""
    found = {}
    for root, directories, files in os.walk(os.fsencode(path)):
        for name in directories + files:
            full = os.path.join(root, name)
            key = os.path.relpath(full, os.fsencode(path))
            if os.path.islink(full):
                found[key] = b"-> " + os.readlink(full)
            else:
                found[key] = None if os.path.isdir(full) else open(full, "rb").read()
    return found


@test
def test_file_both_ways():
    box = create()
    with scratch() as place:
        (place / "in").write_bytes(b"some\0bytes\xff")
        os.chmod(place / "in", 0o751)
        husk("cp", place / "in", f"{box}:/root/there")
        assert_equal(sh(box, "stat -c '%a %U %s' /root/there"), "751 root 11")
        husk("cp", f"{box}:/root/there", place / "out")
        assert_equal((place / "out").read_bytes(), b"some\0bytes\xff")
        assert_equal(stat.S_IMODE(os.stat(place / "out").st_mode), 0o751)
        # Into a directory that is there, under its own name; and by name instead of id, parents made.
        husk("cp", place / "in", f"{box}:/tmp")
        husk("cp", place / "in", f"{box}:/new/deep/path/file")
        assert_equal(sh(box, "ls /tmp/in /new/deep/path/file"), "/new/deep/path/file\n/tmp/in")
        os.mkdir(place / "dir")
        husk("cp", f"{box}:/root/there", place / "dir")
        assert_equal((place / "dir/there").read_bytes(), b"some\0bytes\xff")
        done = husk("cp", "--json", place / "in", f"{box}:/root/again").json()
        assert_equal((done["id"], done["direction"], done["bytes"]), (box, "in", 11))


@test
def test_owner():
    box = create()
    with scratch() as place:
        (place / "f").write_text("x")
        os.mkdir(place / "d")
        (place / "d/g").write_text("y")
        husk("cp", "--user", "nobody", place / "f", f"{box}:/tmp/f")
        husk("cp", "--user", "nobody", place / "d", f"{box}:/tmp/d")
        assert_equal(sh(box, "stat -c %U /tmp/f /tmp/d/g"), "nobody\nnobody")


@test
def test_big_file_is_intact():
    box = create()
    with scratch() as place:
        data = random.Random(3).randbytes(64 << 20)
        (place / "big").write_bytes(data)
        husk("cp", place / "big", f"{box}:/root/big", timeout=120)
        wanted = hashlib.sha256(data).hexdigest()
        assert_equal(sh(box, "sha256sum </root/big").split()[0], wanted)
        husk("cp", f"{box}:/root/big", place / "back", timeout=120)
        assert_equal(hashlib.sha256((place / "back").read_bytes()).hexdigest(), wanted)


@test
def test_empty_things():
    box = create()
    with scratch() as place:
        (place / "empty").write_bytes(b"")
        os.mkdir(place / "nothing")
        husk("cp", place / "empty", f"{box}:/root/empty")
        husk("cp", place / "nothing", f"{box}:/root/nothing")
        assert_equal(
            sh(box, "stat -c '%s %F' /root/empty; ls -A /root/nothing; test -d /root/nothing && echo dir"),
            "0 regular empty file\ndir",
        )
        husk("cp", f"{box}:/root/empty", place / "empty2")
        husk("cp", f"{box}:/root/nothing", place / "nothing2")
        assert_equal(((place / "empty2").read_bytes(), tree(place / "nothing2")), (b"", {}))


@test
def test_trees_with_odd_names():
    box = create()
    with scratch() as place:
        source = place / "source"
        os.makedirs(source / "a/b/c")
        for name in ODD_NAMES:
            (source / "a" / name).write_text(name)
        with open(os.fsencode(source) + b"/a/not-utf8-\xff\xfe", "wb") as file:
            file.write(b"raw")
        (source / "a" / ("long" * 60)).write_text("long name")
        os.symlink("b/c", source / "a/link")
        os.link(source / "a/with space", source / "a/hard")
        husk("cp", source, f"{box}:/root/copy")
        assert_equal(sh(box, "ls -A /root/copy/a | wc -l"), str(len(os.listdir(source / "a")) + 1))  # the newline
        assert_equal(sh(box, "readlink /root/copy/a/link"), "b/c")
        husk("cp", f"{box}:/root/copy", place / "back")
        assert_equal(tree(place / "back"), tree(source))


@test
def test_odd_single_names():
    box = create()
    with scratch() as place:
        for name in ODD_NAMES:
            (place / "x").write_text(name)
            husk("cp", place / "x", f"{box}:/tmp/{name}")
            husk("cp", f"{box}:/tmp/{name}", place / "y")
            assert_equal((place / "y").read_text(), name)
        # dots are the guest's to resolve, inside the guest
        husk("cp", place / "x", f"{box}:/tmp/../tmp/./dots")
        sh(box, "test -e /tmp/dots")
        husk("cp", place / "x", f"{box}:/../../../above")
        sh(box, "test -e /above")
        assert not os.path.exists("/above"), "it came out on the host"


@test
def test_tar_streams():
    box = create()
    husk("cp", "-", f"{box}:/root/t", stdin=tar_bytes(("d", tarfile.DIRTYPE, None), ("d/f", tarfile.REGTYPE, b"hi")))
    assert_equal(sh(box, "cat /root/t/d/f"), "hi")
    out = husk("cp", f"{box}:/root/t", "-").out
    with tarfile.open(fileobj=io.BytesIO(out)) as archive:
        names = {name.rstrip("/"): name for name in archive.getnames()}
        assert_equal(archive.extractfile(next(n for n in names.values() if n.endswith("d/f"))).read(), b"hi")


@test
def test_hostile_tar_into_the_guest():
    box = create()
    sh(box, "mkdir /root/t; echo untouched >/root/outside")
    for what, members in {
        "dot dot": [("../outside", tarfile.REGTYPE, b"hacked")],
        "dot dot inside": [("a/../../outside", tarfile.REGTYPE, b"hacked")],
        "absolute": [("/root/outside", tarfile.REGTYPE, b"hacked")],
        "device": [("dev", tarfile.CHRTYPE, None)],
        "block device": [("dev", tarfile.BLKTYPE, None)],
        "link out, then through it": [("l", tarfile.SYMTYPE, "/root"), ("l/outside", tarfile.REGTYPE, b"hacked")],
        "link up": [("l", tarfile.SYMTYPE, "../.."), ("l/root/outside", tarfile.REGTYPE, b"hacked")],
        "hard link out": [("h", tarfile.LNKTYPE, "/root/outside"), ("h", tarfile.REGTYPE, b"hacked")],
        "hard link up": [("h", tarfile.LNKTYPE, "../outside")],
    }.items():
        result = husk("cp", "-", f"{box}:/root/t", stdin=tar_bytes(*members), code=None)
        assert_equal(sh(box, "cat /root/outside"), "untouched", what)
        assert_equal(sh(box, "find /root/t -type c -o -type b -o -links +1 -type f"), "", what)
        assert result.code != 0 and result.error.startswith("husk: "), f"{what} is taken without a word: {result}"
    garbage = random.Random(5).randbytes(20000)
    result = husk("cp", "-", f"{box}:/root/t", stdin=garbage, code=None)
    assert result.code != 0, f"garbage is taken for a tar: {result}"
    short = tar_bytes(("big", tarfile.REGTYPE, b"x" * 100000))[:50000]
    result = husk("cp", "-", f"{box}:/root/t", stdin=short, code=None)
    assert result.code != 0, f"half a tar is taken for a whole one: {result}"
    assert_equal(sh(box, "ls /root/t/big 2>/dev/null || echo none"), "none", "a file cut short is not left there")


@test
def test_hostile_tree_out_of_the_guest():
    # A guest cannot make the host write outside of the destination, make devices there, or set bits that matter.
    box = create()
    sh(
        box,
        "mkdir -p /root/t/sub; cd /root/t; ln -s /etc etclink; ln -s ../../.. up; ln -s sub inside; mkfifo pipe;"
        "echo x >suid; chmod 6755 suid; chown nobody suid; mknod dev c 1 3 2>/dev/null; true",
    )
    with scratch() as place:
        result = husk("cp", f"{box}:/root/t", place / "out")
        names = set(os.listdir(place / "out"))
        assert_equal(names, {"sub", "inside", "suid"}, result.error)
        status = os.stat(place / "out/suid")
        assert_equal((stat.S_IMODE(status.st_mode) & 0o7000, status.st_uid), (0, os.getuid()))
        for name in ("etclink", "pipe"):
            assert_in(name, result.error, "what is left out is told")


@test
def test_agent_replaced_by_the_guest_root():
    # Root of the guest may do anything in there, also to itself: the host side only ever sees an error.
    box = create()
    with scratch() as place:
        sh(box, "mkdir /root/d; echo 1 >/root/d/f; mount -t tmpfs none /root/d 2>/dev/null; true")
        husk("cp", f"{box}:/root/d", place / "d")


@test
def test_failures_leave_nothing():
    box = create()
    with scratch() as place:
        (place / "f").write_text("x")
        assert_fails("cp", place / "nope", f"{box}:/tmp/x", code=3, says="nope")
        assert_fails("cp", f"{box}:/nope", place / "x", code=3, says="/nope")
        assert_fails("cp", place / "f", place / "g", code=2, says="SANDBOX:PATH")
        assert_fails("cp", f"{box}:/a", f"{box}:/b", code=2, says="one sandbox")
        assert_fails("cp", place / "f", "sb-nosuchone:/x", code=3, says="sb-nosuchone")
        assert_fails("cp", f"{box}:/dev/null", place / "x", code=2, says="/dev/null")
        assert_fails("cp", place / "f", f"{box}:/etc/passwd/x", code=None, says="/etc/passwd")
        assert_fails("cp", f"{box}:/etc/passwd", place / "missing/dir/x", code=None, says="missing/dir/x")
        assert_equal(sorted(os.listdir(place)), ["f"])
        # A copy that is cut off leaves the old content as it was.
        sh(box, "echo old >/root/target")
        with open(place / "large", "wb") as file:
            file.truncate(2 << 30)
        with ending(start("cp", str(place / "large"), f"{box}:/root/target")) as process:
            until(lambda: sh(box, "ls -A /root | wc -l") != "0", "the copy begins")
            process.kill()
        until(lambda: sh(box, "cat /root/target") == "old", "the old content stays")
        until(lambda: "husk" not in sh(box, "ls -A /root").replace("target", ""), "nothing half-made stays")


@test
def test_full_disk_in_the_guest():
    box = create("--disk", "64M")
    with scratch() as place:
        with open(place / "large", "wb") as file:
            file.truncate(128 << 20)
        result = husk("cp", place / "large", f"{box}:/root/large", code=None, timeout=120)
        assert result.code != 0 and ("space" in result.error or "disk" in result.error), result
        assert_equal(sh(box, "ls -A /root/large 2>/dev/null | wc -l"), "0")
        assert_equal(sh(box, "echo fits >/root/small && cat /root/small"), "fits", "room is given back")


@test
def test_full_disk_on_the_host():
    box = create()
    sh(box, "head -c 30000000 /dev/zero >/root/large")
    with scratch() as place:
        mount = place / "small"
        os.mkdir(mount)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", mount], check=False).returncode:
            raise Skip("cannot mount a small tmpfs")
        try:
            assert_fails("cp", f"{box}:/root/large", mount / "f", code=1, says="space")
            assert_equal(os.listdir(mount), [])
        finally:
            subprocess.run(["umount", "-l", mount], check=True)


@test
def test_cp_wakes():
    box = create()
    with scratch() as place:
        (place / "f").write_text("x")
        husk("hibernate", box)
        husk("cp", place / "f", f"{box}:/root/f")
        assert_equal(inspect(box)["state"], "running")


if __name__ == "__main__":
    main("base")
