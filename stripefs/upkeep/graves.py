"""Versions of striped files that were replaced or unlinked, and how long they stay readable.

A reader that holds such a version, through this mount or another one, knows its parts and goes on reading. The mount
that took the name away buries the version here and deletes its parts `grace` seconds later. A grave is a line in this
process and survives nothing: what a mount that ended did not delete, `stripefs gc` finds. A stone, an empty file that
is put among the parts at once, makes the version young, so that a gc spares it for a day however old its parts are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import trio

from stripefs.errors import StripefsError
from stripefs.executor import Lane
from stripefs.layout.hidden import POOL, is_version
from stripefs.store.base import Store
from stripefs.upkeep.pool import put_stone, remove_version

__all__ = ["Graves"]

_log = logging.getLogger(__name__)

_TRIES = 3
"""Deletions of one version before it is left to gc: what keeps failing will fail again, and nobody waits for it."""

_PAUSE = 10.0
"""Seconds between two of them."""

_AT_ONCE = 4
"""Versions that are marked or deleted at once: there is no hurry, and writers want the store."""


class Graves:
    """One a mount; everything is called on trio's thread.

    grace in seconds. own: the pool of `store` as manifests name it (`StripedStore.pool`).
    """

    def __init__(self, store: Store, grace: float, own: bytes = POOL) -> None:
        self._store = store
        self._grace = grace
        self._own = own
        self._new: list[tuple[str, float]] = []  # buried and not yet seen by `run`, and when each is due
        self._more = trio.Event()
        self._buried: dict[str, float] = {}  # when each is due
        self._unmarked: set[str] = set()  # those without a stone so far
        self._progress = trio.Event()  # set, and replaced, whenever there is one less of either
        self._lane = Lane("deletions", _AT_ONCE)

    def __len__(self) -> int:
        """Versions that are buried and still there."""
        return len(self._buried)

    def bury(self, versions: Iterable[str], pool: bytes = POOL) -> None:
        """No name stands for these versions any more: delete them when their time has come. Returns at once.

        Call it when the rename, unlink or publication stands, with the versions that the new manifest does not name.
        What lies in a foreign pool is not ours to delete.
        """
        if pool not in (self._own, POOL):
            return
        for version in set(versions) - self._buried.keys():
            if not is_version(version):
                raise ValueError(f"{version!r} is no version")
            self._buried[version] = due = trio.current_time() + self._grace
            self._unmarked.add(version)
            self._new.append((version, due))
        self._more.set()

    async def run(self) -> None:
        """Delete what is due, until cancelled; what is left then is left for gc."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._more.wait()
                self._more = trio.Event()
                new, self._new = self._new, []
                for version, due in new:
                    nursery.start_soon(self._keep, version, due)

    async def settle(self) -> None:
        """Wait until all have their stones, and those whose time has come by now are gone, or given up; `run` must be
        running."""
        now = trio.current_time()
        while self._unmarked or any(due <= now for due in self._buried.values()):
            await self._progress.wait()

    async def _keep(self, version: str, due: float) -> None:
        """A grave from the stone to its end."""
        try:
            await self._thread(put_stone, version)
        except StripefsError as error:
            _log.info("the replaced version %s could not be marked: %s", version, error)
        self._unmarked.discard(version)
        self._advance()
        await trio.sleep_until(due)
        for tried in range(1, _TRIES + 1):
            try:
                await self._thread(remove_version, version)
            except StripefsError as error:
                if tried == _TRIES:
                    _log.warning("the replaced version %s stays until stripefs gc: %s", version, error)
                else:
                    await trio.sleep(_PAUSE)
            else:
                break
        del self._buried[version]
        self._advance()

    def _advance(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    async def _thread(self, call: Callable[[Store, str], None], version: str) -> None:
        await self._lane.run(f"the replaced version {version}", call, self._store, version)
