"""The images of a daemon against a plain record of who holds what: processes, mounts and leases that come and go,
clients and workers that die at any moment, helpers that are slow or fail, and parts that leave the cache.
"""

from __future__ import annotations

import itertools
import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import trio
import trio.testing
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from imagefs.daemon import helpers, leases, liveness, processes, shared_mounts
from imagefs.daemon.attachments import Attachments
from imagefs.daemon.leases import pool_path
from imagefs.daemon.protocol import AttachRequest, HeldImage, HoldRequest, Lease, Recording
from imagefs.daemon.requests import (
    DetachRequest,
    DiscardRequest,
    LeasesRequest,
    MountedRequest,
    ReleaseRequest,
    UsageRequest,
)
from imagefs.settings import DaemonSettings
from stripefs.errors import MountError
from stripefs.fuse import state_memory
from stripefs.fuse.state_memory import CounterPage, MemoryJournal, make_memory
from stripefs.settings import StoreSettings
from tests.support.examples import examples
from tests.support.images.faults import make_image
from tests.support.waiting import eventually as patiently

_T = TypeVar("_T")

NAMESPACE = 1
CLIENT = "containerd"
UNRECORDED = Recording(off=True)
IMAGES = st.integers(0, 1)
LEASES = st.sampled_from("xyz")
PICKS = st.integers(0, 9)
POINTS = st.sampled_from(["", "/mnt/0", "/mnt/1"])


def eventually(look: Callable[[], bool], what: str) -> None:
    patiently(look, what, 20.0)


class Host:
    """The kernel's mounts, the processes, and the programs that the daemon starts; all outlive its workers.

    leased: mountpoints of images that leases are on."""

    def __init__(self, leased: Callable[[], Collection[str]]) -> None:
        self.leased = leased
        self.faults: list[str] = []
        self.mounts: dict[str, str] = {}  # types by mountpoint
        self.alive: dict[int, int] = {}  # processes, and when each began
        self.failing = ""  # "mount" or "unmount", which the helper does not bring about
        self.slow = False  # it does, but does not end

    def began(self, process: int) -> int:
        return self.alive.get(process, 0)

    async def ended(self, process: int, since: int) -> None:
        while self.alive.get(process) == since:
            await trio.sleep(0.1)

    def tables(self, namespaces: Collection[int] | None = None) -> dict[int, list[Any]]:
        mounts = [SimpleNamespace(path=path, fstype=kind, source="") for path, kind in self.mounts.items()]
        return {NAMESPACE: mounts}

    async def run_helper(
        self, program: str, facts: Mapping[str, Any], within: float, descriptors: object = ()
    ) -> dict[str, Any]:
        if program != "imagefs.daemon.mount_helper":
            return {}
        ((action, given),) = facts.items()
        if self.failing == action:
            raise OSError("it does not work")
        if action == "mount":
            if given["target"] in self.leased() or not Path(given["metadata"]).exists():
                self.faults.append(f"mounted without metadata, or over what somebody holds: {given}")
            os.makedirs(given["target"], exist_ok=True)
            self.mounts[given["target"]] = "erofs"
        else:
            if given["target"] in self.leased():
                self.faults.append(f"unmounted while somebody holds it: {given}")
            self.mounts.pop(given["target"], None)
            os.rmdir(given["target"])
        while self.slow:
            await trio.sleep(0.1)
        return {}


