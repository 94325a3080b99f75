"""Write-back queue: fetched and written blocks are put on disk by threads of its own, behind their readers and writers.

Queued bytes are held in memory and bounded; blocks that the bound or the disk does not take are not cached, and fetched
when wanted. No reader or writer waits for the disk to take anything, or learns that it did not, unless others on this
host wait for the very same bytes: to fetch these again costs the store more than a moment costs here.

`PendingBlocks` serves blocks that are on their way to the disk. Without it a second reader of the process would fetch
again what waits in its memory.

`PartialBlocks` assembles blocks that come in parts. A range that is read never crosses a block of the store. Where
these are not multiples of ours (HDFS files that were joined of parts of any length), one of our blocks lies in two of
them or more, and no read brings all of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from stripefs.cache.cache_format import BLOCK
from stripefs.cache.policy import BusyRate
from stripefs.store.base import Buffer

__all__ = ["PartialBlocks", "PendingBlocks", "WriteJob", "WriteQueue", "blocks_of"]


class PendingBlocks:
    """Safe to use from many threads: each step is one operation on a dictionary."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[bytes, int], Sequence[Buffer]] = {}

    def add(self, key: bytes, block: int, pieces: Sequence[Buffer]) -> None:
        """`pieces` are the bytes of this block of the version `key`."""
        self._blocks[key, block] = pieces

    def remove(self, key: bytes, blocks: range) -> None:
        """They are on disk, or were given up."""
        for block in blocks:
            self._blocks.pop((key, block), None)

    def get(self, key: bytes, block: int) -> Sequence[Buffer] | None:
        return self._blocks.get((key, block))

    def flags(self, key: bytes, blocks: range) -> bytes:
        """A byte for each block: 1 where it is waiting."""
        if not self._blocks:
            return bytes(len(blocks))
        return bytes((key, block) in self._blocks for block in blocks)


def blocks_of(pieces: Iterable[Buffer]) -> list[list[memoryview]]:
    """`pieces`, the first of which begins where a block does, cut where blocks end: the pieces of each block."""
    found: list[list[memoryview]] = []
    room = 0
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            if not room:
                found.append([])
                room = BLOCK
            found[-1].append(rest[:room])
            rest, room = rest[room:], max(0, room - len(rest))
    return found


MOST = 16
"""Blocks of which parts are held: each reader that moves on has one at a time."""


