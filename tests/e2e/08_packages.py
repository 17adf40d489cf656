#!/usr/bin/env python3
"""The Debian packages: what is in them, lintian, the library from them, the units; a socket from systemd; completion scripts of
three shells; `husk uninstall`. Installing them in a bare Debian is `make deb-test`, which takes minutes."""

# timeout: 1500
import http.client
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile

from lib.harness import *

DEBS = {}  # name of a package: its file; made by the first test


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **options)
    assert done.returncode == 0, f"{command[0]}: {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def need_plain_build():
    if BUILD.name != "build":
        raise Skip("packages are made from the plain build")


def packages(place):
    need_plain_build()
    if not shutil.which("dh"):
        raise Skip("debhelper is not installed (scripts/setup package)")
    if not DEBS:
        run(str(TOP / "scripts/deb"), str(BUILD), str(place))
        for file in os.listdir(place):
            DEBS[file.split("_")[0]] = os.path.join(place, file)
    assert_equal(sorted(DEBS), ["husk", "huskd", "libhusk-dev"])
    return DEBS


def contents(package):
    lines = run("dpkg-deb", "-c", package).split("\n")
    return {line.split()[5].lstrip("."): line for line in lines if line and not line.split()[5].endswith("/")}


PLACE = tempfile.mkdtemp(prefix="husk-deb.", dir="/var/tmp")


@test
def test_packages_hold_what_they_should():
    debs = packages(f"{PLACE}/debs")
    files = contents(debs["husk"])
    for path in (
        "/usr/bin/husk",
        "/usr/lib/husk/husk-agent",
        "/usr/lib/husk/husk-vmm",
        "/usr/lib/husk/guest/zygote.py",
        "/usr/lib/x86_64-linux-gnu/libhusk.so.0",
        "/usr/share/husk/templates/base/template",
        "/usr/share/man/man1/husk.1.gz",
        "/usr/share/bash-completion/completions/husk",
        "/usr/share/zsh/vendor-completions/_husk",
        "/usr/share/fish/vendor_completions.d/husk.fish",
    ):
        assert_in(path, files)
    strangers = [path for path in files if not path.startswith(("/usr/", "/lib/systemd/system/"))]
    assert_equal(strangers, [])
    writable = [line for line in files.values() if line[0] == "-" and ("w" in line[5] or "w" in line[8])]
    assert_equal(writable, [])
    server = contents(debs["huskd"])
    for path in (
        "/usr/bin/huskd",
        "/lib/systemd/system/huskd.service",
        "/lib/systemd/system/huskd.socket",
        "/usr/lib/sysusers.d/huskd.conf",
        "/usr/lib/tmpfiles.d/huskd.conf",
    ):
        assert_in(path, server)
    depends = run("dpkg-deb", "-f", debs["husk"], "Depends")
    for name in ("runsc (>= 0.0~20240729)", "erofs-utils", "mmdebstrap", "libnftables1", "libcurl4", "libjansson4"):
        assert_in(name, depends)


@test
def test_lintian():
    debs = packages(f"{PLACE}/debs")
    if not shutil.which("lintian"):
        raise Skip("lintian is not installed (scripts/setup package)")
    done = subprocess.run(["lintian", "--fail-on", "error,warning", *debs.values()], capture_output=True, text=True,
                          timeout=600, check=False)  # fmt: skip
    assert_equal((done.returncode, done.stdout), (0, ""))


@test
def test_library_from_the_packages():
    # A program builds against what libhusk-dev brings, and runs with the library of husk, from wherever they are unpacked.
    debs = packages(f"{PLACE}/debs")
    root = f"{PLACE}/root"
    for package in debs.values():
        run("dpkg-deb", "-x", package, root)
    with open(f"{PLACE}/try.c", "w", encoding="utf-8") as file:
        file.write('#include <stdio.h>\n#include "husk.h"\nint main(void) { puts(HUSK_VERSION); return husk_state_name(0) == 0; }\n')
    lib = f"{root}/usr/lib/x86_64-linux-gnu"
    run("gcc", f"-I{root}/usr/include", f"{PLACE}/try.c", f"-L{lib}", "-lhusk", "-o", f"{PLACE}/try")
    version = run(f"{PLACE}/try", env=environment({"LD_LIBRARY_PATH": lib})).strip()
    assert_equal(run(f"{root}/usr/bin/husk", "version").strip(), f"husk {version}")
    with open(f"{lib}/pkgconfig/libhusk.pc", encoding="utf-8") as file:
        text = file.read()
    assert_in("libdir=/usr/lib/x86_64-linux-gnu", text)
    assert_in(f"Version: {version}", text)
    # It finds the files that come with it beside itself.
    templates = run(f"{root}/usr/bin/husk", "completion", "words", "--", "create", "-t", "").split()
    assert_in("code-interpreter", templates)


