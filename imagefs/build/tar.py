"""Layers as they come: tar archives of every dialect that image builders use.

The standard library's tarfile reads the headers (ustar, GNU and pax, sparse files of all four kinds, numbers in base
256). What it loses is taken from the pax records themselves: times to the nanosecond and attributes byte by byte.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import BinaryIO

from imagefs.build.limits import Limits
from imagefs.errors import BuildError, HostileLayer
from imagefs.format.inode import Inode

__all__ = ["Entry", "TarContent", "entries"]

_XATTR = "SCHILY.xattr."

_KINDS = {
    tarfile.REGTYPE: stat.S_IFREG,
    tarfile.AREGTYPE: stat.S_IFREG,
    tarfile.CONTTYPE: stat.S_IFREG,
    tarfile.GNUTYPE_SPARSE: stat.S_IFREG,
    tarfile.DIRTYPE: stat.S_IFDIR,
    tarfile.SYMTYPE: stat.S_IFLNK,
    tarfile.CHRTYPE: stat.S_IFCHR,
    tarfile.BLKTYPE: stat.S_IFBLK,
    tarfile.FIFOTYPE: stat.S_IFIFO,
}


@dataclass(frozen=True, slots=True)
class TarContent:
    """A file inside an unpacked layer at `path`: pieces (offset in the file, length, offset in the archive)."""

    path: str
    size: int
    pieces: Sequence[tuple[int, int, int]]

    def ranges(self) -> Iterator[tuple[int, int]]:
        return ((offset, length) for offset, length, _ in self.pieces)

    def open(self) -> BinaryIO:
        return io.BufferedReader(_Pieces(open(self.path, "rb", buffering=0), self.pieces, self.size), 1 << 18)


@dataclass(frozen=True, slots=True)
class Entry:
    """One member: where it stands, and either what it is or, for a hardlink, the name of that."""

    parts: tuple[bytes, ...]
    inode: Inode | None
    link_to: tuple[bytes, ...] = ()
    content: TarContent | None = None


def entries(path: str, limits: Limits) -> Iterator[Entry]:
    """The members of the archive at `path`, in order. Raises HostileLayer and BuildError."""
    try:
        with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # it would keep them all
                if sum(len(key) + len(value) for key, value in member.pax_headers.items()) > limits.header_bytes:
                    raise HostileLayer(f"{_shown(member)}: its headers are longer than {limits.header_bytes} bytes")
                yield _entry(path, member, limits)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise BuildError(f"a layer is no tar archive, or a damaged one: {error}") from error


def _entry(path: str, member: tarfile.TarInfo, limits: Limits) -> Entry:
    parts = _parts(_bytes(member.name), _shown(member), limits)
    if member.islnk():
        return Entry(parts, None, link_to=_parts(_bytes(member.linkname), _shown(member), limits))
    kind = _KINDS.get(member.type)
    if kind is None:
        raise BuildError(f"{_shown(member)}: members of type {member.type!r} are not known")
    seconds, nanoseconds = _time(member)
    if member.size < 0 or not (0 <= member.uid < 1 << 32 and 0 <= member.gid < 1 << 32):
        raise HostileLayer(f"{_shown(member)}: size or owner out of range")
    inode = Inode(
        mode=kind | member.mode & 0o7777,
        uid=member.uid,
        gid=member.gid,
        mtime=seconds,
        mtime_ns=nanoseconds,
        xattrs=tuple(
            sorted(
                (_bytes(key.removeprefix(_XATTR)), _bytes(value))
                for key, value in member.pax_headers.items()
                if key.startswith(_XATTR)
            )
        ),
    )
    if kind in (stat.S_IFCHR, stat.S_IFBLK):
        inode.rdev = (member.devmajor, member.devminor)
    if kind == stat.S_IFLNK:
        inode.data = _bytes(member.linkname)
    if kind != stat.S_IFREG:
        return Entry(parts, inode)
    inode.size = member.size
    return Entry(parts, inode, content=TarContent(path, member.size, _pieces(member)))


def _pieces(member: tarfile.TarInfo) -> list[tuple[int, int, int]]:
    if member.sparse is None:
        return [(0, member.size, member.offset_data)] if member.size else []
    pieces, at, end = [], member.offset_data, 0
    holes: list[tuple[int, int]] = member.sparse  # type: ignore[assignment]  # not as typeshed has it
    for offset, length in holes:
        if offset < end or length < 0 or offset + length > member.size:
            raise HostileLayer(f"{_shown(member)}: its map of holes contradicts itself")
        if length:
            pieces.append((offset, length, at))
        at, end = at + length, offset + length
    return pieces


def _parts(name: bytes, shown: str, limits: Limits) -> tuple[bytes, ...]:
    """The components of a name, "." and slashes at both ends left out. A layer has no business above its root."""
    if len(name) > limits.path_bytes or b"\0" in name:
        raise HostileLayer(f"{shown}: no name for a file")
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if b".." in parts:
        raise HostileLayer(f"{shown}: a name that leads upward")
    if any(len(part) > 255 for part in parts):
        raise HostileLayer(f"{shown}: a component of more than 255 bytes")
    return parts


def _time(member: tarfile.TarInfo) -> tuple[int, int]:
    """Seconds and nanoseconds, the latter never negative."""
    text = member.pax_headers.get("mtime")
    try:
        exact = Decimal(text) if text is not None else Decimal(member.mtime)
        total = int((exact * 10**9).to_integral_value())
    except (InvalidOperation, ValueError, OverflowError) as error:
        raise BuildError(f"{_shown(member)}: {text!r} is no time") from error
    if abs(total) >= 1 << 63:
        raise HostileLayer(f"{_shown(member)}: a time that no file can have")
    return divmod(total, 10**9)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _shown(member: tarfile.TarInfo) -> str:
    return _bytes(member.name[:200]).decode("utf-8", "backslashreplace")


class _Pieces(io.RawIOBase):
    """A file made of pieces of another, zeros between them."""

    def __init__(self, archive: io.FileIO, pieces: Sequence[tuple[int, int, int]], size: int) -> None:
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
        wanted = min(len(buffer), self._size - self._position)
        if wanted <= 0:
            return 0
        for offset, length, at in self._pieces:
            if self._position < offset:
                count = min(wanted, offset - self._position)
                buffer[:count] = bytes(count)
                break
            if self._position < offset + length:
                count = min(wanted, offset + length - self._position)
                data = os.pread(self._archive.fileno(), count, at + self._position - offset)
                count = len(data)
                buffer[:count] = data
                break
        else:
            count = wanted
            buffer[:count] = bytes(count)
        self._position += count
        return count

    def close(self) -> None:
        self._archive.close()
        super().close()
