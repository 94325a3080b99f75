"""Files of blocks on local disk: marks, and the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import xxhash

from imagefs.blocks.cachefile import LocalDevice
from imagefs.format.index import BLOCK
from stripefs.errors import StoreError
from tests.support.images.devices import noise

NAME = "ab" * 32
SIZE = 3 * BLOCK + 8192
BLOCKS = {0: noise(1)[0], 2: noise(1, seed=2)[0], 3: noise(1, seed=3)[0][:5000]}
NOW = 1_800_000_000.0


def opened(folder: Path) -> LocalDevice:
    return LocalDevice(folder, NAME, 4, SIZE)


def write(device: LocalDevice, block: int, now: float = NOW) -> None:
    checksum = xxhash.xxh3_64_intdigest(BLOCKS[block])
    device.write(block, BLOCKS[block], checksum, now)
    device.table.settle(block, checksum, now)


def read(device: LocalDevice, block: int) -> bytes:
    buffer = bytearray(len(BLOCKS[block]))
    device.read(block * BLOCK, buffer)
    return bytes(buffer)


def is_marked(device: LocalDevice) -> bool:
    return device.marked


def test_one_is_found_without_its_index(tmp_path: Path) -> None:
    device = opened(tmp_path)
    write(device, 2)
    device.close()
    found = LocalDevice.found(tmp_path, NAME)
    assert found is not None
    assert (found.blocks, found.table.present, read(found, 2)) == (4, 1, BLOCKS[2])
    found.close()
    os.truncate(found.path, 100 * BLOCK)
    assert LocalDevice.found(tmp_path, NAME) is None
    with pytest.raises(OSError, match="No such file"):
        LocalDevice.found(tmp_path, "cd" * 32)


def test_a_mark_holds_as_long_as_the_data_is_the_same(tmp_path: Path) -> None:
    device = opened(tmp_path)
    for block in BLOCKS:
        write(device, block)
    assert not is_marked(device)
    assert device.mark(device.sync())
    device.close()
    device = opened(tmp_path)
    assert is_marked(device)
    device.clear(2)
    assert not is_marked(device)
    device.close()
    device = opened(tmp_path)
    assert is_marked(device)  # it was cleared in memory only
    stamp = device.sync()
    os.utime(device.path)
    assert not device.mark(stamp)
    device.close()
    device = opened(tmp_path)
    assert not is_marked(device)
    assert not (tmp_path / f"{NAME}.complete").exists()
    assert device.mark(device.sync())
    device.unmark()
    device.unmark()
    device.close()
    assert not opened(tmp_path).marked


def test_removing_leaves_nothing(tmp_path: Path) -> None:
    device = opened(tmp_path)
    write(device, 0)
    device.mark(device.sync())
    device.remove()
    assert device.closed
    other = opened(tmp_path)
    assert other.table.present == 0
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".data", ".table"]
    other.remove()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError, match="closed"):
        device.read(0, bytearray(1))
