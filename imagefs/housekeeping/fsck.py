"""Checks a metadata image as fsck would: every name, inode, attribute and chunk, and how they agree."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from imagefs.errors import FormatError
from imagefs.format.documents import DeviceEntry
from imagefs.format.erofs import BLOCK, ErofsImage
from imagefs.format.erofs.read import DirectoryEntry, Stat
from imagefs.format.inodes import HOLE
from stripefs.units import shown

__all__ = ["check_tree"]


def check_tree(data: bytes, devices: Sequence[DeviceEntry]) -> Iterator[str]:
    """One line for each thing that is wrong. `devices` are those of the manifest."""
    try:
        image = ErofsImage(data)
    except FormatError as error:
        yield error.message
        return
    said = [(device.tag.encode(), device.size // BLOCK) for device in devices]
    if [(device.tag, device.blocks) for device in image.devices] != said:
        yield "its devices are not those of the manifest"
    yield from _Check(image).run()


class _Check:
    def __init__(self, image: ErofsImage) -> None:
        self._image = image
        self._names: Counter[int] = Counter()  # names of each inode that is no directory
        self._links: dict[int, int] = {}  # and how many it says that it has
        self._directories: set[int] = set()

    def run(self) -> Iterator[str]:
        root = self._image.root
        self._directories.add(root)
        stack = [(b"", root, root)]
        while stack:
            path, number, parent = stack.pop()
            try:
                directory = self._image.stat(number)
                if not directory.is_directory:
                    raise FormatError("is no directory")
                self._image.xattrs(directory)
                listed = list(self._image.entries(directory))
            except FormatError as error:
                yield f"{_shown(path)}: {error.message}"
                continue
            yield from self._directory(path, directory, parent, listed)
            for entry in listed:
                if entry.name in (b".", b".."):
                    continue
                name = path + b"/" + entry.name if path else entry.name
                if not stat.S_ISDIR(entry.kind):
                    yield from self._file(name, entry)
                elif entry.number in self._directories:
                    yield f"{_shown(name)}: a directory of two names"
                else:
                    self._directories.add(entry.number)
                    stack.append((name, entry.number, number))
        for number, names in self._names.items():
            if number in self._links and self._links[number] != names:
                yield f"inode {number} says {self._links[number]} names and has {names}"

    def _directory(self, path: bytes, directory: Stat, parent: int, listed: list[DirectoryEntry]) -> Iterator[str]:
        own = {entry.name: entry.number for entry in listed if entry.name in (b".", b"..")}
        if own != {b".": directory.number, b"..": parent}:
            yield f"{_shown(path)}: its . and .. lead elsewhere"
        names = [entry.name for entry in listed]
        if any(one >= next_one for one, next_one in pairwise(names)):
            yield f"{_shown(path)}: its names are out of order"
        if any(b"/" in name or b"\0" in name for name in names):
            yield f"{_shown(path)}: has a name that no file can have"
        below = sum(stat.S_ISDIR(entry.kind) for entry in listed)
        if directory.links != below:
            yield f"{_shown(path)}: says {directory.links} links and has {below}"

    def _file(self, path: bytes, entry: DirectoryEntry) -> Iterator[str]:
        self._names[entry.number] += 1
        if self._names[entry.number] > 1:
            return
        try:
            inode = self._image.stat(entry.number)
            self._links[entry.number] = inode.links
            if stat.S_IFMT(inode.mode) != entry.kind:
                raise FormatError("is of another type than its directory says")
            self._image.xattrs(inode)
            if inode.is_file or stat.S_ISLNK(inode.mode):
                self._content(inode)
        except FormatError as error:
            yield f"{_shown(path)}: {error.message}"

    def _content(self, inode: Stat) -> None:
        """Raises FormatError."""
        chunks = self._image.chunks(inode)
        if chunks is None:
            if len(self._image.content(inode)) != inode.size:
                raise FormatError("its content is not as long as it says")
            return
        size, addresses = chunks
        left = inode.size
        for at in addresses:
            length = min(size, left)
            left -= length
            if at == HOLE:
                continue
            device, block = at >> 32, at & 0xFFFF_FFFF
            if not 1 <= device <= len(self._image.devices):
                raise FormatError(f"lies in device {device}, which there is not")
            if block + -(-length // BLOCK) > self._image.devices[device - 1].blocks:
                raise FormatError("lies past the end of a device")


def _shown(path: bytes) -> str:
    return "/" + shown(path)
