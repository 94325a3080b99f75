"""A world of simulated hosts and readers in virtual time that drives the planner as the reader does, without I/O.

Hosts share their rate evenly among the reads under way, answer after a latency, and can be frozen (say nothing),
dead (refuse at once) or flaky (refuse with a chance). Everything follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stripefs.errors import HostFailed
from stripefs.read.planner import Attempt, FilePlan, Planner, Range, RangeState
from stripefs.read.planner.hosts import Limits
from stripefs.store.base import Block

MIB = 1 << 20
CLIENT_TIMEOUT = 5.0
TICK = 0.1


def placed(length: int, block: int, hosts: int, replication: int, seed: int) -> list[Block]:
    """Blocks on hosts drawn at random, as HDFS places them."""
    draw = random.Random(seed)
    return [
        Block(at, min(block, length - at), tuple(f"h{host}" for host in draw.sample(range(hosts), replication)))
        for at in range(0, length, block)
    ]


@dataclass(eq=False)
class Host:
    rate: float
    latency: float = 0.005
    frozen: bool = False
    dead: bool = False
    flaky: float = 0.0


@dataclass(eq=False)
class Client:
    """A reader: takes `reads` (offset, size) one after another."""

    file: FilePlan
    reads: list[tuple[int, int]]
    at: int = 0
    need: int = 0
    active: bool = False
    waits_for: Range | None = None
    errors: list[Exception] = field(default_factory=list)
    finished: float | None = None


@dataclass(eq=False)
class Transfer:
    attempt: Attempt
    host: Host
    begins: float
    left: float


class World:
    def __init__(self, limits: Limits, hosts: dict[str, Host], seed: int = 0) -> None:
        self.planner = Planner(limits)
        self.hosts = hosts
        self.now = 0.0
        self.clients: list[Client] = []
        self.transfers: list[Transfer] = []
        self.random = random.Random(seed)
        self.fetched: list[tuple[FilePlan, int, int]] = []
        self.events: list[tuple[float, object]] = []

    def open(self, blocks: Sequence[Block]) -> FilePlan:
        file = self.planner.open(blocks[-1].offset + blocks[-1].length)
        file.blocks.add(blocks)
        return file

    def client(self, file: FilePlan, reads: Iterable[tuple[int, int]]) -> Client:
        client = Client(file, list(reads))
        self.clients.append(client)
        return client

    def drain(self) -> None:
        """Until nothing is under way any more."""
        while self.transfers:
            self._step(self.now + 1)

    def at(self, time: float, action: object) -> None:
        """Call `action()` at `time`."""
        self.events.append((time, action))
        self.events.sort(key=lambda event: event[0])

    def run(self, until: float = 1e6) -> None:
        """Until every client has finished; fails when time runs out, which means that a reader hangs."""
        next_tick = 0.0
        while True:
            while self._advance_clients():
                pass
            assert self.planner.pool.used <= self.planner.pool.budget
            if all(client.finished is not None for client in self.clients):
                return
            if self.now >= next_tick:
                self._launch(self.planner.overdue(self.now))
                self.planner.tick(self.now)
                self._pump()
                next_tick = self.now + TICK
            self._step(next_tick)
            assert self.now < until, f"readers hang: {[client.at for client in self.clients]}"

    def _step(self, limit: float) -> None:
        flowing = [t for t in self.transfers if t.begins <= self.now and not t.host.frozen]
        shares = {id(t): t.host.rate / sum(other.host is t.host for other in flowing) for t in flowing}
        until = min(
            [limit]
            + [t.begins for t in self.transfers if t.begins > self.now]
            + [self.now + t.left / shares[id(t)] for t in flowing]
            + [time for time, _ in self.events[:1]]
        )
        for t in flowing:
            t.left -= shares[id(t)] * (until - self.now)
            if self.now < until:
                t.attempt.progress_at = until
        self.now = until
        while self.events and self.events[0][0] <= self.now:
            self.events.pop(0)[1]()  # type: ignore[operator]  # an action is a plain callable
        for t in list(self.transfers):
            if t in self.transfers:
                self._settle(t)

    def _settle(self, t: Transfer) -> None:
        error: HostFailed | None = None
        if t.host.dead and self.now >= t.begins:
            error = HostFailed("refused", host=t.attempt.host)
        elif t.host.frozen and self.now - max(t.begins, t.attempt.progress_at) > CLIENT_TIMEOUT:
            error = HostFailed("silent", host=t.attempt.host, stalled=True)
        elif not t.attempt.cancelled and (t.left > 1e-3 or self.now < t.begins):
            return
        self.transfers.remove(t)
        if error is None and self.random.random() < t.host.flaky:
            error = HostFailed("flaky", host=t.attempt.host)
        if error is not None or t.attempt.cancelled:
            self.planner.failed(t.attempt, error or HostFailed("cancelled"), self.now)
        else:
            range_ = t.attempt.range
            self.fetched.append((range_.file, range_.offset, range_.end))
            self.planner.succeeded(t.attempt, (range_.offset, range_.end), self.now)
        self._pump()

    def _pump(self) -> None:
        self._launch(self.planner.dispatch(self.now))

    def _launch(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            host = self.hosts[attempt.host]
            attempt.progress_at = self.now
            self.transfers.append(Transfer(attempt, host, self.now + host.latency, attempt.range.length))

    def _advance_clients(self) -> bool:
        return sum(self._advance(client) for client in self.clients if client.finished is None) > 0

    def _advance(self, client: Client) -> bool:
        """One step of one reader; False when it can only wait."""
        if client.at == len(client.reads):
            client.finished = self.now
            return True
        offset, size = client.reads[client.at]
        try:
            if not client.active:
                self.planner.read(client.file, offset, size, self.now)
                client.active, client.need = True, offset
            return self._take(client, offset + size)
        except HostFailed as error:
            client.errors.append(error)
            self._next(client)
            return True

    def _take(self, client: Client, end: int) -> bool:
        range_ = client.waits_for
        if range_ is None:
            range_ = self.planner.need(client.file, client.need, self.now)
            if range_.state is RangeState.WANTED:
                self._pump()
        if range_.state in (RangeState.WANTED, RangeState.FETCHING):
            if client.waits_for is None:
                range_.waiters += 1
                client.waits_for = range_
            return False
        if client.waits_for is not None:
            range_.waiters -= 1
            client.waits_for = None
        if range_.state is RangeState.FAILED and range_.error is not None:
            raise range_.error
        if range_.state is RangeState.READY and client.need < range_.end:
            assert range_.offset <= client.need
            assert range_.data == (range_.offset, range_.end)
            client.need = min(end, range_.end)
            self._pump()
            if client.need == end:
                self._next(client)
        return True

    def _next(self, client: Client) -> None:
        client.active = False
        client.at += 1


def limits(**changed):
    given = {"budget": 256 * MIB, "range_size": 8 * MIB, "threads": 32, "per_host": 3, "io_timeout": 90.0, **changed}
    return Limits(**given)


def eight(**changed):
    return {f"h{number}": Host(**{"rate": 40e6, **changed}) for number in range(8)}


def sequential(length, step=MIB):
    return [(at, min(step, length - at)) for at in range(0, length, step)]


def dealt(length):
    """8 MiB blocks dealt out to eight hosts in turn, so that only the policy can lose speed."""
    blocks = placed(length, 8 * MIB, 1, 1, 0)
    return [type(block)(block.offset, block.length, (f"h{n % 8}",)) for n, block in enumerate(blocks)]


def played(blocks, *readers, late=None, hosts=None, **changes):
    """The world after these readers have read one file of these blocks, each by its list of reads. late: when one more
    reader comes, and its reads."""
    world = World(limits(**changes), hosts or eight())
    file = world.open(blocks)
    for reads in readers:
        world.client(file, reads)
    if late:
        world.at(late[0], lambda: world.client(file, late[1]))
    world.run()
    return world
