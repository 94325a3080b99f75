"""The segments that this process has open: a bounded number, those used longest ago are closed first."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from stripefs.cache.figures import Figures
from stripefs.cache.place import Place
from stripefs.cache.segment import Damaged, Segment
from stripefs.errors import StoreError

__all__ = ["OpenSegments"]

MOST = 64
"""Segments open at once, two descriptors each: 4 GiB, more than any look-ahead."""

IDLE = 30.0
"""Seconds after which a segment that nobody used is closed, so that one that was evicted gives its room back."""

LOOK_EVERY = 5.0
"""Seconds between looks for such."""


class OpenSegments:
    """Safe to use from many threads. Closing one that is in use waits for its last user."""

    def __init__(self, place: Place, figures: Figures) -> None:
        self._place = place
        self._figures = figures
        self._lock = threading.Lock()
        self._open: dict[tuple[bytes, int], Segment] = {}
        self._looked = 0.0
        self._closed = False

    @contextmanager
    def using(self, key: bytes, number: int, length: int, *, make: bool = False) -> Iterator[Segment | None]:
        """The segment of a file of `length` bytes, None where there is none and none is to be made; nobody closes it
        meanwhile. Raises OSError, and StoreError after `close`."""
        while not self._closed:
            with contextlib.ExitStack() as held:
                try:
                    segment = self._get(key, number, length, make)
                    if segment is not None:
                        held.enter_context(segment.held())
                except StoreError:  # it was one too many since, and is closed
                    continue
                yield segment
                return
        raise StoreError("the cache is closed")

    def _get(self, key: bytes, number: int, length: int, make: bool) -> Segment | None:
        name = (key, number)
        with self._lock:
            segment = self._open.pop(name, None)
            if segment is not None:
                self._open[name] = segment
        if segment is not None and make and not (segment.writable and segment.alive()):
            self.forget(key, number)
            segment = None
        if segment is None:
            segment = self._opened(key, number, length, make)
        if segment is not None:
            segment.touch(time.monotonic())
        return segment

    def forget(self, key: bytes, number: int) -> None:
        """Close this one, for a later user to open it anew."""
        with self._lock:
            segment = self._open.pop((key, number), None)
        if segment is not None:
            segment.close()

    def tidy(self) -> None:
        """Close what was evicted, and what nobody used for a while. Cheap when called often."""
        now = time.monotonic()
        with self._lock:
            if now - self._looked < LOOK_EVERY:
                return
            self._looked = now
            several = list(self._open.items())
        for (key, number), segment in several:
            alive = False
            with contextlib.suppress(OSError, StoreError):
                alive = segment.alive()
            if not alive or segment.used < now - IDLE:
                self.forget(key, number)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            several, self._open = list(self._open.values()), {}
        for segment in several:
            segment.close()

    def _opened(self, key: bytes, number: int, length: int, make: bool) -> Segment | None:
        path = self._place.segment(key, number)
        try:
            segment = Segment(path, key, number, length, make=make)
        except FileNotFoundError:
            if make:
                raise
            return None
        except Damaged:
            self._figures.add("damaged")
            os.unlink(path)
            return self._opened(key, number, length, make) if make else None
        with self._lock:
            known = self._open.setdefault((key, number), segment) if not self._closed else segment
            oldest = next(iter(self._open)) if len(self._open) > MOST else None
            gone = [self._open.pop(oldest)] if oldest is not None else []
        if known is not segment:
            gone.append(segment)
        for one in gone:
            one.close()
        return known
