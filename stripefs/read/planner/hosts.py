"""Data hosts: the load and rate of each, and the choice among them. Pure; see the package's docstring."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from stripefs.retry import HostHealth

__all__ = ["ANY_HOST", "HostState", "HostTable", "Limits"]

ANY_HOST = ""
"""The host of a read whose host the client library chooses."""

STALL = 1.0
"""Seconds without a byte that make a host suspect. A 40 MB/s host shared by three reads sends a MiB every 80 ms."""

SLOW_FACTOR = 4.0
"""A range is slow when it takes this many times the median of its peers: with three reads sharing a host and blocks
placed at random, honest ranges were measured up to 2.5 times their median."""

MIN_SAMPLES = 8

LOCAL_AT_ONCE = 6
"""Reads under way at a local host: 3 and 6 of 8 MiB got 1.16 and 1.30 GB/s from a shared virtual disk (medians of
three; the disk itself varied by a quarter)."""


@dataclass(slots=True, eq=False)
class HostState:
    name: str
    in_flight: int = 0
    bytes_total: int = 0
    errors: int = 0
    suspected: int = 0


class HostTable:
    """`per_host` reads at one host and `total` reads at all may be under way. `local` hosts go before all others.

    health: of the store's hosts, its own unless given.
    """

    def __init__(
        self, *, per_host: int, total: int, local: Collection[str] = (), health: HostHealth | None = None
    ) -> None:
        self.health = health or HostHealth()
        # Half of all reads at most: one silent host must leave the others their threads.
        self.per_host = max(1, min(per_host, total // 2))
        self.ahead = self.per_host
        """Number of them that may be for look-ahead."""
        self.total = total
        self.in_flight = 0
        self._local = frozenset(local)
        self._hosts: dict[str, HostState] = {}
        self._remote_pace: deque[float] = deque(maxlen=64)
        self._local_pace: deque[float] = deque(maxlen=64)

    def __getitem__(self, name: str) -> HostState:
        state = self._hosts.get(name)
        if state is None:
            state = self._hosts[name] = HostState(name)
        return state

    def states(self) -> list[HostState]:
        return list(self._hosts.values())

    def limit(self, name: str) -> int:
        if name == ANY_HOST:
            return self.total
        return max(1, min(LOCAL_AT_ONCE, self.total // 2)) if name in self._local else self.per_host

    def room(self, name: str, now: float, *, demanded: bool) -> bool:
        """True if one more read may start at `name`. A demanded range may exceed the host's own limit."""
        state = self[name]
        limit = self.limit(name)
        if demanded:
            limit = max(limit, self.total // 2)
        elif name != ANY_HOST:
            ahead = limit if name in self._local else min(limit, self.ahead)
            limit = 1 if self.health.on_probation(name, now) else ahead
        return state.in_flight < limit

    def preferred(self, names: Sequence[str], now: float) -> Sequence[str]:
        """The hosts of `names` that reads go to now: a local host alone, unless it is avoided."""
        local = self.local_of(names, now)
        return names if local is None else (local,)

    def local_of(self, names: Sequence[str], now: float) -> str | None:
        """The local host among `names`, unless it is avoided."""
        if self._local:
            for name in names:
                if name in self._local and not self.health.avoided(name, now):
                    return name
        return None

    def choose(self, names: Sequence[str], now: float, *, demanded: bool, tried: Sequence[str] = ()) -> str | None:
        """The host of `names` to read from next, None when each is busy (or avoided, and the range can wait).

        Untried ones first, then those not avoided, then the least busy. When every replica is avoided a demanded
        range takes the one whose time runs out first: a bad answer is tried again, no answer would be a hang.
        A local host is waited for, however busy it is, but for one that was tried or has yet to show that it is back.
        """
        if not names:
            return ANY_HOST if self.room(ANY_HOST, now, demanded=demanded) else None
        local = self.local_of(names, now)
        if local is not None and local not in tried:
            if self.room(local, now, demanded=demanded):
                return local
            if not self.health.on_probation(local, now):
                return None
        best: tuple[bool, bool, int, int] | None = None
        chosen = None
        for name in names:
            state = self[name]
            avoided = self.health.avoided(name, now)
            if (avoided and not demanded) or not self.room(name, now, demanded=demanded):
                continue
            rank = (avoided, name in tried, state.in_flight, state.bytes_total)
            if best is None or rank < best:
                best, chosen = rank, name
        return chosen

    def started(self, name: str) -> None:
        self.in_flight += 1
        self[name].in_flight += 1

    def ended(self, name: str) -> None:
        self.in_flight -= 1
        self[name].in_flight -= 1

    def succeeded(self, name: str, length: int, seconds: float | None) -> None:
        """A whole range of `length` bytes came, after `seconds` if that tells of the host."""
        state = self[name]
        state.bytes_total += length
        self.health.worked(name)
        if seconds is not None:
            self._pace(name).append(seconds / max(length, 1))

    def failed(self, name: str, now: float, reason: str) -> None:
        """A read failed: avoid the host, twice as long as the last time."""
        self[name].errors += 1
        self._avoid(name, now, reason)

    def suspect(self, name: str, now: float, reason: str) -> None:
        """The host is silent, or was overtaken. Anything it sends whole clears it again."""
        self[name].suspected += not self.health.avoided(name, now)
        self._avoid(name, now, reason)

    def _avoid(self, name: str, now: float, reason: str) -> None:
        if name != ANY_HOST:
            self.health.failed(name, now, reason)

    def slow_after(self, name: str, length: int) -> float:
        """Seconds after which a range of `length` bytes from this host counts as slow.

        Local hosts have peers of their own. Infinite while there is nothing to compare.
        """
        pace = self._pace(name)
        if len(pace) < MIN_SAMPLES:
            return float("inf")
        return max(STALL, SLOW_FACTOR * median(pace) * length)

    def _pace(self, name: str) -> deque[float]:
        """Seconds a byte of what came lately from hosts of this kind."""
        return self._local_pace if name in self._local else self._remote_pace


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the planner; see `ReadSettings`. choose_host: reads go to the host the planner names, else to one
    of the client's choice. local_hosts: those that are asked alone as long as they answer."""

    budget: int
    range_size: int
    threads: int
    per_host: int
    io_timeout: float
    hedge: bool = True
    choose_host: bool = True
    local_hosts: frozenset[str] = frozenset()
