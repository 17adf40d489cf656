# Made from husk/_async/volumes.py by generate.py: edit it there.
"""Volumes: directories that outlive sandboxes."""

from __future__ import annotations

from typing import List

from .._http import Request, given, path
from ..models import FileEntry, VolumeInfo
from .client import Client


class Volume:
    """A directory that sandboxes share and that outlives them: `Sandbox.create(volumes={"/data": volume})`. Its files can
    be read and written from here too."""

    def __init__(self, client: Client, info: VolumeInfo) -> None:
        self._client = client
        self.info = info

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, name={self.name!r})"

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str:
        return self.info.name

    @classmethod
    def create(
        cls, name: str, *, size: int | str | None = None, client: Client | None = None
    ) -> Volume:
        """size: the most it may hold, bytes or "512M", "10G" (10 GiB unless told)."""
        used = Client._or_default(client)
        request = Request.json("POST", path("volumes"), given(name=name, size=size))
        return cls(used, VolumeInfo.from_document(used._json(request)))

    @classmethod
    def list(cls, *, client: Client | None = None) -> List[Volume]:
        used = Client._or_default(client)
        document = used._json(Request.get(path("volumes")))
        return [cls(used, VolumeInfo.from_document(each)) for each in document["volumes"]]

    @classmethod
    def get(cls, id_or_name: str, *, client: Client | None = None) -> Volume:
        used = Client._or_default(client)
        return cls(used, VolumeInfo.from_document(used._json(Request.get(path("volumes", id_or_name)))))

    def remove(self) -> None:
        """Removes it with what is in it. ConflictError, naming them, while sandboxes have it."""
        self._client._done(Request("DELETE", path("volumes", self.id)))

    def read(self, file: str) -> bytes:
        return self._client._bytes(Request.get(path("volumes", self.id, "files"), {"path": file}))

    def write(self, file: str, data: str | bytes) -> FileEntry:
        """Atomic; directories on the way are made."""
        body = data.encode() if isinstance(data, str) else bytes(data)
        headers = {"Content-Type": "application/octet-stream"}
        request = Request("PUT", path("volumes", self.id, "files"), {"path": file}, headers, body)
        return FileEntry.from_document(self._client._json(request))

    def files(self, directory: str = "/", *, depth: int | None = None) -> List[FileEntry]:
        query = given(path=directory, depth=depth)
        document = self._client._json(Request.get(path("volumes", self.id, "files", "list"), query))
        return [FileEntry.from_document(each) for each in document["entries"]]

    def delete(self, file: str) -> None:
        """A file, or a directory with what is in it."""
        self._client._done(Request("DELETE", path("volumes", self.id, "files"), {"path": file}))
