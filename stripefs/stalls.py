"""Stalls among the waits of start-up events. Pure: times are seconds of one clock, which the caller has.

When a host falls silent, all that wait for it wait together: a kernel has a hundred reads under way. So a wait is
reported only where it adds `LEAST` or more to the last report of the same cause and host. There are never more than
about four events in three seconds for each.
"""

from __future__ import annotations

__all__ = ["LEAST", "Stalls"]

LEAST = 0.75
"""Seconds. A host that is silent for a second is asked no longer, and who waits for it comes a little later than the
request. A healthy DataNode sends a range of 8 MiB in 0.6 s while it sends two others at 40 MB/s together."""

_MOST = 1024
"""Pairs of cause and host that are remembered."""


class Stalls:
    """The stalls that have been reported so far."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], tuple[float, float]] = {}

    def ended(self, begun: float, now: float, cause: str, host: str) -> bool:
        """True where the wait that began at `begun` and ends now is to be told."""
        if now - begun < LEAST:
            return False
        first, last = self._told.get((cause, host), (begun, begun))
        if begun > last:
            first = last = begun
        if max(0.0, first - begun) + now - last < LEAST:
            return False
        if len(self._told) >= _MOST:
            self._told.clear()
        self._told[cause, host] = min(first, begun), now
        return True
