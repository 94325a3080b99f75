"""Quota of the cache over all processes of this host that use it, and eviction when it is used up. Blocking.

`usage` holds the bytes in use, a little-endian number of 8 bytes, and is what processes lock (flock) to change it. It
is a running count: bytes that a killed process had reserved and not written stay counted until the next eviction, when
everything is counted anew. Eviction removes whole segments (`stripefs.cache.policy` says which); those who have one
open go on reading it.

Counting looks at every segment, which takes seconds where there are 100,000. It happens under a lock of its own (that
of `eviction`), which only one thread on this host has: who finds room takes it meanwhile. The number is locked for
single reads and writes. All of this is called by the threads of the write-back queue, never by a reader and never on an
event loop.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
import time
from collections.abc import Collection, Iterator, Sequence

from stripefs import osutil
from stripefs.cache.cachedir import CacheDir
from stripefs.cache.policy import SegmentUse, victims

__all__ = ["Quota", "default_limit", "free_to_keep"]

_NUMBER = struct.Struct("<Q")

_AT_ONCE = 64
"""Segments that are removed between two changes of the number."""

FULL_PAUSE = 10.0
"""Seconds after which room is looked for again when none was found."""

TRIES = 2
"""Evictions for one block, at most: others, who wait for nobody where there is room, may take what the first frees."""

SLACK, MOST_SLACK = 32, 4 << 30
"""One part in so many of the limit is freed beyond what is needed, and so many bytes at most: so that not every block
looks through everything."""


def free_to_keep(total: int) -> int:
    """Bytes of a file system of `total` bytes that the cache leaves free whatever its limit: 2 %, at least 1 GiB,
    but never more than a quarter (of a small disk made for it)."""
    return min(max(1 << 30, total // 50), total // 4)


def default_limit(total: int) -> int:
    """The limit that nobody set: a tenth of the file system."""
    return total // 10


LEASE, LEASES = 64 << 20, 256
"""Bytes that a process takes at once beyond what it needs now, at most, and at most this part of the limit: so that not
every block asks for the lock, which in a busy process takes as long as to write it."""


class Quota:
    """`limit` in bytes; 0 for a tenth of the file system. Safe to use from many threads and processes."""

    def __init__(self, cachedir: CacheDir, limit: int) -> None:
        self._cachedir = cachedir
        self._limit = limit
        self._lock = threading.Lock()
        self._lease = 0
        self._under_way = 0
        self._full_until = 0.0
        self.evicted = 0
        """Bytes of segments that this process has removed to make room."""

    def limit(self) -> int:
        """Raises OSError."""
        if self._limit:
            return self._limit
        return default_limit(self._file_system()[0])

    def capacity(self) -> int:
        """Bytes that could be kept if all that is kept now went. Raises OSError."""
        total, free = self._file_system()
        return max(0, min(self.limit(), self.used() + free - free_to_keep(total)))

    def used(self) -> int:
        """Bytes in use when somebody counted last; waits for nobody. Raises OSError."""
        with contextlib.suppress(FileNotFoundError), open(self._cachedir.usage, "rb") as file:
            found = file.read(_NUMBER.size)
            if len(found) == _NUMBER.size:
                return max(0, int(_NUMBER.unpack(found)[0]) - self._lease)
        return 0

    def acquire(self, size: int, key: bytes) -> bool:
        """Have `size` more bytes for the version `key`, making room where there is none. Raises OSError.

        `wrote` or `release` follows.
        """
        if self._reserve(size):
            return True
        if time.monotonic() < self._full_until:
            return False
        with self._evicting():
            for _ in range(TRIES):
                if self._reserve(size):  # somebody else has made room meanwhile
                    return True
                if time.monotonic() < self._full_until:  # another thread has found none meanwhile
                    return False
                if not self._make_room(size, key):
                    break
            if self._reserve(size):
                return True
            self._full_until = time.monotonic() + FULL_PAUSE
            return False

    def _reserve(self, size: int) -> bool:
        """The same, of what is free now."""
        with self._lock:
            if self._lease < size:
                with self._alone() as usage:
                    used = self._read(usage)
                    for wanted in (size + min(LEASE, self.limit() // LEASES), size):
                        if self._missing(used, wanted) <= 0:
                            break
                    else:
                        return False
                    self._write(usage, used + wanted)
                self._lease += wanted
            self._lease -= size
            self._under_way += size
            return True

    def wrote(self, size: int) -> None:
        """The bytes that were taken are on disk, and counted there from now on."""
        with self._lock:
            self._under_way -= size

    def release(self, size: int) -> None:
        """The bytes that were taken were not written."""
        with self._lock:
            self._under_way -= size
            self._lease += size

    def return_lease(self) -> None:
        """Let others have what was leased and not used. Raises OSError."""
        with self._lock:
            lease, self._lease = self._lease, 0
            if lease:
                with self._alone() as usage:
                    self._write(usage, max(0, self._read(usage) - lease))

    def recount(self) -> int:
        """Bytes in use, looked at. Raises OSError."""
        with self._evicting():
            return self._count()[1] - self._lease

    def _count(self) -> tuple[list[SegmentUse], int]:
        """All segments, and the bytes in use, counted anew; by one caller at a time.

        The disk does not show yet what this process has taken. The rise of the number meanwhile is added. Until all
        is counted again, bytes that others wrote meanwhile may count twice. Bytes that others had taken before, or took
        while as many were given back, may not count at all.
        """
        with self._lock, self._alone() as usage:
            before, taken = self._read(usage), self._lease + self._under_way
        pieces = list(self._cachedir.segment_uses())
        with self._alone() as usage:
            used = sum(piece.size for piece in pieces) + taken + max(0, self._read(usage) - before)
            self._write(usage, used)
        return pieces, used

    def remove(self, keys: Collection[bytes]) -> int:
        """Remove these versions, whatever keeps them; the bytes that they took. Raises OSError."""
        freed = self._remove(list(self._cachedir.segment_uses(keys)))
        for key in keys:
            self._cachedir.unpin(key)
            self._cachedir.tidy(key)
        return freed

    def _remove(self, pieces: Sequence[SegmentUse]) -> int:
        """Remove segments, and let others have their room a few at a time; the bytes of all."""
        freed = 0
        for first in range(0, len(pieces), _AT_ONCE):
            size = sum(map(self._cachedir.remove, pieces[first : first + _AT_ONCE]))
            with self._alone() as usage:
                self._write(usage, max(0, self._read(usage) - size))
            freed += size
        return freed

    def begin(self, key: bytes) -> int:
        """`CacheDir.begin`, once what writers that were killed have left is gone. Raises OSError."""
        if self._sweep():
            self.recount()
        with self._alone():
            return self._cachedir.begin(key)

    def _sweep(self) -> bool:
        """Remove versions that nobody writes any more and nobody has published; False where there is none."""
        with self._alone():
            abandoned = list(self._cachedir.abandoned())
        for key in abandoned:
            self._remove(list(self._cachedir.segment_uses([key])))
            self._cachedir.forget(key)
        return bool(abandoned)

    def _missing(self, used: int, size: int) -> int:
        """Bytes that must be evicted before `size` more may come; none where it is not positive."""
        total, free = self._file_system()
        return max(used + size - self.limit(), size + free_to_keep(total) - free)

    def _make_room(self, size: int, key: bytes) -> bool:
        """Remove what may go, by one caller at a time. False where room is missing and nothing could go."""
        self._sweep()
        pieces, used = self._count()
        missing = self._missing(used, size)
        if missing <= 0:
            return True
        kept = self._cachedir.kept({piece.key for piece in pieces} | {key})
        wanted = missing + min(self.limit() // SLACK, MOST_SLACK)
        freed = self._remove(victims(pieces, kept, wanted, missing, key, time.time()))
        self.evicted += freed
        return freed > 0

    def _file_system(self) -> tuple[int, int]:
        """Bytes in all, and free ones, where the folder is or will be."""
        folder = self._cachedir.root
        while True:
            try:
                found = os.statvfs(folder)
                return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
            except FileNotFoundError:
                folder = os.path.dirname(folder)

    def _evicting(self) -> contextlib.AbstractContextManager[int]:
        """Be the only one of this host who counts and evicts."""
        return self._locked(self._cachedir.eviction)

    def _alone(self) -> contextlib.AbstractContextManager[int]:
        """`usage`, which nobody else reads or changes: for moments only."""
        return self._locked(self._cachedir.usage)

    @contextlib.contextmanager
    def _locked(self, path: str) -> Iterator[int]:
        file = self._cachedir.open_lock(path)
        osutil.ours(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield file
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile has the same open file
        finally:
            osutil.not_ours(file)
            os.close(file)

    def _read(self, usage: int) -> int:
        found = os.pread(usage, _NUMBER.size, 0)
        if len(found) == _NUMBER.size:
            return int(_NUMBER.unpack(found)[0])
        return sum(piece.size for piece in self._cachedir.segment_uses())

    def _write(self, usage: int, used: int) -> None:
        if os.pwrite(usage, _NUMBER.pack(used), 0) != _NUMBER.size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
