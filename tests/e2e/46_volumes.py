#!/usr/bin/env python3
"""Volumes: directories that outlive sandboxes. Two sandboxes share one, it goes on through fork, hibernation and the death
of a supervisor, it holds no more than its size, and nothing a guest does to it reaches past it. Its jailed server may die or
hang, and costs nobody more than the volume. With a current gVisor a volume is a share, which has no server (38_clones.py has
more about those); some tests ask for one that is served over the link."""
# timeout: 600

import contextlib
import hashlib
import os
import signal
import time

from lib.harness import (
    HOME, assert_equal, assert_no_leaks, create, fork, husk, inspect, isolation, main, remove, runs, sh, supervisor_pid, test, until,
)

# A file and a directory held open from before to after whatever happens to the machine. It counts the turns that went
# well. A call that a checkpoint interrupts may fail, a write of gVisor's with EIO; it must go on all the same.
HOLDER = """
import errno, os, time
file = open('/data/held', 'w+')
folder = os.open('/data', os.O_RDONLY)
n = 0
while True:
    try:
        file.write(f'{n} {os.uname().nodename}\\n'); file.flush()
        os.stat('held', dir_fd=folder)
        assert 'held' in os.listdir('/data')
        n += 1
    except Exception as error:
        if not isinstance(error, OSError) or error.errno not in (errno.EINTR, errno.EIO):
            open('/tmp/failed', 'a').write(f'{n}: {error!r}\\n')
    open('/tmp/count', 'w').write(str(n))
    time.sleep(0.02)
"""


SERVED = {"HUSK_DISK": "memory"}  # a volume that is created with this is never a share


@contextlib.contextmanager
def volume(name, *options, env=None):
    """A volume's id; removed afterwards, when the test has ended its sandboxes."""
    made = husk("volume", "create", name, "--json", *options, env=env).json()["id"]
    try:
        yield made
    finally:
        for box in husk("volume", "inspect", name).json()["sandboxes"]:
            remove(box)
        husk("volume", "rm", name)
        assert not os.path.exists(f"{HOME}/volumes/{made}")


def is_share(made):
    return os.path.exists(f"{HOME}/volumes/{made}/disk.name")


