#!/usr/bin/env python3
"""husk diff: the files of a sandbox against its template, against another sandbox, and against checkpoints, snapshots and the moment of
a fork; as they are, as a patch, over the API, from elsewhere and over MCP; after forks and sleep; with what a guest can make of names
and links."""

import base64
import json
import os
import subprocess

from lib.harness import (
    HOME, adopt, assert_equal, assert_fails, assert_in, create, fork, husk, inspect, main, scratch, sh, test,
)
from lib.http import server
from lib.roots import small_root


def diff(*words):
    return [(each["change"], each["path"]) for each in husk("diff", "--json", *words).json()]


def lines(*words):
    return husk("diff", *words).text.splitlines()


@test
def test_a_fresh_one_is_its_template():
    assert_equal(diff(create()), [])


@test
def test_against_the_template():
    box = create()
    sh(box, """
        echo hi >/root/new; mkdir -p /root/deep/er; echo x >/root/deep/er/file; ln -s /nowhere /root/link
        echo more >>/etc/passwd; chmod 600 /etc/group; touch /etc/fstab /etc/shells; chown 1000 /etc/issue
        rm /etc/motd; rm -rf /usr/share/doc; rm -rf /etc/apt && mkdir /etc/apt && echo 1 >/etc/apt/mine
        rm /etc/profile && mkdir /etc/profile
    """)
    found = dict((path, change) for change, path in diff(box))
    wanted = {
        "/root/new": "added", "/root/deep": "added", "/root/deep/er": "added", "/root/deep/er/file": "added", "/root/link": "added",
        "/etc/passwd": "changed", "/etc/group": "changed", "/etc/issue": "changed", "/etc/profile": "changed",
        "/etc/motd": "removed", "/usr/share/doc": "removed", "/etc/apt/mine": "added", "/etc/apt/sources.list.d": "removed",
    }
    assert_equal({path: found.get(path) for path in wanted}, wanted)
    for path in ("/etc/fstab", "/etc/shells", "/etc/apt", "/etc", "/etc/hostname", "/usr/bin"):  # touched, or Husk's own
        assert path not in found, (path, found[path])
    assert_equal(lines("--path", "/root/deep", box), ["A /root/deep/", "A /root/deep/er/", "A /root/deep/er/file"])
    assert_equal(lines("--path", "/root/deep/er/", "--name-only", box), ["/root/deep/er/", "/root/deep/er/file"])
    assert_equal(lines("--path", "/usr/bin", box), [])
    # Sleep and forks keep it.
    husk("hibernate", box)
    assert_equal(dict((path, change) for change, path in diff(box)), found)
    child = fork(box)[0]
    assert_equal((diff(child), diff("base", child)), ([], diff(box)))


@test
def test_two_forks():
    box = create()
    sh(box, "mkdir /root/w; cd /root/w; for i in $(seq 50); do echo $i >f$i; done; printf 'a\\nb\\nc\\n' >text; echo old >gone")
    left, right = fork(box, "-n", "2")
    sh(left, "cd /root/w; printf 'a\\nB\\nc\\n' >text; rm gone; echo new >only-left; cp -p f7 x; cat x >f7; rm x; rm -rf /usr/share/doc")
    sh(right, "cd /root/w; echo 1 >>f1; chmod 700 f2; echo 'a' >f3; rm -rf /etc/apt")
    assert_equal(diff(box, left), [
        ("removed", "/root/w/gone"), ("added", "/root/w/only-left"), ("changed", "/root/w/text"), ("removed", "/usr/share/doc")])
    assert_equal(diff(left, box), [
        ("added", "/root/w/gone"), ("removed", "/root/w/only-left"), ("changed", "/root/w/text"), ("added", "/usr/share/doc")])
    assert_equal(diff(left, right), [
        ("removed", "/etc/apt"), ("changed", "/root/w/f1"), ("changed", "/root/w/f2"), ("changed", "/root/w/f3"),
        ("added", "/root/w/gone"), ("removed", "/root/w/only-left"), ("changed", "/root/w/text"), ("added", "/usr/share/doc")])
    assert_equal(diff(left, left), [])


LOOK = """
import hashlib, json, os
found = {}
for folder, folders, names in os.walk('/root/w'):
    for name in folders + names:
        path = os.path.join(folder, name)
        status = os.lstat(path)
        text = os.readlink(path) if os.path.islink(path) else '' if os.path.isdir(path) else open(path).read()
        found[path] = [status.st_mode, status.st_uid, text]
print(json.dumps(found))
"""


