"""Bottleneck of `stripefs probe`: the limit that binds, judged from plain figures.

Each limit gets a utilisation, how much of what it could give was used while reading in parallel:

    cpu         processor time of this process over what it may use, or of its one scheduling thread over one processor,
                or of everything that runs on this host over all it has, once that leaves little (`CROWDED`)
    link        bytes over the speed of the interface that they came through
    host        the busiest data host's bytes a second over what one host gave one stream

The most used one binds, once it reaches `BINDS`; below that nothing outside stripefs kept it from going faster. The bar
is as low as 60% because a probe is short: it starts with no window, and ends with the last of an uneven spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["BINDS", "Bottleneck", "Limit", "Sample", "judge", "utilisation"]

Limit = Literal["cpu", "link", "host", "placement", "cluster", "store", "stripefs"]

BINDS = 0.6
CROWDED = 0.85
"""Below this share of all processors others may be busy without being in the way: two cores that serve eight DataNodes
and a reader were 63% busy while the DataNodes' caps held the reader back."""

_UNEVEN = 1.25  # of 300 blocks dealt at random the busiest of 8 hosts holds 1.24 times its share (mean of 300 trials)
_FASTER = 1.2


@dataclass(frozen=True, slots=True)
class Sample:
    """One way of reading. size in bytes, times in seconds; `hosts` is bytes by data host, empty where unknown.

    cpu_seconds is of the whole process, loop_seconds of the thread that schedules; machine_busy is the part of this
    host's processors that was busy meanwhile, from 0 to 1.
    """

    size: int
    seconds: float
    cpu_seconds: float = 0.0
    loop_seconds: float = 0.0
    machine_busy: float = 0.0
    hosts: Mapping[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.size / self.seconds if self.seconds else 0.0

    @property
    def busiest(self) -> tuple[str, float]:
        """The host that gave most, and its share of the bytes; ("", 0) where hosts are unknown."""
        total = sum(self.hosts.values())
        if not total:
            return "", 0.0
        name = max(self.hosts, key=lambda host: (self.hosts[host], host))
        return name, self.hosts[name] / total


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The limit that binds; `reason` and `advice` are for people."""

    limit: Limit
    reason: str
    advice: str


def utilisation(
    parallel: Sample, *, host_rate: float, cores: float, link: tuple[str, float] | None = None
) -> dict[str, float]:
    """Use of each known limit, from 0 to about 1, by `cpu`, `link` and `host`.

    host_rate: bytes a second that one host gave one stream, 0 where unknown. cores: processors this process may use.
    link: name of the interface and its speed in bytes a second, None where unknown.
    """
    used = {}
    if parallel.seconds:
        own = max(parallel.cpu_seconds / cores, parallel.loop_seconds) / parallel.seconds
        used["cpu"] = max(own, parallel.machine_busy if parallel.machine_busy >= CROWDED else 0.0)
    if link is not None:
        used["link"] = parallel.rate / link[1]
    name, share = parallel.busiest
    if name and host_rate:
        used["host"] = share * parallel.rate / host_rate
    return used


def judge(one: Sample, parallel: Sample, used: Mapping[str, float], *, live_hosts: int) -> Bottleneck:
    """The limit that bound the parallel read. used: from `utilisation`. live_hosts: data hosts there are, 0 where
    unknown."""
    limit = max(used, key=lambda name: used[name], default="")
    share = f"{used.get(limit, 0):.0%}"
    if used.get(limit, 0) < BINDS:
        return _none(one, parallel)
    if limit == "cpu":
        return _processors(parallel, used["cpu"])
    if limit == "link":
        return Bottleneck("link", f"the network interface ran at {share} of its speed", "use a faster network")
    return _hosts(parallel, share, live_hosts)


def _none(one: Sample, parallel: Sample) -> Bottleneck:
    gain = parallel.rate / one.rate if one.rate else 0.0
    if gain < _FASTER and not parallel.hosts:
        return Bottleneck(
            "store", "it serves one stream as fast as many", "nothing to gain from parallel reads of this store"
        )
    return Bottleneck(
        "stripefs",
        f"no data host, link or processor was near its limit at {gain:.1f} times one stream",
        "try a larger file, --threads, --per-host or --memory",
    )


def _processors(parallel: Sample, used: float) -> Bottleneck:
    if used > parallel.machine_busy:
        return Bottleneck(
            "cpu", f"reading used {used:.0%} of the processors it may use", "give this process more of them"
        )
    ours = f"reading took {parallel.cpu_seconds / parallel.seconds:.1f} of one"
    return Bottleneck(
        "cpu", f"this host's processors were {used:.0%} busy, {ours}", "try again when less runs beside it"
    )


def _hosts(parallel: Sample, used: str, live: int) -> Bottleneck:
    name, share = parallel.busiest
    there = max(len(parallel.hosts), live)
    reason = f"{name} served {share:.0%} of the bytes, at {used} of what one host gives one stream"
    if there == 1:
        return Bottleneck("host", reason, "add data hosts")
    if len(parallel.hosts) == 1:
        return Bottleneck("host", reason, "spread the file over more hosts: smaller blocks, or more replicas")
    if share * there > _UNEVEN:
        return Bottleneck(
            "placement",
            f"{reason}; evenly spread it would be {1 / there:.0%} a host",
            "write the file again, or with more replicas, to spread it evenly",
        )
    return Bottleneck("cluster", f"all {there} gave about as much: {reason}", "add data hosts")
