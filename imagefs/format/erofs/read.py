"""Reads an EROFS image without a kernel: inodes, directories, attributes, extents, and a walk over all of it.

A block of a directory has records of fixed length, then the names that they point to, both in order: a name is found by
halving, and a listing can start anywhere. Everything is read from the bytes on demand. An inconsistent image raises
FormatError and never anything else, and never loops, whoever made it.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from typing import NamedTuple, Protocol

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
    DataLayout,
    DeviceSlot,
    Super,
    unpack_rdev,
    unpack_xattrs,
    xattr_bytes,
)
from imagefs.format.inodes import HOLE, Inode

__all__ = ["DirectoryBlock", "DirectoryEntry", "ErofsExtent", "ErofsImage", "Stat", "entries", "files"]

_TYPE_MODES = {number: mode for mode, number in FILE_TYPES.items()}


class DirectoryEntry(NamedTuple):
    """One name in a directory: `number` of its inode, `kind` as in the type bits of a mode."""

    name: bytes
    number: int
    kind: int


class DirectoryBlock:
    """The block `data`, of which the last of a directory may be shorter than the others."""

    __slots__ = ("_data", "_names_at", "count")

    def __init__(self, data: bytes) -> None:
        if len(data) < DIRENT.size:
            raise FormatError("a directory is damaged")
        self._data = data
        self._names_at: int = DIRENT.unpack_from(data)[1]
        if self._names_at % DIRENT.size or not DIRENT.size <= self._names_at <= len(data):
            raise FormatError("a directory is damaged")
        self.count = self._names_at // DIRENT.size

    def name(self, index: int) -> bytes:
        start = DIRENT.unpack_from(self._data, index * DIRENT.size)[1]
        return self._name(index, start)

    def entries(self, first: int = 0) -> Iterator[DirectoryEntry]:
        """The entries from number `first` on."""
        for index in range(first, self.count):
            number, start, kind = DIRENT.unpack_from(self._data, index * DIRENT.size)
            if kind not in _TYPE_MODES:
                raise FormatError("a directory is damaged")
            yield DirectoryEntry(self._name(index, start), number, _TYPE_MODES[kind])

    def find(self, name: bytes) -> int | None:
        """The number of the inode of that name, None where it is not in this block."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            found = self.name(middle)
            if found == name:
                return int(DIRENT.unpack_from(self._data, middle * DIRENT.size)[0])
            low, high = (middle + 1, high) if found < name else (low, middle)
        return None

    def _name(self, index: int, start: int) -> bytes:
        if index + 1 < self.count:
            end = DIRENT.unpack_from(self._data, (index + 1) * DIRENT.size)[1]
            name = self._data[start:end]
        else:
            end = len(self._data)
            name = self._data[start:].rstrip(b"\0")
        if not 0 < len(name) <= 255 or start < self._names_at or end > len(self._data) or b"/" in name or b"\0" in name:
            raise FormatError("a directory is damaged")
        return name


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


class ErofsExtent(NamedTuple):
    """`length` bytes at `offset` of the device with this number, the first being 1; of device 0 they are zeros."""

    device: int
    offset: int
    length: int


class Bytes(Protocol):
    """Bytes that lie somewhere. Any call of an `ErofsImage` of them may raise what reading them raises."""

    def __len__(self) -> int: ...
    def __getitem__(self, where: slice, /) -> memoryview | bytes: ...


