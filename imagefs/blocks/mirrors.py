"""HTTP mirrors and forward proxies of a store: copies of what never changes there, asked before the store itself.

A *mirror* (`http://HOST/PATH`) serves the paths of the store below its own; of a registry the blobs, where a registry
has them. A *proxy* (`proxy+http://HOST:PORT`) is asked for the store's own URLs. Neither needs trust: packs are checked
block by block and documents as a whole, by SHA-256. Tags, traces, plans and locks always come from the store.

Each is used in its turn while nothing is known against it. After any failure, be it an error, silence, slowness or
wrong bytes, it is avoided for a while that doubles each time (`stripefs.retry`). Then it is on probation: no
reader asks it, and a probe brings it back (`imagefs.blocks.upstream`). Packs and documents of a store share all this.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from imagefs.blocks.source import PackSource
from imagefs.format.index import Pack
from imagefs.repository.images import object_path
from stripefs.errors import StripefsError
from stripefs.executor import Lane
from stripefs.retry import HostHealth, Seldom
from stripefs.settings import StoreSettings, redact
from stripefs.store.base import Buffer

if TYPE_CHECKING:
    from stripefs.store.http import HttpStore

__all__ = ["Mirror", "Mirrors"]

_log = logging.getLogger(__name__)

DOCUMENT_WITHIN = 15.0
"""Seconds for a document, which may have tens of MiB; silence ends it sooner (`StoreSettings.host_timeout`)."""

LARGEST_DOCUMENT = 1 << 30
"""Bytes: a mirror may answer anything, and a document is in memory as a whole."""

_DOCUMENTS = 4
"""Threads that read documents of one mirror, and as many again in place of those that hang."""

_PROXY = "proxy+"


class _Reader(Protocol):
    """How a mirror is read. Calls block, and raise StripefsErrors."""

    def read(self, pack: Pack, offset: int, length: int) -> Buffer: ...

    def document(self, path: bytes) -> Buffer: ...

    def doubt(self, pack: Pack) -> None: ...

    def close(self) -> None: ...


class Mirror:
    """One mirror or proxy: a `Source` of packs, and of documents. Safe to use from many threads.

    clock: seconds of a monotonic clock.
    """

    mirrors: Sequence[Mirror] = ()

    def __init__(self, url: str, reader: _Reader, health: HostHealth, clock: Callable[[], float]) -> None:
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

    def doubt(self, pack: Pack) -> None:
        self._reader.doubt(pack)

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
    """Those of the store that `settings` describe, in their order. Nothing is asked before the first read."""

    def __init__(self, settings: StoreSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        health = HostHealth()
        self.all = tuple(Mirror(url, _reader(settings, url), health, clock) for url in settings.mirrors)

    def document(self, path: bytes, digest: str) -> bytes | None:
        """The object at `path` with that SHA-256 from the first mirror that has it; None where none has."""
        for mirror in self.all:
            if mirror.healthy and (data := mirror.document(path, digest)) is not None:
                return data
        return None

    def close(self) -> None:
        for mirror in self.all:
            mirror.close()


def _reader(settings: StoreSettings, url: str) -> _Reader:
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
        return self._client().glance(self._path(path), LARGEST_DOCUMENT)

    def doubt(self, pack: Pack) -> None:
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
