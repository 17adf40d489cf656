#!/usr/bin/env python3
# timeout: 900
"""A directory of the caller as a workspace: it goes in without what git ignores, its changes come back three-way, all or nothing, and
nothing that a hostile guest does to names, links and git reaches beyond it; killed in the middle, each file is old or new, and another
apply completes it."""

import contextlib
import os
import pathlib
import signal
import stat
import subprocess
import threading
import time

from lib.harness import (
    HOME, HUSK, adopt, assert_equal, assert_fails, assert_in, create, environment, fork, husk, main, scratch, sh, start, test, until,
)
from lib.http import server, token

MOMENTS = int(os.environ.get("HUSK_MOMENTS", "12"))


def git(directory, *words):
    return subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *words], cwd=directory, check=True, text=True,
                          capture_output=True).stdout


def write(directory, **files):
    for name, content in files.items():
        path = pathlib.Path(directory, name.replace("__", "/").replace("_dot_", "."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def tree(directory, git_too=False):
    """{path: content, target or None} of everything below, as bytes."""
    found = {}
    for folder, folders, names in os.walk(os.fsencode(directory)):
        if not git_too and b".git" in folders:
            folders.remove(b".git")
        for name in names + folders:
            path = os.path.join(folder, name)
            key = os.path.relpath(path, os.fsencode(directory))
            found[key] = os.readlink(path) if os.path.islink(path) else None if os.path.isdir(path) else open(path, "rb").read()
    return found


@contextlib.contextmanager
def workspace(*options, repository=True):
    """(directory, sandbox)"""
    with scratch() as top:
        directory = os.path.join(top, "work")
        os.mkdir(directory)
        lines = "".join(f"line {number}\n" for number in range(1, 21))
        write(directory, text_dot_txt=lines, keep="keep\n", gone="gone\n", blob=b"a\0b", src__main_dot_c="int main;\n", _dot_gitignore="*.o\nskip/\n")
        os.chmod(os.path.join(directory, "keep"), 0o755)
        os.symlink("src/main.c", os.path.join(directory, "link"))
        if repository:
            git(directory, "init", "-q")
            git(directory, "add", "-A")
            git(directory, "commit", "-qm", "first")
        write(directory, a_dot_o="object", skip__x="skipped", untracked="new\n")
        yield directory, create("--workspace", directory, *options)


def apply(box, *words, code=0):
    return husk("apply", "--json", box, *words, code=code).json()


def changes(done):
    return [(each["change"], each["path"]) for each in done["changes"]]


def inside(box, script):
    return sh(box, f"cd /workspace; {script}")


# ---- in and back ----


@test
def test_in_and_back():
    with workspace() as (directory, box):
        assert_equal(inside(box, "ls -A; git log --format=%s; git status --short"), "\n".join(
            [".git", ".gitignore", "blob", "gone", "keep", "link", "src", "text.txt", "untracked", "first", "?? untracked"]))
        assert_equal(husk("history", "--json", box).json()[0]["label"], "workspace")
        assert_equal(husk("diff", "--workspace", box).text, "")
        assert_equal(changes(apply(box)), [])

        inside(box, """
            sed -i 's/line 3/LINE 3/' text.txt; rm gone; mkdir -p new/dir; echo hi >new/dir/file; chmod 600 keep; ln -s ../keep src/to-keep
            printf 'x\\0y' >blob; echo o >b.o; mkdir skip; echo s >skip/y; touch untracked; echo odd >"$(printf 'new\\nline')"
            printf 'c\\0\\377' >"$(printf 'byte\\377')"
        """)
        patch = husk("diff", "--workspace", box).text
        assert_in("-line 3\n+LINE 3\n", patch)
        assert_in("deleted file mode 100644\n--- a/gone\n", patch)
        assert_in('+++ "b/new\\012line"', patch)
        before = tree(directory, git_too=True)
        planned = apply(box, "--dry-run")
        assert_equal((planned["written"], planned["conflicts"]), (False, 0))
        assert_equal(tree(directory, git_too=True), before, "a dry run writes nothing")
        done = apply(box)
        assert_equal(done["changes"], planned["changes"])
        assert done["written"] and done["ignored"] == 3, done
        after = tree(directory)
        assert_equal(after[b"text.txt"].split(b"\n")[2], b"LINE 3")
        assert b"gone" not in after and after[b"new/dir/file"] == b"hi\n" and after[b"src/to-keep"] == b"../keep"
        assert after[b"new\nline"] == b"odd\n" and after[b"byte\xff"] == b"c\0\xff" and after[b"blob"] == b"x\0y"
        assert b"b.o" not in after and after[b"a.o"] == b"object" and b"skip/y" not in after
        assert_equal(stat.S_IMODE(os.stat(f"{directory}/keep").st_mode), 0o600)
        assert not os.path.exists(f"{directory}/.husk-apply")
        assert_equal(changes(apply(box)), [], "a second time there is nothing left to do")
        # The base has moved on: the next change is against what was applied.
        inside(box, "echo more >>new/dir/file; rm -r src")
        assert_equal(changes(apply(box)), [("changed", "new/dir/file"), ("removed", "src"), ("removed", "src/main.c"), ("removed", "src/to-keep")])
        assert not os.path.exists(f"{directory}/src")


@test
def test_credentials_of_git_stay():
    with scratch() as directory:
        git(directory, "init", "-q")
        git(directory, "config", "remote.origin.url", "https://ada:token-in-a-url@example.com/r.git")
        git(directory, "config", "http.https://example.com/.extraheader", "Authorization: Basic header-value")
        write(directory, file="text\n")
        made = husk("create", "--workspace", directory)
        box = adopt(made.text.strip())
        assert_in(".git/config", made.error)
        assert_equal(inside(box, "git config remote.origin.url"), "https://example.com/r.git")
        assert_equal(inside(box, "grep -rE 'token-in-a-url|header-value' . | wc -l"), "0")
        assert_in("token-in-a-url", git(directory, "config", "remote.origin.url"), "the caller's own is as it was")


@test
def test_the_patch_applies():
    with workspace() as (directory, box):
        inside(box, "sed -i 's/line 9/line nine/' text.txt; rm gone; echo n >n; ln -s text.txt l; chmod 700 src/main.c; echo ' ' >>src/main.c")
        patch = husk("diff", "--workspace", box).text
        subprocess.run(["git", "apply", "--whitespace=nowarn"], cwd=directory, input=patch.encode(), check=True)
        assert_equal(open(f"{directory}/text.txt").read().split("\n")[8], "line nine")
        assert_equal(os.readlink(f"{directory}/l"), "text.txt")
        assert not os.path.exists(f"{directory}/gone")


@test
def test_without_git():
    with workspace("--workspace-all", repository=False) as (directory, box):
        os.mkdir(f"{directory}/mine")
        assert_in("a.o", inside(box, "ls"))
        inside(box, "echo 2 >c.o; mkdir empty; rm -r skip")
        assert_equal(changes(apply(box)), [("added", "c.o"), ("added", "empty"), ("removed", "skip"), ("removed", "skip/x")])
        assert os.path.isdir(f"{directory}/empty") and os.path.isdir(f"{directory}/mine")


@test
def test_run():
    with workspace() as (directory, _):
        husk("run", "--workspace", directory, "--apply", "--", "sh", "-c", "pwd >where; echo done >result")
        assert_equal(open(f"{directory}/where").read(), "/workspace\n")
        husk("run", "--workspace", f"{directory}:/srv/here", "--apply", "--", "sh", "-c", "echo no >result; exit 3", code=3)
        assert_equal(open(f"{directory}/result").read(), "done\n")
        assert_fails("run", "--apply", "--", "true", code=125, says="--apply needs --workspace DIR")
        assert_fails("create", "--workspace", f"{directory}/nowhere", code=3, says="nowhere")
        assert_fails("create", "--workspace-all", code=2, says="--workspace-all needs --workspace")
        box = create()
        assert_fails("apply", box, code=3, says="has no workspace")


# ---- both sides ----


@test
def test_both_sides_changed():
    with workspace() as (directory, box):
        inside(box, "sed -i 's/line 2$/line two/' text.txt; echo g >>gone; rm untracked; echo s >both; printf 'b\\0' >blob; chmod 700 src/main.c")
        text = open(f"{directory}/text.txt").read().replace("line 19", "line nineteen")
        write(directory, text_dot_txt=text, src__main_dot_c="int other;\n")
        done = apply(box)
        assert_equal([(each["path"], each["merged"]) for each in done["changes"] if each["merged"]], [("text.txt", True)])
        lines = open(f"{directory}/text.txt").read().split("\n")
        assert_equal((lines[1], lines[18]), ("line two", "line nineteen"))
        assert_equal(open(f"{directory}/src/main.c").read(), "int other;\n")
        assert_equal(stat.S_IMODE(os.stat(f"{directory}/src/main.c").st_mode), 0o700)


@test
def test_conflicts():
    with workspace() as (directory, box):
        inside(box, "sed -i 's/line 5$/line guest/' text.txt; echo g >>gone; rm keep; echo guest >both; printf 'guest\\0' >blob; mkdir clash; echo f >clash/f")
        write(directory, text_dot_txt=open(f"{directory}/text.txt").read().replace("line 5\n", "line host\n"), keep="host\n", both="host\n",
              blob=b"host\0", clash="a file\n")
        os.unlink(f"{directory}/gone")
        before = tree(directory)
        done = apply(box, code=1)
        assert_equal((done["written"], done["conflicts"]), (False, 7))
        reasons = {each["path"]: each["conflict"] for each in done["changes"]}
        assert_equal(reasons, {
            "text.txt": "changed on both sides", "gone": "changed in the sandbox, removed here", "keep": "removed in the sandbox, changed here",
            "both": "added on both sides", "blob": "changed on both sides, and not text", "clash": "of different types on the two sides",
            "clash/f": "below what is a file or a link here"})
        assert_equal(tree(directory), before)
        told = husk("apply", box, code=1)
        assert_in("C both (added on both sides)", told.text)
        assert_in("7 conflicts", told.error)

        inside(box, "rm -r clash")
        done = apply(box, "--conflicts", "markers", code=1)
        assert_equal((done["written"], done["conflicts"]), (True, 3))
        text = open(f"{directory}/text.txt").read()
        assert_in("<<<<<<< here\nline host\n=======\nline guest\n>>>>>>> ", text)
        assert_in("<<<<<<< here\nhost\n=======\nguest\n", open(f"{directory}/both").read())
        assert_equal(open(f"{directory}/keep").read(), "host\n")
        done = apply(box, "--conflicts", "theirs")
        assert_equal({each["path"] for each in done["changes"]}, {"gone", "keep", "blob"}, "what was marked is not told again")
        assert_equal(open(f"{directory}/blob", "rb").read(), b"guest\0")
        assert not os.path.exists(f"{directory}/keep")


@test
def test_ours():
    with workspace() as (directory, box):
        inside(box, "echo guest >keep; echo other >other")
        write(directory, keep="host\n")
        done = apply(box, "--conflicts", "ours")
        assert_equal((done["written"], done["conflicts"]), (True, 0))
        assert_equal((open(f"{directory}/keep").read(), open(f"{directory}/other").read()), ("host\n", "other\n"))
        assert_equal(changes(apply(box)), [])


@test
def test_types_change():
    with workspace() as (directory, box):
        inside(box, "rm keep; mkdir keep; echo f >keep/f; rm -r src; echo file >src; rm link; mkdir link; echo l >link/l; rm gone; ln -s text.txt gone")
        apply(box)
        found = tree(directory)
        assert_equal((found[b"keep/f"], found[b"src"], found[b"link/l"], found[b"gone"]), (b"f\n", b"file\n", b"l\n", b"text.txt"))
        # A directory that is not empty here stays, and nothing of the rest is written.
        inside(box, "rm -r keep; echo file >keep; echo x >>untracked")
        write(directory, keep__mine="mine\n")
        before = tree(directory)
        assert_fails("apply", box, code=1, says="cannot remove directory 'keep'")
        assert_equal(tree(directory), before, "all or nothing")


@test
def test_moved_directories_keep_their_times():
    with scratch() as top:
        for folder in ("a", "b", "c/deep"):
            write(top, **{f"{folder.replace('/', '__')}__same": f"{folder}\n", f"{folder.replace('/', '__')}__only_{folder[0]}": "x\n"})
        write(top, loose="loose\n", over="over\n")
        box = create("--workspace", top)
        # a and b change places, c moves into a new directory, and a file takes the place of another: no content is written.
        inside(box, "mv a t; mv b a; mv t b; mkdir new; mv c new/moved; mv loose over; mkdir /elsewhere; touch -d 2001-01-01 /elsewhere/old; mv /elsewhere in")
        def apply_and_compare():
            apply(box)
            wanted = inside(box, "find . ! -name . -type f -exec sh -c 'echo $1 $(cat $1)' - {} ';' | sort").splitlines()
            assert_equal(sorted(f"./{name.decode()} {' '.join(content.decode().split())}".strip() for name, content in tree(top).items() if content is not None),
                         sorted(line.strip() for line in wanted))

        apply_and_compare()
        assert not os.path.exists(f"{top}/c")
        assert_equal(changes(apply(box)), [])
        # Later applies look only at what was noted: another name of a file, and directories that have their old names again.
        inside(box, "ln a/same new/alias; echo through >>new/alias; mv b t; mv a b; mv t a; echo more >>a/same")
        apply_and_compare()
        inside(box, "echo again >>new/alias; rm -r a; mkdir a; echo made >a/same")
        apply_and_compare()


@test
def test_rewound():
    with scratch() as top:
        write(top, one="1\n", two="2\n", three="3\n")
        box = create("--workspace", top)
        inside(box, "echo changed >one; rm two; echo new >four")
        apply(box)
        husk("rewind", box, "workspace")
        assert_equal(changes(apply(box)), [("removed", "four"), ("changed", "one"), ("added", "two")])
        assert_equal(tree(top), {b"one": b"1\n", b"two": b"2\n", b"three": b"3\n"})


# ---- a hostile guest ----


@test
def test_nothing_outside():
    with workspace() as (directory, box):
        outside = os.path.dirname(directory)
        write(outside, secret="secret\n")
        inside(box, """
            ln -s /etc/passwd absolute; ln -s ../secret up; ln -s src/../../secret round; mkdir d; ln -s ../../secret d/up
            mkfifo pipe; mknod device c 1 3; echo '#!/bin/sh' >.git/hooks/pre-commit; chmod 755 .git/hooks/pre-commit
            git config core.fsmonitor /tmp/evil; mkdir -p sub/.GIT; echo x >sub/.GIT/config; echo '[core]' >src/.git; mkdir .husk-apply; echo x >.husk-apply/1
            cp /bin/true setuid; chmod 6755 setuid; ln -s .git/hooks into-git; echo fine >fine
        """)
        config = tree(directory, git_too=True)
        done = apply(box)
        assert_equal(changes(done), [("added", "d"), ("added", "fine"), ("added", "setuid"), ("added", "sub")])
        left = {each["path"] for each in done["left_out"]}
        assert left >= {"absolute", "up", "round", "d/up", "pipe", ".git", "sub/.GIT", "src/.git", ".husk-apply", ".husk-apply/1", "into-git"}, left
        after = tree(directory, git_too=True)
        assert_equal({path: after[path] for path in config}, config, "what was there is as it was")
        assert_equal(stat.S_IMODE(os.stat(f"{directory}/setuid").st_mode), 0o755)
        assert_equal(open(f"{outside}/secret").read(), "secret\n")


@test
def test_links_of_the_host():
    with workspace() as (directory, box):
        outside = f"{os.path.dirname(directory)}/outside"
        os.mkdir(outside)
        write(outside, **{"main_dot_c": "int outside;\n"})
        inside(box, "echo changed >src/main.c; echo new >src/new")
        # The directory of a changed file becomes a link that leads out.
        os.rename(f"{directory}/src", f"{directory}/src2")
        os.symlink(outside, f"{directory}/src")
        done = apply(box, "--conflicts", "theirs", code=1)
        assert_equal(({each["path"] for each in done["changes"] if each["conflict"]}, done["written"]), ({"src/main.c", "src/new"}, False))
        assert_equal(tree(outside), {b"main.c": b"int outside;\n"})


@test
def test_bounds():
    with workspace() as (directory, box):
        before = tree(directory)
        inside(box, "dd if=/dev/zero of=huge bs=1M count=3 2>/dev/null")
        assert_fails("apply", "--limit", "2M", box, code=1, says="more than 2 MiB; nothing was written")
        assert_equal(tree(directory), before)
        inside(box, "rm huge; cd /; rm -rf /workspace")
        assert_fails("apply", box, code=1, says="has no directory '/workspace' any more")
        assert_equal(tree(directory), before)
        assert_fails("create", "--workspace", f"{directory}:/", code=2, says="not an absolute path of a directory below /")


# ---- the host's troubles ----


@test
def test_disk_full():
    with scratch() as top:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", top], check=True)
        try:
            write(top, one="1\n", two="2\n")
            box = create("--workspace", top)
            inside(box, "echo changed >one; dd if=/dev/zero of=big bs=1M count=2 2>/dev/null")
            assert_fails("apply", box, code=1, says="No space left on device")
            assert_equal(tree(top), {b"one": b"1\n", b"two": b"2\n"})
            inside(box, "rm big")
            assert_equal(changes(apply(box)), [("changed", "one")])
        finally:
            subprocess.run(["umount", top], check=True)


@test
def test_killed_in_the_middle():
    with scratch() as top:
        old = {f"f{number:03}": f"old {number}\n" for number in range(60)}
        write(top, **old)
        box = create("--workspace", top)
        inside(box, "for f in f*; do echo new >$f; done; rm f00*; for i in $(seq 20); do mkdir d$i; echo new >d$i/x; done")
        killed = 0
        for moment in range(MOMENTS):
            process = start("apply", box, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stage = f"{top}/.husk-apply"
            deadline = time.monotonic() + 20
            # The later moments wait for the first file that has changed.
            while process.poll() is None and time.monotonic() < deadline:
                if moment % 2 == 0 and os.path.exists(stage) or moment % 2 and (not os.path.exists(f"{top}/f000") or os.path.exists(f"{top}/d1")):
                    break
            time.sleep(moment * 0.003)
            process.kill()
            killed += process.wait() == -signal.SIGKILL
            for name, content in tree(top).items():
                if name.startswith(b"f"):
                    assert content in (old[name.decode()].encode(), b"new\n"), (name, content)
        assert_equal(apply(box)["conflicts"], 0)
        found = tree(top)
        assert_equal(len([name for name in found if name.startswith(b"f")]), 50)
        assert all(content in (b"new\n", None) for content in found.values()), found
        assert not os.path.exists(f"{top}/.husk-apply")
        assert_equal(changes(apply(box)), [])


@test
def test_changed_while_it_is_applied():
    """An editor that saves all the time: its text is never lost."""
    with scratch() as top:
        write(top, file="0\n", **{f"x{number}": "x\n" for number in range(30)})
        box = create("--workspace", top)
        stop, wrote = threading.Event(), []

        def edit():
            number = 0
            while not stop.is_set():
                number += 1
                write(top, file_new=f"{number}\n")
                os.rename(f"{top}/file_new", f"{top}/file")
                wrote.append(number)
                time.sleep(0.001)

        inside(box, "for f in x*; do echo y >$f; done; rm file")
        thread = threading.Thread(target=edit)
        thread.start()
        try:
            for _ in range(5):
                husk("apply", box, code=1)
        finally:
            stop.set()
            thread.join()
        assert_equal(open(f"{top}/file").read(), f"{wrote[-1]}\n")


# ---- forks, and from elsewhere ----


@test
def test_forks():
    with workspace() as (directory, box):
        left, right = fork(box, "-n", "2")
        inside(left, "echo left >left")
        inside(right, "echo right >right; echo more >>keep")
        assert_equal(changes(apply(left)), [("added", "left")])
        assert_equal(changes(apply(right)), [("changed", "keep"), ("added", "right")])
        husk("promote", right)
        assert_equal(changes(apply(box)), [], "the parent has what was applied already")
        husk("rewind", box, "workspace")
        assert_equal(inside(box, "cat keep"), "keep")


@test
def test_over_a_server():
    with workspace() as (directory, _), server() as api, token("workspaces") as secret, scratch() as state:
        env = {"HUSK_HOST": f"http://127.0.0.1:{api.port}", "HUSK_TOKEN": secret, "XDG_STATE_HOME": state, "HUSK_HOME": None}
        box = adopt(husk("create", "--workspace", directory, env=env).text.strip())
        assert os.listdir(f"{state}/husk/workspaces"), "the record is the caller's"
        husk("exec", box, "--", "sh", "-c", "cd /workspace; echo remote >remote; rm gone", env=env)
        assert_in("+remote\n", husk("diff", "--workspace", box, env=env).text)
        assert_equal(changes(husk("apply", "--json", box, env=env).json()), [("removed", "gone"), ("added", "remote")])
        assert_equal(open(f"{directory}/remote").read(), "remote\n")


@test
def test_records_go_with_their_sandboxes():
    with workspace() as (directory, box):
        records = f"{HOME}/workspaces"
        assert f"{box}.workspace" in os.listdir(records)
        husk("rm", box)
        other = create("--workspace", directory)
        assert_equal({name.split(".")[0] for name in os.listdir(records)}, {other})


main()
