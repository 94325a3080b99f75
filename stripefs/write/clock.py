"""The store's own clock, told by the time that it gives a fresh file.

Leases and ages are measured by it alone: the clocks of hosts differ, and what decides must be the same for all.
"""

from __future__ import annotations

import contextlib
import time

from stripefs.errors import StoreError
from stripefs.layout.hidden import new_version, part_name
from stripefs.store.base import Store

__all__ = ["StoreClock"]


class StoreClock:
    """Reads the clock of `store` once, by a hidden file in `folder` that is removed at once.

    From then on it goes with the monotonic clock of this host. It never runs ahead of the store's own but for the drift
    of the two, so what it calls old is old. Raises StoreError where nothing can be written, or files get no time.
    """

    def __init__(self, store: Store, folder: bytes = b"/") -> None:
        path = folder.rstrip(b"/") + b"/" + part_name(b"clock", new_version(), 0)
        store.put(path, ())
        self._read_at = time.monotonic()  # later than the time that the file got
        try:
            self._then_ns = store.stat(path).mtime_ns
        finally:
            with contextlib.suppress(StoreError):  # gc finds it
                store.remove(path)
        if not self._then_ns:
            raise StoreError(f"{store.url} tells no times of files, so nothing is known to be old")

    def now_ns(self) -> int:
        """Nanoseconds since 1970."""
        return self._then_ns + int((time.monotonic() - self._read_at) * 1e9)
