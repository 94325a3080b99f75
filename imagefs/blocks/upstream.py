"""The stores from which a device's blocks can be fetched, and which of them answer.

An image that was mounted through several stores has its devices in all of them. Fetches go to the preferred store, the
one that was asked last, while it is healthy; when it fails or does not answer they go on with another one, and return
to it when the pause after its failures is over. Each pause is twice as long as the one before, up to a minute.

The mirrors of a store (`imagefs.blocks.mirrors`) come before it, in their order, each with what is known of its health.
"""

from __future__ import annotations

from collections.abc import Iterator

import trio

from imagefs.blocks.arrival import load
from imagefs.blocks.link import Link
from imagefs.blocks.source import Mirror, Source
from imagefs.format.index import BlockLocation, Pack
from stripefs import retry
from stripefs.errors import StripefsError
from stripefs.executor import Lane
from stripefs.retry import Backoff

__all__ = ["MirrorUpstream", "Upstream", "Upstreams"]

SWITCH_AFTER = 5.0
"""Seconds without an answer after which another place is asked, where there is one."""

MIRROR_RANGE = 8 << 20
"""Stored bytes of a range that a mirror is asked for ahead, at least. A cache that fetches slices once for all who ask
lets the others look only now and then whether a slice is there, nginx twice a second. Ranges that are smaller than a
few slices meet in the same slices, and each then waits for the next look: 52 MB through an empty cache behind a link of
20 MB/s and 10 ms took 13.4 s in ranges of up to 1 MiB, and 2.9 s in these."""

READERS = 24
"""Ranges that readers wait for, read at once from one store: three times what fetching ahead has under way."""

AHEAD = 64
"""Threads for fetching ahead from one store; how many ranges really are under way, others decide."""


class Upstream:
    """One store. `most` bytes may be in flight ahead of readers. `demand` counts ranges that readers wait for.

    label: under which its bytes are counted. host: whom people know it as, "" where its URL names none.
    """

    label = "store"

    def __init__(self, source: Source, most: int) -> None:
        self.source = source
        self.least = 0
        """Stored bytes of a range that is fetched ahead, at least."""
        self.host = host_of(source.url)
        self.mirrors = [MirrorUpstream(one, most) for one in source.mirrors]
        self.link = Link(most)
        self.demand = 0
        self.readers = Lane("readers", READERS)
        self.ahead = Lane("prefetch", AHEAD)
        self._backoff = Backoff(retry.FIRST_PAUSE, retry.LONGEST_PAUSE)

    @property
    def healthy(self) -> bool:
        """False for a while after a failure."""
        return not self._backoff.paused(trio.current_time())

    def failed(self, reason: str) -> None:
        if self.healthy:  # fetches that were under way together fail together, and count once
            self._backoff.failed(trio.current_time())

    def worked(self) -> None:
        self._backoff.worked()


class MirrorUpstream(Upstream):
    """One mirror of a store."""

    def __init__(self, source: Mirror, most: int) -> None:
        super().__init__(source, most)
        self.least = min(MIRROR_RANGE, most)
        self.label = source.url
        self.mirror = source
        self._probing = False

    @property
    def healthy(self) -> bool:
        return self.mirror.healthy

    def failed(self, reason: str) -> None:
        self.mirror.failed(reason)

    def worked(self) -> None:
        """A mirror comes back by a probe alone: of a server half of whose answers fail, the good ones prove nothing."""

    @property
    def to_probe(self) -> bool:
        """True when the mirror is worth a probe and no probe is under way."""
        return self.mirror.on_probation and not self._probing

    async def probe(self, pack: Pack, place: BlockLocation) -> None:
        """Find out by one block whether it is well again, so that no reader has to. `pack` is the block's."""
        self._probing, wrong = True, f"no answer within {SWITCH_AFTER:g} s"
        try:
            with trio.move_on_after(SWITCH_AFTER):
                (arrived,) = await self.readers.run(
                    f"probing {self.label}",
                    load, self.source, pack, place.offset, place.stored, [place], lambda: None,
                )  # fmt: skip
                wrong = "" if arrived is not None else "it answers other bytes than the image says"
        except StripefsError as error:
            wrong = error.message
        finally:
            self._probing = False
        if wrong:
            self.failed(wrong)
        else:
            self.mirror.answered()


def host_of(url: str) -> str:
    """The host and port in the URL of a store, "" where there is none."""
    _, found, rest = url.partition("://")
    return rest.partition("/")[0].partition("?")[0] if found else ""


class Upstreams:
    """Those of one device, the preferred one first. Iteration is over stores, without their mirrors."""

    def __init__(self) -> None:
        self._all: list[Upstream] = []

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self._all)

    @property
    def best(self) -> Upstream:
        """The first that is healthy, the preferred store where none is."""
        return next((one for one in self._in_order() if one.healthy), self._all[0])

    def other(self, than: Upstream) -> Upstream | None:
        """The best one besides, None where no other is healthy; instead of a mirror, the preferred store then."""
        healthy = next((one for one in self._in_order() if one is not than and one.healthy), None)
        return self._all[0] if healthy is None and isinstance(than, MirrorUpstream) else healthy

    def to_probe(self) -> list[MirrorUpstream]:
        """Mirrors that may be well again."""
        return [one for store in self._all for one in store.mirrors if one.to_probe]

    def _in_order(self) -> Iterator[Upstream]:
        for store in self._all:
            yield from store.mirrors
            yield store

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
