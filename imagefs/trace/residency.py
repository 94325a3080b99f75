"""Residency: which touches of a record the kernel only read ahead, told by the page cache of the mounted image.

A record holds what reached the daemon. Below EROFS the kernel reads ahead on the device, past the ends of files and of
what was asked for, and a record cannot tell that apart. The page cache of the EROFS mount above can: it holds what was
read of each file, and of pages that were evicted it remembers that they were there.

cachestat(2) counts both (Linux 6.5) and reads nothing. Where it or the mount is not to be had, and where so little of a
record is in memory that somebody must have emptied the caches, nothing counts as read ahead.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Sequence

from imagefs.format.trace import Touch

__all__ = ["Look", "read_ahead", "unread"]

LEAST = 0.2
"""The share of a record's bytes that is in memory after any start: 1 MiB of read-ahead follows reads of 4 KiB only
where they are far apart. Measured: 0.55 for imports of numpy, scipy and pandas."""

_CACHESTAT = 451
"""The number of the system call, shared by all architectures."""

_RANGE = struct.Struct("=QQ")
_COUNTS = struct.Struct("=5Q")
"""Pages cached, dirty, under write-back, evicted, recently evicted."""

_libc = ctypes.CDLL(None, use_errno=True)

Look = Callable[[bytes, Sequence[tuple[int, int]]], list[bool]]
"""Tells for a file which of these ranges (offset, length) were read. Raises OSError."""


def read_ahead(touches: Sequence[Touch], mount: int) -> list[int]:
    """The numbers of those of which no file read a page, ascending, as the mount with this descriptor tells; none where
    it cannot tell."""
    try:
        return unread(touches, lambda file, ranges: _look(mount, file, ranges))
    except OSError:
        return []


def unread(touches: Sequence[Touch], look: Look) -> list[int]:
    """The numbers of those that `look` says were not read; none where these are too many to be true. Raises what `look`
    raises."""
    files: dict[bytes, list[int]] = {}
    for number, touch in enumerate(touches):
        files.setdefault(touch.path, []).append(number)
    was_read = bytearray(len(touches))
    for path, numbers in files.items():
        ranges = [(touches[number].offset, touches[number].length) for number in numbers]
        for number, answer in zip(numbers, look(path, ranges), strict=True):
            was_read[number] = answer
    read = sum(touch.length for touch, answer in zip(touches, was_read, strict=True) if answer)
    if read < LEAST * sum(touch.length for touch in touches):
        return []
    return [number for number, answer in enumerate(was_read) if not answer]


def _look(mount: int, path: bytes, ranges: Sequence[tuple[int, int]]) -> list[bool]:
    """As `Look`, below the root of `mount`. The file is opened, which reads no data of it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=mount)
    try:
        return [_was_read(descriptor, offset, length) for offset, length in ranges]
    finally:
        os.close(descriptor)


def _was_read(descriptor: int, offset: int, length: int) -> bool:
    counts = ctypes.create_string_buffer(_COUNTS.size)
    result = _libc.syscall(ctypes.c_long(_CACHESTAT), descriptor, _RANGE.pack(offset, length), counts, 0)
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    cached, _, _, evicted, _ = _COUNTS.unpack(counts.raw)
    return bool(cached or evicted)
