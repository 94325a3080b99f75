"""Versions of striped files that were replaced or unlinked, and how long they stay readable.

A reader that holds such a version knows its parts and goes on reading. The mount that took the name away buries the
version here and deletes its parts `grace` seconds later, and not before the last handle of this mount has let go of it;
handles of other mounts have the grace alone. A grave is a line in this process and survives nothing: what a mount that
ended did not delete, `stripefs gc` finds.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
from collections import Counter
from collections.abc import Iterable, Iterator

import trio

from stripefs.errors import StripefsError
from stripefs.layout.hidden import POOL, is_version
from stripefs.store.base import Store
from stripefs.write.pool import remove_version

__all__ = ["Graves"]

_log = logging.getLogger(__name__)

_TRIES = 3
"""Deletions of one version before it is left to gc: what keeps failing will fail again, and nobody waits for it."""

_PAUSE = 10.0
"""Seconds between two of them."""


class Graves:
    """One a mount; everything is called on trio's thread.

    grace in seconds. own: the pool of `store` as manifests name it (`StripedStore.pool`).
    """

    def __init__(self, store: Store, grace: float, own: bytes = POOL) -> None:
        self._store = store
        self._grace = grace
        self._own = own
        self._due: list[tuple[float, str, int]] = []  # a heap: when, version, tries so far
        self._buried: set[str] = set()
        self._held: Counter[str] = Counter()
        self._waiting: set[str] = set()  # due, and held by a handle of this mount
        self._changed = trio.Event()
        self.deleted = 0

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
        for version in set(versions) - self._buried:
            if not is_version(version):
                raise ValueError(f"{version!r} is no version")
            self._buried.add(version)
            self._put(trio.current_time() + self._grace, version, 0)

    @contextlib.contextmanager
    def holding(self, versions: Iterable[str]) -> Iterator[None]:
        """While this lasts none of these versions is deleted."""
        held = tuple(versions)
        self.hold(held)
        try:
            yield
        finally:
            self.release(held)

    def hold(self, versions: Iterable[str]) -> None:
        """A handle of this mount reads these versions; `release` them once as often."""
        self._held.update(versions)

    def release(self, versions: Iterable[str]) -> None:
        """Nothing is awaited and nothing raised, as handles are closed in odd places."""
        for version in versions:
            self._held[version] -= 1
            if self._held[version] <= 0:
                del self._held[version]
                if version in self._waiting:
                    self._waiting.remove(version)
                    self._put(trio.current_time(), version, 0)

    async def run(self) -> None:
        """Delete what is due, until cancelled; what is left then is left for gc."""
        while True:
            self._changed = trio.Event()
            with trio.move_on_at(self._due[0][0] if self._due else float("inf")):
                await self._changed.wait()
            while self._due and self._due[0][0] <= trio.current_time():
                _, version, tries = heapq.heappop(self._due)
                if version in self._held:
                    self._waiting.add(version)
                else:
                    await self._delete(version, tries + 1)

    async def _delete(self, version: str, tries: int) -> None:
        try:
            await trio.to_thread.run_sync(remove_version, self._store, version, abandon_on_cancel=True)
        except StripefsError as error:
            if tries < _TRIES:
                self._put(trio.current_time() + _PAUSE, version, tries)
                return
            _log.warning("the replaced version %s stays until stripefs gc: %s", version, error)
        else:
            self.deleted += 1
        self._buried.discard(version)

    def _put(self, when: float, version: str, tries: int) -> None:
        heapq.heappush(self._due, (when, version, tries))
        self._changed.set()
