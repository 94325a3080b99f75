"""The cache file of a device: a sparse file with its blocks, a table beside it, and the health of the disk they are on.

    header   magic "BSBLOCKS", version, blocks, digest of the device's block index
    rows     for each block its checksum, last use and presence

The rows are held in memory (`imagefs.blocks.block_table`); they are not mapped, because storing into a mapped file
kills the process when the disk is full. A block is written before its row says that it is here, and its hash is checked
on every read: what a crash or a bad disk left half-written is found then, and fetched anew. Giving up a block clears
its row before a hole is punched, so the file takes no more room than what is here.

Once all blocks are here the file is the device, and the kernel needs nobody to serve it; but then nobody checks what
it reads. So that is said by a third file, which is written after the data was put on disk and read back, names the
data file as it was then (inode, length, time of its last change), and is taken away, and that put on disk, before any
block is given up. A data file that was changed in any way since is not believed.

A disk that is full or fails is left alone for a while, which costs speed only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import signal
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import trio

from imagefs.blocks.block_table import ROW, BlockTable, present_rows, row
from imagefs.blocks.stats import BlockStats
from imagefs.format.index import BLOCK
from stripefs import retry
from stripefs.executor import Lane
from stripefs.retry import Backoff, Seldom
from stripefs.store.common import InUse

__all__ = ["CacheDisk", "LocalDevice", "Stamp", "mark_of", "neighbours"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")
THREADS = 4


class CacheDisk:
    """The disk below `folder`: threads that use it, and its health. `lock` is held by whoever changes files."""

    def __init__(self, folder: Path, stats: BlockStats) -> None:
        self.folder = folder
        self.lock = trio.Lock()
        self.warn = Seldom(_log)
        self._stats = stats
        self._lane = Lane("disk", THREADS)
        self._loading = Lane("opening devices", THREADS)
        self._backoff = Backoff(retry.FIRST_PAUSE, retry.LONGEST_PAUSE)

    async def thread(self, function: Callable[[*_Args], _T], *arguments: *_Args) -> _T:
        """`function(*arguments)` in a thread, waited for even by who is cancelled: it may use descriptors of files."""
        return await self._lane.run("the cache's disk", function, *arguments, abandon=False)

    async def load(self, function: Callable[[*_Args], _T], *arguments: *_Args, late: Callable[[_T], object]) -> _T:
        """As `thread`, on threads of their own; late(result) is called when who is cancelled waits no more."""
        return await self._loading.run("the cache's disk", function, *arguments, late=late)

    @property
    def failing(self) -> bool:
        """Tells whether it is left alone now."""
        return self._backoff.paused(trio.current_time())

    def failed(self, what: str, error: OSError) -> None:
        self._stats.disk_errors += 1
        self._backoff.failed(trio.current_time())
        self.warn("disk", "%s in %s: %s; until it can, what is read is fetched", what, self.folder, error.strerror)

    def worked(self) -> None:
        """Note that the disk took a write."""
        self._backoff.worked()

    @contextlib.contextmanager
    def tolerant(self, what: str) -> Iterator[None]:
        """An OSError inside ends this, and is a failure of the disk in `what`."""
        try:
            yield
        except OSError as error:
            self.failed(what, error)


_MAGIC = b"BSBLOCKS"
_HEADER = struct.Struct("<8sII32s16x")
_VERSION = 1
_MARK = struct.Struct("<8sII32sQQq")
_MARK_MAGIC = b"BSWHOLE\0"
_PUNCH_HOLE, _KEEP_SIZE = 2, 1
_F_SETSIG = 10
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
Stamp = tuple[int, int, int]
"""A data file at one moment: inode, length, time of the last change in nanoseconds."""


class LocalDevice:
    """One device below `folder`. One process at a time may use it.

    The table belongs to one thread; the methods that touch the disk may block, raise OSError, leave the table in memory
    alone, and may run in any thread.
    """

    def __init__(self, folder: Path, name: str, blocks: int, size: int) -> None:
        """Open it, or make it where it is not there. `name` is the digest of its block index, in hexadecimal digits.

        blocks: of the device. size: its bytes. Raises OSError.
        """
        self.name = name
        self.folder = folder
        self.blocks = blocks
        self.path = folder / f"{name}.data"
        self.closed = False
        self._table_path = folder / f"{name}.table"
        self._mark_path = folder / f"{name}.complete"
        self._waits = False  # True where the file system cannot say what is in memory
        with contextlib.ExitStack() as undo:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._data = os.open(self.path, flags, 0o600)
            undo.callback(os.close, self._data)
            if os.fstat(self._data).st_size != size:
                os.ftruncate(self._data, size)
            self._table_file = os.open(self._table_path, flags, 0o600)
            undo.callback(os.close, self._table_file)
            self.table = BlockTable(self._load(bytes.fromhex(name)))
            self.marked = self._is_marked()
            undo.pop_all()
        self._in_use = InUse(str(self.path), self._release)

    @classmethod
    def found(cls, folder: Path, name: str) -> LocalDevice | None:
        """The one that is there, as its own table describes it; None where that says nothing. Raises OSError."""
        with (folder / f"{name}.table").open("rb") as file:
            header = file.read(_HEADER.size)
        size = (folder / f"{name}.data").stat().st_size
        if len(header) != _HEADER.size:
            return None
        magic, version, blocks, digest = _HEADER.unpack(header)
        if (magic, version, digest.hex()) != (_MAGIC, _VERSION, name) or blocks != -(-size // BLOCK):
            return None
        return cls(folder, name, blocks, size)

    def clear(self, block: int) -> None:
        """The block is here no more; the device is marked complete no more either."""
        if self.table.clear(block):
            self.marked = False

    # -- the disk ------------------------------------------------------------------------------------------------

    def read_now(self, offset: int, buffer: bytearray) -> bool:
        """Fill `buffer` from `offset` with what the page cache has; False when that is not all. Never blocks."""
        if self._waits:
            return False
        try:
            return os.preadv(self._data, [buffer], offset, os.RWF_NOWAIT) == len(buffer)
        except OSError as error:
            # EAGAIN: not in memory. Anything else `read` will meet again, or the file system has no such reads.
            self._waits = error.errno == errno.EOPNOTSUPP
            return False

    def read(self, offset: int, buffer: bytearray) -> None:
        """Fill `buffer` from `offset`."""
        with self._in_use.reading():
            view, at = memoryview(buffer), offset
            while view:
                count = os.preadv(self._data, [view], at)
                if not count:
                    raise OSError(errno.EIO, "the file was cut short")
                view, at = view[count:], at + count

    def write(self, block: int, data: bytes, checksum: int, now: float) -> None:
        """Write a block that was checked, then its row; `BlockTable.add` must follow."""
        with self._in_use.reading():
            _write_at(self._data, data, block * BLOCK)
            _write_at(self._table_file, row(checksum, now), _HEADER.size + ROW * block)

    def write_rows(self, pages: Iterable[tuple[int, bytes]]) -> None:
        with self._in_use.reading():
            for at, data in pages:
                _write_at(self._table_file, data, _HEADER.size + at)

    def punch(self, blocks: Sequence[int]) -> None:
        """Give the room of blocks back, whose rows were cleared. `blocks` ascend."""
        with self._in_use.reading():
            for run in neighbours(blocks):
                _punch(self._data, run.start * BLOCK, len(run) * BLOCK)

    def trim(self) -> None:
        """Give back the room of what is in the file and in no row: a crash came between the two."""
        here = {block for block, _ in present_rows(self.table.rows())}
        with self._in_use.reading():
            at, end = 0, os.fstat(self._data).st_size
            while at < end:
                try:
                    at = os.lseek(self._data, at, os.SEEK_DATA)
                except OSError as error:
                    if error.errno == errno.ENXIO:  # only a hole is left
                        return
                    raise
                stop = os.lseek(self._data, at, os.SEEK_HOLE)
                self.punch([block for block in range(at // BLOCK, -(-stop // BLOCK)) if block not in here])
                at = stop

    @property
    def usage(self) -> int:
        """Bytes on disk."""
        with self._in_use.reading():
            return os.fstat(self._data).st_blocks * 512

    def opened_elsewhere(self) -> bool:
        """Tells whether anybody else has the data file open, a mount or a loop device for one.

        A write lease is refused by the kernel as long as there are other openings. Where there are no leases (some
        network file systems) that is unknown, and the answer is no.
        """
        with self._in_use.reading():
            try:
                # A process that opens the file just now waits for us; by default its signal would end the process.
                fcntl.fcntl(self._data, _F_SETSIG, signal.SIGURG)
                fcntl.fcntl(self._data, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except OSError as error:
                return error.errno in (errno.EAGAIN, errno.EBUSY)
            fcntl.fcntl(self._data, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            return False

    # -- completeness --------------------------------------------------------------------------------------------

    def sync(self) -> Stamp:
        """Put the data on disk; what the file was then."""
        with self._in_use.reading():
            os.fsync(self._data)
            return _stamp(self._data)

    def mark(self, stamp: Stamp) -> bool:
        """Say that the device is complete, for good; False when the data changed since `stamp`."""
        with self._in_use.reading():
            os.fsync(self._table_file)
            if _stamp(self._data) != stamp:
                return False
            passing = self._mark_path.with_suffix(".passing")
            descriptor = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _write_at(descriptor, mark_of(self.name, stamp), 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            passing.rename(self._mark_path)
            self._sync_folder()
            return True

    def unmark(self) -> None:
        """Take that back, for good. Set `marked` to False first."""
        try:
            self._mark_path.unlink()
        except FileNotFoundError:
            return
        self._sync_folder()

    def _is_marked(self) -> bool:
        try:
            mark = self._mark_path.read_bytes()
        except FileNotFoundError:
            return False
        if mark == mark_of(self.name, _stamp(self._data)):
            return True
        self.unmark()
        return False

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """After the last read under way. A second call does nothing."""
        self.closed = True
        self._in_use.close()

    def remove(self) -> None:
        """Close it and remove its files."""
        self.close()
        self._mark_path.unlink(missing_ok=True)
        self._table_path.unlink(missing_ok=True)
        gone = self.path.with_suffix(".gone")
        self.path.rename(gone)
        gone.unlink()

    def _release(self) -> None:
        os.close(self._table_file)
        os.close(self._data)

    def _load(self, digest: bytes) -> bytearray:
        """The rows of the table file; none where it is new, of another version, or not what it must be."""
        header = _HEADER.pack(_MAGIC, _VERSION, self.blocks, digest)
        size = _HEADER.size + ROW * self.blocks
        if os.fstat(self._table_file).st_size == size and os.pread(self._table_file, _HEADER.size, 0) == header:
            rows = bytearray(os.pread(self._table_file, size - _HEADER.size, _HEADER.size))
            if len(rows) == size - _HEADER.size:
                return rows
        os.ftruncate(self._table_file, 0)
        _write_at(self._table_file, header, 0)
        os.ftruncate(self._table_file, size)
        return bytearray(size - _HEADER.size)

    def _sync_folder(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def mark_of(name: str, stamp: Stamp) -> bytes:
    """The document that says that the device with this block index is complete in a data file that was so then."""
    return _MARK.pack(_MARK_MAGIC, _VERSION, 0, bytes.fromhex(name), *stamp)


def _stamp(descriptor: int) -> Stamp:
    status = os.fstat(descriptor)
    return status.st_ino, status.st_size, status.st_ctime_ns


def _write_at(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, at)
        view, at = view[count:], at + count


def neighbours(blocks: Sequence[int]) -> Iterator[range]:
    """`blocks`, which ascend, as ranges."""
    first = 0
    for position in range(1, len(blocks) + 1):
        if position == len(blocks) or blocks[position] != blocks[position - 1] + 1:
            yield range(blocks[first], blocks[position - 1] + 1)
            first = position


def _punch(descriptor: int, offset: int, length: int) -> None:
    if _libc.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, offset, length):
        number = ctypes.get_errno()
        if number != errno.EOPNOTSUPP:  # then the room comes back when the whole file goes
            raise OSError(number, os.strerror(number))
