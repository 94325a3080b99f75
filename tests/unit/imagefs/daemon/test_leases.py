"""Leases: one mount of an image for all of them, there from the answer until the release, whatever comes in between."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from imagefs.daemon import leases as module
from imagefs.daemon import shared_mounts as shares_module
from imagefs.daemon.leases import Leases, pool_path
from imagefs.daemon.protocol import Attached, AttachRequest, HeldImage, HoldRequest, Lease, SnapshotKey
from imagefs.daemon.requests import DiscardRequest, LeasesRequest, MountedRequest, ReleaseRequest, Unserved
from imagefs.daemon.shared_mounts import SharedMounts, shared_by
from imagefs.daemon.state import Attachment
from imagefs.errors import DamagedObject, NoSuchImage, NoSuchSnapshot
from imagefs.settings import DaemonSettings
from stripefs.errors import MountError
from stripefs.settings import StoreSettings
from tests.unit.imagefs.daemon.fake_host import FakeHost, attached, attachment

SETTINGS = DaemonSettings(runtime="/run/nothing")
IMAGES = {"one": "a" * 64, "two": "b" * 64}
SNAPSHOTS = {"numpy": "c" * 64, "torch": "d" * 64, "bad": "e" * 64}
CLIENT = "containerd"


class World(FakeHost):
    """And what is mounted."""

    def __init__(self) -> None:
        super().__init__()
        self.standing: set[str] = set()
        self.mounts = 0
        self.joins = 0
        self.broken = ""
        self.slow: list[trio.Event] | None = None
        self.discarded: list[str] = []
        self.upkeep = SimpleNamespace(discard=self.discarded.extend)

    async def mounted(self, request: MountedRequest) -> None:
        self.known[request.id].change({"plane": request.plane, "owner": 0})

    async def note_use(self, request: AttachRequest) -> None:
        raise AssertionError("no snapshot is used")

    async def resolve(self, store: StoreSettings, image: str) -> str:
        await trio.lowlevel.checkpoint()
        if image not in IMAGES:
            raise NoSuchImage(f"no {image}")
        return IMAGES[image]

    async def resolve_snapshot(self, store: StoreSettings, name: str) -> str:
        await trio.lowlevel.checkpoint()
        if name not in SNAPSHOTS:
            raise NoSuchSnapshot(f"no {name}")
        return SNAPSHOTS[name]

    async def config_of(self, attachment: Attachment) -> dict[str, Any]:
        return {"Env": [attachment.image]}

    def note_other_use(self, attachment: Attachment) -> None:
        self.joins += 1

    async def attach(self, request: AttachRequest) -> Attached:
        await trio.lowlevel.checkpoint()
        if request.image == SNAPSHOTS["bad"]:
            raise DamagedObject("it lacks a pack")
        one = attachment(request.id, image=request.image, base=request.image, owner=1)
        workload = request.recording.workload
        one.change({"mountpoint": request.mountpoint, "namespace": 1, "workload": workload, **shared_by(request)})
        self.known[one.id] = one
        return attached(request.id)

    async def run_helper(self, program: str, facts: Mapping[str, Any], within: float) -> dict[str, Any]:
        if self.slow is not None:
            self.slow.append(trio.Event())
            await self.slow[-1].wait()
        assert program == "imagefs.daemon.mount_helper"
        ((action, given),) = facts.items()
        if self.broken == action:
            raise OSError("it does not work")
        if action == "mount":
            assert given["target"] not in self.standing
            self.standing.add(given["target"])
            self.mounts += 1
        else:
            assert (action, given["remove"]) == ("unmount", True)
            self.standing.discard(given["target"])
        return {}


def request(image: str, name: str, client: str = CLIENT, above: Sequence[str] = ()) -> HoldRequest:
    keys = tuple(SnapshotKey(StoreSettings(url="/d"), key) for key in above)
    return HoldRequest(StoreSettings(url="/s"), image, Lease(name, client, "a label"), 1, above=keys)


async def hold(leases: Leases, request: HoldRequest) -> HeldImage:
    held = await leases.hold(request)
    assert isinstance(held, HeldImage)
    return held


def releasing(name: str, client: str = CLIENT, *, at_once: bool = False) -> ReleaseRequest:
    return ReleaseRequest(Lease(name, client), at_once)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Beside the task that unmounts."""
    made = World()
    for where in (module, shares_module):
        monkeypatch.setattr(where, "run_helper", made.run_helper)
    monkeypatch.setattr(module.processes, "namespace", lambda: 1)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    async with trio.open_nursery() as nursery:
        await nursery.start(SharedMounts(made, Path("/nonexistent")).run)
        yield made
        nursery.cancel_scope.cancel()


@pytest.fixture
async def leases(world: World) -> Leases:
    return Leases(SETTINGS, world)


