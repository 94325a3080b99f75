"""Publications under partitions and pauses of several leases: no closed file is lost, and none overwrites another.

Most are of a model: the writers of the product on a store in memory, in virtual time (`simulation`), so the same seed
gives the same history on any machine. While a writer is held up others come. A request of a writer may be

    slow       it has its effect up to four leases later, and is answered then; or at once, and is answered that late.
               Its caller gives it up when its time-out ends, and its thread goes on whenever the answer comes.
    lost       it has its effect, and an error for its answer
    refused    it has none, and an error for its answer
    late       it has an error for its answer, and its effect up to four leases later

and the process of a writer may be

    stopped    nothing in it runs for up to four leases, while what it has asked for has its effect
    asleep     the same, and the clock of its event loop stands still, as when the machine sleeps
    cut off    each of its requests is refused for up to four leases
    killed     it never goes on; the next worker of the same mount comes at once and takes its lock for a dead one's

Three rules are judged, at the moment at which a version comes to the name and when a publication succeeds:

1. Fencing. A version comes to the name only while the lock file names its writer, or as long as nobody else has been
   granted the lock since it named this writer last. The lock is granted when `acquire` returns to whoever asked for it,
   whether they wait for it still or not. A lock file that somebody has put without having been granted the lock fences
   nobody: its writer has looked at nothing yet.
2. Continuity. A version that continues another one comes to the name only while that other one stands there. So what a
   writer appended is in every later version that was appended to.
3. A publication that succeeded was at the name, and in the end the version stands that came there last.

The others are on HDFS (`publication_hdfs`).
"""

from __future__ import annotations

import itertools
import math
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar
from unittest import mock

import trio

from stripefs.errors import Busy, Exists, NotFound, ServiceDown, StoreError
from stripefs.format.lock_and_record import LEASE
from stripefs.store.base import Sink, Status, Store
from stripefs.store.striped import StripedStore
from stripefs.store.wrapper import CHANGES, Parser, WrappedSink, WrappedStore
from stripefs.write import FileUpload, Layout, upload_locks
from stripefs.write.file_lock import FileLock, acquire, lock_path, read_lock
from tests.soak.right import Context, Violation
from tests.soak.right.publication_hdfs import ROUNDS, begin, drafts_of, play
from tests.support.memory_store import MemoryStore
from tests.support.simulation import Process, Simulation
from tests.support.uploads import KIB, policy

PUBLICATIONS = 1900
"""Of the model."""

FILE = b"/file"
LOCK = lock_path(FILE)
SIZES = (3, 40 * KIB, 300 * KIB)
LAYOUTS = list(Layout)
TIMEOUTS = (3.0, 20.0, 90.0)
"""Of writers, in seconds."""

_REQUEST = ("slow", "lost", "refused", "late")
_PROCESS = ("stopped", "asleep", "cut_off", "killed")
KINDS = (*_REQUEST, *_PROCESS)

_SELDOM, _OFTEN = 0.03, 0.25
"""Shares of requests that meet a fault: of all, and of those that change the lock file or look whom to fence."""

LONGEST = 4
"""Leases that a fault lasts at most."""

MOST = 8
"""Writers of one file."""

_T = TypeVar("_T")


def check(context: Context) -> dict[str, int | float]:
    """Counts by outcome. Raises Violation for a closed file that is lost and for a writer that is overwritten."""
    counters: Counter[str] = Counter()
    model(context, counters)
    for how, rounds in ROUNDS.items():
        for number in range(context.count(rounds)):
            play(context, how, number, counters)
            context.say(f"publication: {dict(counters)}")
    return dict(counters)


def model(context: Context, counters: Counter[str]) -> None:
    """The part that needs no cluster. The counter `history` is a sum over all that happened, in its order."""
    rng = context.random("model")
    wanted, number = context.count(PUBLICATIONS), 0
    while counters["publications"] < wanted:
        number += 1
        World(random.Random(rng.random()), counters, f"model {number}").run()
        if number % 100 == 0:
            context.say(f"publication: {dict(counters)}")


