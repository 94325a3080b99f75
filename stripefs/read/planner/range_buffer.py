"""The buffer of ranges: one memory budget for all files, with its eviction order. Pure; see the package's essay."""

from __future__ import annotations

from collections.abc import Iterator

from stripefs.read.planner.cursors import ACTIVE, Cursor
from stripefs.read.planner.ranges import Range, RangeState

__all__ = ["RangeBuffer"]

LEFT = 1.0
"""Seconds after which a range that was read in part gives its room to others: its reader has gone elsewhere."""

LOCAL_KEPT = 64 << 20
"""Bytes of consumed ranges that stay of what came from local hosts: it is soon read again, while memory that is used
for the first time costs as much as reading it. Reading 1 GiB from a disk of 1.2 GB/s took 1.3 s in a budget of 1 GiB,
whose pages all had to be made first, and 1.0 s in one of 128 MiB (medians of five)."""


class RangeBuffer:
    """`budget` bytes. `used` counts every attempt under way and every range that is here.

    Consumed ranges stay, least recently used first, until their room is needed: a second reader close behind the
    first, or one with O_DIRECT that the page cache does not serve, then finds them.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = 0
        self.peak = 0
        self.dropped = 0
        """Ranges of look-ahead that gave way although their stream was on its way to them."""
        self.local_kept = LOCAL_KEPT
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
        self._lru(range_)[range_] = None
        if range_.local:
            excess = sum(one.length for one in self._local) - self.local_kept
            for victim in [one for one in self._local if not one.waiters]:
                if excess <= 0:
                    break
                excess -= victim.length
                self.drop(victim)

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
