"""The tree of an image on the host, looked at as its own programs will: links in it never lead out of it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import posixpath
import stat
import struct
from collections.abc import Iterator
from types import TracebackType

from imagefs.run.spec import Kind

__all__ = ["RootTree"]

_OPENAT2 = 437
_IN_ROOT, _NO_MAGICLINKS = 0x10, 0x02
"""RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS of include/uapi/linux/openat2.h, since Linux 5.6."""

_LINKS = 40
"""As many as the kernel follows."""

_LARGEST_FILE = 16 << 20
"""Of passwd and group; nothing else is read."""

_libc = ctypes.CDLL(None, use_errno=True)


class RootTree:
    """The tree mounted at `root`; a `spec.Tree`. Raises OSError where the file system does."""

    def __init__(self, root: str) -> None:
        self._root = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._path = os.readlink(f"/proc/self/fd/{self._root}")

    def __enter__(self) -> RootTree:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._root)

    def kind(self, path: str) -> Kind | None:
        descriptor = self._open(path)
        if descriptor is None:
            return None
        try:
            mode = os.fstat(descriptor).st_mode
        finally:
            os.close(descriptor)
        return "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"

    def read(self, path: str) -> bytes:
        descriptor = self._open(path)
        if descriptor is None:
            return b""
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return b""  # opening a device or a pipe may do something
            with open(f"/proc/self/fd/{descriptor}", "rb") as file:
                return file.read(_LARGEST_FILE)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def directory(self, path: str) -> Iterator[str | None]:
        """A path of this process for the directory there, inside the block; None where there is nothing."""
        descriptor = self._open(path)
        try:
            yield None if descriptor is None else f"/proc/self/fd/{descriptor}"
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def real(self, path: str) -> str:
        there, rest = posixpath.normpath(path), ""
        links = 0
        while (descriptor := self._open(there)) is None:
            if links < _LINKS and (target := self._link(there)):
                links += 1
                there = posixpath.normpath(posixpath.join(self.real(posixpath.dirname(there)), target))
                continue
            there, name = posixpath.split(there)
            rest = posixpath.join(name, rest)
        try:
            found = os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(self._path)
        finally:
            os.close(descriptor)
        return posixpath.join(found or "/", rest).rstrip("/") or "/"

    def _link(self, path: str) -> str:
        """Where a link leads; "" for what is none."""
        descriptor = self._open(path, os.O_NOFOLLOW)
        if descriptor is None:
            return ""
        try:
            if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
                return ""
            return os.readlink("", dir_fd=descriptor)
        finally:
            os.close(descriptor)

    def _open(self, path: str, flags: int = 0) -> int | None:
        how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC | flags, 0, _IN_ROOT | _NO_MAGICLINKS)
        while (result := int(_libc.syscall(_OPENAT2, self._root, os.fsencode(path), how, len(how)))) < 0:
            number = ctypes.get_errno()
            if number in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
                return None
            if number not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: something was mounted or renamed meanwhile
                raise OSError(number, os.strerror(number), path)
        return result
