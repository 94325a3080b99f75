"""When a device counts as being here as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from imagefs.blocks import store
from imagefs.format.index import BLOCK
from tests.support.images.devices import FakeSource, eventually, make, noise, running, settled
from tests.unit.imagefs.blocks.opening import opened


async def test_it_is_complete_only_once_it_was_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that the disk spoils while they are written are found then, and mended."""
    made = make(noise(40))
    real = os.pwrite
    spoilt: list[int] = []

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if offset == 7 * BLOCK and not spoilt:
            spoilt.append(offset)
            return real(descriptor, bytes(len(data)), offset)
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    async with opened(tmp_path, made) as (blocks, device):
        await device.fetch(range(40))
        await eventually(lambda: device.complete)
        assert device.path.read_bytes() == made.content
        assert blocks.snapshot()["damaged"]["disk"] == 1
        (stats,) = blocks.snapshot()["devices"]
        assert (stats["present"], stats["stored"], stats["complete"]) == (40, 40, True)


async def test_a_disk_that_spoils_everything_is_not_checked_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(noise(3))
    real = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda descriptor, data, offset: real(descriptor, bytes(len(data)), offset)
        if len(data) == BLOCK else real(descriptor, data, offset),
    )  # fmt: skip
    async with running(tmp_path / "blocks") as blocks:
        source = FakeSource(made)
        device = await blocks.open(made.digest, made.index, source)
        for _ in range(10):
            assert bytes(await device.read(0, device.size)) == made.content
            await settled(device, blocks)
        assert not device.complete


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
