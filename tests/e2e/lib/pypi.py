"""Packages from PyPI at pinned versions, for some programs and tests. They are in a virtual environment that is kept between
runs ($HUSK_CACHE), because an installation takes long. Does not import the harness."""

import fcntl
import functools
import glob
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

PACKAGES = ("anthropic==2.8.0", "openai==3.49.0", "deepagents==0.7.32", "langchain-anthropic==1.7.7")


@functools.lru_cache(maxsize=None)
def environment(wanted=PACKAGES, name="seeds", interpreter=sys.executable):
    """The folder of the virtual environment that has these packages."""
    version = sys.version if interpreter == sys.executable else interpreter
    digest = hashlib.sha256(repr((wanted, version)).encode()).hexdigest()[:16]
    place = pathlib.Path(os.environ["HUSK_CACHE"]) / f"{name}-{digest}"
    return _kept(place, wanted, [interpreter, "-m", "venv", place], [place / "bin/pip", "install", "-q", *wanted])


def interpreter_since(*version):
    """A Python of this machine that is new enough: of PATH, or of pyenv. None: there is none."""
    names = [shutil.which(f"python3.{minor}") for minor in range(version[1], version[1] + 6)]
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    for path in [sys.executable, *names, *sorted(glob.glob(f"{root}/versions/3.*/bin/python3"))]:
        check = f"import sys, venv; sys.exit(sys.version_info < {version})"
        if path and subprocess.run([path, "-c", check], capture_output=True, timeout=60, check=False).returncode == 0:
            return path
    return None


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


def python(wanted=PACKAGES, name="seeds", interpreter=sys.executable):
    """The interpreter that has the packages."""
    return str(environment(wanted, name, interpreter) / "bin/python")


def packages():
    """The folder of the packages, for sys.path."""
    return str(next(environment().glob("lib/python*/site-packages")))
