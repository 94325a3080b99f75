"""Reading devices from files: exactly what was asked for, opened anew when the daemon behind them was replaced."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import trio

from imagefs.plane.devreader import FileDevices
from stripefs.errors import ServiceDown, StoreError

CONTENT = os.urandom(1 << 20)


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "device"
    path.write_bytes(CONTENT)
    return path


def _open_files(path: Path) -> int:
    links = (Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    return sum(os.path.realpath(link) == str(path) for link in links)


def _fail_reads(monkeypatch: pytest.MonkeyPatch, *errors: int) -> list[int]:
    """Let the next reads fail; the descriptors that were read from."""
    left, used = list(errors), []
    pread = os.pread

    def failing(descriptor: int, length: int, offset: int) -> bytes:
        used.append(descriptor)
        if left:
            number = left.pop(0)
            raise OSError(number, os.strerror(number))
        return pread(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", failing)
    return used


async def test_reads_at_once(device: Path, tmp_path: Path) -> None:
    (tmp_path / "second").write_bytes(b"second")
    devices = FileDevices([str(device), str(tmp_path / "second")], 10)
    wrong: list[int] = []

    async def check(number: int) -> None:
        at = number * 16_384 + 7
        if await devices.read(1, at, 9000) != CONTENT[at : at + 9000]:
            wrong.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(check, number)
    assert not wrong
    assert await devices.read(2, 1, 5) == b"econd"
    assert devices.snapshot() == {"reads_under_way": 0, "read_retries": 0, "devices_reopened": 0}
    devices.close()
    assert not _open_files(device)


async def test_a_read_cut_short_goes_on(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, min(length, 1000), offset))
    assert await FileDevices([str(device)], 10).read(1, 5, 4096) == CONTENT[5:4101]


async def test_a_device_that_ends_too_early_is_an_error(device: Path) -> None:
    with pytest.raises(StoreError, match=r"ends at 1048576, before 1048577 .*not the device of this image"):
        await FileDevices([str(device)], 10).read(1, len(CONTENT) - 4095, 4096)


@pytest.mark.parametrize("number", [errno.ENOTCONN, errno.ESTALE, errno.ECONNABORTED])
async def test_a_lost_device_is_opened_anew(device: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    devices = FileDevices([str(device)], 10)
    await devices.read(1, 0, 1)
    before = len(os.listdir("/proc/self/fd"))
    used = _fail_reads(monkeypatch, number)
    assert await devices.read(1, 3, 5) == CONTENT[3:8]
    assert len(used) == 2
    assert len(os.listdir("/proc/self/fd")) == before
    assert _open_files(device) == 1
    assert devices.snapshot()["devices_reopened"] == 1


async def test_a_path_that_comes_back_is_waited_for(device: Path) -> None:
    away = device.rename(device.with_suffix(".away"))
    devices = FileDevices([str(device)], 30)
    got: list[bytes] = []

    async def read() -> None:
        got.append(await devices.read(1, 0, 10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        while not devices.snapshot()["read_retries"]:
            await trio.sleep(0.01)
        away.rename(device)
    assert got == [CONTENT[:10]]


async def test_a_path_that_stays_away_fails_in_time(tmp_path: Path) -> None:
    with pytest.raises(ServiceDown, match=r"device .*/gone is not served: No such file.*imagefs status") as caught:
        await FileDevices([str(tmp_path / "gone")], 1.0).read(1, 0, 1)
    assert caught.value.errno == errno.EIO


async def test_the_daemons_own_error_is_final(device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = FileDevices([str(device)], 10)
    _fail_reads(monkeypatch, errno.EIO)
    with pytest.raises(StoreError, match=r"4096 bytes at 77 cannot be read: Input/output error.*log says why"):
        await devices.read(1, 77, 4096)
    assert await devices.read(1, 77, 4096) == CONTENT[77:4173]
    assert devices.snapshot() == {"reads_under_way": 0, "read_retries": 0, "devices_reopened": 0}
