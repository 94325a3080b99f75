"""The layout of the cold device: decided from names and sizes alone, so that it is the same on every build.

A file of 64 KiB or more begins a block (128 KiB) of its own. Smaller files of one directory share blocks, each on a
multiple of 4 KiB, and none crosses into a second block. A file whose name says so (one in eight, by a hash) begins a
new block: behind it everything lies as before when a file in front of it came, went or grew, so all later blocks are
those of the last build. The padding that this takes is address space; it is zeros, which compress to nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from imagefs.build.content import Content
from imagefs.errors import FormatError
from imagefs.format import erofs, index
from imagefs.format.inodes import HOLE, Inode, address, shown, walk

__all__ = ["UNIT", "Segment", "lay_out"]

COLD = 1
"""The number of the cold device."""

UNIT = 64 << 10
"""Bytes of the grid by which runs of data in a file have places: chunks of older builds, so that blocks stay equal."""

_PER_BLOCK = index.BLOCK // erofs.BLOCK
_PER_CHUNK = erofs.CHUNK // erofs.BLOCK
_CUT = 8
_MOST = 16 << 40


@dataclass(frozen=True, slots=True)
class Segment:
    """`length` bytes of a file from `offset` lie at byte `at` of the device."""

    content: Content
    offset: int
    length: int
    at: int


def lay_out(root: Inode, contents: Mapping[Inode, Content]) -> list[Segment]:
    """Give every file of `contents` its chunks; what lies where, ascending.

    Files with `data` have no place in a device. Raises FormatError past 16 TiB.
    """
    segments: list[Segment] = []
    cursor = 0  # in blocks of 4 KiB
    for first, name, inode in _files(root, contents):
        content = contents[inode]
        if inode.size > _MOST:
            raise FormatError(f"{shown(name)}: a file of {inode.size} bytes, of which an image can address 16 TiB")
        blocks = -(-inode.size // erofs.BLOCK)
        large = inode.size >= UNIT
        left = -cursor % _PER_BLOCK
        if first or large or blocks > left or zlib.crc32(name) % _CUT == 0:
            cursor += left
        if large:
            cursor = _place_large(inode, content, cursor, segments)
        else:
            segments.append(Segment(content, 0, inode.size, cursor * erofs.BLOCK))
            inode.chunks = [address(COLD, cursor + at) for at in range(0, blocks, _PER_CHUNK)]
            cursor += blocks
    return segments


def _files(root: Inode, contents: Mapping[Inode, Content]) -> Iterator[tuple[bool, bytes, Inode]]:
    """Every file that needs a place: whether it is the first of its directory, its name, and the file."""
    done: set[Inode] = set()
    for _, directory in walk(root, directories=True):
        first = True
        for name, inode in sorted((directory.children or {}).items(), key=lambda entry: entry[0]):
            if inode in contents and inode.data is None and inode not in done:
                done.add(inode)
                yield first, name, inode
                first = False


def _place_large(inode: Inode, content: Content, cursor: int, segments: list[Segment]) -> int:
    """Place the runs of units that hold data, each from a block of its own on; where the device ends now."""
    chunks = [HOLE] * -(-inode.size // erofs.CHUNK)
    for first, end in _runs(content):
        begin, stop = first * UNIT, min(end * UNIT, inode.size)
        segments.append(Segment(content, begin, stop - begin, cursor * erofs.BLOCK))
        for offset in range(begin, stop, erofs.CHUNK):
            chunks[offset // erofs.CHUNK] = address(COLD, cursor + (offset - begin) // erofs.BLOCK)
        cursor += -(-(stop - begin) // erofs.BLOCK)
        cursor += -cursor % _PER_BLOCK
    inode.chunks = chunks
    return cursor


def _runs(content: Content) -> Iterator[tuple[int, int]]:
    """First unit and end of each run of units with data in them; holes of less than two blocks do not count."""
    slack = 2 * index.BLOCK // UNIT
    current: tuple[int, int] | None = None
    for offset, length in content.ranges():
        first, end = offset // UNIT, -(-(offset + length) // UNIT)
        if current is not None and first - current[1] < slack:
            current = current[0], max(end, current[1])
            continue
        if current is not None:
            yield current
        current = first, end
    if current is not None:
        yield current
