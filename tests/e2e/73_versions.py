#!/usr/bin/python3
"""Template versions: a new build, forced or not, changes nothing for what was made from an earlier one; a kill during a build
leaves nothing that counts; doctor names what cannot be continued."""

# timeout: 1800
import os
import signal
import subprocess
import time

from lib.harness import *
from lib.roots import small_root as shared_root

NAME = "e2e-version"


def small_root(place):
    """One that no other test has: versions are shared by content."""
    root = shared_root(place)
    (root / "etc/unique").write_text(os.urandom(16).hex())
    return root


def build(root, *options, **more):
    return husk("template", "build", "--json", "--rootfs", root, "--name", NAME, *options, timeout=300, **more).json()


def versions():
    return {name for name in os.listdir(f"{HOME}/templates") if not name.startswith(".")}


def template(name=NAME):
    (entry,) = [each for each in husk("template", "ls", "--json").json() if each["name"] == name]
    return entry


def files(version):
    """Every file of a version's root image and baked images: (path, inode, size, time)."""
    found = set()
    for top, _, names in os.walk(f"{HOME}/templates/{version}"):
        for name in names:
            status = os.stat(f"{top}/{name}")
            found.add((f"{top}/{name}", status.st_ino, status.st_size, status.st_mtime_ns))
    return found


def note(box, text):
    sh(box, f"echo {text} >/root/note")


def check(box, text, what):
    assert_equal(sh(box, "cat /root/note /etc/who"), f"{text}\nversion one", what)


def checks(name):
    return [entry for entry in husk("doctor", "--json", code=None, timeout=120).json() if entry["name"] == name]


@test
def test_a_forced_build_changes_nothing_that_is_referenced():
    with scratch() as place:
        root = small_root(place)
        try:
            first = build(root)["digest"]
            live, asleep, saved = (create("-t", NAME, "--persistent") for _ in range(3))
            for box, text in ((live, "live"), (asleep, "asleep"), (saved, "saved")):
                note(box, text)
            husk("hibernate", asleep)
            snapshot = adopt_snapshot(husk("snapshot", "create", "--json", saved, timeout=120).json()["id"])
            husk("rm", "-f", saved)
            before = files(first)
            (root / "etc/who").write_text("version two\n")
            second = build(root)["digest"]
            third = build(root, "--force")["digest"]
            assert_equal(len({first, second, third}), 3, "each build is a version of its own")
            husk("gc")
            assert_equal(files(first), before, "no file of a version changes")
            assert first in versions() and third in versions(), versions()
            assert second not in versions(), "nothing used the second one"
            assert_equal((template()["digest"], template()["old_versions"]), (third, 1))
            assert_equal(husk("run", "-t", NAME, "--", "cat", "/etc/who").text, "version two\n")

            check(live, "live", "a live sandbox")
            (child,) = fork(live)
            check(child, "live", "a fork of it")
            check(asleep, "asleep", "one that slept through the builds")
            restored = create("--from", snapshot)
            check(restored, "saved", "one from a snapshot")
            for box in (live, child, restored):
                husk("hibernate", box)
            husk("template", "rm", NAME)
            husk("gc")
            for box, text in ((live, "live"), (child, "live"), (restored, "saved")):
                check(box, text, "after another sleep, with the template gone")
            assert first in versions(), "still in use"
            husk("rm", "-f", live, child, asleep, restored)
            husk("snapshot", "rm", snapshot)
            husk("gc", "--all")
            assert first not in versions(), "nothing is left that uses it"
        finally:
            husk("template", "rm", NAME, code=None)
    husk("gc", "--all")
    assert_no_leaks()


@test
def test_two_names_share_a_version():
    with scratch() as place:
        root = small_root(place)
        try:
            first = build(root)["digest"]
            twin = husk("template", "build", "--json", "--rootfs", root, "--name", "e2e-twin", timeout=300).json()
            assert_equal(twin["digest"], first, "the same content is not built twice")
            husk("template", "rm", NAME)
            assert_equal(husk("run", "-t", "e2e-twin", "--", "cat", "/etc/who").text, "version one\n")
            again = build(root)
            assert_equal((again["digest"], again["fresh"]), (first, True))
        finally:
            husk("template", "rm", NAME, code=None)
            husk("template", "rm", "e2e-twin", code=None)


