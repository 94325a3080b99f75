"""Where parts go: the data hosts, how much each has under way, and which is next. No I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import Any

from stripefs.retry import HostHealth
from stripefs.store.base import Host

__all__ = ["ANYWHERE", "ANYWHERE_AT_ONCE", "SendHosts"]

ANYWHERE = ""
"""The host of a store that places files itself."""

PER_HOST = 3
"""Parts on their way to one host: one is being opened, one flows, one is being closed. A DataNode of 40 MB/s took
29 MB/s of one placed WebHDFS stream after the other."""

ANYWHERE_AT_ONCE = 8
"""Parts on their way side by side to a store that says nothing of its hosts."""


class SendHosts:
    """`known` replaces what is known of hosts; a host is chosen by `choose` and given back by `done`.

    A file in one piece is at its host for as long as its writer likes, and so takes no part's place: `begin_file` and
    `end_file` are for that. health: of the store's hosts, its own unless given; `now` is its time.
    """

    def __init__(self, health: HostHealth | None = None) -> None:
        self._health = health or HostHealth()
        self._live: list[str] = []
        self._busy: Counter[str] = Counter()
        self._files: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Hosts that parts can be placed on, 0 where the store places them."""
        return len(self._live)

    @property
    def at_once(self) -> int:
        """Parts that can be under way at once."""
        return PER_HOST * len(self._live) if self._live else ANYWHERE_AT_ONCE

    @property
    def kept_bytes(self) -> int:
        """What all hosts have taken so far."""
        return self._kept.total()

    def known(self, hosts: Sequence[Host]) -> None:
        self._live = [host.name for host in hosts if host.live]

    def choose(self, taken: Set[str], now: float, *, load: int = 1) -> str | None:
        """The least busy host that is not one of `taken`; None when it is better to wait. `done` gives it back.

        Where all live hosts are taken, or rest, any other will do: a part on a host that failed a while ago, or on its
        sibling's, beats one that is nowhere. Of hosts that are equally busy the one that was sent least comes first.
        """
        if not self._live:
            return self._take(ANYWHERE, load) if self._busy[ANYWHERE] < ANYWHERE_AT_ONCE else None
        well = self._well(now)
        candidates = [host for host in well if host not in taken] or well
        best = min(candidates, key=lambda host: (self._busy[host], self._files[host], self._sent[host]))
        return self._take(best, load) if self._busy[best] < PER_HOST else None

    def begin_file(self, now: float) -> str:
        """The host for a file in one piece: the one that has the fewest. `end_file` is to be told."""
        best = min(self._well(now), key=lambda host: (self._files[host], self._busy[host]), default=ANYWHERE)
        self._files[best] += 1
        return best

    def end_file(self, host: str) -> None:
        self._files[host] -= 1

    def _well(self, now: float) -> list[str]:
        return self._health.well(self._live, now) or self._live

    def _take(self, host: str, load: int) -> str:
        self._busy[host] += 1
        self._sent[host] += load
        return host

    def done(self, host: str) -> None:
        self._busy[host] -= 1

    def succeeded(self, host: str, size: int) -> None:
        """It has a part of `size` bytes."""
        self._health.worked(host)
        self.took(host, size)

    def took(self, host: str, size: int) -> None:
        """It was handed `size` bytes of a file in one piece, or has them as a part."""
        self._kept[host] += size

    def failed(self, host: str, now: float, began: float, reason: str) -> bool:
        """A part that was begun at `began` failed there. False when that tells no more than another one's failure."""
        self._errors[host] += 1
        return host == ANYWHERE or self._health.failed(host, now, reason, began)

    def snapshot(self, now: float) -> list[dict[str, Any]]:
        """Figures for `status` and metrics, of all hosts that are live or were used."""
        return [
            {
                "name": host,
                "parts": self._busy[host],
                "files": self._files[host],
                "bytes": self._kept[host],
                "errors": self._errors[host],
                "avoided_seconds": self._health.seconds(host, now),
                "reason": self._health.reason(host),
            }
            for host in sorted({*self._live, *self._busy, *self._files, *self._errors})
        ]
