"""One device of an image, as those hold it who read from it or fetch ahead for it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio
import xxhash

from imagefs.blocks.cachefile import LocalDevice, neighbours
from imagefs.blocks.eviction import CachedDevice
from imagefs.blocks.fetcher import BlockFetch
from imagefs.blocks.prefetch import FetchReport, Run, fetch_ahead
from imagefs.blocks.source import Arrived
from imagefs.blocks.upstream import Upstream, Upstreams
from imagefs.errors import BlockUnavailable
from imagefs.format.index import BLOCK, BlockLocation, Index
from stripefs.errors import StoreError
from stripefs.stalls import LEAST as STALL
from stripefs.store.base import Buffer

if TYPE_CHECKING:
    from imagefs.blocks.store import BlockStore

__all__ = ["BlockDevice", "Reads"]

BUSY = 4
"""A read waited for the link where so many times its own bytes came meanwhile."""

_ZEROS = memoryview(bytes(BLOCK))

_Found = tuple[int, int, int]  # a block on disk: its number, length, XXH3


@dataclass(slots=True)
class Reads:
    """Of one device: blocks that reads found on this machine, those that they waited for, the bytes of these, and the
    seconds that they waited."""

    hits: int = 0
    misses: int = 0
    missed_bytes: int = 0
    waited: float = 0.0

    def since(self, before: Reads) -> Reads:
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(before)
        return Reads(*(now - then for now, then in zip(mine, theirs, strict=True)))


class BlockDevice:
    """`digest` names its block index, `size` is in bytes. Made by `BlockStore.open`."""

    def __init__(self, blocks: BlockStore, digest: str, index: Index) -> None:
        self.digest = digest
        self.index = index
        self.size = index.device_bytes
        self.path = blocks.folder / f"{digest}.data"
        """The local file: the device itself for whoever pinned it."""
        self.users = 0
        self.last_read = -1
        """The last block of the latest read; -1 before the first."""
        self.reads = Reads()
        self.upstreams = Upstreams()
        self._blocks = blocks
        self._cached: CachedDevice | None = None

    # -- what is here --------------------------------------------------------------------------------------------

    @property
    def local(self) -> LocalDevice | None:
        """The device on disk, None where nothing can be there."""
        return self._cached.local if self._cached is not None and not self._cached.local.closed else None

    @property
    def present(self) -> int:
        """Stored blocks that are on disk."""
        local = self.local
        return local.table.present if local is not None else 0

    @property
    def complete(self) -> bool:
        """Tells whether the local file was found to be the whole device, for good: it may be used once it is pinned."""
        local = self.local
        return local is not None and local.marked

    def pin(self) -> bool:
        """Keep the local file as it is, whatever room is needed, until `unpin`; False when it is not complete.

        A process that has the file open keeps it as it is, too. Pins end with the process.
        """
        if self._cached is None or not self.complete:
            return False
        self._cached.pins += 1
        return True

    def unpin(self) -> None:
        if self._cached is not None:
            self._cached.pins -= 1

    def opened(self, index: Index, upstream: Upstream) -> None:
        """Somebody uses it, from now on through `upstream`, and through those known before where that fails."""
        self.index = index
        if not self.users:
            self.upstreams = Upstreams()  # those that were asked before may be closed
        self.upstreams.switch_to(upstream)
        self.users += 1
        self.attach_cached()

    async def load(self) -> None:
        """Look for what is on disk of it, or make room for it there."""
        await self._blocks.cache.load(self.digest, self.index)
        self.attach_cached()

    def attach_cached(self) -> None:
        """Take up what was loaded of it, if that was not done or is gone."""
        if self.local is None:
            self._cached = self._blocks.cache.open(self.digest, self.index)
        if self._cached is not None:
            self._cached.users = self.users
            self._blocks.writeback.tidy(self._cached)

    def replace_index(self, index: Index) -> None:
        """Read its block index, the same bytes, from another place: the one so far cannot be read."""
        self.index = index
        if self._cached is not None:
            self._cached.index = index

    def close(self) -> None:
        """One user fewer. Blocks that are kept stay, as long as there is room."""
        self.users -= 1
        if self._cached is not None:
            self._cached.users = self.users

    def snapshot(self) -> dict[str, Any]:
        cached = self._cached
        return {
            "index": self.digest,
            "size": self.size,
            "stored": self.index.stored,
            "present": self.present,
            "complete": self.complete,
            "used": cached.usage if cached is not None else 0,
            "pins": cached.pins if cached is not None else 0,
        }

    # -- reading -------------------------------------------------------------------------------------------------

    async def read(self, offset: int, length: int) -> Buffer:
        """The bytes from `offset`, `length` of them or up to the end of the device, all of them right.

        Raises BlockUnavailable, whose errno is EIO, when they cannot be had within the time-out, or only damaged.
        """
        if offset < 0 or length < 0:
            raise ValueError(f"{length} bytes at {offset}")
        end = min(offset + length, self.size)
        if offset >= end:
            return b""
        stats = self._blocks.stats
        stats.reads += 1
        stats.bytes_read += end - offset
        blocks = range(offset // BLOCK, (end - 1) // BLOCK + 1)
        self.last_read = blocks[-1]
        found = self._on_disk(blocks)
        if found is not None:
            if not found:
                return bytes(end - offset)
            buffer = await self._read_disk(blocks, found)
            if buffer is not None:
                begin = blocks.start * BLOCK
                return memoryview(buffer)[offset - begin : end - begin]
        return _cut(await self._gather(blocks), offset, end)

    def _on_disk(self, blocks: range) -> list[_Found] | None:
        """The blocks of these that are not zeros, None when any of them is not on disk."""
        local = self.local
        found: list[_Found] = []
        for block in blocks:
            length = self.index.length(block)
            if length:
                checksum = local.table.checksum(block) if local is not None else None
                if checksum is None:
                    return None
                found.append((block, length, checksum))
        return found

    async def _read_disk(self, blocks: range, found: Sequence[_Found]) -> bytearray | None:
        """All bytes of `blocks`, of which `found` are not zeros; None when any of it is not what was written."""
        local = self.local
        if local is None:
            return None
        begin = blocks.start * BLOCK
        buffer = bytearray(min(blocks.stop * BLOCK, self.size) - begin)
        try:
            if local.read_now(begin, buffer):
                bad = _check(buffer, blocks, found)
            else:
                # Not abandoned: it fills `buffer` from a descriptor that is closed after this.
                bad = await self._blocks.disk_reads.run(
                    f"reading {self.path}", _read_checked, local, buffer, blocks, found, abandon=False
                )
        except OSError as error:
            self._blocks.stats.disk_errors += 1
            self._blocks.warn("read", "%s cannot be read: %s", self.path, error.strerror)
            bad = list(found)
        except StoreError:  # closed meanwhile: nobody needs it any more, or there is no room for it
            return None
        if bad:
            self._discard_damaged(local, bad)
            return None
        now = time.time()
        for block, _, _ in found:
            local.table.touch(block, now)
        self._blocks.stats.hits_disk += len(found)
        self.reads.hits += len(found)
        self._blocks.stats.served["disk"] += sum(length for _, length, _ in found)
        return buffer

    def _discard_damaged(self, local: LocalDevice, bad: Sequence[_Found]) -> None:
        """Forget blocks that were read wrong, unless that was because they were given up meanwhile."""
        for block, _, checksum in bad:
            if local.table.checksum(block) == checksum and not local.closed:
                if self._cached is not None:
                    self._blocks.cache.clear(self._cached, block)
                self._blocks.stats.damaged_disk += 1
                self._blocks.warn("spoilt", "block %d in %s is damaged; fetching it anew", block, self.path)
                if self._cached is not None:
                    self._blocks.writeback.tidy(self._cached)

    async def _gather(self, blocks: range) -> dict[int, Buffer]:
        """The bytes of each of these blocks that is not zeros, from wherever they can be had."""
        pieces: dict[int, Buffer] = {}
        lacking: Run = []
        cached: list[int] = []
        for block in blocks:
            if not self.index.length(block):
                continue
            place = self.index.place(block)
            data = self._blocks.memory.get(place.digest)
            if data is not None:
                self._blocks.stats.hits_memory += 1
                self.reads.hits += 1
                self._blocks.stats.served["memory"] += len(data)
                pieces[block] = data
            elif self.local is not None and self.local.table.checksum(block) is not None:
                cached.append(block)
            else:
                lacking.append((block, place))
        fetches = self._request(lacking)
        for group in neighbours(cached):
            if not await self._read_pieces(group, pieces):
                for block in group:
                    if not await self._read_pieces(range(block, block + 1), pieces):
                        fetches += self._request([(block, self.index.place(block))])
        if fetches:
            await self._wait(fetches, pieces)
        return pieces

    async def _read_pieces(self, blocks: range, pieces: dict[int, Buffer]) -> bool:
        """Add what is on disk of `blocks` to `pieces`; False, and nothing is added, unless that is all of it."""
        found = self._on_disk(blocks)
        buffer = await self._read_disk(blocks, found) if found else None
        if buffer is None:
            return False
        view = memoryview(buffer)
        for block in blocks:
            pieces[block] = view[(block - blocks.start) * BLOCK :][:BLOCK]
        return True

    def _request(self, run: Run) -> list[tuple[int, BlockFetch[BlockDevice]]]:
        return self._blocks.fetcher.request(self, self.upstreams, self.index.packs, run, demand=True)

    async def _wait(self, fetches: Sequence[tuple[int, BlockFetch[BlockDevice]]], pieces: dict[int, Buffer]) -> None:
        begun, arrived = trio.current_time(), self.upstream.link.arrived
        try:
            for block, fetch in fetches:
                await fetch.finished.wait()
                if fetch.data is None:
                    place = self.index.place(block)
                    pack = self.index.packs[place.pack].digest.hex()
                    raise BlockUnavailable(
                        f"block {block} of device {self.digest[:12]} (pack {pack} at {place.offset}): {fetch.error}"
                    ) from fetch.error
                pieces[block] = fetch.data
                self._blocks.stats.served["peer" if fetch.copied else "store"] += len(fetch.data)
                self.reads.misses += 1
                self.reads.missed_bytes += len(fetch.data)
        finally:
            waited = trio.current_time() - begun
            self._blocks.stats.waits.add(waited)
            self.reads.waited += waited
            if waited >= STALL and self._blocks.stalled is not None:
                wanted = sum(fetch.place.stored for _, fetch in fetches)
                busy = self.upstream.link.arrived - arrived > BUSY * wanted
                self._blocks.stalled(self.digest, waited, *_cause([fetch for _, fetch in fetches], busy=busy))

    def keep(self, block: int, digest: bytes, arrived: Arrived, ahead: bool) -> None:
        """The block has come; keep it on disk, if that can be."""
        if self._cached is None and not self._blocks.disk.failing:
            self._blocks.load_soon(self)  # the disk may take it by now
        if self._cached is not None and block * BLOCK + len(arrived[0]) <= self.size:
            self._blocks.writeback.put(self._cached, block, digest, arrived, ahead=ahead)

    # -- fetching ahead ------------------------------------------------------------------------------------------

    async def fetch(self, blocks: Iterable[int], *, at_once: int = 8, rate: float = 0.0) -> FetchReport:
        """Fetch these blocks in this order, before anybody asks for them; see `imagefs.blocks.prefetch`.

        at_once: ranges under way. rate: stored bytes a second, 0 for any. Blocks that cannot be had are counted; no
        store's error is raised. Blocks that are under way when this is cancelled still arrive.
        """
        return await fetch_ahead(self._blocks, self, blocks, at_once, rate)

    @property
    def upstream(self) -> Upstream:
        """The store that is asked."""
        return self.upstreams.best

    async def has_room(self, size: int) -> bool:
        """Tells whether the disk takes so much more without giving up what is in use."""
        if self._cached is None and not self._blocks.disk.failing:
            await self.load()
        return self.local is not None and self._blocks.writeback.has_room(size)

    def lacks(self, block: int, place: BlockLocation) -> bool:
        """Tells whether the block is neither here nor on its way."""
        local, cached = self.local, self._cached
        if local is None or cached is None or local.table.checksum(block) is not None:
            return local is None
        if self._blocks.writeback.writing(cached, block):
            return False
        fetch = self._blocks.fetcher.under_way(self.upstreams, place.digest)
        return fetch is None or (self, block) not in fetch.targets

    def begin(self, run: Run) -> Sequence[tuple[int, BlockFetch[BlockDevice]]]:
        """Fetch these, but for those that memory has."""
        rest: Run = []
        for block, place in run:
            data = self._blocks.memory.get(place.digest)
            if data is not None:
                self.keep(block, place.digest, (data, xxhash.xxh3_64_intdigest(data)), True)
            else:
                rest.append((block, place))
        return self._blocks.fetcher.request(self, self.upstreams, self.index.packs, rest, demand=False)


def _cause(fetches: Sequence[BlockFetch[BlockDevice]], *, busy: bool) -> tuple[str, str]:
    """The cause of a read's wait, as events of a start name it: the cause and the host. busy: other bytes came
    meanwhile."""
    for fetch in fetches:
        if fetch.trouble is not None:
            return fetch.trouble
    from_store = next((fetch for fetch in fetches if not fetch.copied), None)
    if from_store is None:
        return "disk", ""
    host = from_store.last_upstream.host if from_store.last_upstream is not None else ""
    return ("link" if busy else "store"), host


def _cut(pieces: dict[int, Buffer], offset: int, end: int) -> Buffer:
    """The bytes from `offset` to `end` of a device that has these blocks, and zeros elsewhere."""
    if len(pieces) == 1:
        ((block, data),) = pieces.items()
        if block * BLOCK <= offset and end <= block * BLOCK + len(data):
            return memoryview(data)[offset - block * BLOCK : end - block * BLOCK]
    out = bytearray(end - offset)
    for block, data in pieces.items():
        at = block * BLOCK - offset
        part = memoryview(data)[max(0, -at) : end - block * BLOCK]
        at = max(0, at)
        out[at : at + len(part)] = part
    return out


def _read_checked(local: LocalDevice, buffer: bytearray, blocks: range, found: Sequence[_Found]) -> list[_Found]:
    local.read(blocks.start * BLOCK, buffer)
    return _check(buffer, blocks, found)


def _check(buffer: bytearray, blocks: range, found: Sequence[_Found]) -> list[_Found]:
    """The wrong blocks of `found`. Where nothing is stored `buffer` gets zeros, whatever the file has there."""
    view = memoryview(buffer)
    bad = []
    lengths = dict.fromkeys(blocks, 0)
    for block, length, checksum in found:
        lengths[block] = length
        if xxhash.xxh3_64_intdigest(view[(block - blocks.start) * BLOCK :][:length]) != checksum:
            bad.append((block, length, checksum))
    for block, length in lengths.items():
        if length < BLOCK:
            rest = view[(block - blocks.start) * BLOCK + length :][: BLOCK - length]
            rest[:] = _ZEROS[: len(rest)]
    return bad
