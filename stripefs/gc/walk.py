"""Walk over all directories of a store, batch by batch; memory grows with the depth of the tree alone.

A service that is away for a moment is waited for. A directory that cannot be listed is told of and passed over; one
that vanished meanwhile is not missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from stripefs.errors import NotADirectory, NotFound, StoreError, Transient
from stripefs.format.reserved_names import POOL_NAME
from stripefs.retry import Attempts, RetryPolicy, retry
from stripefs.store.base import Kind, Status, Store
from stripefs.write.upload_names import join_path

__all__ = ["Listed", "retry_transient", "walk"]

_T = TypeVar("_T")

SERVICE_AWAY = RetryPolicy(seconds=90.0)
"""A service that is away is asked again for so long."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A batch of the entries of `folder`.

    changed_ns: the newest time of the folder and all those above it, from before it was listed; 0 where one is not
    known. A move to here, of a directory perhaps, has changed one of them.
    """

    folder: bytes
    changed_ns: int
    entries: Sequence[Status]

    def path(self, entry: Status) -> bytes:
        return join_path(self.folder, entry.name)


@dataclass(slots=True)
class _Level:
    folder: bytes
    changed_ns: int
    batches: Iterator[Sequence[Status]]
    below: list[Status] = field(default_factory=list)


def walk(store: Store, failed: Callable[[bytes, StoreError], None]) -> Iterator[Listed]:
    """The tree from its root, without the pool and without those of mounts of directories further down.

    Calls `failed` with each directory that cannot be listed to its end; where that is the root it raises. Links are
    not followed.
    """
    stack = [_Level(b"/", store.stat(b"/").mtime_ns, _batches(store, b"/"))]
    while stack:
        frame = stack[-1]
        if frame.below:
            entry = frame.below.pop()
            folder = join_path(frame.folder, entry.name)
            changed_ns = entry.mtime_ns and frame.changed_ns and max(entry.mtime_ns, frame.changed_ns)
            stack.append(_Level(folder, changed_ns, _batches(store, folder)))
            continue
        try:
            batch = next(frame.batches, None)
        except (NotFound, NotADirectory):
            if len(stack) == 1:
                raise
            stack.pop()
            continue
        except StoreError as error:
            if len(stack) == 1:
                raise
            failed(frame.folder, error)
            stack.pop()
            continue
        if batch is None:
            stack.pop()
            continue
        yield Listed(frame.folder, frame.changed_ns, batch)
        frame.below = [e for e in reversed(batch) if e.kind is Kind.DIRECTORY and e.name != POOL_NAME]


def _batches(store: Store, folder: bytes) -> Iterator[Sequence[Status]]:
    """The entries of `folder`; where the service went away, from where it had come to."""
    after, attempts = b"", Attempts(SERVICE_AWAY, time.monotonic())
    while True:
        try:
            for batch in store.scandir(folder, after):
                if batch:
                    yield batch
                    after = batch[-1].name
                    attempts.restart(time.monotonic())
        except Transient as error:
            pause = attempts.failed(error, time.monotonic())
            if pause is None:
                raise
            time.sleep(pause)
        else:
            return


def retry_transient(call: Callable[[], _T]) -> _T:
    """`call()`, tried again for a while where the service is away. Raises what it raises last."""
    return retry(call, SERVICE_AWAY)
