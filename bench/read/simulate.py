"""The reader's own policy against simulated data hosts: what its choices cost, without a cluster.

`simulate` drives `stripefs.read.planner.Planner`, the very code that a mount runs, with a virtual clock. A host answers
after `latency` and then shares its `rate` equally among the reads under way there; the reader asks for 1 MiB after the
other, as the kernel does, and takes each at `reader_rate`. The result is compared with `placement_limit` for the
same blocks, rates and budget.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.harness.data import MIB, Extent
from bench.read.model import placement_limit
from stripefs.errors import Abandoned, HostFailed, StoreError
from stripefs.read.planner import Attempt, FilePlan, Planner, RangeState
from stripefs.read.planner.hosts import Limits
from stripefs.store.base import Block

__all__ = ["Outcome", "Scenario", "SimulatedHost", "compare", "random_placement", "simulate"]

_STEP = MIB
_WATCH = 0.1  # seconds between looks at slow attempts, as in stripefs.read.reader
_SILENT = 5.0  # seconds after which a client gives a silent host up (`--host-timeout`)


@dataclass(frozen=True, slots=True)
class SimulatedHost:
    """rate in bytes a second, latency in seconds; from `frozen_at` seconds on it sends nothing more."""

    rate: float
    latency: float = 0.005
    frozen_at: float = math.inf


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulated reading. seconds from first request to last byte; rates in bytes a second."""

    seconds: float
    throughput: float
    limit: float
    starved: int
    hedges: int
    fetched: int
    peak: int

    @property
    def efficiency(self) -> float:
        """The share of what placement allows."""
        return self.throughput / self.limit


@dataclass(slots=True, eq=False)
class _Transfer:
    attempt: Attempt
    begins: float
    left: float
    moved_at: float


@dataclass(slots=True)
class _World:
    """Hosts and what they send. Between two events every host's speed is constant."""

    hosts: Mapping[str, SimulatedHost]
    now: float = 0.0
    transfers: dict[str, list[_Transfer]] = field(default_factory=dict)

    def start(self, attempt: Attempt) -> None:
        host = self.hosts[attempt.host]
        transfer = _Transfer(attempt, self.now + host.latency, attempt.range.length, self.now)
        self.transfers.setdefault(attempt.host, []).append(transfer)

    def speed(self, name: str) -> tuple[float, list[_Transfer]]:
        """Bytes a second of each transfer that has begun at this host, and these transfers."""
        host = self.hosts[name]
        active = [t for t in self.transfers.get(name, ()) if t.begins <= self.now]
        frozen = self.now >= host.frozen_at
        return (0.0 if frozen or not active else host.rate / len(active)), active

    def next_event(self) -> float:
        times = [math.inf]
        for name, transfers in self.transfers.items():
            speed, active = self.speed(name)
            times += [t.begins for t in transfers if t.begins > self.now]
            if speed:
                times.append(self.now + min(t.left for t in active) / speed)
            if self.now < self.hosts[name].frozen_at:
                times.append(self.hosts[name].frozen_at)
        return min(times)

    def advance(self, until: float) -> list[tuple[Attempt, StoreError | None]]:
        """Move the clock, no further than the next event, and answer the attempts that ended."""
        ended: list[tuple[Attempt, StoreError | None]] = []
        for name in list(self.transfers):
            speed, active = self.speed(name)
            for transfer in active:
                transfer.left -= speed * (until - self.now)
                if speed:
                    transfer.moved_at = transfer.attempt.progress_at = until
        self.now = until
        for name, transfers in self.transfers.items():
            for transfer in list(transfers):
                outcome = self._end(name, transfer)
                if outcome is not None:
                    transfers.remove(transfer)
                    ended.append(outcome)
        return ended

    def _end(self, name: str, transfer: _Transfer) -> tuple[Attempt, StoreError | None] | None:
        if transfer.left <= 1e-6 * transfer.attempt.range.length:
            return transfer.attempt, None
        if transfer.attempt.cancelled:
            return transfer.attempt, Abandoned("cancelled")
        if self.now - transfer.moved_at >= _SILENT:
            return transfer.attempt, HostFailed("silent", host=name, stalled=True)
        return None


