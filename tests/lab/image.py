"""Makes what the lab's host boots from, out of Debian packages that are unpacked and not installed: a kernel, an
initramfs and a root filesystem. tests/lab/run calls prepare(); everything slow is kept under $HUSK_CACHE by the content
of what went in. It must never change the machine it runs on, nor write outside the cache.
"""

import contextlib
import fcntl
import hashlib
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent
CACHE = pathlib.Path(os.environ.get("HUSK_CACHE", "/var/cache/husk-test"))

KERNEL = "linux-image-cloud-amd64"
# What the tests, Husk and somebody who debugs them need, beside the libraries Husk's programs are linked to.
PACKAGES = (
    "base-files base-passwd bash coreutils dash findutils grep gzip hostname sed tar mawk util-linux mount procps kmod "
    "iproute2 nftables python3 e2fsprogs erofs-utils openssl strace libc-bin debianutils ca-certificates"
).split()
KEPT = 4  # finished hosts in the cache
FRESH_SECONDS = 7 * 86400  # then the newest packages are fetched again
# What the initramfs loads before there is a root filesystem.
EARLY_MODULES = ["virtio_pci", "virtio_blk", "erofs", "overlay"]


class Unavailable(Exception):
    """The lab cannot be built here; the text says why."""


def call(*command, **options):
    """Runs a program; its output as text."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=900, check=False, **options)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(map(str, command))[:200]}: {done.stderr.strip()[-600:]}")
    return done.stdout


# ---- which packages ----


def linked_libraries(programs):
    """The packages that own the libraries these programs are linked to."""
    paths = set()
    for program in programs:
        if program.exists():
            paths.update(re.findall(r"=> (/\S+)", call("ldd", program)))
    owners = set()
    for path in sorted(paths):
        # A package may have recorded its file under either name of a merged /usr.
        for name in (path, path.removeprefix("/usr"), f"/usr{path}"):
            with contextlib.suppress(Unavailable):
                owners.add(call("dpkg-query", "-S", name).split(":")[0])
                break
    return sorted(owners)


def programs():
    build = TOP / os.environ.get("HUSK_BUILD", "build")
    return [build / "husk", build / "husk-vmm", *sorted((build / "tests").glob("test_*"))]


# ---- getting and unpacking them ----


class Apt:
    """The machine's own package sources, with lists and downloads in a folder of ours, as if nothing were installed."""

    def __init__(self, folder):
        self.folder = folder
        for part in ("state/lists/partial", "cache/archives/partial", "alone"):
            (folder / part).mkdir(parents=True)
        (folder / "state/status").touch()
        self.options = [f"-oDir::State={folder}/state", f"-oDir::State::status={folder}/state/status",
                        f"-oDir::Cache={folder}/cache", "-oAPT::Install-Recommends=false", "-oAPT::Sandbox::User=root",
                        "-oAcquire::Languages=none", "-oAcquire::Retries=3",
                        "-oBinary::apt-get::APT::Keep-Downloaded-Packages=true"]
        # A source of someone else's that is broken must not stop us: what counts is whether the packages are found.
        with contextlib.suppress(Unavailable):
            self.call("apt-get", "update")

    def call(self, program, *arguments, **options):
        return call(program, "-q", "-y", *self.options, *arguments, **options)

    def kernel(self):
        """The real package behind the name that always means the newest."""
        listed = call("apt-cache", *self.options, "depends", KERNEL)
        match = re.search(r"Depends: (linux-image-\S+-cloud-amd64)$", listed, re.MULTILINE)
        if not match:
            raise Unavailable(f"no package source of this machine has {KERNEL}")
        return match[1]

    def closure(self, names):
        """The packages with all they depend on."""
        self.call("apt-get", "install", "--download-only", *names)
        return sorted((self.folder / "cache/archives").glob("*.deb"))

    def alone(self, name):
        """One package without what it depends on."""
        self.call("apt-get", "download", name, cwd=self.folder / "alone")
        return next((self.folder / "alone").glob(f"{name}_*.deb"))


