"""Content of regular files before it is in blocks: a local directory as the source of an image, and the layout.

The layout of the cold device is decided from names and sizes alone, so that it is the same on every build. A file of
64 KiB or more begins a block (128 KiB) of its own. Smaller files of one directory share blocks, each on a multiple of
4 KiB, and none crosses into a second block. A file whose name says so (one in eight, by a hash) begins a new block:
behind it everything lies as before when a file in front of it came, went or grew, so all later blocks are those of the
last build. The padding that this takes is address space; it is zeros, which compress to nothing.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from imagefs.errors import BuildError, FormatError
from imagefs.format import erofs, index
from imagefs.format.inodes import COLD, HOLE, Inode, address, shown, walk

__all__ = ["UNIT", "Content", "FileContent", "Segment", "data_ranges", "lay_out", "read_exactly", "scan"]

UNIT = 64 << 10
"""Bytes of the grid by which runs of data in a file have places: chunks of older builds, so that blocks stay equal."""

_PER_BLOCK = index.BLOCK // erofs.BLOCK
_PER_CHUNK = erofs.CHUNK // erofs.BLOCK
_CUT = 8
_MOST = 16 << 40


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


@dataclass(frozen=True, slots=True)
class Segment:
    """`length` bytes of a file from `offset` lie at byte `at` of the device."""

    content: Content
    offset: int
    length: int
    at: int


def lay_out(root: Inode, contents: Mapping[Inode, Content]) -> list[Segment]:
    """Give every file of `contents` its chunks; what lies where, ascending.

    Files with `data` have no place in a device. Raises FormatError past 16 TiB.
    """
    segments: list[Segment] = []
    cursor = 0  # in blocks of 4 KiB
    for first, name, inode in _files(root, contents):
        content = contents[inode]
        if inode.size > _MOST:
            raise FormatError(f"{shown(name)}: a file of {inode.size} bytes, of which an image can address 16 TiB")
        blocks = -(-inode.size // erofs.BLOCK)
        large = inode.size >= UNIT
        left = -cursor % _PER_BLOCK
        if first or large or blocks > left or zlib.crc32(name) % _CUT == 0:
            cursor += left
        if large:
            cursor = _place_large(inode, content, cursor, segments)
        else:
            segments.append(Segment(content, 0, inode.size, cursor * erofs.BLOCK))
            inode.chunks = [address(COLD, cursor + at) for at in range(0, blocks, _PER_CHUNK)]
            cursor += blocks
    return segments


def _files(root: Inode, contents: Mapping[Inode, Content]) -> Iterator[tuple[bool, bytes, Inode]]:
    """Every file that needs a place: whether it is the first of its directory, its name, and the file."""
    done: set[Inode] = set()
    for _, directory in walk(root, directories=True):
        first = True
        for name, inode in sorted((directory.children or {}).items(), key=lambda entry: entry[0]):
            if inode in contents and inode.data is None and inode not in done:
                done.add(inode)
                yield first, name, inode
                first = False


def _place_large(inode: Inode, content: Content, cursor: int, segments: list[Segment]) -> int:
    """Place the runs of units that hold data, each from a block of its own on; where the device ends now."""
    chunks = [HOLE] * -(-inode.size // erofs.CHUNK)
    for first, end in _runs(content):
        begin, stop = first * UNIT, min(end * UNIT, inode.size)
        segments.append(Segment(content, begin, stop - begin, cursor * erofs.BLOCK))
        for offset in range(begin, stop, erofs.CHUNK):
            chunks[offset // erofs.CHUNK] = address(COLD, cursor + (offset - begin) // erofs.BLOCK)
        cursor += -(-(stop - begin) // erofs.BLOCK)
        cursor += -cursor % _PER_BLOCK
    inode.chunks = chunks
    return cursor


def _runs(content: Content) -> Iterator[tuple[int, int]]:
    """First unit and end of each run of units with data in them; holes of less than two blocks do not count."""
    slack = 2 * index.BLOCK // UNIT
    current: tuple[int, int] | None = None
    for offset, length in content.ranges():
        first, end = offset // UNIT, -(-(offset + length) // UNIT)
        if current is not None and first - current[1] < slack:
            current = current[0], max(end, current[1])
            continue
        if current is not None:
            yield current
        current = first, end
    if current is not None:
        yield current
