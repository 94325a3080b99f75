"""Lazy images: one client mounts, and who comes meanwhile waits for that, for a moment."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from imagefs.daemon.mount_pool import ClientMount, ClientMounts
from imagefs.daemon.state import Attachment, DeviceUse
from tests.unit.imagefs.daemon.fake_host import FakeHost, attachment


class Uses(FakeHost):
    def add(self, name: str, metadata: str = "/m", namespace: int = 1, index: str = "i") -> Attachment:
        devices = (DeviceUse("cold", 1, index),)
        one = self.known[name] = attachment(name, metadata=metadata, devices=devices, namespace=namespace)
        return one


async def test_others_wait_for_the_first_and_copy_its_mount(autojump_clock: MockClock) -> None:
    uses = Uses()
    mounts = ClientMounts(uses)
    first = uses.add("1")
    assert await mounts.of(first) is None
    found: list[ClientMount | None] = []

    async def ask(name: str) -> None:
        found.append(await mounts.of(uses.add(name)))

    async with trio.open_nursery() as nursery:
        for name in "23":
            nursery.start_soon(ask, name)
        await trio.sleep(0.5)
        assert found == []
        await mounts.shown({"id": "1", "path": "/proc/7/fd/8", "device": "0:9"})
    assert found == 2 * [ClientMount("/proc/7/fd/8", "0:9")]
    assert trio.current_time() == 0.5
    await mounts.shown({"id": "3", "path": "/proc/9/fd/8", "device": "0:9"})
    assert await mounts.of(uses.add("4")) == ClientMount("/proc/9/fd/8", "0:9")
    del uses.known["3"]
    assert await ClientMounts(uses).of(uses.add("5")) == ClientMount("/proc/7/fd/8", "0:9")  # the next worker


async def test_when_the_first_gives_up_the_next_one_mounts(autojump_clock: MockClock) -> None:
    uses = Uses()
    mounts = ClientMounts(uses)
    first = uses.add("1")
    assert await mounts.of(first) is None
    found: list[ClientMount | None] = []

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
    assert found == [None, ClientMount("/2", "0:1")]
    assert trio.current_time() == 0.2


async def test_nobody_waits_long_or_for_something_else(autojump_clock: MockClock) -> None:
    uses = Uses()
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
