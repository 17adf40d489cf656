#!/usr/bin/env python3
# timeout: 1800
"""Checkpoints and rewinds: the same sandbox goes back and forward again, memory, processes and disk; also when its guest is
broken, when somebody streams, and when a supervisor or a client is killed over it: then it is at the checkpoint or as it was
before, and never both. What left the machine is told."""

import contextlib
import json
import os
import signal
import subprocess
import time

from lib import internet

internet.enter()

from lib.harness import (  # noqa: E402
    HOME, HUSK, SLOW, adopt, adopt_snapshot, assert_equal, assert_fails, assert_in, assert_no_leaks, assert_ticking, create, ending, environment,
    event_kinds, events, fork, husk, inspect, main, sh, start, start_counter, supervisor_pid, test, ticks, until,
)
from lib.http import server, token  # noqa: E402

MOMENTS = int(os.environ.get("HUSK_MOMENTS", "10"))
CURL = f"curl -sS -m {10 * SLOW:.0f}"


def checkpoint(box, *label):
    return husk("checkpoint", "--json", box, *label).json()


def rewind(box, *words):
    return husk("rewind", "--json", box, *words).json()


def history(box):
    return husk("history", "--json", box).json()


def note(box, text=None):
    """What the file says; with a text: from now on."""
    return sh(box, "cat /root/note") if text is None else sh(box, f"echo {text} >/root/note")


def points(box):
    return f"{HOME}/sandboxes/{box}/points"


# ---- back and forward ----


@test
def test_back_and_forward_again():
    box = create("--name", "tree-one", "--ttl", "20m")
    before = inspect(box)
    start_counter(box)
    note(box, "one")
    first = checkpoint(box, "first")
    assert_equal((first["number"], first["label"], first["parent"], first["current"]), (1, "first", None, True))
    then = len(assert_ticking(box))
    until(lambda: len(ticks(box)) > then + 10, "the counter goes on after its checkpoint")
    note(box, "two")
    second = checkpoint(box)
    assert_equal((second["number"], second["label"], second["parent"]), (2, None, 1))
    late = len(ticks(box))

    done = rewind(box, "first")
    assert_equal((done["checkpoint"], done["label"], done["dropped"], done["not_undone"]), (1, "first", 0, []))
    assert_equal(note(box), "one")
    assert len(ticks(box)) < late, "the counter's memory and file went back"
    assert_ticking(box)
    assert_equal(rewind(box, "2")["checkpoint"], 2)
    assert_equal(note(box), "two")
    assert len(assert_ticking(box)) >= then + 10, "it went forward again"

    after = inspect("tree-one")
    for key in ("id", "name", "expires_at", "created_at", "template", "parent"):
        assert_equal(after[key], before[key], key)
    assert_equal(after["state"], "running")
    assert_equal(sh(box, "hostname"), box)
    assert_equal(event_kinds(box), ["created", "checkpoint", "checkpoint", "rewound", "rewound"])
    assert_equal(events(box)[-1]["detail"]["checkpoint"], 2)


@test
def test_history_and_what_is_dropped():
    box = create()
    for number in (1, 2, 3):
        note(box, str(number))
        assert_equal(husk("checkpoint", box).text.strip(), str(number))
    assert_equal(husk("rewind", box, "1").text.strip(), "1")
    note(box, "other")
    assert_equal(checkpoint(box, "branch")["parent"], 1)
    assert_equal([(one["number"], one["parent"], one["current"]) for one in history(box)],
                 [(1, None, False), (2, 1, False), (3, 2, False), (4, 1, True)])
    table = husk("history", box).text.splitlines()
    assert_equal(table[0].split(), ["N", "LABEL", "AFTER", "AGE", "SIZE"])
    assert_equal([line.split()[0] for line in table[1:]], ["1", "2", "3", "*"])
    note(box, "lost")
    assert_equal(rewind(box)["checkpoint"], 4)  # the current one
    assert_equal(note(box), "other")

    husk("history", box, "--rm", "2")
    assert_equal([(one["number"], one["parent"]) for one in history(box)], [(1, None), (3, 1), (4, 1)])
    assert_equal(rewind(box, "1", "--drop-later")["dropped"], 2)
    assert_equal([one["number"] for one in history(box)], [1])
    assert_equal(os.listdir(points(box)), ["1"])
    assert_equal(note(box), "1")
    husk("history", box, "--rm", "1")
    assert_fails("rewind", box, code=3, says="has no checkpoint; take one first (husk checkpoint")


