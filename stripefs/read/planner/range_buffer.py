"""Ranges of open file versions, and the buffer that they share. Pure; see the package's essay.

`FilePlan` has the blocks of one version, its cursors, the ranges its chunks are in and the attempts to fetch them.
`RangeBuffer` is the one memory budget of all files, with its eviction order.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stripefs.errors import StoreError
from stripefs.format.blocks import CHUNK, BlockMap, ByteRange
from stripefs.read.planner.readahead import ACTIVE, Cursor, CursorSet

__all__ = ["KEPT", "LATELY", "Attempt", "FilePlan", "Range", "RangeBuffer", "RangeState"]


LATELY = 10.0
"""Seconds for which nothing is read ahead that a stream has read, except for one that turns out to want it again: the
kernel has it in its page cache, and streams that stop at the end of a tensor would fetch their neighbours' anew."""

QUICK = 0.1
QUICK_AHEAD = 128 << 20
"""Where no range took longer than so many seconds lately, a stream looks so many bytes ahead and no further: that lasts
at 1.3 GB/s. A source faster than its reader would fill the budget, with memory that is used for the first time."""


class RangeState(enum.Enum):
    WANTED = "wanted"  # a reader waits for it (or it failed and will be tried again); no attempt under way
    FETCHING = "fetching"
    READY = "ready"
    FAILED = "failed"  # `error` says why; waiters take it, the range is gone from its file
    DROPPED = "dropped"  # its memory went to others; a reader that still wants it asks again


@dataclass(slots=True, eq=False)
class Range:
    """Bytes [offset, end) of one file: wanted, on their way, or here as `data` (anything with a length)."""

    file: FilePlan
    offset: int
    end: int
    hosts: tuple[str, ...]
    cursor: Cursor | None = None  # the one that looked ahead to it; None once consumed or when fetched on demand alone
    state: RangeState = RangeState.WANTED
    waiters: int = 0
    demanded: bool = False
    wanted: bool = False  # True if a reader ever asked for a byte of it
    host: str = ""  # which its bytes came from; "" for one of the client's choice
    local: bool = False  # True if its bytes came from a local host
    slowest: tuple[float, str] = (0.0, "")  # the longest that a host was waited for, in seconds, and that host
    attempts: list[Attempt] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    failures: int = 0
    not_before: float = 0.0
    deadline: float = float("inf")
    used: float = 0.0
    data: Any = None
    error: Exception | None = None
    signal: Any = None  # the I/O side wakes waiters with it

    @property
    def length(self) -> int:
        return self.end - self.offset

    @property
    def awaits_confirmation(self) -> bool:
        """True if its bytes are here and have yet to be confirmed."""
        return any(attempt.received_at for attempt in self.attempts)

    def abandon(self) -> None:
        """None of its attempts counts any more."""
        for attempt in self.attempts:
            attempt.late = attempt.cancelled = True


@dataclass(slots=True, eq=False)
class Attempt:
    """One read of one range at one host. `progress_at` moves when bytes arrive; 0 when the client cannot tell.

    ahead: bytes behind the range that its reader will most likely want too, and will want from this host. served_by:
    the host that the bytes came from where that is another one, "" else. received_at: when all bytes were here that had
    yet to be confirmed, 0 before.
    """

    range: Range
    host: str
    started: float
    hedge: bool = False
    ahead: int = 0
    progress_at: float = 0.0
    served_by: str = ""
    unconfirmed: bool = False  # its bytes have to be confirmed
    received_at: float = 0.0
    cancelled: bool = False
    late: bool = False  # already answered by another attempt


