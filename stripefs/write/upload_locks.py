"""The locks of one file that is being written: that of its name, and guards of what it left in other directories.

A file that was moved while it was written may have parts in the directory that it left. A guard, the lock of a name
that is its version, says there that their writer lives. Where a store has no locks nothing is held, and no call does
anything.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import trio

from stripefs.errors import DraftLost, NotFound, StoreError, StripefsError
from stripefs.format.lock_and_record import LEASE
from stripefs.store.base import Attributes, Store
from stripefs.write.file_lock import FileLock, acquire, lock_path
from stripefs.write.store_ops import ClockReading, StoreOps
from stripefs.write.upload_names import join_path, split_path

__all__ = ["UploadLocks"]

_log = logging.getLogger(__name__)

LAST = 5.0
"""Seconds for letting go of a lock when the caller is cancelled."""


class UploadLocks:
    """Begins with none; `acquire` comes first. renewals: for calls that may not wait for any other one.

    seconds: of a lease, the same for all who write to this store.
    """

    def __init__(self, store: Store, ops: StoreOps, renewals: StoreOps, seconds: float = LEASE) -> None:
        self._store = store
        self._ops = ops
        self._renewals = renewals
        self._seconds = seconds
        self._lock: FileLock | None = None
        self._guards: list[FileLock] = []

    @property
    def block_size(self) -> int:
        """The store's own for new files, in bytes; 0 where that is not known."""
        return self._lock.status.block_size if self._lock is not None else 0

    @property
    def left(self) -> float:
        """Seconds for which the lock of the name is ours for sure; infinite where nothing is locked."""
        return self._lock.left if self._lock is not None else math.inf

    async def acquire(self, path: bytes, version: str, owner: str, spare: FileLock | None = None) -> None:
        """spare: a lock in the same directory that is not needed any more. Raises what `file_lock.acquire` raises."""
        self._lock = await self._acquire(path, (version,), owner, spare)

    async def ensure_lease(self, until: float = math.inf) -> None:
        """The lock of the name is ours for some time to come: one whose lease has ended, or will soon, is renewed.

        until: by trio's clock, when to give that up. Raises DraftLost when the lock is somebody else's by now,
        Transient when the store cannot be asked.
        """
        lock = self._lock
        if lock is not None and lock.left < self._seconds / 3:
            timeout = max(0.0, min(self._renewals.timeout, until - trio.current_time()))
            await self._renewals.call("renewing a lock", lock.renew, timeout=timeout)

    def assert_held(self) -> None:
        """As `FileLock.assert_held`. Blocks."""
        if self._lock is not None:
            self._lock.assert_held()

    async def cause_of_missing(self, error: StoreError) -> StoreError:
        """The error for a missing hidden file: DraftLost where another writer moved it away, else `error` itself."""
        try:
            if self._lock is not None:
                await self._ops.call("looking whether the lock is held", self._lock.check)
        except StoreError as found:
            return found
        return error

    async def add_version(self, version: str) -> None:
        """Hidden files bear this version too."""
        if self._lock is not None:
            await self._ops.call("renewing a lock", partial(self._lock.add_version, version))

    async def renew(self, reading: ClockReading | None, timeout: float) -> ClockReading | None:
        """reading: as for `FileLock.renew`, which tells the answer too; None where nothing was read. timeout: seconds.

        Raises DraftLost when the lock of the name was lost. A renewal that fails is tried again at the next time, and
        by `ensure`, which then fails for the writer.
        """
        for lock in self._held():
            try:
                reading = await self._renewals.call("renewing a lock", lock.renew, reading, timeout=timeout)
            except StripefsError as error:
                if lock is self._lock and isinstance(error, DraftLost):
                    raise
                _log.warning("the lock of %r could not be renewed: %s", lock.path, error)
        return reading

    @contextlib.asynccontextmanager
    async def moving(self, path: bytes, leaves: bytes = b"") -> AsyncIterator[None]:
        """Around giving the file the name `path`: that lock is held too, then it alone; after an error the old one.

        leaves: the version of what stays in the old directory, b"" for nothing. Raises what `file_lock.acquire` raises.
        """
        old = self._lock
        if old is None:
            yield
            return
        versions, owner = old.document.versions, old.document.owner
        guard = join_path(split_path(old.path)[0], leaves)
        new: list[FileLock] = []
        try:
            new.append(await self._acquire(path, versions, owner, None))
            if leaves and all(guard != lock.path for lock in self._guards):
                new.append(await self._acquire(guard, versions, owner, None))
            yield
        except BaseException:
            await self._release_at_last(new)
            raise
        self._lock, *guards = new
        self._guards += guards
        await self._release_at_last([old])

    async def release_name(self) -> None:
        """Somebody else may have the name from now on; the guards stay."""
        lock, self._lock = self._lock, None
        if lock is not None:
            await self._release_at_last([lock])

    async def release(self, keep: Callable[[FileLock], bool]) -> None:
        """Let all of them go, that of the name unless `keep` takes it; to be called again where it was cut off."""
        if self._lock is not None and keep(self._lock):
            self._lock = None
        for lock in self._held():
            await self._release(lock)

    async def try_attributes(self, attributes: Attributes) -> None:
        """Raises what the store answers to changing the file of the lock in this way."""
        if self._lock is not None and self._store.capabilities.attributes:
            with contextlib.suppress(NotFound):
                await self._ops.set_attributes(lock_path(self._lock.path), attributes)

    def _held(self) -> list[FileLock]:
        return [*([] if self._lock is None else [self._lock]), *self._guards]

    async def _acquire(self, path: bytes, versions: Sequence[str], owner: str, spare: FileLock | None) -> FileLock:
        """`file_lock.acquire`; a lock that comes when its caller has given up waiting for it is released."""
        acquired: list[FileLock] = []
        unwanted = threading.Event()

        def locked() -> FileLock:
            handed = spare.hand_over(path, versions, owner) if spare is not None else None
            lock = handed or acquire(self._store, path, versions, owner, seconds=self._seconds)
            acquired.append(lock)
            if unwanted.is_set():
                lock.release()
            return lock

        try:
            return await self._ops.call("locking", locked)
        except BaseException:
            unwanted.set()
            await self._release_at_last(acquired if spare is None else [spare, *acquired])
            raise

    async def _release_at_last(self, locks: Sequence[FileLock]) -> None:
        """Let go of what is not held any more, also for LAST seconds after this was cut off."""
        try:
            for lock in locks:
                await self._release(lock)
        except trio.Cancelled:
            with trio.move_on_after(LAST, shield=True):
                for lock in locks:
                    await self._release(lock)
            raise

    async def _release(self, lock: FileLock) -> None:
        """Raises nothing."""
        try:
            await self._ops.call("letting a lock go", lock.release)
        except StripefsError as error:
            _log.warning("the lock of %r stays until it runs out: %s", lock.path, error)