class Worker:
    """A worker on a trio loop in a thread of its own."""

    def __init__(self, settings: DaemonSettings, memory: tuple[int, int, int]) -> None:
        self._settings, self._memory = settings, memory
        self._ready: queue.Queue[trio.lowlevel.TrioToken | BaseException] = queue.Queue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        token = self._ready.get()
        if isinstance(token, BaseException):
            raise token
        self._token = token

    def _run(self) -> None:
        self.clock = trio.testing.MockClock(rate=20.0)
        try:
            trio.run(self._main, clock=self.clock)
        except BaseException as error:  # noqa: BLE001  whoever waits for the worker raises it
            self._ready.put(error)

    async def _main(self) -> None:
        self.host = Attachments(self._settings, MemoryJournal(CounterPage(self._memory[0]), self._memory[1:]))
        self._over = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.host.run)
            self._ready.put(trio.lowlevel.current_trio_token())
            await self._over.wait()
            nursery.cancel_scope.cancel()
        self.host.close()

    def do(self, call: Callable[[], Awaitable[_T]]) -> _T:
        async def run() -> _T:
            return await call()

        return trio.from_thread.run(run, trio_token=self._token)

    def pass_time(self, seconds: float) -> None:
        async def run() -> None:
            self.clock.jump(seconds)
            await trio.sleep(0)

        trio.from_thread.run(run, trio_token=self._token)

    def stop(self) -> None:
        trio.from_thread.run_sync(self._over.set, trio_token=self._token)
        self._thread.join()


@dataclass
class Use:
    """An attachment of a client. mounted: it is in the kernel."""

    owner: int
    point: str
    metadata: str
    index: str
    mounted: bool = False


