"""What is here of one version of a file: looking, reading with a check, and the locks of single flight.

Blocking, for threads. Trouble with the disk never leaves this module: what cannot be read is not here.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial

from stripefs.cache.filler import Work
from stripefs.cache.filling import Filling
from stripefs.cache.grid import BLOCK, PER_SEGMENT, by_segment, length_of, over, runs
from stripefs.cache.pace import FILLING
from stripefs.cache.segment import Segment
from stripefs.cache.table import SLOT, here
from stripefs.cache.waiting import blocks_of
from stripefs.store.allocator import PAGE, aligned
from stripefs.store.base import Watch

__all__ = ["Hold", "Version"]

PATIENCE = 10.0
"""Seconds to wait for another process to fetch something: four processes that share eight hosts of 40 MB/s get a range
of 8 MiB within 3 s."""

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.05
"""Seconds between looks at a lock that another process holds."""

Hold = contextlib.ExitStack
"""Locks on blocks that this process fetches; `close` lets go of them."""


class Version:
    """The version that `filling` fills, for one handle."""

    def __init__(self, filling: Filling) -> None:
        self.filling = filling
        self.cache = filling.cache
        self.key = filling.key
        self.length = filling.length
        self._using = filling.using
        self._impatient_until = 0.0
        self._shared_until = 0.0
        filling.recall()

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
        return self.cache.disk.readable(self.filling.remembered)

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
            pieces = self.cache.waiting.get(self.key, block)
            rest = into[place * BLOCK :]
            if pieces is None and not self._read(range(block, block + 1), rest):
                return False
            for piece in pieces or ():
                rest[: len(piece)] = piece
                rest = rest[len(piece) :]
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
            if segment.filled_within(FILLING):
                self.cache.disk.filling()
            shared = time.monotonic() < self._shared_until
            done = 0
            while done < len(into):
                step = into[done : done + self.cache.disk.step(len(into))]
                with self.cache.disk.reading(len(step)):
                    segment.read(blocks, step, done, shared=shared)
                done += len(step)
                if done < len(into) and not self.readable:  # found out just now: the rest comes faster from the store
                    return False
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
        if not good and not segment.alive():  # it has become that of a later version
            self.cache.segments.forget(self.key, blocks.start // PER_SEGMENT)
        return good

    # -- one fetch a host ----------------------------------------------------------------------------------------

    def hold(self, blocks: range, watch: Watch | None) -> Hold | None:
        """Keep others, here and in other processes, from fetching these blocks, after waiting for one that does.

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
        locked = segment.lock(blocks, self) or self._wait(segment, blocks, watch)
        if locked:
            hold.callback(segment.unlock, blocks, self)
        return locked

    def _wait(self, segment: Segment, blocks: range, watch: Watch | None) -> bool:
        began = time.monotonic()
        if began < self._impatient_until:
            return False
        self.cache.figures.add("waits")
        pause = FIRST_PAUSE
        with segment.wanted(blocks):
            while time.monotonic() < began + PATIENCE:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                if watch is not None:
                    watch.progress(0)  # the host that was chosen is not silent: nobody has asked it yet
                if segment.lock(blocks, self):
                    self._shared_until = time.monotonic() + FILLING
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

        for block, pieces in zip(blocks, blocks_of([data]), strict=True):
            self.cache.waiting.add(self.key, block, pieces)
        work = Work(partial(self.filling.fill, blocks, data), len(data), done)
        if self.cache.filler.offer(work) or (self._are_wanted(blocks) and self.cache.filler.offer(work, wait=True)):
            return True
        self.cache.waiting.remove(self.key, blocks)
        self.cache.figures.add("unfilled_bytes", len(data))
        return False

    def _are_wanted(self, blocks: range) -> bool:
        """Whether somebody waits for these blocks, and would fetch them again."""
        with self.cache.disk.tolerant("a segment cannot be read", writing=False):
            for part in by_segment(blocks):
                with self._using(part) as segment:
                    if segment is not None and segment.is_wanted(part):
                        return True
        return False

    def keep_edge(self, offset: int, data: memoryview) -> None:
        """The same for a part of one block, whose other parts come by other reads. `data` may change afterwards."""
        block = offset // BLOCK
        whole = range(block, block + 1)
        found = self.cache.edges.add(self.key, block, length_of(whole, self.length), offset - block * BLOCK, data)
        if found is not None:
            self.keep(whole, memoryview(found), Hold())
