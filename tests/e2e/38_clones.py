#!/usr/bin/python3
"""Disks that are cloned: with a current runsc, what a machine has written is no part of its image. On an ordinary filesystem
Husk makes itself a btrfs in a file of the instance; on a btrfs with quotas it uses that. Volumes are in the same place, and
are mounted as directories: shares."""

# timeout: 1200
import threading

from lib.harness import *
from lib.runsc import current_runsc

SIZE = 6 << 30  # of a btrfs that the test makes: sparse


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


class Instance:
    """One in `home`, with a current runsc."""

    def __init__(self, home):
        self.home = home
        self.file = f"{home}/disks.btrfs"
        self.env = {"HUSK_HOME": home, "HUSK_POOL": "1", "HUSK_RUNSC": current_runsc()}

    def __call__(self, *arguments, **options):
        return husk(*arguments, env=self.env, timeout=options.pop("timeout", 120), **options)

    def disks(self):
        """What doctor says of them."""
        text = {check["name"]: check["text"] for check in self("doctor", "--json", code=None).json()}["gvisor"]
        return text.split("disks are ")[-1]

    def build(self):
        self("template", "build", "--isolation", "gvisor", "base", timeout=BUILD_SECONDS)

    def loops(self):
        return run("losetup", "--noheadings", "-O", "NAME", "-j", self.file).split()

    @contextlib.contextmanager
    def inside(self):
        """The directory of the disks, while a machine lives."""
        (device,) = self.loops()
        with tempfile.TemporaryDirectory() as place:
            run("mount", device, place)
            try:
                yield pathlib.Path(place)
            finally:
                run("umount", place)

    def file_bytes(self):
        return os.stat(self.file).st_blocks * 512

    def kill(self):
        """kill -9 of all that Husk runs in it."""
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if self.home.encode() in words and b"supervise" in words:
                    os.kill(int(entry.name), signal.SIGKILL)

    def clear(self):
        self("rm", "--all", code=None)
        self("gc", "--all")


@contextlib.contextmanager
def make_instance():
    with tempfile.TemporaryDirectory(prefix="husk-c.", dir="/var/tmp") as home:
        call = Instance(home)
        said = call.disks()
        if "cloned by btrfs" not in said:
            raise Skip(f"no cloned disks here: {said}")
        assert "made when first needed" in said and not os.path.exists(call.file), said
        call.build()
        try:
            yield call
        finally:
            call.clear()
            until(lambda: not call.loops(), "no loop device stays")


_end = contextlib.ExitStack()
_made = []


def instance():
    """The one that most tests share; it goes at the end."""
    if not _made:
        _made.append(_end.enter_context(make_instance()))
    return _made[0]


def write_tree(call, box):
    call("exec", box, "--", "python3", "-c", """
import os
for d in range(20):
    os.makedirs(f"/w/{d}")
    for f in range(50):
        with open(f"/w/{d}/{f}", "wb") as file: file.write(bytes([d, f]) * 2000)
os.link("/w/1/1", "/w/hard"); os.symlink("/etc/passwd", "/w/soft"); os.chown("/w/2/2", 1000, 1001); os.chmod("/w/3/3", 0o4755)
""", timeout=120)


LOOK = "cd /w && find . | sort | xargs ls -dln | awk '{print $1, $2, $3, $4, $9}' | sha256sum; find . -type f | sort | xargs cat | sha256sum"


def look(call, box):
    return call("exec", box, "--", "sh", "-c", LOOK, timeout=120).text


