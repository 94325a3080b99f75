"""What is here of one version of a file: looking, reading with a check, writing, and the locks of single flight.

Blocking, for threads. Trouble with the disk never leaves this module: what cannot be read is not here, what cannot be
written is not cached.
"""

from __future__ import annotations

import contextlib
import time
from contextlib import AbstractContextManager
from typing import Any

from stripefs.cache.cache import Cache
from stripefs.cache.filler import Fill
from stripefs.cache.grid import BLOCK, PER_SEGMENT, by_segment, length_of, over, runs
from stripefs.cache.segment import Segment
from stripefs.cache.table import SLOT, check_value, here
from stripefs.store.allocator import PAGE, aligned
from stripefs.store.base import Watch

__all__ = ["Hold", "Version"]

PIECE = 8
"""Blocks written at once: 8 MiB, some milliseconds of a disk, and as long as the reader's ranges."""

PATIENCE = 10.0
"""Seconds to wait for another process to fetch something: four processes that share eight hosts of 40 MB/s get a range
of 8 MiB within 3 s."""

CHANGED = 0.1
"""The share by which a rate must have changed to be written down anew."""

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.05
"""Seconds between looks at a lock that another process holds."""

Hold = contextlib.ExitStack
"""Locks on blocks that this process fetches; `close` lets go of them."""


