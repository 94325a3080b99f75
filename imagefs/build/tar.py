"""Layers as they come: what each member of an archive means for the tree of an image."""

from __future__ import annotations

import io
import logging
import os
import stat
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from imagefs.build.archive import Member, Pieces, members
from imagefs.errors import BuildError, HostileLayer
from imagefs.format.inode import Inode, shown
from imagefs.settings import LayerLimits

__all__ = ["Entry", "TarContent", "entries"]

_log = logging.getLogger("imagefs.build")

_XATTR = b"SCHILY.xattr."
_NAMESPACES = (b"user.", b"trusted.", b"security.", b"system.posix_acl_access", b"system.posix_acl_default")
_OF_FILES = (b"user.", b"system.")  # what the kernel lists of links and devices with these names it does not read
_OWNER_MAX = (1 << 32) - 2  # the last number says "as it was" to chown, and "nobody" to the kernel

_KINDS = {
    b"0": stat.S_IFREG,
    b"7": stat.S_IFREG,  # contiguous on systems of long ago
    b"S": stat.S_IFREG,
    b"2": stat.S_IFLNK,
    b"3": stat.S_IFCHR,
    b"4": stat.S_IFBLK,
    b"5": stat.S_IFDIR,
    b"6": stat.S_IFIFO,
}
_HARDLINK = b"1"


@dataclass(frozen=True, slots=True)
class TarContent:
    """A file inside an unpacked layer at `path`: pieces (offset in the file, length, offset in the archive)."""

    path: str
    size: int
    pieces: Pieces

    def __str__(self) -> str:
        return "a file of a layer"

    def ranges(self) -> Iterator[tuple[int, int]]:
        return ((offset, length) for offset, length, _ in self.pieces)

    def open(self) -> BinaryIO:
        return io.BufferedReader(_Pieces(open(self.path, "rb", buffering=0), self.pieces, self.size), 1 << 18)


class Entry(NamedTuple):
    """One member: where it stands, and either what it is or, for a hardlink, the name of that."""

    parts: tuple[bytes, ...]
    inode: Inode | None
    link_to: tuple[bytes, ...] = ()
    content: TarContent | None = None


def entries(path: str, limits: LayerLimits) -> Iterator[Entry]:
    """The members of the archive at `path`, in order. Raises HostileLayer and BuildError.

    Attributes that Linux gives to files and directories alone are left out of others, which a line of the log says.
    """
    left_out: list[str] = []
    for member in members(path, limits):
        yield _entry(path, member, limits, left_out)
    if left_out:
        more = f" and {len(left_out) - 1} more" if left_out[1:] else ""
        _log.warning("left out, as only files and directories can have them: %s%s", left_out[0], more)


def _entry(path: str, member: Member, limits: LayerLimits, left_out: list[str]) -> Entry:
    parts = _parts(member.name, limits)
    if member.kind == _HARDLINK:
        return Entry(parts, None, _parts(member.link, limits))
    kind = _KINDS.get(member.kind)
    if kind is None:
        raise BuildError(f"{shown(member.name)}: members of type {member.kind!r} are not known")
    if not (0 <= member.uid <= _OWNER_MAX and 0 <= member.gid <= _OWNER_MAX):
        raise HostileLayer(f"{shown(member.name)}: owner {member.uid}:{member.gid} is out of range")
    inode = Inode(
        mode=kind | member.mode & 0o7777,
        uid=member.uid,
        gid=member.gid,
        mtime=member.mtime,
        mtime_ns=member.mtime_ns,
        xattrs=_xattrs(member, kind, left_out) if member.records else (),
    )
    if kind == stat.S_IFREG:
        inode.size = member.size
        return Entry(parts, inode, content=TarContent(path, member.size, member.pieces))
    if kind == stat.S_IFLNK:
        inode.mode = kind | 0o777  # links have no other
        inode.data = member.link
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        inode.rdev = member.device
    return Entry(parts, inode)


def _xattrs(member: Member, kind: int, left_out: list[str]) -> tuple[tuple[bytes, bytes], ...]:
    """Those that Linux has a place for; macOS leaves others (com.apple.…) in layers, which no runtime sets."""
    found = []
    for key, value in member.records.items():
        name = key.removeprefix(_XATTR)
        if len(name) < len(key) and name.startswith(_NAMESPACES):
            if len(name) > 255 or len(value) > 65535:
                raise HostileLayer(f"{shown(member.name)}: the attribute {shown(name)} is too long")
            if kind in (stat.S_IFREG, stat.S_IFDIR) or not name.startswith(_OF_FILES):
                found.append((name, value))
            else:
                left_out.append(f"{shown(name)} of {shown(member.name)}")
    return tuple(sorted(found))


def _parts(name: bytes, limits: LayerLimits) -> tuple[bytes, ...]:
    """The components of a name, "." and slashes at both ends left out. A layer has no business above its root."""
    if len(name) > limits.path_bytes:
        raise HostileLayer(f"{shown(name)}: a name of {len(name)} bytes")
    parts = tuple([part for part in name.split(b"/") if part not in (b"", b".")])
    if b".." in parts:
        raise HostileLayer(f"{shown(name)}: a name that leads upward")
    if len(name) > 255 and any(len(part) > 255 for part in parts):
        raise HostileLayer(f"{shown(name)}: a component of more than 255 bytes")
    return parts


class _Pieces(io.RawIOBase):
    """A file made of pieces of another, zeros between them."""

    def __init__(self, archive: io.FileIO, pieces: Pieces, size: int) -> None:
        super().__init__()
        self._archive = archive
        self._pieces = pieces
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # as BufferedReader calls it
        position, wanted = self._position, min(len(buffer), self._size - self._position)
        if wanted <= 0:
            return 0
        after = bisect_right(self._pieces, position, key=lambda piece: piece[0])
        end = self._pieces[after][0] if after < len(self._pieces) else self._size
        count = min(wanted, end - position)
        offset, length, at = self._pieces[after - 1] if after else (0, 0, 0)
        if position < offset + length:
            data = os.pread(self._archive.fileno(), min(count, offset + length - position), at + position - offset)
            count = len(data)
            buffer[:count] = data
        else:
            buffer[:count] = bytes(count)
        self._position += count
        return count

    def close(self) -> None:
        self._archive.close()
        super().close()
