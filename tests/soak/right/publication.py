"""Publications under partitions and pauses of up to twice the lease: no closed file is lost, none overwrites another.

Most are of a model: the writers of the product on a local directory whose clock is moved. At chosen calls to the store
a writer is held up, for up to twice the lease, while other writers do as they like; or its call is refused, has its
effect and is answered by an error, or has its effect much later. What came to the name, and when, is written down, so
each publication is known to be of the writer that had the lock last.

The others are of writers on HDFS in a process of its own, that is stopped in mid-publication with leases of 3 s.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from unittest import mock

import trio

from stripefs import backoff
from stripefs.errors import Busy, Exists, NotFound, ServiceDown, StoreError
from stripefs.layout.record import LEASE
from stripefs.settings import StoreSettings
from stripefs.store.base import Store
from stripefs.store.url import open_store
from stripefs.store.wrappers.base import Parser, WrappedStore
from stripefs.store.wrappers.striped import StripedStore
from stripefs.write import Draft, Drafts, Layout, WritePolicy, clock, file_lock, locks
from stripefs.write.file_lock import FileLock, take
from tests.soak.right.context import Context, Violation
from tests.unit.write.world import KIB, policy, spread

PUBLICATIONS = 1900
"""Of the model."""

ROUNDS, FILES = 10, 10
"""Of HDFS: writers that are stopped, and files that each of them publishes."""

SHORT_LEASE = 3.0

FILE = b"/file"
SIZES = (3, 40 * KIB, 300 * KIB)
LAYOUTS = list(Layout)

_CALLS = 24
"""A publication makes about so many calls."""

_KINDS = ("paused", "lost", "refused", "late", "cut_off")
"""A call is held up, has its effect and an error for its answer, has none, has it later; or many are refused."""

DEEPEST = 3
"""Writers that are held up one inside the other."""

_T = TypeVar("_T")


def check(context: Context) -> dict[str, int | float]:
    """How often what happened. Raises Violation for a closed file that is lost and for a writer that is overwritten."""
    counters: Counter[str] = Counter()
    model(context, counters)
    for number in range(context.count(ROUNDS)):
        _round(context, number, counters)
        context.say(f"publication: {dict(counters)}")
    return dict(counters)


def model(context: Context, counters: Counter[str]) -> None:
    """The part that needs no cluster."""
    rng = context.random("model")
    wanted, number = context.count(PUBLICATIONS), 0
    while counters["publications"] < wanted:
        number += 1
        folder = context.folder / str(number)
        folder.mkdir()
        World(folder, random.Random(rng.random()), counters, f"model {number}").run()
        if number % 100 == 0:
            context.say(f"publication: {dict(counters)}")


# -- the model


class Clock:
    """Takes the place of `time` for locks: the clock of all hosts and of the store, which the model moves."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self) -> None:
        self.moved = 0.0

    def clock_gettime(self, clock: int) -> float:
        return time.clock_gettime(clock) + self.moved

    def sleep(self, seconds: float) -> None:
        """Nobody comes in such a moment: the others do while a call is held up."""


