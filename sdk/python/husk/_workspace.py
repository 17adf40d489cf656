"""The husk program, for what happens on the disk of this machine: the files of a workspace are merged by it, as they are for the
command line. Must never put the token where other users see it: it goes through the environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from ._endpoint import Endpoint
from .errors import HuskError, InvalidError, NotFoundError, UnavailableError

FAILED, USAGE, MISSING = 1, 2, 3  # exit codes of husk


def program() -> str:
    """HUSK_PROGRAM, or husk of the PATH."""
    named = os.environ.get("HUSK_PROGRAM") or "husk"
    found = shutil.which(named)
    if not found:
        raise UnavailableError(
            f"workspaces need the husk program on this machine, and '{named}' was not found",
            hint="install Husk here too, or name the program in HUSK_PROGRAM",
        )
    return found


def _environment(endpoint: Endpoint) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("HUSK_HOST", "HUSK_TOKEN")}
    environment["HUSK_HOST"] = f"unix://{endpoint.socket}" if endpoint.socket else f"{endpoint}{endpoint.prefix}"
    if endpoint.token:
        environment["HUSK_TOKEN"] = endpoint.token
    return environment


def run(endpoint: Endpoint, *words: str, told: Callable[[str], bool] = bool) -> str:
    """What husk prints. With exit code 1 and a result that has `told` of them, it has found conflicts."""
    done = subprocess.run(
        [program(), *words],
        env=_environment(endpoint),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
    )
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode == 0 or (done.returncode == FAILED and told(output)):
        return output
    lines = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.startswith("husk: ")]
    message = lines[-1][len("husk: ") :] if lines else f"husk {words[0]} ended with status {done.returncode}"
    kind = {USAGE: InvalidError, MISSING: NotFoundError}.get(done.returncode, HuskError)
    raise kind(message)


def run_json(endpoint: Endpoint, command: str, *words: str) -> Any:
    return json.loads(run(endpoint, command, "--json", *words))


def run_lines(endpoint: Endpoint, command: str, *words: str) -> list[Any]:
    """One document for each line; those without a path are remarks for people."""

    def documents(output: str) -> list[Any]:
        return [each for each in map(json.loads, output.splitlines()) if "path" in each]

    def told(output: str) -> bool:
        return any(each["conflict"] for each in documents(output))

    return documents(run(endpoint, command, "--json", *words, told=told))