def files(box, **options):
    """{number: (how many, [(change, path)])} of the files that changed before each checkpoint."""
    return {one["number"]: (one["files_changed"], [(each["change"], each["path"]) for each in one["files"]])
            for one in husk("history", "--json", "--files", box, **options).json()}


@test
def test_files_of_each_checkpoint():
    box = create()
    sh(box, "mkdir /srv/a; echo 1 >/srv/a/one; rm /etc/motd")
    checkpoint(box, "first")
    assert_equal([(one["files_changed"], one["files"]) for one in history(box)], [(None, [])], "not unless asked")
    sh(box, "echo 2 >/srv/a/one; echo 1 >/srv/a/two; touch /etc/issue; chmod 600 /etc/passwd")
    checkpoint(box)
    checkpoint(box)
    rewind(box, "first")
    sh(box, """rm -r /srv/a; cd /srv; echo >"$(printf 'new\\nline')"; echo >"$(printf 'byte\\377')" """)
    checkpoint(box)
    sh(box, "mkdir /srv/many; cd /srv/many; for n in $(seq 1 150); do echo $n >$n; done")
    checkpoint(box)
    husk("hibernate", box)
    found = files(box)
    assert_equal(found[1], (3, [("removed", "/etc/motd"), ("added", "/srv/a"), ("added", "/srv/a/one")]))
    assert_equal(found[2], (3, [("changed", "/etc/passwd"), ("changed", "/srv/a/one"), ("added", "/srv/a/two")]))
    assert_equal(found[3], (0, []), "a touch is no change")
    assert_equal(found[4], (4, [("removed", "/srv/a"), ("removed", "/srv/a/one"), ("added", "/srv/byte?"), ("added", "/srv/new\nline")]),
                 "against the one that it went back to")
    assert_equal((found[5][0], len(found[5][1])), (151, 100))
    assert_equal(inspect(box)["state"], "hibernated", "it was not needed for this")
    assert_equal(len(husk("ls", "--json").json()), 1, "the copies have ended")
    text = husk("history", "--files", box).text
    assert_in("1: 3 files\n   D /etc/motd\n   A /srv/a\n", text)
    assert_in("   and 51 more\n", text)
    # Kept, and compared anew once the one before it is gone.
    assert_equal(files(box), found)
    husk("history", box, "--rm", "2", "--rm", "1")
    again = files(box)
    assert_equal(again[3][1], [("removed", "/etc/motd"), ("changed", "/etc/passwd"), ("added", "/srv/a"), ("added", "/srv/a/one"), ("added", "/srv/a/two")])
    assert_equal((again[4][0], again[5]), (3, found[5]))
    # The first one of a fork is compared with the state at the fork.
    child = fork(box)[0]
    note(child, "child")
    checkpoint(child)
    assert_equal(files(child), {1: (1, [("added", "/root/note")])})
    with server() as huskd:
        assert_equal(files(box, env={"HUSK_HOST": f"unix://{huskd.socket_path}"}), again)
        huskd.get(f"/v1/sandboxes/{box}/checkpoints?files=maybe", status=400).error("invalid", "files")


