#!/usr/bin/python3
"""Snapshots: a running sandbox kept as it is, memory and disk, others made from it, and what happens without room."""

# timeout: 1800
import os
import subprocess

from lib.harness import *


def take(box, *options):
    snapshot = husk("snapshot", "create", "--json", box, *options).json()
    adopt_snapshot(snapshot["id"])
    return snapshot


@test
def test_create_from_a_snapshot():
    box = create("-e", "E2E_KEPT=yes", "--memory", "512M")
    start_counter(box)
    sh(box, "echo before >/root/note")
    snapshot = take(box, "e2e-snap")
    assert_equal((snapshot["name"], snapshot["sandbox"], snapshot["template"]), ("e2e-snap", box, "base"))
    assert snapshot["bytes"] > 0, snapshot
    sh(box, "echo after >/root/note")
    assert_ticking(box)
    copies = [create("--from", "e2e-snap"), create("--from", snapshot["id"])]
    for copy in copies:
        assert_equal(sh(copy, "cat /root/note; echo $E2E_KEPT"), "before\nyes")
        seen = assert_ticking(copy)
        assert_equal(seen[0][1], ticks(box)[0][1], "the same counter's memory")
        assert_equal({line[2] for line in seen}, {box, copy}, "and then its own name")
        assert_equal((inspect(copy)["parent"], inspect(copy)["memory_bytes"]), (snapshot["id"], 512 << 20))
    assert_equal(sh(box, "cat /root/note"), "after")
    assert_in("snapshot", event_kinds(box))


@test
def test_outlives_its_sandbox():
    box = create()
    sh(box, "echo kept >/root/note")
    snapshot = take(box)["id"]
    husk("rm", box)
    copy = create("--from", snapshot, "--memory", "300M", "--ttl", "5m")
    assert_equal(sh(copy, "cat /root/note"), "kept")
    assert_equal(inspect(copy)["memory_bytes"], 300 << 20)


@test
def test_list_and_remove():
    box = create()
    first, second = take(box, "--name", "e2e-one"), take(box)
    listing = husk("snapshot", "ls", "--json").json()
    assert {first["id"], second["id"]} <= {entry["id"] for entry in listing}, listing
    assert_in("e2e-one", husk("snapshot", "ls").text)
    copy = create("--from", "e2e-one")
    assert_equal(husk("snapshot", "rm", "e2e-one").text.strip(), first["id"])
    assert first["id"] not in husk("snapshot", "ls").text
    assert_equal(sh(copy, "echo runs on"), "runs on", "what was made from it does not need it any more")
    assert_fails("create", "--from", "e2e-one", code=3, says="e2e-one")
    assert not os.path.exists(f"{HOME}/snapshots/{first['id']}")


@test
def test_bad_input():
    box = create()
    take(box, "--name", "e2e-taken")
    assert_fails("snapshot", "create", box, "e2e-taken", code=1, says="e2e-taken")
    assert_fails("snapshot", "create", box, "Bad Name", code=2, says="Bad Name")
    assert_fails("snapshot", "create", "sb-nosuchone", code=3, says="sb-nosuchone")
    assert_fails("snapshot", "rm", "nosuch", code=3, says="nosuch")
    assert_fails("create", "--from", "e2e-take", code=3, says=["e2e-take", "e2e-taken"])
    assert_fails("create", "--from", "e2e-taken", "-t", "base", code=2, says="--template")
    assert_fails("create", "--from", "e2e-taken", "--disk", "1G", code=2, says="disk")
    assert_no_leaks()


@test
def test_from_a_snapshot_of_a_copy():
    box = create()
    start_counter(box)
    copy = create("--from", take(box)["id"])
    assert_ticking(copy)
    third = create("--from", take(copy)["id"])
    assert_equal({line[2] for line in assert_ticking(third)}, {box, copy, third})


@test
def test_of_a_hibernated_one():
    box = create()
    start_counter(box)
    husk("hibernate", box)
    copy = create("--from", take(box)["id"])
    assert_ticking(copy)
    assert_ticking(box)


@test
def test_full_disk_leaves_nothing_half_made():
    # Snapshots live in the instance's home; a small filesystem is put under that one directory.
    box = create()
    start_counter(box)
    place = f"{HOME}/snapshots"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "none", place], check=False).returncode:
        raise Skip("cannot mount a small tmpfs")
    try:
        assert_fails("snapshot", "create", box, "e2e-full", code=1, says="space left")
        assert_equal(os.listdir(place), [])
        assert_ticking(box)
        assert_fails("fork", box, code=1, says="space left")
        assert_equal(os.listdir(place), [])
    finally:
        subprocess.run(["umount", "-l", place], check=True)
    assert "e2e-full" not in husk("snapshot", "ls").text
    assert_ticking(box)
    take(box, "--name", "e2e-full")


if __name__ == "__main__":
    main("base")
