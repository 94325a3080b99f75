"""The cache folder as one process uses it: what all stores and all files of the process share."""

from __future__ import annotations

from typing import Any

from stripefs.cache.disk import Disk
from stripefs.cache.edges import Edges
from stripefs.cache.figures import Figures
from stripefs.cache.filler import Filler
from stripefs.cache.opened import OpenSegments
from stripefs.cache.place import Place
from stripefs.cache.room import Room
from stripefs.cache.waiting import Waiting
from stripefs.local_dirs import resolve_local_dir
from stripefs.sampled import Sampled
from stripefs.settings import CacheSettings

__all__ = ["Cache", "queue_for"]

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
    """What `settings` describe. Nothing is made or touched before it is needed.

    mountpoint: where files are mounted that go through it, "" for nowhere. queue: bytes that may wait for the disk;
    what finds no room there is not kept. Raises ConfigError for a folder that cannot be one.
    """

    def __init__(self, settings: CacheSettings, mountpoint: str = "", queue: int = QUEUE) -> None:
        self.settings = settings
        self.place = Place(resolve_local_dir("--cache", settings.directory, mountpoint))
        self.place.check()
        self.figures = Figures()
        self.room = Room(self.place, settings.size)
        self.disk = Disk(settings.directory, self.figures)
        self.segments = OpenSegments(self.place, self.figures)
        self.waiting = Waiting()
        self.edges = Edges()
        self.filler = Filler(queue, self.segments.tidy)
        self._sizes: Sampled[dict[str, int]] = Sampled("cache size", self._look_at_sizes, {})

    def snapshot(self) -> dict[str, Any]:
        """Figures for `status` and metrics: sizes in bytes, counts since the start."""
        figures = {
            "directory": self.settings.directory,
            **self.figures.snapshot(),
            "evicted_bytes": self.room.evicted,
            "waiting_bytes": self.filler.waiting,
        }
        with self.disk.tolerant("the room that is taken cannot be read", writing=False):
            figures |= self._sizes.value()
        return figures

    def _look_at_sizes(self) -> dict[str, int]:
        return {"used_bytes": self.room.used(), "limit_bytes": self.room.limit()}

    def close(self) -> None:
        """Write what waits, for DRAIN seconds at most, and let go of all that is open. Never raises."""
        self.filler.drain(DRAIN)
        self.filler.close()
        with self.disk.tolerant("room cannot be given back", writing=True):
            self.room.settle()
        self.segments.close()
