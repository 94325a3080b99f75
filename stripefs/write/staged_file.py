"""One staged file on local disk: bytes at any offset, within the quota of the staging directory. Blocking, for threads.

The file has no name (O_TMPFILE; where the file system has none of that, a name that is gone before the first byte is
written), so nothing of it outlives the process. Space is taken in chunks: a hole takes none, and a write that finds
none fails whole before anything changes.

A range that could not be written is remembered until it is written again or cut off. While there is one the file is not
what the program believes it to be, and must not be published.

**Quota.** A file `.stripefs-staging` in the directory holds one slot a mount: bytes and files staged. Each mount keeps
a lock on its slot's place, and a slot whose lock is gone counts for nothing, so a mount that died leaves nothing to
clean up (its files had no names and went with it). Slots are read and written under one short lock on the whole file.

The rule that shares the bound: the last quarter is kept for files that hold less than an even share, which is the bound
divided by one more than the files that are staged now. So one file alone may take three quarters of the bound, several
that grow together end up even, and a file that comes late finds room. Mounts count by their files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import struct
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from stripefs import osutil
from stripefs.errors import ConfigError, NoSpace, StoreError, StripefsError
from stripefs.store.base import Buffer

__all__ = ["CHUNK", "RangeSet", "StagedFile", "StagingQuota", "allowed"]


class RangeSet:
    """Half-open ranges [start, stop) in bytes, apart from each other and in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.total = 0
        """Bytes in all ranges together."""

    def __bool__(self) -> bool:
        return bool(self._starts)

    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._stops, strict=True))

    def missing(self, start: int, stop: int) -> int:
        """Number of bytes of [start, stop) that are in no range."""
        if stop <= start:
            return 0
        first, last = self._touching(start, stop)
        held = sum(
            min(stop, self._stops[at]) - max(start, self._starts[at])
            for at in range(first, last)
            if self._stops[at] > start and self._starts[at] < stop
        )
        return stop - start - held

    def add(self, start: int, stop: int) -> None:
        if stop <= start:
            return
        self.total += self.missing(start, stop)
        first, last = self._touching(start, stop)
        if first < last:
            start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def remove(self, start: int, stop: int) -> None:
        if stop <= start:
            return
        self.total -= stop - start - self.missing(start, stop)
        first, last = self._touching(start, stop)
        left = [(self._starts[at], min(start, self._stops[at])) for at in range(first, last)]
        right = [(max(stop, self._starts[at]), self._stops[at]) for at in range(first, last)]
        kept = [(begin, end) for begin, end in sorted({*left, *right}) if begin < end]
        self._starts[first:last] = [begin for begin, _ in kept]
        self._stops[first:last] = [end for _, end in kept]

    def cut(self, at: int) -> None:
        """Keep nothing at or after `at`."""
        if self._stops:
            self.remove(at, max(at, self._stops[-1]))

    def _touching(self, start: int, stop: int) -> tuple[int, int]:
        """Indexes [first, last) of the ranges that overlap [start, stop) or lie next to it."""
        return bisect_left(self._stops, start), bisect_right(self._starts, stop)


NAME = ".stripefs-staging"

_SLOT = struct.Struct("<QQ")
_SLOTS = 256
"""Mounts of one host with one staging directory; a host has a handful."""

_LOCKS_AT = 1 << 32
"""Offset of the locks: past the slots, since a lock needs no bytes."""


def allowed(need: int, mine: int, used: int, files: int, bound: int) -> bool:
    """True if a file that holds `mine` bytes may take `need` more, when all `files` hold `used` of `bound` bytes."""
    if used + need > bound:
        return False
    return used + need <= bound - bound // 4 or mine + need <= bound // (files + 1)


class StagingQuota:
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

    def acquire(self, need: int, mine: int) -> bool:
        """Let a file that holds `mine` bytes have `need` more, or answer False."""
        with self._alone():
            used, files = self._totals()
            if not allowed(need, mine, used, files, self.bound):
                return False
            self._used += need
            self._write()
            return True

    def release(self, freed: int) -> None:
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


CHUNK = 64 << 10
"""The unit of space in bytes: fine enough for a sparse file, coarse enough that the account is asked rarely."""

_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT)
_FULL = (errno.ENOSPC, errno.EDQUOT)


class StagedFile:
    """shown, directory: names for messages. Raises OSError when it cannot be made."""

    def __init__(self, folder: int, account: StagingQuota, shown: str, directory: str) -> None:
        self.length = 0
        self._account = account
        self._shown = shown
        self._directory = directory
        self._held = RangeSet()
        self._failed = RangeSet()
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
                self._acquire(offset, offset + size)
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
                    raise StoreError(f"{self._shown}: its staged copy in {self._directory} lost its end")
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
            self._account.release(before - self._held.total)
            self.length = length

    def check_whole(self) -> None:
        """Raises NoSpace when a write failed and neither its range was written since nor cut off."""
        with self._lock:
            if self._failed:
                start, stop = self._failed.ranges()[0]
                raise NoSpace(
                    f"{self._shown}: bytes {start} to {stop - 1} could not be staged, so it is not published",
                    hint=f"make room in {self._directory} or raise --staging-size, and write the file again",
                )

    def close(self) -> None:
        """Let go of the file and its space. Never raises."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._descriptor)
                self._account.end(self._held.total)

    def _acquire(self, start: int, stop: int) -> None:
        start, stop = start // CHUNK * CHUNK, _up(stop)
        need = self._held.missing(start, stop)
        if need and not self._account.acquire(need, self._held.total):
            used, files = self._account.totals()
            raise NoSpace(
                f"{self._shown}: no room to stage {need} more bytes in {self._directory}: "
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
        found = kind(f"{self._shown}: {self._directory}: {error.strerror}")
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
