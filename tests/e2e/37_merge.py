#!/usr/bin/env python3
# timeout: 600
"""husk merge: what one branch changed goes into another, three-way against the sandbox that both were forked from or against the
template: text, modes, links, removed files and directories; conflicts are listed and nothing is written unless asked for; the same over
the API and from elsewhere."""

import re
import subprocess
import time

from lib.harness import (
    adopt, assert_equal, assert_fails, assert_in, create, ending, fork, husk, main, sh, start, test,
)
from lib.http import server, token


def merge(source, target, *words, code=0):
    return husk("merge", "--json", source, target, "--path", "/root", *words, code=code).json()


def changes(done):
    return [(each["change"], each["path"]) for each in done["changes"]]


def conflicts(done):
    return {each["path"]: each["conflict"] for each in done["changes"] if each["conflict"]}


def family():
    """(parent, left, right), with some files in /root/w"""
    parent = create()
    sh(parent, """mkdir -p /root/w/d/deep; cd /root/w; seq 20 >text; echo a >a; echo b >b; echo gone >gone; printf 'x\\0' >blob; echo f >d/f; echo g >d/deep/g
        ln -s a link; chmod 644 *""")
    return (parent, *fork(parent, "-n", "2"))


@test
def test_two_branches():
    _, left, right = family()
    sh(left, """cd /root/w; sed -i 's/^2$/two/' text; echo more >>a; rm gone; mkdir -p new/er; echo n >new/er/file; chmod 755 b; ln -sfn b link
        rm -r d; printf 'y\\0' >blob; echo odd >"$(printf 'new\\nline')"; touch b""")
    sh(right, "cd /root/w; sed -i 's/^19$/nineteen/' text; echo right >right; echo b2 >b")
    before = sh(right, "cd /root/w; find . | sort; cat text")
    planned = merge(left, right, "--dry-run")
    assert_equal((planned["written"], planned["conflicts"]), (False, 0))
    assert_equal(sh(right, "cd /root/w; find . | sort; cat text"), before)
    done = merge(left, right)
    assert done["written"] and done["changes"] == planned["changes"], done
    assert_equal(sorted(changes(done)), sorted([
        ("changed", "/root/w/a"), ("changed", "/root/w/b"), ("changed", "/root/w/blob"), ("removed", "/root/w/d"), ("removed", "/root/w/d/deep"),
        ("removed", "/root/w/d/deep/g"), ("removed", "/root/w/d/f"), ("removed", "/root/w/gone"), ("changed", "/root/w/link"), ("added", "/root/w/new"),
        ("added", "/root/w/new\nline"), ("added", "/root/w/new/er"), ("added", "/root/w/new/er/file"), ("changed", "/root/w/text")]))
    assert_equal([each["path"] for each in done["changes"] if each["merged"]], ["/root/w/text"])
    assert_equal(sh(right, "cd /root/w; sed -n '2p;19p' text; cat a b right; stat -c %a b; readlink link; cat new/er/file 'new\nline'; ls -d d gone 2>&1 | wc -l"),
                 "two\nnineteen\na\nmore\nb2\nright\n755\nb\nn\nodd\n2")
    assert_equal(sh(right, "od -c /root/w/blob | head -1").split()[1:], ["y", "\\0"])
    assert_equal(changes(merge(left, right)), [], "a second time there is nothing to do")
    husk("promote", right)  # the winner, with the work of both


@test
def test_the_base_is_the_moment_of_the_fork():
    parent, left, right = family()
    late = fork(parent)[0]
    sh(parent, "cd /root/w; echo parent >a; rm b; echo p >p")
    later = fork(parent)[0]
    sh(left, "cd /root/w; sed -i 's/^2$/two/' text; echo left >>gone; printf 'l\\0' >blob; rm d/f; ln -sfn /nowhere/at/all link")
    sh(right, "cd /root/w; sed -i 's/^19$/nineteen/' text")
    # Against the parent as it is now, `a` and `b` would come back as changes of left.
    wanted = [("changed", "/root/w/blob"), ("removed", "/root/w/d/f"), ("changed", "/root/w/gone"), ("changed", "/root/w/link"), ("changed", "/root/w/text")]
    for target in (right, late, later, parent):
        assert_equal(changes(merge(left, target)), wanted)
    assert_equal(sh(parent, "cd /root/w; cat a p gone; ls b d/f 2>&1 | wc -l; sed -n 2p text; readlink link"), "parent\np\ngone\nleft\n2\ntwo\n/nowhere/at/all")
    # And the other way: what the parent did since the fork goes into the child.
    assert_equal(changes(merge(parent, left)), [("changed", "/root/w/a"), ("removed", "/root/w/b"), ("added", "/root/w/p")])


def state(box):
    return sh(box, "cd /root/w; find . -type f | sort | xargs -d '\\n' sha1sum; find . -type l -printf '%p %l\\n'; find . -type d | sort; ls /.husk/merge 2>/dev/null; true")


