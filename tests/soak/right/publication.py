"""Publications under partitions and pauses of up to twice the lease: no closed file is lost, none overwrites another.

Most are of a model: the writers of the product on a local directory whose clock is moved. At chosen calls to the store
a writer is held up, for up to twice the lease, while other writers do as they like; or its call is refused, has its
effect and is answered by an error, or has its effect much later. What came to the name, and when, is written down, so
each publication is known to be of the writer that had the lock last.

The others are on HDFS (`publication_hdfs`).
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from unittest import mock

import trio

from stripefs import backoff
from stripefs.errors import Busy, Exists, NotFound, ServiceDown, StoreError
from stripefs.layout.record import LEASE
from stripefs.store.base import Store
from stripefs.store.wrappers.base import Parser, WrappedStore
from stripefs.store.wrappers.striped import StripedStore
from stripefs.write import Layout, clock, file_lock, locks
from stripefs.write.file_lock import FileLock, take
from tests.soak.right.context import Context, Violation
from tests.soak.right.publication_hdfs import ROUNDS, begin, drafts_of, play
from tests.unit.write.world import KIB, policy, spread

PUBLICATIONS = 1900
"""Of the model."""

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
    for how, rounds in ROUNDS.items():
        for number in range(context.count(rounds)):
            play(context, how, number, counters)
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
        async with drafts_of(view, policy(io_timeout=3.0), LEASE) as drafts:
            try:
                draft = await begin(view, drafts, layout, append=rng.random() < 0.3, path=FILE)
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
