"""The store's own clock, read from the time that it gives a fresh file.

Leases and ages are measured by it alone: the clocks of hosts differ, and what decides must be the same for all. Between
two readings this host's clock measures the time that passes, also while the machine sleeps.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from stripefs.errors import StoreError
from stripefs.format.reserved_names import new_version, part_name
from stripefs.store.base import Store

__all__ = ["ClockReading", "StoreClock", "boot_time"]


def boot_time() -> float:
    """Seconds since this machine was booted, those included for which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A reading of the store's clock: when this host's showed `at` (seconds), the store's showed `store_ns`
    (nanoseconds since 1970) or less.

    So a lock that bears `store_ns` lasts at least until its lease is over as counted from `at`.
    """

    store_ns: int
    at: float

    def moved_to(self, at: float) -> ClockReading:
        return ClockReading(self.store_ns + int((at - self.at) * 1e9), at)


class StoreClock:
    """Reads the clock of `store` once, by a hidden file in `folder` that is removed at once.

    From then on it goes with `clock`, seconds of this host that never go back. It never runs ahead of the store's own
    but for the drift of the two, so what it calls old is old. Raises StoreError where nothing can be written, or files
    get no time.
    """

    def __init__(self, store: Store, folder: bytes = b"/", clock: Callable[[], float] = boot_time) -> None:
        path = folder.rstrip(b"/") + b"/" + part_name(b"clock", new_version(), 0)
        self._clock = clock
        asked_at = clock()
        store.put(path, ())
        self._read_at = clock()  # later than the time that the file got
        try:
            self._then_ns = store.stat(path).mtime_ns
        finally:
            with contextlib.suppress(StoreError):  # gc finds it
                store.remove(path)
        if not self._then_ns:
            raise StoreError(f"{store.url} tells no times of files, so nothing is known to be old")
        self.reading = ClockReading(self._then_ns, asked_at)

    def now_ns(self) -> int:
        """Nanoseconds since 1970."""
        return self._then_ns + int((self._clock() - self._read_at) * 1e9)
