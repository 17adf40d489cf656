"""The current gVisor for tests. scripts/runsc builds it once into the cache of the tests, and again only if that script, scripts/go or
the checksums of its module change. The first build takes minutes, and requires the Go module proxy."""

import fcntl
import functools
import hashlib
import os
import pathlib
import platform
import subprocess

TOP = pathlib.Path(__file__).resolve().parents[3]
SOURCES = ("scripts/runsc", "scripts/go", "scripts/gvisor/go.mod", "scripts/gvisor/go.sum")
BUILD_SECONDS = 1500


def place():
    """The path of the binary, even if it is not built yet."""
    key = hashlib.sha256(platform.machine().encode())
    for source in SOURCES:
        key.update((TOP / source).read_bytes())
    return pathlib.Path(os.environ.get("HUSK_CACHE", "/var/cache/husk-test")) / f"runsc-{key.hexdigest()[:16]}"


@functools.cache  # a failed build is not tried again
def build():
    """(path, None), or (None, the reason why there is no binary)."""
    target = place()
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{target}.lock", "w", encoding="ascii") as lock:  # one process builds, others wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return str(target), None
        try:
            done = subprocess.run(["nice", "-n", "10", TOP / "scripts/runsc", target], capture_output=True, text=True,
                                  stdin=subprocess.DEVNULL, timeout=BUILD_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return None, f"scripts/runsc took more than {BUILD_SECONDS} s"
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            return None, f"the current runsc cannot be built: {' / '.join(lines[-2:])}"
    return str(target), None


def current_runsc():
    """The path of the binary; without it the test is skipped."""
    from lib.harness import Skip  # not at the top: tests/run has no instance

    path, why = build()
    if path is None:
        raise Skip(why)
    return path
