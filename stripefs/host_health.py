"""Which data hosts are avoided for a while because they failed or fell silent. No I/O, no clock of its own.

A host is avoided for AVOID_FIRST seconds, and for twice as long each time it fails again before anything has succeeded
there. When that time is over it is on probation: it is used again, and the next failure avoids it for longer.

One table serves all that a process does with a store. `now` is time.monotonic() in seconds. Safe to use from many
threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["AVOID_FIRST", "AVOID_LONGEST", "HostHealth"]

AVOID_FIRST = 5.0
AVOID_LONGEST = 300.0
"""Seconds a host is avoided: the first time as long as the client's own time-out, then doubling. A DataNode that
restarts is back in 5 to 20 s; one that is gone is declared dead by its NameNode after 10 minutes by default."""


@dataclass(frozen=True, slots=True)
class _Avoidance:
    begin: float
    length: float
    reason: str

    @property
    def end(self) -> float:
        return self.begin + self.length


class HostHealth:
    def __init__(self) -> None:
        self._avoidances: dict[str, _Avoidance] = {}
        self._lock = threading.Lock()

    def failed(self, host: str, now: float, reason: str) -> bool:
        """Avoid the host. False where it is avoided already: then this tells nothing new."""
        with self._lock:
            before = self._avoidances.get(host)
            if before is not None and now < before.end:
                return False
            length = AVOID_FIRST if before is None else min(2 * before.length, AVOID_LONGEST)
            self._avoidances[host] = _Avoidance(now, length, reason)
            return True

    def worked(self, host: str) -> None:
        """The host has served a whole request: avoid it no longer."""
        with self._lock:
            self._avoidances.pop(host, None)

    def avoided(self, host: str, now: float) -> bool:
        return self.seconds(host, now) > 0

    def on_probation(self, host: str, now: float) -> bool:
        """Whether the host was avoided until a moment ago, and nothing has succeeded there since."""
        found = self._avoidances.get(host)
        return found is not None and now >= found.end

    def seconds(self, host: str, now: float) -> float:
        """For how long the host is avoided from now on."""
        found = self._avoidances.get(host)
        return 0.0 if found is None else max(0.0, found.end - now)

    def reason(self, host: str) -> str:
        """The failure for which the host is or was avoided, "" where something has succeeded there since."""
        found = self._avoidances.get(host)
        return "" if found is None else found.reason

    def any_avoided(self, now: float) -> bool:
        if not self._avoidances:
            return False
        with self._lock:
            return any(now < found.end for found in self._avoidances.values())

    def well(self, hosts: Iterable[str], now: float) -> list[str]:
        """Those that are not avoided."""
        return [host for host in hosts if not self.avoided(host, now)]

    def order(self, hosts: Sequence[str], now: float) -> list[str]:
        """Those that are not avoided first, else in the same order."""
        return sorted(hosts, key=lambda host: self.avoided(host, now))
