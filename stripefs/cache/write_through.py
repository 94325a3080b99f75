"""Write-through: blocks of a file that is being written here are cached before its version is known.

Only the store knows the version of the bytes, once it is published. Until then its blocks lie under a key of their own,
which nobody looks for; then they are given its key (`UnpublishedBlocks`). The writer waits for nothing and is told
nothing: blocks that the disk or the memory for them do not take are not cached, and unpublished ones are removed. A
writer calls `offer`, then `publish` or `drop`; all else happens on the threads of the write-back queue.

`rekey` turns the cached segments of one version into another's without reading them: segments are described anew and
renamed. A check value is of a version, but its digest is of the bytes and their place alone; so the value can be made
anew. Only where both versions have some of a segment are blocks copied, each checked on the way.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from stripefs.cache.cache import Cache
from stripefs.cache.cache_format import BLOCK, KEY, OPEN_END, block_at, digest, digest_in, next_block, segment_blocks
from stripefs.cache.checked_blocks import BlockWriter
from stripefs.cache.segment import CacheSegment, Damaged
from stripefs.cache.writeback import WriteJob, blocks_of
from stripefs.store.allocator import aligned
from stripefs.store.base import Buffer, Status

__all__ = ["PublishedVersion", "UnpublishedBlocks", "WriteThrough", "rekey"]


def rekey(old: bytes, length: int, new: BlockWriter, stop: int) -> None:
    """Turn the cached blocks of version `old`, of `length` bytes, up to block `stop` into those of `new`.

    Its bytes must be those that `new` has there. Segments that others are filling just now stay as they are, and so do
    those of a pinned version. Blocking; raises OSError.
    """
    cache = new.cache
    if cache.cachedir.pinned(old):
        return
    for piece in list(cache.cachedir.segment_uses([old])):
        if segment_blocks(piece.number).start >= stop:
            continue
        cache.segments.forget(old, piece.number)
        source, target = cache.cachedir.segment(old, piece.number), cache.cachedir.segment(new.key, piece.number)
        with (
            contextlib.suppress(FileNotFoundError, Damaged),  # evicted since, or no use
            contextlib.closing(CacheSegment(source, old, piece.number, length)) as segment,
        ):
            if os.path.lexists(target):
                every = segment_blocks(piece.number)
                for block, slot, data in segment.contents(range(every.start, min(every.stop, stop)), new.length):
                    if segment.fits(block, slot, data):
                        new.fill(range(block, block + 1), data, [digest_in(old, slot)])
                continue
            new.describe()
            if segment.rekey(new.key, new.length, stop):
                os.rename(source, target)
    cache.cachedir.tidy(old)


class PublishedVersion(NamedTuple):
    """A published version: its key, length in bytes, and what is to be said about it."""

    key: bytes
    length: int
    about: dict[str, Any]


class UnpublishedBlocks:
    """about: its description before it is published."""

    def __init__(self, cache: Cache, about: dict[str, Any]) -> None:
        self._cache = cache
        self._unpublished = _UnpublishedWriter(cache, about)
        self._writer: BlockWriter | None = self._unpublished
        self._changed = threading.Condition()
        self._queued: dict[range, Sequence[Buffer]] = {}
        self._key = b""
        self._any = False
        self._writing = 0
        self._publishing = False

    def offer(self, blocks: range, pieces: Sequence[Buffer]) -> None:
        """Have these neighbours written, which the pieces are the bytes of, unless too much waits for the disk."""
        self._any = True
        size = sum(map(len, pieces))
        with self._changed:
            self._queued[blocks] = pieces
        if not self._cache.queue.offer(WriteJob(partial(self._fill, blocks), size, partial(self._forget, blocks))):
            self._forget(blocks)
            self._cache.stats.add("unfilled_bytes", size)

    def publish(self, known: PublishedVersion, before: PublishedVersion | None) -> None:
        """They are blocks of this version, whose others are those of the one `before`."""
        with self._changed:
            self._key = known.key
            for blocks, pieces in self._queued.items():
                for block, each in zip(blocks, blocks_of(pieces), strict=True):
                    self._cache.pending.add(known.key, block, each)
        if self._any or before is not None:
            self._cache.queue.offer_first(WriteJob(partial(self._publish, known, before), 0, lambda: None))

    def drop(self) -> None:
        """They are blocks of no version."""
        with self._changed:
            self._writer = None
        if self._any:
            self._cache.queue.offer_first(WriteJob(self._remove, 0, lambda: None))

    def _forget(self, blocks: range) -> None:
        with self._changed:
            del self._queued[blocks]
            if self._key:
                self._cache.pending.remove(self._key, blocks)

    # -- on the threads of the queue -------------------------------------------------------------------------------

    def _fill(self, blocks: range) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._publishing)
            writer, pieces = self._writer, self._queued[blocks]
            self._writing += writer is not None
        if writer is None:
            return
        try:
            # The digests are those of the writer's bytes, before anything is done with them.
            digests = [digest(block, each) for block, each in zip(blocks, blocks_of(pieces), strict=True)]
            writer.fill(blocks, _together(pieces), digests)
        finally:
            with self._changed:
                self._writing -= 1
                self._changed.notify_all()

    def _publish(self, known: PublishedVersion, before: PublishedVersion | None) -> None:
        writer = BlockWriter(self._cache, *known)
        with self._changed:
            self._publishing = True
            self._changed.wait_for(lambda: not self._writing)
        try:
            with self._cache.disk.tolerant("what was written cannot be kept", writing=True):
                if before is not None:
                    rekey(before.key, before.length, writer, block_at(before.length))
                rekey(self._unpublished.key, OPEN_END, writer, OPEN_END)
            self._unpublished.end()
        finally:
            with self._changed:
                self._writer, self._publishing = writer, False
                self._changed.notify_all()

    def _remove(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._writing)
        self._unpublished.end()


class _UnpublishedWriter(BlockWriter):
    """Under a key of its own, as long as there is no other."""

    def __init__(self, cache: Cache, about: dict[str, Any]) -> None:
        super().__init__(cache, secrets.token_bytes(KEY), OPEN_END, about)
        self._lock = threading.Lock()
        self._mark = -1

    def describe(self) -> None:
        with self._lock:
            if self._mark < 0:
                self._mark = self.cache.quota.begin(self.key)
        super().describe()

    def end(self) -> None:
        """Nothing of it stays."""
        with self._lock:
            mark, self._mark = self._mark, -1
        if mark < 0:
            return
        with self.cache.disk.tolerant("what was not published cannot be removed", writing=True):
            if any(self.cache.cachedir.segment_uses([self.key])):
                self.cache.quota.remove([self.key])
        self.cache.cachedir.tidy(self.key)
        self.cache.cachedir.end(self.key, mark)


def _together(pieces: Sequence[Buffer]) -> memoryview:
    """Their bytes from where a page begins, as disks want them."""
    whole = aligned(sum(map(len, pieces)))
    begin = 0
    for piece in pieces:
        whole[begin : begin + len(piece)] = piece
        begin += len(piece)
    return whole


TOGETHER = 8 * BLOCK
"""Bytes that are handed over at once, as the ranges of readers are."""

SMALL = 64 << 10
"""Pieces below are copied together, so that a million of them are no million objects."""


class WriteThrough:
    """Gets the bytes that a writer sends, in order, and what becomes of them. Nothing here blocks or raises.

    known: a published version as it would be cached, None where it would not be. about: the description of this one
    while it is written. A file may be published several times, each time longer: cached blocks are then reused.
    """

    def __init__(
        self, cache: Cache, known: Callable[[bytes, Status], PublishedVersion | None], about: dict[str, Any]
    ) -> None:
        self._cache = cache
        self._known = known
        self._about = about
        self._blocks = UnpublishedBlocks(cache, about)
        self._before: PublishedVersion | None = None
        self._end = 0
        """Bytes of the file so far."""
        self._begin = 0
        """Offset at which the gathered bytes begin: that of a block."""
        self._size = 0
        self._gathered: list[Buffer] = []
        self._tail = bytearray()

    def behind(self, path: bytes, status: Status) -> None:
        """Later bytes continue the published file `status`, whose bytes nobody adds."""
        self._before = self._known(path, status)
        self._end = status.length

    def add(self, data: memoryview) -> None:
        """The next bytes of the file, which do not change any more."""
        begin, self._end = self._end, self._end + len(data)
        if not self._size:
            skip = next_block(begin) - begin  # of a block whose beginning is not here
            self._begin, data = begin + skip, data[skip:]
        if not data:
            return
        if not self._cache.queue.reserve(len(data)):
            self._cache.stats.add("unfilled_bytes", self._size + len(data))
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
        """All of it is the version `status` of the file at `path` now; None where its version is unknown."""
        known = self._known(path, status) if status is not None and status.length == self._end else None
        self._hand_over()
        blocks, self._blocks = self._blocks, UnpublishedBlocks(self._cache, self._about)
        if known is None:
            blocks.drop()
        else:
            if self._size:  # it stays here besides, for a version in which more comes behind it
                self._close_tail()
                number = block_at(self._begin)
                blocks.offer(range(number, number + 1), list(self._gathered))
            blocks.publish(known, self._before)
        self._before = known

    def drop(self) -> None:
        """Unpublished bytes never will be published, and the next bytes are the file's beginning."""
        blocks, self._blocks = self._blocks, UnpublishedBlocks(self._cache, self._about)
        blocks.drop()
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
        first, pieces = block_at(self._begin), [piece for each in blocks[:count] for piece in each]
        self._gathered = [piece for each in blocks[count:] for piece in each]
        self._begin += count * BLOCK
        self._size -= count * BLOCK
        self._cache.queue.unreserve(count * BLOCK)
        self._blocks.offer(range(first, first + count), pieces)

    def _close_tail(self) -> None:
        if self._tail:
            self._gathered.append(self._tail)
            self._tail = bytearray()

    def _forget(self) -> None:
        self._cache.queue.unreserve(self._size)
        self._gathered, self._tail, self._size = [], bytearray(), 0