class PartialBlocks:
    """Safe to use from many threads. Those that nobody completes make room for later ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[tuple[bytes, int], tuple[bytearray, list[tuple[int, int]]]] = {}

    def add(self, key: bytes, block: int, length: int, begin: int, data: Buffer) -> bytearray | None:
        """`data` is what the block of the version `key`, `length` bytes long, has from `begin` on; all of the block
        once it is complete. The result belongs to the caller."""
        end = begin + len(data)
        with self._lock:
            whole, covered = self._parts.pop((key, block), (bytearray(), []))
            whole = whole or bytearray(length)
            whole[begin:end] = data
            covered.append((begin, end))
            if _covers(covered, length):
                return whole
            self._parts[key, block] = (whole, covered)
            if len(self._parts) > MOST:
                del self._parts[next(iter(self._parts))]
        return None


def _covers(spans: list[tuple[int, int]], length: int) -> bool:
    reached = 0
    for begin, end in sorted(spans):
        if begin > reached:
            return False
        reached = max(reached, end)
    return reached >= length


_log = logging.getLogger(__name__)

QUIET = 5.0
"""Seconds between calls of `idle` while there is nothing to write."""

LAST_WRITE = 5.0
"""Seconds at the end for what is being written: a disk that hangs must not keep a mount from going."""

THREADS = 2
"""One waits for the disk while the other copies and computes check values."""

LONGEST_WAIT = 2.0
"""Seconds that the disk may need for what waits: others wait for the locks on it, and at the end all of it is lost that
is not written by then."""

WAITED, MOST_WAITED = 0.1, 2.0
"""The share of the time that is spent waiting for room at most, and the seconds of it that can be saved up: a disk that
is slow, or hangs, makes no reader slower than that."""


class WriteJob(NamedTuple):
    """`act` is called on a thread of the queue, for `size` bytes that are held until then; `done` in any case."""

    act: Callable[[], None]
    size: int
    done: Callable[[], None]


class WriteQueue:
    """`limit`: bytes that may wait. `idle` is called now and then. Threads start with the first work.

    patient: True for who waits until all is on disk, so that a slow one may have as much to do as a fast one.
    """

    def __init__(self, limit: int, idle: Callable[[], None], *, patient: bool = False) -> None:
        self._limit = limit
        self._patient = patient
        self._idle = idle
        self._queue: deque[WriteJob] = deque()
        self._running = 0
        self._waiting = 0
        self._reserved = 0
        self._rate = BusyRate()
        self._may_wait, self._counted = MOST_WAITED, time.monotonic()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False

    @property
    def waiting(self) -> int:
        """Bytes that wait to be written, or are being; not 0 either while what was written gets its name."""
        return self._waiting or int(bool(self._queue or self._running))

    def offer(self, work: WriteJob, *, wait: bool = False) -> bool:
        """Take this over, or answer False when too much waits; `wait`: for a moment, until there is room."""
        with self._changed:
            if wait:
                self._wait_for_space(work.size)
            if self._closed or not self._has_space(work.size):
                return False
            self._queue.append(work)
            self._waiting += work.size
            self._wake()
            return True

    def _has_space(self, size: int) -> bool:
        return not self._waiting or self._waiting + self._reserved + size <= self._bound()

    def _wait_for_space(self, size: int) -> None:
        began = time.monotonic()
        self._may_wait = min(MOST_WAITED, self._may_wait + WAITED * (began - self._counted))
        self._counted = began
        self._changed.wait_for(lambda: self._closed or self._has_space(size), max(0.0, self._may_wait))
        self._may_wait -= time.monotonic() - began

    def offer_first(self, work: WriteJob) -> None:
        """Do this next, and after the end not at all."""
        with self._changed:
            if self._closed:
                return
            self._queue.appendleft(work)
            self._waiting += work.size
            self._wake()

    def reserve(self, size: int) -> bool:
        """Count `size` more bytes that are gathered elsewhere, to be offered later; False when that is too much."""
        with self._changed:
            if self._reserved + size > self._limit // 2 or self._waiting + self._reserved + size > self._limit:
                return False
            self._reserved += size
            return True

    def unreserve(self, size: int) -> None:
        """Take that back."""
        with self._changed:
            self._reserved -= size

    def drain(self, patience: float) -> bool:
        """Wait until all is done, `patience` seconds at most; True if it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._running, patience)

    def close(self) -> None:
        """Take nothing more, and drop what waits but for what is under way."""
        with self._changed:
            self._closed = True
            dropped, self._queue = list(self._queue), deque()
            self._waiting -= sum(work.size for work in dropped)
            self._changed.notify_all()
        for work in dropped:
            work.done()
        for thread in self._threads:
            thread.join(LAST_WRITE)

    def _bound(self) -> int:
        """Bytes that may wait now."""
        known = self._rate.seconds >= LONGEST_WAIT and not self._patient  # a disk may falter for a moment
        rate = self._rate.rate if known else None
        return self._limit if rate is None else int(min(self._limit, rate * LONGEST_WAIT))

    def _wake(self) -> None:
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._run, name=f"cache filler {number}", daemon=True)
                for number in range(THREADS)
            ]
            for thread in self._threads:
                thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._closed:
            self._next()
            if time.monotonic() - looked >= QUIET:
                looked = time.monotonic()
                self._idle()

    def _next(self) -> None:
        """Do one, or wait a while for one."""
        with self._changed:
            if not self._queue and not self._closed:
                self._changed.wait(QUIET)
            if not self._queue:
                return
            work = self._queue.popleft()
            self._running += 1
            self._rate.began(time.monotonic())
        try:
            work.act()
        except Exception:  # noqa: BLE001  # the border: a bug here must not end a thread that all files share
            _log.exception("what was fetched could not be cached; please report this")
        finally:
            work.done()
            with self._changed:
                self._running -= 1
                self._waiting -= work.size
                self._rate.ended(time.monotonic(), work.size)
                self._changed.notify_all()
