"""Packages from PyPI at pinned versions, for some programs and tests. They are in a virtual environment that is kept between
runs ($HUSK_CACHE), because an installation takes long. Does not import the harness."""

import fcntl
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

PACKAGES = ("anthropic==2.8.0", "openai==3.49.0", "deepagents==0.7.32", "langchain-anthropic==1.7.7")


@functools.lru_cache(maxsize=None)
def environment(wanted=PACKAGES, name="seeds"):
    """The folder of the virtual environment that has these packages."""
    digest = hashlib.sha256(repr((wanted, sys.version)).encode()).hexdigest()[:16]
    place = pathlib.Path(os.environ["HUSK_CACHE"]) / f"{name}-{digest}"
    return _kept(place, wanted, [sys.executable, "-m", "venv", place], [place / "bin/pip", "install", "-q", *wanted])


@functools.lru_cache(maxsize=None)
def wheels(wanted, name, version="3.11"):
    """A folder of wheels: these packages and their dependencies, for the Python of a sandbox."""
    digest = hashlib.sha256(repr((wanted, version)).encode()).hexdigest()[:16]
    place = pathlib.Path(os.environ["HUSK_CACHE"]) / f"{name}-wheels-{digest}"
    platform = [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in (17, 28, 34)] + ["--platform=manylinux2014_x86_64"]
    pip = f"{place}.pip"  # Debian's python3 has no pip
    download = [f"{pip}/bin/pip", "download", "-q", "--only-binary=:all:", f"--python-version={version}", *platform]
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


def python(wanted=PACKAGES, name="seeds"):
    """The interpreter that has the packages."""
    return str(environment(wanted, name) / "bin/python")


def packages():
    """The folder of the packages, for sys.path."""
    return str(next(environment().glob("lib/python*/site-packages")))
