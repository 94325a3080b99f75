"""Keeps blocks on local disk, written behind the readers' backs.

One task writes, gives up, and saves tables, one thing after the other, each in a thread. What waits to be written is
held in memory and bounded; what the bound or the disk does not take is not kept, and is fetched again when it is
wanted. No reader ever waits for the disk to take anything, or learns that it did not.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from imagefs.blocks.arrival import Arrived
from imagefs.blocks.disk import Disk
from imagefs.blocks.figures import Figures
from imagefs.blocks.memory import Memory
from imagefs.blocks.room import Kept, Room
from imagefs.format.index import BLOCK

__all__ = ["Keeper"]

BATCH = 4 << 20
"""Bytes written in one go: a few milliseconds of a disk."""

FLUSH_EVERY = 30.0
"""Seconds after which times of use reach the table's file, and a limit is seen to that was lowered."""

FULL_PAUSE = 30.0
"""Seconds before room is looked for again ahead of readers, when there was none."""


@dataclass(eq=False, slots=True)
class _Write:
    kept: Kept
    block: int
    digest: bytes
    arrived: Arrived
    ahead: bool


class Keeper:
    """Writes into `room`.

    filled: called when all blocks of a device seem to be here. changed: woken when less waits to be written.
    """

    def __init__(
        self,
        disk: Disk,
        room: Room,
        memory: Memory,
        figures: Figures,
        filled: Callable[[Kept], None],
        changed: trio.lowlevel.ParkingLot,
    ) -> None:
        self._disk = disk
        self._room = room
        self._memory = memory
        self._figures = figures
        self._filled = filled
        self._changed = changed
        self._queue: deque[_Write] = deque()
        self._queued: Counter[tuple[Kept, int]] = Counter()
        self._queued_bytes = 0
        self._untidy: list[Kept] = []
        self._stir = trio.Event()
        self._full_until = float("-inf")

    def put(self, kept: Kept, block: int, digest: bytes, arrived: Arrived, *, ahead: bool) -> None:
        """Keep the block if that can be. `ahead`: no reader wanted it yet."""
        if kept.local.closed or kept.local.table.checksum(block) is not None or self.writing(kept, block):
            return
        size = len(arrived[0])
        if self._disk.failing or size > self._room.limit or self._memory.held + size > self._memory.limit // 2:
            self._figures.unkept += 1
            return
        self._memory.hold(digest, arrived[0])
        self._queue.append(_Write(kept, block, digest, arrived, ahead))
        self._queued[kept, block] += 1
        self._queued_bytes += size
        self._stir.set()

    def writing(self, kept: Kept, block: int) -> bool:
        """Whether the block is on its way to the disk."""
        return (kept, block) in self._queued

    def tidy(self, kept: Kept) -> None:
        """Soon take a mark away that is not true any more, and give room back that no row knows of."""
        self._untidy.append(kept)
        self._stir.set()

    @property
    def behind(self) -> bool:
        """Whether so much waits for the disk that what is fetched ahead should wait too."""
        return self._memory.held > self._memory.limit // 4

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes could be kept without giving up what somebody has open."""
        if self._disk.failing:
            return False
        if self._room.used + self._queued_bytes + size <= self._room.limit:
            return True
        return trio.current_time() >= self._full_until and self._room.idle

    async def run(self) -> None:
        """Until cancelled; `drain` then does what is left."""
        flush_at = trio.current_time() + FLUSH_EVERY
        while True:
            if not self._queue and not self._untidy:
                waits = self._room.over or any(kept.local.table.dirty for kept in self._room.kept.values())
                with trio.move_on_after(FLUSH_EVERY if waits else float("inf")):
                    await self._stir.wait()
            self._stir = trio.Event()
            async with self._disk.lock:
                while self._untidy:
                    await self._tidy(self._untidy.pop())
                await self._write_some()
                if trio.current_time() >= flush_at:
                    await self._flush()
                    await self._room.make(0, demand=True)  # the limit may have been lowered
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
        most = max(BLOCK, min(BATCH, self._room.limit // 4))
        while self._queue and size + len(self._queue[0].arrived[0]) <= most:
            batch.append(self._queue.popleft())
            size += len(batch[-1].arrived[0])
        if not batch:
            return
        taken: Sequence[_Write] = ()
        try:
            taken = await self._write(batch, size)
        finally:
            self._figures.unkept += len(batch) - len(taken)
            self._queued_bytes -= size
            written = set(taken)
            for write in batch:
                self._memory.release(write.digest, kept=write in written)
                del self._queued[write.kept, write.block]
            self._changed.unpark_all()
        for kept in {write.kept for write in taken}:
            if kept.full:
                self._filled(kept)

    async def _write(self, batch: Sequence[_Write], size: int) -> Sequence[_Write]:
        """Write what there is room for; what was written."""
        if self._disk.failing:
            return []
        if not await self._room.make(size, demand=False):
            self._full_until = trio.current_time() + FULL_PAUSE
            batch = [write for write in batch if not write.ahead]
            if not batch or not await self._room.make(sum(len(write.arrived[0]) for write in batch), demand=True):
                self._disk.warn("full", "%s is full of what is in use; blocks are not kept", self._disk.folder)
                return []
        batch = [write for write in batch if not write.kept.local.closed]  # of whose devices something may be left
        now = time.time()
        count, error = await self._disk.thread(_write_all, batch, now)
        for write in batch[:count]:
            self._room.settle(write.kept, write.block, write.digest, write.arrived[1], now)
        await self._room.measure({write.kept for write in batch})
        if error is not None:
            self._disk.failed("a block cannot be kept", error)
        else:
            self._disk.worked()
        return batch[:count]

    async def _flush(self) -> None:
        for kept in list(self._room.kept.values()):
            if kept.local.table.dirty and not kept.local.closed:
                with self._disk.tolerant("a table cannot be written"):
                    await self._disk.thread(kept.local.write_rows, kept.local.table.take_dirty())

    async def _tidy(self, kept: Kept) -> None:
        if kept.local.closed or kept.local.marked:
            return
        with self._disk.tolerant("a device cannot be tidied"):
            await self._disk.thread(kept.local.unmark)
            if not kept.pins and not await self._disk.thread(kept.local.opened_elsewhere):
                await self._disk.thread(kept.local.trim)
            await self._room.measure([kept])
        if kept.full:
            self._filled(kept)


def _write_all(batch: Sequence[_Write], now: float) -> tuple[int, OSError | None]:
    """Write one after the other until one fails; how many were written."""
    for number, write in enumerate(batch):
        try:
            write.kept.local.write(write.block, *write.arrived, now)
        except OSError as error:
            return number, error
    return len(batch), None
