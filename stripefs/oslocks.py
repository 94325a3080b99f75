"""Locks on byte ranges that belong to one open file, so that two users in one process tell apart (fcntl(2), F_OFD_…).

They end when the file is closed, also by the death of the process, and need no bytes where they lie. A forked child has
the same open file, and would keep them when its parent is gone: what is `ours` is none of a child's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

__all__ = ["is_locked", "not_ours", "ours", "share", "try_lock", "unlock"]

_FLOCK = struct.Struct("hhqqi0q")  # struct flock of Linux where off_t has 64 bits


def try_lock(descriptor: int, start: int, length: int = 1) -> bool:
    """Lock these bytes for writing unless another open file holds some of them. Raises OSError."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, start, length))
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def share(descriptor: int, start: int, length: int = 1) -> None:
    """Lock these bytes for reading, as any number of open files may at once. Raises OSError."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _lock(fcntl.F_RDLCK, start, length))


def unlock(descriptor: int, start: int, length: int = 1) -> None:
    """Let go of what of these bytes this open file holds. Raises OSError."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, start, length))


def is_locked(descriptor: int, start: int, length: int = 1) -> bool:
    """Whether another open file holds some of these bytes. Raises OSError."""
    found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, start, length))
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


_ours: set[int] = set()


def ours(descriptor: int) -> None:
    """Children that are forked from now on have nothing under this number, until `not_ours`."""
    _ours.add(descriptor)


def not_ours(descriptor: int) -> None:
    """It is about to be closed."""
    _ours.discard(descriptor)


def _forked() -> None:
    """The numbers stay taken: what the parent's objects would close here must be nobody else's file."""
    if _ours:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in _ours:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
        _ours.clear()


os.register_at_fork(after_in_child=_forked)


def _lock(kind: int, start: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
