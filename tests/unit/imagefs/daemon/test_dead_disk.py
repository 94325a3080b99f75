"""A disk that is slow or does not answer: the daemon's thread never waits for it, and no caller waits for good."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from imagefs.blocks import cachefile, eviction
from imagefs.blocks.block_table import BlockTable
from imagefs.blocks.cachefile import LocalDevice
from imagefs.daemon import leftovers, worker
from imagefs.daemon.documents import Documents
from imagefs.daemon.helpers import Sweeper
from imagefs.daemon.liveness import LivenessWatch
from imagefs.daemon.metadata_cache import MetadataCache
from imagefs.daemon.mount_pool import MountPool
from imagefs.daemon.worker import DaemonBackend
from imagefs.settings import DaemonSettings
from stripefs.errors import ServiceDown
from stripefs.fuse.state_memory import CounterPage, MemoryJournal, make_memory
from tests.support.images.devices import FakeSource, eventually, make, noise, running


class Hanging:
    """Stands for a call that waits for a disk, until `answer` is set."""

    def __init__(self, call: Callable[..., object] = lambda *_: None) -> None:
        self.answer = threading.Event()
        self.called = threading.Event()
        self.answered = 0
        self._call = call

    def __call__(self, *arguments: object, **options: object) -> object:
        self.called.set()
        assert self.answer.wait(20)
        found = self._call(*arguments, **options)
        self.answered += 1
        return found


@pytest.fixture
def hanging() -> Iterator[Callable[..., Hanging]]:
    made: list[Hanging] = []

    def make_one(*arguments: Callable[..., object]) -> Hanging:
        made.append(Hanging(*arguments))
        return made[-1]

    yield make_one
    for one in made:
        one.answer.set()


async def test_other_tasks_run_while_the_table_of_a_device_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hanging: Callable[..., Hanging]
) -> None:
    made, table = make(noise(2)), hanging(BlockTable)
    monkeypatch.setattr(cachefile, "BlockTable", table)

    async def turn() -> None:
        for _ in range(1000):
            await trio.lowlevel.checkpoint()
        table.answer.set()

    async with running(tmp_path / "blocks") as blocks, trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        device = await blocks.open(made.digest, made.index, FakeSource(made))
        assert device.local is not None
        assert bytes(await device.read(0, device.size)) == made.content


async def test_two_who_open_one_device_share_its_table(tmp_path: Path) -> None:
    made = make(noise(2))
    async with running(tmp_path / "blocks") as blocks:
        found = []

        async def open_it() -> None:
            found.append(await blocks.open(made.digest, made.index, FakeSource(made)))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(open_it)
        assert found[0] is found[1] is found[2]
        assert found[0].users == 3
        assert len(blocks.cache.devices) == 1


async def test_a_device_whose_disk_hangs_is_read_through_and_taken_up_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MockClock, hanging: Callable[..., Hanging]
) -> None:
    made, other, opened = make(noise(2)), make(noise(2, seed=2)), []

    def open_it(*arguments: object) -> LocalDevice:
        opened.append(LocalDevice(*arguments))  # type: ignore[arg-type]
        return opened[-1]

    disk = hanging(open_it)
    async with running(tmp_path / "blocks") as blocks:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(eviction, "LocalDevice", disk)
            device = await blocks.open(made.digest, made.index, FakeSource(made))
            assert device.local is None
            assert bytes(await device.read(0, device.size)) == made.content
            assert blocks.snapshot()["disk_errors"] == 1
            disk.answer.set()
            await eventually(lambda: bool(opened) and opened[0].closed)  # it came too late
        second = await blocks.open(other.digest, other.index, FakeSource(other))
        assert second.local is not None
        await trio.sleep(100)  # the disk is tried again
        blocks.memory.clear()
        await device.read(0, 10)
        await eventually(lambda: device.local is not None)


def backend(folder: Path, memory: tuple[int, ...]) -> DaemonBackend:
    counters, *slots = memory
    journal = MemoryJournal(CounterPage(counters), (slots[0], slots[1]))
    settings = DaemonSettings(cache=str(folder / "cache"), runtime=str(folder / "run"), io_timeout=7.0)
    return DaemonBackend(SimpleNamespace(payload=settings.to_json(), journal=journal))  # type: ignore[arg-type]


@pytest.fixture
def memory() -> Iterator[tuple[int, ...]]:
    made = make_memory()
    yield tuple(made)
    for descriptor in made:
        os.close(descriptor)


async def test_a_daemon_whose_cache_does_not_answer_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MockClock, memory: tuple[int, ...],
    hanging: Callable[..., Hanging],
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "statvfs", hanging(os.statvfs))
    with pytest.raises(ServiceDown, match=r"opening the cache .*: no answer within 7 s"):
        await backend(tmp_path, memory).open()


async def test_a_cache_that_does_not_answer_is_not_taken_for_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MockClock, memory: tuple[int, ...],
    hanging: Callable[..., Hanging],
) -> None:  # fmt: skip
    made = backend(tmp_path, memory)
    jumps, clock.autojump_threshold = clock.autojump_threshold, math.inf
    await made.open()  # in a thread, by a disk that may be slow
    clock.autojump_threshold = jumps
    ended: list[int] = []
    monkeypatch.setattr(worker.os, "_exit", ended.append)
    monkeypatch.setattr(worker.logging, "shutdown", lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "is_dir", hanging())
        await made._need_cache()
    assert ended == []
    (tmp_path / "cache/blocks").rename(tmp_path / "elsewhere")
    await made._need_cache()
    assert ended == [1]
    made._host.blocks.close()


async def test_looks_at_a_disk_that_hangs_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MockClock, hanging: Callable[..., Hanging]
) -> None:
    settings = DaemonSettings(cache=str(tmp_path / "cache"), runtime=str(tmp_path / "run"))
    documents = Documents(MetadataCache(tmp_path), 5.0)
    disk = hanging()
    monkeypatch.setattr(os.path, "exists", disk)
    monkeypatch.setattr(leftovers, "find", disk)
    monkeypatch.setattr(MountPool, "_find", disk)
    for name in ("cached_index", "indexes", "evict"):
        monkeypatch.setattr(MetadataCache, name, disk)
    assert not await LivenessWatch(settings, None)._exists("/ready")  # type: ignore[arg-type]
    await Sweeper(settings).find([])
    assert await MountPool(list).of("d" * 64, "/metadata", []) is None
    assert await documents.cached_index("d" * 64) is None
    assert await documents.indexes() == []
    assert await documents.evict(0, ()) is None
    assert disk.called.is_set()
    assert not disk.answered