@test
def test_refusals():
    box = create()
    assert_fails("rewind", box, code=3, says="has no checkpoint")
    checkpoint(box, "here")
    assert_fails("rewind", box, "nowhere", code=3, says=f"husk history {box}")
    assert_fails("rewind", box, "2", code=3, says="no checkpoint '2'")
    assert_fails("checkpoint", box, "here", code=1, says="has the label 'here' already")
    assert_fails("checkpoint", box, "12", code=2, says="is a number")
    assert_fails("checkpoint", box, "Über", code=2, says="label")
    assert_fails("history", box, "--rm", "7", code=3, says="no checkpoint '7'")
    husk("pause", box)
    assert_fails("checkpoint", box, code=1, says=f"husk resume {box}")
    assert_equal(len(history(box)), 1)
    husk("rm", box)
    for command in ("checkpoint", "rewind"):
        assert_fails(command, box, code=1, says="has ended (killed)")
    assert_equal(history(box), [])
    assert not os.path.exists(points(box)), "they went with their sandbox"
    assert_no_leaks()


# ---- whatever state it is in ----


@test
def test_a_broken_machine_goes_back():
    box = create()
    note(box, "whole")
    start_counter(box)
    checkpoint(box)
    husk("exec", box, "--", "rm", "-rf", "--no-preserve-root", "/", code=None, timeout=120)
    assert husk("exec", box, "--", "cat", "/root/note", code=None).code != 0
    rewind(box)
    assert_equal(note(box), "whole")
    assert_ticking(box)


@test
def test_paused_and_hibernated_ones_go_back():
    box = create()
    note(box, "one")
    start_counter(box)
    checkpoint(box)
    for put_away in ("pause", "hibernate"):
        note(box, "two")
        husk(put_away, box)
        rewind(box, "1")
        assert_equal(inspect(box)["state"], "running", put_away)
        assert_equal(note(box), "one", put_away)
        assert_ticking(box)
    husk("hibernate", box)
    husk("wake", box)
    assert_equal(note(box), "one")
    assert not os.path.lexists(f"{HOME}/sandboxes/{box}/image"), "no image is left behind"
    assert not os.path.lexists(f"{HOME}/sandboxes/{box}/image.partial")
    assert_no_leaks()


@test
def test_whoever_streams_is_told():
    box = create()
    checkpoint(box)
    stream = start("exec", box, "--", "sh", "-c", "echo begun; sleep 600")
    with ending(stream):
        assert_equal(stream.stdout.readline(), b"begun\n")
        rewind(box)
        _, error = stream.communicate(timeout=30 * SLOW)
        assert_equal(stream.returncode, 125)
        assert_in("was rewound to checkpoint 1", error.decode())
    assert_equal(sh(box, "echo goes on"), "goes on")


# ---- one before each call ----


@test
def test_automatic_ones_yield_to_the_quota():
    """They count in the quota of the tenant, and the oldest go before a call would fail over it."""
    with server() as huskd, token("small", "--tenant", "small", "--max-snapshots", "160M") as secret:
        box = huskd.create(token=secret, checkpoints="each-call")["id"]
        for number in range(8):
            sh(box, f"head -c 8M /dev/urandom >/dev/shm/{number}")
        listed = history(box)
        assert_equal(listed[-1]["number"], 8)
        assert 1 < len(listed) < 8 and sum(one["bytes"] for one in listed) <= 160 << 20, listed
        husk("rm", box)


