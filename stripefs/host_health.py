"""Which data hosts are avoided for a while because they failed or fell silent. No I/O, no clock of its own.

A host is avoided for AVOID_FIRST seconds, and for twice as long each time it fails again before anything has succeeded
there. When that time is over it is on probation: it is used again, and the next failure avoids it for longer.

One table serves all that a process does with a store: its reads, its writes and its small documents. `now` is
time.monotonic() in seconds. Safe to use from many threads, since each step changes one entry; of two failures at the
same moment one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["AVOID_FIRST", "AVOID_LONGEST", "FORGOTTEN", "HostHealth"]

AVOID_FIRST = 5.0
AVOID_LONGEST = 300.0
"""Seconds a host is avoided: the first time as long as the client's own time-out, then doubling. A DataNode that
restarts is back in 5 to 20 s; one that is gone is declared dead by its NameNode after 10 minutes by default."""

FORGOTTEN = 660.0
"""Seconds after which a silent host that nobody met any more is forgotten. A NameNode calls it dead after 630."""


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
        self._silent: dict[str, float] = {}

    def failed(self, host: str, now: float, reason: str, began: float | None = None) -> bool:
        """Avoid the host. False where that tells nothing new.

        began: when the request was sent that failed; without it a failure of a host that is avoided tells nothing.
        """
        before = self._avoidances.get(host)
        if before is not None and (now < before.end if began is None else began <= before.begin):
            return False
        length = AVOID_FIRST if before is None else min(2 * before.length, AVOID_LONGEST)
        self._avoidances[host] = _Avoidance(now, length, reason)
        return True

    def worked(self, host: str) -> None:
        """The host has served a whole request: avoid it no longer."""
        self._avoidances.pop(host, None)
        self._silent.pop(host, None)

    def gave_no_sign(self, host: str, now: float) -> None:
        """The host does not answer even a question that costs it nothing: avoid it."""
        self._silent[host] = now
        self.failed(host, now, "gives no sign of life")

    def gave_sign(self, host: str) -> None:
        """The host answers such a question: it is avoided no longer if it was for silence."""
        if host in self._silent:
            self.worked(host)

    def silent_since(self, host: str) -> float | None:
        """When the host gave no sign of life last; None where that is not known of it."""
        return self._silent.get(host)

    def any_silent(self, now: float) -> bool:
        """Tells whether any host is known to be silent, which nobody met for FORGOTTEN seconds at most."""
        return any(now - since < FORGOTTEN for since in list(self._silent.values()))

    def avoided(self, host: str, now: float) -> bool:
        return self.seconds(host, now) > 0

    def on_probation(self, host: str, now: float) -> bool:
        """Tells whether the host was avoided until a moment ago, and nothing has succeeded there since."""
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
        return any(now < found.end for found in list(self._avoidances.values()))

    def well(self, hosts: Iterable[str], now: float) -> list[str]:
        """Those that are not avoided."""
        return [host for host in hosts if not self.avoided(host, now)]

    def order(self, hosts: Sequence[str], now: float) -> list[str]:
        """Those that are not avoided first, else in the same order."""
        return sorted(hosts, key=lambda host: self.avoided(host, now))
