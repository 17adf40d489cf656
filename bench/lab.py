"""The part `lab` of bench/run, which `make bench-lab` calls: a restore by husk-vmm against one by QEMU's microvm, on the KVM of
the lab (tests/lab/README.md).

Both run the same guest kernel, root image, agent and amount of memory, and restore a machine that was frozen by its agent in
the same way; the clock runs from the start of the monitor to the agent's first answer. In turns, in one boot of the lab,
where this file is run once more, with a count.
"""

import glob
import json
import os
import pathlib
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = "qemu-system-x86"
HOME = "/var/tmp/husk"
COMMAND_LINE = "console=ttyS0 quiet loglevel=3 reboot=t panic=-1 random.trust_cpu=on"
PATIENCE = 180  # seconds, for what a guest is to say
SECONDS = 1800  # for all of it


# ---- inside ----


class Peer:
    """QEMU's microvm, with no default devices."""

    def __init__(self, work, rootfs, memory, cpus):
        self.work, self.rootfs, self.memory, self.cpus = work, rootfs, memory, cpus
        self.disk = work / "disk.raw"
        with open(self.disk, "wb") as file:
            file.truncate(8 << 30)
        subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-E",
                        "lazy_itable_init=1,nodiscard", self.disk], check=True)
        self.initramfs()

    def initramfs(self):
        sys.path.insert(0, str(TOP / "tests/lab"))
        import image  # the lab's: it can write one

        modules = TOP / "build/kernel/modules"
        entries = [("dev", 0o40755, b""), ("init", 0o100755, (TOP / "build/husk-agent").read_bytes()),
                   ("modules", 0o40755, b"")]
        entries += [(f"modules/{path.name}", 0o100644, path.read_bytes()) for path in sorted(modules.iterdir())]
        (self.work / "initramfs").write_bytes(image.cpio(entries))

    def start(self, *more, fds=()):
        drives = []
        # Its kernel finds the last bus first, and takes the first disk it finds for the root. What is on bus 0 never answers.
        for number, (name, path, readonly) in enumerate((("disk", self.disk, "off"), ("root", self.rootfs, "on")), 1):
            drives += ["-drive", f"id={name},if=none,format=raw,file={path},readonly={readonly}",
                       "-device", f"virtio-blk-device,drive={name},bus=virtio-mmio-bus.{number}"]
        command = ["qemu-system-x86_64", "-M", "microvm", "-accel", "kvm", "-cpu", "host",
                   "-global", "virtio-mmio.force-legacy=false", "-smp", str(self.cpus), "-m", f"{self.memory >> 20}M",
                   "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-kernel", TOP / "build/kernel/vmlinuz", "-initrd",
                   self.work / "initramfs", "-append", COMMAND_LINE, "-serial", f"file:{self.work}/console", *drives,
                   "-device", "vhost-vsock-device,guest-cid=3,bus=virtio-mmio-bus.3",
                   "-qmp", f"unix:{self.work}/qmp,server=on,wait=off", *more]
        return subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, pass_fds=fds)

    def ask(self, *commands):
        """QMP, one command after the other; the last answer."""
        for _ in range(600):
            if os.path.exists(f"{self.work}/qmp"):
                break
            time.sleep(0.1)
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(f"{self.work}/qmp")
            lines = link.makefile("rw")
            lines.readline()
            for command in ({"execute": "qmp_capabilities"}, *commands):
                lines.write(json.dumps(command) + "\n")
                lines.flush()
                while "return" not in (answer := json.loads(lines.readline())):
                    if "error" in answer:
                        raise RuntimeError(f"{command}: {answer['error']}")
            return answer["return"]

    def bake(self):
        """Boots it, has its agent freeze it, and saves it."""
        agent = helper("bake")
        agent.stdout.readline()
        machine = self.start()
        self.hear(agent)
        # While it runs, so that it runs where it is restored; it is frozen, and has nothing to do.
        self.ask({"execute": "migrate-set-parameters", "arguments": {"max-bandwidth": 1 << 40}},
                 {"execute": "migrate", "arguments": {"uri": f"exec:cat >{self.work}/saved"}})
        while (status := self.ask({"execute": "query-migrate"}).get("status")) != "completed":
            if status in ("failed", "cancelled"):
                raise RuntimeError(f"QEMU's save {status}")
            time.sleep(0.2)
        machine.kill()
        machine.wait()
        agent.kill()
        agent.wait()
        os.unlink(f"{self.work}/qmp")

    def hear(self, agent):
        """What the helper says of the guest's agent."""
        ready, _, _ = select.select([agent.stdout], [], [], PATIENCE)
        if not ready or not (line := agent.stdout.readline()):
            said = pathlib.Path(f"{self.work}/console").read_text(errors="replace")
            raise RuntimeError(f"the agent of QEMU's guest did not answer; its console:\n{said[-4000:]}")
        return line

    def restore(self):
        agent = helper("answer")
        agent.stdout.readline()
        with open(self.work / "saved", "rb") as saved:
            begin = time.clock_gettime(time.CLOCK_MONOTONIC) * 1000
            machine = self.start("-incoming", f"fd:{saved.fileno()}", fds=[saved.fileno()])
        try:
            return float(self.hear(agent)) - begin
        finally:
            machine.kill()
            machine.wait()
            agent.kill()
            agent.wait()


