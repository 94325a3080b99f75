"""Reading devices and fetching ahead: every byte right, each block fetched once, in order, never before a reader."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from imagefs.blocks import source as arrival
from imagefs.blocks.store import BlockDevice, BlockStore
from imagefs.errors import BlockUnavailable, CacheInUse
from imagefs.format.index import BLOCK, BlockLocation, Pack
from stripefs.errors import Abandoned, ConfigError
from tests.support.images.devices import MIB, FakeSource, eventually, make, noise, opened, running, settled


async def test_neighbours_are_one_read_and_each_block_is_fetched_once(tmp_path: Path) -> None:
    made = make(noise(10))
    source = FakeSource(made)
    async with opened(tmp_path, made, source) as (blocks, device):
        await device.read(BLOCK - 10, 2 * BLOCK)
        assert source.reads == [(0, 3 * BLOCK)]
        await device.read(0, 10 * BLOCK)
        assert sorted(source.reads[1:]) == [(3 * BLOCK, 7 * BLOCK)]
        await device.read(0, 10 * BLOCK)
        assert len(source.reads) == 2
        stats = blocks.snapshot()
        assert stats["fetched"]["demand"] == {
            "ranges": 2, "blocks": 10, "bytes": 10 * BLOCK, "stored": 10 * BLOCK,
        }  # fmt: skip
        assert (stats["waits"], stats["in_flight"], stats["retries"]) == (2, 0, 0)


async def test_readers_share_what_is_under_way(tmp_path: Path) -> None:
    """Also across devices, and where one device has the same block twice."""
    same = noise(4)
    one, other = make(same), make([*noise(2, seed=5), *same, same[0]])
    source = FakeSource(one, other)
    source.gate.clear()
    async with opened(tmp_path, one, source) as (blocks, first):
        second = await blocks.open(other.digest, other.index, source)
        got: list[bytes] = []

        async def read(device: BlockDevice, offset: int, length: int) -> None:
            got.append(bytes(await device.read(offset, length)))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(read, first, 0, 4 * BLOCK)
            await eventually(lambda: len(source.reads) == 1)
            nursery.start_soon(read, first, 5, 10)
            nursery.start_soon(read, second, 2 * BLOCK, 5 * BLOCK)
            await trio.sleep(0.05)
            source.gate.set()
        assert source.reads == [(0, 4 * BLOCK)]
        assert all(data in one.content or data in other.content for data in got)
        assert blocks.snapshot()["fetched"]["demand"]["blocks"] == 4
        await settled(second, blocks)
        assert (first.present, second.present) == (4, 5)


async def test_blocks_of_other_devices_are_reused(tmp_path: Path) -> None:
    shared = noise(6)
    old, new = make(shared), make([*noise(2, seed=6), *shared[1:]])
    source = FakeSource(old, new)
    async with opened(tmp_path, old, source) as (blocks, device):
        await device.read(0, device.size)
        await settled(device, blocks)
        device.close()
    source.reads.clear()
    async with running(tmp_path / "blocks") as blocks:
        await blocks.offer(old.digest, old.index)
        device = await blocks.open(new.digest, new.index, source)
        assert bytes(await device.read(0, device.size)) == new.content
        assert source.reads == [(0, 2 * BLOCK)]
        assert blocks.snapshot()["hits"]["peer"] == 5
        report = await (await blocks.open(old.digest, old.index, FakeSource())).fetch(range(6))
        assert (report.skipped, report.blocks) == (6, 0)


async def test_opening_twice_is_the_same_device(tmp_path: Path) -> None:
    made = make(noise(2))
    async with running(tmp_path / "blocks") as blocks:
        found: list[BlockDevice] = []

        async def open_it() -> None:
            found.append(await blocks.open(made.digest, made.index, FakeSource(made)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_it)
            nursery.start_soon(open_it)
        first, second = found
        assert first is second
        assert (first.users, len(blocks.cache.devices)) == (2, 1)
        assert bytes(await first.read(0, 10)) == made.content[:10]
        assert len(blocks.snapshot()["devices"]) == 1
        first.close()
        assert bytes(await second.read(BLOCK, 10)) == made.content[BLOCK : BLOCK + 10]
        second.close()
        assert blocks.snapshot()["devices"] == []
        assert await blocks.open(made.digest, made.index, FakeSource()) is first


@pytest.mark.parametrize("ahead", [False, True])
async def test_who_gives_up_leaves_nothing_stuck(tmp_path: Path, ahead: bool) -> None:
    made = make(noise(8))
    source = FakeSource(made)
    source.gate.clear()
    async with opened(tmp_path, made, source) as (blocks, device):
        with trio.move_on_after(0.05) as scope:
            await (device.fetch(range(4)) if ahead else device.read(0, 4 * BLOCK))
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(device.read, 2 * BLOCK, 4 * BLOCK)
            await trio.sleep(0.01)
            source.gate.set()
        await eventually(lambda: blocks.snapshot()["in_flight"] == 0)
        assert bytes(await device.read(0, device.size)) == made.content
        assert sum(length for _, length in source.reads) == 8 * BLOCK


async def test_before_and_after_it_runs_nothing_is_fetched(tmp_path: Path) -> None:
    made = make(noise(4))
    source = FakeSource(made)
    blocks = BlockStore(tmp_path / "blocks", limit=1 << 30, memory=16 * MIB, io_timeout=10)
    device = await blocks.open(made.digest, made.index, source)
    with pytest.raises(ValueError, match="bytes at"):
        await device.read(-1, 10)
    with pytest.raises(BlockUnavailable, match="not running"):
        await device.read(0, 1)
    async with trio.open_nursery() as nursery:
        await nursery.start(blocks.run)
        assert bytes(await device.read(0, 1)) == made.content[:1]
        source.gate.clear()
        failed: list[BlockUnavailable] = []

        async def read() -> None:
            try:
                await device.read(BLOCK, 1)
            except BlockUnavailable as error:
                failed.append(error)

        async def fetch() -> None:
            with pytest.raises(Abandoned):
                await device.fetch(range(2, 4))

        async with trio.open_nursery() as readers:
            readers.start_soon(read)
            await eventually(lambda: len(source.reads) == 2)
            readers.start_soon(fetch)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert failed[0].errno == errno.EIO
    source.gate.set()
    with pytest.raises(BlockUnavailable):
        await device.read(BLOCK, 1)


async def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "blocks"
    blocks = BlockStore(folder, limit=MIB, memory=MIB, io_timeout=1)
    with pytest.raises(CacheInUse, match=f"process {os.getpid()}") as caught:
        BlockStore(folder, limit=MIB, memory=MIB, io_timeout=1)
    assert caught.value.errno == errno.EBUSY
    blocks.close()
    BlockStore(folder, limit=MIB, memory=MIB, io_timeout=1).close()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be kept"):
        BlockStore(tmp_path / "file", limit=MIB, memory=MIB, io_timeout=1)


def test_it_imports_nothing_heavy() -> None:
    code = (
        "import sys, imagefs.blocks.store, imagefs.blocks.source;"
        "assert not {'pyarrow', 'httpx', 'hdfs_native', 'pyfuse3', 'click', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- fetching ahead ----------------------------------------------------------------------------------------------------


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
