"""A discrete-event model of a fleet that starts one job: how long until the slowest node is ready. Pure.

Every server (the store, each mirror, each DataNode, each node's own link) serves one piece at a time at its rate, in
the order in which they were asked for, which shares it fairly between those who ask at once. A node fetches each stage
by so many streams, each with one request under way. The pieces of a request pass the source one after the other, while
those before them are on the node's link. A mirror fetches each slice once, from the store; whoever wants it meanwhile
looks every `poll` seconds whether it is there, as nginx does.

Processors are a server of their own: of each node in a fleet, or one that all nodes share where a fleet is played on
one machine.

Pieces of large fleets are larger, so that a run has some hundred thousand of them at most.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import simpy

__all__ = ["DATANODES", "MIRROR", "STORE", "Result", "Stage", "World", "simulate"]

STORE: Literal["store"] = "store"
MIRROR: Literal["mirror"] = "mirror"
DATANODES: Literal["datanodes"] = "datanodes"

_PIECE = 1 << 20
_PIECES = 100_000
"""Bytes of a piece at least, and pieces of a run about at most."""

_FEWEST = 4
"""Pieces of a stage at least, for its streams to have some."""

_Process = Generator[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class World:
    """Rates in bytes a second, latency in seconds for each request.

    mirrors: 0 for none; then nodes ask the store. poll: seconds between two looks for a slice that another request
    fetches. cores: of each node; shared: all nodes have them together.
    failures: the probability that a MiB does not come, which is noticed after `timeout` seconds and asked again.
    slow_datanodes: the share of them that is slower, `slow_factor` times.
    """

    store: float
    node: float
    mirrors: int = 0
    mirror: float = 0.0
    poll: float = 0.5
    datanodes: int = 0
    datanode: float = 0.0
    replication: int = 1
    latency: float = 0.0
    cores: int = 1
    shared: bool = False
    failures: float = 0.0
    timeout: float = 5.0
    slow_datanodes: float = 0.0
    slow_factor: float = 4.0


@dataclass(frozen=True, slots=True)
class Stage:
    """Part of a start on each node.

    size, request: bytes of all and of one request. cpu: seconds of one core, spread over the pieces. fixed: seconds
    that pass before. after: stages that end before this begins. common: all nodes fetch the same bytes, which a mirror
    has after the first; else each node has its own. chosen: of the DataNodes of a block, the one with the least to do
    is asked, else any.
    """

    name: str
    size: float = 0.0
    source: Literal["store", "mirror", "datanodes"] = STORE
    streams: int = 1
    request: float = 4 << 20
    cpu: float = 0.0
    fixed: float = 0.0
    after: tuple[str, ...] = ()
    common: bool = True
    chosen: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds until the slowest node and the middle one were ready, and until the slowest had done with each stage."""

    slowest: float
    median: float
    stages: Mapping[str, float]


def simulate(stages: Sequence[Stage], nodes: int, world: World, seed: int = 0) -> Result:
    """One start on so many nodes. Raises ValueError for stages or a world that do not fit together."""
    names = [stage.name for stage in stages]
    for number, stage in enumerate(stages):
        if not set(stage.after) <= set(names[:number]):
            raise ValueError(f"{stage.name} begins after {', '.join(stage.after)}, which are not all before it")
        if stage.source == DATANODES and not (world.datanodes and world.datanode):
            raise ValueError(f"{stage.name} reads DataNodes, of which there are none")
    fleet = _Fleet(world, nodes, len(stages), random.Random(seed))
    runs = [_Node(fleet, number, stages) for number in range(nodes)]
    fleet.env.run()
    ends = [max(run.ended.values()) for run in runs]
    return Result(max(ends), statistics.median(ends), {name: max(run.ended[name] for run in runs) for name in names})


@dataclass(slots=True)
class _Server:
    env: simpy.Environment
    rate: float
    line: simpy.Resource = field(init=False)

    def __post_init__(self) -> None:
        self.line = simpy.Resource(self.env)

    @property
    def waiting(self) -> int:
        return len(self.line.queue) + self.line.count

    def serve(self, size: float) -> _Process:
        with self.line.request() as turn:
            yield turn
            yield self.env.timeout(size / self.rate)


