"""Devices that are given up as a whole: no step on the event loop grows with their blocks."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from imagefs.blocks import eviction
from imagefs.blocks.block_table import ROW, PeerTable, row
from imagefs.blocks.cachefile import CacheDisk, LocalDevice
from imagefs.blocks.eviction import DeviceCache
from imagefs.blocks.stats import BlockStats
from imagefs.errors import DocumentUnreadable
from imagefs.format.index import BLOCK, Index
from tests.support.images.devices import eventually

BLOCKS = 20_000
NAME = "ab" * 32
NOW = 1_800_000_000.0


def virtual_index(blocks: int) -> Index:
    """The index of a device all of whose blocks are stored; no document has it."""

    def place(block: int) -> Any:
        return SimpleNamespace(digest=block.to_bytes(32, "little"))

    return cast("Index", SimpleNamespace(blocks=blocks, stored=blocks, device_bytes=blocks * BLOCK, place=place))


def fill(folder: Path, blocks: int) -> None:
    """A sparse device whose table says that all its blocks are here."""
    LocalDevice(folder, NAME, blocks, blocks * BLOCK).close()
    table = folder / f"{NAME}.table"
    header = table.read_bytes()[: -blocks * ROW]
    table.write_bytes(header + row(1, NOW) * blocks)


class CountedTable(PeerTable[Any]):
    """Counts changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def add(self, digest: bytes, location: int) -> None:
        self.changes += 1
        super().add(digest, location)

    def discard(self, digest: bytes, location: int) -> None:
        self.changes += 1
        super().discard(digest, location)


async def test_a_device_comes_and_goes_in_steps_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its blocks are forgotten but for those whose names are lost, as a part of its index cannot be read."""
    fill(tmp_path, BLOCKS)
    stats = BlockStats()
    cache = DeviceCache(CacheDisk(tmp_path, stats), 1 << 40, stats)
    cache.peers = peers = CountedTable()
    looked = 0
    rows = LocalDevice.clear

    def clear(self: LocalDevice, block: int) -> None:
        nonlocal looked
        looked += 1
        rows(self, block)

    monkeypatch.setattr(LocalDevice, "clear", clear)
    steps: list[int] = []

    async def note_steps() -> None:
        while True:
            before = peers.changes + looked
            await trio.lowlevel.checkpoint()
            steps.append(peers.changes + looked - before)

    async with trio.open_nursery() as nursery:
        index = virtual_index(BLOCKS)
        await cache.load(NAME, index)
        nursery.start_soon(note_steps)
        nursery.start_soon(cache.list_peers)
        cached = cache.open(NAME, index)
        assert cached is not None
        while len(peers) < BLOCKS:
            await trio.lowlevel.checkpoint()

        def place(block: int) -> Any:
            if block < 10:
                raise DocumentUnreadable("the disk does not give it back")
            return index.place(block)

        cached.index = cast("Index", SimpleNamespace(**{**vars(index), "place": place}))
        await cache.discard(NAME)
        assert not cache.has(NAME)
        assert not list(peers.find((0).to_bytes(32, "little")))
        assert stats.evicted == BLOCKS
        while len(peers) > 10:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert peers.changes == 2 * BLOCKS - 10
    assert max(steps) <= 4 * eviction._LISTED_AT_ONCE  # tasks take turns in any order


async def test_a_device_that_was_removed_may_come_again_before_its_blocks_are_forgotten(tmp_path: Path) -> None:
    stats = BlockStats()
    cache = DeviceCache(CacheDisk(tmp_path, stats), 1 << 40, stats)
    index = virtual_index(1000)
    for _ in range(2):
        fill(tmp_path, 1000)
        cache._unopened[NAME] = 0
        await cache.load(NAME, index)
        assert cache.open(NAME, index) is not None
        await cache.discard(NAME)
    fill(tmp_path, 1000)
    await cache.load(NAME, index)
    last = cache.open(NAME, index)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.list_peers)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert len(cache.peers) == 1000
    for block in (0, 1, 999):
        assert list(cache.peers.find(block.to_bytes(32, "little"))) == [(last, block)]


@pytest.mark.parametrize("removed", ["before its blocks are given up", "before its turn"])
async def test_a_device_that_is_removed_while_it_is_evicted_is_removed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: str
) -> None:
    stats = BlockStats()
    cache = DeviceCache(CacheDisk(tmp_path, stats), 1 << 40, stats)
    index = virtual_index(2)
    await cache.load(NAME, index)
    cached = cache.devices[NAME]
    cached.local.write(0, bytes(BLOCK), 1, NOW)
    cache.add_block(cached, 0, bytes(32), 1, NOW)
    await cache.measure([cached])
    gate = threading.Event()
    early = removed == "before its blocks are given up"
    step = LocalDevice.unmark if early else LocalDevice.punch

    def gated(self: LocalDevice, *arguments: Any) -> None:
        assert gate.wait(30)
        step(self, *arguments)

    monkeypatch.setattr(LocalDevice, step.__name__, gated)
    cache.limit = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(cache.make, 0, demand=False))
        await wait_all_tasks_blocked()
        async with cache._turns[NAME]:
            if early:
                await cache._remove(cached)
            gate.set()
            await eventually(lambda: stats.evicted == 1)
            if not early:
                await cache._remove(cached)
    assert not cache.has(NAME)
    assert not list(tmp_path.iterdir())
    assert stats.disk_errors == 0
