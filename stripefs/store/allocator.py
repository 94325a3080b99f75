"""Memory of processes that hold many buffers of megabytes: glibc's allocator, and buffers that a second process fills.

`SharedBuffers` is memory that another process maps by the same descriptor. A buffer in it is free again when nothing
refers to it any more, in whatever thread. Used memory stays for the next buffers, since a page that is touched for
the first time costs as much as copying it; `trim` gives back what is more than that.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path

__all__ = [
    "PAGE",
    "Heap",
    "SharedBuffers",
    "address_of",
    "aligned",
    "bound_allocator",
    "give_back",
    "new_bytes",
    "tune_allocator",
    "uninitialised",
]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8  # malloc.h
_MIB = 1 << 20

PAGE = 4096
"""Alignment of memory, offsets and lengths for O_DIRECT, on every disk that we know of."""

_new_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.restype = ctypes.py_object
_new_bytearray.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]
_place_of_bytes = ctypes.pythonapi.PyBytes_AsString
_place_of_bytes.restype = ctypes.c_void_p
_place_of_bytes.argtypes = [ctypes.py_object]

_UNIT = 1 << 20
"""Bytes in which memory is given out; buffers begin at multiples of it."""

KEPT = 64 << 20
"""Bytes of free memory that stay while buffers are in use, or as many as those have."""


def tune_allocator() -> bool:
    """Keep freed buffers for the next read instead of returning their pages to the kernel. False where it is not glibc.

    By default glibc maps a large buffer afresh or trims it from the heap when it is freed, so that every read pays for
    zeroed pages. 32 MiB is the largest mmap threshold that glibc accepts.
    """
    return _set(
        (_M_MMAP_THRESHOLD, 32 * _MIB), (_M_TRIM_THRESHOLD, 128 * _MIB), (_M_TOP_PAD, 16 * _MIB), (_M_ARENA_MAX, 2)
    )


def bound_allocator() -> bool:
    """Keep little of what was freed, for a process that is to stay small. False where it is not glibc.

    By default every thread may have a heap of its own, and the size from which on buffers are mapped, and so given back
    at once, grows with the buffers that are freed.
    """
    return _set((_M_MMAP_THRESHOLD, _MIB // 4), (_M_TRIM_THRESHOLD, 4 * _MIB), (_M_ARENA_MAX, 2))


def give_back() -> None:
    """Return to the kernel what was freed, wherever in the heap it lies. Does nothing where it is not glibc."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


class _Mallinfo2(ctypes.Structure):
    """struct mallinfo2 of malloc.h, over all arenas: `uordblks` is in use in heaps, `hblkhd` in mappings."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks"),
            "keepcost",
        )
    )


class Heap:
    """Bounds what a tuned allocator keeps of freed buffers. For one thread at a time.

    Buffers of many sizes leave holes that the next ones do not fit into, and the heap grows although most of it is
    free: 64 readers with 128 MiB of buffers made it 360 MiB. Without `mallinfo2` (glibc before 2.33, other libraries)
    nothing is given back.

    others: answers bytes of buffers in use of which the caller of `trim` does not know.
    """

    KEPT = 48 << 20
    """Bytes of freed memory that stay while buffers come and go: pages that are given back are zeroed when they are
    used again. Of the 150 MiB that a process may need beside its budget, it leaves 100 to the process itself."""

    KEPT_IDLE = 8 << 20
    """Bytes of freed memory that stay while nothing is read or written."""

    def __init__(self, others: Callable[[], int] = lambda: 0) -> None:
        libc = ctypes.CDLL(None)
        self._others = others
        self._info = getattr(libc, "mallinfo2", None)
        if self._info is not None:
            self._info.restype = _Mallinfo2
        self._least = self.free()
        self._idle = True

    def free(self) -> int:
        """Bytes of anonymous memory that no buffer uses: freed ones, and what the heap does not know of (stacks, small
        objects of Python)."""
        if self._info is None:
            return 0
        info = self._info()
        resident, shared = Path("/proc/self/statm").read_bytes().split()[1:3]
        return (int(resident) - int(shared)) * mmap.PAGESIZE - int(info.uordblks) - int(info.hblkhd)

    def trim(self, *, busy: bool, room: int = 0) -> int:
        """Give back what is free if that is more than may be kept, beside what could not be given back; bytes.

        `busy`: buffers are in use, and could take `room` more bytes, which may stay free as well. The first call
        without that gives back in any case, also what another thread freed in the middle of the last trim.
        """
        busy = busy or self._others() > 0
        free = self.free()
        self._least = min(self._least, free)
        settled, self._idle = self._idle, not busy
        if free - self._least <= (self.KEPT + room if busy else self.KEPT_IDLE) and (busy or settled):
            return 0
        give_back()
        self._least = self.free()
        return free - self._least


def _set(*parameters: tuple[int, int]) -> bool:
    libc = ctypes.CDLL(None)
    return hasattr(libc, "mallopt") and all(libc.mallopt(*parameter) == 1 for parameter in parameters)


def uninitialised(size: int) -> bytearray:
    """A bytearray whose contents are whatever the memory held: for callers that fill all of it before they show it.

    bytearray(size) zeroes its bytes first; documented C API gives one that does not.
    """
    buffer: bytearray = _new_bytearray(None, size)
    return buffer


def new_bytes(size: int) -> tuple[bytes, memoryview]:
    """Bytes whose contents are whatever the memory held, and what to fill them through before they are shown.

    Documented C API: bytes that were made of no string may be written to as long as nobody else has seen them.
    """
    if not size:  # there is one such object in all of the interpreter
        return b"", memoryview(bytearray())
    made: bytes = _new_bytes(None, size)
    place = (ctypes.c_char * size).from_address(_place_of_bytes(made))
    place.owner = made  # type: ignore[attr-defined]  # so that the bytes live as long as the view
    return made, memoryview(place).cast("B")


def aligned(size: int) -> memoryview:
    """`size` bytes of uninitialised memory that begins where a page does, for O_DIRECT."""
    buffer = uninitialised(size + PAGE)
    begin = -address_of(buffer) % PAGE
    return memoryview(buffer)[begin : begin + size]


def address_of(buffer: bytearray | memoryview) -> int:
    """Address of the first byte of this writable buffer."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


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
