#!/usr/bin/env python3
# timeout: 2700
"""README.md: `make install` puts everything in place and `make uninstall` takes it away; with the installed husk on PATH
every command of the page runs as printed, and so do its programs in Python, TypeScript and C. AGENTS.md's commands too.
"""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys

from lib import documents
from lib.harness import BUILD, BUILD_SECONDS, TOP, assert_equal, assert_in, environment, husk, main, scratch, test
from lib.http import server

INSTALLED = BUILD / "documents-install"


def make(*words):
    done = subprocess.run(
        ["make", "-s", *words, f"DESTDIR={INSTALLED}"], cwd=TOP, capture_output=True, text=True, timeout=900, check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))},
    )
    assert_equal(done.returncode, 0, f"make {words}: {done.stdout[-800:]} {done.stderr[-800:]}")


def installed():
    if not (INSTALLED / "usr").exists():
        if BUILD.name == "build":
            make("install")
        else:  # a build of another kind, such as the sanitized one: that is what is tested, where it is
            (INSTALLED / "usr/local/bin").mkdir(parents=True)
            (INSTALLED / "usr/local/bin/husk").symlink_to(BUILD / "husk")
    return INSTALLED / "usr/local"


def reader(place):
    """The environment of somebody who has installed Husk."""
    env = environment({"HOME": str(place)})
    env["PATH"] = f"{installed() / 'bin'}:{env['PATH']}"
    return env


def taken(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def block(kind, has, path="README.md"):
    """The one block of a document that is of this kind and holds these words."""
    found = [lines for _, blocks in documents.sections(TOP / path) for name, lines in blocks if name == kind]
    found = ["\n".join(lines) + "\n" for lines in found]
    found = [text for text in found if has in text]
    assert_equal(len(found), 1, f"blocks of {kind} with {has!r}")
    return found[0]


@test
def install_and_uninstall():
    if BUILD.name != "build":
        return
    shutil.rmtree(INSTALLED, ignore_errors=True)
    make("install")
    prefix = installed()
    for name in ("bin/husk", "bin/huskd", "lib/husk/husk-agent", "lib/husk/guest/kernel.py", "share/husk/templates/base/template",
                 "lib/pkgconfig/libhusk.pc", "share/man/man1/husk.1", "share/doc/husk/AGENTS.md"):
        assert (prefix / name).exists(), name
    make("uninstall")
    left = [path for path in INSTALLED.rglob("*") if not path.is_dir()]
    assert_equal(left, [])
    shutil.rmtree(INSTALLED)


@test
def the_commands_of_the_readme():
    husk("template", "build", "code-interpreter", timeout=BUILD_SECONDS)
    with scratch() as place:
        shell, names, count = documents.Shell(place, reader(place)), {}, 0
        try:
            for _, blocks in documents.sections(TOP / "README.md"):
                for _, lines in blocks:
                    for command, printed in documents.commands(lines):
                        if command.startswith("husk port") and taken(8000):
                            command = command.replace(" 8000", " 0:8000")
                        said, status = shell.run(documents.translate(names, command))
                        printed = [line.replace("/root/", f"{place}/") for line in printed]
                        documents.check(command, printed, said, False)
                        documents.learn(names, printed, said)
                        assert status == 0 or any(line.startswith("husk: ") for line in printed), f"{command!r}: {said}"
                        count += 1
        finally:
            shell.close()
            for volume in husk("volume", "ls", "--json").json():
                husk("volume", "rm", volume["id"])
    assert count > 15, f"{count} commands: README.md has lost its sessions"


@test
def the_commands_for_agents():
    lines = block("", "husk run -- python3", "AGENTS.md").splitlines()
    with scratch() as place:
        (place / "src").mkdir()
        shell = documents.Shell(place, reader(place))
        try:
            for line in lines:
                command = line.split("  #")[0].rstrip()
                said, status = shell.run(f"{command} &" if command.startswith("husk port") else command)
                assert_equal(status, 0, f"{command!r}: {said}")
        finally:
            shell.close()


@test
def the_program_in_c():
    text = block("c", "husk_create")
    with scratch() as place:
        (place / "program.c").write_text(C_FRAME.replace("@TEXT@", text))
        flags = ["-I", str(TOP / "include"), "-L", str(BUILD), "-lhusk"]
        if BUILD.name == "build-asan":  # which only a program built like it can load
            flags += ["-fsanitize=address,undefined"]
        run("cc", "-Wall", "-Werror", "program.c", "-o", "program", *flags, cwd=place)
        said = run("./program", cwd=place, env={"LD_LIBRARY_PATH": str(BUILD)})
        assert_in("Linux", said)
        if BUILD.name == "build" and shutil.which("pkg-config"):
            config = {"PKG_CONFIG_PATH": str(installed() / "lib/pkgconfig"), "PKG_CONFIG_SYSROOT_DIR": str(INSTALLED)}
            flags = run("pkg-config", "--cflags", "--libs", "libhusk", cwd=place, env=config).split()
            run("cc", "-Wall", "program.c", "-o", "installed", *flags, cwd=place)
            assert_in("Linux", run("./installed", cwd=place, env={"LD_LIBRARY_PATH": str(installed() / "lib")}))


C_FRAME = """
#include <husk.h>
#include <stdio.h>

int main(void)
{
	struct husk *husk;
	struct husk_error err = { 0 };

	if (husk_open(NULL, &husk, &err) < 0)
		return puts(err.message), 1;
@TEXT@
	printf("%s%s", result.output ? result.output : "", err.message);
	husk_result_free(&result);
	husk_kill(husk, sandbox->id, &err);
	husk_sandbox_free(sandbox);
	husk_close(husk);
	return 0;
}
"""


def run(*command, cwd, env=None, timeout=240):
    done = subprocess.run(command, cwd=cwd, env=environment(env), capture_output=True, text=True, timeout=timeout, check=False)
    assert_equal(done.returncode, 0, f"{command}: {done.stdout[-800:]} {done.stderr[-1200:]}")
    return done.stdout


@test
def the_program_in_python():
    with scratch() as place, server():
        (place / "program.py").write_text(block("python", "from husk import Sandbox"))
        variables = {"PYTHONPATH": str(TOP / "sdk/python"), "PYTHONDONTWRITEBYTECODE": "1", "HUSK_URL": None, "HUSK_TOKEN": None}
        said = run(sys.executable, "program.py", cwd=place, env=variables)
        printed = block("", "hello from sb-")
        documents.check("the program", printed.splitlines(), said, False)


@test
def no_command_fetches_a_stranger():
    """`husk` belongs to others on PyPI and npm: an install names a path here, or a package that is not ours."""
    strangers = re.compile(r"(?:pip|npm)3? (?:install|i) (?:-\S+ )*['\"]?(?:husk|@husk)\b(?!-sandbox)")
    pages = [path for kind in ("*.md", "*.py", "*.ts", "*.mjs", "*.1") for path in TOP.rglob(kind)]
    ours = [path for path in pages if not {"node_modules", "build", "build-asan"} & set(path.relative_to(TOP).parts)]
    found = [f"{path.relative_to(TOP)}: {match.group(0)}" for path in ours if path != pathlib.Path(__file__).resolve()
             for match in strangers.finditer(path.read_text(encoding="utf-8", errors="replace"))]
    assert_equal(found, [])
    assert_in('name = "husk-sandbox"', (TOP / "sdk/python/pyproject.toml").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main("base")
