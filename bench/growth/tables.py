"""One operation on tables of a given size: `python -m bench.growth.tables CASE SIZE FOLDER`, in a process of its own.

Each answers with JSON {"time", "stall"}: seconds of the operation, and milliseconds of its longest step that lets no
other task run. A stall counts at most the CPU time of the process meanwhile: what other processes of a busy machine
take is none. FOLDER is empty, for what an operation has on disk. Making the tables is not timed.
"""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
import os
import random
import sys
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import cast

import trio

from imagefs.blocks.block_table import ROW, BlockTable, PeerTable, oldest, row
from imagefs.blocks.cachefile import CacheDisk, LocalDevice
from imagefs.blocks.eviction import DeviceCache
from imagefs.blocks.stats import BlockStats
from imagefs.build.pipeline import BuildOptions, make_image
from imagefs.format.index import BLOCK, BlockLocation, Index
from imagefs.housekeeping.gc import collect
from imagefs.repository.images import Images
from imagefs.repository.store import open_repository
from stripefs.cache.cachedir import CacheDir
from stripefs.cache.quota import Quota
from stripefs.fuse.state_memory import CounterPage, MemoryJournal, make_memory
from stripefs.fuse.worker import freeze_survivors
from stripefs.settings import StoreSettings
from stripefs.store.base import Identity, Kind
from stripefs.vfs.inodes import ROOT, InodeTable

__all__ = ["OPERATIONS", "main"]

_BLOCKS = 500_000  # of all devices together, where devices are counted
_LOOKED_FOR = 20_000
_REPEATS = 15
"""Times that look-ups are made, in turn with those among the blocks of one device. Of each the one counts that took the
least CPU time: what else a machine does only ever adds to that."""

_DEVICES = 50  # that share the blocks of an image cache
_EVICTED = 2048  # blocks of 128 KiB
_YEAR = 365 * 86400


def _find_block(devices: int, _folder: Path) -> dict[str, float]:
    works = [_look_ups(number) for number in {devices, 1}]
    spent: list[list[float]] = [[] for _ in works]
    for _ in range(_REPEATS):
        for work, times in zip(works, spent, strict=True):
            began = time.thread_time()
            work()
            times.append(time.thread_time() - began)
    least = dict(zip({devices, 1}, map(min, spent), strict=True))
    return {"time": least[devices], "relative": least[devices] / least[1]}


