"""Blocks on disk: within bounds, whatever the disk does, whenever the process dies; and when a device is complete."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from pathlib import Path

import pytest
import trio
import xxhash
from trio.testing import MockClock

from imagefs.blocks import store
from imagefs.blocks.cachefile import LocalDevice
from imagefs.blocks.store import BlockStore
from imagefs.format.index import BLOCK
from tests.support.caches import overwrite, refusing
from tests.support.images.devices import MIB, FakeSource, Made, eventually, make, noise, opened, running, settled


def on_disk(folder: Path) -> int:
    """Bytes of the data files; one that is evicted meanwhile counts nothing."""
    found = 0
    for path in folder.glob("*.data"):
        with contextlib.suppress(FileNotFoundError):
            found += path.stat().st_blocks * 512
    return found


# -- bounds ----------------------------------------------------------------------------------------------------------


async def test_the_limit_holds_while_many_read(tmp_path: Path) -> None:
    devices = [make(noise(20, seed=seed), per_pack=7) for seed in range(3)]
    source = FakeSource(*devices)
    limit = 12 * BLOCK
    async with running(tmp_path / "blocks", limit=limit, memory=2 * MIB) as blocks:

        async def reader(seed: int) -> None:
            chance = random.Random(seed)
            made = devices[seed % 3]
            device = await blocks.open(made.digest, made.index, source)
            for _ in range(40):
                offset, length = chance.randrange(device.size), chance.randrange(3 * BLOCK)
                assert bytes(await device.read(offset, length)) == made.content[offset : offset + length]
                assert on_disk(tmp_path / "blocks") <= limit + 4 * BLOCK  # and a batch that is being written
            device.close()

        async with trio.open_nursery() as nursery:
            for seed in range(6):
                nursery.start_soon(reader, seed)
        await eventually(lambda: blocks.memory.held == 0)
        stats = blocks.snapshot()
        assert stats["evicted"] > 0
        assert (stats["damaged"]["disk"], stats["disk_errors"]) == (0, 0)
        assert 0 < stats["used"] <= limit
        assert blocks.memory.used <= 2 * MIB
        await trio.sleep(0)
        assert on_disk(tmp_path / "blocks") == stats["used"]


async def read_and_settle(blocks: BlockStore, made: Made, *, close: bool = True) -> None:
    device = await blocks.open(made.digest, made.index, FakeSource(made))
    await device.read(0, device.size)
    await settled(device, blocks)
    if close:
        device.close()


async def test_what_nobody_has_open_goes_first_the_oldest_of_it_before(tmp_path: Path) -> None:
    """Also what an earlier process left behind."""
    left, closed, used, new = (make(noise(8, seed=seed)) for seed in range(4))
    folder = tmp_path / "blocks"
    async with running(folder) as blocks:
        await read_and_settle(blocks, left)
    age(folder, left, 1000)
    async with running(folder, limit=27 * BLOCK) as blocks:
        await read_and_settle(blocks, used, close=False)
        await read_and_settle(blocks, closed)
        assert blocks.snapshot()["evicted"] == 0
        device = await blocks.open(new.digest, new.index, FakeSource(new))
        report = await device.fetch(range(8), at_once=1)
        await settled(device, blocks)
        assert (report.full, device.present) == (False, 8)
        assert (await blocks.open(used.digest, used.index, FakeSource())).present == 8
        assert (await blocks.open(closed.digest, closed.index, FakeSource())).present == 8
        assert (await blocks.open(left.digest, left.index, FakeSource())).present < 8
        # Now everything is open: what is fetched ahead drives nothing out, what is read does.
        assert (await (await blocks.open(left.digest, left.index, FakeSource(left))).fetch(range(8))).full
        last = make(noise(4, seed=9))
        await read_and_settle(blocks, last, close=False)
        assert (await blocks.open(last.digest, last.index, FakeSource())).present == 4


def age(folder: Path, made: Made, seconds: int) -> None:
    local = LocalDevice(folder, made.digest, made.index.blocks, made.index.device_bytes)
    for block in range(made.index.blocks):
        checksum = local.table.checksum(block)
        if checksum is not None:
            local.table.add(block, checksum, os.stat(folder).st_mtime - seconds)
    local.write_rows(local.table.take_dirty())
    local.close()


async def test_what_waits_for_a_device_that_is_given_up_is_not_kept(tmp_path: Path) -> None:
    one, other, used = make(noise(2)), make(noise(1, seed=2)), make(noise(6, seed=3))
    async with opened(tmp_path, one) as (blocks, device):
        await device.read(0, 1)
        await read_and_settle(blocks, used)
    blocks = BlockStore(tmp_path / "blocks", limit=8 * BLOCK, memory=16 * MIB, io_timeout=1)
    await blocks.open(used.digest, used.index, FakeSource())
    for made, block in ((one, 1), (other, 0)):
        device = await blocks.open(made.digest, made.index, FakeSource(made))
        place = made.index.place(block)
        data = made.content[block * BLOCK :][:BLOCK]
        device.keep(block, place.digest, (data, xxhash.xxh3_64_intdigest(data)), False)
        if made is one:
            device.close()
    async with trio.open_nursery() as nursery:
        await nursery.start(blocks.run)
        await settled(device, blocks)
        assert device.present == 1
        assert not (tmp_path / "blocks" / f"{one.digest}.data").exists()
        assert blocks.stats.unkept == 1
        nursery.cancel_scope.cancel()


async def test_pinned_and_mounted_devices_get_no_holes(tmp_path: Path) -> None:
    pinned, mounted, plain, new = (make(noise(6, seed=seed)) for seed in range(4))
    async with running(tmp_path / "blocks", limit=20 * BLOCK) as blocks:
        for made in (pinned, mounted, plain):
            await read_and_settle(blocks, made, close=False)
            device = await blocks.open(made.digest, made.index, FakeSource())
            await eventually(lambda: device.complete)  # noqa: B023
        assert (await blocks.open(pinned.digest, pinned.index, FakeSource())).pin()
        descriptor = os.open(tmp_path / "blocks" / f"{mounted.digest}.data", os.O_RDONLY)
        device = await blocks.open(new.digest, new.index, FakeSource(new))
        assert not device.pin()
        await device.read(0, device.size)
        await settled(device, blocks)
        for made in (pinned, mounted):
            found = await blocks.open(made.digest, made.index, FakeSource())
            assert found.complete
            assert found.path.read_bytes() == made.content
        given_up = await blocks.open(plain.digest, plain.index, FakeSource(plain))
        assert not given_up.complete
        assert not given_up.path.with_suffix(".complete").exists()
        os.close(descriptor)
        (await blocks.open(pinned.digest, pinned.index, FakeSource())).unpin()
        again = make(noise(12, seed=7))
        await read_and_settle(blocks, again)
        assert not (await blocks.open(pinned.digest, pinned.index, FakeSource())).complete


# -- disks that fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_disk_that_takes_nothing_is_read_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock, number: int
) -> None:
    mock_clock.rate = 100
    made = make(noise(10))
    broken = True
    real = os.pwrite

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if broken and len(data) > 1000:
            raise OSError(number, os.strerror(number))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    async with opened(tmp_path, made, memory=MIB) as (blocks, device):
        for _ in range(3):
            assert bytes(await device.read(0, device.size)) == made.content
            await trio.sleep(2)
        assert device.present == 0
        stats = blocks.snapshot()
        assert stats["disk_errors"] > 0
        assert stats["unkept"] > 0
        assert stats["memory"]["used"] <= MIB
        broken = False
        await trio.sleep(20)
        await device.read(0, device.size)
        await settled(device, blocks)
        assert device.present > 0


async def test_a_device_that_cannot_be_made_is_read_through(tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.rate = 100
    made = make(noise(3))
    async with running(tmp_path / "blocks") as blocks:
        (tmp_path / "blocks" / f"{made.digest}.data").mkdir()
        device = await blocks.open(made.digest, made.index, FakeSource(made))
        assert bytes(await device.read(0, device.size)) == made.content
        assert (device.present, device.complete, device.pin()) == (0, False, False)
        assert blocks.snapshot()["disk_errors"] >= 1
        assert (await device.fetch(range(3))).full
        (tmp_path / "blocks" / f"{made.digest}.data").rmdir()
        await trio.sleep(10)
        await device.fetch(range(3))
        await eventually(lambda: device.complete)


@pytest.mark.parametrize("cut", [False, True])
async def test_a_disk_that_cannot_be_read_is_no_error_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    made = make(noise(3))
    async with running(tmp_path / "blocks") as blocks:
        await read_and_settle(blocks, made)
    async with opened(tmp_path, made) as (blocks, device):
        if cut:
            os.truncate(device.path, BLOCK)
        else:
            monkeypatch.setattr(os, "preadv", refusing(errno.EIO))
        assert bytes(await device.read(0, device.size)) == made.content
        assert blocks.snapshot()["disk_errors"] > 0


async def test_a_disk_that_has_to_be_waited_for_is_read_by_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(noise(3))
    async with running(tmp_path / "blocks") as blocks:
        await read_and_settle(blocks, made)
    monkeypatch.setattr(LocalDevice, "read_now", lambda *_: False)
    async with opened(tmp_path, made, FakeSource()) as (_, device):
        assert bytes(await device.read(0, device.size)) == made.content


# -- crashes ---------------------------------------------------------------------------------------------------------


async def test_room_of_blocks_whose_rows_a_crash_lost_comes_back(tmp_path: Path) -> None:
    made = make(noise(4))
    async with opened(tmp_path, made) as (blocks, device):
        await device.read(0, 2 * BLOCK)
        await settled(device, blocks)
    overwrite(device.path, 3 * BLOCK, made.content[3 * BLOCK :])
    async with opened(tmp_path, made, FakeSource()) as (blocks, device):
        assert device.present == 2
        await eventually(lambda: on_disk(tmp_path / "blocks") == 2 * BLOCK)
        assert bytes(await device.read(0, 2 * BLOCK)) == made.content[: 2 * BLOCK]
        assert blocks.snapshot()["damaged"]["disk"] == 0


async def test_a_limit_that_was_lowered_is_seen_to(tmp_path: Path, mock_clock: MockClock) -> None:
    """Documents count towards it."""
    mock_clock.rate = 200
    one, other = make(noise(8)), make(noise(8, seed=2))
    async with running(tmp_path / "blocks") as blocks:
        for made in (one, other):
            await read_and_settle(blocks, made)
    async with running(tmp_path / "blocks", limit=9 * BLOCK) as blocks:
        blocks.cache.reserved = 3 * BLOCK
        stats = blocks.snapshot()
        assert (stats["documents"], stats["used"]) == (3 * BLOCK, 19 * BLOCK)
        device = await blocks.open(one.digest, one.index, FakeSource(one))
        await eventually(lambda: on_disk(tmp_path / "blocks") <= 6 * BLOCK)
        assert device.present > 0
        assert bytes(await device.read(0, device.size)) == one.content


async def test_a_device_that_nobody_uses_is_given_up_whole(tmp_path: Path) -> None:
    left, closed, used, mounted = (make(noise(4, seed=seed)) for seed in range(4))
    folder = tmp_path / "blocks"
    async with running(folder) as blocks:
        await read_and_settle(blocks, left)
    async with running(folder) as blocks:
        await read_and_settle(blocks, used, close=False)
        for made in (closed, mounted):
            await read_and_settle(blocks, made)
        with (folder / f"{mounted.digest}.data").open("rb"):
            for made in (left, closed, used, mounted):
                await blocks.cache.discard(made.digest)
        await blocks.cache.discard("f" * 64)
        assert {path.stem for path in folder.glob("*.data")} == {used.digest, mounted.digest}
        stats = blocks.snapshot()
        assert (stats["evicted"], stats["evicted_bytes"]) == (8, 8 * BLOCK)
        assert stats["used"] == on_disk(folder)
        await read_and_settle(blocks, closed)
        assert (folder / f"{closed.digest}.data").exists()


# -- complete devices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("always", [False, True])
async def test_it_is_complete_only_once_it_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, always: bool
) -> None:
    """Blocks that the disk spoils while they are written are found then, and mended; not for ever."""
    made = make(noise(40))
    real = os.pwrite
    spoilt: list[int] = []

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if offset == 7 * BLOCK and len(data) == BLOCK and (always or not spoilt):
            spoilt.append(offset)
            return real(descriptor, bytes(len(data)), offset)
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    async with opened(tmp_path, made) as (blocks, device):
        await device.fetch(range(40))
        if always:
            for _ in range(10):
                assert bytes(await device.read(0, device.size)) == made.content
                await settled(device, blocks)
            assert not device.complete
            return
        await eventually(lambda: device.complete)
        assert device.path.read_bytes() == made.content
        assert blocks.snapshot()["damaged"]["disk"] == 1
        (stats,) = blocks.snapshot()["devices"]
        assert (stats["present"], stats["stored"], stats["complete"]) == (40, 40, True)


@pytest.mark.parametrize("blocks_of_it", [[], [b"", b""]])
async def test_a_device_without_blocks_is_complete_at_once(tmp_path: Path, blocks_of_it: list[bytes]) -> None:
    made = make(blocks_of_it)
    async with opened(tmp_path, made, FakeSource()) as (_, device):
        await eventually(lambda: device.complete)
        assert device.path.read_bytes() == made.content
        assert bytes(await device.read(0, 10)) == made.content[:10]


async def test_a_device_is_checked_while_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "QUIET", 1.0)
    made = make(noise(8))
    async with opened(tmp_path, made) as (_, device):
        await device.fetch(range(8))
        await eventually(lambda: device.present == 8)
        for _ in range(20):
            assert not device.complete
            await device.read(0, 10)
            await trio.sleep(0.02)
        await eventually(lambda: device.complete)
