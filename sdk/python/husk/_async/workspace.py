"""A directory of the caller in a sandbox: `sandbox.workspace`."""

from __future__ import annotations

import os
from typing import Any, List

from .. import _workspace
from ..models import Change, Merged, Synced
from ._io import local
from .client import AsyncClient


class AsyncWorkspace:
    """A copy of a directory of yours, and the way back for what the sandbox changed in it.

        sandbox = await AsyncSandbox.create(workspace="project")
        await sandbox.exec("make test", cwd="/workspace")
        print(await sandbox.workspace.diff())
        await sandbox.workspace.apply()

    Files are compared and merged on this machine, by the husk program, which must be installed here (HUSK_PROGRAM, or husk of
    the PATH). Nothing of this machine is mounted.
    """

    def __init__(self, client: AsyncClient, sandbox: str) -> None:
        self._client = client
        self._sandbox = sandbox

    async def _run(self, *words: str) -> Any:
        return await local(_workspace.run_json, self._client._transport.endpoint, *words)

    async def bring(self, directory: str | os.PathLike[str], *, all_files: bool = False) -> str:
        """Copies "DIR" or "DIR:/path" in, without what git ignores unless all_files. Returns where it is in the sandbox. `create` does
        this with its `workspace`."""
        words = ["workspace", *(["--all"] if all_files else []), "--", self._sandbox, os.fspath(directory)]
        return str((await self._run(*words))["path"])

    async def diff(self) -> str:
        """What the sandbox changed, as a patch for `git apply`; "" if nothing."""
        return await local(_workspace.run, self._client._transport.endpoint, "diff", "--workspace", self._sandbox)

    async def changes(self) -> List[Change]:
        """The files that the sandbox changed; their paths are relative to the directory."""
        return [Change.from_document(each) for each in await self._run("diff", "--workspace", self._sandbox)]

    async def apply(
        self, *, dry_run: bool = False, conflicts: str | None = None, limit: int | str | None = None
    ) -> Merged:
        """Writes what the sandbox changed back to the directory: three-way against what you changed meanwhile, all or nothing.

        With conflicts nothing is written (`written` is False), unless `conflicts` says how: "markers", "ours" (the directory's version)
        or "theirs". limit: bytes of the changed files, or "2G"; 1 GiB unless told. Never written: .git, links that lead outside,
        devices, and new files that git ignores.
        """
        words = ["apply", self._sandbox]
        words += ["--dry-run"] if dry_run else []
        words += ["--conflicts", conflicts] if conflicts is not None else []
        words += ["--limit", str(limit)] if limit is not None else []
        return Merged.from_document(await self._run(*words))

    async def sync(self, *, conflicts: str | None = None, limit: int | str | None = None) -> List[Synced]:
        """Carries your changes of the directory into the sandbox, and the sandbox's into the directory, once.

        Returns what was carried over, and conflicts (`to` is "neither"): they change neither side and hold back no other path, unless
        `conflicts` says how: "markers", "ours" (the directory's version) or "theirs". limit: bytes of each direction, or "2G"; 1 GiB
        unless told.
        """
        words = ["sync", self._sandbox]
        words += ["--conflicts", conflicts] if conflicts is not None else []
        words += ["--limit", str(limit)] if limit is not None else []
        lines = await local(_workspace.run_lines, self._client._transport.endpoint, *words)
        return [Synced.from_document(each) for each in lines]
