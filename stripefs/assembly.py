"""Store assembly: from a URL and settings to the store that a mount, a program or a command reads and writes.

    files     through the cache on local disk, where there is one
    view      each striped file is one file
    base      the store at the URL, with the wrappers that the URL names

`connect` is for tasks and bounded in time, `open_source` blocks. A URL of a file does not say where its source begins:
`find_source` looks for that. A process that uses no cache loads nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import trio

from stripefs.errors import ConfigError, NotADirectory, NotFound, PermissionDenied, ServiceDown
from stripefs.executor import Lane
from stripefs.format.reserved_names import POOL
from stripefs.settings import Settings, StoreSettings, default_budget, redact
from stripefs.store.base import Kind, Store
from stripefs.store.striped import StripedStore
from stripefs.store.url import elsewhere, open_store, parent_and_name

if TYPE_CHECKING:
    from stripefs.cache.cache import Cache
    from stripefs.cache.cached_store import CachedStore

__all__ = ["LEVELS", "AssembledStore", "connect", "find_source", "open_at", "open_cache", "open_source"]

LEVELS = 32
"""Directories above a file in which its pool is looked for."""


class AssembledStore:
    """The layers above `base`, which was opened by `settings`; pools outside of it are reached as it is. Owns all
    layers but `cache`, which others may use: its owner closes it after this.

    cached: the view with `cache` in front, None where there is no cache.
    """

    def __init__(self, base: Store, settings: Settings, cache: Cache | None = None) -> None:
        # One process that fetches is enough for a source: other pools are read without.
        pools = settings.store._replace(fetch_process=False)
        self.base = base
        self.view = StripedStore(
            base, settings.write.trust_pool, lambda place: open_store(pools._replace(url=elsewhere(pools.url, place)))
        )
        self.cache = cache
        self.cached: CachedStore | None = None
        if cache is not None:
            from stripefs.cache.cached_store import CachedStore

            self.cached = CachedStore(self.view, cache)

    @property
    def files(self) -> Store:
        return self.cached or self.view

    def cache_status(self) -> dict[str, Any]:
        """Statistics of the cache as `status` has them, under a key of their own; {} where there is none."""
        return {} if self.cache is None else {"cache": self.cache.snapshot()}

    def close(self) -> None:
        self.files.close()


def open_source(settings: Settings, cache: Cache | None = None) -> AssembledStore:
    """The store at the URL of `settings`, which names a directory. Blocks. Raises ConfigError, StoreErrors."""
    return AssembledStore(open_store(settings.store), settings, cache)


async def connect(
    settings: StoreSettings, timeout: float, check: Callable[[Store], object] = lambda _store: None
) -> Store:
    """The store at the URL of `settings`, after `check(store)` on the same thread, which raises for one that is not
    wanted. Raises what both raise, and ServiceDown after `timeout` seconds; then nothing stays open."""

    def opened() -> Store:
        store = open_store(settings)
        try:
            check(store)
        except BaseException:
            store.close()
            raise
        return store

    with trio.move_on_after(timeout):
        return await Lane("connecting", 1).run("connecting", opened, late=methodcaller("close"))
    raise ServiceDown(
        f"{redact(settings.url)} did not answer within {timeout:g} s",
        hint="see whether its host and port are right",
    )


def open_cache(settings: Settings) -> Cache | None:
    """The cache of a process with these settings, None where they name none. Raises ConfigError for a folder that
    cannot be one."""
    if not settings.cache.directory:
        return None
    from stripefs.cache.cache import Cache, queue_for

    queue = queue_for(settings.read.memory or default_budget())
    return Cache(settings.cache, settings.mount.mountpoint, queue)


def find_source(settings: Settings, inside: bytes, *, exists: bool = False) -> tuple[Settings, bytes]:
    """The source of a file, and its path there. Blocks. Raises ConfigError for a URL without a name, StoreErrors.

    inside: the path where the URL of `settings` is that of the source, b"" where the URL names the file. Then its
    source is the nearest directory above it that holds a pool of striped parts, else the one that it lies in. exists:
    the URL names a file or a directory that is there, and a directory may hold the pool itself.
    """
    if inside:
        return settings, inside
    first, path = parent_and_name(settings.store.url)
    if exists:
        store, path = open_at(settings.store)
        store.close()
        first = settings.store.url if path == b"/" else first
    elif path == b"/":
        raise ConfigError(f"{redact(first)} names no file", hint="give the URL of a file")

    def at(url: str) -> Settings:
        return settings._replace(store=settings.store._replace(url=url))

    url, inside = first, path
    for _ in range(LEVELS):
        try:
            with closing(open_store(at(url).store)) as store:
                if _has_pool(store):
                    return at(url), inside
        except (NotFound, NotADirectory, PermissionDenied):
            break  # no directory, or above what this user may see
        url, name = parent_and_name(url)
        if name == b"/":
            break
        inside = name + inside.rstrip(b"/")
    return at(first), path


def open_at(settings: StoreSettings, inside: bytes = b"") -> tuple[Store, bytes]:
    """The store that holds what the URL names, and its path there: a URL may name a file, a store is a directory.

    inside: as for `find_source`.
    """
    if inside:
        return open_store(settings), inside
    try:
        store = open_store(settings)
        try:
            # Without listings no file can be looked for, so the URL names the file.
            if store.capabilities.listing and store.stat(b"/").kind is Kind.DIRECTORY:
                return store, b"/"
        except BaseException:
            store.close()
            raise
        store.close()
    except NotADirectory:
        pass
    url, path = parent_and_name(settings.url)
    return open_store(settings._replace(url=url)), path


def _has_pool(store: Store) -> bool:
    try:
        return store.stat(POOL).kind is Kind.DIRECTORY
    except NotFound:
        return False
