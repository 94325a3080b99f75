"""The block store of a host: devices whose blocks come from memory, from local disk, from a store, and are right.

A read looks for each of its blocks in the device's local file and in memory; then in the files of all devices that were
opened, by its SHA-256; then in the store, where it is fetched once for all that wait, checked, handed on, and kept
(`imagefs.blocks.fetcher`, `imagefs.blocks.writeback`). Blocks on disk are checked by their XXH3, those that arrived by
their SHA-256, and one that a check refuses is fetched anew. So a read answers the bytes that were built, or an error; a
full or failing disk costs speed only.

All state is touched on trio's thread only. Stores, hashing what arrived, and disks that have to be waited for are for
threads; what the page cache has is read and checked at once, since that takes less time (0.1 ms for 1 MiB) than asking
a thread to (0.3 ms). `BlockDevice`, what users hold, is in `imagefs.blocks.device`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import trio

from imagefs.blocks.cachefile import CacheDisk, LocalDevice
from imagefs.blocks.device import BlockDevice, Reads
from imagefs.blocks.eviction import CachedDevice, DeviceCache
from imagefs.blocks.fetcher import Fetcher
from imagefs.blocks.source import BlockSource, Copy
from imagefs.blocks.stats import BlockStats
from imagefs.blocks.upstream import Upstream
from imagefs.blocks.writeback import BlockMemory, WriteBack, seal
from imagefs.errors import CacheInUse, DocumentUnreadable
from imagefs.format.index import BLOCK, Index
from stripefs.background import contain, supervise
from stripefs.errors import Abandoned, ConfigError, StoreError
from stripefs.executor import Lane
from stripefs.osutil import try_flock
from stripefs.retry import Seldom
from stripefs.store.allocator import give_back

__all__ = ["BlockDevice", "BlockStore", "Reads"]

_log = logging.getLogger(__name__)
DRAIN = 5.0
"""Seconds at the end for what waits to be written."""

IDLE = 5.0
"""Seconds without a read or a fetch after which memory is given back."""

QUIET, QUIET_WITHIN = 0.5, 60.0
"""Seconds without a read after which a device is checked as a whole, and until nobody waits for that any more."""

CHECKS = 3
"""Times that a device is checked as a whole in vain: a disk that spoils what it keeps would never end it."""

DISK_READS = 16
"""At once: as many as a disk of several queues answers together."""


class BlockStore:
    """The blocks below `folder`, which one process at a time may use. Devices may be opened before `run` starts.

    limit: bytes on disk. memory: bytes held and under way. io_timeout: seconds that a read waits for a store that is
    away. Raises CacheInUse, ConfigError.
    """

    def __init__(self, folder: Path, *, limit: int, memory: int, io_timeout: float) -> None:
        self.folder = folder
        self.changed = trio.lowlevel.ParkingLot()
        self.stats = BlockStats()
        self.stalled: Callable[[str, float, str, str], None] | None = None
        """Called with each read that has waited for long: the digest of its device, seconds, cause and host."""
        self.memory = BlockMemory(memory)
        self.warn = Seldom(_log)
        self.disk_reads = Lane("disk reads", DISK_READS)
        self.disk = CacheDisk(folder, self.stats)
        with contextlib.ExitStack() as undo:
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._lock = _locked(folder)
                undo.callback(os.close, self._lock)
                self.cache = DeviceCache(self.disk, limit, self.stats)
            except OSError as error:
                raise ConfigError(f"blocks cannot be kept in {folder}: {error.strerror}") from error
            undo.pop_all()
        self.writeback = WriteBack(self.disk, self.cache, self.memory, self.stats, self._filled, self.changed)
        self.fetcher: Fetcher[BlockDevice] = Fetcher(
            self.memory, self.stats, io_timeout, self._find, BlockDevice.keep, self.changed
        )
        self._devices: dict[str, BlockDevice] = {}
        self._upstreams: dict[BlockSource, Upstream] = {}
        self._sealing: set[CachedDevice] = set()
        self._loading: set[BlockDevice] = set()
        self._closed = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fetch, keep and give up blocks; until cancelled. Then everything is closed."""
        try:
            async with trio.open_nursery() as nursery:
                self.fetcher.nursery = nursery
                nursery.start_soon(supervise, "keeping blocks", self.writeback.run)
                nursery.start_soon(supervise, "giving back idle memory", self._shrink_when_idle)
                nursery.start_soon(supervise, "listing blocks of other images", self.cache.list_peers)
                task_status.started()
        finally:
            self.fetcher.nursery = None
            self.changed.unpark_all()
            with trio.move_on_after(DRAIN, shield=True):
                await self.writeback.drain()
            self.close()

    async def _shrink_when_idle(self) -> None:
        """A block that nobody read for a while is in the kernel's cache, if it is worth memory at all."""
        reads, shrunk = -1, False
        while True:
            await trio.sleep(IDLE)
            idle, reads = self.stats.reads == reads and not len(self.fetcher), self.stats.reads
            if idle and not shrunk:
                self.memory.clear()
                give_back()
            shrunk = idle

    async def open(self, digest: str, index: Index, source: BlockSource) -> BlockDevice:
        """The device whose index has this digest, the same for all; each must `close` it. The last source is preferred.

        No error is raised: what the disk does not open in time is read through.
        """
        await self.cache.load(digest, index)
        for idle in [one for one in self._devices.values() if not one.users and one.local is None]:
            del self._devices[idle.digest]  # given up meanwhile
        device = self._devices.get(digest)
        if device is None:
            device = self._devices[digest] = BlockDevice(self, digest, index)
        device.opened(index, self._upstream(source))
        return device

    def add_source(self, device: BlockDevice, source: BlockSource) -> None:
        """Fetch the device's blocks from this source, too, where others fail."""
        device.upstreams.add(self._upstream(source))

    def remove_source(self, source: BlockSource) -> None:
        """The source is about to be closed: devices that have another one ask it no more."""
        if (upstream := self._upstreams.pop(source, None)) is not None:
            for device in self._devices.values():
                device.upstreams.remove(upstream)

    async def offer(self, digest: str, index: Index) -> None:
        """Let what is kept of this device, opened or not, serve others that have the same blocks."""
        if digest not in self._devices and self.cache.has(digest):
            await self.cache.load(digest, index)
            if digest not in self._devices:
                device = self._devices[digest] = BlockDevice(self, digest, index)
                device.attach_cached()

    def load_soon(self, device: BlockDevice) -> None:
        """Open it on disk, which did not do it before. Blocks that arrive until then are not kept."""
        if self.fetcher.nursery is not None and device not in self._loading:
            self._loading.add(device)
            what = f"opening device {device.digest[:12]}"
            self.fetcher.nursery.start_soon(contain, what, self._load, device)

    async def _load(self, device: BlockDevice) -> None:
        try:
            await device.load()
        finally:
            self._loading.discard(device)

    @property
    def waited_ms(self) -> float:
        """Milliseconds that reads waited for blocks that were not here, all added up."""
        return self.stats.waits.seconds * 1000

    def snapshot(self) -> dict[str, Any]:
        """Statistics for status and metrics: sizes in bytes, counts since the start."""
        stats = self.stats
        return {
            "folder": str(self.folder),
            "limit": self.cache.limit,
            "used": self.cache.used,
            "documents": self.cache.reserved,
            "memory": {
                "limit": self.memory.limit,
                "used": self.memory.used,
                "unwritten": self.memory.held,
                "in_flight": self.memory.in_flight,
            },
            "reads": stats.reads,
            "bytes_read": stats.bytes_read,
            "hits": {"memory": stats.hits_memory, "disk": stats.hits_disk, "peer": stats.hits_peer},
            "fetched": {
                kind: {"ranges": one.ranges, "blocks": one.blocks, "bytes": one.bytes, "stored": one.stored}
                for kind, one in (("demand", stats.demand), ("ahead", stats.ahead))
            },
            "upstreams": {"store": 0, **stats.upstreams},
            "mirrors": [
                {"url": one.label, "avoided_for": round(one.mirror.avoided[0], 1), "reason": one.mirror.avoided[1]}
                for upstream in self._upstreams.values()
                for one in upstream.mirrors
            ],
            "served": {where: stats.served[where] for where in ("memory", "disk", "peer", "store")},
            "waits": stats.waits.count,
            "waited_ms": round(self.waited_ms, 1),
            "waited": stats.waits.snapshot(),
            "in_flight": len(self.fetcher),
            "retries": stats.retries,
            "failures": stats.failures,
            "damaged": {"arrival": stats.damaged_arrival, "disk": stats.damaged_disk},
            "evicted": stats.evicted,
            "evicted_bytes": stats.evicted_bytes,
            "unkept": stats.unkept,
            "disk_errors": stats.disk_errors,
            "devices": [device.snapshot() for device in self._devices.values() if device.users],
        }

    def close(self) -> None:
        """Let go of everything. `run` does it when it ends. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self.cache.close()
            os.close(self._lock)

    def _upstream(self, source: BlockSource) -> Upstream:
        if source not in self._upstreams:
            in_use = {one for device in self._devices.values() if device.users for one in device.upstreams}
            self._upstreams = {source: one for source, one in self._upstreams.items() if one in in_use}
            self._upstreams[source] = Upstream(source, self.memory.limit // 8)
        return self._upstreams[source]

    def _find(self, digest: bytes) -> Copy | None:
        """A reader of a block with these bytes from a file here. Raises nothing."""
        for cached, block in self.cache.peers.find(digest):
            if cached.index is None or cached.local.closed or cached.local.table.checksum(block) is None:
                continue
            with contextlib.suppress(DocumentUnreadable):  # then a store has it
                place = cached.index.place(block)
                if place.digest == digest:
                    return partial(_read_copy, cached.local, block * BLOCK, place.length)
        return None

    def _filled(self, cached: CachedDevice) -> None:
        """All blocks of the device seem to be here."""
        device = self._devices.get(cached.local.name)
        if device is not None and self.fetcher.nursery is not None and cached not in self._sealing:
            self._sealing.add(cached)
            what = f"checking device {device.digest[:12]}"
            self.fetcher.nursery.start_soon(contain, what, self._seal, device, cached)

    async def _wait_until_idle(self) -> None:
        """Until nobody has read for a moment: checking takes processor and disk that a start under way needs more."""
        reads, end = -1, trio.current_time() + QUIET_WITHIN
        while self.stats.reads != reads and trio.current_time() < end:
            reads = self.stats.reads
            await trio.sleep(QUIET)

    async def _seal(self, device: BlockDevice, cached: CachedDevice) -> None:
        bad: list[int] = []
        try:
            await self._wait_until_idle()
            while (
                cached.checks < CHECKS and not cached.local.marked and cached.local.table.present >= device.index.stored
            ):
                cached.checks += 1
                bad = await seal(cached, device.index, self.disk, self.cache)
        except OSError as error:
            self.stats.disk_errors += 1
            self.warn("seal", "device %s cannot be checked: %s", device.digest[:12], error.strerror)
        except StoreError:
            return  # closed meanwhile
        finally:
            self._sealing.remove(cached)
        if cached.local.marked:
            cached.checks = 0
            _log.info("device %s is complete", device.digest[:12])
        elif bad:
            self.stats.damaged_disk += len(bad)
            self.warn("bad", "%d blocks of device %s on disk were damaged", len(bad), device.digest[:12])
            if device.users:
                with contextlib.suppress(Abandoned):  # the end
                    await device.fetch(bad)


def _read_copy(local: LocalDevice, offset: int, length: int) -> bytes:
    """A block of a local file; whether it is right the caller sees."""
    buffer = bytearray(length)
    local.read(offset, buffer)
    return bytes(buffer)


def _locked(folder: Path) -> int:
    """A descriptor that holds the folder's lock. Raises CacheInUse, OSError."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        descriptor = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)  # blocks on disk can be read still
    try:
        if not try_flock(descriptor):
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            raise CacheInUse(
                f"{folder} is in use by process {holder or '?'}", hint="stop the other daemon, or use another folder"
            )
    except BaseException:
        os.close(descriptor)
        raise
    with contextlib.suppress(OSError):  # a full disk; the number is for messages only
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
