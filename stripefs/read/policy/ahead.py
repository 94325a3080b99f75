"""Which bytes lie ahead of a stream and are worth fetching. Pure; see the package's essay."""

from __future__ import annotations

from collections.abc import Iterator

from stripefs.layout.blocks import CHUNK, Span
from stripefs.read.policy.cursors import Cursor
from stripefs.read.policy.file import FilePlan

__all__ = ["Unlocated", "absent"]


class Unlocated(Exception):
    """Look-ahead met a block that is not known, at `offset`."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


def absent(file: FilePlan, cursor: Cursor, reach: int, range_size: int, since: float) -> Iterator[Span]:
    """Ranges within `reach` bytes of the cursor that are not here and were not read after `since`, nearest first.

    Raises Unlocated where it does not know what comes next.
    """
    if cursor.backward:
        return _below(file, cursor, max(cursor.start - reach, 0), range_size, since)
    return _above(file, cursor, min(cursor.position + reach, file.length), range_size, since)


def _above(file: FilePlan, cursor: Cursor, limit: int, range_size: int, since: float) -> Iterator[Span]:
    position = cursor.position
    while position < limit:
        block = file.blocks.find(position)
        if block is None:
            raise Unlocated(position)
        end = block.offset + block.length
        span = next(file.fresh(position - (position - block.offset) % CHUNK, end, range_size, since), None)
        if span is None:
            position = end
        elif passed := file.cursors.passed(span.offset, cursor):
            position = passed
        else:
            yield span
            position = span.end


def _below(file: FilePlan, cursor: Cursor, limit: int, range_size: int, since: float) -> Iterator[Span]:
    position = cursor.start
    while position > limit:
        block = file.blocks.find(position - 1)
        if block is None:
            raise Unlocated(position - 1)
        begin = position - 1 - (position - 1 - block.offset) % range_size
        spans = list(file.fresh(begin, position, range_size, since))
        passed = file.cursors.passed(position, cursor) if spans else None
        if passed is None:
            yield from spans
        position = begin if passed is None else passed
