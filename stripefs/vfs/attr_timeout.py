"""The time for which the kernel may cache attributes and names, and statuses of directories that are younger than it.

The kernel forgets the attributes of a directory with each change of its names, and asks before the next one. So the
statuses of directories stay known here for the same time: a program that makes many files costs the store one question
for each time-out, not one for each file. Times are those of trio's clock, in seconds.
"""

from __future__ import annotations

import time
from dataclasses import replace

import trio

from stripefs.store.base import Status

__all__ = ["AttributeTimeout"]

_MOST_DIRECTORIES = 1000


class AttributeTimeout:
    """seconds: for which an answer of the store counts, unless this mount has made a change since it was asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._changed_at = -1.0  # the time of the last change through this mount
        self._directories: dict[bytes, tuple[Status, float]] = {}

    def left(self, seen: float) -> float:
        """For how many more seconds the kernel may cache the answer to a question that was asked at the time `seen`."""
        if seen <= self._changed_at:
            return 0.0
        return max(0.0, self.seconds - (trio.current_time() - seen))

    def learn(self, path: bytes, status: Status, seen: float) -> None:
        """Keep the status of a directory, as the store answered it to a question of the time `seen`."""
        if seen > self._changed_at:
            if len(self._directories) >= _MOST_DIRECTORIES:
                self._directories.clear()
            self._directories[path] = status, seen

    def directory(self, path: bytes) -> tuple[Status, float] | None:
        """The status of a directory, and for how many more seconds it counts; None where it has to be asked for."""
        status, seen = self._directories.get(path, (None, 0.0))
        left = self.seconds - (trio.current_time() - seen)
        return None if status is None or left <= 0 else (status, left)

    def changed(self, path: bytes, folder: bytes) -> None:
        """Note that this mount has changed, or may have changed, the file at `path` in the directory `folder`."""
        self._changed_at = trio.current_time()
        if path in self._directories:
            self._directories.clear()  # and what is below it
        if (known := self._directories.get(folder)) is not None:
            self._directories[folder] = replace(known[0], mtime_ns=time.time_ns()), known[1]