@test
def test_what_was_written_goes_along():
    """Fork, fork of a fork, snapshot, hibernation: all see the same files and owners, and none another's changes."""
    call = instance()
    box = call("create").text.strip()
    write_tree(call, box)
    call("exec", "-d", box, "--", "sh", "-c", "exec 3<>/tmp/gone; rm /tmp/gone; echo kept >&3; while sleep 1; do cat /proc/self/fd/3 >/tmp/seen; done")
    before = look(call, box)
    child = call("fork", box, timeout=120).text.strip()
    grandchild = call("fork", child, timeout=120).text.strip()
    snapshot = call("snapshot", "create", "--json", box, timeout=120).json()
    assert snapshot["bytes"] < 100 << 20, "its disk is shared"
    for one in (child, grandchild):
        assert_equal(look(call, one), before, f"files of {one}")
    call("exec", child, "--", "sh", "-c", "rm -r /w/5; echo mine >/w/1/1; chown 7:7 /w/9/9")
    assert_equal(call("exec", child, "--", "cat", "/w/hard").text, "mine\n", "a hard link stays one")
    for one in (box, grandchild):
        assert_equal(look(call, one), before, f"files of {one} after the child's changes")
    call("hibernate", grandchild, timeout=120)
    assert_equal(look(call, grandchild), before, "after a sleep")
    made = call("create", "--from", snapshot["id"], timeout=120).text.strip()
    assert_equal(look(call, made), before, "from the snapshot")
    until(lambda: "kept" in call("exec", made, "--", "cat", "/tmp/seen", code=None).text, "an open file without a name goes on")
    call("rm", box, child, grandchild, made, timeout=120)
    call("snapshot", "rm", snapshot["id"])
    call("pool", "drain", code=None)
    call("gc", "--all", timeout=120)
    until(lambda: not call.loops(), "nothing is mounted when nothing runs")
    small = call.file_bytes()
    assert small < 64 << 20, f"free blocks went back to the host: {small}"


@test
def test_the_disk_outlives_a_runsc():
    """A sleeper whose runsc is gone says what helps: a reboot with its files, whatever its guest did to them."""
    call = instance()
    box = call("create").text.strip()
    write_tree(call, box)
    before = look(call, box)
    # What the agent needs while it boots is in the guest's hands.
    call("exec", box, "--", "sh", "-c", "rm -rf /.husk/* 2>/dev/null; mv /etc/passwd /etc/p; ln -s / /root/all; mkdir -p /mnt/x; rmdir /srv; ln -s /nowhere /srv; rm -rf /tmp; ln -s /etc /tmp")
    call("hibernate", box)
    call("pool", "drain", code=None)
    other = {**call.env, "HUSK_RUNSC": shutil.which("runsc"), "HUSK_POOL": "0"}
    refused = husk("wake", box, env=other, code=None, timeout=120)
    assert refused.code != 0 and "husk reboot" in refused.error, refused
    refused = husk("reboot", box, env=other, code=None, timeout=120)
    assert refused.code != 0 and "a current one can" in refused.error, refused
    assert_equal(call("inspect", "--json", box).json()["state"], "hibernated")
    call("reboot", box)
    assert_equal(look(call, box), before, "its files")
    call("rm", box)


WRITER = """
import os, random, sqlite3, sys
try:
    db = sqlite3.connect("/db/bank", timeout=60, isolation_level=None)
    while True:
        account, delta = random.randrange(100), random.randrange(-50, 50)
        db.execute("begin immediate")
        db.execute("update accounts set balance = balance + ? where id = ?", (delta, account))
        db.execute("insert into history values (?)", (delta,))
        db.execute("commit")
except Exception as error:
    open("/db/failed", "a").write(repr(error))
"""
BANK = """
import sqlite3
db = sqlite3.connect("/db/bank", isolation_level=None)
db.execute("pragma journal_mode=wal")
db.execute("create table accounts (id integer primary key, balance)")
db.execute("create table history (delta)")
db.executemany("insert into accounts values (?, 0)", [(i,) for i in range(100)])
"""
AUDIT = """
import sqlite3
db = sqlite3.connect("/db/bank", timeout=60, isolation_level=None)
db.execute("begin")
print(db.execute("pragma integrity_check").fetchone()[0], end=" ")
print(*db.execute("select count(*), coalesce(sum(delta), 0) = (select sum(balance) from accounts) from history").fetchone())
"""


def audit(call, box):
    """How many transactions there were; all of them are whole, and none failed."""
    verdict, count, right = call("exec", box, "--", "python3", "-c", AUDIT).text.split()
    failed = call("exec", box, "--", "cat", "/db/failed", code=None).text
    assert (verdict, right, failed) == ("ok", "1", ""), (verdict, right, failed)
    return int(count)


