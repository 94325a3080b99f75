"""The cached devices on disk, the room they take, and eviction: the blocks that were used least lately go first.

Blocks of devices that nobody has open go first, then, for a block that a reader wanted, those of any. Never those of a
device that is pinned, or whose file anybody else has open: somebody may read it who would take a hole for zeros.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from imagefs.blocks.block_table import PeerTable, oldest
from imagefs.blocks.cachefile import CacheDisk, LocalDevice
from imagefs.blocks.stats import BlockStats
from imagefs.errors import DocumentUnreadable
from imagefs.format import is_digest
from imagefs.format.index import BLOCK, Index
from stripefs.errors import StoreError

__all__ = ["CachedDevice", "DeviceCache"]

SLACK = 256 << 20
"""Bytes given up beyond what is needed, at most, so that room is not made anew for every batch."""

_LISTED_AT_ONCE = 256
"""Blocks added to the table of peers, or taken out, in one go: some milliseconds at most."""

LOADS_WITHIN = 30.0
"""Seconds that opening a device may take; a reader then goes on without the disk."""


@dataclass(eq=False, slots=True)
class CachedDevice:
    """A device on disk. index: None until somebody opened it. usage: bytes on disk."""

    local: LocalDevice
    index: Index | None = None
    first: int | None = None
    """The place of its blocks in the table of peers."""
    users: int = 0
    pins: int = 0
    usage: int = 0
    checks: int = 0
    """The number of checks as a whole by which it was not complete."""

    @property
    def full(self) -> bool:
        """Tells whether all its blocks seem to be here."""
        return not self.local.closed and self.index is not None and self.local.table.present >= self.index.stored


class DeviceCache:
    """`limit` bytes on `disk`. Raises OSError."""

    def __init__(self, disk: CacheDisk, limit: int, stats: BlockStats) -> None:
        self.limit = limit
        self.reserved = 0
        """Bytes within the limit that something else takes."""
        self.devices: dict[str, CachedDevice] = {}
        self.peers: PeerTable[CachedDevice] = PeerTable()
        self.unlisted: deque[tuple[CachedDevice, Iterator[int]]] = deque()
        """Devices, and those of their blocks that `list_peers` has to add to `peers`, or to take out."""
        self._more = trio.Event()
        self._disk = disk
        self._stats = stats
        self._turns: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)  # held for a load or removal, by device
        self._unopened = _sizes_on_disk(disk.folder)  # bytes on disk of devices that were not opened yet

    @property
    def used(self) -> int:
        """Bytes on disk of all devices, and what is reserved."""
        return self.reserved + sum(cached.usage for cached in self.devices.values()) + sum(self._unopened.values())

    @property
    def over(self) -> bool:
        """Tells whether that is more than the limit."""
        return self.used > self.limit

    @property
    def idle(self) -> bool:
        """Tells whether there is anything that nobody has open."""
        return bool(self._unopened) or any(True for _ in self._closed())

    def has(self, name: str) -> bool:
        """Tells whether anything of the device is on disk."""
        return name in self.devices or name in self._unopened

    async def load(self, name: str, index: Index) -> None:
        """Open the device on disk, or make it, in a thread: a table of a million blocks takes a quarter of a second.

        A load that the disk refuses, or does not do within LOADS_WITHIN seconds, is a failure of the disk.
        """
        what = f"device {name[:12]} cannot be kept"
        with self._disk.tolerant(what):
            with trio.move_on_after(LOADS_WITHIN) as limit:
                async with self._turns[name]:
                    if name not in self.devices:
                        cached = await self._disk.load(
                            _load, self._disk.folder, name, index, late=lambda unwanted: unwanted.local.close()
                        )
                        self._unopened.pop(name, None)
                        self.devices[name] = cached
            if limit.cancelled_caught:
                raise OSError(errno.ETIMEDOUT, f"no answer within {LOADS_WITHIN:g} s")

    def open(self, name: str, index: Index) -> CachedDevice | None:
        """The device on disk for somebody who reads it; None where it was not loaded."""
        cached = self.devices.get(name)
        if cached is None:
            return None
        if cached.local.table.present < index.stored:
            cached.local.marked = False
        cached.index = index
        if cached.first is None:
            cached.first = self.peers.add_device(cached, index.blocks)
            if self._list(cached, blocks := cached.local.table.blocks()):
                self._list_later(cached, blocks)
        return cached

    def add_block(self, cached: CachedDevice, block: int, digest: bytes, checksum: int, now: float) -> None:
        """The block, whose SHA-256 is `digest`, was written."""
        cached.local.table.add(block, checksum, now)
        if cached.first is not None:
            self.peers.add(digest, cached.first + block)

    def clear(self, cached: CachedDevice, block: int) -> None:
        """The block is here no more; the device is marked complete no more either."""
        cached.local.clear(block)
        if cached.first is not None and cached.index is not None:
            with contextlib.suppress(DocumentUnreadable):  # a reader finds that stale entries are gone
                self.peers.discard(cached.index.place(block).digest, cached.first + block)

    async def list_peers(self) -> None:
        """Let blocks that earlier processes left serve other devices, and forget those of devices that were removed;
        until cancelled. Other tasks run meanwhile, every `_LISTED_AT_ONCE` blocks."""
        while True:
            while self.unlisted:
                cached, blocks = self.unlisted.popleft()
                while self._list(cached, blocks):
                    await trio.lowlevel.checkpoint()
            self._more = trio.Event()
            await self._more.wait()

    def _list_later(self, cached: CachedDevice, blocks: Iterator[int]) -> None:
        self.unlisted.append((cached, blocks))
        self._more.set()

    def _list(self, cached: CachedDevice, blocks: Iterator[int]) -> bool:
        """Add the next of `blocks` to the table of peers, or take those of a removed device out; False when there are
        no more."""
        change = self.peers.discard if cached.local.closed else self.peers.add
        more = False
        for block in itertools.islice(blocks, _LISTED_AT_ONCE):
            if cached.first is None or cached.index is None:
                break
            if cached.local.table.checksum(block) is not None:
                try:
                    change(cached.index.place(block).digest, cached.first + block)
                except DocumentUnreadable:  # a reader of the device meets it
                    if not cached.local.closed:
                        return False
            more = True
        return more

    async def measure(self, several: Iterable[CachedDevice]) -> None:
        """See what they take now."""
        with self._disk.tolerant("a device cannot be measured"):
            for cached in several:
                if not cached.local.closed:
                    cached.usage = await self._disk.thread(getattr, cached.local, "usage")

    async def make(self, need: int, *, demand: bool) -> bool:
        """Give blocks up until `need` bytes fit; whether they do. demand: also blocks that somebody may use."""
        if self.used + need <= self.limit:
            return True
        goal = self.limit - need - min(SLACK, self.limit // 16)
        with self._disk.tolerant("room cannot be made"):
            while self._unopened:  # to see which of what earlier processes left is old
                await self._adopt(next(iter(self._unopened)))
            for tier in (self._closed, self._open) if demand else (self._closed,):
                while self.used > goal and await self._give_up(list(tier()), self.used - goal) > 0:
                    pass
        return self.used + need <= self.limit

    def close(self) -> None:
        for cached in self.devices.values():
            cached.local.close()

    def _closed(self) -> Iterator[CachedDevice]:
        return (cached for cached in self.devices.values() if not cached.users and not cached.pins and cached.usage)

    def _open(self) -> Iterator[CachedDevice]:
        return (cached for cached in self.devices.values() if cached.users and not cached.pins and cached.usage)

    async def discard(self, name: str) -> None:
        """Give up the whole device, which nobody used for long, unless somebody uses it after all."""
        with self._disk.tolerant(f"device {name[:12]} cannot be removed"):
            if name in self._unopened:
                await self._adopt(name)
            cached = self.devices.get(name)
            if cached is None or await self._disk.thread(cached.local.opened_elsewhere):
                return
            before = cached.usage
            async with self._turns[name]:
                if not (cached.users or cached.pins or cached.local.closed):
                    self._stats.evicted += cached.local.table.present
                    self._stats.evicted_bytes += before
                    await self._remove(cached)

    async def _adopt(self, name: str) -> None:
        """Open a device that an earlier process left, or delete files that are none."""
        async with self._turns[name]:
            if name not in self._unopened:  # loaded meanwhile
                return
            try:
                local = await self._disk.thread(LocalDevice.found, self._disk.folder, name)
            except OSError:
                local = None
            usage = self._unopened.pop(name)
            if local is None:
                await self._disk.thread(_delete, self._disk.folder, name)
            else:
                self.devices[name] = CachedDevice(local, usage=usage)

    async def _give_up(self, several: Sequence[CachedDevice], size: int) -> int:
        """Give up about `size` bytes of what was used least lately; how many it were. Raises OSError.

        Other tasks run between the steps, each of which looks at one page of one table.
        """
        free = await self._disk.thread(lambda: [cached for cached in several if not cached.local.opened_elsewhere()])
        victims: dict[int, list[int]] = {}
        for number, blocks in oldest([cached.local.table for cached in free], -(-size // BLOCK), time.time()):
            cached = free[number]
            if number not in victims and not cached.pins:
                # From here on no reader learns any more that the file is complete; only then may it get holes.
                cached.local.marked = False
                await self._disk.thread(cached.local.unmark)
                victims[number] = []
            else:
                await trio.lowlevel.checkpoint()
            if cached.pins:
                cached.local.table.restore(blocks)
                break
            for block in blocks:
                self.clear(cached, block)
            victims[number] += blocks
        return sum([await self._punch(free[number], sorted(blocks)) for number, blocks in victims.items() if blocks])

    async def _punch(self, cached: CachedDevice, blocks: Sequence[int]) -> int:
        """Give the disk back what cleared blocks take; how many bytes. Raises OSError."""
        before = cached.usage
        with self._disk.tolerant("blocks cannot be given up"), contextlib.suppress(StoreError):  # removed meanwhile
            await self._disk.thread(_punch, cached.local, cached.local.table.take_dirty(), blocks)
        await self.measure([cached])
        self._stats.evicted += len(blocks)
        self._stats.evicted_bytes += max(0, before - cached.usage)
        async with self._turns[cached.local.name]:
            unused = not (cached.users or cached.local.closed)
            if unused and (not cached.local.table.present or cached.usage >= before):
                await self._remove(cached)  # empty, or the file system gives room back by whole files only
        return before - cached.usage

    async def _remove(self, cached: CachedDevice) -> None:
        """Remove a device that nobody uses, in its turn. Raises OSError.

        No reader finds its blocks any more; that these leave the table of peers, 10 microseconds each, can wait.
        """
        del self.devices[cached.local.name]
        cached.local.closed = True  # on this thread, so that nobody takes it up meanwhile
        if cached.first is not None:
            self.peers.remove_device(cached.first)
            self._list_later(cached, cached.local.table.blocks())
        await self._disk.thread(cached.local.remove)
        cached.usage = 0


def _load(folder: Path, name: str, index: Index) -> CachedDevice:
    local = LocalDevice(folder, name, index.blocks, index.device_bytes)
    return CachedDevice(local, usage=local.usage)


def _sizes_on_disk(folder: Path) -> dict[str, int]:
    """Bytes on disk of each device below `folder`; what is no whole device is removed. Raises OSError."""
    found: dict[str, int] = {}
    tables = {path.stem for path in folder.glob("*.table")}
    for path in folder.iterdir():
        if not is_digest(path.stem):
            continue
        if path.suffix in (".passing", ".gone") or (path.suffix in (".data", ".complete") and path.stem not in tables):
            with contextlib.suppress(OSError):  # a disk that cannot be written to is met elsewhere
                path.unlink()
        elif path.suffix == ".data":
            found[path.stem] = path.stat().st_blocks * 512
    return found


def _delete(folder: Path, name: str) -> None:
    for suffix in ("complete", "table", "data"):
        (folder / f"{name}.{suffix}").unlink(missing_ok=True)


def _punch(local: LocalDevice, pages: Sequence[tuple[int, bytes]], blocks: Sequence[int]) -> None:
    """The table first: a block that it still has while its bytes are gone would look damaged."""
    try:
        local.write_rows(pages)
    finally:
        local.punch(blocks)
