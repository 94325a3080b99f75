"""The share of the budget that a stream gets, and the bytes ahead of streams that are worth fetching, nearest first.
Pure; see the package's essay.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence

from stripefs.format.blocks import CHUNK, Block, ByteRange
from stripefs.read.planner.range_buffer import LATELY, FilePlan
from stripefs.read.planner.readahead import ACTIVE, Cursor

__all__ = ["BudgetShare", "nearest"]

LEAST_RANGE = 2 * CHUNK
"""Ranges are not cut below this for the sake of busy hosts: 2 MiB take a 40 MB/s host 50 ms, and a request to it costs
5 to 20 ms. Simulated, three ranges of 1 MiB a host lose more to that than to hosts that stand idle."""

LOOKED_AT = 256
"""Blocks ahead of a stream whose hosts are counted: more hosts than memory is ever short for."""


class BudgetShare:
    """`budget` bytes for everything, ranges of `range_size` bytes at most. `count` counts streams.

    `threads` reads in all and `per_host` at one host may look ahead.
    """

    def __init__(self, budget: int, range_size: int, *, threads: int = 1, per_host: int = 1) -> None:
        self._budget = budget
        self._range_size = range_size
        self._threads = threads
        self._per_host = per_host
        self.divide(streams=1, groups=1, between=0, hosts=1, longest=range_size)

    def divide(self, *, streams: int, groups: int, between: int, hosts: int, longest: int) -> None:
        """Share the budget among so many streams and groups of them; see `count`. longest: bytes of the longest block.

        Sets, all in whole bytes:

        streams     streams that move, at least one
        range_size  a full range now; whole chunks. Less than the setting when many streams share the budget, when
                    blocks are shorter, and when it cannot keep all hosts busy that lie ahead: then it is the power of
                    two that comes nearest to what each host's reads may have
        heads       what look-ahead leaves alone: one range for every stream
        per_host    number of ranges to look ahead for at one host. More than the memory holds for every host would be
                    the share of the others, which then stand idle; simulated with 48 MiB and 8 hosts, three ranges of
                    4 MiB each reach 0.68 of the hosts' rate, one 0.95
        share       what one stream may read ahead. Looking further than the memory it may fill was measured (simulated)
                    to lose up to half the speed: memory that far bytes hold is missing when a busy host gets to the
                    near ones
        """
        depth = max(1, min(self._per_host, self._threads // hosts))  # reads at a host that there are threads for
        fair = self._budget // (4 * streams)
        even = max(LEAST_RANGE, 1 << (self._budget // (hosts * depth) * 2 // 3).bit_length())
        self.streams = streams
        self.range_size = max(CHUNK, min(self._range_size, longest, fair, even) // CHUNK * CHUNK)
        self.heads = streams * self.range_size
        room = self._budget - self.heads
        self.per_host = max(1, min(depth, room // (hosts * self.range_size)))
        self.share = max(CHUNK, (room - min(between, self._budget // 2)) // groups)

    def count(
        self, files: Iterable[FilePlan], since: float, preferred: Callable[[tuple[str, ...]], Sequence[str]]
    ) -> None:
        """Count the streams that moved after `since`, those that do not begin in the look-ahead of another, and the
        hosts that serve the blocks ahead of them, `preferred(hosts of a block)`.

        Streams that do begin there share it: the bytes between them are in memory once, for all of them.
        """
        streams = groups = between = 0
        ahead: list[Block] = []
        for file in files:
            file.cursors.find_ended()
            moving = [cursor for cursor in file.cursors if cursor.streaming and cursor.active(since)]
            # A reader that is on its way here from another file has its share there, one that is through needs none.
            ahead += [block for cursor in moving if cursor.after for block in _ahead(file, cursor, cursor.window)]
            moving = [cursor for cursor in moving if cursor.after is None and cursor.front < file.length]
            streams += len(moving)
            last, reached = 0, -1
            for cursor in sorted(moving, key=lambda cursor: cursor.front):
                ahead += _ahead(file, cursor, self._budget)
                if reached < cursor.front:
                    groups += 1
                else:
                    between += cursor.front - last
                last, reached = cursor.front, cursor.front + cursor.window
        self.divide(
            streams=max(1, streams),
            groups=max(1, groups),
            between=between,
            hosts=max(1, len({host for block in ahead for host in preferred(block.hosts)})),
            longest=max((block.length for block in ahead), default=self._range_size),
        )


def _ahead(file: FilePlan, cursor: Cursor, reach: int) -> list[Block]:
    """The known blocks within `reach` bytes ahead of the cursor."""
    found: list[Block] = []
    offset = max(0, cursor.start - reach) if cursor.backward else cursor.position
    end = cursor.start if cursor.backward else cursor.position + reach
    while offset < end and len(found) < LOOKED_AT:
        block = file.blocks.find(offset)
        if block is None:
            break
        found.append(block)
        offset = block.offset + block.length
    return found


LOCAL_AHEAD = 64 << 20
"""Bytes ahead of a stream up to which local hosts are read: more than they have under way and than a reader takes in
the time that one read needs. They have no slow ones among them that must be looked past."""

IsLocal = Callable[[tuple[str, ...]], bool]
"""True if a block on these hosts would be read from a local one."""


class _Unlocated(Exception):
    """Look-ahead met a block that is not known, at `offset`."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