@test
def test_forks_that_keep_changing():
    """The first diff looks at every file, later ones at what the agents have noted: whatever happens, both must find the same."""
    box = create()
    sh(box, "for d in a b c d e; do mkdir -p /root/w/$d/in; for i in $(seq 30); do echo $d$i >/root/w/$d/f$i; echo $i >/root/w/$d/in/$i; done; done; ln /root/w/a/f1 /root/w/b/other")
    left, right = fork(box, "-n", "2")
    steps = [
        (right, "true"),
        (right, "echo 1 >>a/f2; chmod 700 a/in/3"),
        (left, "echo 1 >>a/f2; touch a/f3; cat a/f4 >x; cat x >a/f4; rm x"),
        (right, "echo shared >>b/other"),  # two names of one file, in two directories
        (right, "ln c/f5 d/alias; echo aliased >>d/alias"),
        (right, "mv c moved; echo 1 >>moved/in/7"),
        (left, "mv d t; mv e d; mv t e"),
        (right, "mv moved c; rm -rf e; mkdir e; echo new >e/f1"),
        (right, "mkdir -p n/e/w; echo 1 >n/e/w/f; ln -s nowhere a/link; rm a/f9; mv a/f10 n/"),
        (right, "for i in $(seq 600); do echo $i >b/many$i; done; echo 1 >>b/f1"),  # more than is noted
        (right, "echo 2 >>b/f1; rm -f b/many*; echo 2 >>n/e/w/f"),
        (left, "rm -rf ../w/*; echo back >a"),
    ]
    for turn, (where, script) in enumerate(steps):
        sh(where, f"cd /root/w; {script}")
        if turn == 5:
            husk("hibernate", right)
        states = [json.loads(husk("exec", each, "--", "python3", "-c", LOOK).text) for each in (left, right)]
        wanted = sorted(path for path in {*states[0], *states[1]} if states[0].get(path) != states[1].get(path))
        assert_equal(sorted(path for _, path in diff(left, right)), wanted, script)
    child = fork(right)[0]
    sh(child, "cd /root/w; echo 3 >>b/f1; rm d/alias; mv n a/")
    assert_equal(diff("--path", "/root/w/b", child), [("changed", "/root/w/b/f1")])
    assert_equal([each for each in diff(child) if "/root/w/n" in each[1]], [("removed", path) for path in
                 ("/root/w/n", "/root/w/n/e", "/root/w/n/e/w", "/root/w/n/e/w/f", "/root/w/n/f10")])
    sh(child, "rm -rf /root/w/b")
    assert_equal(diff("--path", "/root/w/b/f1", child), [("removed", "/root/w/b/f1")])


@test
def test_below_a_directory_that_the_other_has_removed():
    box = create()
    left, right = fork(box, "-n", "2")
    sh(left, "rm -rf /etc/apt")
    sh(right, "echo x >/etc/apt/mine; echo y >>/etc/apt/apt.conf.d/01autoremove; rm -rf /etc/apt/keyrings")
    found = diff(left, right)
    assert ("added", "/etc/apt/mine") in found and ("added", "/etc/apt") in found, found
    assert all(change == "added" for change, _ in found), found
    back = diff(right, left)
    assert ("removed", "/etc/apt") in back and ("removed", "/etc/apt/mine") in back, back
    assert all(change == "removed" for change, _ in back), back


@test
def test_as_a_patch():
    box = create()
    sh(box, "mkdir /root/p; cd /root/p; seq 20 >numbers; echo old >gone; head -c 2000000 /dev/zero >large; printf '\\0\\1' >bin")
    child = fork(box)[0]
    sh(child, "cd /root/p; sed -i 's/^7$/seven/' numbers; rm gone; echo new >fresh; printf '\\0\\2' >bin; echo >>large; chmod +x fresh")
    result = husk("diff", "--patch", "--path", "/root/p", box, child)
    for piece in ("--- a/root/p/numbers\n+++ b/root/p/numbers\n", "\n-7\n+seven\n", "--- /dev/null\n+++ b/root/p/fresh\n",
                  "new mode 0755", "+++ /dev/null\n", "-old\n", "Binary files a/root/p/bin and b/root/p/bin differ"):
        assert_in(piece, result.text)
    assert_in("/root/p/large is larger than 1048576 bytes", result.error)
    # patch(1) makes one of the other.
    with scratch() as directory:
        husk("cp", f"{box}:/root/p", str(directory / "work"))
        (directory / "p.patch").write_bytes(result.out)
        subprocess.run(["patch", "-s", "-p3", "-d", str(directory / "work"), "-i", str(directory / "p.patch")], check=True)
        assert_equal((directory / "work/numbers").read_text(encoding="ascii").split()[6], "seven")
        assert not (directory / "work/gone").exists() and (directory / "work/fresh").exists()
    sh(box, "echo end >>/etc/issue")
    assert_in("+end\n", husk("diff", "-p", "--path", "/etc/issue", box).text)


