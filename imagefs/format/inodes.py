"""The tree of an image in memory, the addresses of its chunks, and the table that finds them by content.

The tree stands between the sources that it is merged from and the formats that it is written in. The extents table says
where in the cold device the content with a given digest lies, so that traces survive rebuilds; docs/format.md tells its
layout. It is used where it lies, mapped: no object of Python stands for an extent.
"""

from __future__ import annotations

import hashlib
import stat
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from imagefs.errors import FormatError

__all__ = [
    "COLD",
    "DIGEST",
    "HOLE",
    "HOT",
    "ExtentTable",
    "Inode",
    "address",
    "digest_of",
    "printable",
    "shown",
    "walk",
    "write_extents",
]

HOLE = 0xFFFF_FFFF
"""The address of a chunk that holds nothing but zeros and is stored nowhere."""

_MAX_BLOCK = HOLE - 1

COLD, HOT = 1, 2
"""The numbers of the devices: what never moves, and the copies of what starts touch first."""

DIGEST = 16
"""Bytes of an extent's digest. It finds content again and protects nothing: blocks are checked by whole SHA-256s."""

_MAGIC = b"BSEXTNT1"
_HEADER = struct.Struct("<8sI4x")
_RECORD = struct.Struct(f"<{DIGEST}sI")


def address(device: int, block: int) -> int:
    """The address of a chunk: `block` (4 KiB each) of the device with this number, the first being 1.

    Raises FormatError past 16 TiB, which is as far as 32 bits of block number go.
    """
    if not 0 <= block <= _MAX_BLOCK:
        raise FormatError(f"block {block} of device {device} is past the 16 TiB that an image can address")
    return device << 32 | block


@dataclass(slots=True, eq=False)
class Inode:
    """One inode. A hardlink is the same object under several names.

    `mode` holds type and permission bits; `mtime` seconds since 1970, also negative, and `mtime_ns` the rest; `size`
    bytes of a regular file, `rdev` major and minor of a device node. `data` is the target of a symbolic link, or the
    content of a file that is kept beside its inode; `chunks` the addresses of the chunks of any other.
    """

    mode: int
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    mtime_ns: int = 0
    size: int = 0
    rdev: tuple[int, int] = (0, 0)
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    children: dict[bytes, Inode] | None = None
    data: bytes | None = None
    chunks: Sequence[int] = ()

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)


def walk(root: Inode, *, directories: bool = False) -> Iterator[tuple[bytes, Inode]]:
    """Every name once, as a path without leading slash, a directory before what is in it, names in byte order.

    With `directories` only those.
    """
    stack: list[tuple[bytes, bytes, Inode]] = [(b"", b"", root)]
    while stack:
        above, name, inode = stack.pop()
        path = above + name
        yield path, inode
        if inode.children:
            above = path + b"/" if path else b""  # one for all that is below: whole paths take too much memory
            below = sorted(inode.children.items(), key=lambda entry: entry[0], reverse=True)
            stack += [(above, name, child) for name, child in below if child.is_directory or not directories]


def shown(name: bytes) -> str:
    """A name or path as part of a line for people, whatever bytes it has; no more than a line holds."""
    return printable(name[:500].decode("utf-8", "backslashreplace"))


def printable(text: str) -> str:
    """A text that somebody else wrote, as part of a line for people: no terminal obeys it, and any can show it."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def digest_of(data: bytes | memoryview) -> bytes:
    """The digest by which an extent with this content is found."""
    return hashlib.sha256(data).digest()[:DIGEST]


def write_extents(digests: bytes | bytearray, addresses: array[int]) -> bytes:
    """The table of extents whose digests stand one behind the other in `digests`, at these blocks of 4 KiB."""
    if len(digests) != DIGEST * len(addresses):
        raise FormatError(f"{len(digests)} bytes of digests do not make {len(addresses)} extents")
    records = [
        _RECORD.pack(digests[DIGEST * number : DIGEST * (number + 1)], addresses[number])
        for number in sorted(range(len(addresses)), key=lambda number: addresses[number])
    ]
    records.sort(key=lambda record: record[:DIGEST])  # which keeps equal ones in the order of their places
    return _HEADER.pack(_MAGIC, len(records)) + b"".join(records)


class ExtentTable:
    """A table in `data`, any buffer. Raises FormatError for anything else; what it answers may still be nonsense when
    the table was not made by `write_extents`, so a place is checked before it is used."""

    def __init__(self, data: memoryview | bytes) -> None:
        self._data = memoryview(data)
        if len(self._data) < _HEADER.size:
            raise FormatError(f"an extents table of {len(self._data)} bytes is too short for its header")
        magic, count = _HEADER.unpack_from(self._data)
        self._count: int = count
        if magic != _MAGIC:
            raise FormatError("this is no extents table, or one of another version")
        if len(self._data) != _HEADER.size + _RECORD.size * self._count:
            raise FormatError("the extents table is shorter or longer than its header says")
        self._by_address: array[int] | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[bytes, int]:
        """Digest and place of a record."""
        if not 0 <= number < self._count:
            raise IndexError(number)
        record: tuple[bytes, int] = _RECORD.unpack_from(self._data, _HEADER.size + _RECORD.size * number)
        return record

    def find(self, digest: bytes) -> Iterator[int]:
        """The places of this content, ascending; none when it is not in the image."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self[middle][0] < digest else (low, middle)
        while low < self._count and self[low][0] == digest:
            yield self[low][1]
            low += 1

    def digest_at(self, address: int) -> bytes | None:
        """The digest of the extent at this block of 4 KiB, None where none begins. The first call sorts all places."""
        if self._by_address is None:
            self._by_address = array("I", sorted(range(self._count), key=lambda number: self[number][1]))
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self[self._by_address[middle]][1] < address else (low, middle)
        if low == self._count:
            return None
        digest, found = self[self._by_address[low]]
        return digest if found == address else None
