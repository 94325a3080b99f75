"""Reads of local files by ranges: the documents of an image, and its devices, of the daemon's mount or complete ones.

Documents are not mapped: a page of a mapped file that the disk cannot read, or that was cut off, ends the process with
SIGBUS, and each of its successors. Here it is an error of the call that wanted it.

A daemon that ends takes its mount along, and open files with it; the next one serves the same paths. So a read of a
device that finds its file gone opens the path anew and tries again, until `io_timeout` has passed. An answer of the
daemon's own (EIO, once it has tried for as long) is final.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from imagefs.errors import DocumentUnreadable
from stripefs.errors import ServiceDown, StoreError
from stripefs.executor import Executor

__all__ = ["DocumentFile", "FileDevices"]


class DocumentFile:
    """The bytes of the file at `path`, which stays open as long as this is referred to. Raises OSError."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, descriptor)
        self._descriptor = descriptor
        self._path = path
        self._size = os.fstat(descriptor).st_size

    def __len__(self) -> int:
        """The bytes that it had when it was opened."""
        return self._size

    def __getitem__(self, where: slice) -> bytes:
        """As of bytes. Raises DocumentUnreadable."""
        begin, end, _ = where.indices(self._size)
        return self.read(begin, max(0, end - begin))

    def read(self, at: int, length: int) -> bytes:
        """All of these bytes. Raises DocumentUnreadable, also where the file has become shorter."""
        try:
            data = _read(self._descriptor, length, at)
        except OSError as error:
            raise DocumentUnreadable(f"{self._path} cannot be read: {error.strerror}") from error
        if len(data) < length:
            raise DocumentUnreadable(f"{self._path} has been cut short")
        return data


_GONE = frozenset((errno.ENOTCONN, errno.ECONNABORTED, errno.ESTALE, errno.ENOENT, errno.ENODEV))
"""Errors of a file or path whose daemon ended, is starting, or does not serve it yet."""


class FileDevices:
    """The files at `paths`, the first of which is device 1. They are opened when they are first read.

    `io_timeout` in seconds. All methods but the reads themselves run on trio's thread.
    """

    def __init__(self, paths: Sequence[str], io_timeout: float) -> None:
        self._paths = list(paths)
        self._calls = Executor(io_timeout)
        self._lock = threading.Lock()
        self._files: dict[int, _File] = {}
        self._reopened = 0

    async def read(self, device: int, offset: int, length: int) -> bytes:
        """Exactly these bytes. Raises StoreError, its subclass ServiceDown when there was no daemon for too long."""
        return await self._calls.call(
            f"reading device {device} at {offset}", self._read_blocking, device, offset, length
        )

    def snapshot(self) -> dict[str, int]:
        """Figures for `status`."""
        return {
            "reads_under_way": self._calls.busy,
            "read_retries": self._calls.retries,
            "devices_reopened": self._reopened,
        }

    def close(self) -> None:
        """Close each file, now or when the last read of it has ended."""
        with self._lock:
            files = list(self._files.values())
            self._files.clear()
            for file in files:
                file.dropped = True
            unused = [file for file in files if not file.users]
        for file in unused:
            os.close(file.descriptor)

    def _read_blocking(self, device: int, offset: int, length: int) -> bytes:
        path = self._paths[device - 1]
        try:
            file = self._hold(device, path)
            try:
                data = _read(file.descriptor, length, offset)
            except OSError as error:
                if error.errno in _GONE:
                    self._drop(device, file)
                raise
            finally:
                self._release(file)
            if len(data) == length:
                return data
            raise StoreError(
                f"device {path} ends at {offset + len(data)}, before {offset + length}",
                hint="it is not the device of this image, or was cut short",
            )
        except OSError as error:
            if error.errno in _GONE:
                raise ServiceDown(
                    f"device {path} is not served: {error.strerror}", hint="imagefs status says whether the daemon runs"
                ) from error
            hint = "the daemon's log says why" if error.errno == errno.EIO else ""
            raise StoreError(
                f"device {path}: {length} bytes at {offset} cannot be read: {error.strerror}", hint=hint
            ) from error

    def _hold(self, device: int, path: str) -> _File:
        """The open file of a device, with one more user. Raises OSError."""
        with self._lock:
            file = self._files.get(device)
            if file is not None:
                file.users += 1
                return file
        opened = _File(os.open(path, os.O_RDONLY | os.O_CLOEXEC))  # may wait for the daemon
        with self._lock:
            file = self._files.setdefault(device, opened)
            file.users += 1
        if file is not opened:
            os.close(opened.descriptor)
        return file

    def _release(self, file: _File) -> None:
        with self._lock:
            file.users -= 1
            last = file.dropped and not file.users
        if last:
            os.close(file.descriptor)

    def _drop(self, device: int, file: _File) -> None:
        """Have the next read open the path anew."""
        with self._lock:
            if self._files.get(device) is file:
                del self._files[device]
                file.dropped = True
                self._reopened += 1


@dataclass(slots=True, eq=False)
class _File:
    """A descriptor that many threads read from; who is the last to let go of a dropped one closes it."""

    descriptor: int
    users: int = 0
    dropped: bool = False


def _read(descriptor: int, length: int, offset: int) -> bytes:
    """All of these bytes, fewer where the file ends before. Raises OSError."""
    data = os.pread(descriptor, length, offset)
    while len(data) < length:  # a signal may cut a long read short, and so may an error that the next call tells
        more = os.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data
