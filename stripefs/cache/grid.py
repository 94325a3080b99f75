"""The grid in which files are cached. Pure.

A file is cut into blocks of 1 MiB counted from its start, the last one shorter, and 64 blocks make a segment, which is
one file of the cache. The grid depends on nothing but the file's length, so every process finds the same blocks,
whatever the store says about where bytes lie.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["BLOCK", "PER_SEGMENT", "SEGMENT", "by_segment", "inside", "length_of", "over", "runs"]

BLOCK = 1 << 20
"""Bytes of a block: what the reader fetches at least, so that its ranges begin and end where blocks do."""

PER_SEGMENT = 64
"""Blocks of a segment: a TiB has 16,000, which can be looked through in some 50 ms when room is made."""

SEGMENT = BLOCK * PER_SEGMENT


def over(offset: int, length: int) -> range:
    """The blocks that overlap [offset, offset + length)."""
    return range(offset // BLOCK, -(-(offset + length) // BLOCK)) if length > 0 else range(0)


def inside(offset: int, length: int, file_length: int) -> range:
    """The blocks that lie wholly in [offset, offset + length) of a file of `file_length` bytes."""
    end = offset + length
    stop = -(-end // BLOCK) if end >= file_length else end // BLOCK
    first = -(-offset // BLOCK)
    return range(first, max(first, stop))


def length_of(blocks: range, file_length: int) -> int:
    """Bytes of these neighbours, the file's last block being short."""
    return max(0, min(blocks.stop * BLOCK, file_length) - blocks.start * BLOCK)


def by_segment(blocks: range) -> Iterator[range]:
    """`blocks`, cut where segments end."""
    start = blocks.start
    while start < blocks.stop:
        stop = min(blocks.stop, (start // PER_SEGMENT + 1) * PER_SEGMENT)
        yield range(start, stop)
        start = stop


def runs(blocks: range, here: bytes) -> Iterator[tuple[range, bool]]:
    """`blocks` cut where `here` (a byte for each, 0 or 1) changes; with each piece what it says there."""
    start = 0
    while start < len(here):
        stop = here.find(b"\1" if not here[start] else b"\0", start)
        stop = len(here) if stop < 0 else stop
        yield blocks[start:stop], bool(here[start])
        start = stop
