"""A block of a directory in an EROFS image: records of fixed length, then the names that they point to, both in order.

So a name is found by halving, and a list can be taken up anywhere. What does not hold together raises FormatError.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from imagefs.errors import FormatError
from imagefs.format.erofs.records import DIRENT, FILE_TYPES

__all__ = ["DirectoryBlock", "Entry"]

_TYPE_MODES = {number: mode for mode, number in FILE_TYPES.items()}


class Entry(NamedTuple):
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

    def entries(self, first: int = 0) -> Iterator[Entry]:
        """Those from number `first` on."""
        for index in range(first, self.count):
            number, start, kind = DIRENT.unpack_from(self._data, index * DIRENT.size)
            if kind not in _TYPE_MODES:
                raise FormatError("a directory is damaged")
            yield Entry(self._name(index, start), number, _TYPE_MODES[kind])

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