@test
def test_killed_in_the_middle():
    _, left, right = family()
    sh(left, "cd /root/w; for i in $(seq 40); do echo $i >new-$i; done; rm -r d gone; sed -i 's/^2$/two/' text; mkdir -p x/y; echo z >x/y/z; ln -sfn gone link")
    before, seen = state(right), set()
    merge(left, (done := fork(right)[0]))
    after = state(done)
    delay = 0.002
    while True:  # later each time, until one comes to its end
        with ending(start("merge", left, right, "--path", "/root")) as process:
            try:
                process.wait(delay)
            except subprocess.TimeoutExpired:
                process.kill()
            ended = process.wait() == 0
        now = "\n".join(line for line in state(right).splitlines() if not re.fullmatch(r"plan|\d+|old-\d+", line))
        assert now in (before, after), f"after {delay:.3f} s it is neither the old nor the new state"
        seen.add(now)
        if ended or now == after:
            break
        delay *= 1.35
    assert_equal(seen, {before, after})
    merge(left, right)
    assert_equal(state(right), after)
    # A merge that was killed leaves its copy of the moment of the fork, which no list shows, and which ends by its TTL. One that
    # is still being made appears a moment later.
    for _ in range(3):
        time.sleep(1)
        for each in husk("ls", "-a", "--json").json():
            if each["state"] != "ended" and "husk.moment" in each["metadata"]:
                husk("rm", "-f", each["id"])


@test
def test_conflicts():
    _, left, right = family()
    sh(left, "cd /root/w; sed -i 's/^5$/left/' text; rm a; echo left >b; printf 'l\\0' >blob; rm -r d; echo left >both; echo only >only")
    sh(right, "cd /root/w; sed -i 's/^5$/right/' text; echo right >>a; rm b; printf 'r\\0' >blob; echo mine >d/mine; echo right >both")
    before = sh(right, "cd /root/w; find . -type f | sort | xargs cat")
    done = merge(left, right, code=1)
    assert_equal((done["written"], done["conflicts"]), (False, 6))
    assert_equal(conflicts(done), {
        "/root/w/text": "changed on both sides", "/root/w/a": "removed on their side, changed on ours", "/root/w/b": "changed on their side, removed on ours",
        "/root/w/blob": "changed on both sides, and not text", "/root/w/d": "removed on their side, changed on ours", "/root/w/both": "added on both sides"})
    assert_equal(sh(right, "cd /root/w; find . -type f | sort | xargs cat"), before)
    assert_in("C /root/w/both (added on both sides)", husk("merge", left, right, "--path", "/root", code=1).text)

    copy = fork(right)[0]
    done = merge(left, copy, "--conflicts", "markers", "--base", right, code=None)  # a base that is the same as ours: theirs is taken
    assert_equal(done["conflicts"], 0)
    done = merge(left, right, "--conflicts", "markers", code=1)
    assert_equal((done["written"], done["conflicts"]), (True, 4))
    assert_in(f"<<<<<<< {right}\nright\n=======\nleft\n>>>>>>> {left}", sh(right, "cat /root/w/text"))
    assert_equal(sh(right, "cd /root/w; cat only d/mine a"), "only\nmine\na\nright")


@test
def test_ours_and_theirs():
    _, left, right = family()
    other = fork(right)[0]
    sh(left, "cd /root/w; echo left >a; echo l >l")
    for box in (right, other):
        sh(box, "cd /root/w; echo right >a")
    assert_equal(merge(left, right, "--conflicts", "ours")["conflicts"], 0)
    assert_equal(sh(right, "cat /root/w/a /root/w/l"), "right\nl")
    assert_equal(merge(left, other, "--conflicts", "theirs")["conflicts"], 0)
    assert_equal(sh(other, "cat /root/w/a /root/w/l"), "left\nl")


@test
def test_against_the_template():
    left, right = create(), create()
    sh(left, "echo new >/root/new; echo left >>/etc/issue; rm /etc/motd; rm -r /usr/share/doc; echo 1 >/etc/both")
    sh(right, "sed -i '1s/^/right\\n/' /etc/issue; echo 2 >/etc/mine; echo 2 >/etc/both; echo x >/usr/share/doc/mine")
    done = husk("merge", "--json", left, right, code=1).json()
    assert_equal(conflicts(done), {"/etc/both": "added on both sides", "/usr/share/doc": "removed on their side, changed on ours"})
    sh(right, "rm /etc/both /usr/share/doc/mine")
    done = husk("merge", "--json", left, right).json()
    assert {("added", "/root/new"), ("changed", "/etc/issue"), ("removed", "/etc/motd"), ("removed", "/usr/share/doc")} <= set(changes(done)), done
    lines = sh(right, "cat /etc/issue; ls /usr/share/doc /etc/motd 2>&1 | wc -l").splitlines()
    assert lines[0] == "right" and "left" in lines and lines[-1] == "2", lines


