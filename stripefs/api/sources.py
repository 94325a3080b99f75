"""What this process reads and writes: services, the sources in them, and the versions of files that are open.

A *service* is what a URL names up to its path (a cluster, a bucket, the local files), reached in one way. One reader,
with one memory budget and one set of limits for data hosts, serves all of it. A *source* is a directory of a service as
a mount has one: striped files have their parts in the pool at its root. All is used on the engine's thread.

A URL of a file does not say where its source begins. It is the nearest directory above that holds a pool, and the root
of the service where none does. Wrapped stores (`throttled+…`) are sources themselves, since what a wrapper keeps lies
at the root that it was given.
"""

from __future__ import annotations

from operator import methodcaller
from typing import Any, NamedTuple

import trio

from stripefs.api.urls import placed
from stripefs.cache.cache import Cache, queue_for
from stripefs.cache.handle import CachedHandle
from stripefs.cache.store import CachedStore
from stripefs.errors import (
    IsADirectory,
    NotADirectory,
    NotFound,
    PermissionDenied,
    ServiceDown,
    StaleVersion,
    StoreError,
    StripefsError,
    Transient,
)
from stripefs.executor import Executor, Lane
from stripefs.layout.hidden import POOL
from stripefs.read import OpenFile, Reader
from stripefs.session import WriteSession
from stripefs.settings import (
    CacheSettings,
    ReadSettings,
    Settings,
    StoreSettings,
    WriteSettings,
    default_budget,
    redact,
)
from stripefs.store.base import Identity, Kind, Status, Store
from stripefs.store.url import elsewhere, open_store, opener
from stripefs.store.wrappers.striped import StripedStore
from stripefs.store.wrappers.striped_handle import StripedHandle
from stripefs.upkeep.vacate import vacate
from stripefs.write.copies import no_copies
from stripefs.write.layouts import Layouts
from stripefs.write.names import split

__all__ = ["Opened", "Source", "Sources", "Where"]

_LEVELS = 32
"""Directories above a file in which its pool is looked for."""

_MOST_REMEMBERED = 10_000


class Where(NamedTuple):
    """A service, and the source in it; `settings.store.url` is the URL of the service.

    root: the directory that is the source, None for the one that each file's path says, see the module.
    """

    settings: Settings
    root: bytes | None


class Opened:
    """One version of one file, for all who read it in this process."""

    def __init__(self, source: Source, path: bytes, file: OpenFile) -> None:
        self.source = source
        self.path = path
        self.file = file
        self.users = 1

    @property
    def status(self) -> Status:
        return self.file.status

    @property
    def pool(self) -> bytes | None:
        """The pool that the manifest of a striped file names; None for other files."""
        handle = self.file.handle
        if isinstance(handle, CachedHandle):
            handle = handle.inner
        return handle.manifest.pool if isinstance(handle, StripedHandle) else None

    async def close(self) -> None:
        """One user less."""
        await self.source.close(self)


