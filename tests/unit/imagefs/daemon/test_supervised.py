"""An error that nobody expected, and a disk that does not answer: each ends or holds up no task but its own."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock, call

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from imagefs.blocks import eviction, store
from imagefs.blocks.cachefile import LocalDevice
from imagefs.blocks.eviction import DeviceCache
from imagefs.blocks.fetcher import Fetcher
from imagefs.blocks.store import BlockStore
from imagefs.blocks.writeback import WriteBack
from imagefs.daemon import cleanup, liveness, processes, shared_mounts, worker
from imagefs.daemon.devices import OpenDevices
from imagefs.daemon.documents import CacheUpkeep, Documents
from imagefs.daemon.helpers import Sweeper, TraceMaker
from imagefs.daemon.leases import Leases
from imagefs.daemon.liveness import LivenessWatch
from imagefs.daemon.metadata_cache import MetadataCache
from imagefs.daemon.mount_pool import MountPool
from imagefs.daemon.protocol import AttachRequest, SnapshotUse
from imagefs.daemon.record_and_replay import Sessions
from imagefs.daemon.shared_mounts import SharedMounts
from imagefs.daemon.state import Attachment, DeviceUse
from imagefs.daemon.worker import DaemonBackend
from imagefs.errors import BlockUnavailable
from imagefs.format.index import BLOCK
from imagefs.settings import DaemonSettings
from stripefs.errors import ServiceDown
from stripefs.fuse.state_memory import MemoryJournal
from stripefs.settings import StoreSettings
from tests.support.images.devices import FakeSource, eventually, make, noise, opened, running, settled
from tests.unit.imagefs.daemon.fake_host import FakeHost, attached, attachment, running_host


class Fails:
    """Stands for a task: raises once, then notes that it runs again and goes on."""

    def __init__(self) -> None:
        self.runs = 0
        self.again = trio.Event()

    async def __call__(self, *_: object) -> None:
        self.runs += 1
        if self.runs == 1:
            raise RuntimeError("injected")
        self.again.set()
        await trio.sleep_forever()


LOOPS = [
    (Sweeper, "run"),
    (MountPool, "tidy"),
    (LivenessWatch, "_look_at_mounts"),
    (SharedMounts, "_look"),
    (CacheUpkeep, "_bound_documents"),
    (CacheUpkeep, "_remove_unused"),
    (CacheUpkeep, "_remove_unwanted"),
    (WriteBack, "run"),
    (BlockStore, "_shrink_when_idle"),
    (DeviceCache, "list_peers"),
]

ONCE = [
    (Sweeper, "find"),
    (TraceMaker, "tidy"),
    (Documents, "prepare"),
    (Leases, "tidy"),
    (OpenDevices, "share_cached_blocks"),
]


async def test_what_fails_in_the_daemon_ends_nothing_else_and_loops_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, clock: MockClock,
    journal: MemoryJournal,
) -> None:  # fmt: skip
    loops, once = ({one: Fails() for one in each} for each in (LOOPS, ONCE))
    for (owner, name), work in {**loops, **once}.items():
        monkeypatch.setattr(owner, name, work)
    async with running_host(tmp_path, journal) as host:
        for work in loops.values():
            await work.again.wait()
        await trio.sleep(1)
        assert host.snapshot()["images"] == []
    assert {name: work.runs for name, work in once.items()} == dict.fromkeys(ONCE, 1)
    assert caplog.text.count("please report this") == caplog.text.count("RuntimeError: injected") == len(LOOPS + ONCE)


async def test_a_daemon_without_work_rests(tmp_path: Path, journal: MemoryJournal, clock: MockClock) -> None:
    """The clock jumps only while no task runs."""
    async with running_host(tmp_path, journal):
        await trio.sleep(5)


# -- background work for uses of an image -----------------------------------------------------------------------------


class Uses(FakeHost):
    """Counts what is done once, and tells of ends."""

    def __init__(self, *attachments: Attachment) -> None:
        super().__init__(*attachments)
        self.finished = trio.Event()
        self.left: dict[str, trio.Event] = {one.id: trio.Event() for one in attachments}
        self.note_use = Fails()  # type: ignore[method-assign]

    def finish(self, attachment: Attachment, how: str) -> None:
        attachment.ready = True
        self.finished.set()

    def confirm_mounted(self, attachment: Attachment, plane: str) -> None:
        attachment.owner = 0

    def release(self, attachment: Attachment) -> None:
        super().release(attachment)
        self.left[attachment.id].set()


async def test_watching_one_use_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch, clock: MockClock) -> None:
    ended = AsyncMock(side_effect=[RuntimeError("injected"), None])
    exists = AsyncMock(side_effect=[RuntimeError("injected"), True])
    monkeypatch.setattr(liveness, "ended", ended)
    monkeypatch.setattr(LivenessWatch, "_exists", exists)
    one = attachment("1", owner=1, begun=1e9, record_seconds=60.0, ready_file="/ready", namespace=processes.namespace())
    uses = Uses(one)
    watching = LivenessWatch(DaemonSettings(), uses)
    async with trio.open_nursery() as nursery:
        await nursery.start(watching.run)
        watching.begin(one)
        await uses.finished.wait()
        await uses.left["1"].wait()
        nursery.cancel_scope.cancel()
    assert (ended.await_count, exists.await_count) == (2, 2)


async def test_an_unmount_that_fails_unexpectedly_is_tried_again_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MockClock
) -> None:
    tried: list[str] = []

    async def unmount(module: str, facts: Mapping[str, Any], within: float) -> dict[str, Any]:
        tried.append(facts["unmount"]["target"])
        if tried.count("/bad") == 1 and tried[-1] == "/bad":
            raise RuntimeError("injected")
        return {}

    monkeypatch.setattr(shared_mounts, "run_helper", unmount)
    bad, good = (attachment(path, snapshot="n", mountpoint=path) for path in ("/bad", "/good"))
    leaving = attachment("/leaving", snapshot="n", mountpoint="/leaving", leaving=True)
    uses = Uses(bad, good, leaving)
    async with trio.open_nursery() as nursery:
        await nursery.start(SharedMounts(uses, tmp_path).run)
        for left in uses.left.values():
            await left.wait()
        nursery.cancel_scope.cancel()
    assert sorted(tried) == ["/bad", "/bad", "/good", "/leaving"]


async def test_users_and_uses_of_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MockClock) -> None:
    ended = AsyncMock(side_effect=[RuntimeError("injected"), None])
    monkeypatch.setattr(shared_mounts, "ended", ended)
    one = attachment("1", snapshot="n", mountpoint="/m", users=[[7, 1]], kept=True)
    uses = Uses(one)
    async with trio.open_nursery() as nursery:
        found = SharedMounts(uses, tmp_path)
        await nursery.start(found.run)
        asked = AttachRequest("1", StoreSettings(), "t", snapshot=SnapshotUse("n"))
        assert await found.use(asked, AsyncMock(return_value=attached("1"))) == attached("1")
        await eventually(lambda: not one.users)
        assert uses.note_use.runs == 1
        nursery.cancel_scope.cancel()
    assert ended.await_args_list == [call(7, 1)] * 2


async def test_what_is_fetched_ahead_and_learned_ends_with_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MockClock, journal: MemoryJournal
) -> None:
    fetching, learning = Fails(), Fails()
    monkeypatch.setattr(Sessions, "_fetch", fetching)
    monkeypatch.setattr(TraceMaker, "make_trace", learning)
    made = make(noise(1))
    async with running_host(tmp_path, journal) as host, running(tmp_path / "blocks") as blocks:
        device = await blocks.open(made.digest, made.index, FakeSource(made))
        use = DeviceUse("cold", made.index.device_bytes, made.digest)
        one = attachment("1", devices=(use,))
        starts = host._sessions
        starts.begin(one, [device], None)  # type: ignore[arg-type]
        await wait_all_tasks_blocked()
        starts.finish(one, "ready")
        await wait_all_tasks_blocked()
        assert (fetching.runs, learning.runs) == (1, 1)


# -- blocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "name", "first"),
    [(Fetcher, "_read", 0), (Fetcher, "_take", 0), (WriteBack, "put", 3), (WriteBack, "_write", 0), (store, "seal", 0)],
)
async def test_what_fails_unexpectedly_is_at_most_an_error_of_the_reader(
    tmp_path: Path, clock: MockClock, owner: Any, name: str, first: int
) -> None:
    """Blocks that cannot be fetched cost their read, and what cannot be kept, copied or checked costs none."""
    content, fail = noise(4), Mock(side_effect=RuntimeError("injected"))
    part, made = make(content[:1]), make(content)
    async with opened(tmp_path, part) as (blocks, other):
        await other.read(0, other.size)
        await settled(other, blocks)
        blocks.memory.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, fail)
            device = await blocks.open(made.digest, made.index, FakeSource(made))
            unread = pytest.raises(BlockUnavailable, match="injected")
            with unread if name == "_read" else contextlib.nullcontext():
                assert bytes(await device.read(first * BLOCK, device.size)) == b"".join(content[first:])
            await eventually(lambda: fail.called and not blocks.memory.held)
            assert not blocks.writeback.writing(device._cached, 0)  # type: ignore[arg-type]
            await trio.sleep(10)
            assert device.complete == (name == "_take")
        await trio.sleep(100)  # the pause is over
        assert bytes(await device.read(0, device.size)) == made.content
        await eventually(lambda: device.present >= 3)


# -- a disk that is slow or does not answer: nobody waits for it for good, and the daemon's thread never ---------------


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


def backend(folder: Path, journal: MemoryJournal) -> DaemonBackend:
    settings = DaemonSettings(cache=str(folder / "cache"), runtime=str(folder / "run"), io_timeout=7.0)
    return DaemonBackend(SimpleNamespace(payload=settings.to_json(), journal=journal))  # type: ignore[arg-type]


async def test_a_daemon_whose_cache_does_not_answer_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MockClock, journal: MemoryJournal,
    hanging: Callable[..., Hanging],
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "statvfs", hanging(os.statvfs))
    with pytest.raises(ServiceDown, match=r"opening the cache .*: no answer within 7 s"):
        await backend(tmp_path, journal).open()


async def test_a_cache_that_does_not_answer_is_not_taken_for_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: MockClock, journal: MemoryJournal,
    hanging: Callable[..., Hanging],
) -> None:  # fmt: skip
    made = backend(tmp_path, journal)
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
    monkeypatch.setattr(cleanup, "find", disk)
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