@test
def test_a_checkpoint_before_each_call():
    box = create("--checkpoints", "each-call")
    assert_equal(inspect(box)["checkpoints"], "each-call")
    sh(box, "echo one >/root/note")
    sh(box, "echo two >/root/note")
    listed = history(box)
    assert_equal([(one["number"], one["automatic"], one["ran"]) for one in listed],
                 [(1, True, "sh -c echo one >/root/note"), (2, True, "sh -c echo two >/root/note")])
    assert_equal(event_kinds(box), ["created"])
    assert_in("echo two", husk("history", box).text)
    assert_equal(rewind(box)["checkpoint"], 2)  # undoes the last call
    assert_equal(note(box), "one")
    assert_equal(history(box)[-1]["parent"], 2)
    # Code goes through it too, in a new context and in one that runs.
    before = len(history(box))
    for number in (1, 2):
        husk("code", "-l", "bash", box, f"echo {number}")
        assert_equal(len(history(box)), before + number)
    assert_equal(history(box)[-2]["ran"].split(":")[0], "code")
    # Named ones stay, the oldest of the others go; who wants one of those is told.
    husk("checkpoint", box, "kept")
    for _ in range(32 - before - 2 + 3):
        husk("exec", box, "--", "true")
    left = history(box)
    assert_equal(len([one for one in left if one["automatic"]]), 32)
    assert "kept" in [one["label"] for one in left]
    assert_fails("rewind", box, "1", code=3, says=["was thinned out", f"the nearest one is {left[0]['number']}"])
    assert_fails("rewind", box, "4000", code=3, says="no checkpoint '4000'")
    [child] = fork(box)
    assert_equal(inspect(child)["checkpoints"], "each-call")
    assert_fails("create", "--checkpoints", "often", code=2, says="each-call")
    husk("rm", box, child)
    assert_no_leaks()


# ---- what it cannot take back ----


@test
def test_what_was_sent_is_told():
    box = create("--allow", "allowed.test", "--allow", "api.test")
    sh(box, f"{CURL} http://allowed.test/before")
    checkpoint(box)
    for path in ("a", "b"):
        sh(box, f"{CURL} -d body http://api.test/{path}")
    done = rewind(box)
    [left] = [one for one in done["traffic"] if one["host"] == "api.test"]
    assert_equal((left["port"], left["connections"]), (80, 2))
    assert left["sent"] > 0, left
    assert_equal([(one["method"], one["url"], one["count"]) for one in done["requests"]],
                 [("POST", "http://api.test/a", 1), ("POST", "http://api.test/b", 1)])
    assert_equal(done["not_undone"][:2], ["POST http://api.test/a was sent", "POST http://api.test/b was sent"])
    assert not [one for one in done["traffic"] if one["host"] == "allowed.test"], "that was before"
    assert any("2 connections to api.test:80" in line for line in done["not_undone"]), done
    sh(box, f"{CURL} http://allowed.test/after")
    told = husk("rewind", box)
    assert_in("not undone: 2 connections to api.test:80", told.error)  # still true
    assert_in("not undone: 1 connection to allowed.test:80", told.error)
    assert_in("not undone: POST http://api.test/b was sent", told.error)
    # After a sleep and another checkpoint, only what came later; over a server too.
    husk("hibernate", box)
    husk("wake", box)
    checkpoint(box)
    sh(box, f"for i in 1 2 3; do {CURL} -X PUT -d body http://api.test/c; done; {CURL} http://api.test/read")
    husk("exec", "-d", box, "--", "python3", "-m", "http.server", "8000")
    with server() as huskd:
        until(lambda: huskd.get(f"/v1/sandboxes/{box}/ports/8000/", status=None).status == 200, "a visitor is served")
        done = huskd.post(f"/v1/sandboxes/{box}/rewind", {}).json()
    assert_equal([(one["method"], one["url"], one["count"]) for one in done["requests"]],
                 [("PUT", "http://api.test/c", 3), ("GET", "http://api.test/read", 1)])
    assert_equal([one["port"] for one in done["visits"]], [8000])
    assert "PUT http://api.test/c was sent 3 times" in done["not_undone"], done
    assert any("from outside to port 8000" in line for line in done["not_undone"]), done


@test
def test_volumes_are_told():
    husk("volume", "create", "tree-data")
    try:
        box = create("--volume", "tree-data:/data")
        sh(box, "echo one >/data/note")
        checkpoint(box)
        sh(box, "echo two >/data/note")
        done = rewind(box)
        assert_equal(done["volumes"], ["tree-data"])
        assert_in("volume 'tree-data' is not part of a checkpoint", done["not_undone"][0])
        assert_equal(sh(box, "cat /data/note"), "two")
        husk("rm", box)
    finally:
        husk("volume", "rm", "tree-data", code=None)