@test
def test_database_under_load():
    """Forked, saved and put to sleep while two processes write: every machine goes on, with no failed transaction."""
    call = instance()
    box = call("create").text.strip()
    call("exec", box, "--", "mkdir", "/db")
    call("exec", box, "--", "python3", "-c", BANK)
    for _ in range(2):
        call("exec", "-d", box, "--", "python3", "-c", WRITER)
    until(lambda: audit(call, box) > 50, "both are at work")
    boxes = [box, call("fork", box).text.strip(), call("fork", box).text.strip()]
    snapshot = call("snapshot", "create", "--json", box).json()["id"]
    call("hibernate", box)
    call("hibernate", boxes[1])
    boxes.append(call("create", "--from", snapshot).text.strip())
    for one in boxes:
        count = audit(call, one)
        until(lambda: audit(call, one) > count, f"{one} goes on")  # pylint: disable=cell-var-from-loop
    call("rm", *boxes)
    call("snapshot", "rm", snapshot)


@test
def test_limit_holds():
    call = instance()
    box = call("create", "--disk", "200M", timeout=300).text.strip()
    fill = "dd if=/dev/zero of=/big bs=1M count=400 2>&1 | grep -o 'Disk quota exceeded'; stat -c %s /big"
    text, size = call("exec", box, "--", "sh", "-c", fill).text.split("\n")[:2]
    assert_equal(text, "Disk quota exceeded")
    assert 190 << 20 < int(size) <= 200 << 20, size
    child = call("fork", box).text.strip()
    assert call("exec", child, "--", "sh", "-c", "dd if=/dev/zero of=/more bs=1M count=20", code=None).code != 0
    call("exec", child, "--", "sh", "-c", "rm /big && dd if=/dev/zero of=/more bs=1M count=100")


@test
def test_files_of_the_guest_are_nobodys_on_the_host():
    call = instance()
    box = call("create").text.strip()
    call("exec", box, "--", "sh", "-c", "cp /bin/true /suid; chmod 4755 /suid; chown 1000 /etc/hostname; ln -s /etc/shadow /link")
    with call.inside() as disks:
        (upper,) = [path for path in disks.glob("m-*/data/upper") if (path / "suid").exists()]
        found = (upper / "suid").stat()
        assert (found.st_uid, found.st_mode & 0o7777) == (0x0FFF0000, 0o4755), found
        assert_equal((upper / "etc/hostname").stat().st_uid, 0x0FFF0000 + 1000)
        assert os.path.islink(upper / "link")
        for directory in (upper.parents[1], disks):
            assert_equal(directory.stat().st_mode & 0o077, 0, f"{directory} is closed")
    assert call.home not in pathlib.Path("/proc/self/mountinfo").read_text(), "nothing is mounted on the host"


MAPPER = """
import mmap, os, sqlite3, subprocess, time
db = sqlite3.connect("/data/db", isolation_level=None)
assert db.execute("pragma journal_mode=wal").fetchone() == ("wal",)
db.execute("create table t (n)")
held, doomed = open("/data/held", "w+b"), open("/data/deep/er/doomed", "w+b")
held.truncate(4096); doomed.write(b"text"); doomed.flush()
view = mmap.mmap(held.fileno(), 4096)
n = 0
while True:
    n += 1
    try:
        db.execute("insert into t values (?)", (n,))
        view[:10] = b"%010d" % n
        doomed.seek(0)
        said = f"{n} {len(doomed.read())}"
    except Exception as error:
        said = f"failed: {error!r}"
    with open("/tmp/said.new", "w") as out: out.write(said)
    os.rename("/tmp/said.new", "/tmp/said")
    time.sleep(0.02)
"""


def said(call, box):
    """What the mapper has done, and how long the file is that somebody removes."""
    text = call("exec", box, "--", "sh", "-c", "cat /tmp/said 2>/dev/null || echo 0 0").text
    assert "failed" not in text, text
    return [int(word) for word in text.split()]


def assert_maps(call, box):
    before = said(call, box)[0]
    until(lambda: said(call, box)[0] > before + 2, f"the mapper in {box} goes on")


