"""The cached blocks of one version of a file: `BlockWriter` puts them on disk, `Version` reads them with a check.

Both block and are for threads: those of the write-back queue, and those of readers. Single flight: the reader that
fetches a block holds a lock on its place until it is written. Trouble with the disk never leaves this module: a block
that cannot be written is not cached, and one that cannot be read is absent.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from stripefs.cache.cache import Cache
from stripefs.cache.cache_format import (
    BLOCK,
    SLOT,
    block_at,
    by_segment,
    digest,
    length_of,
    offset_of,
    over,
    presence,
    runs,
    segment_of,
    slot_of,
)
from stripefs.cache.policy import FRESH
from stripefs.cache.segment import CacheSegment, whole_pages
from stripefs.cache.writeback import WriteJob, blocks_of
from stripefs.store.allocator import PAGE, address_of, aligned
from stripefs.store.base import Watch

__all__ = ["BlockLocks", "BlockWriter", "Version"]

PIECE = 8
"""Blocks written at once: 8 MiB, some milliseconds of a disk, and as long as the reader's ranges."""

CHANGED = 0.1
"""The share by which a rate must have changed to be written down anew."""


class BlockWriter:
    """The version `key` of `length` bytes. about: its description for `CacheDir.describe` when something is written.

    remembered: the rate in bytes a second at which it came from the store, 0 where that is unknown.
    """

    def __init__(self, cache: Cache, key: bytes, length: int, about: dict[str, Any]) -> None:
        self.cache = cache
        self.key = key
        self.length = length
        self.about = about
        self.remembered = 0.0
        self._described = False

    def using(self, blocks: range, *, make: bool = False) -> AbstractContextManager[CacheSegment | None]:
        """The segment of these neighbours; None where there is none and none is to be made."""
        return self.cache.segments.using(self.key, segment_of(blocks), self.length, make=make)

    def fill(self, blocks: range, data: memoryview, digests: Sequence[int] = ()) -> None:
        """Write these neighbours, whose bytes `data` holds, but for those that are here.

        digests: of each block, where that was computed before the bytes were copied to `data`.
        """
        for part in by_segment(blocks):
            for first in range(part.start, part.stop, PIECE):
                piece = range(first, min(first + PIECE, part.stop))
                index = first - blocks.start
                begin = index * BLOCK
                written = 0
                with self.cache.disk.tolerant("a block cannot be written", writing=True):
                    bytes_of = data[begin : begin + length_of(piece, self.length)]
                    written = self._fill(piece, bytes_of, digests[index : index + len(piece)])
                    self.cache.disk.worked()
                self.cache.stats.add("filled_bytes", written)

    def _fill(self, blocks: range, data: memoryview, digests: Sequence[int]) -> int:
        if not self.cache.disk.writable():
            self.cache.stats.add("unfilled_bytes", len(data))
            return 0
        written = 0
        with self.using(blocks, make=True) as segment:
            if segment is None:
                return 0
            for part, is_here in runs(blocks, presence(segment.slots(blocks))):
                if not is_here:
                    index = part.start - blocks.start
                    of_part = data[index * BLOCK : index * BLOCK + length_of(part, self.length)]
                    written += self._write(segment, part, of_part, digests[index : index + len(part)])
        return written

    def _write(self, segment: CacheSegment, blocks: range, data: memoryview, digests: Sequence[int]) -> int:
        self.describe()  # before: it says what may go for this
        if not self.cache.quota.acquire(whole_pages(len(data)), self.key):
            self.cache.stats.add("unfilled_bytes", len(data))
            self.cache.disk.warn(
                "full", "there is no room in %s for what is to be kept; see --cache-size", segment.path
            )
            return 0
        with contextlib.ExitStack() as undo:
            undo.callback(self.cache.quota.release, whole_pages(len(data)))
            segment.write(blocks, _direct(data))
            found = digests or [
                digest(block, [data[begin : begin + BLOCK]])
                for block, begin in zip(blocks, range(0, len(data), BLOCK), strict=True)
            ]
            segment.write_slots(blocks, b"".join(slot_of(self.key, each) for each in found))
            undo.pop_all()
            self.cache.quota.wrote(whole_pages(len(data)))
        return len(data)

    def recall(self) -> None:
        """Learn from what stands there at which rate it came."""
        rate = self.cache.cachedir.about(self.key).get("rate")
        if isinstance(rate, int | float) and rate > 0:
            self.remembered = float(rate)
            self.about = {**self.about, "rate": rate}

    def describe(self) -> None:
        """Say what the version is, once. Raises OSError."""
        if not self._described:
            self._described = True
            if self.cache.cachedir.about(self.key) != self.about:
                self.cache.cachedir.describe(self.key, self.about)

    def remember(self, rate: float) -> None:
        """Note the rate, in bytes a second, at which the version came from the store."""
        with self.cache.disk.tolerant("a version cannot be described", writing=True):
            if rate and self._described and abs(rate - self.remembered) > CHANGED * self.remembered:
                self.about = {**self.about, "rate": int(rate)}
                self.cache.cachedir.describe(self.key, self.about)