# ---- killed over it ----


def killed_over(box, victim, delay):
    """A rewind to 1 whose client or supervisor is killed after `delay` seconds; how the client ended."""
    pid = supervisor_pid(box)
    client = start("rewind", box, "1")
    with ending(client):
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid if victim == "supervisor" else client.pid, signal.SIGKILL)
        client.communicate(timeout=60 * SLOW)
        return client.returncode


def fresh():
    """A sandbox at "two", with a checkpoint at "one"."""
    box = create()
    note(box, "one")
    start_counter(box)
    checkpoint(box)
    note(box, "two")
    return box


@test
def test_kill_9_of_the_supervisor():
    """Before the image has its place the machine dies with its supervisor, as ever; after that the sandbox is at the checkpoint."""
    outcomes, box = [], fresh()
    begun = time.monotonic()
    rewind(box, "1")
    usual = time.monotonic() - begun
    for moment in range(MOMENTS):
        if box is None:
            box = fresh()
        note(box, "two")
        killed_over(box, "supervisor", usual * moment / MOMENTS)
        state = until(lambda: inspect(box)["state"] != "creating" and inspect(box)["state"], "it settles")
        if state == "ended":
            assert_equal(inspect(box)["end_reason"], "crashed")
            assert not os.path.exists(points(box))
            box = None
        else:
            found = note(box)
            assert found in ("one", "two"), found
            assert_ticking(box)
            state = found
        outcomes.append(state)
    print(f"# {outcomes}")
    if box:
        husk("rm", box)
    assert_no_leaks()


@test
def test_kill_9_of_the_client():
    outcomes, box = [], fresh()
    begun = time.monotonic()
    rewind(box, "1")
    usual = time.monotonic() - begun
    for moment in range(MOMENTS):
        note(box, "two")
        killed_over(box, "client", usual * moment / MOMENTS)
        until(lambda: inspect(box)["state"] != "creating", "it settles")
        outcomes.append(note(box))  # wakes it if need be
        assert outcomes[-1] in ("one", "two"), outcomes
        assert_ticking(box)
        assert_equal([one["number"] for one in history(box)], [1])
    print(f"# {outcomes}")
    husk("rm", box)
    assert_no_leaks()


@test
def test_kill_9_over_a_checkpoint():
    """What is half written does not count, and goes."""
    for moment in range(3):
        box = fresh()
        client = start("checkpoint", box, "half")
        with ending(client):
            time.sleep(0.05 * moment)
            os.kill(supervisor_pid(box), signal.SIGKILL)
            client.communicate(timeout=60 * SLOW)
        until(lambda: inspect(box)["state"] == "ended", "it is found dead")
        assert not os.path.exists(points(box))
    assert_no_leaks()


@test
def test_ending_wins():
    """rm beside a rewind, and a time that is over meanwhile: it ends, and stays ended."""
    for moment in range(4):
        box = fresh()
        client = start("rewind", box, "1")
        with ending(client):
            time.sleep(0.15 * moment)
            husk("rm", box)
            client.communicate(timeout=60 * SLOW)
        assert_equal(inspect(box)["state"], "ended")
        assert not os.path.exists(points(box))
    box = fresh()
    husk("extend", box, "2s")
    until(lambda: husk("rewind", box, "1", code=None).code != 0, "its time is over", pause=0)
    until(lambda: inspect(box)["state"] == "ended", "it ended")
    assert_equal(inspect(box)["end_reason"], "ttl")
    assert_no_leaks()


@test
def test_many_rewinds_at_once():
    box = fresh()
    checkpoint(box, "two")
    clients = [start("rewind", box, word) for word in ("1", "two") * 3]
    for client in clients:
        with ending(client):
            client.communicate(timeout=120 * SLOW)
    assert_in(note(box), ("one", "two"))
    assert_ticking(box)
    assert_equal(len(history(box)), 2)


