"""The programs of the previous release, built from the history: for tests of upgrades. They are kept in $HUSK_CACHE, because
the build takes two minutes. Does not import the harness.

There are no tags yet: COMMIT is the one that brought the CHANGELOG with its section 0.1.0. A release replaces it with the
commit of the release before (docs/contributing/release.md). scripts/bare reads the constant: it puts the source beside the
cache, since a machine of its own has no history.
"""

import fcntl
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile

COMMIT = "f2c0baf36863fa70a1d75d4ad579402e99dce441"
TOP = pathlib.Path(__file__).resolve().parents[3]


class Missing(Exception):
    """There is no history here; the text says what to do."""


def programs():
    """The folder that holds bin/husk, bin/huskd and their files."""
    cache = pathlib.Path(os.environ["HUSK_CACHE"])
    system = platform.freedesktop_os_release()
    place = cache / f"previous-{COMMIT[:12]}-{system.get('ID')}-{system.get('VERSION_ID')}"
    cache.mkdir(parents=True, exist_ok=True)
    with open(f"{place}.lock", "w", encoding="ascii") as lock:  # another test may need the same
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            with tempfile.TemporaryDirectory(prefix="previous-build.", dir=cache) as scratch:
                _build(pathlib.Path(scratch), place)
    return place / "usr"


def _source(where):
    kept = pathlib.Path(os.environ["HUSK_CACHE"]) / f"previous-{COMMIT}.tar"
    archive = where / "source.tar"
    git = ["git", "-c", f"safe.directory={TOP}", "-C", TOP, "archive", "--output", archive, COMMIT]
    try:
        done = subprocess.run(git, capture_output=True, text=True, timeout=60, check=False)
        problem = done.stderr.strip()[-200:] if done.returncode else None
    except OSError as error:
        problem = str(error)
    if problem and not kept.exists():
        raise Missing(f"the previous release cannot be built: no commit {COMMIT[:12]} here ({problem}); git fetch --unshallow")
    subprocess.run(["tar", "-C", where, "-xf", kept if problem else archive], check=True, timeout=60)


def _build(scratch, place):
    source = scratch / "source"
    source.mkdir()
    _source(source)
    shutil.rmtree(place, ignore_errors=True)
    # Its own flags and folders: what this run's make was given is not for it.
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "SANITIZE", "HUSK_BUILD")}
    command = ["make", "-C", source, "install", f"DESTDIR={place}", "PREFIX=/usr", "KERNEL_FETCH=0", "WERROR="]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"the previous release does not build: {(done.stdout + done.stderr)[-2000:]}"
    (place / "complete").touch()