def _look_ups(devices: int) -> Callable[[], None]:
    """Looks for blocks of so many devices, which have as many in all whatever their number."""
    peers: PeerTable[int] = PeerTable()
    each = _BLOCKS // devices
    digests = []
    for device in range(devices):
        first = peers.add_device(device, each)
        for block in range(each):
            digest = hashlib.blake2b(b"%d %d" % (device, block), digest_size=32).digest()
            peers.add(digest, first + block)
            if block % (each * devices // _LOOKED_FOR) == 0:
                digests.append((digest, device, block))

    def work() -> None:
        for digest, device, block in digests:
            if (device, block) not in peers.find(digest):
                raise AssertionError("a block was not found")

    return work


def _evict_blocks(blocks: int, _folder: Path) -> dict[str, float]:
    now, chance = time.time(), random.Random(blocks)
    tables, each = [], blocks // _DEVICES
    for _ in range(_DEVICES):
        rows = bytearray(row(1, now) * each)
        words = memoryview(rows).cast("I")
        words[2::4] = array("I", (words[2] - chance.randrange(_YEAR) for _ in range(each)))
        tables.append(BlockTable(rows))
    longest, gone = 0.0, 0

    def work() -> None:
        nonlocal longest, gone
        steps, began = oldest(tables, _EVICTED, now), time.perf_counter()
        for number, found in steps:
            for block in found:
                tables[number].clear(block)
            gone += len(found)
            ended = time.perf_counter()  # here other tasks have their turn
            longest, began = max(longest, ended - began), ended

    answer = _timed(work)
    assert gone >= _EVICTED
    return answer | {"stall": longest * 1e3}


@dataclasses.dataclass
class _Virtual:
    """Of an index with so many blocks that no document has, what a cache of devices asks for. A block is its digest."""

    blocks: int

    @property
    def stored(self) -> int:
        return self.blocks

    @property
    def device_bytes(self) -> int:
        return self.blocks * BLOCK

    def place(self, block: int) -> BlockLocation:
        mixed = block * 0x9E3779B97F4A7C15 & (1 << 64) - 1
        return BlockLocation(mixed.to_bytes(32, "little"), 0, 0, 0, BLOCK)


def _remove_device(blocks: int, folder: Path) -> dict[str, float]:
    name, index, stats = "ab" * 32, cast("Index", _Virtual(blocks)), BlockStats()
    LocalDevice(folder, name, blocks, blocks * BLOCK).close()  # a sparse file, of which the table says that all is here
    with (folder / f"{name}.table").open("r+b") as table:
        table.seek(-blocks * ROW, os.SEEK_END)
        for first in range(0, blocks, _BLOCKS):
            table.write(row(1, time.time()) * min(_BLOCKS, blocks - first))
    cache = DeviceCache(CacheDisk(folder, stats), blocks * BLOCK, stats)

    async def work() -> dict[str, float]:
        async with trio.open_nursery() as nursery:
            await cache.load(name, index)
            cache.open(name, index)
            nursery.start_soon(cache.list_peers)
            while len(cache.peers) < blocks:
                await trio.sleep(0.1)
            gc.collect()
            longest = 0.0

            async def tick() -> None:
                nonlocal longest
                while True:
                    last = _now()
                    await trio.sleep(0.001)
                    longest = max(longest, _late(last))

            nursery.start_soon(tick)
            await trio.sleep(0.01)
            began = time.perf_counter()
            await cache.discard(name)
            while len(cache.peers):
                await trio.sleep(0.01)
            seconds = time.perf_counter() - began
            nursery.cancel_scope.cancel()
        return {"time": seconds, "stall": longest * 1e3}

    return trio.run(work)


def _evict_segments(segments: int, folder: Path) -> dict[str, float]:
    cachedir, chance = CacheDir(str(folder)), random.Random(segments)
    size, versions = 4 << 10, max(1, segments // 100)
    data = chance.randbytes(size)
    for number in range(segments):
        key = (number % versions).to_bytes(16, "big")
        path = Path(cachedir.segment(key, number // versions))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    quota = Quota(cachedir, segments * size)
    if quota.recount() < segments * size:
        raise AssertionError("the file system holds less than was written")

    def work() -> None:
        if not quota.acquire(segments * size // 100, bytes(15) + b"\xff"):
            raise AssertionError("nothing was evicted")

    return _beside_a_ticker(work)


class _Journal(MemoryJournal):
    """Is full when the benchmark wants it, until it was compacted."""

    wanted = False

    def full(self) -> bool:
        return self.wanted

    def finish(self) -> bool:
        self.wanted = not super().finish()
        return not self.wanted


def _compact_journal(inodes: int, _folder: Path) -> dict[str, float]:
    counters, *slots = make_memory()
    journal = _Journal(CounterPage(counters), (slots[0], slots[1]))
    table = InodeTable(journal)
    folder = ROOT
    for number in range(inodes):
        if number % 1000 == 0:
            folder = table.add_lookup(ROOT, b"d%d" % number, Kind.DIRECTORY, None).id
        table.add_lookup(folder, b"file-%d" % number, Kind.FILE, Identity(number, number, str(number)))
    table.commit()
    gc.freeze()
    longest, journal.wanted = 0.0, True

    def work() -> None:
        nonlocal longest
        while journal.wanted:
            began = time.perf_counter()
            table.add_lookup(ROOT, b"other", Kind.DIRECTORY, None)
            table.commit()
            longest = max(longest, time.perf_counter() - began)

    return _timed(work) | {"stall": longest * 1e3}


def _learn_inodes(inodes: int, _folder: Path) -> dict[str, float]:
    counters, *slots = make_memory()
    table = InodeTable(MemoryJournal(CounterPage(counters), (slots[0], slots[1])))
    longest = 0.0

    def work() -> None:
        nonlocal longest
        folder = ROOT
        for number in range(inodes):
            last = _now()
            if number % 1000 == 0:
                folder = table.add_lookup(ROOT, b"d%d" % number, Kind.DIRECTORY, None).id
            table.add_lookup(folder, b"file-%d" % number, Kind.FILE, Identity(number, number, str(number)))
            table.commit()
            longest = max(longest, _late(last, 0.0))

    return _timed(work) | {"stall": longest * 1e3}


def _store_of(images: int, folder: Path) -> Images:
    """A store with so many images of one small directory, each with a manifest of its own, and a tag."""
    tree = folder / "tree"
    tree.mkdir()
    (folder / "tmp").mkdir()
    (tree / "file").write_bytes(random.Random(images).randbytes(100_000))
    store = Images(open_repository(StoreSettings(url=str(folder / "store")), make=True))
    manifest = store.manifest(_build(store, folder, "first"))
    for number in range(images - 1):
        store.put(dataclasses.replace(manifest, config={"number": number}), f"tag-{number}")
    return store


def _build(store: Images, folder: Path, tag: str) -> str:
    return make_image(f"dir:{folder / 'tree'}", store, BuildOptions(folder / "tmp"), tag=tag).digest


def _gc_images(images: int, folder: Path) -> dict[str, float]:
    store = _store_of(images, folder)

    def work() -> None:
        if collect(store).removed:
            raise AssertionError("something was removed")

    return _timed(work)


def _build_image(images: int, folder: Path) -> dict[str, float]:
    store = _store_of(images, folder)
    (folder / "tree/other").write_bytes(random.Random(0).randbytes(100_000))
    return _timed(lambda: _build(store, folder, "second"))


OPERATIONS: dict[str, Callable[[int, Path], dict[str, float]]] = {
    "find_block": _find_block,
    "evict_blocks": _evict_blocks,
    "remove_device": _remove_device,
    "evict_segments": _evict_segments,
    "compact_journal": _compact_journal,
    "learn_inodes": _learn_inodes,
    "gc_images": _gc_images,
    "build_image": _build_image,
}


def main(case: str, size: int, folder: Path) -> None:
    freeze_survivors()  # as the workers of mounts and of the daemon do
    print(json.dumps(OPERATIONS[case](size, folder)))


def _timed(work: Callable[[], object]) -> dict[str, float]:
    gc.collect()
    began = time.perf_counter()
    work()
    return {"time": time.perf_counter() - began}


def _beside_a_ticker(work: Callable[[], object]) -> dict[str, float]:
    """`work` in a thread, as a mount does it: the stall is how late a task of another thread came at the most."""
    over, longest = threading.Event(), 0.0
    answers: list[dict[str, float]] = []

    def run() -> None:
        try:
            answers.append(_timed(work))
        finally:
            over.set()

    thread = threading.Thread(target=run)
    thread.start()
    last = _now()
    while not over.wait(0.001):
        longest = max(longest, _late(last))
        last = _now()
    thread.join()
    return answers[0] | {"stall": longest * 1e3}


def _now() -> tuple[float, float]:
    """Seconds of the clock, and of this process's CPU time."""
    return time.perf_counter(), time.process_time()


def _late(last: tuple[float, float], expected: float = 0.001) -> float:
    """Seconds since `last` beyond those that were `expected`, as far as this process used them."""
    now, used = _now()
    return max(0.0, min(now - last[0] - expected, used - last[1]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