def _direct(data: memoryview) -> memoryview:
    """`data` as O_DIRECT wants it: from where a page begins to where one ends; a copy only where it is not so."""
    if not data.readonly and not len(data) % PAGE and not address_of(data) % PAGE:
        return data
    padded = aligned(whole_pages(len(data)))
    padded[: len(data)] = data
    padded[len(data) :] = bytes(len(padded) - len(data))
    return padded


PATIENCE = 10.0
"""Seconds to wait for another process to fetch something: four processes that share eight hosts of 40 MB/s get a range
of 8 MiB within 3 s."""

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.05
"""Seconds between looks at a lock that another process holds."""

BlockLocks = contextlib.ExitStack
"""Locks on blocks that this process fetches; `close` lets go of them."""


class Version:
    """The version that `writer` writes, for one handle."""

    def __init__(self, writer: BlockWriter) -> None:
        self.writer = writer
        self.cache = writer.cache
        self.key = writer.key
        self.length = writer.length
        self._using = writer.using
        self._impatient_until = 0.0
        self._shared_until = 0.0
        writer.recall()

    # -- reading -------------------------------------------------------------------------------------------------

    def presence(self, blocks: range) -> bytes:
        """A byte for each block: 1 where it is here, or on its way to the disk. Zeros while that is left alone."""
        if not self.readable:
            return bytes(len(blocks))
        found = []
        for part in by_segment(blocks):
            flags = self.cache.pending.flags(self.key, part)
            if 0 in flags:
                with self.cache.disk.tolerant("a segment cannot be read", writing=False):
                    flags = bytes(map(max, flags, self._presence(part)))
            found.append(flags)
        return b"".join(found)

    @property
    def readable(self) -> bool:
        """True if the disk is worth asking now."""
        return self.cache.disk.readable(self.writer.remembered)

    def _presence(self, blocks: range) -> bytes:
        """Of neighbours in one segment, on disk."""
        with self._using(blocks) as segment:
            if segment is None:
                return bytes(len(blocks))
            found = presence(segment.slots(blocks))
            if 0 not in found or segment.alive():
                return found
        self.cache.segments.forget(self.key, segment_of(blocks))  # evicted; there may be a new one
        with self._using(blocks) as segment:
            return presence(segment.slots(blocks)) if segment is not None else bytes(len(blocks))

    def read(self, offset: int, length: int) -> memoryview | None:
        """These bytes, each of whose blocks was checked; None where one is not here, or is damaged."""
        blocks = over(offset, length)
        buffer = aligned(whole_pages(length_of(blocks, self.length)))
        if not self.fill(blocks, buffer, length):
            return None
        begin = offset - offset_of(blocks.start)
        return buffer[begin : begin + length]

    def fill(self, blocks: range, into: memoryview, wanted: int) -> bool:
        """Fill `into`, whole pages, with these neighbours, of whose bytes `wanted` are asked for. False where one is
        damaged, or not here: then `into` holds anything."""
        good = False
        with self.cache.disk.tolerant("a segment cannot be read", writing=False):
            try:
                good = self._gather(blocks, into)
            except OSError as error:
                if error.errno != errno.EFAULT:  # that is no fault of the disk: it cannot reach this memory of a caller
                    raise
        if good:
            self.cache.stats.add("hit_bytes", wanted)
        return good

    def _gather(self, blocks: range, buffer: memoryview) -> bool:
        for part in by_segment(blocks):
            for run, waiting in runs(part, self.cache.pending.flags(self.key, part)):
                into = buffer[(run.start - blocks.start) * BLOCK :]
                if not (self._take(run, into) if waiting else self._read(run, into)):
                    return False
        return True

    def _take(self, blocks: range, into: memoryview) -> bool:
        """Copy pending blocks to the beginning of `into`, and blocks that reached the disk meanwhile from there."""
        for index, block in enumerate(blocks):
            pieces = self.cache.pending.get(self.key, block)
            rest = into[index * BLOCK :]
            if pieces is None and not self._read(range(block, block + 1), rest):
                return False
            for piece in pieces or ():
                rest[: len(piece)] = piece
                rest = rest[len(piece) :]
        return True

    def _read(self, blocks: range, into: memoryview) -> bool:
        """Read neighbours of one segment to the beginning of `into` and check them."""
        into = into[: whole_pages(length_of(blocks, self.length))]
        with self._using(blocks) as segment:
            if segment is None:
                return False
            slots = segment.slots(blocks)
            if 0 in presence(slots):
                return False
            if segment.filled_within(FRESH):
                self.cache.disk.note_fresh()
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

    def _check(self, segment: CacheSegment, blocks: range, slots: bytes, data: memoryview) -> bool:
        good = True
        for index, block in enumerate(blocks):
            slot = slots[index * SLOT : (index + 1) * SLOT]
            begin = index * BLOCK
            end = begin + length_of(range(block, block + 1), self.length)
            if not segment.fits(block, slot, data[begin:end]):
                good = False
                # A slot that another process changed meanwhile says nothing about these bytes.
                if segment.clear(block, slot):
                    self.cache.stats.add("damaged")
                    self.cache.disk.warn("damaged", "block %d in %s is damaged", block, segment.path)
        if not good and not segment.alive():  # it has become that of a later version
            self.cache.segments.forget(self.key, segment_of(blocks))
        return good

    # -- one fetch a host ----------------------------------------------------------------------------------------

    def lock_blocks(self, blocks: range, watch: Watch | None) -> BlockLocks | None:
        """Keep others, here and in other processes, from fetching these blocks, after waiting for one that does.

        None where there can be no locks (nothing can be written), or where one is held for too long. Raises Abandoned.
        """
        locked = False
        if not len(blocks) or not self.cache.disk.writable():
            return None
        with BlockLocks() as locks:
            with self.cache.disk.tolerant("a segment cannot be made", writing=True):
                locked = all(self._lock(locks, part, watch) for part in by_segment(blocks))
            return locks.pop_all() if locked else None

    def _lock(self, locks: BlockLocks, blocks: range, watch: Watch | None) -> bool:
        """True if neighbours of one segment could be locked."""
        segment = locks.enter_context(self._using(blocks, make=True))
        if segment is None:
            return False
        locked = segment.lock(blocks, self) or self._wait(segment, blocks, watch)
        if locked:
            locks.callback(segment.unlock, blocks, self)
        return locked

    def _wait(self, segment: CacheSegment, blocks: range, watch: Watch | None) -> bool:
        began = time.monotonic()
        if began < self._impatient_until:
            return False
        self.cache.stats.add("waits")
        pause = FIRST_PAUSE
        with segment.wanted(blocks):
            while time.monotonic() < began + PATIENCE:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                if watch is not None:
                    watch.progress(0)  # the host that was chosen is not silent: it has not been asked yet
                if segment.lock(blocks, self):
                    self._shared_until = time.monotonic() + FRESH
                    return True
        # The lock's holder is stopped, or very slow: from now on each fetches for itself.
        self._impatient_until = time.monotonic() + PATIENCE
        return False

    # -- writing -------------------------------------------------------------------------------------------------

    def keep(self, blocks: range, data: memoryview, locks: BlockLocks) -> bool:
        """Have these neighbours written, whose bytes `data` holds, and then release `locks`; False when too much waits
        for the disk."""

        def done() -> None:
            self.cache.pending.remove(self.key, blocks)
            locks.close()

        for block, pieces in zip(blocks, blocks_of([data]), strict=True):
            self.cache.pending.add(self.key, block, pieces)
        work = WriteJob(partial(self.writer.fill, blocks, data), len(data), done)
        if self.cache.queue.offer(work) or (self._are_wanted(blocks) and self.cache.queue.offer(work, wait=True)):
            return True
        self.cache.pending.remove(self.key, blocks)
        self.cache.stats.add("unfilled_bytes", len(data))
        return False

    def _are_wanted(self, blocks: range) -> bool:
        """True if somebody waits for these blocks, and would fetch them again."""
        with self.cache.disk.tolerant("a segment cannot be read", writing=False):
            for part in by_segment(blocks):
                with self._using(part) as segment:
                    if segment is not None and segment.is_wanted(part):
                        return True
        return False

    def keep_partial(self, offset: int, data: memoryview) -> None:
        """The same for a part of one block, whose other parts come by other reads. `data` may change afterwards."""
        block = block_at(offset)
        whole = range(block, block + 1)
        found = self.cache.partial.add(self.key, block, length_of(whole, self.length), offset - offset_of(block), data)
        if found is not None:
            self.keep(whole, memoryview(found), BlockLocks())