@dataclass(slots=True, eq=False)
class FilePlan:
    """The planner's state of one open file version. `ranges` maps each chunk's start to the range it is in."""

    length: int
    blocks: BlockMap = field(init=False)
    cursors: CursorSet = field(default_factory=CursorSet)
    ranges: dict[int, Range] = field(default_factory=dict)
    read_at: dict[int, float] = field(default_factory=dict)
    """Time at which each chunk, by its start, was last read, for those read lately."""
    passed: dict[int, float] = field(default_factory=dict)
    """Time at which each chunk was last asked for whose range was dropped soon after its reader had passed it."""
    slowest: float = 0.0
    """Seconds that the slowest of its ranges took lately, or would have taken had it been a full one."""
    failed: StoreError | None = None
    closed: bool = False

    def __post_init__(self) -> None:
        self.blocks = BlockMap(self.length)

    def ahead_limit(self, share: int) -> int:
        """The most bytes that a stream looks ahead here, where `share` bytes of the budget are its own."""
        return share if self.slowest > QUICK else min(share, QUICK_AHEAD)

    def hosts(self, offset: int) -> tuple[str, ...]:
        """The known block that holds `offset`."""
        block = self.blocks.find(offset)
        return block.hosts if block is not None else ()

    def range_at(self, offset: int) -> Range | None:
        """The range that the byte at `offset` is in."""
        block = self.blocks.find(offset)
        return self.ranges.get(offset - (offset - block.offset) % CHUNK) if block is not None else None

    def read_since(self, chunk: int, since: float) -> bool:
        return self.read_at.get(chunk, since) > since

    def fresh(self, chunk: int, end: int, range_size: int, since: float) -> Iterator[ByteRange]:
        """The ranges of [chunk, end), inside one block, that are neither here nor were read after `since`."""
        while chunk < end:
            range_ = self.ranges.get(chunk)
            if range_ is not None:
                chunk = range_.end
            elif self.read_since(chunk, since):
                chunk += CHUNK
            else:
                span = self.absent_run(chunk, end, range_size)
                stop = chunk + CHUNK
                while stop < span.end and not self.read_since(stop, since):
                    stop += CHUNK
                yield ByteRange(chunk, min(stop, span.end), span.hosts)
                chunk = stop

    def absent_run(self, start: int, end: int | None, range_size: int) -> ByteRange:
        """From the absent chunk at `start` to the next present one, the range's bound, or the chunk that holds end."""
        span = self.blocks.span(start, range_size)
        if span is None:
            raise LookupError(f"no block known at {start}")
        stop = start + CHUNK
        while stop < span.end and stop not in self.ranges and (end is None or stop < end):
            stop += CHUNK
        return ByteRange(start, min(stop, span.end), span.hosts)

    def plan(self, span: ByteRange, hosts: tuple[str, ...], cursor: Cursor | None) -> Range:
        """A new range of absent chunks, to be read from one of `hosts` (or where the client likes)."""
        range_ = Range(self, span.offset, span.end, hosts, cursor)
        for chunk in range(span.offset, span.end, CHUNK):
            self.ranges[chunk] = range_
        return range_

    def remove(self, range_: Range) -> None:
        """The range's chunks are absent from now on."""
        for chunk in range(range_.offset, range_.end, CHUNK):
            if self.ranges.get(chunk) is range_:
                del self.ranges[chunk]

    def shorten(self, range_: Range, end: int) -> None:
        """Give the chunks from `end` on back."""
        for chunk in range(range_.offset, range_.end, CHUNK):
            if chunk >= end:
                del self.ranges[chunk]
        range_.end = end

    def chunks(self, start: int, end: int) -> Iterator[int]:
        """The starts of the located chunks that overlap [start, end)."""
        position = start
        while position < end:
            block = self.blocks.find(position)
            if block is None:
                return
            chunk = position - (position - block.offset) % CHUNK
            yield chunk
            position = min(chunk + CHUNK, block.offset + block.length)

    def between(self, start: int, end: int) -> Iterator[Range]:
        """The ranges of the located chunks that overlap [start, end), in order."""
        last = None
        for chunk in self.chunks(start, end):
            range_ = self.ranges.get(chunk)
            if range_ is not None and range_ is not last:
                yield range_
            last = range_


def trusted_ahead(range_: Range) -> int:
    """Bytes behind the range that its reader is trusted to go on to, whatever the memory holds of them.

    Of blocks with several replicas nothing is said: their ranges go to whichever host is least busy.
    """
    cursor = range_.cursor
    if cursor is None or cursor.backward or len(range_.hosts) > 1:
        return 0
    return max(0, min(cursor.position + cursor.trusted, range_.file.length) - range_.end)


LEFT = 1.0
"""Seconds after which a range that was read in part gives its room to others: its reader has gone elsewhere."""

KEPT = 64 << 20
"""Bytes of consumed ranges that stay. Most readers never come back, or the kernel has the bytes in its pages, while
memory that is used for the first time costs as much as reading a disk: reading 1 GiB from one of 1.2 GB/s took 1.3 s in
a budget of 1 GiB, whose pages all had to be made first, and 1.0 s in one of 128 MiB (medians of five)."""