# -- the model


class World:
    """One file, its writers, and a record of who held its lock and what came to its name."""

    def __init__(self, rng: random.Random, counters: Counter[str], name: str) -> None:
        self.rng, self.counters, self.name = rng, counters, name
        self.simulation = Simulation(random.Random(rng.random()))
        self.store = MemoryStore(lambda: int((1e9 + self.simulation.now) * 1e9))
        self.clients: list[Client] = []
        self.holders: list[str] = []
        """Owners that the lock file has named, "" for a time without one, oldest first."""
        self.granted: set[str] = set()
        self.visible = [0]
        """Versions that came to the name; 0 is none."""
        self.contents = {0: b""}
        self.continued: dict[int, int] = {}
        self.closed: set[int] = set()
        self.broken: list[str] = []

    def run(self) -> None:
        with self.simulation.patched(), mock.patch.object(upload_locks, "acquire", self.acquire):
            when = 0.0
            for _ in range(self.rng.randint(1, 3)):
                self.add_writer(when)
                when += self.rng.uniform(0, 2 * LEASE)
            self.simulation.run()
            self.judge()
            for client in self.clients:
                if client.killed:  # its threads are to end, and harm nobody
                    client.cut_off_until = math.inf
                    self.simulation.resume(client.process)
            self.simulation.run()

    # -- writers -----------------------------------------------------------------------------------------------------

    def add_writer(self, seconds: float, mount: str = "") -> None:
        """Somebody wants the file, so many seconds from now. mount: whose next worker that is."""
        if len(self.clients) >= MOST:
            return
        client = Client(self.store, self, mount or f"mount {len(self.clients)}")
        self.clients.append(client)
        if self.rng.random() < 0.1:
            self.simulation.begin(client.process, lambda: self._hold(client), seconds)
        else:
            run = self.simulation.run_trio
            self.simulation.begin(client.process, lambda: run(client.process, lambda: self._write(client)), seconds)

    def _hold(self, client: Client) -> None:
        """A collector: it has the lock for a while and publishes nothing."""
        self.counters["collectors"] += 1
        try:
            lock = self.acquire(client, FILE, (), f"{client.mount}/collector")
            try:
                self.simulation.pause(self.rng.uniform(0, LEASE / 2))
            finally:
                lock.release()
        except StoreError:
            self.counters["collectors_busy"] += 1

    async def _write(self, client: Client) -> None:
        rng = self.rng
        view = StripedStore(client)
        async with drafts_of(view, policy(io_timeout=rng.choice(TIMEOUTS)), LEASE, client.mount) as uploads:
            self.counters["writers"] += 1
            try:
                append = rng.random() < 0.4
                upload = await begin(view, uploads, rng.choice(LAYOUTS), append=append, path=FILE)
                base = client.base if upload.published is not None else None
                for final in (False, True) if rng.random() < 0.3 else (True,):
                    base = await self._publish(client, upload, base, final=final)
            except (Busy, Exists):
                self.counters["busy"] += 1
            except StoreError:
                self.counters["eio"] += 1

    async def _publish(self, client: Client, upload: FileUpload, base: int | None, *, final: bool) -> int:
        """base: the version that is continued, None where the file is written from its start."""
        rng, version = self.rng, len(self.contents)
        self.counters["publications"] += 1
        data = b"%d;" % version * (rng.choice(SIZES) // 3)
        self.contents[version] = (b"" if base is None else self.contents[base]) + data
        if base is not None:
            self.continued[version] = base
        client.versions.append(version)
        await upload.write(upload.length, data)
        for _ in range(rng.randint(0, 2)):
            await trio.sleep(rng.uniform(0, LEASE))
        if rng.random() < 0.3:
            await upload.sync()
        await upload.publish(final=final)
        if client.killed:  # and goes on since all was judged, so that its threads end
            return version
        self.closed.add(version)
        self.counters["closed"] += 1
        if version not in self.visible:
            self.broken.append(f"version {version} of {client.mount} was closed and never was there")
        return version

    # -- events ------------------------------------------------------------------------------------------------------

    def acquire(self, store: Store, path: bytes, versions: Sequence[str], owner: str, **options: Any) -> FileLock:
        """As `file_lock.acquire`; from now on the lock is granted to this writer."""
        assert isinstance(store, Client)
        store.owner = owner
        lock = acquire(store, path, versions, owner, **options)
        self.granted.add(owner)
        store.base = self.visible[-1]
        return lock

    def changed(self, client: Client, call: str, paths: tuple[bytes, ...]) -> None:
        """A change was made in the store."""
        if LOCK in paths:
            held = read_lock(self.store, LOCK)
            owner = "" if held is None else held.owner
            if owner and self.holders and self.holders[-1] not in ("", owner):
                self.counters["taken_over"] += 1
            self.holders.append(owner)
        if {"rename": paths[-1], "concat": paths[0]}.get(call) == FILE:
            self._published(client)

    def _published(self, client: Client) -> None:
        found = bytes(StripedStore(self.store).get(FILE))
        version = next((each for each in client.versions if self.contents[each] == found), 0)
        before, owner = self.visible[-1], client.owner
        self.visible.append(version)
        self.counters["published"] += 1
        what = f"version {version} of {owner}"
        if not version:
            self.broken.append(f"{owner} published what it never wrote")
        if owner not in self.holders:
            self.broken.append(f"{what} came without a lock")
        elif others := self.granted.intersection(itertools.takewhile(lambda each: each != owner, self.holders[::-1])):
            self.broken.append(f"{what} came when {sorted(others)} had the lock")
        if self.continued.get(version, before) != before:
            self.broken.append(f"{what} continues {self.continued[version]} and took the place of {before}")

    def delayed(self, seconds: float) -> None:
        """Let others come while a fault lasts, one alone or some of them together."""
        self.counters["pauses"] += 1
        while self.rng.random() < 0.7:
            when = self.rng.uniform(0, seconds)
            if self.rng.random() < 0.5:  # a lock that nobody renews runs out now, or that of who takes it over then
                when = self.rng.randint(1, LONGEST) * LEASE + self.rng.uniform(-1, 5)
            for _ in range(self.rng.choice((1, 1, 2, 3))):
                self.add_writer(when + self.rng.uniform(0, 0.02))

    def note(self, event: str) -> None:
        """Goes into the sum that tells two histories apart."""
        self.counters["history"] = zlib.crc32(f"{self.simulation.now} {event}".encode(), self.counters["history"])

    def judge(self) -> None:
        """At the end, when nothing is on its way any more."""
        self.counters["abandoned"] += self.simulation.abandoned
        self.counters["published_and_eio"] += len(set(self.visible[1:]) - self.closed)
        try:
            found = bytes(StripedStore(self.store).get(FILE))
        except NotFound:
            found = b""
        if found != self.contents[self.visible[-1]]:
            self.broken.append(f"of {self.visible} the last does not stand")
        if self.broken:
            raise Violation(f"{self.name}: {'; '.join(self.broken)}; came: {self.visible}, closed: {self.closed}")


class _Fate(NamedTuple):
    """Of a request. there: seconds until it has its effect, None for never. back: seconds from then on until it is
    answered; or, where it is not, from now on until an error takes the answer's place."""

    there: float | None
    back: float
    answered: bool = True


class _Outcome(NamedTuple, Generic[_T]):
    value: _T | None
    error: StoreError | None


class Client(WrappedStore):
    """The store as one process has it. mount: what locks name it by, the same for the next worker of its mount."""

    NAME = "client"
    PARAMETERS: ClassVar[dict[str, Parser]] = {}

    def __init__(self, inner: Store, world: World, mount: str) -> None:
        super().__init__(inner)
        self._world, self.mount = world, mount
        self.process = Process()
        self.owner = ""
        self.base = 0
        self.versions: list[int] = []
        self.cut_off_until = 0.0
        self.killed = False
        self._faults = world.rng.randint(0, 3)
        self._at_the_step = world.rng.random() < 0.5

    def on_query(self, call: str, path: bytes, act: Callable[[], _T]) -> _T:
        return self._ask(call, (path,), act)

    def on_change(self, call: str, paths: tuple[bytes, ...], act: Callable[[], _T]) -> _T:
        def change() -> _T:
            answer = act()
            self._world.changed(self, call, paths)
            return answer

        return self._ask(call, paths, change)

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        yield self._ask("scandir", (path,), lambda: list(itertools.chain(*self.inner.scandir(path, after))))

    def sink(self, path: bytes, host: str, inner: Sink) -> Sink:
        return _Closing(inner, lambda: self._ask("close", (path,), inner.close))

    def _ask(self, call: str, paths: tuple[bytes, ...], act: Callable[[], _T]) -> _T:
        world, simulation = self._world, self._world.simulation
        fate = self._fate(call, paths)
        activity = simulation.activity
        outcomes: list[_Outcome[_T]] = []

        def effect() -> None:
            try:
                outcome = _Outcome(act(), None)
            except StoreError as error:
                outcome = _Outcome(None, error)
            world.note(f"{self.owner or self.mount} {call} {paths} {outcome.error or ''}")
            if fate.answered:
                simulation.at(fate.back, lambda: answer(outcome))

        def answer(outcome: _Outcome[_T]) -> None:
            outcomes.append(outcome)
            simulation.wake(activity)

        if fate.there is not None:
            simulation.at(fate.there, effect)
        if not fate.answered:
            simulation.pause(fate.back)
            raise ServiceDown(f"no answer to {call}")
        simulation.wait_for(lambda: bool(outcomes))
        if (error := outcomes[0].error) is not None:
            raise error
        return outcomes[0].value  # type: ignore[return-value]  # there is one, unless an error

    def _fate(self, call: str, paths: tuple[bytes, ...]) -> _Fate:
        world, rng = self._world, self._world.rng
        simulation = world.simulation
        quick = rng.uniform(0, 0.005), rng.uniform(0, 0.005)
        if simulation.now < self.cut_off_until:
            return _Fate(None, rng.uniform(0, 2), answered=False)
        if self._at_the_step and {"rename": paths[-1], "concat": paths[0]}.get(call) == FILE:
            self._at_the_step = False
        elif self._faults and rng.random() < (_OFTEN if _is_critical(call, paths) else _SELDOM):
            self._faults -= 1
        else:
            return _Fate(*quick)
        kind = rng.choice(KINDS)
        world.counters[kind] += 1
        seconds = rng.uniform(0, rng.randint(1, LONGEST) * LEASE)
        world.delayed(seconds)
        if kind in _PROCESS:
            return self._process_fate(kind, seconds, *quick)
        there, back = quick
        if kind == "slow":
            return rng.choice((_Fate(seconds, back), _Fate(there, seconds)))
        return _Fate({"late": seconds, "lost": there, "refused": None}[kind], back, answered=False)

    def _process_fate(self, kind: str, seconds: float, there: float, back: float) -> _Fate:
        """The fault is of the process, before it asks for something or while it does."""
        world, rng, now = self._world, self._world.rng, self._world.simulation.now
        if kind == "cut_off":
            self.cut_off_until = now + seconds
            return _Fate(None, back, answered=False)
        if kind == "killed":
            self.killed = True
            self.process.stopped_until = math.inf
            world.add_writer(rng.uniform(0, 1), self.mount)
            return rng.choice((_Fate(there, back), _Fate(seconds, back), _Fate(None, back, answered=False)))
        self.process.stopped_until = now + seconds
        if kind == "asleep":
            self.process.slept += seconds
        if rng.random() < 0.5:  # before it has asked
            world.simulation.pause(0.001)
        return _Fate(there, back)


def _is_critical(call: str, paths: tuple[bytes, ...]) -> bool:
    return call == "scandir" or (LOCK in paths and call in CHANGES)


class _Closing(WrappedSink):
    def __init__(self, inner: Sink, close: Callable[[], Status]) -> None:
        super().__init__(inner)
        self._close = close

    def close(self) -> Status:
        return self._close()
