"""Connections of this process: services, the sources in them, and the versions of files that are open.

A *service* is what a URL names up to its path (a cluster, a bucket, the local files), reached in one way. One reader,
with one memory budget and one set of limits for data hosts, serves all of it. A *source* is a directory of a service as
a mount has one: striped files have their parts in the pool at its root. All is used on the engine's thread.

A URL of a file does not say where its source begins. It is the nearest directory above that holds a pool, and the root
of the service where none does. Wrapped stores (`throttled+…`) are sources themselves, since what a wrapper keeps lies
at the root that it was given. `in_service` takes a URL apart into the service and the path in it, `url_in_service` puts
them together.

Sources and their write sessions that nobody uses for minutes are closed (`stripefs.api.source`), and so is the reader
of a service without sources; the next call connects again.
"""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING, NamedTuple

import trio

from stripefs.api.source import LOOK_EVERY, OpenVersion, Source
from stripefs.assembly import LEVELS, AssembledStore, connect, open_cache
from stripefs.background import contain
from stripefs.errors import (
    IsADirectory,
    NotADirectory,
    NotFound,
    PermissionDenied,
    StaleVersion,
    StoreError,
    StripefsError,
    Transient,
)
from stripefs.executor import Lane
from stripefs.format.reserved_names import POOL
from stripefs.read import Reader
from stripefs.settings import CacheSettings, ReadSettings, Settings, StoreSettings, WriteSettings, redact
from stripefs.store.base import Identity, Kind, Store
from stripefs.store.url import elsewhere, parse_url
from stripefs.write.upload_names import split_path

if TYPE_CHECKING:
    from stripefs.cache.cache import Cache
    from stripefs.read_events import ReadEvents

__all__ = ["SourceAddress", "Sources", "in_service", "normal", "real_path", "url_in_service"]

_MOST_ROOTS = 10_000


class SourceAddress(NamedTuple):
    """A service, and the source in it; `settings.store.url` is the URL of the service.

    root: the directory that is the source, None for the one that each file's path says, see the module.
    """

    settings: Settings
    root: bytes | None


