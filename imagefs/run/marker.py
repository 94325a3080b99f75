"""The place where a container's command says that it has started: a file that it creates.

The container gets a file system of its own for it, in memory, so small that it holds nothing but names, with nosuid,
nodev and noexec; it is on no disk of the host and no process of the host comes across it. The process that runs the
container holds it by a descriptor and learns of the file by inotify, which works across mount namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import threading
from collections.abc import Callable, Iterator

from imagefs.plane import mountapi

__all__ = ["Marker", "watched"]

_NAME = "ready"

_OPTIONS = {"size": "16384", "nr_inodes": "16", "mode": "1777"}
_IN_CREATE, _IN_MOVED_TO = 0x100, 0x80

_libc = ctypes.CDLL(None, use_errno=True)


class Marker:
    """One such file system, until `close`. Raises OSError."""

    def __init__(self) -> None:
        self._mount = mountapi.memory(_OPTIONS)

    def close(self) -> None:
        os.close(self._mount)

    def show(self, target: str) -> None:
        """Put it at `target`, once, in whichever mount namespace the caller is. Raises OSError."""
        os.mkdir(target, 0o700)
        mountapi.show(self._mount, target)

    def watched(self, started: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Call `started` on another thread, once, when the file is there before the block ends. Raises OSError."""
        return watched(f"/proc/self/fd/{self._mount}", self._is_there, started)

    def _is_there(self) -> bool:
        try:
            os.stat(_NAME, dir_fd=self._mount, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True


@contextlib.contextmanager
def watched(folder: str, is_there: Callable[[], bool], call: Callable[[], None]) -> Iterator[None]:
    """Call `call` on another thread, once, when `is_there` is true after a name came into `folder`, or before, until
    the block ends. Raises OSError."""
    stop = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        changes = _notify(folder)
        try:
            thread = threading.Thread(target=_wait, args=(changes, stop, is_there, call))
            thread.start()
            try:
                yield
            finally:
                os.eventfd_write(stop, 1)
                thread.join()
        finally:
            os.close(changes)
    finally:
        os.close(stop)


def _wait(changes: int, stop: int, is_there: Callable[[], bool], call: Callable[[], None]) -> None:
    poll = select.poll()
    poll.register(changes, select.POLLIN)
    poll.register(stop, select.POLLIN)
    while not is_there():
        ready = {descriptor for descriptor, _ in poll.poll()}
        if changes not in ready:
            return
        os.read(changes, 4096)
    call()


def _notify(path: str) -> int:
    """An inotify descriptor of the names that come into a directory. Raises OSError."""
    descriptor = int(_libc.inotify_init1(os.O_CLOEXEC))
    if descriptor < 0:
        raise _error("inotify")
    if _libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_CREATE | _IN_MOVED_TO) < 0:
        error = _error(path)
        os.close(descriptor)
        raise error
    return descriptor


def _error(subject: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), subject)