@test
def test_volumes_can_be_mapped():
    """Programs, git, a database with a log, and a mapped file in a volume; forked, put to sleep and saved meanwhile."""
    call = instance()
    made = call("volume", "create", "work", "--size", "200M", "--json").json()["id"]
    assert os.path.exists(f"{call.home}/volumes/{made}/disk.name"), "it is a share"
    box, other = call("create", "--volume", "work:/data").text.strip(), call("create", "--volume", "work:/mnt/w").text.strip()
    call("exec", box, "--", "sh", "-ec", """cp /bin/echo /data/echo; /data/echo runs; mkdir -p /data/deep/er /data/repo
        cd /data/repo; git init -q; git config user.email a@b.c; git config user.name a; echo 1 >f; git add f; git commit -qm one; git status""")
    call("exec", "-d", "--cwd", "/data/deep", box, "--", "python3", "-c", MAPPER)
    until(lambda: said(call, box)[0] > 3, "the mapper starts")
    assert_equal(call("exec", other, "--", "git", "-C", "/mnt/w/repo", "-c", "safe.directory=*", "log", "--format=%s").text, "one\n")
    seen = int(call("exec", other, "--", "head", "-c", "10", "/mnt/w/held").text)
    until(lambda: int(call("exec", other, "--", "head", "-c", "10", "/mnt/w/held").text) > seen, "a map is seen by others")
    snapshot = call("snapshot", "create", "--json", box).json()["id"]
    assert_maps(call, box)
    # Somebody removes what is open, while its holder sleeps: the holder goes on, with an empty file that has no name.
    call("hibernate", box)
    call("exec", other, "--", "rm", "-r", "/mnt/w/deep")
    assert_maps(call, box)
    assert_equal(said(call, box)[1], 0)
    assert "deep" not in call("exec", other, "--", "ls", "/mnt/w").text.split()
    child = call("create", "--from", snapshot).text.strip()
    assert_equal(call("exec", child, "--", "/data/echo", "child").text, "child\n")
    call("rm", box, other, child)
    call("snapshot", "rm", snapshot)
    call("volume", "rm", "work")
    assert not os.path.exists(f"{call.home}/volumes/{made}")


@test
def test_a_replaced_file_is_named():
    """gVisor cannot save a file that is open here and was replaced by another sandbox: the error says so, and all goes on."""
    call = instance()
    call("volume", "create", "swap")
    box, other = (call("create", "--volume", "swap:/data").text.strip() for _ in range(2))
    call("exec", box, "--", "sh", "-c", "echo one >/data/f")
    call("exec", "-d", box, "--", "sh", "-c", "exec 3</data/f; while sleep 0.1; do cat /data/f >/tmp/now; done")
    until(lambda: call("exec", box, "--", "cat", "/tmp/now", code=None).text == "one\n", "it is open")
    call("exec", other, "--", "sh", "-c", "echo two >/data/g; mv /data/g /data/f")
    until(lambda: call("exec", box, "--", "cat", "/tmp/now").text == "two\n", "the change is seen")
    failed = call("fork", box, code=None)
    assert failed.code != 0 and "'f'" in failed.error and "replaced" in failed.error and "close it" in failed.error, failed
    assert_equal(call("exec", box, "--", "echo", "well").text, "well\n")
    call("exec", box, "--", "pkill", "-f", "/tmp/now")
    children = []
    until(lambda: (done := call("fork", box, code=None)).code == 0 and not children.append(done.text.strip()), "it is closed")
    call("rm", *children, box, other)
    call("volume", "rm", "swap")


