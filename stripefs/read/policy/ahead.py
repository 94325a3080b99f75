"""Which bytes lie ahead of a stream and are worth fetching. Pure; see the package's essay."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator

from stripefs.format.blocks import CHUNK, ByteRange
from stripefs.read.policy.cursors import ACTIVE, Cursor
from stripefs.read.policy.file import LATELY, FilePlan

__all__ = ["nearest"]

NEAR_AHEAD = 64 << 20
"""Bytes ahead of a stream up to which near hosts are read: more than they have under way and than a reader takes in the
time that one read needs. They have no slow ones among them that must be looked past."""

Near = Callable[[tuple[str, ...]], bool]
"""Whether a block on these hosts would be read from near."""


class _Unlocated(Exception):
    """Look-ahead met a block that is not known, at `offset`."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


def nearest(
    files: Iterable[FilePlan], share: int, range_size: int, now: float, unlocated: dict[FilePlan, int], near: Near
) -> Iterator[tuple[FilePlan, Cursor, ByteRange]]:
    """What is worth fetching for all streams that move, each within `share` bytes: what is nearest to its own first.

    Looks at what is next only when asked for it, so what the caller plans meanwhile counts. Where a file's blocks end
    that are known, its stream ends too, and the place is noted in `unlocated`.
    """
    queue: list[tuple[int, int, ByteRange, Iterator[ByteRange], FilePlan, Cursor]] = []

    def push(spans: Iterator[ByteRange], file: FilePlan, cursor: Cursor) -> None:
        try:
            span = next(spans, None)
        except _Unlocated as stop:
            unlocated[file] = stop.offset
            return
        if span is not None:
            heapq.heappush(queue, (cursor.ahead(span), id(cursor), span, spans, file, cursor))

    for file in files:
        if file.failed is None:
            for cursor in file.cursors:
                if cursor.active(now - ACTIVE):
                    since = now if cursor.rereads else now - LATELY
                    push(_absent(file, cursor, cursor.reach(share), range_size, since, near), file, cursor)
    while queue:
        _, _, span, spans, file, cursor = heapq.heappop(queue)
        yield file, cursor, span
        push(spans, file, cursor)


def _absent(
    file: FilePlan, cursor: Cursor, reach: int, range_size: int, since: float, near: Near
) -> Iterator[ByteRange]:
    """Ranges within `reach` bytes of the cursor that are not here and were not read after `since`, nearest first.

    Raises _Unlocated where it does not know what comes next.
    """
    if cursor.backward:
        return _below(file, cursor, max(cursor.start - reach, 0), range_size, since, near)
    return _above(file, cursor, min(cursor.position + reach, file.length), range_size, since, near)


def _above(
    file: FilePlan, cursor: Cursor, limit: int, range_size: int, since: float, near: Near
) -> Iterator[ByteRange]:
    position = cursor.position
    while position < limit:
        block = file.blocks.find(position)
        if block is None:
            raise _Unlocated(position)
        end = block.offset + block.length
        if position - cursor.position >= NEAR_AHEAD and near(block.hosts):
            position = end
            continue
        span = next(file.fresh(position - (position - block.offset) % CHUNK, end, range_size, since), None)
        if span is None:
            position = end
        elif passed := file.cursors.passed(span.offset, cursor):
            position = passed
        else:
            yield span
            position = span.end


def _below(
    file: FilePlan, cursor: Cursor, limit: int, range_size: int, since: float, near: Near
) -> Iterator[ByteRange]:
    position = cursor.start
    while position > limit:
        block = file.blocks.find(position - 1)
        if block is None:
            raise _Unlocated(position - 1)
        if cursor.start - position >= NEAR_AHEAD and near(block.hosts):
            position = block.offset
            continue
        begin = position - 1 - (position - 1 - block.offset) % range_size
        spans = list(file.fresh(begin, position, range_size, since))
        passed = file.cursors.passed(position, cursor) if spans else None
        if passed is None:
            yield from spans
        position = begin if passed is None else passed
