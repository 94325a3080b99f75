"""The worker of `stripefs mount`: a store, a reader and a tree, served by `stripefs.fuse.worker`."""

from __future__ import annotations

import logging
import math
import os
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from stripefs.assembly import AssembledStore, connect, open_cache
from stripefs.errors import NotADirectory, ServiceDown, Unsupported
from stripefs.executor import retry_task
from stripefs.fuse import worker
from stripefs.fuse.control_server import Request
from stripefs.fuse.protocol import ServedTree
from stripefs.read import Reader
from stripefs.retry import RetryPolicy
from stripefs.settings import Settings
from stripefs.store.allocator import Heap, tune_allocator
from stripefs.store.base import Kind, Store
from stripefs.vfs import InodeTable, Tree

if TYPE_CHECKING:
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
        self._source: AssembledStore
        self._events: ReadEvents | None = None
        self._reader: Reader
        self._tree: Tree | WritableTree

    @property
    def source(self) -> str:
        return self._source.view.url

    @property
    def kept(self) -> dict[str, Any]:
        return {"file_ids": self._source.view.capabilities.file_ids, "writer": self._writer}

    @property
    def open_writes(self) -> int:
        return self._writing.open_files if self._writing is not None else 0

    async def open(self) -> None:
        tune_allocator()
        base = await (self._connect() if self._start.first else self._reconnect())
        self._source = AssembledStore(base, self._settings, open_cache(self._settings))
        if events := self._settings.mount.events or os.environ.get("BOOTSEER_EVENTS"):
            from stripefs.read_events import events_of_reads

            self._events = events_of_reads(events, self._settings.store.url)
        if self._settings.mount.rw:
            from stripefs.fuse.write_backend import WriteBackend  # a read-only worker starts without all that

            self._writing = WriteBackend(self._source, self._settings, self._writer)

    async def run(self, *, task_status: trio.TaskStatus[ServedTree]) -> None:
        self._reader = Reader(self._source.files, self._settings.read, Heap(self._writers_memory), self._events)
        state = InodeTable(self._start.journal)
        state.replay(self._start.journal.load())
        mount = self._settings.mount
        make_tree = partial(
            Tree,
            self._source.view,
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
            "store": self._source.view.describe(),
            **self._source.cache_status(),
            **({"writer": self._writing.status()} if self._writing is not None else {}),
            # Settings by which `probe` and `warm` reach the source the same way; the URL without secrets.
            "settings": {
                "store": settings.store._asdict() | {"url": self._source.view.url},
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
        self._source.close()
        if self._source.cache is not None:
            self._source.cache.close()

    def _writers_memory(self) -> int:
        return self._writing.memory if self._writing is not None else 0

    async def _connect(self) -> Store:
        """Connect, once. Raises what keeps the source from being mounted."""
        return await self._connected(self._settings.read.io_timeout, _ensure_mountable)

    async def _reconnect(self) -> Store:
        """Connect; wait for a store that is away, because callers already wait for this worker."""
        said = ""

        def tell(error: Exception, _pause: float) -> None:
            nonlocal said
            if str(error) != said:
                said = str(error)
                _log.warning("the store is away, requests wait for it: %s", error)

        policy = RetryPolicy(self._settings.read.io_timeout, first=_RECONNECT_EVERY, longest=_RECONNECT_EVERY)
        return await retry_task(lambda: self._connected(math.inf, self._ensure_file_ids), policy, tell)

    async def _connected(self, timeout: float, check: Callable[[Store], None]) -> Store:
        fetches = self._settings.mount.own_fetch_process
        return await connect(self._settings.store._replace(fetch_process=fetches), timeout, check)

    def _ensure_file_ids(self, store: Store) -> None:
        """Raises ServiceDown as long as the service that gave the first worker its file ids is away.

        Without them every identity would differ, and every open file would seem to be replaced.
        """
        if self._file_ids and not store.capabilities.file_ids:
            raise ServiceDown(f"{store.url} gives no file ids now, as it did before")


def _ensure_mountable(store: Store) -> None:
    """Raises Unsupported, NotADirectory."""
    if not store.capabilities.listing:
        raise Unsupported(f"{store.url} cannot be mounted: it does not list directories")
    if store.stat(b"/").kind is not Kind.DIRECTORY:
        raise NotADirectory(f"{store.url} is no directory", hint="mount the directory that holds it")


if __name__ == "__main__":
    worker.main(StoreBackend)