# ---- families ----


@test
def test_the_family_is_drawn():
    root = create("--name", "tree-root")
    [one], [two] = fork(root), fork(root)
    snapshot = husk("snapshot", "create", root, "tree-kept", "--json").json()["id"]
    adopt_snapshot(snapshot)
    child = create("--from", "tree-kept", "--name", "tree-child")
    [grandchild] = fork(child)
    husk("rm", child, two)

    [family] = husk("tree", grandchild, "--json").json()
    assert_equal((family["id"], family["kind"], family["state"]), (root, "sandbox", "running"))
    assert_equal([each["id"] for each in family["children"]], [one, two, snapshot])
    assert_equal(family["children"][1]["end_reason"], "killed")
    [kept] = family["children"][2]["children"]
    assert_equal((kept["id"], kept["state"], kept["children"][0]["id"]), (child, "ended", grandchild))
    drawn = husk("tree", "tree-kept").text.splitlines()
    assert_equal([line.split("  ")[0] for line in drawn[:2]], [root, f"├─ {one}"])
    assert drawn[3].startswith(f"└─ {snapshot}  tree-kept  snapshot") and drawn[3].endswith("  *"), drawn
    assert drawn[4].startswith(f"   └─ {child}  tree-child  ended (killed)"), drawn
    assert drawn[5].startswith(f"      └─ {grandchild}  running"), drawn

    everything = husk("tree").text
    assert_in(child, everything)  # it led to one that lives
    assert two not in everything, "ended, and led to nothing"
    assert_in(two, husk("tree", "-a").text)
    husk("snapshot", "rm", snapshot)
    [orphans] = husk("tree", grandchild, "--json").json()
    assert_equal((orphans["id"], orphans["kind"], orphans["children"][0]["id"]), (snapshot, "removed", child))
    assert_fails("tree", "tree-nobody", code=3, says="not found")
    with server() as huskd:
        far = {"HUSK_HOST": f"unix://{huskd.socket_path}"}
        assert_equal(husk("tree", root, "--json", env=far).json(), husk("tree", root, "--json").json())


# ---- over the API, from elsewhere, and by an agent ----


# ---- a fork in the place of its parent ----


@test
def test_promote():
    box = create("--name", "tree-parent", "--ttl", "20m")
    before = inspect(box)
    note(box, "parent")
    left, right = fork(box, "-n", "2")
    note(left, "left")
    note(right, "right")
    start_counter(right)
    count = len(assert_ticking(right))
    done = husk("promote", "--json", right).json()
    assert_equal((done["sandbox"], done["checkpoint"], sorted(done["ended"])), (box, 1, sorted([left, right])))
    assert_equal(note("tree-parent"), "right")
    assert_equal(sh(box, "hostname"), box)
    assert len(assert_ticking(box)) >= count, "the processes of the fork go on"
    after = inspect(box)
    assert_equal([after[key] for key in ("id", "name", "created_at", "expires_at")],
                 [before[key] for key in ("id", "name", "created_at", "expires_at")])
    assert_equal([inspect(each)["state"] for each in (left, right)], ["ended", "ended"])
    assert_equal([(point["number"], point["label"], point["current"]) for point in history(box)], [(1, right, True)])
    # The checkpoint is the parent's now: it can go back to it after other work.
    note(box, "later")
    rewind(box, "1")
    assert_equal(note(box), "right")
    assert_no_leaks()


@test
def test_promote_of_and_into_sleeping_ones():
    box = create()
    note(box, "parent")
    checkpoint(box, "mine")
    child, other = fork(box, "-n", "2")
    note(child, "child")
    husk("hibernate", child)
    husk("hibernate", box)
    assert_equal(husk("promote", "--json", "--keep", child).json()["ended"], [child])
    assert_equal((inspect(box)["state"], note(box), inspect(other)["state"]), ("running", "child", "running"))
    # The parent's own checkpoints stay, and a grandchild can be promoted after its parent was.
    rewind(box, "mine")
    assert_equal(note(box), "parent")
    grandchild = fork(other)[0]
    note(grandchild, "grandchild")
    assert_equal(husk("promote", grandchild).text.strip(), other)
    husk("promote", other)
    assert_equal(note(box), "grandchild")


