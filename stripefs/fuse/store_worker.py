"""The worker of `stripefs mount`: a store, a reader and a tree, served by `stripefs.fuse.worker`."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from stripefs.errors import NotADirectory, ServiceDown, Unsupported
from stripefs.executor import Lane, retry_task
from stripefs.fuse import worker
from stripefs.fuse.control_server import Request
from stripefs.fuse.protocol import ServedTree
from stripefs.read import Reader
from stripefs.retry import RetryPolicy
from stripefs.settings import Settings, StoreSettings, default_budget, redact
from stripefs.store.base import Kind, Store
from stripefs.store.buffers import Heap, tune_allocator
from stripefs.store.striped import StripedStore, striped_view
from stripefs.store.url import open_store
from stripefs.vfs import InodeTable, Tree

if TYPE_CHECKING:
    from stripefs.cache.cached_store import CachedStore
    from stripefs.fuse.write_backend import WriteBackend
    from stripefs.read_events import ReadEvents
    from stripefs.vfs.writable_tree import WritableTree

__all__ = ["StoreBackend"]

_log = logging.getLogger("stripefs.fuse.store_worker")  # also when this is __main__

_RECONNECT_EVERY = 1.0


class StoreBackend:
    """The files of a store as `Settings` describe it."""

    requests: Mapping[str, Request] = {}

    def __init__(self, start: worker.Start) -> None:
        settings = Settings.from_json(start.payload)
        self._settings = settings._replace(mount=start.mount)
        self._start = start
        self._file_ids = bool(start.kept.get("file_ids"))
        self._writer = str(start.kept.get("writer") or secrets.token_hex(8))
        self._writing: WriteBackend | None = None
        self._connecting = Lane("connecting", 1)
        self._store: StripedStore
        self._cached: CachedStore | None = None
        self._events: ReadEvents | None = None
        self._reader: Reader
        self._tree: Tree | WritableTree

    @property
    def _store_settings(self) -> StoreSettings:
        return self._settings.store._replace(fetch_process=self._settings.mount.own_fetch_process)

    @property
    def source(self) -> str:
        return self._store.url

    @property
    def kept(self) -> dict[str, Any]:
        return {"file_ids": self._store.capabilities.file_ids, "writer": self._writer}

    @property
    def open_writes(self) -> int:
        return self._writing.open_files if self._writing is not None else 0

    async def open(self) -> None:
        tune_allocator()
        store = await (self._check_source() if self._start.first else self._open_store())
        self._store = striped_view(store, self._settings.store, self._settings.write.trust_pool)
        if self._settings.cache.directory:
            from stripefs.cache.cache import Cache, queue_for  # a worker without a cache starts without it
            from stripefs.cache.cached_store import CachedStore

            queue = queue_for(self._settings.read.memory or default_budget())
            cache = Cache(self._settings.cache, self._settings.mount.mountpoint, queue)
            self._cached = CachedStore(self._store, cache)
        if events := self._settings.mount.events or os.environ.get("BOOTSEER_EVENTS"):
            from stripefs.read_events import events_of_reads

            self._events = events_of_reads(events, self._settings.store.url)
        if self._settings.mount.rw:
            from stripefs.fuse.write_backend import WriteBackend  # a read-only worker starts without all that

            self._writing = WriteBackend(self._store, self._settings, self._writer, self._cached)

    async def run(self, *, task_status: trio.TaskStatus[ServedTree]) -> None:
        self._reader = Reader(
            self._cached or self._store, self._settings.read, Heap(self._writers_memory), self._events
        )
        state = InodeTable(self._start.journal)
        state.replay(self._start.journal.load())
        mount = self._settings.mount
        make_tree = partial(
            Tree,
            self._store,
            self._reader,
            state=state,
            attr_timeout=mount.attr_timeout,
            io_timeout=self._settings.read.io_timeout,
            umask=mount.umask,
            uid=mount.uid,
            gid=mount.gid,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(self._reader.run)
            if self._writing is None:
                self._tree = make_tree()
            else:
                self._tree = await nursery.start(self._writing.run, make_tree)
            task_status.started(self._tree)

    def status(self) -> dict[str, Any]:
        settings = self._settings
        return {
            "tree": self._tree.snapshot(),
            "reader": self._reader.snapshot(),
            "store": self._store.describe(),
            **({"cache": self._cached.cache.snapshot()} if self._cached is not None else {}),
            **({"writer": self._writing.status()} if self._writing is not None else {}),
            # Settings by which `probe` and `warm` reach the source the same way; the URL without secrets.
            "settings": {
                "store": settings.store._asdict() | {"url": self._store.url},
                "read": settings.read._asdict(),
                "cache": settings.cache._asdict(),
            },
        }

    def metrics(self, status: Mapping[str, Any]) -> str:
        from stripefs.metrics import render

        return render(status)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
        self._store.close()
        if self._cached is not None:
            self._cached.cache.close()

    def _writers_memory(self) -> int:
        return self._writing.memory if self._writing is not None else 0

    async def _open_store(self) -> Store:
        """Connect; wait for a store that is away, because callers already wait for this worker."""
        said = ""

        def tell(error: Exception, _pause: float) -> None:
            nonlocal said
            if str(error) != said:
                said = str(error)
                _log.warning("the store is away, requests wait for it: %s", error)

        async def connect() -> Store:
            return await self._connecting.run("connecting", self._connect_as_before)

        policy = RetryPolicy(self._settings.read.io_timeout, first=_RECONNECT_EVERY, longest=_RECONNECT_EVERY)
        return await retry_task(connect, policy, tell)

    def _connect_as_before(self) -> Store:
        """Raises ServiceDown as long as the service that gave the first worker its file ids is away.

        Without them every identity would differ, and every open file would seem to be replaced.
        """
        store = open_store(self._store_settings)
        if self._file_ids and not store.capabilities.file_ids:
            store.close()
            raise ServiceDown(f"{store.url} gives no file ids now, as it did before")
        return store

    async def _check_source(self) -> Store:
        """Connect, once; raise what keeps the source from being mounted."""
        timeout = self._settings.read.io_timeout
        with trio.move_on_after(timeout):
            store = await self._connecting.run("connecting", open_store, self._store_settings)
            if not store.capabilities.listing:
                raise Unsupported(f"{store.url} cannot be mounted: it does not list directories")
            root = await self._connecting.run("looking at the root", store.stat, b"/")
            if root.kind is not Kind.DIRECTORY:
                raise NotADirectory(f"{store.url} is no directory", hint="mount the directory that holds it")
            return store
        raise ServiceDown(
            f"{redact(self._settings.store.url)} did not answer within {timeout:g} s",
            hint="see whether its host and port are right",
        )


if __name__ == "__main__":
    worker.main(StoreBackend)
