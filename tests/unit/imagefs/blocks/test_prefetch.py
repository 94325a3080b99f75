"""Fetching ahead: in order, in ranges, several at once, never before a reader, and at its rate."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from imagefs.blocks import source as arrival
from imagefs.errors import BlockUnavailable
from imagefs.format.index import BLOCK, BlockLocation, Pack
from stripefs.errors import Abandoned
from tests.support.images.devices import MIB, FakeSource, eventually, make, noise, running, settled
from tests.unit.imagefs.blocks.opening import opened


class Held(FakeSource):
    """Lets reads through one by one, as many as `release` was given."""

    def __init__(self, *made: object) -> None:
        super().__init__(*made)  # type: ignore[arg-type]
        self.turns = threading.Semaphore(0)

    def read(self, pack: Pack, offset: int, length: int) -> bytes:
        data = super().read(pack, offset, length)
        assert self.turns.acquire(timeout=30)
        return data

    def release(self, count: int) -> None:
        self.turns.release(count)


async def test_a_whole_device_comes_in_order_and_in_ranges(tmp_path: Path) -> None:
    made = make([*noise(40), b"", b"", *noise(6, seed=2), b"end"], per_pack=20)
    source = FakeSource(made)
    async with opened(tmp_path, made, source, memory=64 * MIB) as (blocks, device):
        report = await device.fetch(range(-3, 1000), at_once=1)
        assert (report.blocks, report.bytes, report.stored) == (47, 46 * BLOCK + 3, 46 * BLOCK + 3)
        assert (report.skipped, report.failed, report.copied, report.full) == (0, 0, 0, False)
        assert len(source.reads) < 20
        first = source.reads[: [offset for offset, _ in source.reads].index(0, 1)]  # those of the first pack
        assert [offset for offset, _ in first] == sorted(offset for offset, _ in first)
        await eventually(lambda: device.complete)
        assert device.path.read_bytes() == made.content
        report = await device.fetch(range(49))
        assert (report.blocks, report.skipped) == (0, 47)
        assert blocks.snapshot()["waits"] == 0


async def test_the_given_order_is_kept(tmp_path: Path) -> None:
    made = make(noise(200))
    source = FakeSource(made)
    order = list(range(0, 200, 2))
    random.Random(1).shuffle(order)
    async with opened(tmp_path, made, source, memory=64 * MIB) as (_, device):
        await device.fetch(order, at_once=1)
        assert [offset // BLOCK for offset, _ in source.reads] == order


async def test_no_more_at_once_than_asked(tmp_path: Path) -> None:
    made = make(noise(64))
    source = FakeSource(made)
    source.gate.clear()
    async with opened(tmp_path, made, source, memory=64 * MIB) as (blocks, device):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: device.fetch(range(64), at_once=2))
            await eventually(lambda: len(source.reads) == 2)
            await trio.sleep(0.1)
            assert len(source.reads) == 2
            source.gate.set()
        assert source.most == 2
        await settled(device, blocks)
        assert device.present == 64


async def test_small_requests_are_not_worth_being_many(tmp_path: Path) -> None:
    made = make(noise(200))
    source = FakeSource(made)
    async with opened(tmp_path, made, source, memory=64 * MIB) as (_, device):
        await device.fetch(range(200), at_once=8)
        assert min(length for _, length in source.reads[:-8]) > BLOCK  # which an eighth of the first window would be
        assert max(length for _, length in source.reads) <= 1 << 20


async def test_a_range_leaves_the_way_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(noise(4))
    source, go, unpack = FakeSource(made), threading.Event(), arrival.decode

    def unpack_later(codec: str, stored: memoryview, place: BlockLocation) -> bytes | None:
        assert go.wait(30)
        return unpack(codec, stored, place)

    monkeypatch.setattr(arrival, "decode", unpack_later)
    async with opened(tmp_path, made, source, memory=64 * MIB) as (blocks, device):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: device.fetch(range(4), at_once=1))
            await eventually(lambda: bool(source.reads) and not device.upstream.link.in_flight)
            assert device.upstream.link.arrived == 4 * BLOCK
            assert not blocks.stats.ahead.blocks
            go.set()
        assert blocks.stats.ahead.blocks == 4
        assert device.upstream.link.arrived == 4 * BLOCK


async def test_a_reader_is_served_first(tmp_path: Path) -> None:
    made = make(noise(60))
    source = Held(made)
    async with opened(tmp_path, made, source, memory=64 * MIB) as (blocks, device):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: device.fetch(range(50), at_once=2))
            await eventually(lambda: len(source.reads) == 2)
            nursery.start_soon(device.read, 55 * BLOCK, 10)  # goes at once, though the way is full
            await eventually(lambda: len(source.reads) == 3)
            assert source.reads[-1] == (55 * BLOCK, BLOCK)
            done = blocks.stats.ahead
            while blocks.stats.demand.blocks == 0:
                # After any of the three ended, nothing else may begin before the reader has its block.
                assert len(source.reads) == 3
                source.release(1)
                before = done.ranges
                await eventually(lambda: done.ranges > before or blocks.stats.demand.blocks > 0)  # noqa: B023
            source.release(1000)
        assert device.present + blocks.memory.held // BLOCK >= 50
        stats = blocks.snapshot()["fetched"]
        assert (stats["demand"]["blocks"], stats["ahead"]["blocks"]) == (1, 50)


async def test_what_a_reader_wants_is_joined_or_skipped(tmp_path: Path) -> None:
    made = make(noise(40))
    source = Held(made)
    async with opened(tmp_path, made, source, memory=64 * MIB) as (_, device):
        reports = []
        got = []

        async def fetch() -> None:
            reports.append(await device.fetch(range(40), at_once=2))

        async def read(block: int) -> None:
            got.append(bytes(await device.read(block * BLOCK, BLOCK)) == made.content[block * BLOCK :][:BLOCK])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            await eventually(lambda: len(source.reads) == 2)
            nursery.start_soon(read, 0)  # under way
            nursery.start_soon(read, 35)  # waits for its turn
            await eventually(lambda: len(source.reads) == 3)
            source.release(1000)
        assert got == [True, True]
        assert (reports[0].blocks, reports[0].skipped, reports[0].failed) == (39, 1, 0)
        assert sum(length for _, length in source.reads) == 40 * BLOCK


async def test_what_cannot_be_had_is_counted(tmp_path: Path) -> None:
    made = make(noise(30))
    bad = made.content[7 * BLOCK :][:20]
    source = FakeSource(made, fault=lambda _, data: data.replace(bad, bytes(20)))
    async with opened(tmp_path, made, source, memory=64 * MIB) as (blocks, device):
        report = await device.fetch(range(30))
        assert (report.blocks, report.failed) == (29, 1)
        await settled(device, blocks)
        assert device.present == 29
        with pytest.raises(BlockUnavailable, match="block 7 "):
            await device.read(0, device.size)
        assert bytes(await device.read(8 * BLOCK, BLOCK)) == made.content[8 * BLOCK : 9 * BLOCK]


async def test_the_rate_is_kept(tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.rate = 20
    made = make(noise(64))
    async with opened(tmp_path, made, memory=64 * MIB) as (_, device):
        report = await device.fetch(range(64), at_once=2, rate=2 * MIB)
        assert report.blocks == 64
        assert report.seconds >= 3.5  # 8 MiB, but for what goes at once; on the test's own clock
        assert max(length for _, length in device.upstream.source.reads) <= 2 * BLOCK  # type: ignore[attr-defined]


async def test_a_block_in_memory_is_kept_without_a_store(tmp_path: Path) -> None:
    """As after a disk that did not take it."""
    made = make(noise(1))
    async with opened(tmp_path, made, FakeSource()) as (blocks, device):
        blocks.memory.add(made.index.place(0).digest, made.content)
        assert (await device.fetch([0])).failed == 0
        await settled(device, blocks)
        assert device.present == 1


async def test_without_a_disk_nothing_is_fetched_ahead(tmp_path: Path) -> None:
    made = make(noise(30))
    source = FakeSource(made)
    async with opened(tmp_path, made, source, limit=0) as (_, device):
        report = await device.fetch(range(30))
        assert (report.blocks, report.full) == (0, True)
        assert bytes(await device.read(0, MIB)) == made.content[:MIB]


async def test_when_the_end_comes_it_ends(tmp_path: Path) -> None:
    made = make(noise(30))
    source = FakeSource(made)
    source.gate.clear()
    raised = []
    async with trio.open_nursery() as nursery, running(tmp_path / "blocks") as blocks:
        device = await blocks.open(made.digest, made.index, source)

        async def fetch() -> None:
            with pytest.raises(Abandoned) as caught:
                await device.fetch(range(30), at_once=2)
            raised.append(caught.value)

        nursery.start_soon(fetch)
        await eventually(lambda: len(source.reads) == 2)
    source.gate.set()
    assert raised