@test
def test_tarball():
    # It runs where it is unpacked; its script installs and removes it without leaving a file.
    need_plain_build()
    out = f"{PLACE}/dist"
    run(str(TOP / "scripts/dist"), str(BUILD), out, "tarball")
    (tarball,) = [name for name in os.listdir(out) if name.endswith(".tar.xz")]
    run("sh", "-c", "sha256sum -c SHA256SUMS", cwd=out)
    run("tar", "-C", out, "-xf", f"{out}/{tarball}")
    tree = f"{out}/{tarball[:-len('.tar.xz')]}"
    version = run(f"{tree}/bin/husk", "version")
    assert_in("code-interpreter", run(f"{tree}/bin/husk", "completion", "words", "--", "create", "-t", "").split())
    prefix = f"{PLACE}/prefix"
    install = [f"{tree}/install", "--prefix", prefix, "--no-packages"]
    os.mkdir(prefix)
    run(*install)
    run(*install)  # over itself
    shutil.move(f"{tree}/lib", f"{tree}/lib.away")  # the installation stands on its own
    assert_equal(run(f"{prefix}/bin/husk", "version"), version)
    with open(f"{prefix}/lib/systemd/system/huskd.service", encoding="utf-8") as file:
        assert_in(f"ExecStart={prefix}/bin/huskd", file.read())
    run(f"{tree}/install", "--prefix", prefix, "--remove")
    left = [path for path in pathlib.Path(prefix).rglob("*") if not path.is_dir()]
    assert_equal(left, [])
    for words in (["--frobnicate"], ["--prefix", "here"], ["--prefix", prefix, "--remove"]):
        done = subprocess.run([f"{tree}/install", *words], capture_output=True, text=True, timeout=60, check=False)
        assert_equal(done.returncode, 1, str(words))


@test
def test_wheel_of_the_programs():
    """pip alone gives a working husk; a folder "templates" of the project beside the environment does not disturb it."""
    need_plain_build()
    if subprocess.run(["/usr/bin/python3", "-c", "import setuptools, wheel, pip, venv"], capture_output=True, timeout=60, check=False).returncode:
        raise Skip("python3-pip, python3-setuptools or python3-wheel is not installed (scripts/setup package)")
    out, project = f"{PLACE}/wheels", pathlib.Path(PLACE) / "project"
    run(str(TOP / "scripts/dist"), str(BUILD), out, "binaries", "wheel")
    wheels = sorted(f"{out}/{name}" for name in os.listdir(out) if name.endswith(".whl"))
    assert_equal([os.path.basename(name).split("-")[0] for name in wheels], ["husk_bin", "husk_sandbox"])
    (project / "templates").mkdir(parents=True)
    run("/usr/bin/python3", "-m", "venv", "--without-pip", str(project / "venv"))
    python = str(project / "venv/bin/python")
    pip = ["/usr/bin/python3", "-m", "pip", "--python", python]
    run(*pip, "install", "--no-index", wheels[0], f"{wheels[1]}[local]")
    program = str(project / "venv/bin/husk")
    assert_equal(run(program, "version"), husk("version").text)
    assert_equal(run(program, "run", "--", "echo", "from a wheel", env=environment({"HUSK_BIN": None})).strip(), "from a wheel")
    definitions = f"{os.path.dirname(run(python, '-c', 'import husk_bin; print(husk_bin.path())').strip())}/../share/husk/templates"
    for folder, _, files in os.walk(TOP / "templates"):  # with their links, which no wheel can hold
        for name in files:
            ours, theirs = os.path.join(folder, name), f"{definitions}/{os.path.relpath(folder, TOP / 'templates')}/{name}"
            assert_equal(os.path.islink(theirs), os.path.islink(ours), theirs)
            assert_equal(os.access(theirs, os.X_OK, follow_symlinks=False), os.access(ours, os.X_OK, follow_symlinks=False), theirs)
    run(python, "-c", "import husk; husk.Sandbox")
    run(*pip, "uninstall", "-y", "husk-bin")
    assert_equal([str(path) for path in project.rglob("*husk_bin*")] + [str(path) for path in project.rglob("bin/husk*")], [])