class Daemon(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="leases-"))
        self.stores = [
            make_image(self.folder / f"image{number}", seed=number, size=5000, small=1)[1] for number in (1, 2)
        ]
        self.settings = DaemonSettings(
            cache=str(self.folder / "cache"), runtime=str(self.folder / "run"), io_timeout=1e6, background_rate=0
        )
        self.world = Host(lambda: {self.pool(image) for image in self.leased.values()})
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(processes, "began", self.world.began)
        self.patch.setattr(processes, "namespace", lambda: NAMESPACE)
        self.patch.setattr(processes, "tables", self.world.tables)
        self.patch.setattr(os, "geteuid", lambda: 0)
        self.patch.setattr(state_memory, "_SMALLEST", 1500)  # so that the journal is replaced now and then
        for module in (helpers, leases, shared_mounts):
            self.patch.setattr(module, "run_helper", self.world.run_helper)
        for watching in (liveness, shared_mounts):
            self.patch.setattr(watching, "ended", self.world.ended)
        self.memory = make_memory()
        self.numbers = itertools.count(1)
        self.uses: dict[str, Use] = {}
        self.leased: dict[str, int] = {}
        self.digests: dict[int, str] = {}
        self.content: dict[str, bytes] = {}
        self.start()

    def start(self) -> None:
        self.world.alive[os.getpid()] = next(self.numbers)  # each worker is another process
        self.real = Worker(self.settings, self.memory)

    # Processes and mounts

    @rule(image=IMAGES, point=POINTS, times=st.integers(1, 2))
    def attach(self, image: int, point: str, times: int) -> None:
        if point in self.world.mounts:
            return
        process = 1 << 30 | next(self.numbers)
        self.world.alive[process] = next(self.numbers)
        store = StoreSettings(url=str(self.stores[image]))
        request = AttachRequest(
            f"{process:032x}", store, "t", process, self.world.alive[process], point, NAMESPACE, recording=UNRECORDED
        )
        answer = self.real.do(lambda: self.real.host.attach(request))
        for _ in range(1, times):
            assert self.real.do(lambda: self.real.host.attach(request)) == answer
        for name in [name for name, one in self.uses.items() if point and one.point == point]:
            del self.uses[name]  # its client mounted nothing there, and its place is taken
        index = answer.devices[0].path.rpartition("/")[2]
        self.uses[request.id] = Use(process, point, answer.metadata, index)
        assert self.digests.setdefault(image, answer.image) == answer.image

    @rule(which=PICKS, reported=st.booleans())
    def mount(self, which: int, reported: bool) -> None:
        """A mount that its client has not reported when it ends is found all the same."""
        waiting = [(name, one) for name, one in self.uses.items() if one.point and not one.mounted]
        if not waiting:
            return
        name, use = waiting[which % len(waiting)]
        self.world.mounts[use.point] = "erofs"
        use.mounted = True
        if reported:
            for _ in range(2):
                self.real.do(lambda: self.real.host.mounted(MountedRequest(name, "erofs")))
        else:
            del self.world.alive[use.owner]

    @rule(which=PICKS)
    def client_dies(self, which: int) -> None:
        alive = [name for name, one in self.uses.items() if one.owner in self.world.alive]
        if alive:
            use = self.uses[alive[which % len(alive)]]
            del self.world.alive[use.owner]
            if not use.mounted:
                del self.uses[alive[which % len(alive)]]

    @rule(which=PICKS, told=st.booleans())
    def unmount(self, which: int, told: bool) -> None:
        mounted = [name for name, one in self.uses.items() if one.mounted]
        if mounted:
            name = mounted[which % len(mounted)]
            del self.world.mounts[self.uses.pop(name).point]
            self.settle()  # before the place is another's
            for _ in range(2 if told else 0):
                self.real.do(lambda: self.real.host.detach(DetachRequest(name)))

    @rule(which=PICKS)
    def detach(self, which: int) -> None:
        waiting = [name for name, one in self.uses.items() if not one.mounted]
        if waiting:
            name = waiting[which % len(waiting)]
            del self.uses[name]
            for _ in range(2):
                self.real.do(lambda: self.real.host.detach(DetachRequest(name)))

    # Leases

    @rule(name=LEASES, image=IMAGES, times=st.integers(1, 2))
    def hold(self, name: str, image: int, times: int) -> None:
        if self.world.slow:
            return
        for _ in range(times):
            try:
                answer = self.real.do(lambda: self.real.host.leases.hold(self.request(name, image)))
            except MountError:
                assert self.world.failing == "mount" or self.leased.get(name, image) != image
                return
            assert self.leased.setdefault(name, image) == image
            assert isinstance(answer, HeldImage)
            assert self.digests.setdefault(image, answer.image) == answer.image
            assert answer.lowerdir == self.pool(image)

    @rule(image=IMAGES, name=LEASES, asks_again=st.booleans())
    def worker_dies_in_a_hold(self, image: int, name: str, asks_again: bool) -> None:
        """The mount is there and no answer was given; its client asks again, or releases the lease."""
        if self.leased.get(name, image) != image or self.world.failing:
            return
        self.world.slow = True
        memory: list[bytes] = []

        async def ask() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.real.host.leases.hold, self.request(name, image))
                await trio.sleep(2.0)
                memory.extend(os.pread(one, os.fstat(one).st_size, 0) for one in self.memory)
                nursery.cancel_scope.cancel()

        self.real.do(ask)
        self.real.stop()
        self.world.slow = False
        for descriptor, before in zip(self.memory, memory, strict=True):  # its last words are not heard
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, before, 0)
        self.start()
        if asks_again:
            self.hold(name=name, image=image, times=1)
            assert self.leased[name] == image
        else:
            self.release(name=name, at_once=False)

    def request(self, name: str, image: int) -> HoldRequest:
        return HoldRequest(StoreSettings(url=str(self.stores[image])), "t", Lease(name, CLIENT), NAMESPACE)

    @rule(name=LEASES, at_once=st.booleans())
    def release(self, name: str, at_once: bool) -> None:
        self.leased.pop(name, None)
        for _ in range(2):
            self.real.do(lambda: self.real.host.leases.release(ReleaseRequest(Lease(name, CLIENT), at_once)))

    # The daemon and its cache

    @rule(failing=st.sampled_from(["", "mount", "unmount"]))
    def helpers_fail(self, failing: str) -> None:
        self.world.failing = failing

    @rule()
    def restart(self) -> None:
        self.real.stop()
        self.start()

    @rule(image=IMAGES)
    def discard(self, image: int) -> None:
        """The cache is to be without an image: what somebody holds of it stays."""
        digest = self.digests.get(image)
        if digest is not None:
            parts = tuple(self.real.do(lambda: self.real.host.upkeep.usage(UsageRequest(digest))).parts)
            self.real.do(lambda: self.real.host.leases.discard(DiscardRequest(digest, parts)))
            self.settle()

    @rule(which=PICKS)
    def read(self, which: int) -> None:
        if self.uses:
            use = list(self.uses.values())[which % len(self.uses)]
            found = self.real.do(lambda: self.bytes_of(use.index))
            assert self.content.setdefault(use.index, found) == found

    async def bytes_of(self, index: str) -> bytes:
        tree = self.real.host.device_tree
        node = (await tree.lookup(1, index.encode())).id
        handle = await tree.open(node)
        found = bytes(await tree.read(handle, 0, 4096))
        await tree.release(handle)
        tree.forget([(node, 1)])
        return found

    @rule()
    def settle(self) -> None:
        """Some seconds later only what somebody holds is attached, and what nobody holds for leases is on its way."""

        def only_held() -> bool:
            self.real.pass_time(0.5)
            attached = self.real.do(self.attached)
            return {name for name, one in attached.items() if not one.pooled} == self.uses.keys()

        eventually(only_held, f"nothing but {self.uses} to be attached")

    @rule()
    def wait_for_unmounts(self) -> None:
        """After a while without leases an image is not mounted for them any more."""
        if self.world.failing == "unmount":
            return
        for seconds in (1, 100, 1):  # the daemon looks at its mounts four times a second
            self.real.pass_time(seconds)
            self.real.do(lambda: trio.sleep(0.5))
        wanted = {self.pool(image) for image in self.leased.values()}

        def only_leased() -> bool:
            self.real.pass_time(1)
            pooled = {one.mountpoint for one in self.real.do(self.attached).values() if one.pooled}
            return self.pooled() == pooled == wanted

        try:
            eventually(only_leased, "the end of all others")
        except AssertionError as error:
            raise AssertionError(f"{self.pooled()}, {self.real.do(self.attached)}") from error

    async def attached(self) -> dict[str, Any]:
        return dict(self.real.host.state.attachments)

    def pool(self, image: int) -> str:
        return pool_path(self.settings, self.digests[image])

    def pooled(self) -> set[str]:
        return {path for path in self.world.mounts if not path.startswith("/mnt/")}

    @invariant()
    def what_is_held_is_there(self) -> None:
        if not hasattr(self, "real"):
            return
        attached = self.real.do(self.attached)
        assert not self.world.faults
        assert self.uses.keys() <= attached.keys()
        for name, use in self.uses.items():
            assert Path(use.metadata).exists()
            wanted = f"mount {use.point}" if use.mounted else f"process {use.owner}"
            holders = [
                f"{type(one).__name__.removesuffix('Holder').lower()} {one[0]}" for one in attached[name].holders
            ]
            assert holders in ([wanted], [f"process {use.owner}"])  # until the daemon has noticed the mount
        assert {self.pool(image) for image in self.leased.values()} <= self.pooled()
        told = self.real.do(lambda: self.real.host.leases.leases(LeasesRequest())).leases
        known = {one.lease.name: one.lowerdir for one in told}
        assert {name: self.pool(image) for name, image in self.leased.items()}.items() <= known.items()

    def teardown(self) -> None:
        if not hasattr(self, "memory"):
            return
        try:
            self.world.failing, self.world.slow = "", False
            for name in "xyz":
                self.release(name=name, at_once=False)
            self.world.alive = {os.getpid(): self.world.alive[os.getpid()]}
            for point in [one.point for one in self.uses.values() if one.mounted]:
                del self.world.mounts[point]
            self.uses.clear()
            self.settle()
            self.wait_for_unmounts()
            assert self.world.mounts == {}
            for image in self.digests:
                self.discard(image=image)
            eventually(self.nothing_is_left, "an empty cache")
        finally:
            self.real.stop()
            self.patch.undo()
            for descriptor in self.memory:
                os.close(descriptor)
            shutil.rmtree(self.folder)

    def nothing_is_left(self) -> bool:
        self.real.pass_time(1)
        host = self.real.host
        parts = [
            self.real.do(lambda image=image: host.upkeep.usage(UsageRequest(image))).parts  # type: ignore[misc]
            for image in self.digests.values()
        ]
        return not any(parts) and (host.state.known, host._pinned, host.state.attachments) == ({}, {}, {})


TestDaemon = Daemon.TestCase
TestDaemon.settings = examples(10, steps=20)
