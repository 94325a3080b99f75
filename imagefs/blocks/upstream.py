"""Upstreams of a device: the stores that its blocks can be fetched from, their mirrors, and which of them answer.

An image that was mounted through several stores has its devices in all of them. Fetches go to the preferred store, the
one that was asked last, while it is healthy; when it fails or does not answer they go on with another one, and return
to it when the pause after its failures is over. Each pause is twice as long as the one before, up to a minute.

Mirrors of a store come before it, in their order: copies of what never changes there. An HTTP mirror
(`http://HOST/PATH`) serves the paths of the store below its own; of a registry the blobs, where a registry has them. A
forward proxy (`proxy+http://HOST:PORT`) is asked for the store's own URLs. Neither needs trust: packs are checked block
by block and documents as a whole, by SHA-256. Tags, traces, plans and locks always come from the store.

Each mirror is used in its turn while nothing is known against it. After any failure, be it an error, silence, slowness
or wrong bytes, it is avoided for a while that doubles each time (`stripefs.retry`). Then it is on probation: no
reader asks it, and a probe brings it back. Packs and documents of a store share all this.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import trio

from imagefs.blocks.prefetch import Link
from imagefs.blocks.source import BlockSource, PackSource, load
from imagefs.format.index import BlockLocation, Pack
from imagefs.repository.images import object_path
from stripefs import retry
from stripefs.errors import StripefsError
from stripefs.executor import Lane
from stripefs.retry import Backoff, HostHealth, Seldom
from stripefs.settings import StoreSettings, redact
from stripefs.store.base import Buffer

if TYPE_CHECKING:
    from stripefs.store.http import HttpStore

__all__ = ["Mirror", "MirrorUpstream", "Mirrors", "Upstream", "Upstreams"]

_log = logging.getLogger(__name__)
DOCUMENT_WITHIN = 15.0
"""Seconds for a document, which may have tens of MiB; silence ends it sooner (`StoreSettings.host_timeout`)."""

LARGEST_DOCUMENT = 1 << 30
"""Bytes: a mirror may answer anything, and a document is in memory as a whole."""

_DOCUMENTS = 4
"""Threads that read documents of one mirror, and as many again in place of those that hang."""

_PROXY = "proxy+"


class Mirror:
    """One mirror or proxy: a `BlockSource` of packs, and of documents. Safe to use from many threads.

    clock: seconds of a monotonic clock.
    """

    mirrors: Sequence[Mirror] = ()

    def __init__(self, url: str, reader: _Web | _ByProxy, health: HostHealth, clock: Callable[[], float]) -> None:
        self.url = redact(url)
        self._reader = reader
        self._health = health
        self._clock = clock
        self._documents = Lane("documents of mirrors", _DOCUMENTS)
        self._warn = Seldom(_log)

    @property
    def healthy(self) -> bool:
        """True when no failure of the mirror is known."""
        return not self._health.reason(self.url)

    @property
    def on_probation(self) -> bool:
        """True when the mirror is worth a probe: it failed, and was avoided for long enough."""
        return self._health.on_probation(self.url, self._clock())

    @property
    def avoided(self) -> tuple[float, str]:
        """Seconds for which it is avoided from now on, and the failure for which it is not used, "" for none."""
        return self._health.seconds(self.url, self._clock()), self._health.reason(self.url)

    def failed(self, reason: str) -> None:
        """Avoid it for a while."""
        if self._health.failed(self.url, self._clock(), reason or "it failed"):
            self._warn("failed", "mirror %s is avoided for a while: %s", self.url, reason)

    def answered(self) -> None:
        """A probe was right: use it again."""
        self._health.worked(self.url)
        _log.info("mirror %s is used again", self.url)

    def read(self, pack: Pack, offset: int, length: int) -> Buffer:
        return self._reader.read(pack, offset, length)

    def report_damage(self, pack: Pack) -> None:
        self._reader.report_damage(pack)

    def close(self) -> None:
        self._reader.close()

    def document(self, path: bytes, digest: str) -> bytes | None:
        """The object at `path` with that SHA-256; None where it cannot be had here."""
        what = f"reading {path.decode()} from {self.url}"
        try:
            data = bytes(self._documents.call(what, lambda: self._reader.document(path), DOCUMENT_WITHIN))
        except StripefsError as error:
            self.failed(error.message)
            return None
        if hashlib.sha256(data).hexdigest() != digest:
            self.failed(f"{path.decode()} has other bytes than its name says")
            return None
        return data


class Mirrors:
    """The mirrors of the store that `settings` describe, in their order. Nothing is asked before the first read."""

    def __init__(self, settings: StoreSettings) -> None:
        health = HostHealth()
        self.all = tuple(Mirror(url, _reader(settings, url), health, time.monotonic) for url in settings.mirrors)

    def document(self, path: bytes, digest: str) -> bytes | None:
        """The object at `path` with that SHA-256 from the first mirror that has it; None where none has."""
        for mirror in self.all:
            if mirror.healthy and (data := mirror.document(path, digest)) is not None:
                return data
        return None

    def close(self) -> None:
        for mirror in self.all:
            mirror.close()


def _reader(settings: StoreSettings, url: str) -> _Web | _ByProxy:
    """Raises ConfigError."""
    if url.startswith(_PROXY):
        return _ByProxy(settings._replace(proxy=url.removeprefix(_PROXY), mirrors=()))
    scheme, _, place = settings.url.partition("?")[0].partition("://")
    repository = place.partition("/")[2].strip("/") if scheme == "oci" else ""
    return _Web(url, settings, repository)


class _Web:
    """A server that has the store's paths below `url`, or the blobs of that repository of a registry."""

    def __init__(self, url: str, settings: StoreSettings, repository: str) -> None:
        self._url = url
        self._settings = settings._replace(proxy="")
        self._repository = repository
        self._lock = threading.Lock()
        self._http: HttpStore | None = None

    def read(self, pack: Pack, offset: int, length: int) -> Buffer:
        path = self._path(object_path("packs", pack.digest.hex()))
        return self._client().open_checked(path, pack.length).read(offset, length)

    def document(self, path: bytes) -> Buffer:
        return self._client().read_small(self._path(path), LARGEST_DOCUMENT)

    def report_damage(self, pack: Pack) -> None:
        """Nothing stays open."""

    def close(self) -> None:
        with self._lock:
            if self._http is not None:
                self._http.close()

    def _client(self) -> HttpStore:
        """Made by the first thread that reads, as loading it and its certificates takes a while."""
        with self._lock:
            if self._http is None:
                from stripefs.store.http import HttpStore

                parts = urlsplit(self._url)
                self._http = HttpStore(parts.scheme, parts.netloc, parts.path.encode(), self._settings)
            return self._http

    def _path(self, path: bytes) -> bytes:
        if not self._repository:
            return path
        return f"/v2/{self._repository}/blobs/sha256:".encode() + path.rpartition(b"/")[2]


class _ByProxy(PackSource):
    """The store itself, by way of a proxy."""

    def document(self, path: bytes) -> Buffer:
        return self.images().read(path)


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

    def __init__(self, source: BlockSource, most: int) -> None:
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
    """The upstreams of one device, the preferred one first. Iteration is over stores, without their mirrors."""

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

    def switch_to(self, upstream: Upstream) -> None:
        """Ask this upstream first from now on."""
        self._all = [upstream, *(one for one in self._all if one is not upstream)]

    def add(self, upstream: Upstream) -> None:
        """Ask this upstream where the others fail."""
        if upstream not in self._all:
            self._all.append(upstream)

    def remove(self, upstream: Upstream) -> None:
        """Ask it no more, unless it is the only one."""
        if upstream in self._all and len(self._all) > 1:
            self._all.remove(upstream)
