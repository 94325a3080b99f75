"""The context that all uploads of a mount share: stores, memory budget, uploader, store operations, statistics,
observers.

A `WriteObserver` gets the bytes of a file while they are written, as a cache that later reads are served from.

**Memory budget.** One limit holds for all files being written, first come first served, and nobody waits for ever.
Bytes are *open* while they wait for more of their part, and *sealed* once the part is on its way: sealed bytes come
back by themselves, when the part is acknowledged or given up, which the senders do within the I/O time-out. So whoever
waits for memory waits for sealed bytes; where there are too few of those, the account with the most open bytes is told
to seal what it has (`flush`), be it an idle file or the waiting one itself. A full budget therefore slows the writers
and shortens parts, and does nothing else.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import trio

from stripefs.errors import DraftLost, Unsupported
from stripefs.executor import Lane
from stripefs.format.manifest import Manifest
from stripefs.format.reserved_names import POOL
from stripefs.store.base import Status, Store
from stripefs.store.striped import StripedStore
from stripefs.units import shown
from stripefs.write.layout_policy import Layout, WritePolicy, best_layout
from stripefs.write.store_ops import StoreOps, WriteStats
from stripefs.write.uploader import Uploader

__all__ = [
    "NO_OBSERVER",
    "MemoryAccount",
    "MemoryBudget",
    "ObserverFactory",
    "UploadContext",
    "WriteObserver",
    "no_observer",
]

_log = logging.getLogger(__name__)

_STREAMS = 64
"""Files written in one go whose sinks are written, closed or given up at once."""


class MemoryAccount:
    """The bytes of one file. `flush()` must seal all open bytes before it returns; it is called on trio's thread."""

    def __init__(self, budget: MemoryBudget, flush: Callable[[], None]) -> None:
        self._budget = budget
        self._flush = flush
        self.open = 0
        self.sealed = 0
        self.granted = 0
        """Handed out while their writer slept; it takes them when it runs."""
        self.closed = False

    @property
    def held(self) -> int:
        return self.open + self.sealed + self.granted

    async def acquire(self, size: int) -> None:
        """Wait for `size` bytes; they are open then, and the caller puts them where `flush` finds them at once.

        Then it calls `acquired`. Raises DraftLost when the account is closed meanwhile.
        """
        await self._budget.acquire(self, size)

    def acquired(self) -> None:
        """The bytes that were taken can be cut now."""
        self._budget.serve()

    def seal(self, size: int) -> None:
        """`size` open bytes are on their way."""
        assert 0 <= size <= self.open
        self.open -= size
        self.sealed += size

    def release(self, size: int) -> None:
        """`size` sealed bytes are no longer held."""
        assert 0 <= size <= self.sealed
        self.sealed -= size
        self._budget.released(size)

    def drop(self, size: int) -> None:
        """`size` open bytes are no longer held."""
        assert 0 <= size <= self.open
        self.open -= size
        self._budget.released(size)

    def flush(self) -> None:
        self._flush()
        assert not self.open, "flushing leaves nothing open"

    def close(self) -> None:
        """Nothing is taken any more: waiting writers get DraftLost. Sealed bytes come back as they do."""
        self.closed = True
        self._budget.close_account(self)


class MemoryBudget:
    """`limit` in bytes. One piece larger than the limit passes when nothing else is held."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.waits = 0
        self.waited = 0.0
        """Seconds, of all waits that are over."""
        self.used = 0
        self._accounts: list[MemoryAccount] = []
        self._queue: deque[_Waiter] = deque()
        self._serving = False

    @property
    def busy(self) -> int:
        """Accounts that hold or want memory now, at least 1."""
        wanting = {id(waiter.account) for waiter in self._queue}
        return max(1, sum(account.held > 0 or id(account) in wanting for account in self._accounts))

    def account(self, flush: Callable[[], None]) -> MemoryAccount:
        account = MemoryAccount(self, flush)
        self._accounts.append(account)
        return account

    async def acquire(self, account: MemoryAccount, size: int) -> None:
        if account.closed:
            raise DraftLost("the file is no longer being written")
        if not self._queue and self._fits(size):
            self.used += size
            account.open += size
            return
        waiter = _Waiter(account, size)
        self._queue.append(waiter)
        self.waits += 1
        began = trio.current_time()
        try:
            self.serve()
            await waiter.ready.wait()
        except trio.Cancelled:
            if waiter.served:
                account.granted -= size
                self.used -= size
            elif waiter in self._queue:
                self._queue.remove(waiter)
            self.serve()
            raise
        finally:
            self.waited += trio.current_time() - began
        if not waiter.served:
            raise DraftLost("the file is no longer being written")
        account.granted -= size
        account.open += size

    def released(self, size: int) -> None:
        """`size` bytes are held no longer."""
        self.used -= size
        self.serve()

    def serve(self) -> None:
        """Hand out what is free, in order, and see that what is missing will come."""
        if self._serving:  # cutting seals, which asks to serve again: the loop below sees what changed
            return
        self._serving = True
        try:
            while self._queue:
                first = self._queue[0]
                if self._fits(first.size):
                    self._queue.popleft()
                    self.used += first.size
                    first.account.granted += first.size
                    first.served = True
                    first.ready.set()
                elif not self._flush_fullest(first.size):
                    return
        finally:
            self._serving = False

    def close_account(self, account: MemoryAccount) -> None:
        """Forget a closed account once it holds nothing, and let go those who wait in its name."""
        for waiter in [waiter for waiter in self._queue if waiter.account is account]:
            self._queue.remove(waiter)
            waiter.ready.set()
        self._forget()
        self.serve()

    def _forget(self) -> None:
        self._accounts = [account for account in self._accounts if account.held or not account.closed]

    def _fits(self, size: int) -> bool:
        return self.used + size <= self.limit or self.used == 0

    def _flush_fullest(self, size: int) -> bool:
        """True if something was cut: enough must be on its way back for a waiter of `size` bytes."""
        self._forget()
        coming = sum(account.sealed for account in self._accounts)
        if self.limit - self.used + coming >= size:
            return False
        fullest = max(self._accounts, key=lambda account: account.open, default=None)
        if fullest is None or not fullest.open:
            return False
        fullest.flush()
        return True


class _Waiter:
    def __init__(self, account: MemoryAccount, size: int) -> None:
        self.account = account
        self.size = size
        self.ready = trio.Event()
        self.served = False


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
