"""Bytes of a file that is being written, in memory until their parts are acknowledged.

Bytes are dealt out in units to the columns of a segment, and each column becomes one object, a `PartUpload`. A column
is sent as soon as it is full, the others when the segment is sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stripefs.errors import StaleVersion
from stripefs.store.base import Buffer, Status
from stripefs.units import shown
from stripefs.write.layout_policy import Shape
from stripefs.write.part_upload import PartUpload

__all__ = ["PartBuffer", "UploadBase", "UploadSegment"]

GATHERED = 1 << 20
"""Small writes are gathered into pieces of this many bytes, so that a million of them are no million objects."""

_SMALL = 64 << 10


@dataclass(frozen=True, slots=True)
class UploadBase:
    """`length` bytes of the file are those of the file at `path`, which so many parts were joined to. file_id: of a
    published file, whose name others may give to another one; "" where it is not known."""

    path: bytes
    length: int
    parts: int = 1
    file_id: str = ""

    def ensure_same(self, status: Status) -> None:
        """Raises StaleVersion unless `status` is that of this very file."""
        if (status.file_id, status.length) != (self.file_id or status.file_id, self.length):
            raise self.replaced()

    def replaced(self) -> StaleVersion:
        """The error where another file, or none, has the name by now."""
        return StaleVersion(
            f"{shown(self.path)} was unlinked or replaced while it was being written, so its published bytes are gone"
        )


class PartBuffer:
    """The bytes of one part: pieces that do not change any more, but for a last one that gathers small writes."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[Buffer] = []
        self._tail = bytearray()
        self.part: PartUpload | None = None

    def add(self, data: memoryview) -> None:
        """Take `data`, whose bytes stay as they are (no copy is made of long ones)."""
        self.size += len(data)
        if len(data) < _SMALL:
            self._tail += data
            if len(self._tail) >= GATHERED:
                self._close_tail()
        else:
            self._close_tail()
            self._pieces.append(data)

    def _close_tail(self) -> None:
        if self._tail:
            self._pieces.append(self._tail)
            self._tail = bytearray()

    def pieces(self) -> list[Buffer]:
        """All bytes so far; bytes added later go to other pieces."""
        self._close_tail()
        return list(self._pieces)

    def forget(self) -> None:
        self._pieces = []
        self._tail = bytearray()

    def read(self, offset: int, size: int) -> Iterator[Buffer]:
        """The bytes [offset, offset + size) that are held."""
        for piece in self.pieces():
            view = memoryview(piece)
            if offset < len(view):
                yield view[offset : offset + size]
                size -= min(size, len(view) - offset)
                offset = 0
                if not size:
                    return
            else:
                offset -= len(view)


class UploadSegment:
    """`send(column)` is called once for every column that holds something, and sets `column.part`."""

    def __init__(self, start: int, shape: Shape, send: Callable[[UploadSegment, PartBuffer], None]) -> None:
        self.start = start
        self.shape = shape
        self.length = 0
        self.taken: set[str] = set()
        self.columns = [PartBuffer() for _ in range(shape.width)]
        self._send = send

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def space(self) -> int:
        return self.shape.length - self.length

    @property
    def parts(self) -> list[PartUpload]:
        """Of a sealed segment, in the order of its columns."""
        return [column.part for column in self.columns if column.part is not None]

    def add(self, data: memoryview) -> None:
        """Take all of `data`, at most `room` bytes."""
        unit = self.shape.unit or self.shape.part_length
        while data:
            index, into = divmod(self.length, unit)
            column = self.columns[index % len(self.columns)]
            take = min(len(data), unit - into)
            column.add(data[:take])
            self.length += take
            data = data[take:]
            if column.size == self.shape.part_length:
                self._send(self, column)

    def seal(self) -> None:
        """Nothing more comes."""
        self.columns = [column for column in self.columns if column.size]
        for column in self.columns:
            if column.part is None:
                self._send(self, column)

    def places(self, offset: int, size: int) -> Iterator[tuple[PartBuffer, int, int]]:
        """(column, offset in it, bytes) of the file's bytes [offset, offset + size), which lie in this segment."""
        unit = self.shape.unit or self.shape.part_length
        while size:
            number, into = divmod(offset - self.start, unit)
            row, index = divmod(number, self.shape.width)
            take = min(size, unit - into)
            yield self.columns[index], row * unit + into, take
            offset += take
            size -= take
