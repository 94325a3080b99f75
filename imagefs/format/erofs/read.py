"""Finding the way through an image of ours without a kernel: for the tree plane, for `inspect`, and for tests.

Everything is read from the bytes on demand. What does not hold together raises FormatError and never anything else, and
never loops, whoever made the image.
"""

from __future__ import annotations

import stat
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from imagefs.errors import FormatError
from imagefs.format.erofs.records import (
    BLOCK,
    CHUNK_INDEX,
    CHUNK_INDEXES,
    DEVICE,
    DEVICE_SLOT,
    DIRENT,
    EXTENDED,
    FILE_TYPES,
    INODE,
    SLOT,
    Device,
    Layout,
    Super,
    unpack_rdev,
    unpack_xattrs,
    xattr_bytes,
)
from imagefs.format.inode import HOLE, Inode

__all__ = ["Entry", "Image", "Stat"]

_TYPE_MODES = {number: mode for mode, number in FILE_TYPES.items()}


class Stat(Inode):
    """An inode as it stands in an image: `number` finds it again, `links` counts its names. Without children."""

    __slots__ = ("_at", "_format", "_xattr_size", "links", "number")

    def __init__(self, number: int, fields: tuple[int, ...], at: int) -> None:
        layout, xattrs, mode, _, size, union, _, uid, gid, mtime, ns, links = fields
        super().__init__(mode=mode, uid=uid, gid=gid, mtime=mtime, mtime_ns=ns, size=size)
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            self.rdev = unpack_rdev(union)
        self.number = number
        self.links = links
        self._format = (layout, union)
        self._xattr_size = xattr_bytes(xattrs)
        self._at = at


class Entry(NamedTuple):
    """One name in a directory: `number` of its inode, `kind` as in the type bits of a mode."""

    name: bytes
    number: int
    kind: int


class Image:
    """An image in `data`, any buffer of bytes; nothing is copied but what is asked for."""

    def __init__(self, data: memoryview | bytes) -> None:
        self._data = memoryview(data)
        self.super = Super.unpack(bytes(self._data[:BLOCK]))
        if self.super.blocks * BLOCK != len(self._data) or self.super.meta_block:
            raise FormatError("the image is not as long as its superblock says")
        at = self.super.device_slot * DEVICE_SLOT
        self.devices = []
        for _ in range(self.super.devices):
            tag, blocks, _, _, _ = DEVICE.unpack(self._slice(at, DEVICE.size))
            self.devices.append(Device(tag.rstrip(b"\0"), blocks))
            at += DEVICE_SLOT

    @property
    def root(self) -> int:
        return self.super.root

    def stat(self, number: int) -> Stat:
        """The inode with this number."""
        at = number * SLOT
        fields = INODE.unpack(self._slice(at, INODE.size))
        if not fields[0] & EXTENDED or stat.S_IFMT(fields[2]) not in FILE_TYPES:
            raise FormatError(f"there is no inode number {number}")
        return Stat(number, fields, at)

    def xattrs(self, inode: Stat) -> list[tuple[bytes, bytes]]:
        at = inode._at + INODE.size
        return unpack_xattrs(bytes(self._slice(at, inode._xattr_size))) if inode._xattr_size else []

    def content(self, inode: Stat) -> bytes:
        """What stands in the image itself: a directory's blocks, a link's target, a small file."""
        layout, block = inode._format[0] >> 1 & 7, inode._format[1]
        if layout == Layout.CHUNKS or not (inode.is_directory or inode.is_file or stat.S_ISLNK(inode.mode)):
            raise FormatError(f"inode {inode.number} has no content of its own")
        whole = inode.size // BLOCK * BLOCK if layout == Layout.INLINE else inode.size
        if layout not in (Layout.PLAIN, Layout.INLINE) or inode.size > len(self._data):
            raise FormatError(f"inode {inode.number} is damaged")
        data = bytes(self._slice(block * BLOCK, whole)) if whole else b""
        tail = inode._at + INODE.size + inode._xattr_size
        return data + bytes(self._slice(tail, inode.size - whole))

    def chunks(self, inode: Stat) -> tuple[int, Iterator[int]] | None:
        """Chunk size in bytes and the chunks' addresses of a file that lies in the devices, None for any other."""
        layout, union = inode._format[0] >> 1 & 7, inode._format[1]
        if layout != Layout.CHUNKS:
            return None
        if not inode.is_file or not union & CHUNK_INDEXES or union & ~(CHUNK_INDEXES | 0x1F):
            raise FormatError(f"inode {inode.number} is damaged")
        size = BLOCK << (union & 0x1F)
        at = inode._at + INODE.size + inode._xattr_size
        at += -at % CHUNK_INDEX.size
        indexes = self._slice(at, CHUNK_INDEX.size * -(-inode.size // size))
        return size, (
            HOLE if block == HOLE else device << 32 | block for _, device, block in CHUNK_INDEX.iter_unpack(indexes)
        )

    def entries(self, inode: Stat) -> Iterator[Entry]:
        """What is in a directory, "." and ".." too, in byte order."""
        content = self.content(inode)
        for start in range(0, len(content), BLOCK):
            yield from self._entries(content[start : start + BLOCK])

    def lookup(self, directory: Stat, name: bytes) -> int | None:
        """The number of the inode called `name` there, None where there is none."""
        content = self.content(directory)
        firsts = [next(self._entries(content[at : at + BLOCK]))[0] for at in range(0, len(content), BLOCK)]
        at = (bisect_right(firsts, name) - 1) * BLOCK
        if at < 0:
            return None
        return next((number for found, number, _ in self._entries(content[at : at + BLOCK]) if found == name), None)

    def _entries(self, block: bytes) -> Iterator[Entry]:
        if len(block) < DIRENT.size:
            raise FormatError("a directory is damaged")
        first = DIRENT.unpack_from(block)[1]
        if first % DIRENT.size or not DIRENT.size <= first <= len(block):
            raise FormatError("a directory is damaged")
        records = list(DIRENT.iter_unpack(block[:first]))
        for index, (number, start, kind) in enumerate(records):
            end = records[index + 1][1] if index + 1 < len(records) else len(block)
            name = block[start:end]
            if index + 1 == len(records):
                name = name.rstrip(b"\0")
            if not name or start < first or end > len(block) or kind not in _TYPE_MODES:
                raise FormatError("a directory is damaged")
            yield Entry(name, number, _TYPE_MODES[kind])

    def _slice(self, at: int, size: int) -> memoryview:
        if at < 0 or at + size > len(self._data):
            raise FormatError("the image points past its own end")
        return self._data[at : at + size]