@test
def test_a_share_is_one_directory():
    """What the mount of a volume gives the guest: files of the volume, no devices, no set-uid, and read-only if it is so."""
    call = instance()
    made = call("volume", "create", "cage", "--size", "20M", "--json").json()["id"]
    call("volume", "write", "cage", "/book", stdin=b"text")
    box = call("create", "--volume", "cage:/data").text.strip()
    reader = call("create", "--volume", "cage:/data:ro").text.strip()
    call("exec", box, "--", "sh", "-c", """cd /data; cp /bin/true suid; chmod 4755 suid; chown 1234:5678 book; ln -s /etc/shadow out; ln -s ../../.. up
        ! mknod null c 1 3 2>/dev/null; ! ln /etc/hostname stolen 2>/dev/null; ! ls /data/.. | grep -q catalog""")
    for command in ("echo x >/data/book", "touch /data/new", "rm /data/book", "mount -o remount,rw /data; echo x >/data/book",
                    "echo x >/.husk/volumes/0/book", "touch /.husk/volumes/1/x"):
        refused = call("exec", reader, "--", "sh", "-c", command, code=None)
        assert refused.code != 0 and ("Read-only" in refused.error or "denied" in refused.error), (command, refused)
    assert_equal(call("volume", "read", "cage", "/book").out, b"text")
    for path in ("/out", "/up/etc/passwd"):
        assert call("volume", "read", "cage", path, code=None).code != 0
    name = pathlib.Path(f"{call.home}/volumes/{made}/disk.name").read_text()
    with call.inside() as disks:
        found = (disks / "volumes" / name / "book").stat()
        assert_equal((found.st_uid, found.st_gid), (0x0FFF0000 + 1234, 0x0FFF0000 + 5678))
    assert_equal({entry["path"]: entry["uid"] for entry in call("volume", "files", "cage", "--json").json()}["/book"], 1234)
    # On the host the mount is in the machines' own namespaces only, and is nosuid and nodev.
    assert "shares" not in pathlib.Path("/proc/self/mountinfo").read_text()
    shown = []
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if b"runsc-gofer" in (entry / "cmdline").read_bytes():
                shown += [line.split() for line in (entry / "mountinfo").read_text().splitlines() if name in line]
    options = sorted(line[5] for line in shown)
    assert len(options) >= 2 and all("nosuid" in one and "nodev" in one for one in options), shown
    assert sorted({one.split(",")[0] for one in options}) == ["ro", "rw"], shown
    # Its size holds, from a guest and from outside.
    full = call("exec", box, "--", "dd", "if=/dev/zero", "of=/data/big", "bs=64K", "count=1000", code=1)
    assert_in("Disk quota exceeded", full.error)
    assert_in("full", call("volume", "write", "cage", "/more", stdin=b"x" * 4_000_000, code=None).error)
    used = call("volume", "inspect", "cage").json()
    assert 18 << 20 < used["used_bytes"] <= used["limit_bytes"] == 20 << 20, used
    call("exec", box, "--", "sh", "-c", "rm /data/big && echo fits >/data/x")
    # A volume of the older kind, and one engine that has no shares, go on beside it.
    served = Instance(call.home)
    served.env = {**call.env, "HUSK_DISK": "memory", "HUSK_POOL": "0"}
    old = served("create", "--volume", "cage:/data", timeout=300).text.strip()
    assert_equal(served("exec", old, "--", "sh", "-c", "cat /data/book /data/x; echo served >/data/y; stat -c %u:%g /data/book").text,
                 "textfits\n1234:5678\n")
    assert_equal(call("exec", reader, "--", "cat", "/data/y").text, "served\n")
    call("rm", box, reader, old)
    call("volume", "rm", "cage")
    call("gc")
    call("create")
    with call.inside() as disks:
        assert not (disks / "volumes" / name).exists(), "its files are gone"


@test
def test_damaged_disk_is_named():
    call = instance()
    box = call("create").text.strip()
    snapshot = call("snapshot", "create", "--json", box).json()["id"]
    name = pathlib.Path(f"{call.home}/snapshots/{snapshot}/disk.name").read_text()
    with call.inside() as disks:
        run("btrfs", "subvolume", "delete", str(disks / name))
    failed = call("create", "--from", snapshot, code=None)
    assert failed.code != 0 and "its disk is missing" in failed.error, failed
    assert_equal(call("exec", box, "--", "echo", "well").text, "well\n")
    call("snapshot", "rm", snapshot)


@test
def test_killed_at_any_moment():
    """kill -9 of everything while a machine is saved: its disk goes, the device goes, and what was acknowledged is whole."""
    call = instance()
    call("pool", "drain", code=None)
    box = call("create").text.strip()
    call("exec", box, "--", "sh", "-c", "echo before >/kept")
    snapshot = call("snapshot", "create", "--json", box).json()["id"]
    for delay in (0.0, 0.03, 0.1, 0.2):
        killer = threading.Timer(delay, call.kill)
        killer.start()
        call("snapshot", "create", box, code=None)
        killer.join()
        call.kill()  # and the pool
        until(lambda: call("ls", "--json").json() == [], "the killed sandbox is cleared up")
        until(lambda: not call.loops(), "its mounts are gone")
        box = call("create", "--from", snapshot).text.strip()
        assert_equal(call("exec", box, "--", "cat", "/kept").text, "before\n")
    call("rm", box)
    for one in call("snapshot", "ls", "--json").json():
        call("snapshot", "rm", one["id"])