@test
def test_a_kill_during_a_build_leaves_nothing_that_counts():
    with scratch() as place:
        root = small_root(place)
        try:
            first = build(root)["digest"]
            content = first.split("-")[0]
            for delay in (0.02, 0.1, 0.3, 0.6, 1.0, 1.5, 2.2):
                process = start("template", "build", "--rootfs", str(root), "--name", NAME, "--force", start_new_session=True)
                with ending(process):
                    time.sleep(delay)
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait(30)
                current = template()["digest"]
                assert current in versions(), "the name points at a version that is there"
                assert_equal(husk("run", "-t", NAME, "--", "cat", "/etc/who", timeout=120).text, "version one\n", f"killed after {delay} s")
            until(lambda: not builders(), "everything of the builds is gone")
            husk("gc", "--all")
            assert_equal({name for name in versions() if "." in name}, set(), "nothing unfinished is left")
            assert_equal({name for name in versions() if content in name}, {template()["digest"]})
        finally:
            husk("template", "rm", NAME, code=None)
    husk("gc", "--all")
    assert_no_leaks()


def builders():
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if " builder " in line and HOME in line]


@test
def test_a_damaged_baked_image_is_not_used():
    with scratch() as place:
        root = small_root(place)
        try:
            version = build(root)["digest"]
            (baked,) = os.listdir(f"{HOME}/templates/{version}/baked")
            image = f"{HOME}/templates/{version}/baked/{baked}"
            os.unlink(f"{image}/durable")
            assert_equal(husk("run", "-t", NAME, "--", "cat", "/etc/who", timeout=120, env={"HUSK_POOL": "0"}).text, "version one\n")
            assert os.path.exists(f"{image}/durable"), "it was baked again"
            for name in os.listdir(image):
                if name not in ("ok", "durable"):
                    os.truncate(f"{image}/{name}", 1)
            assert_equal(build(root)["fresh"], True, "a build puts it right")
            assert_equal(husk("run", "-t", NAME, "--", "cat", "/etc/who", timeout=120, env={"HUSK_POOL": "0"}).text, "version one\n")
        finally:
            husk("template", "rm", NAME, code=None)


@test
def test_doctor_names_what_cannot_be_continued():
    with scratch() as place:
        root = small_root(place)
        try:
            version = build(root)["digest"]
            asleep, live = create("-t", NAME), create("-t", NAME)
            snapshot = adopt_snapshot(husk("snapshot", "create", "--json", live, timeout=120).json()["id"])
            husk("hibernate", asleep)
            assert_equal([checks("template"), checks("snapshot"), checks("sandbox")], [[], [], []], "all is well")
            assert checks("images"), "which it says"
            rootfs = f"{HOME}/templates/{version}/rootfs.img"
            os.rename(rootfs, f"{rootfs}.away")
            try:
                for kind, name in (("template", NAME), ("snapshot", snapshot), ("sandbox", asleep), ("sandbox", live)):
                    assert [entry for entry in checks(kind) if name in entry["text"]], f"{kind} {name}"
            finally:
                os.rename(f"{rootfs}.away", rootfs)
            for image, kind, name in ((f"{HOME}/snapshots/{snapshot}", "snapshot", snapshot), (f"{HOME}/sandboxes/{asleep}/image", "sandbox", asleep)):
                os.rename(f"{image}/durable", f"{image}/aside")
                assert [entry for entry in checks(kind) if name in entry["text"] and "husk" in entry["text"]], f"{kind} {name}"
                os.rename(f"{image}/aside", f"{image}/durable")
            assert_equal([checks("template"), checks("snapshot"), checks("sandbox")], [[], [], []], "all is well again")
        finally:
            husk("template", "rm", NAME, code=None)


@test
def test_gc_clears_the_rest_of_removals():
    os.makedirs(f"{HOME}/snapshots/sn-none.gone-aaaaaaaa/x")
    os.makedirs(f"{HOME}/snapshots/sn-nobody")
    os.makedirs(f"{HOME}/templates/0123.partial/baked")
    os.makedirs(f"{HOME}/sandboxes/sb-none.gone-aaaaaaaa")
    husk("gc")
    left = os.listdir(f"{HOME}/snapshots")
    assert "sn-nobody" not in left and not [name for name in left if ".gone-" in name], left
    assert "0123.partial" not in versions()
    assert_equal([name for name in os.listdir(f"{HOME}/sandboxes") if ".gone-" in name], [])


if __name__ == "__main__":
    main("base")
