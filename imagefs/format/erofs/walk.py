"""Everything in an image, without a kernel: what traces, plans and new devices are made from, and what is compared."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from imagefs.errors import FormatError
from imagefs.format.erofs.read import Image, Stat

__all__ = ["entries", "files"]


def entries(image: Image) -> Iterator[tuple[bytes, Stat]]:
    """Path without leading slash and inode of everything below the root.

    What is in a directory comes in byte order of the names, then what lies below it, directory by directory. A file of
    several names comes under each of them. Raises FormatError.
    """
    seen: set[int] = set()
    stack = [(b"", image.stat(image.root))]
    while stack:
        path, directory = stack.pop()
        if directory.number in seen:
            raise FormatError("a directory of the image has two names")
        seen.add(directory.number)
        below = []
        for entry in image.entries(directory):
            if entry.name in (b".", b".."):
                continue
            inside = path + b"/" + entry.name if path else entry.name
            inode = image.stat(entry.number)
            if stat.S_IFMT(inode.mode) != entry.kind:
                raise FormatError("the image says in two ways what a name stands for")
            if inode.is_directory:
                below.append((inside, inode))
            yield inside, inode
        stack += reversed(below)


def files(image: Image) -> Iterator[tuple[bytes, Stat]]:
    """The regular files among the `entries`, each once: one of several names comes under the first."""
    linked: set[int] = set()
    for path, inode in entries(image):
        if inode.is_file and inode.number not in linked:
            if inode.links > 1:
                linked.add(inode.number)
            yield path, inode