def unpack(packages, root):
    """Without running anything of theirs. /bin, /sbin and /lib are links into /usr, as on every Debian host."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in packages:
        # Through tar, because dpkg-deb -x would replace those links by directories.
        archive = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
        call_tar = subprocess.run(["tar", "-C", root, "-x", "--keep-directory-symlink", "--exclude=./usr/share/doc/*",
                                   "--exclude=./usr/share/man/*", "--exclude=./usr/share/locale/*"],
                                  stdin=archive.stdout, check=False)
        archive.stdout.close()
        if archive.wait() != 0 or call_tar.returncode != 0:
            raise Unavailable(f"cannot unpack {package.name}")


def finish_root(root):
    """What maintainer scripts would have done, as far as the lab needs it."""
    shutil.copy(root / "usr/share/base-passwd/passwd.master", root / "etc/passwd")
    shutil.copy(root / "usr/share/base-passwd/group.master", root / "etc/group")
    (root / "etc/hostname").write_text("lab\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost lab\n")
    for name in ("husk", "proc", "sys", "dev", "run", "tmp", "root", "var/tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for link, target in (("awk", "mawk"), ("sh", "dash")):
        if not (root / "usr/bin" / link).exists():
            (root / "usr/bin" / link).symlink_to(target)
    call("chroot", root, "/sbin/ldconfig")
    call("chroot", root, "/sbin/depmod", release(root))


def release(root):
    return next((root / "usr/lib/modules").iterdir()).name


# ---- the initramfs ----


def module_order(root, wanted):
    """Paths of the modules and all they depend on, each after what it needs."""
    base = root / "usr/lib/modules" / release(root)
    needs = {}
    for line in (base / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    by_name = {pathlib.Path(path).name.split(".")[0].replace("-", "_"): path for path in needs}
    order = []
    for name in wanted:
        if name not in by_name:  # built into this kernel
            continue
        # modules.dep lists the nearest first; loading goes the other way.
        for path in [*reversed(needs[by_name[name]]), by_name[name]]:
            if path not in order:
                order.append(path)
    return [base / path for path in order]


def cpio(entries):
    """A "newc" archive of (name, mode, bytes)."""
    out = bytearray()
    for number, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        out += b"\0" * (-len(out) % 4) + data
        out += b"\0" * (-len(out) % 4)
    return bytes(out)


def initramfs(root, busybox):
    modules = module_order(root, EARLY_MODULES)
    entries = [("bin", 0o40755, b""), ("modules", 0o40755, b""), ("dev", 0o40755, b""),
               ("bin/busybox", 0o100755, busybox.read_bytes()), ("bin/sh", 0o120777, b"busybox"),
               ("init", 0o100755, (HERE / "init").read_bytes())]
    names = []
    for path in modules:
        data = path.read_bytes()
        if path.suffix == ".xz":
            path, data = path.with_suffix(""), lzma.decompress(data)
        names.append(path.name)
        entries.append((f"modules/{path.name}", 0o100644, data))
    entries.append(("modules/order", 0o100644, "".join(f"{name}\n" for name in names).encode()))
    return cpio(entries)


# ---- all of it ----


def build(folder, names):
    """Fills `folder` with kernel, initramfs and root.img."""
    with tempfile.TemporaryDirectory(prefix="lab-build.", dir=CACHE) as name:
        work = pathlib.Path(name)
        root = work / "root"
        root.mkdir()
        apt = Apt(work / "apt")
        unpack([*apt.closure(names), apt.alone(apt.kernel())], root)
        finish_root(root)
        call("dpkg-deb", "-x", apt.alone("busybox-static"), work / "busybox")
        shutil.copy(work / "busybox/bin/busybox", root / "usr/bin/busybox")  # for tiny guests
        (folder / "initramfs").write_bytes(initramfs(root, work / "busybox/bin/busybox"))
        shutil.copy(next((root / "boot").glob("vmlinuz-*")), folder / "kernel")
        call("mkfs.erofs", "-T0", folder / "root.img", root)


@contextlib.contextmanager
def locked():
    CACHE.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(CACHE / "lab.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def forget_old():
    """Keeps the last few: other checkouts may have other lists of packages."""
    folders = sorted(CACHE.glob("lab-" + "?" * 16), key=lambda folder: folder.stat().st_mtime)
    for old in folders[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def identity(names):
    """Names a finished host by what goes into it, but for the versions of packages."""
    key = hashlib.sha256()
    for text in (*names, (HERE / "init").read_text(), pathlib.Path(__file__).read_text()):
        key.update(text.encode() + b"\0")
    return f"lab-{key.hexdigest()[:16]}"


def prepare(say=lambda text: None):
    """The folder with `kernel`, `initramfs` and `root.img`, built when there is none of this week. Unavailable says why
    it cannot be."""
    for program in ("qemu-system-x86_64", "apt-get", "mkfs.erofs", "mke2fs"):
        if not shutil.which(program):
            raise Unavailable(f"{program} is not installed; run: scripts/setup lab")
    names = sorted({*PACKAGES, *linked_libraries(programs()), *os.environ.get("LAB_PACKAGES", "").split()})
    folder = CACHE / identity(names)
    with locked():
        if folder.exists() and time.time() - folder.stat().st_mtime < FRESH_SECONDS:
            return folder
        say(f"building the lab's host from {len(names)} packages, those they depend on, and {KERNEL}")
        with tempfile.TemporaryDirectory(prefix="lab-new.", dir=CACHE) as name:
            made = pathlib.Path(name) / "lab"
            made.mkdir()
            try:
                build(made, names)
            except Unavailable as error:
                if not folder.exists():
                    raise
                say(f"taking the one that is there, which is old: {error}")
                return folder
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
        forget_old()
    return folder
