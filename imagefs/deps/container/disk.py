"""Whether a file system had no room left while something was written to it.

An installer that fails for want of room removes what it has written, so afterwards there is some again: it is looked at
now and then meanwhile.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Self

__all__ = ["Room"]

_LEAST = 1 << 20
"""Bytes below which there is none: what is written comes in pieces up to that long."""

_EVERY = 0.02
"""Seconds between looks, each of which costs a system call: pip takes longer to find out, say so and clean up."""


class Room:
    """Inside a `with` block it watches the file system that `folder`, which must exist, lies on. Raises OSError."""

    def __init__(self, folder: str) -> None:
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="room", daemon=True)
        self.was_used_up = False

    def __enter__(self) -> Self:
        # The thread inherits it: signals are for whoever waits for the container.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        os.close(self._folder)

    def _watch(self) -> None:
        while True:
            found = os.statvfs(self._folder)
            # Of root, who may use what is reserved. Some file systems make inodes as they go, and count none.
            self.was_used_up |= found.f_bfree * found.f_frsize < _LEAST or (found.f_files > 0 and not found.f_ffree)
            if self._over.wait(_EVERY):
                return
