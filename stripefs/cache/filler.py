"""Writes what was fetched into the cache, behind the readers' backs, on threads of its own.

What waits to be written is held in memory and bounded; what the bound or the disk does not take is not cached, and is
fetched again when it is wanted. No reader ever waits for the disk to take anything, or learns that it did not.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Fill", "Filler"]

_log = logging.getLogger(__name__)

QUIET = 5.0
"""Seconds between calls of `idle` while there is nothing to write."""

LAST_WRITE = 5.0
"""Seconds at the end for what is being written: a disk that hangs must not keep a mount from going."""

THREADS = 2
"""One waits for the disk while the other copies and computes check values."""


class Fill(NamedTuple):
    """`data` begins where the first of `blocks` does and ends where the last does. `done` is called in any case."""

    write: Callable[[range, memoryview], None]
    blocks: range
    data: memoryview
    done: Callable[[], None]


class Filler:
    """`limit`: bytes that may wait. `idle` is called now and then. Threads start with the first fill."""

    def __init__(self, limit: int, idle: Callable[[], None]) -> None:
        self._limit = limit
        self._idle = idle
        self._queue: deque[Fill] = deque()
        self._waiting = 0
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False

    @property
    def waiting(self) -> int:
        """Bytes that wait to be written, or are being."""
        return self._waiting

    def offer(self, fill: Fill) -> bool:
        """Take this over, or answer False when too much waits."""
        with self._changed:
            if self._closed or (self._waiting and self._waiting + len(fill.data) > self._limit):
                return False
            self._queue.append(fill)
            self._waiting += len(fill.data)
            if not self._threads:
                self._threads = [
                    threading.Thread(target=self._run, name=f"cache filler {number}", daemon=True)
                    for number in range(THREADS)
                ]
                for thread in self._threads:
                    thread.start()
            self._changed.notify_all()
            return True

    def drain(self, patience: float) -> bool:
        """Wait until all is written, `patience` seconds at most; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, patience)

    def close(self) -> None:
        """Take nothing more, and drop what waits but for what is being written."""
        with self._changed:
            self._closed = True
            dropped, self._queue = list(self._queue), deque()
            self._waiting -= sum(len(fill.data) for fill in dropped)
            self._changed.notify_all()
        for fill in dropped:
            fill.done()
        for thread in self._threads:
            thread.join(LAST_WRITE)

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._closed:
            self._next()
            if time.monotonic() - looked >= QUIET:
                looked = time.monotonic()
                self._idle()

    def _next(self) -> None:
        """Write one, or wait a while for one."""
        with self._changed:
            if not self._queue and not self._closed:
                self._changed.wait(QUIET)
            if not self._queue:
                return
            fill = self._queue.popleft()
        self._write(fill)

    def _write(self, fill: Fill) -> None:
        try:
            fill.write(fill.blocks, fill.data)
        except Exception:  # noqa: BLE001  # the border: a bug here must not end a thread that all files share
            _log.exception("what was fetched could not be cached; please report this")
        finally:
            fill.done()
            with self._changed:
                self._waiting -= len(fill.data)
                self._changed.notify_all()
