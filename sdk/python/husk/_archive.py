"""Directories as tar streams: packing a local one piece by piece, and unpacking one that a sandbox made.

A sandbox is hostile: unpacking writes regular files, directories and harmless symbolic links inside the target and
nothing else, never through a link, and drops set-user-id bits. No ownership is taken over.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ._http import PIECE
from .errors import InvalidError


def pack(source: Path) -> Iterator[bytes]:
    """A tar of what is in a directory. A file that changes its size meanwhile is an error, not a broken archive."""
    if not source.is_dir():
        raise InvalidError(f"{source} is not a directory", field="source")
    return _pack(source)


def _pack(source: Path) -> Iterator[bytes]:
    for directory, names, files in os.walk(source):
        names.sort()  # the order in which os.walk goes on; it does not follow links, and neither do we
        for name in sorted(names + files):
            yield from _pack_one(Path(directory, name), source)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def _pack_one(entry: Path, source: Path) -> Iterator[bytes]:
    status = entry.lstat()
    info = tarfile.TarInfo(str(PurePosixPath(entry.relative_to(source).as_posix())))
    info.mode = stat.S_IMODE(status.st_mode)
    info.mtime = int(status.st_mtime)
    if stat.S_ISLNK(status.st_mode):
        info.type = tarfile.SYMTYPE
        info.linkname = os.readlink(entry)
    elif stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISREG(status.st_mode):
        info.size = status.st_size
    else:
        return  # sockets, devices and pipes mean nothing elsewhere
    yield info.tobuf(tarfile.PAX_FORMAT)
    if info.isreg():
        yield from _contents(entry, info.size)


def _contents(entry: Path, size: int) -> Iterator[bytes]:
    left = size
    with entry.open("rb") as opened:
        while left:
            piece = opened.read(min(PIECE, left))
            if not piece:
                raise InvalidError(f"{entry} became shorter while it was read", field="source")
            left -= len(piece)
            yield piece
    yield b"\0" * (-size % tarfile.BLOCKSIZE)


def unpack(archive: IO[bytes], target: Path) -> list[str]:
    """Unpacks into `target`; the names that were left out. An archive of a directory begins with that directory, whose
    own name is taken off the others."""
    target.mkdir(parents=True, exist_ok=True)
    root = target.resolve()
    left_out: list[str] = []
    modes: list[Any] = []
    top: str | None = None
    with tarfile.open(fileobj=archive, mode="r|") as members:
        for member in members:
            if top is None:
                top = member.name.rstrip("/") + "/" if member.isdir() else ""
            member.name = _below(member.name, top)
            member.linkname = _below(member.linkname, top) if member.islnk() else member.linkname
            if not _unpack_one(members, member, root, modes):
                left_out.append(member.name)
    for place, mode in reversed(modes):  # last, so that a directory without write permission can be filled
        place.chmod(mode)
    return left_out


def _below(name: str, top: str) -> str:
    """A name without the top directory in front."""
    if top and name.rstrip("/") + "/" == top:
        return "."
    return name[len(top) :] if top and name.startswith(top) else name


def _inside(name: str, root: Path) -> Path | None:
    """Where a member goes; None when that is outside, or below something that is not a directory of ours."""
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", ".")]
    if name.startswith("/") or ".." in parts:
        return None
    place = root
    for part in parts[:-1]:
        place = place / part
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            return None
    return root.joinpath(*parts)


def _unpack_one(members: tarfile.TarFile, member: tarfile.TarInfo, root: Path, modes: list[Any]) -> bool:
    place = _inside(member.name, root)
    if place is None:
        return False
    if place == root:
        return True
    place.parent.mkdir(parents=True, exist_ok=True)
    if member.isdir():
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            return False
        place.mkdir(exist_ok=True)
        modes.append((place, (member.mode & 0o777) | 0o700))
        return True
    if place.is_dir() and not place.is_symlink():
        return False
    place.unlink(missing_ok=True)
    if member.issym():
        return _unpack_link(member, place, root)
    return _unpack_file(members, member, place, root)


def _unpack_link(member: tarfile.TarInfo, place: Path, root: Path) -> bool:
    """A symbolic link that leads to somewhere inside. It may climb at its beginning only, where it passes real
    directories: "other/.." leads out when `other` is a link itself."""
    parts = PurePosixPath(member.linkname).parts
    climbs = 0
    while climbs < len(parts) and parts[climbs] == "..":
        climbs += 1
    if not parts or parts[0] == "/" or ".." in parts[climbs:] or climbs > len(place.parent.relative_to(root).parts):
        return False
    place.symlink_to(member.linkname)
    return True


def _unpack_file(members: tarfile.TarFile, member: tarfile.TarInfo, place: Path, root: Path) -> bool:
    mode = member.mode & 0o777
    if member.islnk():  # a second name of a file that came before: a copy does
        first = _inside(member.linkname, root)
        if first is None or first.is_symlink() or not first.is_file():
            return False
        shutil.copyfile(first, place)
    elif member.isreg():
        content = members.extractfile(member)
        assert content is not None
        with place.open("xb") as opened:
            shutil.copyfileobj(content, opened, PIECE)
    else:
        return False
    place.chmod(mode | 0o600)
    return True