class World:
    """One file and the writers that want it. They are held up one inside the other, so few things happen at once."""

    def __init__(self, folder: Path, rng: random.Random, counters: Counter[str], name: str) -> None:
        self.folder, self.rng, self.counters, self.name = folder, rng, counters, name
        self.clock = Clock()
        self.owner = 0
        self.writers = 0
        self.depth = 0
        self.late: list[Callable[[], object]] = []
        self.visible: list[int] = []
        self.contents: dict[int, bytes] = {0: b""}
        self.told: set[int] = set()
        self.broken = ""

    def run(self) -> None:
        with (
            mock.patch.object(clock, "time", self.clock),
            mock.patch.object(file_lock, "time", self.clock),
            mock.patch.object(locks, "take", self.take),
            mock.patch.object(backoff, "FIRST_RETRY", 0.001),
            mock.patch.object(backoff, "LONGEST_RETRY", 0.002),
        ):
            for _ in range(self.rng.randint(1, 3)):
                self.write()
                self.advance(self.rng.uniform(0, 2 * LEASE))
            self.arrive()
        self.judge()

    def write(self) -> None:
        self.writers += 1
        self.counters["publications"] += 1
        self.depth += 1
        try:
            trio.run(self._write, self.writers)
        finally:
            self.depth -= 1

    def take(self, store: Store, path: bytes, *arguments: Any, **options: Any) -> FileLock:
        """As `file_lock.take`; from now on the lock is this writer's."""
        lock = take(store, path, *arguments, **options)
        assert isinstance(store, Hindered)
        self.owner = store.writer
        return lock

    async def _write(self, writer: int) -> None:
        rng = self.rng
        layout, data = rng.choice(LAYOUTS), b"%d;" % writer * (rng.choice(SIZES) // 3)
        store = Hindered(spread(self.folder), self, writer)
        view = StripedStore(store)
        async with _drafts(view, policy(io_timeout=3.0), LEASE) as drafts:
            try:
                draft = await _begin(view, drafts, layout, append=rng.random() < 0.3)
                # Nothing else comes to the name while the lock is held.
                before = self.contents[self.visible[-1]] if self.visible else b""
                self.contents[writer] = before[: draft.length] + data
                await draft.write(draft.length, data)
                for _ in range(rng.randint(0, 2)):
                    self.advance(rng.uniform(0, LEASE))
                    await drafts.heartbeat.beat()
                    self.counters["beats"] += 1
                if rng.random() < 0.3:
                    await draft.sync()
                await draft.publish(final=True)
            except (Busy, Exists):
                self.counters["busy"] += 1
            except StoreError:
                self.counters["eio"] += 1
            else:
                self.told.add(writer)
                self.counters["closed"] += 1

    def came(self, writer: int) -> None:
        """A version of this writer is at the name from now on."""
        self.visible.append(writer)
        if self.owner != writer:
            self.broken = f"writer {writer} published when {self.owner} had the lock, after {self.visible}"

    def held_up(self) -> None:
        """Time passes, and others may write."""
        self.counters["pauses"] += 1
        self.advance(self.rng.uniform(0, 2 * LEASE))
        if self.depth < DEEPEST and self.rng.random() < 0.8:
            self.write()
        if self.rng.random() < 0.5:
            self.arrive()

    def arrive(self) -> None:
        """Requests that the network has kept reach the store."""
        late, self.late = self.late, []
        for call in late:
            with contextlib.suppress(StoreError):
                call()

    def advance(self, seconds: float) -> None:
        """The clocks of all hosts and that of the store."""
        self.clock.moved += seconds

    def stamp(self, path: bytes) -> None:
        """A file that was put just now gets its time from the store's clock."""
        with contextlib.suppress(FileNotFoundError):
            now_ns = time.time_ns() + int(self.clock.moved * 1e9)
            os.utime(os.fsencode(self.folder) + path, ns=(now_ns, now_ns))

    def judge(self) -> None:
        self.counters["published"] += len(self.visible)
        self.counters["published_and_eio"] += len(set(self.visible) - self.told)
        if self.broken or not self.told <= set(self.visible):
            raise Violation(f"{self.name}: {self.broken or 'a closed file never was there'}; closed: {self.told}")
        try:
            found = bytes(StripedStore(spread(self.folder)).get(FILE))
        except NotFound:
            found = b""
        if found != (self.contents[self.visible[-1]] if self.visible else b""):
            raise Violation(f"{self.name}: of {self.visible} the last does not stand; closed: {self.told}")


class Hindered(WrappedStore):
    """The store as one writer has it."""

    NAME = "hindered"
    PARAMETERS: ClassVar[dict[str, Parser]] = {}

    def __init__(self, inner: Store, world: World, writer: int) -> None:
        super().__init__(inner)
        self._world, self.writer = world, writer
        self._calls = 0
        rng = world.rng
        self._faults = {rng.randrange(_CALLS): rng.choice(_KINDS) for _ in range(rng.randint(0, 3))}
        self._at_the_step = rng.choice(_KINDS) if rng.random() < 0.5 else ""
        self._cut_off = 0

    def asking(self, call: str, path: bytes, act: Callable[[], _T]) -> _T:
        return self._call(act, at_the_step=False)

    def changing(self, call: str, paths: tuple[bytes, ...], act: Callable[[], _T]) -> _T:
        at_the_step = {"rename": paths[-1], "concat": paths[0]}.get(call) == FILE

        def noted() -> _T:
            answer = act()
            if at_the_step:
                self._world.came(self.writer)
            if call == "put":
                self._world.stamp(paths[0])
            return answer

        return self._call(noted, at_the_step=at_the_step)

    def _call(self, call: Callable[[], _T], *, at_the_step: bool) -> _T:
        world = self._world
        self._calls += 1
        kind = self._faults.pop(self._calls, "")
        if at_the_step and self._at_the_step:
            kind, self._at_the_step = self._at_the_step, ""
        if kind == "cut_off":
            self._cut_off = world.rng.randint(1, 30)
        if kind:
            world.counters[kind] += 1
        if self._cut_off:
            self._cut_off -= 1
            world.advance(world.rng.uniform(0, 8))
            if world.depth < DEEPEST and world.rng.random() < 0.1:
                world.write()
            raise ServiceDown("cut off")
        if kind == "late":
            world.late.append(call)
        if kind == "lost":
            call()
        if kind:
            world.held_up()
        if kind in ("late", "lost", "refused"):
            raise ServiceDown("no answer")
        return call()


# -- what both have


@contextlib.asynccontextmanager
async def _drafts(view: StripedStore, wanted: WritePolicy, lease: float) -> AsyncIterator[Drafts]:
    drafts = Drafts(view, wanted, lease=lease)
    async with trio.open_nursery() as nursery:
        await nursery.start(drafts.run)
        try:
            yield drafts
        finally:
            await drafts.aclose()
            nursery.cancel_scope.cancel()


async def _begin(view: StripedStore, drafts: Drafts, layout: Layout, *, append: bool, path: bytes = FILE) -> Draft:
    try:
        replacing = (await trio.to_thread.run_sync(view.stat, path)).identity
    except NotFound:
        replacing, append = None, False
    return await drafts.begin(path, replacing=replacing, append=append, layout=layout)


# -- HDFS


def _round(context: Context, number: int, counters: Counter[str]) -> None:
    """FILES are published by a process that is stopped meanwhile, for up to twice the lease, and by others who come."""
    hdfs, rng = context.hdfs(), context.random(f"hdfs {number}")
    settings = StoreSettings(url=hdfs.url, hadoop_conf=str(hdfs.conf))
    store = open_store(settings)
    try:
        folder = b"/publication-%d" % number
        store.mkdir(folder)
        paths = [folder + b"/%d" % index for index in range(FILES)]
        job = json.dumps([hdfs.url, str(hdfs.conf), [path.decode() for path in paths], rng.random()])
        command = [sys.executable, "-m", "tests.soak.right.publication", job]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                if process.stdout.readline() != "begun\n":
                    raise Violation(f"hdfs {number}: the writer did not begin")
                found = trio.run(_beside, store, paths, process, rng)
                told = json.loads(process.stdout.readline())
            finally:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        view = StripedStore(store)
        for path, closed in zip(paths, told, strict=True):
            seen, next_closed = found[path]
            _judge(view, path, closed=closed, seen=seen, next_closed=next_closed, counters=counters)
    finally:
        store.close()


def _judge(
    view: StripedStore, path: bytes, *, closed: bool, seen: bytes | None, next_closed: bool, counters: Counter[str]
) -> None:
    """seen: what stood there when the other writer had the lock; None where it never had."""
    first, second = _content(path, 1), _content(path, 2)
    try:
        stands = bytes(view.get(path))
    except NotFound:
        stands = b""
    counters["publications"] += 1 + (seen is not None)
    counters["closed"] += closed + next_closed
    counters["hdfs_taken_over"] += seen is not None and seen != first
    counters["hdfs_eio"] += not closed
    if next_closed and stands != second:
        raise Violation(f"{path!r}: the writer that took over closed its file, and it does not stand")
    if closed and first not in (stands if seen is None or not next_closed else seen, seen):
        raise Violation(f"{path!r}: the first writer closed its file, and it was lost")


async def _beside(
    store: Store, paths: list[bytes], process: subprocess.Popen[str], rng: random.Random
) -> dict[bytes, tuple[bytes | None, bool]]:
    """Stop the process for a while; of each path what another writer saw that had the lock, and whether it closed."""
    found: dict[bytes, tuple[bytes | None, bool]] = {}

    async def stop() -> None:
        await trio.sleep(rng.uniform(0, 1.5))
        process.send_signal(signal.SIGSTOP)
        await trio.sleep(rng.uniform(0, 2 * SHORT_LEASE))
        process.send_signal(signal.SIGCONT)

    view = StripedStore(store)
    async with _drafts(view, WritePolicy(io_timeout=20.0), SHORT_LEASE) as drafts:

        async def write(path: bytes) -> None:
            await trio.sleep(rng.uniform(0, 3 * SHORT_LEASE))
            seen, closed = None, False
            try:
                draft = await _begin(view, drafts, rng.choice(LAYOUTS), append=False, path=path)
                try:
                    seen = bytes(await trio.to_thread.run_sync(view.get, path))
                except NotFound:
                    seen = b""
                await draft.write(0, _content(path, 2))
                await draft.publish(final=True)
                closed = True
            except StoreError:
                closed = False
            found[path] = (seen, closed)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop)
            for path in paths:
                nursery.start_soon(write, path)
    return found


def _content(path: bytes, writer: int) -> bytes:
    return b"%d %b;" % (writer, path) * 5000


async def _first(url: str, conf: str, names: list[str], seed: float) -> None:
    rng, closed = random.Random(seed), {}
    store = open_store(StoreSettings(url=url, hadoop_conf=conf))
    view = StripedStore(store)
    async with _drafts(view, WritePolicy(io_timeout=20.0), SHORT_LEASE) as drafts:

        async def write(path: bytes, draft: Draft) -> None:
            await trio.sleep(rng.uniform(0, 2))
            try:
                await draft.write(0, _content(path, 1))
                await draft.publish(final=True)
                closed[path] = True
            except StoreError:
                closed[path] = False

        paths = [name.encode() for name in names]
        begun = [(path, await _begin(view, drafts, rng.choice(LAYOUTS), append=False, path=path)) for path in paths]
        print("begun", flush=True)
        async with trio.open_nursery() as nursery:
            for path, draft in begun:
                nursery.start_soon(write, path, draft)
    print(json.dumps([closed[path] for path in paths]), flush=True)


if __name__ == "__main__":
    trio.run(_first, *json.loads(sys.argv[1]))
