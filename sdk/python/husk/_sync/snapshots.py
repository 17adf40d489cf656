# Made from husk/_async/snapshots.py by generate.py: edit it there.
"""Snapshots and templates: what sandboxes are made from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable

from .._http import Event, Request, path
from ..errors import ConnectionFailedError, InvalidError
from ..models import SnapshotInfo, TemplateInfo
from ._io import deliver
from .client import Client
from .streams import Stream


class Snapshot:
    """A sandbox's memory and disk at one moment. `Sandbox.create(snapshot=…)` goes on from there, any number of
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

    def remove(self) -> None:
        """Removes it. Sandboxes made from it are not affected."""
        self._client._done(Request("DELETE", path("snapshots", self.id)))


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
