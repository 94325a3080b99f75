"""A file that is being written here, on its way into the cache.

Which version its bytes make, only the store knows, once it is published. Until then its blocks lie under a key of their
own, which nobody looks for; then they are given its key (`stretch`). Who writes waits for nothing and is told nothing:
what the disk or the memory for it do not take is not cached, and what is not published is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stripefs.cache.cache import Cache
from stripefs.cache.grid import BLOCK
from stripefs.cache.stretch import Known, Stretch
from stripefs.cache.waiting import blocks_of
from stripefs.store.base import Buffer, Status

__all__ = ["Written"]

TOGETHER = 8 * BLOCK
"""Bytes that are handed over at once, as the ranges of readers are."""

SMALL = 64 << 10
"""Pieces below are copied together, so that a million of them are no million objects."""


class Written:
    """Gets the bytes that a writer sends, in order, and what becomes of them. Nothing here blocks or raises.

    known: a published version as it would be cached, None where it would not be. about: what is said of this one while
    it is written. A file may be published several times, each time longer: what stands then is not asked for again.
    """

    def __init__(self, cache: Cache, known: Callable[[bytes, Status], Known | None], about: dict[str, Any]) -> None:
        self._cache = cache
        self._known = known
        self._about = about
        self._stretch = Stretch(cache, about)
        self._before: Known | None = None
        self._end = 0
        """Bytes of the file so far."""
        self._begin = 0
        """Where what is gathered begins: where a block does."""
        self._size = 0
        self._gathered: list[Buffer] = []
        self._tail = bytearray()

    def behind(self, path: bytes, status: Status) -> None:
        """What comes goes behind the published file `status`, whose bytes nobody adds."""
        self._before = self._known(path, status)
        self._end = status.length

    def add(self, data: memoryview) -> None:
        """The next bytes of the file, which do not change any more."""
        begin, self._end = self._end, self._end + len(data)
        if not self._size:
            skip = -begin % BLOCK  # of a block whose beginning is not here
            self._begin, data = begin + skip, data[skip:]
        if not data:
            return
        if not self._cache.filler.hold(len(data)):
            self._cache.figures.add("unfilled_bytes", self._size + len(data))
            self._forget()
            return
        self._size += len(data)
        if len(data) < SMALL:
            self._tail += data
        else:
            self._close_tail()
            self._gathered.append(data)
        if self._size >= TOGETHER:
            self._hand_over()

    def publish(self, path: bytes, status: Status | None) -> None:
        """All of it is the version `status` of the file at `path` now; None where nobody can tell which it is."""
        known = self._known(path, status) if status is not None and status.length == self._end else None
        self._hand_over()
        stretch, self._stretch = self._stretch, Stretch(self._cache, self._about)
        if known is None:
            stretch.drop()
        else:
            if self._size:  # it stays here besides, for a version in which more comes behind it
                self._close_tail()
                number = self._begin // BLOCK
                stretch.offer(range(number, number + 1), list(self._gathered))
            stretch.publish(known, self._before)
        self._before = known

    def drop(self) -> None:
        """What is not published never will be, and what comes next is the file's beginning."""
        stretch, self._stretch = self._stretch, Stretch(self._cache, self._about)
        stretch.drop()
        self._forget()
        self._before = None
        self._end = 0

    def _hand_over(self) -> None:
        """All whole blocks of what is gathered."""
        count = self._size // BLOCK
        if not count:
            return
        self._close_tail()
        blocks = blocks_of(self._gathered)
        first, pieces = self._begin // BLOCK, [piece for each in blocks[:count] for piece in each]
        self._gathered = [piece for each in blocks[count:] for piece in each]
        self._begin += count * BLOCK
        self._size -= count * BLOCK
        self._cache.filler.let_go(count * BLOCK)
        self._stretch.offer(range(first, first + count), pieces)

    def _close_tail(self) -> None:
        if self._tail:
            self._gathered.append(self._tail)
            self._tail = bytearray()

    def _forget(self) -> None:
        self._cache.filler.let_go(self._size)
        self._gathered, self._tail, self._size = [], bytearray(), 0
