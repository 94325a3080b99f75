"""Reading devices: every byte right, each block fetched once, from the nearest place that has it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from imagefs.blocks.store import BlockDevice, BlockStore
from imagefs.errors import BlockUnavailable, CacheInUse
from imagefs.format.index import BLOCK
from stripefs.errors import ConfigError
from tests.support.images.devices import MIB, FakeSource, eventually, make, noise, running, settled
from tests.unit.imagefs.blocks.opening import opened


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
    async with opened(tmp_path, made, FakeSource()) as (blocks, first):
        second = await blocks.open(made.digest, made.index, FakeSource(made))
        assert first is second
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
    made = make(noise(2))
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

        async with trio.open_nursery() as readers:
            readers.start_soon(read)
            await eventually(lambda: len(source.reads) == 2)
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
    with (folder / "lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        BlockStore(folder, limit=MIB, memory=MIB, io_timeout=1, lock=held.fileno()).close()
        with pytest.raises(CacheInUse):
            BlockStore(folder, limit=MIB, memory=MIB, io_timeout=1)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be kept"):
        BlockStore(tmp_path / "file", limit=MIB, memory=MIB, io_timeout=1)


def test_it_imports_nothing_heavy() -> None:
    code = (
        "import sys, imagefs.blocks.store, imagefs.blocks.source;"
        "assert not {'pyarrow', 'httpx', 'hdfs_native', 'pyfuse3', 'click', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
