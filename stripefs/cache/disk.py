"""The disk as something that may be full, slow or broken: then it is left alone for a while, which costs speed only."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

from stripefs import retry
from stripefs.cache.figures import Figures
from stripefs.cache.grid import BLOCK
from stripefs.cache.pace import Busy, Pace
from stripefs.errors import Abandoned, StoreError
from stripefs.retry import Backoff, Seldom

__all__ = ["Disk"]

_log = logging.getLogger(__name__)


class Disk:
    """The disk that holds `folder`. Reading and writing are left alone each for its own failures."""

    def __init__(self, folder: str, figures: Figures) -> None:
        self.folder = folder
        self.warn = Seldom(_log)
        self._figures = figures
        self._lock = threading.Lock()
        self._pace = Pace()
        self._reading = Backoff(retry.FIRST_PAUSE, retry.LONGEST_PAUSE)
        self._writing = Backoff(retry.FIRST_PAUSE, retry.LONGEST_PAUSE)

    def readable(self, remembered: float) -> bool:
        """Whether to look for what is cached of a file that came from the store at `remembered` bytes a second."""
        with self._lock:
            now = time.monotonic()
            if self._reading.paused(now):
                return False
            slow = self._pace.bypass(now, remembered)
        if slow:
            self.warn("slow", "%s reads slower than the store; it is left alone for a minute", self.folder)
        return not slow

    def writable(self) -> bool:
        with self._lock:
            return not self._writing.paused(time.monotonic())

    def worked(self) -> None:
        """It took something."""
        with self._lock:
            self._writing.worked()

    def filling(self) -> None:
        """What is about to be read was written just now."""
        with self._lock:
            self._pace.filling(time.monotonic())

    def reading(self, size: int) -> contextlib.AbstractContextManager[None]:
        """Around a read of `size` bytes from the cache. Raises what happens inside."""
        return self._timed(self._pace.disk, size)

    def step(self, size: int) -> int:
        """Bytes to read at once of `size` that are wanted: all, but little of a disk whose rate is not known yet, so
        that few are waited for where it turns out to be slow."""
        with self._lock:
            return size if self._pace.disk.rate is not None else BLOCK

    def fetching(self, size: int) -> contextlib.AbstractContextManager[None]:
        """Around a read of `size` bytes from the store. Raises what happens inside."""
        return self._timed(self._pace.store, size)

    @contextlib.contextmanager
    def _timed(self, busy: Busy, size: int) -> Iterator[None]:
        with self._lock:
            busy.began(time.monotonic())
        done = 0
        try:
            yield
            done = size
        finally:
            with self._lock:
                busy.ended(time.monotonic(), done)

    def store_rate(self) -> float:
        """Bytes a second at which the store answers lately; 0 where that is not known."""
        with self._lock:
            return self._pace.store.rate or 0.0

    @contextlib.contextmanager
    def tolerant(self, what: str, *, writing: bool) -> Iterator[None]:
        """An OSError inside ends this and is a failure of the disk in `what`; so is a segment that was closed."""
        try:
            yield
        except FileNotFoundError:
            pass  # evicted, or removed by somebody
        except Abandoned:
            raise
        except StoreError:
            pass  # a segment that was closed in between
        except OSError as error:
            self._failed(what, error, writing)

    def _failed(self, what: str, error: OSError, writing: bool) -> None:
        self._figures.add("disk_errors")
        now = time.monotonic()
        with self._lock:
            (self._writing if writing else self._reading).failed(now)
        self.warn("writing" if writing else "reading", "%s in %s: %s", what, self.folder, error.strerror or error)