@test
def test_promote_refusals():
    box = create()
    assert_fails("promote", box, code=2, says="not a fork")
    child = fork(box)[0]
    husk("rm", box)
    assert_fails("promote", child, code=None, says=[box, "has ended"])
    assert_equal(inspect(child)["state"], "running")
    snapshot = adopt_snapshot(husk("snapshot", "create", "--json", child).json()["id"])
    assert_fails("promote", create("--from", snapshot), code=2, says="not a fork")
    assert_fails("promote", "nobody", code=3, says="nobody")


def promoted_or_not(box, child):
    """Either the child still lives and the parent is as it was, or its state is the parent's checkpoint, and never both."""
    time.sleep(SLOW)  # what the client has asked for goes on without it
    husk("ls")  # clears up
    if inspect(child)["state"] != "ended":
        assert_equal(note(box), "parent")
        assert_equal(note(child), "child")
        return False
    assert child in [point["label"] for point in history(box)], "the state of a child that has ended is a checkpoint"
    husk("rewind", box, child)
    assert_equal(note(box), "child")
    return True


@test
def test_kill_9_of_a_promote():
    done = 0
    for moment in range(MOMENTS):
        box = create()
        note(box, "parent")
        child = fork(box)[0]
        note(child, "child")
        with ending(start("promote", child)) as client:
            time.sleep(0.03 * moment * SLOW)
            client.send_signal(signal.SIGKILL)
        done += promoted_or_not(box, child)
        husk("rm", "-f", box, child)
    assert_no_leaks()
    print(f"# {done} of {MOMENTS} were promoted")


@test
def test_kill_9_of_the_supervisors_of_a_promote():
    for moment in range(MOMENTS):
        box = create()
        note(box, "parent")
        checkpoint(box)  # without it the parent's own state ends with its supervisor
        child = fork(box)[0]
        note(child, "child")
        victim = supervisor_pid(child if moment % 2 else box)
        with ending(start("promote", child)) as client:
            time.sleep(0.03 * moment * SLOW)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            client.communicate(timeout=60 * SLOW)
        husk("ls")
        states = inspect(box)["state"], inspect(child)["state"]
        if states[0] != "ended" and child in [point["label"] for point in history(box)]:
            husk("rewind", box, child)
            assert_equal(note(box), "child", str(states))
        husk("rm", "-f", box, child, code=None)
    assert_no_leaks()


@test
def test_over_the_api():
    with server() as huskd:
        box = huskd.create()["id"]
        path = f"/v1/sandboxes/{box}"
        note(box, "one")
        made = huskd.post(f"{path}/checkpoints", {"label": "start"}, status=201).json()
        assert_equal((made["number"], made["label"]), (1, "start"))
        huskd.post(f"{path}/checkpoints", status=201)
        note(box, "two")
        assert_equal([one["number"] for one in huskd.get(f"{path}/checkpoints").json()["checkpoints"]], [1, 2])
        done = huskd.post(f"{path}/rewind", {"checkpoint": "start", "drop_later": True}).json()
        assert_equal((done["checkpoint"], done["dropped"]), (1, 1))
        assert_equal(note(box), "one")
        huskd.post(f"{path}/rewind", {"checkpoint": "lost"}, status=404)
        huskd.post(f"{path}/rewind", {"point": "1"}, status=400)
        huskd.delete(f"{path}/checkpoints/start")
        huskd.delete(f"{path}/checkpoints/start", status=404)
        huskd.post(f"{path}/rewind", status=404)
        child = adopt(huskd.post(f"{path}/fork", status=201).json()["sandboxes"][0]["id"])
        note(child, "child")
        assert_equal(huskd.post(f"/v1/sandboxes/{child}/promote", {}).json()["sandbox"], box)
        assert_equal(note(box), "child")
        huskd.post(f"{path}/promote", status=400)
        huskd.post(f"{path}/promote", {"kept": True}, status=400)


