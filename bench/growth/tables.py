"""One operation on tables of a given size: `python -m bench.growth.tables CASE SIZE FOLDER`, in a process of its own.

Each answers with JSON {"time", "stall"}: seconds of the operation, and milliseconds of its longest step that lets no
other task run. FOLDER is empty, for what an operation has on disk. Making the tables is not timed.
"""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
import random
import sys
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from imagefs.blocks.block_table import BlockTable, PeerTable, oldest, row
from imagefs.build.pipeline import BuildOptions, make_image
from imagefs.housekeeping.gc import collect
from imagefs.repository.images import Images
from imagefs.repository.store import open_repository
from stripefs.cache.cachedir import CacheDir
from stripefs.cache.quota import Quota
from stripefs.fuse.state_memory import CounterPage, MemoryJournal, make_memory
from stripefs.settings import StoreSettings
from stripefs.store.base import Identity, Kind
from stripefs.vfs.inodes import ROOT, InodeTable

__all__ = ["OPERATIONS", "main"]

_BLOCKS = 500_000  # of all devices together, where devices are counted
_LOOKED_FOR = 20_000
_DEVICES = 50  # that share the blocks of an image cache
_EVICTED = 2048  # blocks of 128 KiB
_YEAR = 365 * 86400


def _find_block(devices: int, _folder: Path) -> dict[str, float]:
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

    return _timed(work)


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
        if not quota.take(segments * size // 100, bytes(15) + b"\xff"):
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
    "evict_segments": _evict_segments,
    "compact_journal": _compact_journal,
    "gc_images": _gc_images,
    "build_image": _build_image,
}


def main(case: str, size: int, folder: Path) -> None:
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
    began = time.perf_counter()
    while not over.wait(0.001):
        now = time.perf_counter()
        longest, began = max(longest, now - began - 0.001), now
    thread.join()
    return answers[0] | {"stall": longest * 1e3}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
