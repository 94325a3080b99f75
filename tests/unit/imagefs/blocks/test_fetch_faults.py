"""Faults of stores and disks: readers get the right bytes, or EIO."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from imagefs.blocks.store import BlockStore
from imagefs.errors import BlockUnavailable
from imagefs.format.index import BLOCK
from stripefs.errors import HostFailed, NotFound, PermissionDenied, ServiceDown, StaleVersion, StoreError
from tests.support.images.devices import FakeSource, Made, eventually, make, noise, running, settled
from tests.unit.imagefs.blocks.opening import opened

TEXT = b"all work and no play " * 6000


class Failing:
    """Raises `error` the first `times` times."""

    def __init__(self, error: BaseException, times: int) -> None:
        self.error = error
        self.times = times

    def __call__(self, number: int, data: bytes) -> bytes:
        if number < self.times:
            raise self.error
        return data


async def read_all(blocks: BlockStore, made: Made, source: FakeSource) -> bytes:
    return bytes(await (await blocks.open(made.digest, made.index, source)).read(0, len(made.content)))


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("error", [ServiceDown("away"), HostFailed("silent")])
async def test_a_store_that_comes_back_in_time_costs_time_only(
    tmp_path: Path, mock_clock: MockClock, error: Exception, ahead: bool
) -> None:
    mock_clock.rate = 200
    made = make(noise(3))
    source = FakeSource(made, fault=Failing(error, 12))
    async with running(tmp_path / "blocks", io_timeout=600) as blocks:
        if ahead:
            device = await blocks.open(made.digest, made.index, source)
            assert (await device.fetch(range(3))).failed == 0
        assert await read_all(blocks, made, source) == made.content
        assert blocks.snapshot()["retries"] == 12


async def test_a_store_that_stays_away_is_an_error_in_time(tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.rate = 10  # so that the last of its tries is over before the time is up, also on a busy machine
    made = make(noise(3))
    source = FakeSource(made, fault=Failing(ServiceDown("out of reach"), 10**9))
    async with running(tmp_path / "blocks", io_timeout=20) as blocks:
        with pytest.raises(BlockUnavailable, match=r"block 0 of device .* out of reach") as caught:
            await read_all(blocks, made, source)
        assert caught.value.errno == errno.EIO
        assert next(iter(made.packs)).hex() in str(caught.value)
        source.fault = None
        assert await read_all(blocks, made, source) == made.content


async def test_a_store_that_never_answers_is_an_error_in_time(tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.rate = 100
    made = make(noise(3))
    source = FakeSource(made)
    source.gate.clear()
    async with running(tmp_path / "blocks", io_timeout=20) as blocks:
        with pytest.raises(BlockUnavailable, match="no answer within 20 s"):
            await read_all(blocks, made, source)
        source.gate.set()
        assert await read_all(blocks, made, source) == made.content


async def test_who_comes_later_has_the_whole_time(tmp_path: Path, mock_clock: MockClock) -> None:
    mock_clock.rate = 100
    made = make(noise(3))
    source = FakeSource(made)
    source.gate.clear()
    async with running(tmp_path / "blocks", io_timeout=20) as blocks:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, blocks, made, source)
            await trio.sleep(15)
            nursery.start_soon(read_all, blocks, made, source)
            await trio.sleep(15)
            source.gate.set()
        assert len(source.reads) == 1


@pytest.mark.parametrize(
    "error",
    [NotFound("no such pack"), PermissionDenied("no"), StaleVersion("changed"), RuntimeError("a bug"), SystemExit()],
)
async def test_what_does_not_pass_is_tried_three_times(
    tmp_path: Path, mock_clock: MockClock, error: BaseException
) -> None:
    mock_clock.rate = 50
    made = make(noise(3))
    async with running(tmp_path / "blocks") as blocks:
        source = FakeSource(made, fault=Failing(error, 2))
        assert await read_all(blocks, made, source) == made.content
    async with running(tmp_path / "others") as blocks:
        source = FakeSource(made, fault=Failing(error, 10**9))
        with pytest.raises(BlockUnavailable) as caught:
            await read_all(blocks, made, source)
        assert caught.value.errno == errno.EIO
        assert isinstance(caught.value.__cause__, type(error) if isinstance(error, StoreError) else Exception)
        assert len(source.reads) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], id="flipped"),
        pytest.param(lambda data: data[:-1], id="shorter"),
        pytest.param(lambda data: data + b"!", id="longer"),
        pytest.param(lambda data: b"", id="nothing"),
    ],
)
@pytest.mark.parametrize("block", [TEXT, noise(1)[0]])
async def test_what_always_arrives_wrong_is_an_error(
    tmp_path: Path, wrong: Callable[[bytes], bytes], block: bytes
) -> None:
    made = make([block])
    source = FakeSource(made, fault=lambda _, data: wrong(data))
    async with running(tmp_path / "blocks") as blocks:
        with pytest.raises(BlockUnavailable, match="holds other bytes than the image says") as caught:
            await read_all(blocks, made, source)
        assert caught.value.errno == errno.EIO
        assert len(source.reads) == 3
        stats = blocks.snapshot()
        assert (stats["damaged"]["arrival"], stats["failures"]) == (3, 1)
        assert not blocks.fetcher
        assert blocks.memory.in_flight == 0
        device = await blocks.open(made.digest, made.index, source)
        await settled(device, blocks)
        assert device.present == 0


def overwrite(data: Path, piece: bytes, *places: int) -> None:
    with data.open("r+b") as file:
        for place in places:
            file.seek(place)
            file.write(piece)


def blank_without_mark(data: Path) -> None:
    overwrite(data, bytes(3 * BLOCK), 0)
    data.with_suffix(".complete").unlink()


def garbage_table(data: Path) -> None:
    table = data.with_suffix(".table")
    table.write_bytes(random.Random(1).randbytes(table.stat().st_size))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: overwrite(data, b"\0\0\0", 2 * BLOCK + 5), id="flip"),
        pytest.param(lambda data: overwrite(data, b"garbage", 5 * BLOCK + 1000, 6 * BLOCK + 1000), id="garbage holes"),
        pytest.param(blank_without_mark, id="zeros without mark"),
        pytest.param(lambda data: os.truncate(data, 3 * BLOCK), id="cut"),
        pytest.param(Path.unlink, id="delete data"),
        pytest.param(lambda data: data.with_suffix(".table").unlink(), id="delete table"),
        pytest.param(garbage_table, id="garbage table"),
    ],
)
async def test_a_damaged_complete_device_is_not_believed(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    made = make([*noise(5), b"", b"short", b"tail"])
    source = FakeSource(made)
    async with opened(tmp_path, made, source) as (_, device):
        await device.fetch(range(8))
        await eventually(lambda: device.complete)
    data = device.path
    damage(data)
    async with opened(tmp_path, made, source) as (_, device):
        assert not device.complete
        assert bytes(await device.read(0, device.size)) == made.content
        await eventually(lambda: device.complete)
        assert data.read_bytes() == made.content
