"""Memory for large buffers that another process fills: it maps the same descriptor.

A buffer is free again when nothing refers to it any more, in whatever thread. What was used stays for the next buffers,
since a page that is touched for the first time costs as much as copying it; `trim` gives back what is more than that.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections import deque

__all__ = ["SharedBuffers"]

_UNIT = 1 << 20
"""Bytes in which memory is given out; buffers begin at multiples of it."""

KEPT = 64 << 20
"""Bytes of free memory that stay while buffers are in use, or as many as those have."""


class SharedBuffers:
    """`capacity` bytes at most, in whole MiB; memory is taken for what is used. Safe to use from many threads.

    descriptor: of the memory, for the other process.
    """

    def __init__(self, capacity: int) -> None:
        self.descriptor = os.memfd_create("stripefs-buffers")
        try:
            os.ftruncate(self.descriptor, capacity)
            self._memory = mmap.mmap(self.descriptor, capacity)
        except BaseException:
            os.close(self.descriptor)
            raise
        self._lock = threading.Lock()
        self._taken = bytearray(capacity // _UNIT)  # 1 for each unit in use
        self._touched = bytearray(capacity // _UNIT)  # 1 for each unit that may have pages
        self._released: deque[tuple[int, int]] = deque()  # first unit and number of units
        self._used = 0

    def take(self, size: int) -> tuple[int, memoryview] | None:
        """A buffer of `size` > 0 bytes, and the offset where it begins; None where there is no room."""
        units = -(-size // _UNIT)
        with self._lock:
            self._collect()
            first = self._taken.find(bytes(units))
            if first < 0:
                return None
            owner = (ctypes.c_ubyte * size).from_buffer(self._memory, first * _UNIT)
            # Not by a lock: the last reference may go while this thread holds it.
            weakref.finalize(owner, self._released.append, (first, units)).atexit = False
            self._taken[first : first + units] = self._touched[first : first + units] = b"\1" * units
            self._used += units
        return first * _UNIT, memoryview(owner).cast("B")

    @property
    def used(self) -> int:
        """Bytes that buffers have."""
        with self._lock:
            self._collect()
            return self._used * _UNIT

    @property
    def resident(self) -> int:
        """Bytes of memory that are in use or were, and have not been given back."""
        return os.fstat(self.descriptor).st_blocks * 512

    def trim(self) -> None:
        """Give back what is free beyond what may stay, all of it where no buffer is in use. The highest go first."""
        while self._give_back(KEPT // _UNIT):  # buffers are taken between two steps
            pass

    def _give_back(self, most: int) -> bool:
        """`most` units at most; True if there may be more."""
        with self._lock:
            self._collect()
            keep = max(KEPT // _UNIT, self._used) if self._used else 0
            excess = self._touched.count(1) - self._used - keep
            at = len(self._touched)
            for _ in range(min(excess, most)):
                while self._taken[at := self._touched.rfind(1, 0, at)]:
                    pass
                self._memory.madvise(mmap.MADV_REMOVE, at * _UNIT, _UNIT)
                self._touched[at] = 0
            return excess > most

    def _collect(self) -> None:
        while self._released:
            first, units = self._released.popleft()
            self._taken[first : first + units] = bytes(units)
            self._used -= units

    def close(self) -> None:
        """Buffers in use stay valid; nothing more can be mapped by the other process."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