class Source:
    """A directory of a service. `store`: the view of its striped files; `files`: the same, with a cache if any."""

    def __init__(self, nursery: trio.Nursery, store: StripedStore, files: Store, reader: Reader) -> None:
        self.store = store
        self._files = files
        self.calls = Executor(reader.settings.io_timeout)
        self.layouts = Layouts(store.inner, self.calls, self._vacate)
        self._nursery = nursery
        self._reader = reader
        self._open: dict[bytes, dict[Identity, Opened]] = {}
        self._sessions: dict[tuple[WriteSettings, bool], WriteSession] = {}
        self._turn = trio.Lock()

    async def open(self, path: bytes, expect: Identity | None = None) -> Opened:
        """The version `expect` of the file at `path`, else the one that is there now. `Opened.close` gives it back.

        Raises what `Store.open` raises.
        """
        if versions := self._open.get(path):
            identity = expect or (await self.stat(path)).identity
            if found := versions.get(identity):
                found.users += 1
                return found
        file = await self.calls.persist(f"open {path!r}", lambda: self._reader.open(path, expect, store=self._files))
        versions = self._open.setdefault(path, {})
        if found := versions.get(file.status.identity):  # somebody else was quicker
            found.users += 1
            await file.aclose()
            return found
        versions[file.status.identity] = opened = Opened(self, path, file)
        return opened

    async def close(self, opened: Opened) -> None:
        opened.users -= 1
        if opened.users:
            return
        versions = self._open[opened.path]
        del versions[opened.status.identity]
        if not versions:
            del self._open[opened.path]
        await opened.file.aclose()

    async def stat(self, path: bytes) -> Status:
        return await self.calls.call(f"look up {path!r}", self.store.stat, path)

    async def listing(self, path: bytes) -> list[Status]:
        """What is in a directory, in byte order of the names. Raises NotADirectory, NotFound."""

        def look() -> list[Status]:
            return [status for batch in self.store.scandir(path) for status in batch]

        return await self.calls.call(f"list {path!r}", look)

    def status(self) -> dict[str, Any]:
        """Figures, as `stripefs status --json` has them of a mount."""
        return {
            "source": self.store.url,
            "store": self.store.describe(),
            "reader": self._reader.snapshot(),
            **({"cache": self._files.cache.snapshot()} if isinstance(self._files, CachedStore) else {}),
            "writers": [session.status() for session in self._sessions.values()],
        }

    async def session(self, settings: Settings) -> WriteSession:
        """What writes in this source, with these limits; which layout is wanted is told file by file."""
        plain = WriteSettings()
        limits = settings.write._replace(layout=plain.layout, layout_for=plain.layout_for)
        wanted = (limits, settings.cache.writes)
        if session := self._sessions.get(wanted):
            return session
        async with self._turn:
            session = self._sessions.get(wanted)
            if session is None:
                files = self._files
                copies = files.written if settings.cache.writes and isinstance(files, CachedStore) else no_copies
                session = WriteSession(self.store, limits, self._reader.settings.io_timeout, copies=copies)
                await self._nursery.start(session.run)
                self._sessions[wanted] = session
        return session

    def _vacate(self, folder: bytes) -> None:
        used = frozenset(version for each in list(self._sessions.values()) for version in each.drafts.versions)
        vacate(self.store.inner, self.store, folder, used)


