"""The stores from which a device's blocks can be fetched, and which of them answer.

An image that was mounted through several stores has its devices in all of them. Fetches go to the preferred store, the
one that was asked last, while it is healthy; when it fails or does not answer they go on with another one, and return
to it when the pause after its failures is over. Each pause is twice as long as the one before, up to a minute.
"""

from __future__ import annotations

from collections.abc import Iterator

import trio

from imagefs.blocks.link import Link
from imagefs.blocks.source import Source
from stripefs import backoff
from stripefs.backoff import Backoff
from stripefs.executor import Lane

__all__ = ["Upstream", "Upstreams"]

READERS = 24
"""Ranges that readers wait for, read at once from one store: three times what fetching ahead has under way."""

AHEAD = 64
"""Threads for fetching ahead from one store; how many ranges really are under way, others decide."""


class Upstream:
    """One store. `most` bytes may be in flight ahead of readers. `demand` counts ranges that readers wait for."""

    def __init__(self, source: Source, most: int) -> None:
        self.source = source
        self.link = Link(most)
        self.demand = 0
        self.readers = Lane("readers", READERS)
        self.ahead = Lane("prefetch", AHEAD)
        self._backoff = Backoff(backoff.FIRST_PAUSE, backoff.LONGEST_PAUSE)

    @property
    def healthy(self) -> bool:
        """False for a while after a failure."""
        return not self._backoff.paused(trio.current_time())

    def failed(self) -> None:
        if self.healthy:  # fetches that were under way together fail together, and count once
            self._backoff.failed(trio.current_time())

    def worked(self) -> None:
        self._backoff.worked()


class Upstreams:
    """Those of one device, the preferred one first."""

    def __init__(self) -> None:
        self._all: list[Upstream] = []

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self._all)

    @property
    def best(self) -> Upstream:
        """The first that is healthy, the preferred one where none is."""
        return next((one for one in self._all if one.healthy), self._all[0])

    def other(self, than: Upstream) -> Upstream | None:
        """The best one besides, None where no other is healthy."""
        return next((one for one in self._all if one is not than and one.healthy), None)

    def prefer(self, upstream: Upstream) -> None:
        """From now on this one comes first."""
        self._all = [upstream, *(one for one in self._all if one is not upstream)]

    def add(self, upstream: Upstream) -> None:
        """Where the others fail, this one may be asked."""
        if upstream not in self._all:
            self._all.append(upstream)

    def remove(self, upstream: Upstream) -> None:
        """Ask it no more, unless it is the only one."""
        if upstream in self._all and len(self._all) > 1:
            self._all.remove(upstream)