@test
def test_any_two_states():
    others = set(os.listdir(f"{HOME}/snapshots"))
    box = create("--name", "states")
    # Something that writes all the time: a copy of a state must stand still.
    sh(box, "cd /root; seq 9 >a; echo b >b; ln -s a link; (while :; do date +%N >/root/tick; sleep 0.01; done) >/dev/null 2>&1 & echo $! >/root/pid; sleep 0.1")
    husk("checkpoint", box, "first")
    snapshot = husk("snapshot", "create", box).text.strip()
    sh(box, "kill $(cat /root/pid); cd /root; sleep 0.1; rm tick pid; sed -i 's/^5$/five/' a; chmod 755 b; chown 1000:1000 b; ln -sfn b link")
    child = fork(box)[0]
    sh(box, "echo later >/root/later")
    sh(child, "cd /root; echo mine >mine; rm a")
    assert_equal(diff(child), [("removed", "/root/a"), ("added", "/root/mine")])  # since the fork, whatever the parent did after it
    assert_equal(diff("base", child, "--path", "/root/mine"), [("added", "/root/mine")])
    wanted = ["M /root/a", "M /root/b (mode 0644 to 0755, owner 0:0 to 1000:1000)", "A /root/later", "M /root/link (link a to b)", "D /root/pid", "D /root/tick"]
    for before in ("states@first", "states@1", snapshot):
        assert_equal(lines(before, "states"), wanted)
    assert_equal([each for each in diff(snapshot, "states@first", "--path", "/root") if each[1] != "/root/tick"], [])
    assert_equal(diff("states", "states@first")[2], ("removed", "/root/later"))
    assert_equal(diff("states", "base", "--path", "/root/a"), [("removed", "/root/a")])
    stat = lines("--stat", "states@first", "states")
    assert_equal((stat[0].split()[:2], stat[-1].rsplit(",", 1)[0]), (["+1", "-1"], "6 files, 2 lines added"))  # the tick may have none
    assert_in("\n-5\n+five\n", husk("diff", "-p", "states@first", "states").text)
    assert_in("\n-five\n", husk("diff", "-p", child).text)
    changed = {each["path"]: each for each in husk("diff", "--json", snapshot, "states").json()}
    assert_equal([changed["/root/b"][name] for name in ("old_mode", "mode", "old_uid", "uid", "old_type")], ["0644", "0755", 0, 1000, "file"])
    assert_equal((changed["/root/link"]["old_target"], changed["/root/link"]["target"], changed["/root/later"]["old_mode"]), ("a", "b", None))
    # A sandbox from a checkpoint goes on from there; nothing is left of the copies.
    past = create("--from", "states@first")
    assert_equal((sh(past, "cat /root/a | sed -n 5p"), inspect(past)["parent"]), ("5", box))
    assert_equal(diff(past, "--path", "/root/a"), [])
    assert_equal([each["id"] for each in husk("ls", "--json").json() if "husk.moment" in each["metadata"]], [])
    assert_fails("diff", "states@7", box, code=3, says="no checkpoint '7'")
    # The moment of a fork is kept as long as somebody began with it.
    husk("rm", child)
    assert_equal(set(os.listdir(f"{HOME}/snapshots")) - others - {snapshot}, set(), "the moment of the fork is gone")
    husk("snapshot", "rm", snapshot)


@test
def test_a_machine_that_has_worked():
    """Its image is large where the disk is part of it, and the moment of its fork is kept all the same."""
    box = create()
    sh(box, "head -c 600M /dev/urandom >/root/large")
    [child] = fork(box)
    sh(child, "echo new >/root/new")
    assert_equal(diff(child), [("added", "/root/new")])
    assert_equal(husk("merge", "--json", child, box).json()["written"], True)
    assert_equal(sh(box, "cat /root/new"), "new")
    husk("rm", box, child)


