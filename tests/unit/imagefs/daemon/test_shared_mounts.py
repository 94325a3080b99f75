"""File systems that many show: one mount for all users of a snapshot, or of a lazy image, whatever comes in between."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from imagefs.daemon import mount_pool
from imagefs.daemon import shared_mounts as module
from imagefs.daemon.mount_pool import ClientMounts
from imagefs.daemon.protocol import Attached, AttachRequest, MountedTree, SharedSnapshot, SnapshotUse
from imagefs.daemon.requests import ShownRequest, Unserved
from imagefs.daemon.shared_mounts import SharedMounts
from imagefs.daemon.state import Attachment, DeviceUse
from imagefs.errors import BlockUnavailable, DamagedBlock, DamagedObject
from stripefs.errors import MountError, NotFound, ServiceDown, StripefsError
from stripefs.settings import StoreSettings
from tests.support.examples import examples
from tests.unit.imagefs.daemon.fake_host import FakeHost, attached, attachment

TARGET = "/opt/deps"


class World(FakeHost):
    """A host with one target, as its kernel, its processes and its daemon's journal have it."""

    def __init__(self) -> None:
        super().__init__()
        self.mounted = ""  # the snapshot that is to be seen at the target
        self.alive: dict[int, trio.Event] = {}
        self.served: dict[int, str] = {}  # users, and the snapshot that they were told is there
        self.unmounts: list[trio.Event] = []
        self.slow = False  # unmounts wait for `unmounts`
        self.busy = False
        self.number = 0

    def check(self) -> None:
        for user, name in self.served.items():
            assert not self.alive[user].is_set()
            assert self.mounted == name, f"{user} was told that {name} is there, and {self.mounted or 'nothing'} is"

    # the kernel, and other programs

    def began(self, process: int) -> int:
        return 1 if process in self.alive and not self.alive[process].is_set() else 0

    async def ended(self, process: int, since: int) -> None:
        await self.alive[process].wait()

    async def run_helper(self, program: str, facts: Mapping[str, Any], within: float) -> dict[str, Any]:
        """An unmount that takes effect at any time while it runs."""
        assert (program, facts["unmount"]["target"]) == ("imagefs.daemon.mount_helper", TARGET)
        if self.busy and self.mounted:
            raise OSError("it is busy")
        if self.slow:
            self.unmounts.append(trio.Event())
            await self.unmounts[-1].wait()
        self.mounted = ""
        if self.slow:
            self.unmounts.append(trio.Event())
            await self.unmounts[-1].wait()
        return {}

    async def job(self, shares: SharedMounts, name: str) -> None:
        """As `imagefs.deps.engine`, for a process of its own."""
        self.number += 1
        user = self.number
        self.alive[user] = trio.Event()

        async def attach() -> Attached:
            one = attachment(f"{user:032x}", owner=user)
            one.change({"mountpoint": TARGET, "namespace": 1, "snapshot": name, "users": [[user, 1]]})
            for other in [other for other in self.known.values() if other.mountpoint == TARGET]:
                del self.known[other.id]
            self.known[one.id] = one
            shares.watch(one)
            return attached(one.id)

        for _ in range(3):
            snapshot = SnapshotUse(name, ((user, 1),))
            request = AttachRequest(
                "", StoreSettings(), "", mountpoint=TARGET, namespace=1, mounted=bool(self.mounted), snapshot=snapshot
            )
            try:
                answer = await shares.use(request, attach)
            except MountError:
                break
            if isinstance(answer, Unserved):
                assert answer == Unserved("stale")
                self.mounted = ""
                continue
            if not isinstance(answer, SharedSnapshot):
                assert not self.mounted, "it would be mounted over another"
                self.mounted = name
                self.known[answer.id].owner = 0
            self.served[user] = name
            return
        self.alive[user].set()

    def end(self, user: int) -> None:
        self.alive[user].set()
        self.served.pop(user, None)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("job"), st.sampled_from(["a" * 64, "b" * 64])),
        st.tuples(st.just("end"), st.integers(0, 3)),
        st.tuples(st.just("pass"), st.sampled_from([0.05, 0.3, 6.0, 30.0])),
        st.tuples(st.just("unmounts"), st.sampled_from(["slow", "quick", "busy"])),
        st.tuples(st.just("step"), st.just(0)),
        st.tuples(st.just("worker"), st.just(0)),
    ),
    max_size=30,
)


async def live(world: World, steps: list[tuple[str, Any]]) -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    turn = trio.Lock()
    async with trio.open_nursery() as jobs:
        worker = trio.CancelScope()
        shares = SharedMounts(world, Path("/nonexistent"))

        async def work(*, task_status: trio.TaskStatus[None]) -> None:
            with worker:
                await shares.run(task_status=task_status)

        async def job(name: str) -> None:
            async with turn:  # clients take turns at a target
                await world.job(shares, name)

        await jobs.start(work)
        for kind, value in steps:
            match kind:
                case "job" if not turn.locked():
                    jobs.start_soon(job, value)
                case "end" if world.served:
                    world.end(sorted(world.served)[value % len(world.served)])
                case "pass":
                    await trio.sleep(value)
                case "unmounts":
                    world.slow, world.busy = value == "slow", value == "busy"
                case "step":
                    for event in world.unmounts:
                        event.set()
                case "worker" if not turn.locked():
                    worker.cancel()
                    await wait_all_tasks_blocked()
                    worker, shares = trio.CancelScope(), SharedMounts(world, Path("/nonexistent"))
                    await jobs.start(work)
            await wait_all_tasks_blocked()
            world.check()
        world.slow = world.busy = False
        for _ in range(10):
            for event in world.unmounts:
                event.set()
            for user in list(world.served):
                world.end(user)
            await trio.sleep(30)
        assert not world.known
        assert not world.mounted
        jobs.cancel_scope.cancel()