@test
def test_a_directory_that_ours_removed():
    left, right = create(), create()
    sh(left, "echo x >>/etc/apt/sources.list.d/mine.list")
    sh(right, "rm -rf /etc/apt")
    done = husk("merge", "--json", left, right, "--path", "/etc/apt").json()
    assert_equal(changes(done), [("added", "/etc/apt/sources.list.d/mine.list")])
    assert_equal(sh(right, "cat /etc/apt/sources.list.d/mine.list"), "x")


@test
def test_refusals():
    parent, left, right = family()
    assert_fails("merge", left, left, code=2, says="cannot be merged into itself")
    assert_fails("merge", left, right, "--base", "nobody", code=3, says="the common version: 'nobody' not found")
    assert_equal(changes(merge(left, parent, "--base", right)), [])
    sh(left, "echo l >/root/w/l; dd if=/dev/zero of=/root/w/big bs=1M count=3 2>/dev/null")
    assert_fails("merge", left, right, "--path", "/root/w", "--limit", "2M", code=1, says="more than 2 MiB; nothing was written")
    assert_equal(sh(right, "ls /root/w/l 2>&1 || true"), "ls: cannot access '/root/w/l': No such file or directory")
    sh(left, "rm /root/w/big")
    assert_equal(changes(merge(left, parent, "--base", right)), [("added", "/root/w/l")])
    husk("rm", parent)
    assert_equal(changes(merge(left, right)), [("added", "/root/w/l")], "the moment of the fork outlives the parent")


@test
def test_explore():
    box = create("--name", "explored")
    sh(box, "echo 0 >/root/best")
    branches = husk("explore", "--json", "explored", "--score", "echo noise; cat /root/best", "echo 2 >/root/best", "exit 7", "echo 30.5 >/root/best",
                    "echo none >/root/best").json()
    assert_equal([(each["score"], each["kept"], each["plan"]) for each in branches[:2]], [(30.5, True, "echo 30.5 >/root/best"), (2, False, "echo 2 >/root/best")])
    assert_equal([each["error"] for each in branches[2:]], ["the plan ended with 7", "the scoring command printed no number"])
    assert_equal(branches[0]["sandbox"], box)
    assert_equal(sh(box, "cat /root/best"), "30.5")
    assert_equal([each["id"] for each in husk("ls", "--json").json() if each["parent"] == box], [])

    table = husk("explore", "explored", "--keep", "2", "--parallel", "1", "--score", "cat /root/best", "echo 1 >/root/best", "echo 3 >/root/best",
                 "echo 2 >/root/best").text.splitlines()
    assert_equal([line.split()[0] for line in table], ["SCORE", "3", "2", "1"])
    stay = [adopt(line.split()[1]) for line in table[1:3]]
    assert_equal([sh(each, "cat /root/best") for each in stay], ["3", "2"])
    assert_equal(sh(box, "cat /root/best"), "30.5", "with more than one that stays, nothing is promoted")

    husk("explore", "explored", "--no-promote", "--budget", "1s", "--score", "echo 1", "sleep 60", code=1)
    assert_fails("explore", "explored", "true", code=2, says="--score COMMAND is missing")
    assert_fails("explore", "nobody", "--score", "echo 1", "true", code=3, says="not found")
    assert_equal(sorted(each["id"] for each in husk("ls", "--json").json() if each["parent"] == box), sorted(stay))


@test
def test_over_a_server():
    with server() as api, token("merges") as secret:
        env = {"HUSK_HOST": f"http://127.0.0.1:{api.port}", "HUSK_TOKEN": secret, "HUSK_HOME": None}
        parent = adopt(husk("create", env=env).text.strip())
        left, right = (adopt(line) for line in husk("fork", "-n", "2", parent, env=env).text.split())
        husk("exec", left, "--", "sh", "-c", "echo l >/root/l", env=env)
        done = husk("merge", "--json", left, right, env=env).json()
        assert ("added", "/root/l") in changes(done) and done["written"] and done["target"] == right, done
        answer = api.post(f"/v1/sandboxes/{right}/merge", {"from": left, "dry_run": True}, token=secret).json()
        assert_equal((answer["changes"], answer["conflicts"], answer["written"]), ([], 0, False))
        api.post(f"/v1/sandboxes/{right}/merge", {}, status=400, token=secret)
        body = {"plans": ["echo 1 >/root/n", "echo 5 >/root/n", "exit 3"], "score": "cat /root/n"}
        branches = api.post(f"/v1/sandboxes/{left}/explore", body, token=secret).json()["branches"]
        assert_equal([(each["score"], each["kept"]) for each in branches], [(5, True), (1, False), (None, False)])
        assert_equal((branches[0]["sandbox"], husk("exec", left, "--", "cat", "/root/n", env=env).text), (left, "5\n"))
        assert_in("score is missing", api.post(f"/v1/sandboxes/{left}/explore", {"plans": ["true"]}, status=400, token=secret).text)
        api.post(f"/v1/sandboxes/{right}/merge", {"from": left, "conflicts": "sometimes"}, status=400, token=secret)


main()
