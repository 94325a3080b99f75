"""Blocks on local disk: what is read is what was written, or nothing."""

from __future__ import annotations

import hashlib
import io
import os
import random
from pathlib import Path

import pytest

from imagefs.blocks.local import LocalDevice
from imagefs.format.index import BLOCK, NOWHERE, Index, Pack, Place, write

CHANCE = random.Random(9)
BLOCKS = [CHANCE.randbytes(BLOCK), b"", CHANCE.randbytes(BLOCK), CHANCE.randbytes(5000)]
NOW = 1_800_000_000.0


def make_index() -> tuple[Index, str]:
    places = [
        Place(hashlib.sha256(data).digest(), 0, 0, len(data), len(data)) if data else Place(bytes(32), NOWHERE, 0, 0, 0)
        for data in BLOCKS
    ]
    out = io.BytesIO()
    write(places, [Pack(bytes(32), BLOCK)], 3 * BLOCK + 8192, out)
    return Index(out.getvalue()), hashlib.sha256(out.getvalue()).hexdigest()


@pytest.fixture
def device(tmp_path: Path) -> LocalDevice:
    index, name = make_index()
    return LocalDevice(tmp_path, name, index)


def reopened(device: LocalDevice) -> LocalDevice:
    device.close()
    index, name = make_index()
    return LocalDevice(device.path.parent, name, index)


def test_what_is_written_is_read_also_after_a_restart(device: LocalDevice) -> None:
    assert device.read(0, NOW) is None
    assert device.read(1, NOW) == b""
    for block in (0, 3):
        device.write(block, BLOCKS[block], NOW)
    device = reopened(device)
    assert [device.read(block, NOW) for block in (0, 2, 3)] == [BLOCKS[0], None, BLOCKS[3]]
    assert (device.present, device.complete) == (2, False)
    device.write(2, BLOCKS[2], NOW)
    assert device.complete
    data = device.path.read_bytes()
    assert data[: 2 * BLOCK] == BLOCKS[0] + bytes(BLOCK)
    assert data[3 * BLOCK :].rstrip(b"\0") == BLOCKS[3].rstrip(b"\0")


@pytest.mark.parametrize("where", ["data", "table"])
def test_a_flipped_byte_is_never_served(device: LocalDevice, where: str) -> None:
    device.write(0, BLOCKS[0], NOW)
    device.close()
    path = device.path.with_suffix(f".{where}")
    changed = bytearray(path.read_bytes())
    changed[64 + 3 if where == "table" else 777] ^= 1
    path.write_bytes(changed)
    index, name = make_index()
    device = LocalDevice(path.parent, name, index)
    assert device.read(0, NOW) is None
    assert device.present == 0
    device.write(0, BLOCKS[0], NOW)
    assert device.read(0, NOW) == BLOCKS[0]


@pytest.mark.parametrize("size", [0, 10, 64, 100])
def test_a_table_that_was_cut_short_is_begun_anew(device: LocalDevice, size: int) -> None:
    device.write(0, BLOCKS[0], NOW)
    device.close()
    os.truncate(device.path.with_suffix(".table"), size)
    index, name = make_index()
    device = LocalDevice(device.path.parent, name, index)
    assert device.present == 0
    assert device.read(0, NOW) is None


def test_forgetting_gives_room_back(device: LocalDevice) -> None:
    for block in (0, 2):
        device.write(block, BLOCKS[block], NOW + block)
    device.sync()
    before = device.path.stat().st_blocks
    assert [(when, block) for when, block, _ in device.used()] == [(NOW, 0), (NOW + 2, 2)]
    device.forget(0)
    device.forget(0)
    assert device.present == 1
    assert device.read(0, NOW) is None
    assert device.path.stat().st_blocks < before
    assert device.read(2, NOW + 9) == BLOCKS[2]
    assert [when for when, _, _ in device.used()] == [NOW + 9]


def test_removing_leaves_nothing(device: LocalDevice) -> None:
    device.write(0, BLOCKS[0], NOW)
    device.remove()
    assert list(device.path.parent.iterdir()) == []
