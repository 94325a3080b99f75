"""Snapshots that a host does not mount for a while, because a block of them could not be had."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from imagefs.daemon.shared_mounts import SharedMounts
from imagefs.errors import BlockUnavailable, DamagedBlock, DamagedObject
from stripefs.errors import NotFound, ServiceDown, StripefsError
from tests.unit.imagefs.daemon.fake_host import FakeHost


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[SharedMounts]:
    async with trio.open_nursery() as nursery:
        shares = SharedMounts(FakeHost(), folder)
        await nursery.start(shares.run)
        yield shares
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("cause", [DamagedObject("other bytes"), NotFound("no such pack")])
async def test_a_device_whose_block_is_damaged_or_gone(
    cause: StripefsError, mock_clock: MockClock, tmp_path: Path
) -> None:
    error = BlockUnavailable("block 1")
    error.__cause__ = cause
    async with running(tmp_path) as shares:
        shares.failed("b" * 64, error)
        with pytest.raises(DamagedBlock, match="was damaged or gone"):
            shares.check_undamaged("c" * 64, ["a" * 64, "b" * 64])
        shares.check_undamaged("c" * 64, ["a" * 64])
        mock_clock.jump(599)
        with pytest.raises(DamagedBlock):
            shares.check_undamaged("c" * 64, ["b" * 64])
        mock_clock.jump(2)
        shares.check_undamaged("c" * 64, ["b" * 64])
        while not list(tmp_path.iterdir()):
            await trio.lowlevel.checkpoint()


async def test_the_next_worker_knows_of_damaged_devices(mock_clock: MockClock, tmp_path: Path) -> None:
    now = time.time()
    for name, age in (("a" * 64, 300.0), ("b" * 64, 700.0)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (now - age, now - age))
    async with running(tmp_path) as shares:
        with pytest.raises(DamagedBlock):
            shares.check_undamaged("c" * 64, ["a" * 64])
        shares.check_undamaged("c" * 64, ["b" * 64])
        mock_clock.jump(301)
        shares.check_undamaged("c" * 64, ["a" * 64])
    assert [path.name for path in tmp_path.iterdir()] == ["a" * 64]


async def test_a_store_that_is_away_says_nothing_of_its_blocks(tmp_path: Path) -> None:
    error = BlockUnavailable("block 1")
    error.__cause__ = ServiceDown("away")
    async with running(tmp_path) as shares:
        shares.failed("b" * 64, error)
        shares.check_undamaged("c" * 64, ["b" * 64])