class _Mirror:
    """Serves the slices it has; one that it has not it fetches once, while all others who want it wait."""

    def __init__(self, fleet: _Fleet) -> None:
        self._fleet = fleet
        self._out = _Server(fleet.env, fleet.world.mirror)
        self._there: dict[object, bool] = {}

    def serve(self, key: object, size: float) -> _Process:
        fleet = self._fleet
        if key not in self._there:
            self._there[key] = False
            yield from fleet.ask(fleet.store, size)
            self._there[key] = True
        while not self._there[key]:
            yield fleet.env.timeout(fleet.world.poll)
        yield from self._out.serve(size)


class _Fleet:
    def __init__(self, world: World, nodes: int, stages: int, rng: random.Random) -> None:
        self.env = simpy.Environment()
        self.world, self.rng = world, rng
        self.pieces = max(_PIECES // max(nodes * stages, 1), _FEWEST)
        self.store = _Server(self.env, world.store)
        self.mirrors = [_Mirror(self) for _ in range(world.mirrors)]
        slow = round(world.slow_datanodes * world.datanodes)
        self.datanodes = [
            _Server(self.env, world.datanode / (world.slow_factor if number < slow else 1))
            for number in range(world.datanodes)
        ]
        self.processors = simpy.Resource(self.env, world.cores) if world.shared else None

    def ask(self, server: _Server, size: float) -> _Process:
        """A request of its own."""
        yield self.env.timeout(self.world.latency)
        yield from self.read(server, size)

    def read(self, server: _Server, size: float) -> _Process:
        """A piece of a request, again for as long as it fails."""
        failing = 1 - (1 - self.world.failures) ** (size / _PIECE)
        while self.rng.random() < failing:
            yield self.env.timeout(self.world.timeout + self.world.latency)
        yield from server.serve(size)

    def datanode(self, *, chosen: bool) -> _Server:
        copies = self.rng.sample(self.datanodes, min(self.world.replication, len(self.datanodes)))
        return min(copies, key=lambda one: one.waiting / one.rate) if chosen else copies[0]


class _Node:
    def __init__(self, fleet: _Fleet, number: int, stages: Sequence[Stage]) -> None:
        self._fleet, self._number = fleet, number
        self._env = fleet.env
        self._link = _Server(fleet.env, fleet.world.node)
        self._processors = fleet.processors or simpy.Resource(fleet.env, fleet.world.cores)
        self._done: dict[str, simpy.Event] = {stage.name: fleet.env.event() for stage in stages}
        self.ended: dict[str, float] = {}
        for stage in stages:
            fleet.env.process(self._run(stage))

    def _run(self, stage: Stage) -> _Process:
        yield self._env.all_of([self._done[name] for name in stage.after])
        yield self._env.timeout(stage.fixed)
        count = max(min(round(stage.size / _PIECE), self._fleet.pieces), 1)
        together = max(round(stage.request / (stage.size / count)), 1) if stage.size else 1
        waiting = [range(first, min(first + together, count)) for first in range(0, count, together)]
        yield self._env.all_of(
            [self._env.process(self._stream(stage, waiting, count)) for _ in range(min(stage.streams, len(waiting)))]
        )
        self.ended[stage.name] = self._env.now
        self._done[stage.name].succeed()

    def _stream(self, stage: Stage, waiting: list[range], count: int) -> _Process:
        size, cpu = stage.size / count, stage.cpu / count
        while waiting:
            request, passed = waiting.pop(0), []
            yield self._env.timeout(self._fleet.world.latency if size else 0.0)
            server = self._fleet.datanode(chosen=stage.chosen) if stage.source == DATANODES else None
            for piece in request:
                if size:
                    yield from self._fetch(stage, piece, size, server)
                passed.append(self._env.process(self._deliver(size, cpu)))
            yield self._env.all_of(passed)

    def _fetch(self, stage: Stage, piece: int, size: float, server: _Server | None) -> _Process:
        fleet = self._fleet
        if stage.source == MIRROR and fleet.mirrors:
            mirror = fleet.mirrors[self._number % len(fleet.mirrors)]
            yield from mirror.serve((stage.name, piece) if stage.common else (stage.name, piece, self._number), size)
        else:
            yield from fleet.read(server or fleet.store, size)

    def _deliver(self, size: float, cpu: float) -> _Process:
        if size:
            yield from self._link.serve(size)
        if cpu:
            with self._processors.request() as turn:
                yield turn
                yield self._env.timeout(cpu)