@test
def test_packages_and_processes():
    box = create()
    husk("checkpoint", box)
    sh(box, """
        mkdir -p /tmp/p/DEBIAN /usr/lib/python3/dist-packages/demo-1.5.dist-info /srv/app/node_modules/left-pad
        printf 'Package: husk-demo\\nVersion: 1.0\\nArchitecture: all\\nMaintainer: m\\nDescription: d\\n' >/tmp/p/DEBIAN/control
        dpkg-deb -b /tmp/p /tmp/p.deb >/dev/null && dpkg -i /tmp/p.deb >/dev/null
        echo '{"name": "left-pad", "version": "1.3.0"}' >/srv/app/node_modules/left-pad/package.json
        (python3 -c 'import socket, time; s = socket.socket(); s.bind(("127.0.0.1", 8765)); s.listen(); time.sleep(600)' >/dev/null 2>&1 & echo $! >/tmp/pid)
        until grep -q 223D /proc/net/tcp; do sleep 0.05; done""")
    assert_equal(lines("--packages", f"{box}@1", box), ["A deb     husk-demo 1.0", "A npm     left-pad 1.3.0", "A pip     demo 1.5"])
    found = lines("--processes", f"{box}@1", box)
    assert_equal(found[0], "A port    127.0.0.1:8765")
    assert_in("A process python3 -c import socket", found[1])
    husk("checkpoint", box)
    sh(box, "sed -i 's/1.3.0/1.4.0/' /srv/app/node_modules/left-pad/package.json; dpkg -P husk-demo >/dev/null; kill $(cat /tmp/pid); sleep 0.1")
    assert_equal(lines("--packages", f"{box}@2", box), ["D deb     husk-demo 1.0", "M npm     left-pad 1.3.0 to 1.4.0"])
    assert_equal([line[:10] for line in lines("--processes", f"{box}@2", box)], ["D port    ", "D process "])  # of the copy, whose processes are still
    with server() as huskd:
        found = huskd.get(f"/v1/sandboxes/{box}/diff/system?processes=false").json()["differences"]
        assert_equal([(each["kind"], each["name"], each["after"]) for each in found], [("npm", "left-pad", "1.4.0"), ("pip", "demo", "1.5")])
        far = {"HUSK_HOST": f"unix://{huskd.socket_path}"}
        assert_equal(husk("diff", "--packages", box, env=far).text, husk("diff", "--packages", box).text)
    assert_fails("diff", "--packages", "--stat", box, code=2, says="--packages")


@test
def test_names_and_links_of_a_hostile_guest():
    box = create()
    sh(box, r"""
        cd /root; mkdir 'a b' "$(printf 'new\nline')"; echo 1 >"$(printf 'esc\033[31m')"; printf x >"$(printf '\377')"
        ln -s / loop; ln -s /etc/shadow secret; mkfifo pipe; mkdir -p d; mount -t tmpfs none d; echo hidden >d/inside
        rm -rf /etc/apt; ln -s /proc /etc/apt
    """)
    found = husk("diff", "--json", box).json()
    paths = [base64.b64decode(each["path_base64"]) if "path_base64" in each else each["path"].encode() for each in found]
    for name in (b"/root/a b", b"/root/new\nline", b"/root/esc\033[31m", b"/root/\377", b"/root/loop", b"/root/pipe"):
        assert name in paths, (name, paths)
    assert not any(path.startswith((b"/root/loop/", b"/root/d/", b"/proc")) for path in paths), paths
    assert b"\033" not in husk("diff", box).out
    husk("diff", "-p", box)
    # As deep as it gets.
    sh(box, "python3 -c \"import os\nos.chdir('/root')\nfor i in range(600):\n os.mkdir('d'*5); os.chdir('d'*5)\n\"")
    assert_fails("diff", box, code=1, says=["directories deep"])


@test
def test_refusals():
    box, ended = create(), create()
    husk("rm", ended)
    assert_fails("diff", box, "nobody", code=3, says="nobody")
    assert_fails("diff", "--path", "root", box, code=2, says="path")
    assert_fails("diff", "-p", "--json", box, code=2, says="--json")
    assert_fails("diff", box, box, box, code=2, says="diff")
    assert_fails("diff", ended, code=None, says=ended)
    with scratch() as directory:
        husk("template", "build", "diff-other", "--rootfs", str(small_root(directory)))
    other = create("-t", "diff-other")
    assert_fails("diff", box, other, code=2, says=["template 'base'", "same build"])
    husk("rm", other)
    husk("template", "rm", "diff-other")
    assert_equal(inspect(box)["state"], "running")


@test
def test_over_the_api_and_from_elsewhere():
    with server() as huskd:
        box = huskd.create()["id"]
        sh(box, "echo x >/root/x")
        changes = huskd.get(f"/v1/sandboxes/{box}/diff").json()["changes"]
        assert_equal([(each["path"], each["change"], each["size"], each["type"]) for each in changes], [("/root/x", "added", 2, "file")])
        child = adopt(huskd.post(f"/v1/sandboxes/{box}/fork", status=201).json()["sandboxes"][0]["id"])
        sh(child, "echo y >/root/x; echo z >/etc/z")
        changes = huskd.get(f"/v1/sandboxes/{child}/diff?against={box}&path=/root").json()["changes"]
        assert_equal([(each["path"], each["change"]) for each in changes], [("/root/x", "changed")])
        huskd.get(f"/v1/sandboxes/{child}/diff?with={box}", status=400)
        huskd.get(f"/v1/sandboxes/{child}/diff?against=nobody", status=404)
        far = {"HUSK_HOST": f"unix://{huskd.socket_path}"}
        assert_equal(husk("diff", "--json", box, child, env=far).json(), husk("diff", "--json", box, child).json())
        assert_equal(husk("diff", "-p", box, child, env=far).text, husk("diff", "-p", box, child).text)


if __name__ == "__main__":
    main("base")
