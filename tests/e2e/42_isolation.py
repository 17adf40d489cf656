#!/usr/bin/python3
"""What a guest can see and reach of the host: nothing."""

# timeout: 1800
import http.server
import os
import pathlib
import socket
import threading

from lib.harness import *


@test
def test_no_file_of_the_host():
    with scratch() as place:
        (place / "secret-of-the-host").write_text("secret")
        box = create()
        for path in (place, HOME, TOP, "/etc/apt/sources.list.d", "/host", "/run/husk", "/var/lib/husk"):
            found = sh(box, f"ls -A '{path}' 2>/dev/null | head -3")
            ours = os.listdir(path) if os.path.isdir(path) else []
            assert not set(found.split("\n")) & set(ours) or not found, f"{path}: {found}"
        assert_equal(sh(box, "find / -xdev -name 'secret-of-the-host' 2>/dev/null"), "")
        ours = pathlib.Path("/etc/machine-id")  # a bare root has none
        assert not ours.exists() or sh(box, "cat /etc/machine-id") != ours.read_text().strip()
        assert sh(box, "hostname") != os.uname().nodename


@test
def test_no_mount_of_the_host():
    box = create()
    # Where shares appear (src/engine/gvisor/shares.c) is a directory of the host with places for them, in every machine that may have some.
    mounts = sh(box, "cat /proc/self/mountinfo /proc/mounts /proc/1/mountinfo | grep -v ' /.husk/volumes '")
    assert_equal(sh(box, "find /.husk/volumes -mindepth 2 2>/dev/null; true"), "")
    for word in (HOME, "/var/tmp", str(TOP), "/dev/vd", "/dev/sd", "ext4", "9p", "lisafs"):
        assert word not in mounts, f"{word} in {mounts}"
    kinds = set(sh(box, "awk '$2 != \"/.husk/volumes\" {print $3}' /proc/mounts").split())
    # Its control groups are those of the guest's own kernel.
    assert kinds <= {"cgroup", "cgroup2", "overlay", "proc", "sysfs", "tmpfs", "devpts", "devtmpfs", "dev", "erofs", "mqueue"}, kinds


@test
def test_no_process_of_the_host():
    box = create()
    lines = sh(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    for word in ("runsc", "supervise", "systemd", HOME):
        assert word not in lines, lines
    assert processes(box) < 20
    assert_equal(sh(box, "cat /proc/1/comm"), "husk-agent")


@test
def test_no_environment_of_the_host():
    os.environ["E2E_HOST_SECRET"] = "leak-me"
    try:
        box = create()
        everything = sh(box, "cat /proc/[0-9]*/environ | tr '\\0' '\\n'; env")
    finally:
        del os.environ["E2E_HOST_SECRET"]
    assert "leak-me" not in everything and "HUSK" not in everything, everything


@test
def test_own_kernel():
    box = create()
    if isolation() == "gvisor":
        assert sh(box, "uname -rv") != os.popen("uname -rv").read().strip()
        assert_in("gVisor", sh(box, "dmesg"))
    else:  # perhaps of the same package; but it started by itself
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
        assert sh(box, f"cat {boot}") != boot.read_text().strip()


@test
def test_no_network():
    class Quiet(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("0.0.0.0", 0), Quiet)
    port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        box = create()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))
                own = probe.getsockname()[0]
            except OSError:
                own = "127.0.0.1"
        for address in ("127.0.0.1", own, "10.0.0.1", "169.254.169.254", "192.0.2.1", "8.8.8.8"):
            code = (
                f"import socket; s=socket.socket(); s.settimeout(3)\n"
                f"try: s.connect(('{address}',{port})); print('connected')\nexcept OSError as e: print('refused')"
            )
            assert_equal(sh(box, f"python3 -c \"{code}\""), "refused", f"{address}:{port}")
        links = sh(box, "ls /sys/class/net 2>/dev/null; cat /proc/net/dev | tail -n +3 | cut -d: -f1").split()
        assert set(links) <= {"lo", "eth0"}, links  # a wire whose far end lets nothing through
        assert "resolved" not in sh(box, "getent hosts example.com >/dev/null && echo resolved; true")
    finally:
        server.shutdown()
        server.server_close()


