#!/usr/bin/env python3
# timeout: 900
"""A workspace directory and its sandbox, kept in step by husk sync: edits on both sides, by a person and by programs in the sandbox, in one
round and as they come; conflicts change neither side; whatever is killed, sleeps or goes back, nothing of either side is lost."""

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import time

from lib.harness import (
    HUSK, adopt, assert_equal, assert_fails, assert_in, create, environment, husk, inspect, main, scratch, sh, test, until,
)
from lib.http import server, token

MOMENTS = int(os.environ.get("HUSK_MOMENTS", "8"))
LINES = "".join(f"line {number}\n" for number in range(1, 21))


def write(directory, **files):
    for name, content in files.items():
        path = pathlib.Path(directory, name.replace("__", "/").replace("_dot_", "."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@contextlib.contextmanager
def workspace(*options, repository=True, env=None):
    """(directory, sandbox)"""
    with scratch() as top:
        directory = pathlib.Path(top, "work")
        directory.mkdir()
        write(directory, text=LINES, keep="keep\n", gone="gone\n", src__main="main\n", _dot_gitignore="*.o\nskip/\n")
        if repository:
            subprocess.run(["git", "init", "-q", directory], check=True)
        write(directory, a_dot_o="object", skip__x="skipped")
        yield directory, adopt(husk("create", "--workspace", str(directory), *options, env=env).text.strip())


def inside(box, script):
    return sh(box, f"cd /workspace; {script}")


def here(directory):
    """{path: content or target}, without .git and what git ignores."""
    found = {}
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if name not in (".git", "skip", ".husk-apply")]
        for name in names:
            path = os.path.join(folder, name)
            if not name.endswith(".o"):
                found[os.path.relpath(path, directory)] = os.readlink(path) if os.path.islink(path) else pathlib.Path(path).read_text()
    return found


THERE = r"""
import os, json
found = {}
for folder, folders, names in os.walk("/workspace"):
    folders[:] = [name for name in folders if name not in (".git", "skip")]
    for name in names:
        path = os.path.join(folder, name)
        if not name.endswith(".o"):
            found[os.path.relpath(path, "/workspace")] = os.readlink(path) if os.path.islink(path) else open(path).read()
print(json.dumps(found))
"""


def there(box):
    return husk("exec", box, "--", "python3", "-c", THERE).json()


def sync(box, *words, code=0, **options):
    return husk("sync", box, *words, code=code, **options).text.splitlines()


class Watch:
    """husk sync --watch; its lines are in `said`."""

    def __init__(self, box, env=None):
        self.log = pathlib.Path(f"/tmp/husk-sync-{os.getpid()}-{random.random()}")
        self.file = open(self.log, "wb")
        self.process = subprocess.Popen([HUSK, "sync", "--watch", box], env=environment(env), stdin=subprocess.DEVNULL, stdout=self.file,
                                        stderr=subprocess.STDOUT)

    def __enter__(self):
        until(lambda: "are in step" in self.said, "the sync has begun")
        return self

    @property
    def said(self):
        return self.log.read_text()

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return self.process.wait(60)

    def __exit__(self, *error):
        if error[0]:
            print(f"# sync: {self.said}")
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.file.close()
        self.log.unlink()


# ---- one round ----


@test
def test_both_ways():
    with workspace() as (directory, box):
        assert_equal(sync(box), [])
        # Here.
        (directory / "text").write_text(LINES.replace("line 3\n", "LINE 3\n"))
        write(directory, new__deep__file="new\n", b_dot_o="ignored")
        (directory / "gone").unlink()
        os.chmod(directory / "keep", 0o755)
        os.symlink("src/main", directory / "link")
        os.symlink("/etc/passwd", directory / "outside")
        (directory / "odd\nname").write_text("odd")
        # There.
        inside(box, "sed -i 's/line 18/LINE 18/' text; mkdir made; echo made >made/file; rm -r src; echo o >c.o; ln -s /etc/shadow out")
        assert_equal(sorted(sync(box)), sorted([
            "< A made", "< A made/file", "< D src", "< D src/main", "< G text",
            "> D gone", "> M keep", "> A link", "> A new", "> A new/deep", "> A new/deep/file", "> A odd?name"]))
        both = LINES.replace("line 3\n", "LINE 3\n").replace("line 18\n", "LINE 18\n")
        ours, theirs = here(directory), there(box)
        assert_equal((ours.pop("outside"), theirs.pop("out")), ("/etc/passwd", "/etc/shadow"), "links that lead outside stay where they are")
        assert_equal(ours, theirs)
        assert_equal((ours["text"], ours["new/deep/file"], ours["link"], "gone" in ours), (both, "new\n", "src/main", False))
        assert_equal(inside(box, "stat -c %a keep; ls *.o"), "755\nc.o")
        assert (directory / "a.o").exists() and not (directory / "c.o").exists() and not (directory / ".husk-apply").exists()
        assert_equal(sync(box), [], "a second time there is nothing left to do")
        assert_equal(husk("diff", "--workspace", "--name-only", box).text, "")
        # A file in the place of a directory, and the other way; one that others still use stays.
        (directory / "made/file").unlink()
        (directory / "made").rmdir()
        write(directory, made="a file\n")
        (directory / "keep").unlink()
        write(directory, keep__inside="1\n")
        inside(box, "mkdir -p new/deep/skip; echo built >new/deep/x.o")
        (directory / "new/deep/file").unlink()
        (directory / "new/deep").rmdir()
        (directory / "new").rmdir()
        sync(box)
        assert_equal(inside(box, "cat made keep/inside; ls -A new/deep"), "a file\n1\nskip\nx.o")
        assert_equal(sync(box), [])


@test
def test_conflicts_change_neither_side():
    with workspace() as (directory, box):
        write(directory, keep="here\n", text="all new here\n", other="other\n")
        (directory / "gone").unlink()
        inside(box, "echo there >keep; echo all new there >text; echo more >>gone; echo fine >fine")
        lines = sync(box, code=1)
        assert_equal(sorted(lines), ["! C gone (changed in the sandbox, removed here)", "! C keep (changed on both sides)",
                                     "! C text (changed on both sides)", "< A fine", "> A other"])
        assert_equal((directory / "keep").read_text() + inside(box, "cat keep text gone other"), "here\nthere\nall new there\ngone\nmore\nother")
        assert not (directory / "gone").exists()
        answer = [line for line in husk("sync", "--json", box, code=1).text.splitlines() if "keep" in line]
        assert_in('"to":"neither"', answer[0])
        # Told how: each version goes to the other side.
        assert_fails("sync", box, "--conflicts", "never", code=2, says="never")
        sync(box, "--conflicts", "ours")
        assert_equal(inside(box, "cat keep text; test -e gone || echo no"), "here\nall new here\nno")
        write(directory, keep="here again\n")
        inside(box, "echo there again >keep")
        sync(box, "--conflicts", "theirs")
        assert_equal((directory / "keep").read_text(), "there again\n")
        assert_equal(sync(box), [])


@test
def test_refusals():
    plain = create()
    assert_fails("sync", plain, code=3, says="has no workspace")
    with workspace(repository=False) as (directory, box):
        write(directory, big="x" * (3 << 20))
        assert_fails("sync", "--limit", "1M", box, code=1, says="none was sent")
        assert_equal(inside(box, "ls"), "a.o\ngone\nkeep\nskip\nsrc\ntext")
        assert_equal(sync(box), ["> A big"])
        with Watch(box):
            assert_fails("sync", box, code=1, says="another husk writes to")
            assert_fails("apply", box, code=1, says="another husk writes to")
        inside(box, "cd /; rm -r /workspace")
        assert_fails("sync", box, code=None, says="workspace")
        assert (directory / "keep").exists(), "a directory that has gone removes no file"


# ---- as things come ----


@test
def test_watch():
    with workspace() as (directory, box), Watch(box) as watch:
        write(directory, fresh__dir__one="1\n")
        until(lambda: sh(box, "cat /workspace/fresh/dir/one 2>/dev/null || true") == "1", "a new directory arrives")
        inside(box, "mkdir -p from/there; echo 2 >from/there/two; sed -i 's/line 2$/LINE 2/' text")
        until(lambda: (directory / "from/there/two").exists(), "and the other way")
        until(lambda: "LINE 2\n" in (directory / "text").read_text(), "a changed file")
        # An editor that writes a new file and renames it, and a directory that moves.
        (directory / "text~").write_text((directory / "text").read_text().replace("line 19\n", "LINE 19\n"))
        os.rename(directory / "text~", directory / "text")
        os.rename(directory / "fresh", directory / "moved")
        until(lambda: sh(box, "cd /workspace; grep -c LINE text; ls -d fresh moved/dir/one 2>/dev/null || true") == "2\nmoved/dir/one", "moves")
        write(directory, moved__dir__later="later\n")
        until(lambda: sh(box, "cat /workspace/moved/dir/later 2>/dev/null || true") == "later", "what was moved is still watched")
        inside(box, "mv from to; rm keep")
        until(lambda: (directory / "to/there/two").exists() and not (directory / "from").exists() and not (directory / "keep").exists(), "moved there")
        # What git ignores stays where it is, until it is not ignored any more.
        write(directory, skip__y="y\n", x_dot_o="x\n")
        inside(box, "echo z >z.o")
        write(directory, mark="1\n")
        until(lambda: sh(box, "ls /workspace/mark 2>/dev/null || true"), "the mark arrives")
        assert_equal(inside(box, "ls -d skip x.o 2>/dev/null || true"), "")
        write(directory, _dot_gitignore="*.o\n")
        until(lambda: sh(box, "cat /workspace/skip/y 2>/dev/null || true") == "y", "no longer ignored")
        write(directory, skip__late="late\n")
        until(lambda: sh(box, "cat /workspace/skip/late 2>/dev/null || true") == "late", "and watched")
        # A conflict is told once, and changes neither side.
        write(directory, gone="here\n")
        inside(box, "echo there >gone")
        until(lambda: "! C gone" in watch.said or "gone" in watch.said.replace("> A gone", ""), "a conflict, or the first of both")
        assert_equal(watch.end(), 0)
        assert "Traceback" not in watch.said and not (directory / ".husk-apply").exists()
        expected = 1 if "! C gone" in watch.said else 0
        husk("sync", box, "--conflicts", "ours")
        assert_equal(sync(box), [], f"after {expected} conflicts")
        assert_equal({name: text for name, text in here(directory).items()}, there(box))


@test
def test_busy_on_both_sides():
    """A program in the sandbox and a person write all the time, to different files and to different lines of one."""
    with workspace() as (directory, box), Watch(box):
        husk("exec", "-d", box, "--", "sh", "-c",
             "cd /workspace; for n in $(seq 1 60); do echo $n >there.new; mv there.new there; sed -i \"s/^line 1\\b.*/line 1 there $n/\" text; sleep 0.1; done; echo >/root/done")
        for number in range(60):
            write(directory, here=f"{number}\n")
            text = (directory / "text").read_text().splitlines(keepends=True)
            (directory / "text.tmp").write_text("".join(text[:-1]) + f"line 20 here {number}\n")
            os.rename(directory / "text.tmp", directory / "text")
            time.sleep(0.1)
        until(lambda: sh(box, "ls /root/done 2>/dev/null || true"), "the program has ended")
        until(lambda: here(directory) == there(box), "both sides are the same")
        found = here(directory)
        assert_equal((found["here"], found["there"]), ("59\n", "60\n"))
        assert_in("line 20 here 59\n", found["text"])
        assert_in("line 1 there 60\n", found["text"])


@test
def test_sleep_and_rewind():
    with workspace() as (directory, box), Watch(box) as watch:
        write(directory, mine="mine\n")
        until(lambda: sh(box, "cat /workspace/mine 2>/dev/null || true"), "it arrives")

        def asleep():
            """A round that is under way wakes it, as any call does."""
            husk("hibernate", box, code=None)
            time.sleep(2)
            return "is hibernated; the sync goes on when it runs" in watch.said

        until(asleep, "it says so")
        write(directory, meanwhile="meanwhile\n")
        time.sleep(2)
        assert_equal(inspect(box)["state"], "hibernated", "a change does not wake it")
        husk("wake", box)
        until(lambda: sh(box, "cat /workspace/meanwhile 2>/dev/null || true"), "the sync goes on")
        before = here(directory)
        husk("rewind", box, "workspace")
        until(lambda: watch.process.poll() is not None, "the sync ends")
        assert_in("was rewound, and the sync has ended: your directory is as it was", watch.said)
        assert_equal((watch.process.returncode, here(directory)), (1, before))
        husk("rm", box)
        assert_fails("sync", box, code=None, says="ended")


@test
def test_from_elsewhere():
    with scratch() as state, server() as huskd, token("sync") as secret:
        far = {"HUSK_HOST": f"http://127.0.0.1:{huskd.port}", "HUSK_TOKEN": secret, "XDG_STATE_HOME": str(state)}
        with workspace(env=far) as (directory, box):
            write(directory, mine="mine\n")
            inside(box, "echo yours >yours")
            assert_equal(sorted(sync(box, env=far)), ["< A yours", "> A mine"])
            with Watch(box, env=far) as watch:
                write(directory, mine="again\n")
                until(lambda: inside(box, "cat mine") == "again", "it arrives")
                inside(box, "echo again >yours")
                until(lambda: (directory / "yours").read_text() == "again\n", "and comes back")
                assert_equal(watch.end(signal.SIGTERM), 0)
            assert_equal(sync(box, env=far), [])


# ---- killed ----


@test
def test_kill_9_at_any_moment():
    """Every edit of either side is whole on that side afterwards, and a last sync brings all of them to both."""
    with workspace() as (directory, box):
        wanted = here(directory)
        for number in range(MOMENTS):
            ours, theirs = f"ours {number}\n" * 2000, f"theirs {number}\n" * 2000
            write(directory, **{f"h{number}": ours, f"dir{number}__h": ours})
            husk("exec", box, "--", "sh", "-c", f"cd /workspace; mkdir t{number}; yes 'theirs {number}' | head -2000 >t{number}/t; cp t{number}/t same")
            wanted.update({f"h{number}": ours, f"dir{number}/h": ours, f"t{number}/t": theirs, "same": theirs})
            process = subprocess.Popen([HUSK, "sync", box], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(random.random() * 1.5 * (number + 1) / MOMENTS)
            process.kill()
            process.wait()
            for name, text in here(directory).items():
                assert wanted.get(name) == text or (name == "same" and len(set(text.splitlines())) == 1), f"{name} is half-made"
        # A file that changed again after a killed sync may be a conflict: the base was not saved.
        sync(box, "--conflicts", "theirs")
        assert_equal((here(directory), there(box)), (wanted, wanted))
        assert_equal(sync(box), [])
        assert not (directory / ".husk-apply").exists()


if __name__ == "__main__":
    main("base")
