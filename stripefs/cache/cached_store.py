"""A store whose files are read through the cache, and its handles. It stands right below the reader.

There a striped file is one file. A handle looks into the cache first, and lets the cache have what it fetches.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any

from stripefs.cache.cache import Cache
from stripefs.cache.cache_format import (
    SEGMENT,
    clip,
    inside,
    key_of,
    length_of,
    location_of,
    next_block,
    offset_of,
    over,
    runs,
    segments_over,
)
from stripefs.cache.checked_blocks import BlockLocks, BlockWriter, Version
from stripefs.cache.policy import checkpoint_of, matches
from stripefs.cache.write_through import PublishedVersion, WriteThrough
from stripefs.errors import HostFailed
from stripefs.store.allocator import PAGE
from stripefs.store.base import Block, Buffer, Handle, Identity, Kind, Status, Store, Watch
from stripefs.store.common import check_range
from stripefs.store.wrapper import WrappedHandle, WrappedStore

__all__ = ["CACHE", "LEAST", "CachedHandle", "CachedStore"]

FILLED_AT_ONCE = 4 << 20
"""Bytes that are read and then checked while the processor's cache has them. In pieces of 1 MiB a GB takes 0.51 s of
processor time in place of 0.29."""

CACHE = "local cache"
"""The host of bytes that are cached, for whoever plans reads; no data host has a name with a blank in it."""


class CachedHandle(WrappedHandle):
    """`inner` of the version that `version` is."""

    def __init__(self, inner: Handle, version: Version) -> None:
        super().__init__(inner)
        self._version = version
        self._cache = version.cache
        self._doubted = False
        """True if something was not here that should have been: then the store is asked where things lie."""

    def absent(self) -> list[tuple[int, int]]:
        """(offset, length) of each run of bytes that is not here, in order."""
        blocks = over(0, self.status.length)
        missing = [run for run, cached in runs(blocks, self._version.presence(blocks)) if not cached]
        return [(offset_of(run.start), length_of(run, self.status.length)) for run in missing]

    # -- where bytes lie -----------------------------------------------------------------------------------------

    def locate(self, offset: int, length: int) -> Sequence[Block]:
        """The inner handle's blocks, cut at the grid where that is needed to put the cache in front of their hosts.

        The inner handle is not asked for a range that is wholly cached: its hosts may not answer now.
        """
        end = min(offset + length, self.status.length)
        if length <= 0 or offset >= end:
            return ()
        first, stop = segments_over(offset, end, self.status.length)
        if not self._doubted and all(self._version.presence(over(first, stop - first))):
            return [Block(at, min(SEGMENT, stop - at), (CACHE,)) for at in range(first, stop, SEGMENT)]
        return [piece for block in self.inner.locate(offset, length) for piece in self._cut(block)]

    def placed(self, offset: int, length: int) -> Sequence[Block]:
        return self.inner.placed(offset, length)

    def _cut(self, block: Block) -> list[Block]:
        """Chunks are counted from where blocks begin, so a block is cut at its first grid line in any case: else the
        chunks of one that is cut, and of the same one that is not, would be different ones."""
        end = block.offset + block.length
        grid = min(end, next_block(block.offset))
        pieces = []
        for begin, stop in ((block.offset, grid), (grid, end)):
            blocks = over(begin, stop - begin)
            for run, cached in runs(blocks, self._version.presence(blocks)):
                first, last = clip(run, begin, stop)
                pieces.append(Block(first, last - first, (CACHE, *block.hosts) if cached else block.hosts))
        return pieces

    # -- bytes ---------------------------------------------------------------------------------------------------

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        return self.read_on(offset, length, 0, host=host, watch=watch)

    def read_on(self, offset: int, length: int, ahead: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        check_range(self.status, offset, length)
        if not length:
            return self.inner.read(offset, 0, host="" if host == CACHE else host, watch=watch)
        far = "" if host == CACHE else host
        if not self._version.readable:
            self._cache.stats.add("bypassed_bytes", length)
            if host == CACHE:
                raise HostFailed("the cache's disk fails, or is slower than the store", host=CACHE)
            return self.inner.read_on(offset, length, ahead, host=far, watch=watch)
        blocks = over(offset, length)
        parts: list[Buffer] = []
        all_cached = True
        for run, cached in runs(blocks, self._version.presence(blocks)):
            begin, end = clip(run, offset, offset + length)
            self._doubted |= not cached and host == CACHE
            part = self._read_cached(begin, end - begin, watch) if cached else None
            if part is None:
                part, near = self._read_store(begin, end - begin, ahead, far, watch)
                all_cached &= near
            parts.append(part)
        if all_cached and host != CACHE and watch is not None:
            watch.served_by(CACHE)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def fills(self) -> str:
        return CACHE if self._version.readable else ""

    def can_fill(self, offset: int, length: int) -> bool:
        return self._version.readable and all(self._version.presence(over(offset, length)))

    def fill(self, offset: int, into: memoryview) -> bool:
        """Parts of blocks at both ends of `into` are copied, since only whole blocks can be checked."""
        end = offset + len(into)
        blocks = inside(offset, len(into), self.status.length)
        if length_of(blocks, self.status.length) % PAGE:  # a disk brings whole pages, past the end of the file
            blocks = blocks[:-1]
        first, last = clip(blocks, offset, end) if blocks else (end, end)
        steps = range(first, last, FILLED_AT_ONCE)
        return (
            self._fill_part(offset, into[: first - offset])
            and all(self._fill_blocks(at, into[at - offset : min(at + FILLED_AT_ONCE, last) - offset]) for at in steps)
            and self._fill_part(last, into[last - offset :])
        )

    def _fill_blocks(self, offset: int, into: memoryview) -> bool:
        return self._version.readable and self._version.fill(over(offset, len(into)), into, len(into))

    def _fill_part(self, offset: int, into: memoryview) -> bool:
        if not into:
            return True
        data = self._version.read(offset, len(into)) if self._version.readable else None
        if data is not None:
            into[:] = data
        return data is not None

    def _read_cached(self, offset: int, length: int, watch: Watch | None) -> Buffer | None:
        data = self._version.read(offset, length)
        if data is None:
            self._doubted = True
        elif watch is not None:
            watch.progress(length)
        return data

    def _read_store(self, offset: int, length: int, ahead: int, host: str, watch: Watch | None) -> tuple[Buffer, bool]:
        """From the store, and into the cache; or from the cache after all, when another process fetched it just now:
        then the second value is True."""
        blocks = inside(offset, length, self.status.length)
        locks = self._version.lock_blocks(blocks, watch)
        with contextlib.ExitStack() as undo:
            if locks is not None:
                undo.callback(locks.close)
            # Look again: the lock's last holder may have filled them just now.
            if all(self._version.presence(over(offset, length))):
                data: Buffer | None = self._read_cached(offset, length, watch)
                if data is not None:
                    return data, True
            with self._cache.disk.fetching(length):
                data = self.inner.read_on(offset, length, ahead, host=host, watch=watch)
            self._cache.stats.add("missed_bytes", length)
            self._keep_partials(offset, blocks, memoryview(data))
            if locks is not None and self._keep(offset, blocks, memoryview(data), locks):
                undo.pop_all()
        return data, False

    def _keep(self, offset: int, blocks: range, data: memoryview, locks: BlockLocks) -> bool:
        begin, end = clip(blocks, 0, self.status.length)
        return self._version.keep(blocks, data[begin - offset : end - offset], locks)

    def _keep_partials(self, offset: int, blocks: range, data: memoryview) -> None:
        """The bytes before and behind `blocks`, the whole ones in `data`: parts of blocks."""
        end = offset + len(data)
        whole_begin, whole_end = clip(blocks, 0, self.status.length)
        first = min(whole_begin, end)
        last = max(whole_end, first)
        for begin, stop in ((offset, first), (last, end)):
            for block in over(begin, stop - begin):
                at, until = clip(range(block, block + 1), begin, stop)
                self._version.keep_partial(at, data[at - offset : until - offset])

    def close(self) -> None:
        self._version.writer.remember(self._cache.disk.store_rate())
        super().close()


LEAST = 1 << 20
"""Bytes of a file below which it is not cached: it would take three names on disk, and to open it asks the store."""


class CachedStore(WrappedStore):
    """`inner` with `cache` in front, which others may use too; the cache's owner closes it, after this."""

    NAME = "cached"
    PARAMETERS = {}  # noqa: RUF012  # it is not part of URLs

    def __init__(self, inner: Store, cache: Cache) -> None:
        super().__init__(inner)
        self.url = inner.url
        self.local_hosts = inner.local_hosts | {CACHE}
        self.cache = cache
        self._settings = cache.settings

    def open(self, path: bytes, expect: Identity | None = None) -> Handle:
        handle = self.inner.open(path, expect)
        known = self._known(path, handle.status)
        return handle if known is None else CachedHandle(handle, Version(BlockWriter(self.cache, *known)))

    def write_observer(self, path: bytes) -> WriteThrough | None:
        """The observer of the file at `path` while it is written; None for none."""
        if not self._matches(path):
            return None
        about = self._about(path, Status(b"", Kind.FILE, mtime_ns=time.time_ns()))
        return WriteThrough(self.cache, self._known, about)

    def keeps(self, path: bytes, status: Status) -> bool:
        """True if anything of this file is kept."""
        return status.length >= LEAST and self._matches(path)

    def _matches(self, path: bytes) -> bool:
        return not self._settings.match or matches(os.fsdecode(path), self._settings.match)

    def _known(self, path: bytes, status: Status) -> PublishedVersion | None:
        if not self.keeps(path, status):
            return None
        key = key_of(self.url, path, status.identity, time.time_ns(), trust_mtime=self._settings.trust_mtime)
        return None if key is None else PublishedVersion(key, status.length, self._about(path, status))

    def _about(self, path: bytes, status: Status) -> dict[str, Any]:
        keep = self._settings.keep_newest
        source, place = location_of(self.url, path)
        checkpoint = checkpoint_of(os.fsdecode(path), self._settings.match or ("*",)) if keep else ""
        return {
            "source": source,
            "path": place,
            "length": status.length,
            "mtime_ns": status.mtime_ns,
            "file_id": status.file_id,
            "keep": keep,
            "checkpoint": location_of(self.url, os.fsencode(checkpoint))[1] if checkpoint else "",
        }