def helper(*words):
    return subprocess.Popen([TOP / "build/bench/lab", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def tiny_template():
    """A root filesystem with a shell and nothing else: what is restored is a kernel and an agent."""
    root = pathlib.Path("/var/tmp/tiny")
    for name in ("bin", "etc", "tmp", "proc", "sys", "dev", "root"):
        (root / name).mkdir(parents=True)
    shutil.copy("/usr/bin/busybox", root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    subprocess.run([TOP / "build/husk", "template", "build", "--rootfs", root, "--name", "tiny", "--isolation",
                    "microvm"], check=True)
    marker = pathlib.Path(glob.glob(f"{HOME}/templates/*/**/ok", recursive=True)[0])
    rootfs = next(path for path in marker.parents if (path / "rootfs.img").exists()) / "rootfs.img"
    return marker.parent, rootfs, json.loads(marker.read_text())


def ours(work, image, rootfs, disk_bytes, number):
    place = work / f"machine{number}"
    place.mkdir(mode=0o711)
    done = helper("ours", image, rootfs, str(disk_bytes), place)
    text, _ = done.communicate(timeout=600)
    shutil.rmtree(place)
    if done.returncode:
        raise RuntimeError("husk-vmm's restore failed")
    return float(text)


def inside(count):
    subprocess.run(["modprobe", "vhost_vsock"], check=False)
    work = pathlib.Path(tempfile.mkdtemp(prefix="bench.", dir="/var/tmp"))
    os.chmod(work, 0o711)
    image, rootfs, marker = tiny_template()
    print(f"image: {sorted(path.name for path in image.iterdir())}, {marker['vcpus']} vCPUs, "
          f"{marker['memory_bytes'] >> 20} MiB", flush=True)
    disk_bytes = marker["disk_bytes"]
    peer = Peer(work, rootfs, marker["memory_bytes"], marker["vcpus"])
    peer.bake()
    print(f"QEMU saved {(work / 'saved').stat().st_size >> 20} MiB", flush=True)
    mine, theirs = [], []
    for number in range(count + 1):  # the first is not counted: it warms both
        mine.append(ours(work, image, rootfs, disk_bytes, number))
        theirs.append(peer.restore())
        print(f"round {number}: ours {mine[-1]:.0f} ms, QEMU {theirs[-1]:.0f} ms", flush=True)
    result = json.dumps({"ours": mine[1:], "peer": theirs[1:]})
    pathlib.Path(os.environ["LAB_RESULTS"], "times.json").write_text(result, encoding="utf-8")


# ---- outside ----


def build(build_folder, libraries):
    program = build_folder / "bench/lab"
    program.parent.mkdir(exist_ok=True)
    subprocess.run([os.environ.get("CC", "gcc"), "-std=gnu17", "-D_GNU_SOURCE", "-O2", "-Iinclude", "-Isrc",
                    "bench/lab.c", build_folder / "libhusk.a", *libraries, "-o", program], cwd=TOP, check=True)


def rows(Row, count, build_folder, libraries):
    build(build_folder, libraries)
    with tempfile.TemporaryDirectory(prefix="husk-bench.", dir="/var/tmp") as results:
        command = [sys.executable, TOP / "tests/lab/run", "--timeout", str(SECONDS), "--results", results, "--", "env",
                   f"HUSK_HOME={HOME}", "python3", "bench/lab.py", str(count)]
        status = subprocess.run([str(word) for word in command], env={**os.environ, "LAB_PACKAGES": PACKAGES},
                                stdin=subprocess.DEVNULL, check=False).returncode
        if status:
            raise RuntimeError(f"the lab ended with status {status} (tests/lab/README.md)")
        times = json.loads(pathlib.Path(results, "times.json").read_text(encoding="utf-8"))
    yield Row("restore to the agent's first answer / QEMU microvm", "ms", times["ours"], times["peer"], 0.5)


if __name__ == "__main__":
    inside(int(sys.argv[1]))
