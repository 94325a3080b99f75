"""A device that several stores have: where one fails, hangs or is damaged another one is asked, and then it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from trio.testing import MockClock

from imagefs.errors import BlockUnavailable
from imagefs.format.index import BLOCK
from stripefs.errors import NotFound, ServiceDown
from tests.support.images.devices import FakeSource, Made, make, noise
from tests.unit.imagefs.blocks.opening import opened


def broken(error: Exception) -> Callable[[int, bytes], bytes]:
    def fault(number: int, data: bytes) -> bytes:
        raise error

    return fault


FAULTS = {
    "down": broken(ServiceDown("away")),
    "missing": broken(NotFound("no such pack")),
    "damaged": lambda number, data: bytes(len(data)),
}


@pytest.fixture
def made() -> Made:
    return make(noise(12), per_pack=3)


@pytest.mark.parametrize("fault", list(FAULTS))
async def test_where_one_store_fails_another_one_is_asked(tmp_path: Path, made: Made, fault: str) -> None:
    bad, good = FakeSource(made, fault=FAULTS[fault]), FakeSource(made)
    async with opened(tmp_path, made, bad, good) as (blocks, device):
        assert bytes(await device.read(0, device.size)) == made.content
        assert bad.reads
        assert blocks.snapshot()["failures"] == 0


async def test_a_store_that_came_back_is_asked_again(tmp_path: Path, mock_clock: MockClock, made: Made) -> None:
    preferred, other = FakeSource(made, fault=FAULTS["down"]), FakeSource(made)
    async with opened(tmp_path, made, preferred, other) as (_, device):
        await device.read(0, BLOCK)
        asked = len(preferred.reads)
        await device.read(3 * BLOCK, BLOCK)
        assert len(preferred.reads) == asked  # it is left alone for a while
        preferred.fault = None
        mock_clock.jump(60)
        before = len(other.reads)
        await device.read(6 * BLOCK, BLOCK)
        assert (len(preferred.reads), len(other.reads)) == (asked + 1, before)


async def test_a_store_that_hangs_is_not_waited_for(tmp_path: Path, mock_clock: MockClock, made: Made) -> None:
    mock_clock.rate = 20
    hung, good = FakeSource(made), FakeSource(made)
    hung.gate.clear()
    try:
        async with opened(tmp_path, made, hung, good, io_timeout=60) as (_, device):
            assert bytes(await device.read(0, BLOCK)) == made.content[:BLOCK]
            assert bytes(await device.read(3 * BLOCK, BLOCK)) == made.content[3 * BLOCK : 4 * BLOCK]
            assert len(hung.reads) == 1
            hung.gate.set()
    finally:
        hung.gate.set()


async def test_where_no_store_has_it_the_error_is_told(tmp_path: Path, made: Made) -> None:
    sources = [FakeSource(made, fault=FAULTS["damaged"]) for _ in range(2)]
    async with opened(tmp_path, made, *sources) as (blocks, device):
        with pytest.raises(BlockUnavailable, match="other bytes"):
            await device.read(0, BLOCK)
        assert all(source.reads for source in sources)
        assert not blocks.fetcher


async def test_a_store_that_is_closed_is_asked_no_more(tmp_path: Path, made: Made) -> None:
    closed, other = FakeSource(made, fault=broken(AssertionError("it is closed"))), FakeSource(made)
    async with opened(tmp_path, made, closed, other) as (blocks, device):
        blocks.remove_source(closed)
        assert bytes(await device.read(0, device.size)) == made.content
        assert closed.reads == []
        device.close()
        device = await blocks.open(made.digest, made.index, closed)
        assert [one.source for one in device.upstreams] == [closed]
