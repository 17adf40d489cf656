"""The files of a sandbox, as bytes in and out. `sandbox.filesystem` is one of these.

What comes out of a sandbox may be hostile: a directory is unpacked by husk/_archive.py, which stays inside its target.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, List

from .._http import Event, Request, given, path
from ..errors import InvalidError, NotFoundError
from ..models import FileChange, FileEntry
from ._io import local
from .streams import AsyncStream
from .transport import AsyncResponse

if TYPE_CHECKING:
    from .client import AsyncClient

BYTES = "application/octet-stream"
TAR = "application/x-tar"
SPOOLED_MAX = 8 << 20  # of a directory on its way here that is kept in memory


def mode_text(mode: int | str | None) -> str | None:
    """0o644 and "0644" alike."""
    return f"{mode:04o}" if isinstance(mode, int) else mode


class AsyncFilesystem:
    """The files of one sandbox. Paths are absolute, or relative to the home directory of root."""

    def __init__(self, client: AsyncClient, sandbox: str) -> None:
        self._client = client
        self._sandbox = sandbox

    def _path(self, *more: str) -> str:
        return path("sandboxes", self._sandbox, "files", *more)

    # ---- contents ----

    async def read(self, file: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes of a file, or those of a range that it has."""
        if length == 0:
            return b""
        try:
            response = await self._client._open(self._read(file, offset, length))
        except InvalidError as error:
            if error.status == 416:  # the file ends before the range begins
                return b""
            raise
        data = await response.read()
        if response.head.status == 206:
            return data
        return data[offset:] if length is None else data[offset : offset + length]

    async def read_text(self, file: str, encoding: str = "utf-8", errors: str = "strict") -> str:
        return (await self.read(file)).decode(encoding, errors)

    def _read(self, file: str, offset: int, length: int | None) -> Request:
        if offset < 0 or (length is not None and length < 0):
            raise InvalidError("a range begins at 0 or later and has a length of 0 or more", field="offset")
        headers = {"Accept": BYTES}
        if offset or length is not None:
            last = "" if length is None else str(offset + length - 1)
            headers["Range"] = f"bytes={offset}-{last}"
        return Request.get(self._path(), {"path": file}, headers=headers)

    def open(self, file: str, *, offset: int = 0, length: int | None = None) -> AsyncFileReader:
        """A file piece by piece, for those that do not fit in memory. Iterate over it inside `async with`."""
        return AsyncFileReader(self._client, self._read(file, offset, length))

    async def write(
        self, file: str, data: Any, *, mode: int | str | None = None, user: str | None = None
    ) -> FileEntry:
        """Writes a file whole, and makes the directories above it. `data` is text (as UTF-8), bytes, an open binary
        file or an iterable of bytes. The file appears, or changes, only once all of it has arrived."""
        if isinstance(data, str):
            data = data.encode()
        elif isinstance(data, (bytearray, memoryview)):
            data = bytes(data)
        query = {"path": file, **given(mode=mode_text(mode), user=user)}
        request = Request("PUT", self._path(), query, {"Content-Type": BYTES}, data, repeatable=True)
        return FileEntry.from_document(await self._client._json(request))

    async def upload(self, source: str | os.PathLike[str], file: str, **options: Any) -> FileEntry:
        """Copies a local file into the sandbox."""
        with Path(source).open("rb") as opened:
            return await self.write(file, opened, **options)

    async def download(self, file: str, target: str | os.PathLike[str]) -> int:
        """Copies a file of the sandbox to a local one; its size. A download that fails leaves no half file."""
        part = Path(f"{os.fspath(target)}.part")
        size = 0
        try:
            async with self.open(file) as pieces:
                with part.open("wb") as opened:
                    async for piece in pieces:
                        size += opened.write(piece)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        return size

    # ---- the tree ----

    async def _entries(self, url_path: str, query: Mapping[str, Any]) -> List[FileEntry]:
        document = await self._client._json(Request.get(url_path, query))
        return [FileEntry.from_document(each) for each in document["entries"]]

    async def list(self, directory: str = "/", *, depth: int = 1) -> List[FileEntry]:
        """What is in a directory, and below it down to `depth`."""
        return await self._entries(self._path("list"), {"path": directory, "depth": depth})

    async def stat(self, file: str, *, follow: bool = True) -> FileEntry:
        query = {"path": file, "follow": follow}
        return FileEntry.from_document(await self._client._json(Request.get(self._path("stat"), query)))

    async def exists(self, file: str) -> bool:
        try:
            await self.stat(file)
        except NotFoundError as error:
            if error.field == "path" or await self._sandbox_exists():
                return False
            raise
        return True

    async def _sandbox_exists(self) -> bool:
        """Tells a file that is missing from a sandbox that is."""
        await self._client._done(Request.get(path("sandboxes", self._sandbox)))
        return True

    async def mkdir(self, directory: str, *, mode: int | str | None = None, user: str | None = None) -> None:
        """Creates a directory and its missing parents; an existing directory stays as it is."""
        body = {"path": directory, **given(mode=mode_text(mode), user=user)}
        await self._client._done(Request.json("POST", self._path("mkdir"), body))

    async def move(self, file: str, target: str) -> None:
        await self._client._done(Request.json("POST", self._path("move"), {"path": file, "target": target}))

    async def chmod(self, file: str, mode: int | str) -> None:
        await self._client._done(Request.json("POST", self._path("chmod"), {"path": file, "mode": mode_text(mode)}))

    async def remove(self, file: str) -> None:
        """Removes a file, or a directory with all that is in it."""
        await self._client._done(Request("DELETE", self._path(), {"path": file}))

    # ---- whole directories ----

    async def upload_dir(
        self, source: str | os.PathLike[str], directory: str, *, user: str | None = None
    ) -> None:
        """Copies what is in a local directory into one of the sandbox."""
        from .. import _archive  # with tarfile, which most programs need not load

        pieces = _archive.pack(Path(source))
        query = {"path": directory, **given(user=user)}
        await self._client._done(Request("PUT", self._path("tar"), query, {"Content-Type": TAR}, pieces))

    async def download_dir(self, directory: str, target: str | os.PathLike[str]) -> List[str]:
        """Copies what is in a directory of the sandbox into a local one, which is made. Returns the paths that were
        left out: devices, and whatever would have gone outside `target`."""
        import tempfile

        from .. import _archive

        request = Request.get(self._path("tar"), {"path": directory}, headers={"Accept": TAR})
        with tempfile.SpooledTemporaryFile(max_size=SPOOLED_MAX) as archive:
            async with await self._client._open(request) as response:
                while True:
                    piece = await response.next(response.timeout)
                    if piece is None:
                        break
                    await local(archive.write, piece)
            archive.seek(0)
            return await local(_archive.unpack, archive, Path(target))

    def watch(self, directory: str, *, recursive: bool = False) -> AsyncFileChanges:
        """Changes as they happen. Enter it with `async with` to be sure that it listens before going on."""
        return AsyncFileChanges(self._client, self._path("watch"), {"path": directory, "recursive": recursive})


class AsyncFileReader:
    """A file's bytes as they come."""

    def __init__(self, client: AsyncClient, request: Request) -> None:
        self._client = client
        self._request = request
        self._response: AsyncResponse | None = None

    async def __aenter__(self) -> AsyncFileReader:
        if self._response is None:
            self._response = await self._client._open(self._request)
        return self

    def __aiter__(self) -> AsyncFileReader:
        return self

    async def __anext__(self) -> bytes:
        await self.__aenter__()
        assert self._response is not None
        piece = await self._response.next(self._response.timeout)
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        if self._response is not None:
            await self._response.aclose()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncFileChanges(AsyncStream[FileChange]):
    """Changes in a directory, until it is closed."""

    def __init__(self, client: AsyncClient, url_path: str, query: Mapping[str, Any]) -> None:
        super().__init__(client)
        self._where = (url_path, query)

    def _request(self) -> Request:
        return Request.get(*self._where)

    def _take(self, event: Event) -> FileChange | None:
        return FileChange.from_document(event.document) if event.kind == "change" else None