@test
def test_from_elsewhere():
    box = create()
    with server() as huskd:
        far = {"HUSK_HOST": f"unix://{huskd.socket_path}"}
        note(box, "one")
        assert_equal(husk("checkpoint", "--json", box, "far", env=far).json()["label"], "far")
        note(box, "two")
        assert_equal(husk("history", "--json", box, env=far).json(), history(box))
        assert_equal(husk("rewind", "--json", box, "far", env=far).json()["checkpoint"], 1)
        assert_equal(note(box), "one")
        husk("history", box, "--rm", "far", env=far)
        assert_equal(history(box), [])
        child = fork(box)[0]
        note(child, "child")
        assert_equal(husk("promote", "--json", child, env=far).json()["ended"], [child])
        assert_equal(note(box), "child")


@test
def test_an_agent_rewinds_itself():
    """Over MCP: it breaks its machine, goes back, and goes on."""
    agent = subprocess.Popen([HUSK, "mcp"], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    numbers = iter(range(1, 100))

    def ask(method, **parameters):
        number = next(numbers)
        agent.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}) + "\n")
        agent.stdin.flush()
        while (answer := json.loads(agent.stdout.readline())).get("id") != number:
            pass
        return answer["result"]

    def tool(name, **arguments):
        return ask("tools/call", name=name, arguments=arguments)

    with ending(agent):
        ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "test", "version": "1"})
        agent.stdin.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + "\n")
        made = tool("run_command", command="echo whole >/root/note")["structuredContent"]["sandbox"]
        adopt(made)
        assert_equal(tool("checkpoint_sandbox", label="safe")["structuredContent"]["checkpoint"], 1)
        tool("run_command", command="rm -rf --no-preserve-root /")
        back = tool("rewind_sandbox", checkpoint="safe")
        assert_equal(back["structuredContent"]["sandbox"], made)
        assert_in("is back at checkpoint 1", back["content"][0]["text"])
        assert_equal(tool("run_command", command="cat /root/note")["structuredContent"]["stdout"], "whole\n")
        child = tool("fork_sandbox")["structuredContent"]["forks"][0]
        adopt(child)
        tool("run_command", sandbox=child, command="echo better >/root/note")
        assert_in("changed /root/note", tool("diff_sandbox", sandbox=child, against=made)["content"][0]["text"])
        kept = tool("promote_sandbox", sandbox=child)["structuredContent"]
        assert_equal((kept["sandbox"], kept["ended"]), (made, [child]))
        assert_equal(tool("run_command", command="cat /root/note")["structuredContent"]["stdout"], "better\n")
        # With a checkpoint before each call, it needs no foresight: it looks for the last good state.
        careful = tool("create_sandbox", checkpoints="each-call")["structuredContent"]["sandbox"]
        adopt(careful)
        for command in ("echo precious >/root/note", "rm -rf --no-preserve-root /", "cat /root/note"):
            tool("run_command", sandbox=careful, command=command)
        listed = tool("sandbox_history", sandbox=careful)["structuredContent"]["checkpoints"]
        [wrong] = [one["number"] for one in listed if "rm -rf" in one["ran"]]
        told = tool("sandbox_history", sandbox=careful, files=True)["content"][0]["text"]
        assert_in(f"\n{wrong}, before: ", told)
        assert_in("\n  added /root/note", told)
        assert_in("\n  which files changed is not known", told)  # a copy of the broken machine cannot be made
        assert not tool("rewind_sandbox", sandbox=careful, checkpoint=str(wrong)).get("isError")
        assert_equal(tool("run_command", sandbox=careful, command="cat /root/note")["structuredContent"]["stdout"], "precious\n")


if __name__ == "__main__":
    main("base")
