"""The context that all uploads of a mount share: stores, memory budget, uploader, store operations, statistics,
observers.

A `WriteObserver` gets the bytes of a file while they are written, as a cache that later reads are served from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

import trio

from stripefs.errors import Unsupported
from stripefs.executor import Lane
from stripefs.format.manifest import Manifest
from stripefs.format.reserved_names import POOL
from stripefs.store.base import Status, Store
from stripefs.store.striped import StripedStore
from stripefs.units import shown
from stripefs.write.layout_policy import Layout, WritePolicy, best_layout
from stripefs.write.memory_budget import MemoryBudget
from stripefs.write.store_ops import StoreOps, WriteStats
from stripefs.write.uploader import Uploader

__all__ = [
    "NO_OBSERVER",
    "ObserverFactory",
    "UploadContext",
    "WriteObserver",
    "no_observer",
]

_log = logging.getLogger(__name__)

_STREAMS = 64
"""Files written in one go whose sinks are written, closed or given up at once."""


class WriteObserver(Protocol):
    """The observer of one upload. Nothing of it blocks or raises."""

    def behind(self, path: bytes, status: Status) -> None:
        """Later bytes continue the published file `status`, whose bytes are not added."""

    def add(self, data: memoryview) -> None:
        """The next bytes, which do not change any more."""

    def publish(self, path: bytes, status: Status | None) -> None:
        """All bytes so far are the version `status` at `path`; None where their version is not known."""

    def drop(self) -> None:
        """Unpublished bytes never will be published; the next bytes are the file's beginning."""


class _NoObserver:
    def behind(self, path: bytes, status: Status) -> None: ...

    def add(self, data: memoryview) -> None: ...

    def publish(self, path: bytes, status: Status | None) -> None: ...

    def drop(self) -> None: ...


NO_OBSERVER = _NoObserver()

ObserverFactory = Callable[[bytes], WriteObserver | None]
"""Makes the observer of the file that is written at a path, None for none."""


def no_observer(_path: bytes) -> None:
    """No file has an observer."""


class UploadContext:
    """view: the store for reads, striped files as one. store: the one below, which is written to.

    schedule_delete(versions, pool) is called with the striped versions that a publication has replaced. renewals: calls
    that may not wait for any other one. observers: makes the observers of files' bytes. nursery: while the mount runs.
    """

    def __init__(
        self,
        view: Store,
        policy: WritePolicy,
        schedule_delete: Callable[[Iterable[str], bytes], None] | None,
        observers: ObserverFactory,
    ) -> None:
        self.view = view
        self.store = view.inner if isinstance(view, StripedStore) else view
        self.policy = policy
        self.schedule_delete = schedule_delete
        self.observers = observers
        self.ops = StoreOps(self.store, policy.io_timeout)
        self.renewals = StoreOps(self.store, policy.io_timeout, self.ops.stats)
        self.uploader = Uploader(self.store, self.ops, policy.io_timeout)
        self.budget = MemoryBudget(policy.memory)
        self.nursery: trio.Nursery | None = None
        self.warned: set[str] = set()
        self.streams = Lane("streams", _STREAMS)

    @property
    def stats(self) -> WriteStats:
        return self.ops.stats

    @property
    def pool(self) -> bytes:
        """The pool that manifests name."""
        return self.view.pool if isinstance(self.view, StripedStore) else POOL

    def ensure_ours(self, manifest: Manifest) -> None:
        """Raises Unsupported where what is appended would lie in another pool than what is there: a file has one."""
        if isinstance(self.view, StripedStore) and self.view.foreign(manifest.pool):
            raise Unsupported(
                f"its parts lie in {shown(manifest.pool)}, so nothing is written behind them",
                hint="copy the file and write the copy, or mount what that pool belongs to",
            )

    def layout(self, wanted: Layout) -> Layout:
        """The layout that a big file gets; says once why it is another than the one that is wanted."""
        able = self.store.capabilities
        if wanted is Layout.STRIPED and not isinstance(self.view, StripedStore):
            layout, why = Layout.PLAIN, "striped files cannot be read here"
        else:
            layout, why = best_layout(
                wanted, writes=able.writes, replace=able.replace, concat=able.concat, marks=able.marks
            )
        if why and why not in self.warned:
            self.warned.add(why)
            _log.warning("big files are written as %s, not %s: %s", layout.value, wanted.value, why)
        return layout

    async def manifest(self, path: bytes) -> Manifest | None:
        """The manifest of the striped file at `path`; None for other files, and where there is none."""
        view = self.view
        if not isinstance(view, StripedStore):
            return None
        return await self.ops.call("reading what is replaced", lambda: view.manifest(path))
