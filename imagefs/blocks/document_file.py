"""A document of an image on local disk, read by ranges where it lies.

Documents are not mapped: a page of a mapped file that the disk cannot read, or that was cut off, ends the process with
SIGBUS, and each of its successors. Here it is an error of the call that wanted it.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from imagefs.errors import DocumentUnreadable

__all__ = ["DocumentFile"]


class DocumentFile:
    """The bytes of the file at `path`, which stays open as long as this is referred to. Raises OSError."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, descriptor)
        self._descriptor = descriptor
        self._path = path
        self._size = os.fstat(descriptor).st_size

    def __len__(self) -> int:
        """What it had when it was opened."""
        return self._size

    def __getitem__(self, where: slice) -> bytes:
        """As of bytes. Raises DocumentUnreadable."""
        begin, end, _ = where.indices(self._size)
        return self.read(begin, max(0, end - begin))

    def read(self, at: int, length: int) -> bytes:
        """All of these bytes. Raises DocumentUnreadable, also where the file has become shorter."""
        parts: list[bytes] = []
        while length:
            try:
                data = os.pread(self._descriptor, length, at)
            except OSError as error:
                raise DocumentUnreadable(f"{self._path} cannot be read: {error.strerror}") from error
            if not data:
                raise DocumentUnreadable(f"{self._path} has been cut short")
            parts.append(data)
            at, length = at + len(data), length - len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)