class Service:
    """A service reached as `settings` say; their URL is that of its root."""

    def __init__(self, nursery: trio.Nursery, settings: StoreSettings, read: ReadSettings, cache: Cache | None) -> None:
        self._nursery = nursery
        self._settings = settings
        self._read = read
        self._cache = cache
        self._reader: Reader | None = None
        self._sources: dict[tuple[bytes, tuple[str, ...]], Source] = {}
        self._stores: list[Store] = []
        self._pools: set[bytes] = set()  # directories that have one
        self._roots: dict[bytes, bytes] = {}  # where striped files of a directory were found to have their parts
        self._turn = trio.Lock()

    async def at(self, root: bytes, trusted: tuple[str, ...]) -> Source:
        """The source whose root this directory is. trusted: see `WriteSettings.trust_pool`."""
        if source := self._sources.get((root, trusted)):
            return source
        async with self._turn:
            source = self._sources.get((root, trusted))
            if source is None:
                settings = self._settings
                if root != b"/":
                    settings = settings._replace(url=elsewhere(settings.url, placed(settings.url, root)))
                store = await _connected(settings, self._read.io_timeout)
                view = StripedStore(store, trusted, opener(settings))
                self._stores.append(view)
                files = view if self._cache is None else CachedStore(view, self._cache)
                source = Source(self._nursery, view, files, await self._readers(files))
                self._sources[root, trusted] = source
            return source

    async def search(self, path: bytes, trusted: tuple[str, ...]) -> tuple[Source, bytes]:
        """The source in which the file at `path` is to be written, and its path there."""
        return await self._inside(await self._nearest(path, trusted), path, trusted)

    async def open(self, path: bytes, trusted: tuple[str, ...], expect: Identity | None) -> Opened:
        """Open the file at `path`; of a striped one in the source that has its parts."""
        folder = split(path)[0]
        guess = self._roots.get(folder, b"/")
        source, inner = await self._inside(guess, path, trusted)
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
        if len(self._roots) >= _MOST_REMEMBERED:
            self._roots.clear()
        self._roots[folder] = root
        source, inner = await self._inside(root, path, trusted)
        return await source.open(inner, expect)

    def forget(self, path: bytes) -> None:
        """The directory at `path` is no more, or is another one now: so are the sources in it, and the pools."""
        inside = path.rstrip(b"/") + b"/"
        self._pools = {folder for folder in self._pools if not (folder + b"/").startswith(inside)}
        self._roots.clear()
        for key in [key for key in self._sources if (key[0] + b"/").startswith(inside)]:
            del self._sources[key]

    def close(self) -> None:
        for store in self._stores:
            store.close()

    async def _readers(self, store: Store) -> Reader:
        if self._reader is None:
            reader = Reader(store, self._read)
            await self._nursery.start(reader.run)
            self._reader = reader
        return self._reader

    async def _inside(self, root: bytes, path: bytes, trusted: tuple[str, ...]) -> tuple[Source, bytes]:
        return await self.at(root, trusted), path if root == b"/" else path.removeprefix(root)

    async def _root_of(self, path: bytes, trusted: tuple[str, ...], named: bytes) -> bytes:
        """The directory with the pool that a manifest names, if that is above the file, else the nearest with any."""
        named = named.removeprefix(placed(self._settings.url, b"")).removesuffix(POOL)
        if named and path.startswith(named + b"/") and await self.has_pool(named, trusted):
            return named
        return await self._nearest(path, trusted)

    async def _nearest(self, path: bytes, trusted: tuple[str, ...]) -> bytes:
        """The nearest directory above `path` with a pool. All are asked at once: one by one, each would cost a round
        trip for every file that is written."""
        folders = [split(path)[0]]
        while folders[-1] != b"/" and folders[-1] not in self._pools and len(folders) < _LEVELS:
            folders.append(split(folders[-1])[0])
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
    """All services of this process. What runs for them runs in `nursery`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._services: dict[tuple[StoreSettings, ReadSettings, CacheSettings], Service] = {}
        self._caches: dict[CacheSettings, Cache] = {}

    async def at(self, where: Where, path: bytes) -> tuple[Source, bytes]:
        """The source in which `path` is to be changed, and the path there. With a root given, paths begin at it."""
        service, trusted = self._service(where), where.settings.write.trust_pool
        if where.root is None:
            return await service.search(path, trusted)
        return await service.at(where.root, trusted), path

    async def inside(self, where: Where, folder: bytes) -> Source | None:
        """The source that the directory at `folder` is, where it has a pool and no root is given."""
        service, trusted = self._service(where), where.settings.write.trust_pool
        if where.root is None and await service.has_pool(folder, trusted):
            return await service.at(folder, trusted)
        return None

    async def view(self, where: Where) -> Source:
        """Where all names can be looked at."""
        return await self._service(where).at(where.root or b"/", where.settings.write.trust_pool)

    async def open(self, where: Where, path: bytes, expect: Identity | None = None) -> Opened:
        """Open the file at `path`; raises what `Source.open` raises."""
        service, trusted = self._service(where), where.settings.write.trust_pool
        if where.root is None:
            return await service.open(path, trusted, expect)
        return await (await service.at(where.root, trusted)).open(path, expect)

    def forget(self, where: Where, path: bytes) -> None:
        """The directory at `path` was moved or removed."""
        self._service(where).forget((where.root or b"/").rstrip(b"/") + path)

    def close(self) -> None:
        """Release all connections."""
        for service in self._services.values():
            service.close()
        for cache in self._caches.values():
            cache.close()

    def _service(self, where: Where) -> Service:
        settings = where.settings
        wanted = (settings.store, settings.read, _of_readers(settings.cache))
        service = self._services.get(wanted)
        if service is None:
            service = Service(self._nursery, settings.store, settings.read, self._cache(settings))
            self._services[wanted] = service
        return service

    def _cache(self, settings: Settings) -> Cache | None:
        """Raises ConfigError for a folder that cannot be one."""
        if not settings.cache.directory:
            return None
        wanted = _of_readers(settings.cache)
        cache = self._caches.get(wanted)
        if cache is None:
            queue = queue_for(settings.read.memory or default_budget())
            cache = self._caches[wanted] = Cache(wanted, queue=queue)
        return cache


def _of_readers(settings: CacheSettings) -> CacheSettings:
    """What those who want what is written kept share with others."""
    return settings._replace(writes=False)


async def _connected(settings: StoreSettings, timeout: float) -> Store:
    lane = Lane("connecting", 1)
    with trio.move_on_after(timeout):
        return await lane.run("connecting", open_store, settings, late=methodcaller("close"))
    raise ServiceDown(
        f"{redact(settings.url)} did not answer within {timeout:g} s",
        hint="see whether its host and port are right",
    )
