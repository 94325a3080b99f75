"""Operating system primitives: files that are replaced atomically, open-file-description locks, the umask.

Open-file-description locks (fcntl(2), F_OFD_…) cover byte ranges and belong to one open file, so two users in one
process exclude each other. They end when the file is closed, also by the death of the process, and the locked bytes
need not exist. A forked child has the same open file and would keep the locks when its parent is gone, so `ours` is
false in a child.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO

__all__ = ["atomic_file", "is_locked", "not_ours", "ours", "share", "try_lock", "umask", "unlock", "write_output"]


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], beginning: str = ".", mode: int = 0o600) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` as a whole when that was done. Raises OSError.

    It is for its owner alone, unless `mode` less the umask says otherwise. It is not synced, so whoever reads it after
    a power cut must be able to tell. A process that is killed meanwhile leaves a file beside it, whose name starts with
    `beginning`.
    """
    draft = os.path.join(os.path.dirname(path), f"{beginning}{os.urandom(8).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            os.unlink(draft)
        raise


def write_output(path: str | os.PathLike[str], texts: Iterable[str]) -> None:
    """Write a file that a user named. Raises OSError.

    A regular file, or that which a link leads to, is replaced as a whole. Anything else, such as a pipe or a device, is
    written to and stays what it is.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8") as place:
            place.writelines(texts)
        return
    with atomic_file(os.path.realpath(path), mode=0o666) as file:
        file.writelines(text.encode() for text in texts)


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
    """True if another open file holds some of these bytes. Raises OSError."""
    found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, start, length))
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


_ours: set[int] = set()


def ours(descriptor: int) -> None:
    """Children that are forked from now on have nothing under this number, until `not_ours`."""
    _ours.add(descriptor)


def not_ours(descriptor: int) -> None:
    """The descriptor is about to be closed."""
    _ours.discard(descriptor)


def _forked() -> None:
    """Keep the numbers taken: a descriptor that the parent's objects would close here must be nobody else's file."""
    if _ours:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in _ours:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
        _ours.clear()


os.register_at_fork(after_in_child=_forked)


def _lock(kind: int, start: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)


def umask() -> int:
    """Permission bits that new files and directories are not to have."""
    with open("/proc/self/status", "rb") as file:  # since Linux 4.7; os.umask would change it for other threads
        return next((int(line[6:], 8) for line in file if line.startswith(b"Umask:")), 0o022)