def servers(box):
    """The processes that serve its volumes: {the volume's directory: pid}."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError, ValueError):
            with open(f"/proc/{name}/cmdline", "rb") as words, open(f"/proc/{name}/stat") as stat:
                words, parent = words.read().decode().split("\0"), int(stat.read().rsplit(")", 1)[1].split()[1])
            if words[1] == "volume-server" and parent == supervisor_pid(box):
                found[os.path.dirname(words[2])] = int(name)
    return found


def count(box):
    return int(sh(box, "cat /tmp/count 2>/dev/null || echo 0") or 0)


def assert_holding(box):
    before = count(box)
    until(lambda: count(box) > before + 2, f"the holder in {box} goes on")
    failed = sh(box, "cat /tmp/failed 2>/dev/null || true")
    assert not failed, failed


@test
def two_sandboxes_share_one_and_it_outlives_both():
    with volume("shared"):
        one, two = create("--volume", "shared:/data"), create("--volume", "shared:/mnt/other")
        sh(one, "echo hello > /data/a; mkdir -p /data/d/e; echo deep > /data/d/e/f; ln -s a /data/l; chmod 640 /data/a")
        assert sh(two, "cat /mnt/other/a /mnt/other/d/e/f /mnt/other/l") == "hello\ndeep\nhello"
        sh(two, "echo more >> /mnt/other/a; mv /mnt/other/d /mnt/other/moved; touch -d @86400 /mnt/other/a")
        assert sh(one, "cat /data/a /data/moved/e/f; stat -c '%a %Y' /data/a") == "hello\nmore\ndeep\n640 86400"
        assert inspect(one)["volumes"] == [{"volume": "shared", "path": "/data", "read_only": False}]
        # Somebody else than root, in a directory of the volume's.
        assert sh(one, "echo mine > me; stat -c %u me; id -u", "--cwd", "/data", "--user", "1000") == "1000\n1000"
        # From outside, and by the agent's own hand.
        assert husk("volume", "read", "shared", "/a").out == b"hello\nmore\n"
        husk("volume", "write", "shared", "/new/from-outside", stdin=b"outside")
        assert b"outside" in husk("cp", f"{one}:/data/new/from-outside", "-").out  # a tar
        assert sh(two, "cat /mnt/other/new/from-outside") == "outside"
        remove(one, two)
        three = create("--volume", "shared:/data")
        assert sh(three, "cat /data/a /data/me") == "hello\nmore\nmine"
        paths = [entry["path"] for entry in husk("volume", "files", "shared", "--json").json()]
        assert paths == ["/a", "/l", "/me", "/moved", "/new"], paths


@test
def one_in_use_stays():
    with volume("busy"):
        box = create("--volume", "busy:/data")
        refused = husk("volume", "rm", "busy", code=1)
        assert box in refused.error and "in use" in refused.error, refused
        husk("hibernate", box)
        assert box in husk("volume", "rm", "busy", code=1).error


@test
def read_only_means_it():
    with volume("library"):
        husk("volume", "write", "library", "/book", stdin=b"text")
        box = create("--volume", "library:/data:ro")
        assert sh(box, "cat /data/book") == "text"
        for command in ("echo x > /data/book", "touch /data/new", "rm /data/book", "mkdir /data/d", "chmod 777 /data/book"):
            assert "Read-only" in husk("exec", box, "--", "sh", "-c", command, code=None).error, command
        # Also for one who is root in there and mounts it again as it likes.
        sh(box, "mount -o remount,rw /data; echo x > /data/book; rm -f /data/book; true", code=None)
        assert husk("volume", "read", "library", "/book").out == b"text"


@test
def bad_input_is_named_and_changes_nothing():
    with volume("plain"):
        for word, says in (
            ("plain", "NAME:/PATH"), ("plain:relative", "NAME:/PATH"), ("plain:/", "not plain"), ("plain:/a/../b", "not plain"),
            ("plain/../x:/data", "subpath"), ("plain/a//b:/data", "subpath"), ("plain/:/data", "subpath"), ("plain:/proc/x", "itself needs"), ("plain:/etc", "itself needs"), ("plian:/data", "did you mean 'plain'"),
        ):
            assert says in husk("create", "--volume", word, code=None).error, word
        assert "lie in each other" in husk("create", "--volume", "plain:/a", "--volume", "plain:/a/b", code=None).error
        assert "already" in husk("volume", "create", "plain", code=1).error
        husk("volume", "create", "no/name", code=2)
        assert "looks like an id" in husk("volume", "create", "vol-abcdefghij", code=2).error
        husk("volume", "create", "vol-a")
        husk("volume", "rm", "vol-a")
        husk("volume", "create", "tiny", "--size", "1K", code=2)
        husk("volume", "rm", "no-such", code=3)
        husk("volume", "read", "plain", "/../../catalog.db", code=2)
        assert husk("volume", "inspect", "plain").json()["used_bytes"] == 0


@test
def a_directory_of_it():
    with volume("parts"):
        box = create("--volume", "parts/users/one:/one", "--volume", "parts:/all")
        assert_equal(sh(box, "echo mine >/one/f; cat /all/users/one/f; ls -A /all; ln -s ../two /one/up; cat /one/up/f 2>&1 || true; stat -c %a /one").split("\n")[:2], ["mine", "users"])
        assert "one" in husk("inspect", box).text
        assert "used_bytes" in husk("volume", "inspect", "parts").json()  # a share's follows in half a minute
        husk("volume", "write", "parts", "/users/two/f", stdin=b"other\n")
        assert_equal(sh(box, "cat /one/../one/f; ls /one"), "mine\nf\nup")
        husk("hibernate", box)
        assert_equal(sh(box, "cat /one/f; mv /one/f /one/g; ls /all/users/one"), "mine\ng\nup")
        kept = create("--volume", "parts/users/two:/data:ro")
        assert_equal(sh(kept, "cat /data/f; touch /data/x 2>/dev/null || echo read-only"), "other\nread-only")
        husk("rm", box, kept)


@test
def nothing_leads_out_of_it():
    with volume("trap", env=SERVED) as made:
        box = create("--volume", "trap:/data")
        sh(box, """cd /data; ln -s /etc/passwd out; ln -s ../../../../../.. up; mkdir a; mkdir a/b
            echo x > file; ln file hard; ! mv a a/b/c 2>/dev/null; ! mknod null c 1 3 2>/dev/null; ! mkfifo pipe 2>/dev/null
            ! ln /etc/hostname stolen 2>/dev/null; chmod 4755 file; chown 1234:5678 file""")
        # A link leads where the guest's own root has it, and the host follows none.
        assert sh(box, "head -1 /data/out") == sh(box, "head -1 /etc/passwd")
        for path in ("/out", "/up/etc/passwd", "/up"):
            husk("volume", "read", "trap", path, code=2)
        husk("volume", "write", "trap", "/up/escaped", stdin=b"x", code=2)
        data = f"{HOME}/volumes/{made}/data"
        status = os.lstat(f"{data}/file")
        assert (status.st_mode & 0o7777, status.st_uid, status.st_gid, status.st_nlink) == (0o755, 1234, 5678, 2), status
        assert sorted(os.listdir(data)) == ["a", "file", "hard", "out", "up"]
        assert os.stat(HOME).st_mode & 0o077 == 0, "others may look into the instance"
        # The last component replaced by a link, again and again, while the other side writes to it.
        sh(box, """cd /data; for i in 1 2 3 4 5 6 7 8 9 10; do rm -f swap; ln -s /etc/husk-escaped swap; echo y >> swap 2>/dev/null
            rm -f swap; echo y > swap; done; true""")
        assert not os.path.lexists("/etc/husk-escaped")
        assert sh(box, "head -1 /etc/husk-escaped") == "y", "a link leads nowhere inside either"


@test
def it_holds_no_more_than_its_size():
    with volume("small", "--size", "8M") as made:
        share = is_share(made)
        box = create("--volume", "small:/data")
        full = husk("exec", box, "--", "dd", "if=/dev/zero", "of=/data/big", "bs=64K", "count=200", code=1)
        # This gVisor tells every failed write as an I/O error (docs/cli.md).
        said = "quota exceeded" if share else "No space"
        assert said in full.error or (isolation() == "gvisor" and not share and "Input/output" in full.error), full
        if not share:  # in a share, holes take no room
            assert "No space" in husk("exec", box, "--", "truncate", "-s", "1G", "/data/hole", code=1).error
        assert husk("volume", "write", "small", "/more", stdin=b"x" * 4_000_000, code=None).code != 0
        used = husk("volume", "inspect", "small").json()
        assert 7 << 20 < used["used_bytes"] <= used["limit_bytes"] == 8 << 20, used
        sh(box, "rm -f /data/big /data/hole")
        assert sh(box, "echo fits > /data/x; cat /data/x") == "fits"
        used = husk("volume", "inspect", "small").json()["used_bytes"]
        assert used < 1 << 20 if share else used == 8192, used


@test
def an_open_file_goes_on_through_hibernation_and_forks():
    with volume("held"):
        box = create("--volume", "held:/data")
        husk("exec", "-d", "--cwd", "/data", box, "--", "python3", "-c", HOLDER)
        until(lambda: count(box) > 5, "the holder starts")
        husk("hibernate", box)
        husk("wake", box)
        assert_holding(box)
        children = fork(box, "--count", "2")
        for each in (box, *children):
            assert_holding(each)
        snapshot = husk("snapshot", "create", box, "--json").json()["id"]
        assert_holding(box)
        again = create("--from", snapshot)
        assert_holding(again)
        assert inspect(again)["volumes"] == inspect(box)["volumes"]
        sh(again, "echo all > /data/seen")
        for each in (box, *children):
            assert sh(each, "cat /data/seen") == "all"
        remove(again, *children)
        husk("snapshot", "rm", snapshot)


@test
def a_killed_supervisor_loses_nothing():
    with volume("kept") as made:
        box = create("--volume", "kept:/data")
        sh(box, "mkdir /data/d; echo closed > /data/d/closed")
        husk("exec", "-d", box, "--", "python3", "-c", "import os,time\nf = open('/data/synced', 'w'); f.write('synced'); f.flush()\n"
             "os.fsync(f.fileno()); open('/data/ready', 'w').close(); time.sleep(600)")
        until(lambda: sh(box, "ls /data/ready 2>/dev/null || true"), "the file is synced")
        os.kill(supervisor_pid(box), signal.SIGKILL)
        until(lambda: inspect(box)["state"] == "ended", "the death is noticed")
        other = create("--volume", "kept:/data")
        assert sh(other, "cat /data/d/closed /data/synced") == "closed\nsynced"
        # Counted anew: a directory, two files with a block each, and an empty one.
        used = husk("volume", "inspect", "kept").json()["used_bytes"]
        assert used < 1 << 20 if is_share(made) else used == 6 * 4096, used


@test
def a_server_has_no_more_than_its_volume():
    with volume("caged", env=SERVED) as made:
        box = create("--volume", "caged:/data")
        sh(box, "echo x > /data/x")
        pid = servers(box)[f"{HOME}/volumes/{made}"]
        with open(f"/proc/{pid}/status") as lines:
            status = dict(line.split(":\t", 1) for line in lines.read().splitlines() if ":\t" in line)
        assert status["CapEff"] == status["CapPrm"] == status["CapBnd"] == "000000000000000b", status
        assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", status
        assert all(int(uid) >= 0x0fff4000 for uid in (status["Uid"] + "\t" + status["Gid"]).split()), status
        assert os.listdir(f"/proc/{pid}/root/") == ["x"]
        for kind in ("net", "mnt", "pid", "ipc", "uts"):
            assert os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}"), kind


@test
def a_server_that_dies_costs_the_guest_its_volume_alone():
    with volume("dies", env=SERVED) as made, volume("lives", env=SERVED):
        box = create("--volume", "dies:/data", "--volume", "lives:/other")
        sh(box, "echo kept > /data/kept; echo other > /other/file")
        # Somebody waits for an answer at that very moment, most likely.
        for i in range(3):
            husk("exec", "-d", box, "--", "sh", "-c", f"while true; do echo x >> /data/loop{i}; cat /data/loop{i}; done")
        until(lambda: sh(box, "cat /data/loop0 /data/loop1 /data/loop2 2>/dev/null || true"), "the writers are at work")
        os.kill(servers(box)[f"{HOME}/volumes/{made}"], signal.SIGKILL)
        until(lambda: husk("exec", box, "--", "cat", "/data/kept", code=None).code != 0, "its volume gives errors")
        assert sh(box, "cat /other/file; echo more > /other/more; ls /other") == "other\nfile\nmore"
        assert list(servers(box)) != [] and f"{HOME}/volumes/{made}" not in servers(box)
        # It is there again for the machine that goes on from an image.
        husk("hibernate", box)
        husk("wake", box)
        assert sh(box, "cat /data/kept /other/more") == "kept\nmore"


@test
def a_server_that_hangs_does_not_hold_up_the_end():
    with volume("hangs", env=SERVED) as made:
        box = create("--volume", "hangs:/data")
        pid = servers(box)[f"{HOME}/volumes/{made}"]
        os.kill(pid, signal.SIGSTOP)
        husk("exec", "-d", box, "--", "sh", "-c", "while true; do echo x >> /data/x; done")
        start = time.monotonic()
        remove(box)
        assert time.monotonic() - start < 20, "rm waited for the disk"
        until(lambda: not runs(pid), "it was killed")


@test
def a_server_goes_with_its_supervisor():
    with volume("follows", env=SERVED) as made:
        box = create("--volume", "follows:/data")
        pid = servers(box)[f"{HOME}/volumes/{made}"]
        os.kill(pid, signal.SIGSTOP)  # it cannot notice by itself
        os.kill(supervisor_pid(box), signal.SIGKILL)
        until(lambda: not runs(pid), "the kernel ends it")
        until(lambda: inspect(box)["state"] == "ended", "the death is noticed")


@test
def large_and_many():
    with volume("bulk"):
        box = create("--volume", "bulk:/data")
        sh(box, "dd if=/dev/urandom of=/data/big bs=1M count=100 2>/dev/null", timeout=180)
        inside = sh(box, "sha256sum < /data/big", timeout=180).split()[0]
        outside = hashlib.sha256(husk("volume", "read", "bulk", "/big").out).hexdigest()
        assert inside == outside
        assert sh(box, "cd /data; mkdir m; i=0; while [ $i -lt 300 ]; do echo $i > m/$i; i=$((i+1)); done; ls m | wc -l; "
                       "cat m/* | sort -n | tail -1; rm -r m; ls", timeout=180) == "300\n299\nbig"


@test
def programs_and_maps_where_the_engine_has_them():
    with volume("programs") as made:
        box = create("--volume", "programs:/data")
        sh(box, "cp /bin/true /data/true")
        # docs/cli.md says so: with gVisor, programs start from shares only.
        husk("exec", box, "--", "/data/true", code=126 if isolation() == "gvisor" and not is_share(made) else 0)


@test
def nothing_is_left_behind():
    assert_no_leaks()


@test
def test_a_listing_is_bounded_in_bytes():
    """Names, paths and targets are the guest's: a few files of no size are a listing of hundreds of megabytes."""
    with volume("wide46", env=SERVED) as made:
        parts = [letter * 250 for letter in "abcdefghijklmno"]
        at = os.open(f"{HOME}/volumes/{made}/data", os.O_RDONLY)
        for part in parts:
            os.mkdir(part, dir_fd=at)
            above, at = at, os.open(part, os.O_RDONLY, dir_fd=at)
            os.close(above)
        for number in range(75000):
            os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY, dir_fd=at))
        os.close(at)
        result = husk("volume", "files", "wide46", "/" + "/".join(parts), code=None)
        assert result.code != 0 and "entries or" in result.error, result.error[:300]
        assert "a" * 250 in husk("volume", "files", "wide46", "/").text


if __name__ == "__main__":
    main("base")