@test
def test_units():
    if not shutil.which("systemd-analyze"):
        raise Skip("systemd-analyze is not installed")
    with tempfile.TemporaryDirectory() as place:
        for unit in ("huskd.service", "huskd.socket", "husk-recover.service", "husk-recover.timer"):
            text = (TOP / "contrib" / unit).read_text(encoding="utf-8").replace("/usr/local/bin", str(BUILD.resolve()))
            (pathlib.Path(place) / unit).write_text(text, encoding="utf-8")
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *[f"{place}/{unit}" for unit in os.listdir(place)]],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        ours = [line for line in done.stderr.split("\n") if "husk" in line]
        assert_equal(ours, [])


# ---- a socket from systemd ----


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self.path)


def activated(listener, *options):
    """huskd as systemd starts it: the socket is descriptor 3."""

    def child():
        if listener.fileno() != 3:
            os.dup2(listener.fileno(), 3)
        os.set_inheritable(3, True)
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", HUSK_HOME=HOME)
        os.execv(str(BUILD / "huskd"), ["huskd", "--listen", "none", *options])

    pid = os.fork()
    if pid == 0:
        try:
            child()
        finally:
            os._exit(99)
    return pid


@test
def test_socket_activation():
    with tempfile.TemporaryDirectory(prefix="husk-sd.", dir="/var/tmp") as place:
        path = f"{place}/s.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(16)
            for _ in range(2):  # the second one serves a client that came while none ran
                early = Unix(path)
                early.request("GET", "/v1/sandboxes")
                pid = activated(listener)
                answer = early.getresponse()
                assert_equal(answer.status, 200)
                answer.read()
                early.close()
                os.kill(pid, 15)
                _, status = os.waitpid(pid, 0)
                assert_equal(os.waitstatus_to_exitcode(status), 0)
                assert os.path.exists(path), "systemd's socket must stay when huskd stops"


@test
def test_sockets_that_cannot_be_served():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        _, status = os.waitpid(activated(stranger), 0)
        assert_equal(os.waitstatus_to_exitcode(status), 2, "a datagram socket is refused")
    with tempfile.TemporaryDirectory(prefix="husk-sd.", dir="/var/tmp") as place, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{place}/s.sock")
        listener.listen(1)
        _, status = os.waitpid(activated(listener, "--socket", f"{place}/other"), 0)
        assert_equal(os.waitstatus_to_exitcode(status), 2, "--socket beside systemd's is refused")


# ---- completion ----


def words(*line):
    return [word.split("\t")[0] for word in husk("completion", "words", "--", *line).text.split("\n") if word]


@test
def test_completion_words():
    assert_in("hibernate", words("hib"))
    assert_equal(words("snapshot", ""), ["create", "ls", "rm", "export", "import", "push", "pull"])
    assert_in("base", words("create", "-t", ""))
    assert_equal(words("serve", "--log", "j"), ["json"])
    assert_equal(words("mcp", "install", "co"), ["codex"])
    assert_in("--template", words("create", "--te"))
    assert_in(":files", words("code", "-f", ""))
    assert_equal(words("run", "--", "l"), [], "the guest's command is not ours to complete")
    assert_equal(words("frobnicate", ""), [])
    # Each option that a page lists is offered.
    page = husk("create", "--help").text
    for option in set(part.split()[0] for line in page.split("\n") for part in line.split(", ") if part.strip().startswith("--")):
        assert_in(option, words("create", "--"))


@test
def test_completion_scripts():
    for shell, check in (("bash", ["bash", "-n"]), ("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])):
        script = husk("completion", shell).text
        assert_in("completion words --", script)
        if not shutil.which(shell):
            print(f"# {shell} is not installed: its script is not read by it")
            continue
        with tempfile.NamedTemporaryFile("w", suffix=f".{shell}") as file:
            file.write(script)
            file.flush()
            run(*check, file.name)
    assert_fails("completion", "tcsh", code=2, says="bash, zsh or fish")


# ---- uninstall ----


@test
def test_uninstall():
    assert_fails("uninstall", code=2, says="--stop or --data")
    with tempfile.TemporaryDirectory(prefix="husk-un.", dir="/var/tmp") as other:
        os.chmod(other, 0o700)
        home = f"{other}/h"
        env = {"HUSK_HOME": home}
        husk("volume", "create", "data", env=env)
        assert_fails("uninstall", "--data", code=2, says="1 volumes", env=env)
        assert_equal(husk("volume", "ls", "--json", env=env).json()[0]["name"], "data", "nothing was removed")
        husk("uninstall", "--data", "--yes", env=env)
        assert not os.path.exists(home), os.listdir(home)


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)
