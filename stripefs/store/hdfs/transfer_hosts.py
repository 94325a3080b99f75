"""Refusals of DataNodes to be read from or written to by data transfer, and the pauses after them.

Keys are transfer addresses. Everything here is safe to use from many threads.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from stripefs.retry import Backoff

__all__ = ["Refusals"]

REFUSALS = 3
"""Refusals in a row after which no read is tried in this way for a while."""

PAUSE, LONGEST_PAUSE = 60.0, 3600.0
"""Seconds of the first such while, and of the longest one."""


@dataclass(slots=True)
class _Track:
    """Refusals in a row of one DataNode, or of all."""

    reason: str = ""
    number: int = 0
    pause: Backoff = field(default_factory=lambda: Backoff(PAUSE, LONGEST_PAUSE))


class Refusals:
    """Refusals of DataNodes to be read from, and the pauses after REFUSALS of them in a row.

    As long as no DataNode has granted a read those of all count together: a firewall or SASL is in front of all. From
    then on each has its own count, of failures of its connection alone: a block that it does not have, or that has no
    checksums, says nothing of its other blocks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._granting: set[str] = set()
        self._tracks: dict[str, _Track] = {}  # that of all has the address ""

    def granting(self, address: str) -> bool:
        """True if that DataNode has granted a read or a write, and has not been given up since."""
        return address in self._granting

    def granted(self, address: str) -> None:
        with self._lock:
            self._granting.add(address)
            self._tracks.pop(address, None)
            self._tracks.pop("", None)

    def refused(self, address: str, reason: str, *, of_connection: bool) -> None:
        """Note a refusal of what has come another way. of_connection: no answer came, so it was none of a block."""
        with self._lock:
            if of_connection or not self._granting:
                self._count(address, reason)
                if not self._granting:
                    self._count("", reason)

    def forgive(self, address: str) -> None:
        """Forget that DataNode's own refusals: it failed in the other way too, so they say nothing of this one."""
        with self._lock:
            self._tracks.pop(address, None)

    def _count(self, address: str, reason: str) -> None:
        now = time.monotonic()
        track = self._tracks.setdefault(address, _Track())
        track.reason = reason
        track.number += 1
        if track.number >= REFUSALS and not track.pause.paused(now):
            track.pause.failed(now)
            self._granting.discard(address)

    def reason(self, address: str = "") -> str:
        """The reason for which that DataNode, or any, is not asked now, "" for none."""
        now = time.monotonic()
        for track in (self._tracks.get(""), self._tracks.get(address)):
            if track is not None and track.pause.paused(now):
                return track.reason
        return ""

    def paused(self) -> list[str]:
        """The addresses of DataNodes that are not asked now, without the others."""
        with self._lock:
            return sorted(address for address in self._tracks if address and self.reason(address))