@test
def test_many_open_at_once():
    call = instance()
    call("pool", "drain", code=None)
    until(lambda: not call.loops(), "nothing runs")
    boxes, threads = [], []
    for _ in range(4):
        threads.append(threading.Thread(target=lambda: boxes.append(call("create", code=None))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert_equal([box.code for box in boxes], [0] * 4, [box.error for box in boxes])
    assert_equal(len(call.loops()), 1, "one device for all")
    for box in boxes:
        call("rm", box.text.strip())


@test
def test_memory_is_still_there_to_choose():
    """Images of one kind go on beside the other."""
    call = instance()
    memory = Instance(call.home)
    memory.env = {**call.env, "HUSK_DISK": "memory", "HUSK_POOL": "0"}
    assert_in("HUSK_DISK=memory", memory.disks())
    refused = husk("create", env={**call.env, "HUSK_DISK": "cloud"}, code=None)
    assert refused.code != 0 and "HUSK_DISK" in refused.error and "memory" in refused.error, refused
    box = memory("create", timeout=300).text.strip()
    memory("exec", box, "--", "sh", "-c", "echo old >/kept")
    memory("hibernate", box)
    assert_equal(call("exec", box, "--", "cat", "/kept").text, "old\n", "woken without the variable")
    child = call("fork", box).text.strip()
    assert_equal(call("exec", child, "--", "cat", "/kept").text, "old\n")
    call("rm", box, child)


@test
def test_full_host():
    """Guests see a full disk, and go on when there is room again."""
    current_runsc()
    with tempfile.TemporaryDirectory(prefix="husk-f.", dir="/var/tmp") as place:
        run("mount", "-t", "tmpfs", "-o", "size=1800M,mode=700", "tmpfs", place)
        call = Instance(f"{place}/h")
        call.env["HUSK_POOL"] = "0"
        try:
            os.mkdir(call.home, 0o700)
            if "cloned by btrfs" not in call.disks():
                raise Skip(call.disks())
            call.build()
            box, other = call("create").text.strip(), call("create").text.strip()
            filled = call("exec", box, "--", "sh", "-c", "dd if=/dev/zero of=/big bs=1M count=4000; sync", code=None)
            assert_in("No space left on device", filled.error)
            assert_equal(call("exec", other, "--", "echo", "well").text, "well\n")
            call("exec", box, "--", "sh", "-c", "rm /big; echo again >/more; sync; cat /more")
            call("exec", other, "--", "sh", "-c", "dd if=/dev/zero of=/some bs=1M count=50 && sync")
        finally:
            call.clear()
            until(lambda: not call.loops(), "no loop device stays")
            run("umount", place)


@test
def test_a_btrfs_of_the_hosts():
    """With quotas it is used as it is; without, doctor says what to type."""
    current_runsc()
    with tempfile.TemporaryDirectory(prefix="husk-b.", dir="/var/tmp") as place:
        file, mount = f"{place}/file", f"{place}/m"
        os.mkdir(mount)
        with open(file, "wb") as made:
            made.truncate(SIZE)
        run("mkfs.btrfs", "-q", file)
        run("mount", "-o", "loop,noatime,nosuid,nodev", file, mount)
        call = Instance(f"{mount}/h")
        try:
            os.mkdir(call.home, 0o700)
            assert_in("btrfs quota enable", call.disks())
            run("btrfs", "quota", "enable", mount)
            assert_equal(call.disks(), "cloned by btrfs")
            call.build()
            assert not os.path.exists(call.file), "no file in it"
            box = call("create").text.strip()
            write_tree(call, box)
            before = look(call, box)
            child = call("fork", box).text.strip()
            call("hibernate", child)
            assert_equal(look(call, child), before)
            call("rm", box, child)
            call("pool", "drain", code=None)
            left = run("btrfs", "subvolume", "list", mount).split()
            assert not [path for path in left if "/m-" in path], left
        finally:
            call.clear()
            run("umount", mount)


if __name__ == "__main__":
    with _end:
        main(None)
