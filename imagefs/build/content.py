"""What regular files hold, until it is in blocks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from imagefs.errors import BuildError
from imagefs.format.inode import shown

__all__ = ["Content", "FileContent", "data_ranges", "read_exactly"]


class Content(Protocol):
    """The bytes of one regular file."""

    @property
    def size(self) -> int:
        """Its length, holes among it."""

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Offset and length of everything that may be other than zero, ascending and apart from one another."""

    def open(self) -> BinaryIO:
        """The file from its start, seekable. Holes read as zeros."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file of a local directory."""

    path: bytes
    size: int

    def __str__(self) -> str:
        return shown(self.path)

    def ranges(self) -> Iterator[tuple[int, int]]:
        with open(self.path, "rb") as file:
            yield from data_ranges(file.fileno(), self.size)

    def open(self) -> BinaryIO:
        return open(self.path, "rb")


def read_exactly(file: BinaryIO, length: int, content: Content) -> bytes:
    """The next `length` bytes. Raises BuildError where there are fewer."""
    data = file.read(length)
    if len(data) != length:
        raise BuildError(f"{content} became shorter while it was read")
    return data


def data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """What the file system has stored of a file, by SEEK_DATA and SEEK_HOLE."""
    position = 0
    while position < size:
        try:
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole from here on
            return
        position = min(size, os.lseek(descriptor, begin, os.SEEK_HOLE))
        yield begin, position - begin