class RangeBuffer:
    """`budget` bytes. `used` counts every attempt under way and every range that is here.

    Of consumed ranges `kept` bytes stay, of those from local hosts `local_kept`; the least recently used go first. A
    second reader close behind the first, or one with O_DIRECT that the page cache does not serve, finds them. Their
    memory is touched, and serves the next ranges.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = 0
        self.peak = 0
        self.dropped = 0
        """Ranges of look-ahead that gave way although their stream was on its way to them."""
        self.kept = self.local_kept = KEPT
        self._consumed: dict[Range, None] = {}
        self._local: dict[Range, None] = {}
        """Consumed ranges that came from local hosts."""
        self._ahead: dict[Range, None] = {}

    @property
    def free(self) -> int:
        return self.budget - self.used

    def reserve(self, length: int) -> None:
        self.used += length
        self.peak = max(self.peak, self.used)

    def release(self, length: int) -> None:
        self.used -= length

    def arrived(self, range_: Range) -> None:
        """The range's bytes are here, its reservation already made by the attempt that brought them."""
        if range_.cursor is None:
            self._keep(range_)
        else:
            self._ahead[range_] = None

    def _keep(self, range_: Range) -> None:
        lru = self._lru(range_)
        lru[range_] = None
        excess = sum(one.length for one in lru) - (self.local_kept if range_.local else self.kept)
        for victim in [one for one in lru if not one.waiters]:
            if excess <= 0:
                break
            excess -= victim.length
            self.drop(victim)
            victim.file.passed.update(dict.fromkeys(range(victim.offset, victim.end, CHUNK), victim.used))

    def _lru(self, range_: Range) -> dict[Range, None]:
        return self._local if range_.local else self._consumed

    def touch(self, range_: Range) -> None:
        lru = self._lru(range_)
        if range_ in lru:
            del lru[range_]
            lru[range_] = None

    def consumed(self, range_: Range) -> None:
        """No cursor will come to this range any more, as far as is known."""
        range_.cursor = None
        if range_ in self._ahead:
            del self._ahead[range_]
            self._keep(range_)

    def make_room(self, length: int, now: float, *, keep: int, of_active: bool = False) -> bool:
        """Drop what is least needed until `length` bytes fit beside `keep`; `of_active`: look-ahead of streams that
        move as well."""
        if self.free - keep >= length:
            return True
        for victim in self._victims(now - ACTIVE, now - LEFT):
            self.drop(victim)
            if self.free - keep >= length:
                return True
        if of_active:
            for victim in self._ahead_victims():
                self.drop(victim)
                self.dropped += 1
                if self.free - keep >= length:
                    return True
        return False

    def drop(self, range_: Range) -> None:
        """Give the memory of a ready range to others; a reader that still wants it asks again."""
        range_.file.remove(range_)
        if not range_.wanted:
            range_.file.cursors.trust.unwanted += range_.length
        self.forget(range_)
        range_.state = RangeState.DROPPED

    def forget(self, range_: Range) -> None:
        """Drop a range that is here and give its memory back."""
        for lru in (self._ahead, self._consumed, self._local):
            if range_ in lru:
                del lru[range_]
                self.used -= range_.length
        range_.data = None

    def ahead_of(self, cursor: Cursor) -> list[Range]:
        """Look-ahead that is here and belongs to `cursor`."""
        return [range_ for range_ in self._ahead if range_.cursor is cursor]

    def idle(self, before: float) -> list[Range]:
        """Consumed ranges that nobody touched since `before`."""
        consumed = (*self._local, *self._consumed)
        return [range_ for range_ in consumed if range_.used < before and not range_.waiters]

    def _victims(self, active: float, idle: float) -> Iterator[Range]:
        """Ranges that nobody waits for or reads now: consumed ranges, those from local hosts first and least recently
        used first, then look-ahead that one stream was to read and another has read, not since `idle`, then the
        look-ahead of cursors not seen since `active`."""
        yield from [range_ for range_ in (*self._local, *self._consumed) if not range_.waiters]
        read = [one for one in self._ahead if one.wanted and one.used < idle and not one.waiters]
        yield from sorted(read, key=lambda range_: range_.used)
        yield from self._ahead_victims(active)

    def _ahead_victims(self, before: float = float("inf")) -> list[Range]:
        """Look-ahead without waiters of cursors not seen since `before`, farthest ahead of its cursor first."""
        found = [
            (range_.cursor.ahead(range_), range_)
            for range_ in self._ahead
            if range_.cursor is not None and range_.cursor.seen < before and not range_.waiters
        ]
        return [range_ for _, range_ in sorted(found, key=lambda entry: entry[0], reverse=True)]