class ServiceConnection:
    """A service reached as `settings` say; their URL is that of its root."""

    def __init__(self, nursery: trio.Nursery, settings: Settings, cache: Cache | None) -> None:
        self._nursery = nursery
        self._settings = settings
        self._url = settings.store.url
        self._cache = cache
        self._reader: Reader | None = None
        self._events: ReadEvents | None = None
        self._reading = trio.CancelScope()
        self._sources: dict[tuple[bytes, tuple[str, ...]], Source] = {}
        self._forgotten: list[Source] = []  # in use until their users are gone
        self._closing = Lane("closing", 1)
        self._pools: set[bytes] = set()  # directories that have one
        self._roots: dict[bytes, bytes] = {}  # where striped files of a directory were found to have their parts
        self._lock = trio.Lock()

    async def at(self, root: bytes, trusted: tuple[str, ...]) -> Source:
        """The source whose root this directory is. trusted: see `WriteSettings.trust_pool`."""
        if source := self._sources.get((root, trusted)):
            source.references.acquire()
            return source
        async with self._lock:
            source = self._sources.get((root, trusted))
            if source is None:
                settings = self._settings._replace(write=WriteSettings(trust_pool=trusted))
                if root != b"/":
                    url = elsewhere(self._url, with_bucket(self._url, root))
                    settings = settings._replace(store=settings.store._replace(url=url))
                base = await connect(settings.store, settings.read.io_timeout)
                assembled = AssembledStore(base, settings, self._cache)
                source = Source(self._nursery, assembled, await self._readers(assembled.files))
                self._sources[root, trusted] = source
            source.references.acquire()
            return source

    async def nearest(self, path: bytes, trusted: tuple[str, ...]) -> tuple[Source, bytes]:
        """The source in which the file at `path` is to be written, and its path there."""
        return await self._source_and_path(await self._nearest(path, trusted), path, trusted)

    async def open(self, path: bytes, trusted: tuple[str, ...], expect: Identity | None) -> OpenVersion:
        """Open the file at `path`; of a striped one in the source that has its parts."""
        folder = split_path(path)[0]
        guess = self._roots.get(folder, b"/")
        source, inner = await self._source_and_path(guess, path, trusted)
        named = None
        try:
            opened = await source.open(inner, expect)
        except (Transient, NotFound, NotADirectory, IsADirectory, PermissionDenied, StaleVersion):
            raise
        except StoreError:  # as when a list of parts is missing, which may lie in another pool
            root = await self._nearest(path, trusted)
            if root == guess:
                raise
        else:
            named = opened.pool
            if named is None or named == source.store.pool:
                return opened
            root = await self._root_of(path, trusted, named)
            if root == guess:
                return opened
            await opened.close()
        if len(self._roots) >= _MOST_ROOTS:
            self._roots.clear()
        self._roots[folder] = root
        source, inner = await self._source_and_path(root, path, trusted)
        return await source.open(inner, expect)

    def forget(self, path: bytes) -> None:
        """The directory at `path` is no more, or is another one now: so are the sources in it, and the pools."""
        inside = path.rstrip(b"/") + b"/"
        self._pools = {folder for folder in self._pools if not (folder + b"/").startswith(inside)}
        self._roots.clear()
        for key in [key for key in self._sources if (key[0] + b"/").startswith(inside)]:
            self._forgotten.append(self._sources.pop(key))

    async def close_idle(self) -> None:
        """Close the sources that nobody uses, and the reader when none is left."""
        async with self._lock:
            for source in [*self._sources.values(), *self._forgotten]:
                source.close_idle()
            idle = [source for source in self._forgotten if source.references.expired()]
            self._forgotten = [source for source in self._forgotten if source not in idle]
            expired = [key for key, source in self._sources.items() if source.references.expired()]
            idle.extend(self._sources.pop(key) for key in expired)
            if not self._sources and not self._forgotten:
                self._reader = None
                self._reading.cancel()
        for source in idle:
            await contain(f"closing {redact(source.store.url)}", self._close, source.store)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
        for source in [*self._sources.values(), *self._forgotten]:
            source.store.close()

    async def _close(self, store: Store) -> None:
        await self._closing.run("closing", store.close, timeout=self._settings.read.io_timeout)

    async def _readers(self, store: Store) -> Reader:
        if self._reader is None:
            if self._events is None and (folder := os.environ.get("BOOTSEER_EVENTS")):
                from stripefs.read_events import events_of_reads

                self._events = events_of_reads(folder, self._url)
            reader, self._reading = Reader(store, self._settings.read, observer=self._events), trio.CancelScope()
            await self._nursery.start(_run_in, self._reading, reader)
            self._reader = reader
        return self._reader

    async def _source_and_path(self, root: bytes, path: bytes, trusted: tuple[str, ...]) -> tuple[Source, bytes]:
        return await self.at(root, trusted), path if root == b"/" else path.removeprefix(root)

    async def _root_of(self, path: bytes, trusted: tuple[str, ...], named: bytes) -> bytes:
        """The directory with the pool that a manifest names, if that is above the file, else the nearest with any."""
        named = named.removeprefix(with_bucket(self._url, b"")).removesuffix(POOL)
        if named and path.startswith(named + b"/") and await self.has_pool(named, trusted):
            return named
        return await self._nearest(path, trusted)

    async def _nearest(self, path: bytes, trusted: tuple[str, ...]) -> bytes:
        """The nearest directory above `path` with a pool. All are asked at once: one by one, each would cost a round
        trip for every file that is written."""
        folders = [split_path(path)[0]]
        while folders[-1] != b"/" and folders[-1] not in self._pools and len(folders) < LEVELS:
            folders.append(split_path(folders[-1])[0])
        found: dict[bytes, bool | StripefsError] = {}

        async def ask(folder: bytes) -> None:
            try:
                found[folder] = await self.has_pool(folder, trusted)
            except StripefsError as error:
                found[folder] = error

        async with trio.open_nursery() as nursery:
            for folder in folders:
                nursery.start_soon(ask, folder)
        for folder in folders:
            answer = found[folder]
            if isinstance(answer, PermissionDenied):
                break  # above what this user may see
            if isinstance(answer, StripefsError):
                raise answer
            if answer:
                return folder
        return b"/"

    async def has_pool(self, folder: bytes, trusted: tuple[str, ...]) -> bool:
        """Asked each time until there is one, since others make them."""
        if folder in self._pools:
            return True
        base, pool = await self.at(b"/", trusted), folder.rstrip(b"/") + POOL
        try:
            found = (await base.calls.call("look for a pool", base.store.inner.stat, pool)).kind is Kind.DIRECTORY
        except (NotFound, NotADirectory):
            return False
        if found:
            self._pools.add(folder)
        return found