class ErofsImage:
    """An image in `data`; nothing is copied but what is asked for."""

    def __init__(self, data: Bytes) -> None:
        self._data: Bytes = memoryview(data) if isinstance(data, bytes | bytearray) else data
        self.super = Super.unpack(bytes(self._data[:BLOCK]))
        if self.super.blocks * BLOCK != len(self._data) or self.super.meta_block:
            raise FormatError("the image is not as long as its superblock says")
        at = self.super.device_slot * DEVICE_SLOT
        self.devices = []
        for _ in range(self.super.devices):
            tag, blocks, _, _, _ = DEVICE.unpack(self._slice(at, DEVICE.size))
            self.devices.append(DeviceSlot(tag.rstrip(b"\0"), blocks))
            at += DEVICE_SLOT
        if not self.stat(self.root).is_directory:
            raise FormatError("the root of the image is no directory")

    @property
    def data(self) -> memoryview | bytes:
        """All bytes of the image."""
        return self._data[:]

    @property
    def root(self) -> int:
        return self.super.root

    def stat(self, number: int) -> Stat:
        """The inode with this number."""
        at = number * SLOT
        fields = INODE.unpack(self._slice(at, INODE.size))
        if not fields[0] & EXTENDED or stat.S_IFMT(fields[2]) not in FILE_TYPES or fields[10] >= 10**9:
            raise FormatError(f"there is no inode number {number}")
        return Stat(number, fields, at)

    def xattrs(self, inode: Stat) -> list[tuple[bytes, bytes]]:
        at = inode._at + INODE.size
        return unpack_xattrs(bytes(self._slice(at, inode._xattr_size))) if inode._xattr_size else []

    def content(self, inode: Stat) -> bytes:
        """Content that stands in the image itself: a directory's blocks, a link's target, a small file."""
        return self.read(inode, 0, inode.size)

    def read(self, inode: Stat, offset: int, length: int) -> bytes:
        """`length` bytes of such content from `offset` on, fewer where it ends."""
        layout, block = inode._format[0] >> 1 & 7, inode._format[1]
        if layout == DataLayout.CHUNKS or not (inode.is_directory or inode.is_file or stat.S_ISLNK(inode.mode)):
            raise FormatError(f"inode {inode.number} has no content of its own")
        if layout not in (DataLayout.PLAIN, DataLayout.INLINE) or inode.size > len(self._data):
            raise FormatError(f"inode {inode.number} is damaged")
        whole = inode.size // BLOCK * BLOCK if layout == DataLayout.INLINE else inode.size
        end = min(offset + length, inode.size)
        data = b""
        if offset < min(end, whole):
            data = bytes(self._slice(block * BLOCK + offset, min(end, whole) - offset))
        if end > whole:
            first = max(offset, whole)
            tail = inode._at + INODE.size + inode._xattr_size
            data += self._slice(tail + first - whole, max(0, end - first))
        return data

    def chunks(self, inode: Stat) -> tuple[int, Iterator[int]] | None:
        """Chunk size in bytes and the chunks' addresses of a file that lies in the devices, None for any other."""
        table = self.chunk_table(inode)
        if table is None:
            return None
        size, at, count = table
        indexes = self._slice(at, CHUNK_INDEX.size * count)
        return size, (self._address(*found) for found in CHUNK_INDEX.iter_unpack(indexes))

    def chunk(self, inode: Stat, number: int) -> int | None:
        """The address of one chunk, None where the file has none of that number."""
        table = self.chunk_table(inode)
        if table is None or not 0 <= number < table[2]:
            return None
        indexes = self._slice(table[1] + number * CHUNK_INDEX.size, CHUNK_INDEX.size)
        return self._address(*CHUNK_INDEX.unpack(indexes))

    def chunk_table(self, inode: Stat) -> tuple[int, int, int] | None:
        """Chunk size in bytes, where in the image the chunk indexes stand, and how many; None as for `chunks`."""
        layout, union = inode._format[0] >> 1 & 7, inode._format[1]
        if layout != DataLayout.CHUNKS:
            return None
        if not inode.is_file or not union & CHUNK_INDEXES or union & ~(CHUNK_INDEXES | 0x1F):
            raise FormatError(f"inode {inode.number} is damaged")
        size = BLOCK << (union & 0x1F)
        at = inode._at + INODE.size + inode._xattr_size
        return size, at + -at % CHUNK_INDEX.size, -(-inode.size // size)

    def extents(self, inode: Stat, offset: int, length: int) -> Iterator[ErofsExtent]:
        """Extents of these bytes of a file that lies in the devices; they must be inside it. Neighbours come as one."""
        table = self.chunk_table(inode)
        if table is None:
            raise FormatError(f"inode {inode.number} lies in no device")
        size, start, _ = table
        first, end = offset // size, offset + length
        indexes = self._slice(start + first * CHUNK_INDEX.size, (-(-end // size) - first) * CHUNK_INDEX.size)
        found = ErofsExtent(0, 0, 0)
        for number, index in enumerate(CHUNK_INDEX.iter_unpack(indexes), first):
            skipped = max(0, offset - number * size)
            taken = min(end - number * size, size) - skipped
            address = self._address(*index)
            device, at = (0, 0) if address == HOLE else (address >> 32, (address & 0xFFFFFFFF) * BLOCK + skipped)
            if device and at + taken > self.devices[device - 1].size:
                raise FormatError(f"inode {inode.number} points past the end of device {device}")
            if device == found.device and (not device or at == found.offset + found.length):
                found = ErofsExtent(device, found.offset, found.length + taken)
                continue
            if found.length:
                yield found
            found = ErofsExtent(device, at, taken)
        if found.length:
            yield found

    def entries(self, inode: Stat) -> Iterator[DirectoryEntry]:
        """Entries of a directory, "." and ".." too, in byte order."""
        return (entry for _, entry in self.entries_from(inode, 0))

    def entries_from(self, inode: Stat, position: int) -> Iterator[tuple[int, DirectoryEntry]]:
        """The same from a position on, 0 being the start; each with the position behind it."""
        first, index = divmod(max(0, position), BLOCK)
        for number in range(first, self._blocks(inode)):
            start = index if number == first else 0
            for after, entry in enumerate(self._block(inode, number).entries(start), start + 1):
                yield number * BLOCK + after, entry

    def lookup(self, directory: Stat, name: bytes) -> int | None:
        """The number of the inode called `name` there, None where there is none. Reads what it takes to halve."""
        low, high = 0, self._blocks(directory)
        while low < high:  # the first block of which all names come after `name`
            middle = (low + high) // 2
            low, high = (low, middle) if self._block(directory, middle).name(0) > name else (middle + 1, high)
        return self._block(directory, low - 1).find(name) if low else None

    def _blocks(self, directory: Stat) -> int:
        if not directory.is_directory:
            raise FormatError(f"inode {directory.number} is no directory")
        return -(-directory.size // BLOCK)

    def _block(self, directory: Stat, number: int) -> DirectoryBlock:
        return DirectoryBlock(self.read(directory, number * BLOCK, BLOCK))

    def _address(self, high: int, device: int, block: int) -> int:
        if block == HOLE:
            return HOLE
        if high or not 0 < device <= len(self.devices) or block >= self.devices[device - 1].blocks:
            raise FormatError("the image names a place that its devices do not have")
        return device << 32 | block

    def _slice(self, at: int, size: int) -> memoryview | bytes:
        if at < 0 or at + size > len(self._data):
            raise FormatError("the image points past its own end")
        return self._data[at : at + size]


def entries(image: ErofsImage) -> Iterator[tuple[bytes, Stat]]:
    """Path without leading slash and inode of everything below the root.

    Entries of a directory come in byte order of the names, then those below it, directory by directory. A file of
    several names comes under each of them. Raises FormatError.
    """
    seen: set[int] = set()
    stack = [(b"", image.stat(image.root))]
    while stack:
        path, directory = stack.pop()
        if directory.number in seen:
            raise FormatError("a directory of the image has two names")
        seen.add(directory.number)
        below = []
        for entry in image.entries(directory):
            if entry.name in (b".", b".."):
                continue
            inside = path + b"/" + entry.name if path else entry.name
            inode = image.stat(entry.number)
            if stat.S_IFMT(inode.mode) != entry.kind:
                raise FormatError("the image says in two ways what a name stands for")
            if inode.is_directory:
                below.append((inside, inode))
            yield inside, inode
        stack += reversed(below)


def files(image: ErofsImage) -> Iterator[tuple[bytes, Stat]]:
    """The regular files among the `entries`, each once: one of several names comes under the first."""
    linked: set[int] = set()
    for path, inode in entries(image):
        if inode.is_file and inode.number not in linked:
            if inode.links > 1:
                linked.add(inode.number)
            yield path, inode
