"""The rate that placement allows: a fluid model of DataNodes that serve a reader through a window.

Each DataNode serves, at a fixed rate, its earliest byte that has not been read yet and that lies less than `budget`
bytes past the reader; the reader takes every byte at once and so stands at the first byte nobody has delivered. With
few blocks a DataNode, chance gives some more than others: the fullest decides the end, and a small budget makes the
others wait for it on the way. No scheduler can be faster with the same budget, rates and owners of blocks.

The simulation is exact: between two events (a block ends, a DataNode meets the edge of the window, the edge meets a
DataNode's next block) all DataNodes move at constant speeds. A DataNode at the edge moves at the speed of the reader.

Where blocks have several replicas each block is first given whole to one of them (`assign`): in file order, so that
every prefix of the file is spread as evenly as its replicas allow (augmenting paths), which is optimal in balance and
greedy in order. A reader may beat this limit a little by taking one block from two replicas.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.harness.data import Extent

__all__ = ["assign", "placement_limit"]


def placement_limit(extents: Sequence[Extent], rates: float | Mapping[str, float], budget: float) -> float:
    """Bytes a second at which the file can be read from start to end.

    `extents` cover the file in order without gaps; `rates` are bytes a second of each host (or of all), `budget` is in
    bytes; all must be positive. Raises ValueError otherwise.
    """
    if budget <= 0:
        raise ValueError(f"a budget of {budget} bytes reads nothing")
    owned = assign(extents)
    speed = {host: rates[host] if isinstance(rates, Mapping) else rates for host in owned}
    if not owned or min(speed.values()) <= 0:
        raise ValueError("a file of at least one block on hosts with rates above 0 is needed")
    servers = [_Server(speed[host], deque(own)) for host, own in owned.items()]
    size = sum(extent.length for extent in extents)
    return size / _drain(servers, budget)


def assign(extents: Sequence[Extent]) -> dict[str, list[Extent]]:
    """One owner for each extent, by host and in file order: see the top of this file.

    Counts extents, not bytes: all but the last of a file have the same length.
    """
    owned: dict[str, list[int]] = {host: [] for extent in extents for host in extent.hosts}
    for number, extent in enumerate(extents):
        path = _lightest(extents, owned, extent.hosts)
        for giver, moved, taker in path[1]:
            owned[giver].remove(moved)
            owned[taker].append(moved)
        owned[path[0]].append(number)
    return {host: [extents[number] for number in sorted(own)] for host, own in owned.items() if own}


def _lightest(
    extents: Sequence[Extent], owned: Mapping[str, list[int]], start: tuple[str, ...]
) -> tuple[str, list[tuple[str, int, str]]]:
    """The host of `start` to give one more extent to, and the moves (giver, extent, taker) that make room there.

    Breadth first from `start` over "this host owns an extent that another could own" to the least loaded host.
    """
    came: dict[str, tuple[str, int] | None] = dict.fromkeys(start)
    queue = deque(start)
    while queue:
        host = queue.popleft()
        for number in owned[host]:
            for other in extents[number].hosts:
                if other not in came:
                    came[other] = (host, number)
                    queue.append(other)
    host = min(came, key=lambda name: (len(owned[name]), came[name] is not None))
    moves = []
    while (step := came[host]) is not None:
        giver, number = step
        moves.append((giver, number, host))
        host = giver
    return host, list(reversed(moves))


@dataclass(slots=True)
class _Server:
    """A DataNode: `todo` is what it has left, `done` the bytes of todo[0] it has delivered."""

    rate: float
    todo: deque[Extent]
    done: float = 0.0

    @property
    def position(self) -> float:
        return self.todo[0].offset + self.done

    @property
    def left(self) -> float:
        return self.todo[0].length - self.done


def _drain(servers: list[_Server], budget: float) -> float:
    """Seconds until all is delivered."""
    clock = 0.0
    while servers:
        reader = min(servers, key=lambda server: server.position)
        edge = reader.position + budget
        slack = 1e-9 * edge  # rounding may leave this between a position and the edge it has met
        steps, speeds = [], []
        for server in servers:
            gap = edge - server.position
            if server is reader or gap > slack:
                speed = server.rate
                if server is not reader and speed > reader.rate:
                    steps.append(gap / (speed - reader.rate))  # meets the edge
            elif gap >= -slack:
                speed = min(server.rate, reader.rate)  # rides on the edge
            else:
                speed = 0.0
                steps.append(-gap / reader.rate)  # is met by the edge
            speeds.append(speed)
            if speed:
                steps.append(server.left / speed)
        step = min(steps)
        clock += step
        for server, speed in zip(servers, speeds, strict=True):
            server.done += speed * step
            if server.left <= 1e-9 * server.todo[0].length:
                server.todo.popleft()
                server.done = 0.0
        servers = [server for server in servers if server.todo]
    return clock
