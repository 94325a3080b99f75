"""One staged file on local disk: bytes at any offset, within what the account allows. Blocking, for threads.

The file has no name (O_TMPFILE; where the file system has none of that, a name that is gone before the first byte is
written), so nothing of it outlives the process. Space is taken in chunks: a hole takes none, and a write that finds
none fails whole before anything changes.

A range that could not be written is remembered until it is written again or cut off. While there is one the file is not
what the program believes it to be, and must not be published.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading

from stripefs.errors import NoSpace, StoreError, StripefsError
from stripefs.store.base import Buffer
from stripefs.write.staging.account import Account
from stripefs.write.staging.extents import Extents

__all__ = ["CHUNK", "StagedFile"]

CHUNK = 64 << 10
"""The unit of space in bytes: fine enough for a sparse file, coarse enough that the account is asked rarely."""

_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT)
_FULL = (errno.ENOSPC, errno.EDQUOT)


class StagedFile:
    """`shown` is the file's name for messages, `place` that of the directory. Raises OSError when it cannot be made."""

    def __init__(self, folder: int, account: Account, shown: str, place: str) -> None:
        self.length = 0
        self._account = account
        self._shown = shown
        self._place = place
        self._held = Extents()
        self._failed = Extents()
        self._lock = threading.Lock()
        self._closed = False
        self._descriptor = _nameless(folder)
        account.begin()

    def write(self, offset: int, data: Buffer) -> None:
        """All of `data`, or nothing and NoSpace or StoreError; a gap before it is zeros."""
        size = len(data)
        if not size:
            return
        with self._lock:
            self._check_open()
            try:
                self._take(offset, offset + size)
                self._put(offset, memoryview(data).cast("B"))
            except StripefsError:
                self._failed.add(offset, offset + size)
                raise
            self._failed.remove(offset, offset + size)
            self.length = max(self.length, offset + size)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes [offset, offset + size), as far as the file reaches."""
        with self._lock:
            self._check_open()
            data = b""
            wanted = max(0, min(size, self.length - offset))
            while len(data) < wanted:
                try:
                    more = os.pread(self._descriptor, wanted - len(data), offset + len(data))
                except OSError as error:
                    raise self._broken(error) from error
                if not more:
                    raise StoreError(f"{self._shown}: its staged copy in {self._place} lost its end")
                data = data + more if data else more
            return data

    def truncate(self, length: int) -> None:
        """Cut off, or extend with zeros, which take no space."""
        with self._lock:
            self._check_open()
            try:
                os.ftruncate(self._descriptor, length)
            except OSError as error:
                raise self._broken(error) from error
            before = self._held.total
            self._held.cut(_up(length))
            self._failed.cut(length)
            self._account.give(before - self._held.total)
            self.length = length

    def check_whole(self) -> None:
        """Raises NoSpace when a write failed and neither its range was written since nor cut off."""
        with self._lock:
            if self._failed:
                start, stop = self._failed.ranges()[0]
                raise NoSpace(
                    f"{self._shown}: bytes {start} to {stop - 1} could not be staged, so it is not published",
                    hint=f"make room in {self._place} or raise --staging-size, and write the file again",
                )

    def close(self) -> None:
        """Let go of the file and its space. Never raises."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._descriptor)
                self._account.end(self._held.total)

    def _take(self, start: int, stop: int) -> None:
        start, stop = start // CHUNK * CHUNK, _up(stop)
        need = self._held.missing(start, stop)
        if need and not self._account.take(need, self._held.total):
            used, files = self._account.totals()
            raise NoSpace(
                f"{self._shown}: no room to stage {need} more bytes in {self._place}: "
                f"{used} of {self._account.bound} are used by {files} files",
                hint="raise --staging-size; one file alone may take three quarters of it",
            )
        self._held.add(start, stop)

    def _put(self, offset: int, rest: memoryview) -> None:
        try:
            while rest:
                written = os.pwrite(self._descriptor, rest, offset)
                offset, rest = offset + written, rest[written:]
        except OSError as error:
            raise self._broken(error) from error

    def _broken(self, error: OSError) -> StoreError:
        kind = NoSpace if error.errno in _FULL else StoreError
        found = kind(f"{self._shown}: {self._place}: {error.strerror}")
        if error.errno == errno.EFBIG:
            found.errno = errno.EFBIG
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self._shown}: its staged copy is closed")


def _up(offset: int) -> int:
    return -(-offset // CHUNK) * CHUNK


def _nameless(folder: int) -> int:
    try:
        return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno not in _NO_NAMELESS:
            raise
    name = f".stripefs-staged-{secrets.token_hex(8)}"
    descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=folder)
    os.unlink(name, dir_fd=folder)
    return descriptor
