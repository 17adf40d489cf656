"""Packages from PyPI at pinned versions, for some programs and tests. They are in a virtual environment that is kept between
runs ($HUSK_CACHE), because an installation takes long. Does not import the harness."""

import fcntl
import functools
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

PACKAGES = ("anthropic==2.8.0", "openai==3.49.0", "deepagents==0.7.32", "langchain-anthropic==1.7.7")


# Gives a command the /usr of another root; everything else stays as it is, and the mount ends with the command.
WITHIN = ("unshare", "--mount", "--propagation", "private", "sh", "-c", 'mount --bind "$0/usr" /usr && exec "$@"')


@functools.lru_cache(maxsize=None)
def environment(wanted=PACKAGES, name="seeds", within=()):
    """The folder of the virtual environment that has these packages. `within` is from python_since."""
    interpreter, version = ("/usr/bin/python3", within[-1]) if within else (sys.executable, sys.version)
    digest = hashlib.sha256(repr((wanted, version)).encode()).hexdigest()[:16]
    place = pathlib.Path(os.environ["HUSK_CACHE"]) / f"{name}-{digest}"
    return _kept(place, wanted, [*within, interpreter, "-m", "venv", place], [*within, place / "bin/pip", "install", "-q", *wanted])


@functools.lru_cache(maxsize=None)
def python_since(minor):
    """What comes before a command that needs Python 3.`minor`. Nothing if the own one is new enough. Otherwise the command gets Debian
    13's, which has Python 3.13: unpacked from this machine's mirror, in seconds, and kept."""
    if sys.version_info >= (3, minor):
        return ()
    assert minor <= 13, "Debian 13 has Python 3.13"
    mirrors = _lines("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Identifier: Packages")
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    mirror = next((line.split()[0] for line in mirrors if line.endswith(f" {release}")), None)
    assert mirror, f"apt has no source for Debian {release}"
    settings = [f"--aptopt={line}" for line in _lines("apt-config", "dump") if re.match(r'Acquire::(https?|Check-|Retries|ForceIP).* "[^"]', line)]
    place = pathlib.Path(os.environ["HUSK_CACHE"]) / "debian-13-python"
    command = ["mmdebstrap", "--mode=root", "--variant=extract", "--include=python3-venv", "--format=directory", *settings]
    return (*WITHIN, str(_kept(place, ["Debian's Python 3.13"], [*command, "trixie", place, mirror])))


def _lines(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()


@functools.lru_cache(maxsize=None)
def wheels(wanted, name, version="3.11"):
    """A folder of wheels: these packages and their dependencies, for the Python of a sandbox."""
    digest = hashlib.sha256(repr((wanted, version)).encode()).hexdigest()[:16]
    place = pathlib.Path(os.environ["HUSK_CACHE"]) / f"{name}-wheels-{digest}"
    platforms = [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in (17, 28, 34)] + ["--platform=manylinux2014_x86_64"]
    pip = f"{place}.pip"  # Debian's python3 has no pip
    download = [f"{pip}/bin/pip", "download", "-q", "--only-binary=:all:", f"--python-version={version}", *platforms]
    return _kept(place, wanted, [sys.executable, "-m", "venv", pip], [*download, "-d", place, *wanted])


def _kept(place, wanted, *commands):
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{place}.lock", "w", encoding="ascii") as lock:  # another test may need the same
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            for command in commands:
                done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
                said = (done.stdout + done.stderr).strip()
                assert done.returncode == 0, f"{', '.join(wanted)} cannot be installed: {said[-600:]}"
            (place / "complete").touch()
    return place


def python(wanted=PACKAGES, name="seeds", within=()):
    """The interpreter that has the packages."""
    return str(environment(wanted, name, within) / "bin/python")


def packages():
    """The folder of the packages, for sys.path."""
    return str(next(environment().glob("lib/python*/site-packages")))
