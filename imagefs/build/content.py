"""Content of regular files before it is in blocks, and the tree of a local directory as the source of an image."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from imagefs.errors import BuildError
from imagefs.format.inodes import Inode, shown

__all__ = ["Content", "FileContent", "data_ranges", "read_exactly", "scan"]


class Content(Protocol):
    """The bytes of one regular file."""

    @property
    def size(self) -> int:
        """Its length, holes among it."""

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Offset and length of everything that may be other than zero, ascending and apart from one another."""

    def open(self) -> BinaryIO:
        """The file from its start, seekable. Holes read as zeros."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file of a local directory."""

    path: bytes
    size: int

    def __str__(self) -> str:
        return shown(self.path)

    def ranges(self) -> Iterator[tuple[int, int]]:
        with open(self.path, "rb") as file:
            yield from data_ranges(file.fileno(), self.size)

    def open(self) -> BinaryIO:
        return open(self.path, "rb")


def read_exactly(file: BinaryIO, length: int, content: Content) -> bytes:
    """The next `length` bytes. Raises BuildError where there are fewer."""
    data = file.read(length)
    if len(data) != length:
        raise BuildError(f"{content} became shorter while it was read")
    return data


def data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of a file that the file system has stored, by SEEK_DATA and SEEK_HOLE."""
    position = 0
    while position < size:
        try:
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole from here on
            return
        position = min(size, os.lseek(descriptor, begin, os.SEEK_HOLE))
        yield begin, position - begin


def scan(path: str) -> tuple[Inode, dict[Inode, Content]]:
    """The tree below `path`, what is mounted in it left out, and what its files hold.

    Raises BuildError for what cannot be read.
    """
    try:
        top = os.stat(path)
        if not stat.S_ISDIR(top.st_mode):
            raise BuildError(f"{path} is not a directory")
        return _Scan(top.st_dev).run(os.fsencode(os.path.realpath(path)), top)
    except OSError as error:
        raise BuildError(f"{os.fsdecode(error.filename or path)} cannot be read: {error.strerror}") from error


class _Scan:
    def __init__(self, device: int) -> None:
        self._device = device
        self._contents: dict[Inode, Content] = {}
        self._linked: dict[tuple[int, int], Inode] = {}  # by device and inode number, those of more than one name

    def run(self, path: bytes, top: os.stat_result) -> tuple[Inode, dict[Inode, Content]]:
        root = self._inode(path, top)
        stack = [(path, root)]
        while stack:
            folder, directory = stack.pop()
            children = directory.children = {}
            with os.scandir(folder) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    child = self._linked.get((found.st_dev, found.st_ino)) or self._inode(entry.path, found)
                    children[entry.name] = child
                    if child.is_directory and child.children is None:
                        child.children = {}
                        if found.st_dev == self._device:
                            stack.append((entry.path, child))
        return root, self._contents

    def _inode(self, path: bytes, found: os.stat_result) -> Inode:
        inode = Inode(
            mode=found.st_mode,
            uid=found.st_uid,
            gid=found.st_gid,
            mtime=found.st_mtime_ns // 10**9,
            mtime_ns=found.st_mtime_ns % 10**9,
            rdev=(os.major(found.st_rdev), os.minor(found.st_rdev)),
            xattrs=tuple(
                sorted(
                    (os.fsencode(name), os.getxattr(path, name, follow_symlinks=False))
                    for name in os.listxattr(path, follow_symlinks=False)
                )
            ),
        )
        if inode.is_directory:
            return inode
        if stat.S_ISLNK(found.st_mode):
            inode.data = os.readlink(path)
        elif inode.is_file:
            inode.size = found.st_size
            self._contents[inode] = FileContent(path, found.st_size)
        if found.st_nlink > 1:
            self._linked[found.st_dev, found.st_ino] = inode
        return inode