@test
def test_loopback_is_its_own():
    one, two = create(), create()
    husk("exec", "-d", one, "--", "python3", "-m", "http.server", "8123", "--bind", "127.0.0.1")
    until(lambda: sh(one, "curl -s -o /dev/null -w %{http_code} http://127.0.0.1:8123/ || true") == "200", "it serves")
    assert_equal(sh(two, "curl -s http://127.0.0.1:8123/ >/dev/null; echo $?"), "7", "the neighbour cannot reach it")
    with socket.socket() as probe:
        probe.settimeout(2)
        assert probe.connect_ex(("127.0.0.1", 8123)) != 0, "the host can reach it"


@test
def test_host_uids():
    ranges = set()
    for pid in [kernel_of(create()) for _ in range(2)]:
        ids = status_of(pid)["Uid"].split() + status_of(pid)["Gid"].split()
        assert_equal(len(set(ids)), 1, f"process {pid} runs under several ids: {ids}")
        assert int(ids[0]) >= 65536, f"process {pid} runs as uid {ids[0]}"
        ranges.add(int(ids[0]) // 65536)
    assert_equal(len(ranges), 2, "two sandboxes share a range of uids")


def status_of(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


@test
def test_host_privileges():
    pid = kernel_of(create())
    assert_equal(status_of(pid)["Seccomp"], "2", "it has a seccomp filter")
    assert_equal(status_of(pid)["NoNewPrivs"], "1", "it cannot gain privileges")
    # A monitor has an id of the host's that nobody else has, and no capability, in the place of a user namespace.
    for name in ("user", "pid", "net", "ipc", "uts", "mnt")[isolation() == "microvm" :]:
        assert os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(
            f"/proc/self/ns/{name}"
        ), f"it shares the {name} namespace"
    seen = {os.path.join(path, name) for path, _, names in os.walk(f"/proc/{pid}/root/etc") for name in names}
    assert {name.rpartition("/")[2] for name in seen} <= {"localtime"}, f"it sees files of the host: {seen}"
    assert set(os.listdir(f"/proc/{pid}/root/")) <= {"etc", "proc"}, "it sees directories of the host"


@test
def test_state_is_private():
    create()
    for path in (HOME, f"{HOME}/run", f"{HOME}/catalog.db", f"{HOME}/snapshots", f"{HOME}/sandboxes"):
        mode = os.stat(path).st_mode & 0o077
        assert mode & 0o066 == 0, f"{path} can be read by others: {mode:o}"


@test
def test_other_users_cannot_talk_to_it():
    box = create()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(f"{HOME}/run/{box}.sock")
        except PermissionError:
            code = 0
        os._exit(code)
    assert_equal(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0, "another user could connect")


@test
def test_guest_root_can_only_hurt_itself():
    neighbour, box = create(), create()
    sh(box, "umount -l / 2>/dev/null; mount -o remount,ro / 2>/dev/null; mount --bind /etc /mnt 2>/dev/null; true")
    if isolation() == "gvisor":  # a kernel of its own may take a root at its word
        assert_equal(sh(box, "echo still"), "still")
    # What happens to a machine whose pid 1 is killed is its own business: alive, or over and saying so.
    husk("exec", box, "--", "sh", "-c", "kill -9 1; kill -STOP 1; true", code=None)
    if husk("exec", box, "--", "true", code=None).code:
        until(lambda: inspect(box)["state"] == "ended", "it is over")
        assert_equal(inspect(box)["end_reason"], "crashed")
    assert_equal(sh(neighbour, "echo fine"), "fine")
    assert_no_leaks()


if __name__ == "__main__":
    main("base")