class Version:
    """The version `key` of `length` bytes. about: what `Place.describe` is to say of it when something is written.

    remembered: the rate in bytes a second at which it came from the store, 0 where nobody knows.
    """

    def __init__(self, cache: Cache, key: bytes, length: int, about: dict[str, Any]) -> None:
        self.cache = cache
        self.key = key
        self.length = length
        self.about = about
        self.remembered = 0.0
        self._impatient_until = 0.0
        self._described = False
        rate = cache.place.about(key).get("rate")
        if isinstance(rate, int | float) and rate > 0:
            self.remembered = float(rate)
            self.about = {**about, "rate": rate}

    def _using(self, blocks: range, *, make: bool = False) -> AbstractContextManager[Segment | None]:
        """The segment of these neighbours; None where there is none and none is to be made."""
        return self.cache.segments.using(self.key, blocks.start // PER_SEGMENT, self.length, make=make)

    # -- reading -------------------------------------------------------------------------------------------------

    def here(self, blocks: range) -> bytes:
        """A byte for each block: 1 where it is here, or on its way to the disk. Zeros while that is left alone."""
        if not self.readable:
            return bytes(len(blocks))
        found = []
        for part in by_segment(blocks):
            flags = self.cache.waiting.flags(self.key, part)
            if 0 in flags:
                with self.cache.disk.tolerant("a segment cannot be read", writing=False):
                    flags = bytes(map(max, flags, self._here(part)))
            found.append(flags)
        return b"".join(found)

    @property
    def readable(self) -> bool:
        """Whether the disk is worth asking now."""
        return self.cache.disk.readable(self.remembered)

    def _here(self, blocks: range) -> bytes:
        """Of neighbours in one segment, on disk."""
        with self._using(blocks) as segment:
            if segment is None:
                return bytes(len(blocks))
            found = here(segment.slots(blocks))
            if 0 not in found or segment.alive():
                return found
        self.cache.segments.forget(self.key, blocks.start // PER_SEGMENT)  # evicted; there may be a new one
        with self._using(blocks) as segment:
            return here(segment.slots(blocks)) if segment is not None else bytes(len(blocks))

    def read(self, offset: int, length: int) -> memoryview | None:
        """These bytes, each of whose blocks was checked; None where one is not here, or is damaged."""
        blocks = over(offset, length)
        buffer = aligned(-(-length_of(blocks, self.length) // PAGE) * PAGE)
        good = False
        with self.cache.disk.tolerant("a segment cannot be read", writing=False):
            good = self._gather(blocks, buffer)
        if not good:
            return None
        self.cache.figures.add("hit_bytes", length)
        begin = offset - blocks.start * BLOCK
        return buffer[begin : begin + length]

    def _gather(self, blocks: range, buffer: memoryview) -> bool:
        for part in by_segment(blocks):
            for run, waiting in runs(part, self.cache.waiting.flags(self.key, part)):
                into = buffer[(run.start - blocks.start) * BLOCK :]
                if not (self._take(run, into) if waiting else self._read(run, into)):
                    return False
        return True

    def _take(self, blocks: range, into: memoryview) -> bool:
        """What is on its way to the disk, copied to the beginning of `into`; what got there meanwhile, from there."""
        for place, block in enumerate(blocks):
            data = self.cache.waiting.get(self.key, block)
            rest = into[place * BLOCK :]
            if data is None:
                if not self._read(range(block, block + 1), rest):
                    return False
            else:
                rest[: len(data)] = data
        return True

    def _read(self, blocks: range, into: memoryview) -> bool:
        """Read neighbours of one segment to the beginning of `into` and check them."""
        into = into[: -(-length_of(blocks, self.length) // PAGE) * PAGE]
        with self._using(blocks) as segment:
            if segment is None:
                return False
            slots = segment.slots(blocks)
            if 0 in here(slots):
                return False
            with self.cache.disk.reading(len(into)):
                segment.read(blocks, into)
            return self._check(segment, blocks, slots, into)

    def _check(self, segment: Segment, blocks: range, slots: bytes, data: memoryview) -> bool:
        good = True
        for place, block in enumerate(blocks):
            slot = slots[place * SLOT : (place + 1) * SLOT]
            begin = place * BLOCK
            end = begin + length_of(range(block, block + 1), self.length)
            if not segment.fits(block, slot, data[begin:end]):
                good = False
                # A slot that another process changed meanwhile says nothing about these bytes.
                if segment.clear(block, slot):
                    self.cache.figures.add("damaged")
                    self.cache.disk.warn("damaged", "block %d in %s is damaged", block, segment.path)
        return good

    # -- one fetch a host ----------------------------------------------------------------------------------------

    def hold(self, blocks: range, watch: Watch | None) -> Hold | None:
        """Keep other processes from fetching these blocks, after waiting for one that does.

        None where there can be no locks (nothing can be written), or where one is held for too long. Raises Abandoned.
        """
        locked = False
        if not len(blocks) or not self.cache.disk.writable():
            return None
        with Hold() as hold:
            with self.cache.disk.tolerant("a segment cannot be made", writing=True):
                locked = all(self._lock(hold, part, watch) for part in by_segment(blocks))
            return hold.pop_all() if locked else None

    def _lock(self, hold: Hold, blocks: range, watch: Watch | None) -> bool:
        """Whether neighbours of one segment could be locked."""
        segment = hold.enter_context(self._using(blocks, make=True))
        if segment is None:
            return False
        locked = segment.lock(blocks) or self._wait(segment, blocks, watch)
        if locked:
            hold.callback(segment.unlock, blocks)
        return locked

    def _wait(self, segment: Segment, blocks: range, watch: Watch | None) -> bool:
        began = time.monotonic()
        if began < self._impatient_until:
            return False
        self.cache.figures.add("waits")
        pause = FIRST_PAUSE
        while time.monotonic() < began + PATIENCE:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            if watch is not None:
                watch.progress(0)  # the host that was chosen is not silent: nobody has asked it yet
            if segment.lock(blocks):
                return True
        # Whoever holds it is stopped, or very slow: from now on each fetches for itself.
        self._impatient_until = time.monotonic() + PATIENCE
        return False

    # -- writing -------------------------------------------------------------------------------------------------

    def keep(self, blocks: range, data: memoryview, hold: Hold) -> bool:
        """Have these neighbours written, whose bytes `data` holds, and then let go of `hold`; False when too much waits
        for the disk."""

        def done() -> None:
            self.cache.waiting.remove(self.key, blocks)
            hold.close()

        self.cache.waiting.add(self.key, blocks, data)
        if self.cache.filler.offer(Fill(self.fill, blocks, data, done)):
            return True
        self.cache.waiting.remove(self.key, blocks)
        self.cache.figures.add("unfilled_bytes", len(data))
        return False

    def fill(self, blocks: range, data: memoryview) -> None:
        """Write these neighbours, but for those that are here."""
        for part in by_segment(blocks):
            for first in range(part.start, part.stop, PIECE):
                piece = range(first, min(first + PIECE, part.stop))
                begin = (first - blocks.start) * BLOCK
                written = 0
                with self.cache.disk.tolerant("a block cannot be written", writing=True):
                    written = self._fill(piece, data[begin : begin + length_of(piece, self.length)])
                    self.cache.disk.worked()
                self.cache.figures.add("filled_bytes", written)

    def _fill(self, blocks: range, data: memoryview) -> int:
        if not self.cache.disk.writable():
            self.cache.figures.add("unfilled_bytes", len(data))
            return 0
        written = 0
        with self._using(blocks, make=True) as segment:
            if segment is None:
                return 0
            for part, is_here in runs(blocks, here(segment.slots(blocks))):
                if not is_here:
                    begin = (part.start - blocks.start) * BLOCK
                    written += self._write(segment, part, data[begin : begin + length_of(part, self.length)])
        return written

    def _write(self, segment: Segment, blocks: range, data: memoryview) -> int:
        padded = aligned(-(-len(data) // PAGE) * PAGE)
        padded[: len(data)] = data
        padded[len(data) :] = bytes(len(padded) - len(data))
        if not self.cache.room.take(len(padded), self.key):
            self.cache.figures.add("unfilled_bytes", len(data))
            self.cache.disk.warn("full", "there is no room in %s for what is read; see --cache-size", segment.path)
            return 0
        undo = contextlib.ExitStack()
        with undo:
            undo.callback(self.cache.room.give, len(padded))
            self._describe()
            segment.write(blocks, padded)
            slots = [
                check_value(self.key, block, data[begin : begin + BLOCK])
                for block, begin in zip(blocks, range(0, len(data), BLOCK), strict=True)
            ]
            segment.settle(blocks, b"".join(slots))
            undo.pop_all()
        return len(data)

    def _describe(self) -> None:
        if not self._described:
            self._described = True
            if self.cache.place.about(self.key) != self.about:
                self.cache.place.describe(self.key, self.about)

    def remember(self, rate: float) -> None:
        """It came from the store at so many bytes a second."""
        with self.cache.disk.tolerant("a version cannot be described", writing=True):
            if rate and self._described and abs(rate - self.remembered) > CHANGED * self.remembered:
                self.about = {**self.about, "rate": int(rate)}
                self.cache.place.describe(self.key, self.about)