class Sources:
    """All services of this process. Their tasks run in `nursery`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._services: dict[tuple[StoreSettings, ReadSettings, CacheSettings], ServiceConnection] = {}
        self._caches: dict[CacheSettings, Cache | None] = {}

    async def at(self, address: SourceAddress, path: bytes) -> tuple[Source, bytes]:
        """The source in which `path` is to be changed, and the path there. With a root given, paths begin at it."""
        service, trusted = self._service(address), address.settings.write.trust_pool
        if address.root is None:
            return await service.nearest(path, trusted)
        return await service.at(address.root, trusted), path

    async def nested(self, address: SourceAddress, folder: bytes) -> Source | None:
        """The source that the directory at `folder` is, where it has a pool and no root is given."""
        service, trusted = self._service(address), address.settings.write.trust_pool
        if address.root is None and await service.has_pool(folder, trusted):
            return await service.at(folder, trusted)
        return None

    async def view(self, address: SourceAddress) -> Source:
        """The source in which all names can be looked at."""
        return await self._service(address).at(address.root or b"/", address.settings.write.trust_pool)

    async def open(self, address: SourceAddress, path: bytes, expect: Identity | None = None) -> OpenVersion:
        """Open the file at `path`; raises what `Source.open` raises."""
        service, trusted = self._service(address), address.settings.write.trust_pool
        if address.root is None:
            return await service.open(path, trusted, expect)
        return await (await service.at(address.root, trusted)).open(path, expect)

    def forget(self, address: SourceAddress, path: bytes) -> None:
        """The directory at `path` was moved or removed."""
        self._service(address).forget((address.root or b"/").rstrip(b"/") + path)

    async def run(self) -> None:
        """Close unused sources and sessions, until cancelled."""
        while True:
            await trio.sleep(LOOK_EVERY)
            for service in list(self._services.values()):
                await service.close_idle()

    def close(self) -> None:
        """Release all connections."""
        for service in self._services.values():
            service.close()
        for cache in filter(None, self._caches.values()):
            cache.close()

    def _service(self, address: SourceAddress) -> ServiceConnection:
        settings = address.settings
        wanted = (settings.store, settings.read, _reader_settings(settings.cache))
        service = self._services.get(wanted)
        if service is None:
            service = ServiceConnection(self._nursery, settings, self._cache(settings))
            self._services[wanted] = service
        return service

    def _cache(self, settings: Settings) -> Cache | None:
        """Raises ConfigError for a folder that cannot be one."""
        wanted = _reader_settings(settings.cache)
        if wanted not in self._caches:
            self._caches[wanted] = open_cache(settings._replace(cache=wanted))
        return self._caches[wanted]


def _reader_settings(settings: CacheSettings) -> CacheSettings:
    """The cache in which written bytes are kept, shared with others."""
    return settings._replace(writes=False)


async def _run_in(
    scope: trio.CancelScope, reader: Reader, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with scope:
        await reader.run(task_status=task_status)


def real_path(path: bytes) -> bytes:
    """As os.path.realpath, but for an existing path the kernel is asked once, and not for each name on the way from the
    root: in a tree of a thousand levels that takes a thousand times as long."""
    try:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return os.path.realpath(path)
    try:
        real = os.readlink(b"/proc/self/fd/%d" % found)
        if os.path.samestat(os.fstat(found), os.stat(real)):
            return real
    except OSError:  # it was moved or removed meanwhile, or /proc does not say
        pass
    finally:
        os.close(found)
    return os.path.realpath(path)


def normal(path: bytes) -> bytes:
    """`path` as stores want it: absolute, without `.`, `..`, empty components and a slash at its end."""
    return posixpath.normpath(b"/" + path.lstrip(b"/"))


def in_service(url: str, *, of_file: bool = False) -> tuple[str, bytes]:
    """The URL of the service, and the path in it, that `url` names. Raises ConfigError.

    A wrapped store is a service of its own: the one at `url`, or, where that names a file, at the file's directory.
    """
    found = parse_url(url)
    path = normal(found.path)
    if found.wrappers:
        folder, name = split_path(path) if of_file else (path, b"")
        return elsewhere(url, with_bucket(url, folder)), b"/" + name
    if found.scheme == "file" and found.authority in ("", "localhost"):
        return "/", path
    return elsewhere(url, with_bucket(url, b"/")), path


def url_in_service(service: str, path: bytes) -> str:
    """The URL of a path in a service."""
    found = parse_url(service)
    return elsewhere(service, with_bucket(service, (found.path.rstrip(b"/") if found.wrappers else b"") + path))


def with_bucket(url: str, path: bytes) -> bytes:
    """`path` of a service as `elsewhere` takes it: with the bucket's name first, where there are buckets."""
    found = parse_url(url)
    return (b"/" + os.fsencode(found.authority) if found.scheme in ("s3", "gs") else b"") + path
