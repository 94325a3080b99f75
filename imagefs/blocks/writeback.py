"""Write-back of fetched blocks to local disk, from memory, behind the readers; and the seal of a complete device.

One task writes, evicts, and saves tables, one thing after the other, each in a thread. Blocks that wait to be written
are held in memory and bounded; those that the bound or the disk does not take are not kept, and are fetched again when
they are wanted. No reader ever waits for the disk to take anything, or learns that it did not.

In memory, blocks on their way to the disk stay; the rest makes room for them, and for `in_flight`, the bytes that are
being fetched, so that all together stay within `limit`.

A device whose blocks are all here is sealed: its data is put on disk first, then the whole file is read, where every
block must have the SHA-256 of the index and everything else must be zeros. Only then the mark is written. So whoever
finds the mark may read the file without asking anybody, which is what the kernel does. This happens in pieces, at half
of one thread's speed.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from imagefs.blocks.cachefile import CacheDisk, LocalDevice
from imagefs.blocks.eviction import CachedDevice, DeviceCache
from imagefs.blocks.source import Arrived
from imagefs.blocks.stats import BlockStats
from imagefs.format.index import BLOCK, Index

__all__ = ["BlockMemory", "WriteBack", "seal"]


class BlockMemory:
    """`limit` in bytes. It is exceeded by what is held and in flight alone, which others bound."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.held = 0
        self.in_flight = 0
        self._free: OrderedDict[bytes, bytes] = OrderedDict()
        self._held: dict[bytes, tuple[bytes, int]] = {}

    def get(self, digest: bytes) -> bytes | None:
        data = self._free.get(digest)
        if data is not None:
            self._free.move_to_end(digest)
            return data
        held = self._held.get(digest)
        return held[0] if held else None

    def add(self, digest: bytes, data: bytes) -> None:
        if digest not in self._free and digest not in self._held:
            self._free[digest] = data
            self.used += len(data)
            self._make_room()

    def hold(self, digest: bytes, data: bytes) -> None:
        """Keep it until as many calls of `release` followed."""
        if (found := self._held.get(digest)) is not None:
            self._held[digest] = found[0], found[1] + 1
            return
        if self._free.pop(digest, None) is None:
            self.used += len(data)
        self._held[digest] = data, 1
        self.held += len(data)
        self._make_room()

    def release(self, digest: bytes, *, cached: bool = False) -> None:
        """kept: it is on disk now, and so in the kernel's memory, where it does not take ours as well."""
        data, count = self._held.pop(digest)
        if count > 1:
            self._held[digest] = data, count - 1
            return
        self.held -= len(data)
        if cached:
            self.used -= len(data)
        else:
            self._free[digest] = data
            self._make_room()

    def reserve(self, size: int) -> None:
        """`size` more bytes are in flight; fewer, when it is negative."""
        self.in_flight += size
        self._make_room()

    def clear(self) -> None:
        """Give up everything that is not held."""
        self.used -= sum(map(len, self._free.values()))
        self._free.clear()

    def _make_room(self) -> None:
        while self._free and self.used + self.in_flight > self.limit:
            _, data = self._free.popitem(last=False)
            self.used -= len(data)


BATCH = 4 << 20
"""Bytes written in one go: a few milliseconds of a disk."""

FLUSH_EVERY = 30.0
"""Seconds after which times of use reach the table's file, and a limit is seen to that was lowered."""

FULL_PAUSE = 30.0
"""Seconds before room is looked for again ahead of readers, when there was none."""


@dataclass(eq=False, slots=True)
class _Write:
    cached: CachedDevice
    block: int
    digest: bytes
    arrived: Arrived
    ahead: bool


