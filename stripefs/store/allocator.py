"""glibc's allocator for processes that hold many buffers of megabytes."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path

__all__ = [
    "PAGE",
    "Heap",
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
