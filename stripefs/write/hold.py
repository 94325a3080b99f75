"""The locks of one file that is being written: that of its name, and guards of what it left in other directories.

A file that was moved while it was written may have parts in the directory that it left. A guard, the lock of a name
that is its version, says there that their writer lives. Where a store has no locks nothing is held, and no call does
anything.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from functools import partial

import trio

from stripefs.errors import NotFound, StripefsError
from stripefs.store.base import Attributes, Store
from stripefs.write.effects import Effects
from stripefs.write.lease import Lease, lock_path, take
from stripefs.write.names import join, split
from stripefs.write.refusals import DraftLost

__all__ = ["Hold"]

_log = logging.getLogger(__name__)

LAST = 5.0
"""Seconds for letting go of a lock when the caller is cancelled."""


class Hold:
    """Begins with nothing; `take` comes first. renewals: for calls that may not wait for any other one."""

    def __init__(self, store: Store, effects: Effects, renewals: Effects) -> None:
        self._store = store
        self._effects = effects
        self._renewals = renewals
        self._lease: Lease | None = None
        self._guards: list[Lease] = []

    @property
    def block_size(self) -> int:
        """The store's own for new files, in bytes; 0 where that is not known."""
        return self._lease.status.block_size if self._lease is not None else 0

    async def take(self, path: bytes, version: str, owner: str) -> None:
        """Raises what `lease.take` raises."""
        self._lease = await self._taken(path, (version,), owner)

    async def ensure(self) -> None:
        """Raises DraftLost when the lock of the name is somebody else's by now."""
        if self._lease is not None:
            await self._effects.call("looking whether the lock is held", self._lease.ensure)

    async def add(self, version: str) -> None:
        """What is hidden bears this version too."""
        if self._lease is not None:
            await self._effects.call("renewing a lock", partial(self._lease.add, version))

    async def renew(self) -> None:
        """Raises DraftLost when the lock of the name was lost; what cannot be told now is told at the next time."""
        for lease in self._all():
            try:
                await self._renewals.call("renewing a lock", lease.renew)
            except DraftLost:
                if lease is self._lease:
                    raise
            except StripefsError as error:
                _log.warning("the lock of %r could not be renewed: %s", lease.path, error)

    @contextlib.asynccontextmanager
    async def moving(self, path: bytes, leaves: bytes = b"") -> AsyncIterator[None]:
        """Around giving the file the name `path`: that lock is held too, then it alone; after an error the old one.

        leaves: the version of what stays in the old directory, b"" for nothing. Raises what `lease.take` raises.
        """
        old = self._lease
        if old is None:
            yield
            return
        versions, owner = old.document.versions, old.document.owner
        guard = join(split(old.path)[0], leaves)
        new: list[Lease] = []
        try:
            new.append(await self._taken(path, versions, owner))
            if leaves and all(guard != lease.path for lease in self._guards):
                new.append(await self._taken(guard, versions, owner))
            yield
        except BaseException:
            await self._release_at_last(new)
            raise
        self._lease, *guards = new
        self._guards += guards
        await self._release_at_last([old])

    async def release_name(self) -> None:
        """Somebody else may have the name from now on; the guards stay."""
        lease, self._lease = self._lease, None
        if lease is not None:
            await self._release_at_last([lease])

    async def release(self) -> None:
        """Let all of them go; to be called again where it was cut off."""
        for lease in self._all():
            await self._release(lease)

    async def try_attributes(self, attributes: Attributes) -> None:
        """Raises what the store answers to changing the file of the lock in this way."""
        if self._lease is not None and self._store.capabilities.attributes:
            with contextlib.suppress(NotFound):
                await self._effects.set_attributes(lock_path(self._lease.path), attributes)

    def _all(self) -> list[Lease]:
        return [*([] if self._lease is None else [self._lease]), *self._guards]

    async def _taken(self, path: bytes, versions: Sequence[str], owner: str) -> Lease:
        """`lease.take`; a lock that comes when its caller has given up waiting for it is let go."""
        taken: list[Lease] = []
        unwanted = threading.Event()

        def locked() -> Lease:
            lease = take(self._store, path, versions, owner)
            taken.append(lease)
            if unwanted.is_set():
                lease.release()
            return lease

        try:
            return await self._effects.call("locking", locked)
        except BaseException:
            unwanted.set()
            await self._release_at_last(taken)
            raise

    async def _release_at_last(self, leases: Sequence[Lease]) -> None:
        """Let go of what is not held any more, also for LAST seconds after this was cut off."""
        try:
            for lease in leases:
                await self._release(lease)
        except trio.Cancelled:
            with trio.move_on_after(LAST, shield=True):
                for lease in leases:
                    await self._release(lease)
            raise

    async def _release(self, lease: Lease) -> None:
        """Raises nothing."""
        try:
            await self._effects.call("letting a lock go", lease.release)
        except StripefsError as error:
            _log.warning("the lock of %r stays until it runs out: %s", lease.path, error)
