"""How full a staging directory is, over all mounts of this host that use it.

A file `.stripefs-staging` in the directory holds one slot a mount: bytes and files staged. Each mount keeps a lock on
its slot's place, and a slot whose lock is gone counts for nothing: whoever died needs nobody to tidy up after it (its
files had no names and went with it). Slots are read and written under one short lock on the whole file.

The rule that shares the bound: the last quarter is kept for files that hold less than an even share, which is the bound
divided by one more than the files that are staged now. So one file alone may take three quarters of the bound, several
that grow together end up even, and a file that comes late finds room. Mounts count by their files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
from collections.abc import Iterator

from stripefs import osutil
from stripefs.errors import ConfigError

__all__ = ["Account", "allowed"]

NAME = ".stripefs-staging"

_SLOT = struct.Struct("<QQ")
_SLOTS = 256
"""Mounts of one host with one staging directory; a host has a handful."""

_LOCKS_AT = 1 << 32
"""Where the locks lie: past the slots, since a lock needs no bytes."""


def allowed(need: int, mine: int, used: int, files: int, bound: int) -> bool:
    """Whether a file that holds `mine` bytes may take `need` more, when all `files` hold `used` of `bound` bytes."""
    if used + need > bound:
        return False
    return used + need <= bound - bound // 4 or mine + need <= bound // (files + 1)


class Account:
    """One mount's entry. Safe to use from many threads; calls take microseconds. `bound` in bytes."""

    def __init__(self, folder: int, bound: int) -> None:
        """`folder` is the directory's descriptor. Raises OSError, and ConfigError when all slots are taken."""
        self.bound = bound
        self._lock = threading.Lock()
        self._used = self._files = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(NAME, flags, 0o600, dir_fd=folder)
        try:
            self._slot = self._take_slot()
        except BaseException:
            os.close(self._descriptor)
            raise

    def totals(self) -> tuple[int, int]:
        """(bytes, files) of all mounts together."""
        with self._alone():
            return self._totals()

    def begin(self) -> None:
        """One file more is staged."""
        with self._alone():
            self._files += 1
            self._write()

    def end(self, held: int) -> None:
        """A file that held so many bytes is gone."""
        with self._alone():
            self._files -= 1
            self._used -= held
            self._write()

    def take(self, need: int, mine: int) -> bool:
        """Let a file that holds `mine` bytes have `need` more, or answer False."""
        with self._alone():
            used, files = self._totals()
            if not allowed(need, mine, used, files, self.bound):
                return False
            self._used += need
            self._write()
            return True

    def give(self, freed: int) -> None:
        """A file let go of so many bytes."""
        with self._alone():
            self._used -= freed
            self._write()

    def close(self) -> None:
        """Everything of this mount counts for nothing from now on."""
        os.close(self._descriptor)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _take_slot(self) -> int:
        with self._alone():
            for slot in range(_SLOTS):
                if osutil.try_lock(self._descriptor, _LOCKS_AT + slot):
                    os.pwrite(self._descriptor, _SLOT.pack(0, 0), slot * _SLOT.size)
                    return slot
        raise ConfigError(f"{_SLOTS} mounts use this staging directory already", hint="give another --staging")

    def _totals(self) -> tuple[int, int]:
        table = os.pread(self._descriptor, _SLOTS * _SLOT.size, 0)
        used, files = self._used, self._files
        for slot in range(len(table) // _SLOT.size):
            theirs = _SLOT.unpack_from(table, slot * _SLOT.size)
            if slot != self._slot and any(theirs) and osutil.is_locked(self._descriptor, _LOCKS_AT + slot):
                used, files = used + theirs[0], files + theirs[1]
        return used, files

    def _write(self) -> None:
        os.pwrite(self._descriptor, _SLOT.pack(self._used, self._files), self._slot * _SLOT.size)
