# Made from husk/_async/snapshots.py by generate.py: edit it there.
"""Snapshots and templates: what sandboxes are made from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable

from .._http import Event, Request, given, path
from ..errors import ConnectionFailedError, InvalidError
from ..models import SnapshotInfo, TemplateInfo
from ._io import deliver, local
from .client import Client
from .streams import Stream


class Snapshot:
    """A sandbox's memory and disk at one moment. `Sandbox.create(snapshot=…)` continues from it, any number of
    times."""

    def __init__(self, client: Client, info: SnapshotInfo) -> None:
        self._client = client
        self.info = info

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, name={self.name!r})"

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str | None:
        return self.info.name

    @classmethod
    def list(cls, *, client: Client | None = None) -> list[Snapshot]:
        used = Client._or_default(client)
        document = used._json(Request.get(path("snapshots")))
        return [cls(used, SnapshotInfo.from_document(each)) for each in document["snapshots"]]

    @classmethod
    def get(cls, id_or_name: str, *, client: Client | None = None) -> Snapshot:
        used = Client._or_default(client)
        return cls(used, SnapshotInfo.from_document(used._json(Request.get(path("snapshots", id_or_name)))))

    def export(self, target: str | os.PathLike[str], *, files: bool = False) -> None:
        """Writes it into a file, for another host. files: also its files alone, for hosts that cannot continue its
        memory. The server signs it with its key."""
        _download(self._client, path("snapshots", self.id, "export"), given(files=files or None), Path(target))

    @classmethod
    def import_file(
        cls, source: str | os.PathLike[str], *, name: str | None = None, client: Client | None = None
    ) -> Snapshot:
        """Takes a snapshot that `export` wrote. The server must trust the key that signed it; for its owner only."""
        used = Client._or_default(client)
        return cls(used, SnapshotInfo.from_document(_upload(used, path("snapshots", "import"), name, source)))

    def remove(self) -> None:
        """Removes it. Sandboxes made from it are not affected."""
        self._client._done(Request("DELETE", path("snapshots", self.id)))


def _download(client: Client, target: str, query: dict[str, Any], file: Path) -> None:
    partial = file.with_name(file.name + ".partial")
    request = Request("GET", target, query)
    request.timeout = None  # packing takes its time
    try:
        with partial.open("wb") as opened:
            with client._open(request) as response:
                while (piece := response.next(None)) is not None:
                    local(opened.write, piece)
        partial.rename(file)
    finally:
        partial.unlink(missing_ok=True)


def _upload(client: Client, target: str, name: str | None, source: str | os.PathLike[str]) -> Any:
    size = Path(source).stat().st_size
    with Path(source).open("rb") as opened:
        headers = {"Content-Type": "application/x-tar"}
        request = Request("POST", target, given(name=name), headers, opened, size)
        request.timeout = None
        return client._json(request)


class Template:
    """What a new sandbox holds."""

    def __init__(self, client: Client, info: TemplateInfo) -> None:
        self._client = client
        self.info = info

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, built={self.info.built})"

    @property
    def name(self) -> str:
        return self.info.name

    @classmethod
    def list(cls, *, client: Client | None = None) -> list[Template]:
        """Those that are built, and those that come with Husk."""
        used = Client._or_default(client)
        document = used._json(Request.get(path("templates")))
        return [cls(used, TemplateInfo.from_document(each)) for each in document["templates"]]

    @classmethod
    def build(
        cls,
        name: str,
        *,
        bundled: str | None = None,
        tar: str | os.PathLike[str] | None = None,
        on_log: Callable[[str], Any] | None = None,
        client: Client | None = None,
    ) -> Template:
        """Builds a template from a definition that comes with Husk (the one called `name`, or `bundled`), or from a tar
        of a root filesystem. `on_log` gets the lines of the build's log."""
        if bundled is not None and tar is not None:
            raise InvalidError(
                "a template is built from a bundled definition or from a tar, not from both", field="tar"
            )
        used = Client._or_default(client)
        if tar is None:
            body = {"name": name, "bundled": bundled or name}
            return cls._built(used, Request.json("POST", path("templates"), body), on_log)
        size = Path(tar).stat().st_size
        with Path(tar).open("rb") as opened:
            headers = {"Content-Type": "application/x-tar"}
            request = Request("POST", path("templates"), {"name": name}, headers, opened, size)
            return cls._built(used, request, on_log)

    @classmethod
    def _built(
        cls, client: Client, request: Request, on_log: Callable[[str], Any] | None
    ) -> Template:
        request.timeout = None
        stream = Build(client, request)
        with stream:
            for line in stream:
                if on_log:
                    deliver(on_log, line)
        if stream.template is None:
            raise ConnectionFailedError("the server ended the build's log before the build was done", sent=True)
        return cls(client, stream.template)

    def export(self, target: str | os.PathLike[str]) -> None:
        """Writes it into a file, for another host. The server signs it with its key."""
        _download(self._client, path("templates", self.name, "export"), {}, Path(target))

    @classmethod
    def import_file(
        cls, source: str | os.PathLike[str], *, name: str | None = None, client: Client | None = None
    ) -> Template:
        """Takes a template that `export` wrote, or the files of a snapshot that was exported with them. The server must
        trust the key that signed it; for its owner only."""
        used = Client._or_default(client)
        return cls(used, TemplateInfo.from_document(_upload(used, path("templates", "import"), name, source)))

    def remove(self) -> None:
        """Removes it. Sandboxes made from it are not affected."""
        self._client._done(Request("DELETE", path("templates", self.name)))


class Build(Stream[str]):
    """The lines of a build's log; `template` is what was built."""

    _silence = None  # a step of a build may take its time

    def __init__(self, client: Client, request: Request) -> None:
        super().__init__(client)
        self._first = request
        self.template: TemplateInfo | None = None

    def _request(self) -> Request:
        return self._first

    def _take(self, event: Event) -> str | None:
        if event.kind == "log":
            return str(event.document.get("line", ""))
        if event.kind == "done":
            made = event.document.get("template")
            document = made if isinstance(made, dict) else {"name": made, "built": True}
            self.template = TemplateInfo.from_document(document)
            self._over = True
        return None
