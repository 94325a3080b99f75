"""Opens handles on threads that a cancelled caller does not wait for, and loses none of them."""

from __future__ import annotations

import threading

import trio

from stripefs.store.base import Handle, Identity, Store

__all__ = ["Opener"]

OPENS_AT_ONCE = 32
"""Store.open calls under way at once. Their threads are their own: a metadata service that hangs keeps them, and
nothing else of the process may wait for that."""


class Opener:
    """Opens files of stores."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(OPENS_AT_ONCE)

    async def open(self, store: Store, path: bytes, expect: Identity | None) -> Handle:
        """`Store.open`. When the caller is cancelled meanwhile, a handle that comes late is closed."""
        pending = _Pending(store, path, expect)
        try:
            return await trio.to_thread.run_sync(pending.open, abandon_on_cancel=True, limiter=self._limiter)
        except trio.Cancelled:
            pending.abandon()
            raise


class _Pending:
    def __init__(self, store: Store, path: bytes, expect: Identity | None) -> None:
        self._store = store
        self._path = path
        self._expect = expect
        self._lock = threading.Lock()
        self._handle: Handle | None = None
        self._abandoned = False

    def open(self) -> Handle:
        handle = self._store.open(self._path, self._expect)
        with self._lock:
            self._handle = handle
            abandoned = self._abandoned
        if abandoned:
            handle.close()
        return handle

    def abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            handle = self._handle
        if handle is not None:
            handle.close()