async def test_many_leases_have_one_mount_until_the_last_is_released(
    world: World, leases: Leases, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(leases.hold, request("one", f"c{number}"))
    held = await hold(leases, request("one", "c0"))
    assert held == HeldImage(held.lease, pool_path(SETTINGS, IMAGES["one"]), IMAGES["one"], {"Env": [IMAGES["one"]]})
    assert (world.mounts, world.joins, world.standing) == (1, 4, {held.lowerdir})
    other = await hold(leases, request("one", "c0", "another client"))
    assert other.lowerdir == held.lowerdir
    assert len((await leases.leases(LeasesRequest())).leases) == 6
    assert [one.lease.name for one in (await leases.leases(LeasesRequest("another client"))).leases] == ["c0"]
    for name, client in (*((f"c{number}", CLIENT) for number in range(5)), ("c0", "another client")):
        await trio.sleep(100)
        assert world.standing
        for _ in range(2):
            await leases.release(releasing(name, client))
    await trio.sleep(50)
    assert world.standing  # for the next container
    await trio.sleep(20)
    assert not world.standing
    assert not world.known
    for name, workload in (("a", ""), ("b", "serve")):
        await leases.hold(request("one", name)._replace(workload=workload))
    assert [one.workload for one in world.known.values()] == ["default"]
    for name in "ab":
        assert world.standing
        await leases.release(releasing(name, at_once=True))
        await trio.sleep(1)
    assert not world.standing


async def test_an_image_that_is_discarded_does_not_linger(
    world: World, leases: Leases, autojump_clock: MockClock
) -> None:
    for image in IMAGES:
        await leases.hold(request(image, image))
        await leases.release(releasing(image))
    await leases.hold(request("two", "c"))
    parts = ["1" * 64, "2" * 64]
    for image in IMAGES.values():
        await leases.discard(DiscardRequest(image, (*parts, "../manifests")))
    await trio.sleep(2)
    assert world.standing == {pool_path(SETTINGS, IMAGES["two"])}, "its lease is not over"
    assert world.discarded == parts * 2


async def test_snapshots_are_stacked_above_the_image_and_released_with_it(
    world: World, leases: Leases, autojump_clock: MockClock
) -> None:
    numpy, torch = (pool_path(SETTINGS, SNAPSHOTS[name]) for name in ("numpy", "torch"))
    held = await hold(leases, request("one", "c", above=["torch", "nosuch", "bad", "numpy"]))
    assert held.lowerdirs == (torch, numpy, pool_path(SETTINGS, IMAGES["one"]))
    assert [(one.key, one.kind) for one in held.unusable] == [("nosuch", "missing"), ("bad", "damaged")]
    assert (await leases.leases(LeasesRequest())).leases == (held._replace(config={}, unusable=()),)
    fewer = await hold(leases, request("one", "c", above=["numpy"]))
    assert fewer.above == (numpy,)
    await leases.hold(request("two", "d", above=["numpy"]))
    await trio.sleep(100)
    assert world.standing == {numpy, *(pool_path(SETTINGS, image) for image in IMAGES.values())}
    await leases.release(releasing("c"))
    await trio.sleep(100)
    assert world.standing == {numpy, pool_path(SETTINGS, IMAGES["two"])}
    await leases.release(releasing("d"))


async def test_what_a_killed_daemon_left_is_unmounted_but_what_is_mounted_anew_meanwhile_stays(
    world: World, tmp_path: Path, autojump_clock: MockClock
) -> None:
    settings = DaemonSettings(runtime=str(tmp_path))
    paths = {pool_path(settings, image) for image in IMAGES.values()}
    left = pool_path(settings, "c" * 64)
    for path in (*paths, left):
        Path(path).mkdir(parents=True)
    leases = Leases(settings, world)
    world.standing.add(left)
    world.slow = waiting = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leases.tidy)
        await wait_all_tasks_blocked()
        for name in IMAGES:
            nursery.start_soon(leases.hold, request(name, f"on {name}"))
        while world.mounts < len(paths) or not all(event.is_set() for event in waiting):
            await wait_all_tasks_blocked()
            for event in reversed(waiting):
                event.set()
    assert world.standing == paths


async def test_a_lease_waits_for_the_end_of_a_mount_or_an_unmount(
    world: World, leases: Leases, autojump_clock: MockClock
) -> None:
    """A mount that failed leaves nothing, and can be asked for again; one that cannot be unmounted is joined."""
    held: list[HeldImage] = []

    async def ask(name: str) -> None:
        held.append(await hold(leases, request("one", name)))

    async def asked_while_a_helper_runs(*names: str) -> None:
        waiting = world.slow
        assert waiting is not None
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(ask, name)
            await trio.sleep(3)
            assert (held, len(waiting)) == ([], 1)
            world.slow = None
            waiting[0].set()
        assert {one.lowerdir for one in held} == world.standing == {pool_path(SETTINGS, IMAGES["one"])}
        held.clear()

    world.broken = "mount"
    with pytest.raises(MountError):
        await leases.hold(request("one", "a"))
    assert (world.known, world.standing) == ({}, set())
    world.broken, world.slow = "", []
    await asked_while_a_helper_runs("a", "b")
    world.slow = []
    for name in "ab":
        await leases.release(releasing(name, at_once=True))
    await trio.sleep(3)
    await asked_while_a_helper_runs("c")
    world.broken = "unmount"
    await leases.release(releasing("c", at_once=True))
    await trio.sleep(3)
    mounts = world.mounts
    assert (await hold(leases, request("one", "d"))).lowerdir in world.standing
    assert world.mounts == mounts
    world.broken = ""
    await leases.release(releasing("d", at_once=True))
    await trio.sleep(30)
    assert (world.known, world.standing) == ({}, set())


async def test_where_no_lease_can_be_had(leases: Leases, autojump_clock: MockClock) -> None:
    with pytest.raises(MountError, match="another mount namespace"):
        await leases.hold(request("one", "c")._replace(namespace=2))
    assert await leases.hold(request("none", "c")) == Unserved("missing", "no none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(MountError, match="root"):
            await leases.hold(request("one", "c"))
