"""One segment: a file of up to 64 blocks with their check values. Blocking, for threads; calls that use the disk raise
OSError.

Data goes around the page cache (O_DIRECT), since what a mount reads is cached under its own file already; where the
file system refuses that, pages are dropped once they were used. Concurrent reads of the same bytes go through the page
cache, else the disk had to bring them for each. So do reads of the table: a few bytes that everybody looks at. Nothing
is mapped, because a mapped file that somebody cuts short kills the process.

A block is written before its slot says so. A block torn by a crash between the two does not fit its check value; then
the slot is cleared and the block counts as absent. A segment that was evicted goes on working for those who have it
open, who notice (`alive`) when they miss something.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from stripefs import osutil
from stripefs.cache.cache_format import (
    BLOCK,
    DATA_AT,
    EMPTY,
    FILE_LENGTH,
    HEADER,
    SLOT,
    SLOTS_AT,
    TABLE,
    check_value,
    described,
    header,
    index_in_segment,
    length_of,
    rekeyed,
    segment_blocks,
)
from stripefs.store.allocator import PAGE, aligned
from stripefs.store.base import Buffer
from stripefs.store.common import InUse

__all__ = ["CacheSegment", "Damaged", "whole_pages"]

TOUCH_EVERY = 60.0
"""Seconds by which the time of last use may be off: else every read would write."""

_LOCKS_AT = 1 << 40
"""Offset of the locks of blocks: far past the data."""

_WANTED_AT = 1 << 41
"""Offset of the locks of those who wait for blocks, for whoever fetches these to see."""

_TRIES = 3
"""Times that folders are made, which others may remove at any moment because they are empty."""

_WRITE_OUT = 1 | 2 | 4  # SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER of linux/fs.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


def whole_pages(size: int) -> int:
    """The bytes that `size` bytes take where only whole pages are read and written."""
    return -(-size // PAGE) * PAGE


class Damaged(Exception):
    """The file is not the segment that it should be."""


class CacheSegment:
    """Segment `number` of the version `key`, of `length` bytes in all, at `path`. Blocks are numbered from the
    file's start.

    With `make` the file and the folders above it are made where they are missing. Raises OSError, FileNotFoundError
    where there is none, Damaged.
    """

    def __init__(self, path: str, key: bytes, number: int, length: int, *, make: bool = False) -> None:
        self.path = path
        self._header = header(key, number, length)
        self._key = key
        self._number = number
        self._lock = threading.Lock()
        self._holders: dict[int, object] = {}
        self._wanted = Counter[int]()
        self._touched = self.used = time.monotonic()
        with contextlib.ExitStack() as undo:
            self._descriptor, self.writable = _open(path, make)
            undo.callback(_close, self._descriptor)
            osutil.ours(self._descriptor)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # the bytes behind may not be written yet
            self._check_header(make)
            self._data = _direct(self._descriptor, self.writable)
            self._release = undo.pop_all()
        self.direct = self._data >= 0
        """True if data goes around the page cache."""
        if self.direct:
            self._release.callback(_close, self._data)
            osutil.ours(self._data)
        self._in_use = InUse(path, self._release.close)

    def slots(self, blocks: range) -> bytes:
        """The slots of these blocks; empty ones, too, for what lies past the end of a file that was cut."""
        first = index_in_segment(blocks)
        with self._in_use.reading():
            found = os.pread(self._descriptor, SLOT * len(blocks), SLOTS_AT + SLOT * first)
        return found.ljust(SLOT * len(blocks), b"\0")

    def read(self, blocks: range, into: memoryview, skip: int = 0, *, shared: bool = False) -> None:
        """Fill `into`, which begins where a page does, with the bytes of `blocks` from `skip`, whole pages, on; it may
        end before the last does. shared: others read the same at about this time."""
        at = _data_offset(blocks) + skip
        with self._in_use.reading():
            done = 0
            while done < len(into):
                try:
                    around = self.direct and not shared
                    count = os.preadv(self._data if around else self._descriptor, [into[done:]], at + done)
                except OSError as error:
                    self._may_go_on(error)
                    continue
                if not count:
                    raise OSError(errno.EIO, "the file was cut short")
                done += count
            if not self.direct and not shared:
                os.posix_fadvise(self._descriptor, at, len(into), os.POSIX_FADV_DONTNEED)

    def write(self, blocks: range, data: memoryview) -> None:
        """Write the bytes of `blocks` and then their slots. `data` begins where a page does and is padded to one."""
        at = _data_offset(blocks)
        with self._in_use.reading():
            done = 0
            while done < len(data):
                try:
                    done += os.pwrite(self._data if self.direct else self._descriptor, data[done:], at + done)
                except OSError as error:
                    self._may_go_on(error)
            if not self.direct:
                _write_out(self._descriptor, at, len(data))

    def write_slots(self, blocks: range, slots: bytes) -> None:
        """Say that these blocks, which were written, are here."""
        with self._in_use.reading():
            os.pwrite(self._descriptor, slots, SLOTS_AT + SLOT * index_in_segment(blocks))

    def clear(self, block: int, slot: bytes) -> bool:
        """Clear this block's slot, unless that has changed or the segment is gone; False then."""
        one = range(block, block + 1)
        if self.slots(one) != slot or not self.alive():
            return False
        if self.writable:
            self.write_slots(one, EMPTY)
        return True

    def fits(self, block: int, slot: bytes, data: Buffer) -> bool:
        return check_value(self._key, block, data) == slot

    def contents(self, blocks: range, length: int) -> Iterator[tuple[int, bytes, memoryview]]:
        """Each of these blocks of a file of `length` bytes that is here: its number, its slot, and its bytes, which are
        unchecked and there until the next one is asked for."""
        slots, buffer = self.slots(blocks), aligned(BLOCK)
        for index, block in enumerate(blocks):
            slot = slots[index * SLOT :][:SLOT]
            if slot != EMPTY:
                one = range(block, block + 1)
                size = length_of(one, length)
                self.read(one, buffer[: whole_pages(size)])
                yield block, slot, buffer[:size]

    def touch(self, now: float) -> None:
        """Note a use; `now` by the monotonic clock."""
        self.used = now
        if now - self._touched >= TOUCH_EVERY and self.writable:
            self._touched = now
            with self._in_use.reading():
                os.utime(self._descriptor, ns=(time.time_ns(), os.fstat(self._descriptor).st_mtime_ns))

    def filled_within(self, seconds: float) -> bool:
        """True if somebody wrote to it so lately."""
        with self._in_use.reading():
            return abs(time.time() - os.fstat(self._descriptor).st_mtime) < seconds

    def alive(self) -> bool:
        """True if it still has its name, and is of the version that it was."""
        with self._in_use.reading():
            if not os.fstat(self._descriptor).st_nlink:
                return False
            found = os.pread(self._descriptor, HEADER, 0)
        return found == self._header or described(found) is None  # its reader finds the damage

    def rekey(self, key: bytes, length: int, stop: int) -> bool:
        """Be that segment of the version `key`, of `length` bytes, without what lies from block `stop` on.

        False where somebody is filling it. Its name is the caller's affair, and nobody may use it here any more.
        """
        every = segment_blocks(self._number)
        if not self.lock(every, self):
            return False
        with self._in_use.reading():
            table = os.pread(self._descriptor, TABLE, 0)
            os.pwrite(self._descriptor, rekeyed(table, self._key, key, self._number, length, stop), 0)
        self.unlock(every, self)
        return True

    def lock(self, blocks: range, holder: object) -> bool:
        """Keep all but `holder` from fetching these blocks, unless one of them, here or in another process, does so
        now."""
        with self._in_use.reading(), self._lock:
            if any(self._holders.get(block, holder) is not holder for block in blocks):
                return False
            if not osutil.try_lock(self._descriptor, _LOCKS_AT + blocks.start, len(blocks)):
                return False
            self._holders |= dict.fromkeys(blocks, holder)
            return True

    def unlock(self, blocks: range, holder: object) -> None:
        """Take that back; while it is `held`, since others may have closed it."""
        with self._lock:
            for block in blocks:
                if self._holders.get(block) is holder:
                    del self._holders[block]
                    osutil.unlock(self._descriptor, _LOCKS_AT + block)

    @contextmanager
    def wanted(self, blocks: range) -> Iterator[None]:
        """Inside, all who ask can see that somebody waits for these blocks."""
        with self._in_use.reading():
            with self._lock:
                self._wanted.update(blocks)
                osutil.share(self._descriptor, _WANTED_AT + blocks.start, len(blocks))
            try:
                yield
            finally:
                with self._lock:
                    self._wanted.subtract(blocks)
                    for block in blocks:
                        if not self._wanted[block]:
                            osutil.unlock(self._descriptor, _WANTED_AT + block)

    def is_wanted(self, blocks: range) -> bool:
        """True if somebody waits for one of these blocks, here or in another process."""
        with self._in_use.reading(), self._lock:
            if any(self._wanted[block] for block in blocks):
                return True
            return osutil.is_locked(self._descriptor, _WANTED_AT + blocks.start, len(blocks))

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keeps it open, and with that its locks, whoever closes it. Raises StoreError once it is closed."""
        with self._in_use.reading():
            yield

    def close(self) -> None:
        """After the last use of it. A second call does nothing."""
        self._in_use.close()

    def _check_header(self, make: bool) -> None:
        found = os.pread(self._descriptor, TABLE, 0)
        if found[:HEADER] == self._header:
            return
        if any(found):
            raise Damaged(f"{self.path} is not the segment that its name says")
        if not make or not self.writable:  # a crash, or another process, was between making and describing it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        os.ftruncate(self._descriptor, FILE_LENGTH)
        os.pwrite(self._descriptor, self._header, 0)

    def _may_go_on(self, error: OSError) -> None:
        """Some file systems take O_DIRECT at open and refuse it later."""
        if error.errno != errno.EINVAL or not self.direct:
            raise error
        self.direct = False


def _open(path: str, make: bool) -> tuple[int, bool]:
    """A descriptor, and whether it can be written through."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        if make:
            return _make(path, os.O_RDWR | os.O_CREAT | flags), True
        return os.open(path, os.O_RDWR | flags), True
    except OSError as error:
        if make or error.errno not in (errno.EROFS, errno.EACCES):
            raise
    return os.open(path, os.O_RDONLY | flags), False


def _direct(descriptor: int, writable: bool) -> int:
    """The same file, opened to go around the page cache; -1 where that is refused."""
    flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_DIRECT | os.O_CLOEXEC
    try:
        return os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:
        return -1


def _close(descriptor: int) -> None:
    osutil.not_ours(descriptor)
    os.close(descriptor)


def _make(path: str, flags: int) -> int:
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags, 0o600)
        with contextlib.suppress(FileNotFoundError):
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    return os.open(path, flags, 0o600)


def _data_offset(blocks: range) -> int:
    return DATA_AT + BLOCK * index_in_segment(blocks)


def _write_out(descriptor: int, at: int, length: int) -> None:
    """Put this on disk now, and drop the pages, so that cached bytes are not held a second time."""
    if _libc.sync_file_range(descriptor, at, length, _WRITE_OUT):
        number = ctypes.get_errno()
        if number not in (errno.ESPIPE, errno.EINVAL, errno.ENOSYS):  # not every file system has it
            raise OSError(number, os.strerror(number))
    os.posix_fadvise(descriptor, at, whole_pages(length), os.POSIX_FADV_DONTNEED)