def nearest(
    files: Iterable[FilePlan], share: int, range_size: int, now: float, unlocated: dict[FilePlan, int], local: IsLocal
) -> Iterator[tuple[FilePlan, Cursor, ByteRange]]:
    """Ranges worth fetching for all streams that move, each within `share` bytes; the nearest to its stream first.

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
                    reach = cursor.reach(file.ahead_limit(share))
                    push(_absent(file, cursor, reach, range_size, since, local), file, cursor)
    while queue:
        _, _, span, spans, file, cursor = heapq.heappop(queue)
        yield file, cursor, span
        push(spans, file, cursor)


def _absent(
    file: FilePlan, cursor: Cursor, reach: int, range_size: int, since: float, local: IsLocal
) -> Iterator[ByteRange]:
    """Ranges within `reach` bytes of the cursor that are not here and were not read after `since`, nearest first.

    Raises _Unlocated where it does not know what comes next.
    """
    if cursor.backward:
        return _below(file, cursor, max(cursor.start - reach, 0), range_size, since, local)
    return _above(file, cursor, min(cursor.position + reach, file.length), range_size, since, local)


def _above(
    file: FilePlan, cursor: Cursor, limit: int, range_size: int, since: float, local: IsLocal
) -> Iterator[ByteRange]:
    position = cursor.position
    while position < limit:
        if (present := file.ranges.get(position)) is not None:  # of a full window that is all but a few
            position = present.end
            continue
        block = file.blocks.find(position)
        if block is None:
            raise _Unlocated(position)
        end = block.offset + block.length
        span = next(file.fresh(position - (position - block.offset) % CHUNK, end, range_size, since), None)
        if span is None or (span.offset - cursor.position >= LOCAL_AHEAD and local(block.hosts)):
            position = end
        elif span.offset >= limit:  # all before it is here
            return
        elif passed := file.cursors.passed(span.offset, cursor):
            position = passed
        else:
            yield span
            position = span.end


def _below(
    file: FilePlan, cursor: Cursor, limit: int, range_size: int, since: float, local: IsLocal
) -> Iterator[ByteRange]:
    position = cursor.start
    while position > limit:
        block = file.blocks.find(position - 1)
        if block is None:
            raise _Unlocated(position - 1)
        if cursor.start - position >= LOCAL_AHEAD and local(block.hosts):
            position = block.offset
            continue
        begin = position - 1 - (position - 1 - block.offset) % range_size
        spans = list(file.fresh(begin, position, range_size, since))
        passed = file.cursors.passed(position, cursor) if spans else None
        if passed is None:
            yield from spans
        position = begin if passed is None else passed