class WriteBack:
    """Writes into `cache`.

    filled: called when all blocks of a device seem to be here. changed: woken when less waits to be written.
    """

    def __init__(
        self,
        disk: CacheDisk,
        cache: DeviceCache,
        memory: BlockMemory,
        stats: BlockStats,
        filled: Callable[[CachedDevice], None],
        changed: trio.lowlevel.ParkingLot,
    ) -> None:
        self._disk = disk
        self._cache = cache
        self._memory = memory
        self._stats = stats
        self._filled = filled
        self._changed = changed
        self._queue: deque[_Write] = deque()
        self._queued: Counter[tuple[CachedDevice, int]] = Counter()
        self._queued_bytes = 0
        self._untidy: list[CachedDevice] = []
        self._wake = trio.Event()
        self._full_until = float("-inf")

    def put(self, cached: CachedDevice, block: int, digest: bytes, arrived: Arrived, *, ahead: bool) -> None:
        """Keep the block if that can be. `ahead`: no reader wanted it yet."""
        if cached.local.closed or cached.local.table.checksum(block) is not None or self.writing(cached, block):
            return
        size = len(arrived[0])
        if self._disk.failing or size > self._cache.limit or self._memory.held + size > self._memory.limit // 2:
            self._stats.unkept += 1
            return
        self._memory.hold(digest, arrived[0])
        self._queue.append(_Write(cached, block, digest, arrived, ahead))
        self._queued[cached, block] += 1
        self._queued_bytes += size
        self._wake.set()

    def writing(self, cached: CachedDevice, block: int) -> bool:
        """Tells whether the block is on its way to the disk."""
        return (cached, block) in self._queued

    def tidy(self, cached: CachedDevice) -> None:
        """Soon take a mark away that is not true any more, and give room back that no row knows of."""
        self._untidy.append(cached)
        self._wake.set()

    @property
    def backlogged(self) -> bool:
        """Tells whether so much waits for the disk that what is fetched ahead should wait too."""
        return self._memory.held > self._memory.limit // 4

    def has_room(self, size: int) -> bool:
        """Tells whether `size` more bytes could be kept without giving up what somebody has open."""
        if self._disk.failing:
            return False
        if self._cache.used + self._queued_bytes + size <= self._cache.limit:
            return True
        return trio.current_time() >= self._full_until and self._cache.idle

    async def run(self) -> None:
        """Until cancelled; `drain` then does what is left."""
        flush_at = trio.current_time() + FLUSH_EVERY
        while True:
            if not self._queue and not self._untidy:
                waits = self._cache.over or any(cached.local.table.dirty for cached in self._cache.devices.values())
                with trio.move_on_after(FLUSH_EVERY if waits else float("inf")):
                    await self._wake.wait()
            self._wake = trio.Event()
            async with self._disk.lock:
                while self._untidy:
                    await self._tidy(self._untidy.pop())
                await self._write_some()
                if trio.current_time() >= flush_at:
                    await self._flush()
                    await self._cache.make(0, demand=True)  # the limit may have been lowered
                    flush_at = trio.current_time() + FLUSH_EVERY

    async def drain(self) -> None:
        """Write what waits, and the tables."""
        async with self._disk.lock:
            while self._queue:
                await self._write_some()
            await self._flush()

    async def _write_some(self) -> None:
        batch: list[_Write] = []
        size = 0
        most = max(BLOCK, min(BATCH, self._cache.limit // 4))
        while self._queue and size + len(self._queue[0].arrived[0]) <= most:
            batch.append(self._queue.popleft())
            size += len(batch[-1].arrived[0])
        if not batch:
            return
        taken: Sequence[_Write] = ()
        try:
            taken = await self._write(batch, size)
        finally:
            self._stats.unkept += len(batch) - len(taken)
            self._queued_bytes -= size
            written = set(taken)
            for write in batch:
                self._memory.release(write.digest, cached=write in written)
                del self._queued[write.cached, write.block]
            self._changed.unpark_all()
        for cached in {write.cached for write in taken}:
            if cached.full:
                self._filled(cached)

    async def _write(self, batch: Sequence[_Write], size: int) -> Sequence[_Write]:
        """Write what there is room for; what was written."""
        if self._disk.failing:
            return []
        if not await self._cache.make(size, demand=False):
            self._full_until = trio.current_time() + FULL_PAUSE
            batch = [write for write in batch if not write.ahead]
            if not batch or not await self._cache.make(sum(len(write.arrived[0]) for write in batch), demand=True):
                self._disk.warn("full", "%s is full of what is in use; blocks are not kept", self._disk.folder)
                return []
        batch = [write for write in batch if not write.cached.local.closed]  # of whose devices something may be left
        now = time.time()
        count, error = await self._disk.thread(_write_all, batch, now)
        for write in batch[:count]:
            self._cache.add_block(write.cached, write.block, write.digest, write.arrived[1], now)
        await self._cache.measure({write.cached for write in batch})
        if error is not None:
            self._disk.failed("a block cannot be kept", error)
        else:
            self._disk.worked()
        return batch[:count]

    async def _flush(self) -> None:
        for cached in list(self._cache.devices.values()):
            if cached.local.table.dirty and not cached.local.closed:
                with self._disk.tolerant("a table cannot be written"):
                    await self._disk.thread(cached.local.write_rows, cached.local.table.take_dirty())

    async def _tidy(self, cached: CachedDevice) -> None:
        if cached.local.closed or cached.local.marked:
            return
        with self._disk.tolerant("a device cannot be tidied"):
            await self._disk.thread(cached.local.unmark)
            if not cached.pins and not await self._disk.thread(cached.local.opened_elsewhere):
                await self._disk.thread(cached.local.trim)
            await self._cache.measure([cached])
        if cached.full:
            self._filled(cached)


def _write_all(batch: Sequence[_Write], now: float) -> tuple[int, OSError | None]:
    """Write one after the other until one fails; how many were written."""
    for number, write in enumerate(batch):
        try:
            write.cached.local.write(write.block, *write.arrived, now)
        except OSError as error:
            return number, error
    return len(batch), None


_PIECE = 16  # blocks at once: 2 MiB, some milliseconds


async def seal(cached: CachedDevice, index: Index, disk: CacheDisk, cache: DeviceCache) -> list[int]:
    """Check the device and mark it, unless it changes meanwhile; the blocks that must be fetched anew first.

    Raises OSError.
    """
    local = cached.local
    stamp = await disk.thread(local.sync)
    cleared = local.table.cleared
    bad: list[int] = []
    for first in range(0, index.blocks, _PIECE):
        begun = trio.current_time()
        blocks = range(first, min(first + _PIECE, index.blocks))
        before = local.table.cleared
        wrong = await disk.thread(_wrong, local, index, blocks)
        if local.closed or local.table.cleared != before:
            return []  # blocks are being given up
        for block in blocks:
            here, stored = local.table.checksum(block) is not None, bool(index.length(block))
            if block in wrong or here != stored:
                cache.clear(cached, block)
                bad.append(block)
        cleared += local.table.cleared - before
        await trio.sleep(trio.current_time() - begun)
    async with disk.lock:
        if local.closed or local.table.cleared != cleared:
            return []
        if not bad:
            # `marked` follows before anybody else may touch the files, or a hole could come between.
            local.marked = await disk.thread(local.mark, stamp)
        elif not cached.pins and not await disk.thread(local.opened_elsewhere):
            await disk.thread(local.trim)  # also what is wrong where nothing should be
    return bad


def _wrong(local: LocalDevice, index: Index, blocks: Sequence[int]) -> list[int]:
    """The blocks that differ from the index, also where it says that there is nothing."""
    begin = blocks[0] * BLOCK
    buffer = bytearray(min(blocks[-1] * BLOCK + BLOCK, index.device_bytes) - begin)
    local.read(begin, buffer)
    view = memoryview(buffer)
    wrong = []
    for block in blocks:
        data = view[block * BLOCK - begin :][:BLOCK]
        length = index.length(block)
        right = not length or hashlib.sha256(data[:length]).digest() == index.place(block).digest
        if not right or bytes(data[length:]) != _ZEROS[: len(data) - length]:  # memoryviews are compared item by item
            wrong.append(block)
    return wrong


_ZEROS = bytes(BLOCK)