def run(steps: list[tuple[str, Any]]) -> World:
    world = World()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "run_helper", world.run_helper)
        patch.setattr(module, "ended", world.ended)
        patch.setattr(module.processes, "began", world.began)
        patch.setattr(module.processes, "namespace", lambda: 1)
        trio.run(live, world, steps, clock=MockClock(autojump_threshold=0))
    return world


@examples(60)
@given(STEPS)
def test_who_is_told_that_it_is_mounted_finds_it_mounted(steps: list[tuple[str, Any]]) -> None:
    run(steps)


@pytest.mark.parametrize("between", [[], [("worker", 0)], [("unmounts", "busy")], [("pass", 6.0)]])
def test_who_comes_while_an_unmount_is_slow_waits_for_its_end(between: list[tuple[str, Any]]) -> None:
    name = "a" * 64
    steps = [("job", name), ("unmounts", "slow"), ("end", 0), ("pass", 0.3), *between, ("job", name), ("pass", 6.0)]
    assert run([*steps, ("step", 0), ("pass", 0.3), ("step", 0), ("pass", 0.3)]).number == 2


# -- snapshots with a damaged block ----------------------------------------------------------------------------------


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
    away = BlockUnavailable("block 1")
    away.__cause__ = ServiceDown("away")
    async with running(tmp_path) as shares:
        shares.failed("a" * 64, away)
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


# -- lazy images: one client mounts, and who comes meanwhile waits for that, for a moment ------------------------------


class Lazy(FakeHost):
    def add(self, name: str, metadata: str = "/m", namespace: int = 1, index: str = "i") -> Attachment:
        devices = (DeviceUse("cold", 1, index),)
        one = self.known[name] = attachment(name, metadata=metadata, devices=devices, namespace=namespace)
        return one


async def test_others_wait_for_the_first_that_mounts_and_copy_its_mount(autojump_clock: MockClock) -> None:
    """When it gives up, the next one mounts."""
    uses = Lazy()
    mounts = ClientMounts(uses)
    first = uses.add("1")
    assert await mounts.of(first) is None
    found: list[MountedTree | None] = []

    async def ask(name: str) -> None:
        one = uses.add(name)
        found.append(await mounts.of(one))
        mounts.tell(one, f"/{name}", "0:1")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "2")
        await trio.sleep(0.2)
        del uses.known["1"]
        mounts.over(first)
        await wait_all_tasks_blocked()
        nursery.start_soon(ask, "3")
    assert found == [None, MountedTree("/2", "0:1")]
    assert trio.current_time() == 0.2
    await mounts.shown(ShownRequest("3", "/proc/9/fd/8", "0:9"))
    assert await mounts.of(uses.add("4")) == MountedTree("/proc/9/fd/8", "0:9")
    del uses.known["3"]
    assert await ClientMounts(uses).of(uses.add("5")) == MountedTree("/2", "0:1")  # the next worker


async def test_nobody_waits_long_or_for_something_else(autojump_clock: MockClock) -> None:
    uses = Lazy()
    mounts = ClientMounts(uses)
    assert await mounts.of(uses.add("1")) is None
    for other in ({"metadata": "/n"}, {"namespace": 2}, {"index": "j"}):
        assert await mounts.of(uses.add(repr(other), **other)) is None  # type: ignore[arg-type]
    assert trio.current_time() == 0
    assert await mounts.of(uses.add("2")) is None
    assert trio.current_time() == 1
    for name in "12":
        mounts.tell(uses.known[name], "/where", "")  # an overlay, of which nobody can copy anything
    assert await mounts.of(uses.add("3")) is None
    assert trio.current_time() == 1


async def test_a_mount_of_an_image_that_is_whole_here_is_kept_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    made: list[int] = []

    def make(metadata: str, devices: object) -> int:
        made.append(os.open(tmp_path, os.O_PATH))
        return os.dup(made[-1])

    monkeypatch.setattr(mount_pool.kernel_mounts, "make", make)
    monkeypatch.setattr(mount_pool.kernel_mounts, "copy", lambda path, device: os.open(tmp_path, os.O_PATH))
    device = tmp_path / "device"
    device.write_bytes(b"1")
    in_use = {"image"}
    held = mount_pool.MountPool(lambda: in_use)
    try:
        first = await held.of("image", "metadata", [str(device)])
        assert first is not None
        assert await held.of("image", "metadata", [str(device)]) == first
        in_use.clear()
        await held.tidy(trio.current_time())
        mock_clock.jump(mount_pool.LINGER)
        await held.tidy(trio.current_time())
        assert len(held) == 1
        mock_clock.jump(1)
        await held.tidy(trio.current_time())
        assert len(held) == 0
        await held.of("image", "metadata", [str(device)])
        device.write_bytes(b"2")  # bytes read of it before may be in memory
        os.utime(device, ns=(1, 1))
        await held.of("image", "metadata", [str(device)])
        assert len(held) == 2
        assert len(made) == 3
    finally:
        mock_clock.jump(mount_pool.LINGER + 1)
        in_use.clear()
        for _ in range(2):
            await held.tidy(trio.current_time())
            mock_clock.jump(mount_pool.LINGER + 1)
        for descriptor in made:
            os.close(descriptor)
