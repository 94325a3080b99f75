"""Deferred delete of striped versions that were replaced or unlinked, and the pool that holds their parts.

A reader that holds such a version, through this mount or another one, knows its parts and goes on reading. The mount
that took the name away schedules the version here and deletes its parts `grace` seconds later. The schedule is memory
of this process and survives nothing: `stripefs gc` finds the versions that a mount did not delete before it ended. A
tombstone, an empty file that is put among the parts at once, makes the version young, so that a gc spares it for a day
however old its parts are.

The pool is `/.stripefs/VERSION/…`, listed and removed version by version.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import trio

from stripefs.background import supervise
from stripefs.errors import NotADirectory, NotEmpty, NotFound, Unsupported
from stripefs.executor import Lane
from stripefs.format.reserved_names import POOL, is_version, version_folder
from stripefs.store.base import Kind, Store

__all__ = ["DeferredDelete", "StoredVersion", "put_tombstone", "remove_version", "stored", "versions"]


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """Contents of the folder of a version: so many files of so many bytes; the newest time among them and the folder.

    0 stands for a time that the store does not know; `foreign` for a folder that holds what no writer put there.
    """

    version: str
    files: int = 0
    length: int = 0
    changed_ns: int = 0
    foreign: bool = False


def versions(store: Store, after: str = "") -> Iterator[tuple[str, int]]:
    """The versions that have a folder in the pool, those greater than `after`, in order, with the folders' times."""
    with contextlib.suppress(NotFound, NotADirectory):
        for batch in store.scandir(POOL, after.encode()):
            for status in batch:
                name = status.name.decode("ascii", "replace")
                if status.kind is Kind.DIRECTORY and is_version(name):
                    yield name, status.mtime_ns


def stored(store: Store, version: str) -> StoredVersion:
    """Facts about the folder of `version` now. Raises NotFound."""
    folder = version_folder(version)
    changed_ns, files, length, foreign = store.stat(folder).mtime_ns, 0, 0, False
    for batch in store.scandir(folder):
        for status in batch:
            files += 1
            length += status.length
            changed_ns = max(changed_ns, status.mtime_ns)
            foreign = foreign or status.kind is not Kind.FILE
    return StoredVersion(version, files, length, changed_ns, foreign)


def put_tombstone(store: Store, version: str) -> None:
    """Make what is in the folder of `version` young. One that is gone stays gone."""
    folder = version_folder(version)
    with contextlib.suppress(NotFound):
        store.stat(folder)
        store.put(folder + b"/stone", (), replace=True)


def remove_version(store: Store, version: str) -> None:
    """Remove the folder of `version` with all files in it; a missing file or folder is no error.

    A file that appears meanwhile keeps the folder. Raises StoreError where something cannot be removed.
    """
    folder = version_folder(version)
    with contextlib.suppress(NotFound):
        for batch in store.scandir(folder):
            for status in batch:
                with contextlib.suppress(NotFound):
                    store.remove(folder + b"/" + status.name)
    # A store without folders has none left that could be removed.
    with contextlib.suppress(NotFound, NotEmpty, Unsupported):
        store.rmdir(folder)


_log = logging.getLogger(__name__)

_TRIES = 3
"""Tries to delete one version before it is left to gc: more would fail too, and nobody waits for them."""

_PAUSE = 10.0
"""Seconds between two of them."""

_AT_ONCE = 4
"""Versions that are marked or deleted at once: there is no hurry, and writers want the store."""

_TIMEOUT = 60.0
"""Seconds for marking or deleting one version."""


class DeferredDelete:
    """One a mount; everything is called on trio's thread.

    grace in seconds. own: the pool of `store` as manifests name it (`StripedStore.pool`).
    """

    def __init__(self, store: Store, grace: float, own: bytes = POOL) -> None:
        self._store = store
        self._grace = grace
        self._own = own
        self._without_tombstone: deque[str] = deque()
        self._marking = 0
        self._schedule: list[tuple[float, int, str]] = []  # a heap: when to delete a version, after how many tries
        self._more = trio.Event()
        self._due_at: dict[str, float] = {}  # when each is due
        self._progress = trio.Event()  # set, and replaced, whenever there is one less of either
        self._lane = Lane("deletions", _AT_ONCE)

    def __len__(self) -> int:
        """Number of versions that are scheduled for deletion and still there."""
        return len(self._due_at)

    def schedule(self, versions: Iterable[str], pool: bytes = POOL) -> None:
        """No name stands for these versions any more: delete them when their time has come. Returns at once.

        Call it when the rename, unlink or publication stands, with the versions that the new manifest does not name.
        Versions in a foreign pool are not ours to delete.
        """
        if pool not in (self._own, POOL):
            return
        for version in set(versions) - self._due_at.keys():
            if not is_version(version):
                raise ValueError(f"{version!r} is no version")
            self._due_at[version] = trio.current_time() + self._grace
            self._without_tombstone.append(version)
        self._wake()

    async def run(self) -> None:
        """Delete versions that are due, until cancelled; the rest is left for gc then."""
        async with trio.open_nursery() as nursery:
            for _ in range(_AT_ONCE):
                nursery.start_soon(supervise, "deleting replaced versions", self._work)

    async def wait_due(self) -> None:
        """Wait until all have their tombstones, and those that are due by now are deleted, or given up; `run` must be
        running."""
        now = trio.current_time()
        while self._without_tombstone or self._marking or any(due <= now for due in self._due_at.values()):
            await self._progress.wait()

    async def _work(self) -> None:
        """One of `_AT_ONCE` tasks for all versions: a task each would be thousands where checkpoints come often."""
        while True:
            if self._without_tombstone:
                await self._mark(self._without_tombstone.popleft())
            elif self._schedule and self._schedule[0][0] <= trio.current_time():
                _, tried, version = heapq.heappop(self._schedule)
                await self._delete(version, tried + 1)
            else:
                until = self._schedule[0][0] if self._schedule else math.inf
                with trio.move_on_at(until):
                    await self._more.wait()

    async def _mark(self, version: str) -> None:
        self._marking += 1
        try:
            await self._thread(put_tombstone, version)
        except Exception as error:  # noqa: BLE001  whatever a client raises concerns this version alone
            _log.info("the replaced version %s could not be marked: %s", version, error)
        finally:
            self._marking -= 1
            self._reschedule(version, self._due_at[version], 0)
        self._advance()

    async def _delete(self, version: str, tried: int) -> None:
        try:
            await self._thread(remove_version, version)
        except Exception as error:  # noqa: BLE001  as in `_mark`
            if tried < _TRIES:
                self._reschedule(version, trio.current_time() + _PAUSE, tried)
                return
            _log.warning("the replaced version %s stays until stripefs gc: %s", version, error)
        del self._due_at[version]
        self._advance()

    def _reschedule(self, version: str, due: float, tried: int) -> None:
        heapq.heappush(self._schedule, (due, tried, version))
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = trio.Event()

    def _advance(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    async def _thread(self, call: Callable[[Store, str], None], version: str) -> None:
        await self._lane.run(f"the replaced version {version}", call, self._store, version, timeout=_TIMEOUT)
