"""The cache of one process: the state that all its stores and files share, with open segments and disk health."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stripefs import retry
from stripefs.background import Sampled
from stripefs.cache.cache_format import BLOCK
from stripefs.cache.cachedir import CacheDir
from stripefs.cache.policy import BusyRate, BypassPolicy
from stripefs.cache.quota import Quota
from stripefs.cache.segment import CacheSegment, Damaged
from stripefs.cache.writeback import PartialBlocks, PendingBlocks, WriteQueue
from stripefs.errors import Abandoned, StoreError
from stripefs.osutil import resolve_local_dir
from stripefs.retry import Backoff, Seldom
from stripefs.settings import CacheSettings

__all__ = ["Cache", "CacheStats", "DiskHealth", "OpenSegments", "queue_for"]


class CacheStats:
    """Counts since the start.

    hit_bytes came from the cache; missed_bytes from the store; bypassed_bytes from the store although they may have
    been here (a disk that fails or is slow). filled_bytes were written, unfilled_bytes were not for want of room or of
    a disk that keeps up. damaged: blocks that did not fit their check value. waits: reads that waited for another
    process to fetch the same. disk_errors: refused reads and writes.
    """

    NAMES = (
        "hit_bytes",
        "missed_bytes",
        "bypassed_bytes",
        "filled_bytes",
        "unfilled_bytes",
        "damaged",
        "waits",
        "disk_errors",
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(self.NAMES, 0)

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    def snapshot(self) -> dict[str, Any]:
        with self._lock:
            return dict(self._counts)


MOST = 64
"""Segments open at once, two descriptors each: 4 GiB, more than any look-ahead."""

IDLE = 30.0
"""Seconds after which a segment that nobody used is closed, so that one that was evicted gives its room back."""

LOOK_EVERY = 5.0
"""Seconds between looks for such."""


class OpenSegments:
    """Safe to use from many threads. Closing one that is in use waits for its last user. Those used longest ago are
    closed first."""

    def __init__(self, cachedir: CacheDir, stats: CacheStats) -> None:
        self._cachedir = cachedir
        self._stats = stats
        self._lock = threading.Lock()
        self._open: dict[tuple[bytes, int], CacheSegment] = {}
        self._looked = 0.0
        self._closed = False

    @contextmanager
    def using(self, key: bytes, number: int, length: int, *, make: bool = False) -> Iterator[CacheSegment | None]:
        """The segment of a file of `length` bytes, None where there is none and none is to be made; it stays open
        meanwhile. Raises OSError, and StoreError after `close`."""
        while not self._closed:
            with contextlib.ExitStack() as held:
                try:
                    segment = self._get(key, number, length, make)
                    if segment is not None:
                        held.enter_context(segment.kept_open())
                except StoreError:  # it was one too many since, and is closed
                    continue
                yield segment
                return
        raise StoreError("the cache is closed")

    def _get(self, key: bytes, number: int, length: int, make: bool) -> CacheSegment | None:
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

    def _opened(self, key: bytes, number: int, length: int, make: bool) -> CacheSegment | None:
        path = self._cachedir.segment(key, number)
        try:
            segment = CacheSegment(path, key, number, length, make=make)
        except FileNotFoundError:
            if make:
                raise
            return None
        except Damaged:
            self._stats.add("damaged")
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


_log = logging.getLogger(__name__)


class DiskHealth:
    """The disk that holds `folder`. One that is full, slow or broken is left alone for a while, which costs speed only;
    reading and writing each for its own failures."""

    def __init__(self, folder: str, stats: CacheStats) -> None:
        self.folder = folder
        self.warn = Seldom(_log)
        self._stats = stats
        self._lock = threading.Lock()
        self._bypass = BypassPolicy()
        self._reading = Backoff(retry.FIRST_PAUSE, retry.LONGEST_PAUSE)
        self._writing = Backoff(retry.FIRST_PAUSE, retry.LONGEST_PAUSE)

    def readable(self, remembered: float) -> bool:
        """True if the cache is to be read for a file that came from the store at `remembered` bytes a second."""
        with self._lock:
            now = time.monotonic()
            if self._reading.paused(now):
                return False
            slow = self._bypass.bypass(now, remembered)
        if slow:
            self.warn("slow", "%s reads slower than the store; it is left alone for a minute", self.folder)
        return not slow

    def writable(self) -> bool:
        with self._lock:
            return not self._writing.paused(time.monotonic())

    def worked(self) -> None:
        """Note that the disk took a write."""
        with self._lock:
            self._writing.worked()

    def note_fresh(self) -> None:
        """The blocks that are about to be read were written just now."""
        with self._lock:
            self._bypass.note_fresh(time.monotonic())

    def reading(self, size: int) -> contextlib.AbstractContextManager[None]:
        """Around a read of `size` bytes from the cache. Raises what happens inside."""
        return self._timed(self._bypass.disk, size)

    def step(self, size: int) -> int:
        """Bytes to read at once of `size` that are wanted: all, but little of a disk whose rate is not known yet, so
        that few are waited for where it turns out to be slow."""
        with self._lock:
            return size if self._bypass.disk.rate is not None else BLOCK

    def fetching(self, size: int) -> contextlib.AbstractContextManager[None]:
        """Around a read of `size` bytes from the store. Raises what happens inside."""
        return self._timed(self._bypass.store, size)

    @contextlib.contextmanager
    def _timed(self, busy: BusyRate, size: int) -> Iterator[None]:
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
            return self._bypass.store.rate or 0.0

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
        self._stats.add("disk_errors")
        now = time.monotonic()
        with self._lock:
            (self._writing if writing else self._reading).failed(now)
        self.warn("writing" if writing else "reading", "%s in %s: %s", what, self.folder, error.strerror or error)


LEAST_QUEUE, QUEUE = 32 << 20, 256 << 20
"""Bytes that may wait for the disk, which takes 1 GB/s and more but falters for most of a second now and then, first of
all when it begins. Of 1 GiB that came at some 200 to 280 MB/s on two busy cores, 32 to 80 MiB found no room in 128 MiB
(three of four loads), and nothing did not in 256 (eight loads). More threads changed nothing."""

DRAIN = 2.0
"""Seconds at the end for what waits to be written."""


def queue_for(memory: int) -> int:
    """Bytes that may wait for the disk beside `memory` bytes of what was read."""
    return max(LEAST_QUEUE, min(QUEUE, memory // 4))


class Cache:
    """The cache that `settings` describe. Nothing is made or touched before it is needed.

    mountpoint: where files are mounted that go through it, "" for nowhere. queue: bytes that may wait for the disk;
    blocks beyond them are not kept. patient: as of `WriteQueue`. Raises ConfigError for a folder that cannot be one.
    """

    def __init__(
        self, settings: CacheSettings, mountpoint: str = "", queue: int = QUEUE, *, patient: bool = False
    ) -> None:
        self.settings = settings
        self.cachedir = CacheDir(resolve_local_dir("--cache", settings.directory, mountpoint))
        self.cachedir.check()
        self.stats = CacheStats()
        self.quota = Quota(self.cachedir, settings.size)
        self.disk = DiskHealth(settings.directory, self.stats)
        self.segments = OpenSegments(self.cachedir, self.stats)
        self.pending = PendingBlocks()
        self.partial = PartialBlocks()
        self.queue = WriteQueue(queue, self.segments.tidy, patient=patient)
        self._sizes: Sampled[dict[str, int]] = Sampled("cache size", self._look_at_sizes, {})

    def snapshot(self) -> dict[str, Any]:
        """Statistics for `status` and metrics: sizes in bytes, counts since the start."""
        stats = {
            "directory": self.settings.directory,
            **self.stats.snapshot(),
            "evicted_bytes": self.quota.evicted,
            "waiting_bytes": self.queue.waiting,
        }
        with self.disk.tolerant("the room that is taken cannot be read", writing=False):
            stats |= self._sizes.value()
        return stats

    def _look_at_sizes(self) -> dict[str, int]:
        return {"used_bytes": self.quota.used(), "limit_bytes": self.quota.limit()}

    def close(self) -> None:
        """Write what waits, for DRAIN seconds at most, and let go of all that is open. Never raises."""
        self.queue.drain(DRAIN)
        self.queue.close()
        with self.disk.tolerant("room cannot be given back", writing=True):
            self.quota.return_lease()
        self.segments.close()