def simulate(
    extents: Sequence[Extent],
    hosts: Mapping[str, SimulatedHost],
    limits: Limits,
    reader_rate: float = math.inf,
) -> Outcome:
    """Read a file of these extents from start to end. Raises StoreError where the policy gives a range up."""
    world, planner = _World(hosts), Planner(limits)
    size = sum(extent.length for extent in extents)
    file = planner.open(size)
    file.blocks.add([Block(extent.offset, extent.length, extent.hosts) for extent in extents])
    reader = _Reader(planner, file, size, reader_rate)
    next_watch = _WATCH
    while not reader.done(world.now):
        for attempt in planner.dispatch(world.now):
            attempt.progress_at = attempt.started
            world.start(attempt)
        until = min(world.next_event(), next_watch, reader.busy_until if reader.busy_until > world.now else math.inf)
        for attempt, error in world.advance(until):
            if error is None:
                planner.succeeded(attempt, b"", world.now)
            elif failed := planner.failed(attempt, error, world.now):
                raise failed[0].error or error
        if world.now >= next_watch:
            for attempt in planner.overdue(world.now):
                attempt.progress_at = attempt.started
                world.start(attempt)
            if round(next_watch / _WATCH) % 10 == 0:
                planner.tick(world.now)
            next_watch += _WATCH
    rates = {name: host.rate for name, host in hosts.items()}
    limit = min(placement_limit(extents, rates, limits.budget), reader_rate)
    seconds = reader.busy_until
    pool = planner.pool
    return Outcome(seconds, size / seconds, limit, planner.starved, planner.hedges, planner.bytes_fetched, pool.peak)


@dataclass(slots=True)
class _Reader:
    """Reads 1 MiB after the other; `busy_until` is when it has taken what it last got."""

    planner: Planner
    file: FilePlan
    size: int
    rate: float
    position: int = 0
    asked: bool = False
    busy_until: float = 0.0

    def done(self, now: float) -> bool:
        """Take all that is here by `now`; whether that was the last byte."""
        while self.position < self.size and self.busy_until <= now:
            length = min(_STEP, self.size - self.position)
            if not self.asked:
                self.planner.read(self.file, self.position, length, now)
                self.asked = True
            if not self._here(self.position, length, now):
                return False
            self.position += length
            self.asked = False
            self.busy_until = now + length / self.rate
        return self.position >= self.size

    def _here(self, offset: int, length: int, now: float) -> bool:
        end = offset + length
        while offset < end:
            range_ = self.planner.need(self.file, offset, now)
            if range_.state is not RangeState.READY:
                return False
            offset = range_.end
        return True


def random_placement(
    size: int, block_size: int, hosts: Sequence[str], replication: int = 1, seed: int = 0
) -> list[Extent]:
    """Blocks whose replicas lie on hosts chosen at random, as HDFS does for a client outside the cluster."""
    chance = random.Random(seed)
    return [
        Extent(offset, min(block_size, size - offset), tuple(chance.sample(hosts, replication)))
        for offset in range(0, size, block_size)
    ]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A file, a cluster and the settings of a reader; sizes in bytes, rate in bytes a second."""

    size: int = 2048 * MIB
    block_size: int = 8 * MIB
    replication: int = 1
    hosts: int = 8
    rate: float = 40e6
    latency: float = 0.005
    limits: Limits = field(default_factory=lambda: Limits(1024 * MIB, 8 * MIB, 32, 3, 90.0))

    def run(self, seed: int) -> Outcome:
        names = [f"host{number}" for number in range(self.hosts)]
        extents = random_placement(self.size, self.block_size, names, self.replication, seed)
        return simulate(extents, dict.fromkeys(names, SimulatedHost(self.rate, self.latency)), self.limits)


def compare(scenario: Scenario, seeds: int = 5) -> str:
    """A table: one setting changed at a time, the share of the placement limit over `seeds` placements."""
    lines = [f"{'setting':24} {'MB/s':>6} {'limit':>6} {'share':>6} {'worst':>6} {'starved':>8} {'peak MiB':>9}"]
    for name, changed in _variants(scenario):
        outcomes = [changed.run(seed) for seed in range(seeds)]
        shares = [outcome.efficiency for outcome in outcomes]
        rate = statistics.median(outcome.throughput for outcome in outcomes) / 1e6
        limit = statistics.median(outcome.limit for outcome in outcomes) / 1e6
        starved = statistics.median(outcome.starved for outcome in outcomes)
        peak = max(outcome.peak for outcome in outcomes) / MIB
        share = f"{statistics.median(shares):6.3f} {min(shares):6.3f}"
        lines.append(f"{name:24} {rate:6.0f} {limit:6.0f} {share} {starved:8.0f} {peak:9.0f}")
    return "\n".join(lines)


def _variants(scenario: Scenario) -> list[tuple[str, Scenario]]:
    limits = scenario.limits
    changes = [("as given", limits)]
    changes += [
        (f"range size {s} MiB", replace(limits, range_size=s * MIB)) for s in (2, 4, 16) if s * MIB != limits.range_size
    ]
    changes += [(f"{n} reads a host", replace(limits, per_host=n)) for n in (1, 2, 3, 4, 6) if n != limits.per_host]
    changes += [(f"{n} threads", replace(limits, threads=n)) for n in (16, 32, 64) if n != limits.threads]
    changes += [
        (f"budget {b} MiB", replace(limits, budget=b * MIB)) for b in (128, 256, 512, 2048) if b * MIB != limits.budget
    ]
    return [(name, replace(scenario, limits=changed)) for name, changed in changes]
