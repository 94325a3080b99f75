"""Every file of an image once, without a kernel: what traces, plans and new devices are made from."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from imagefs.errors import FormatError
from imagefs.format.erofs.read import Image, Stat

__all__ = ["files"]


def files(image: Image) -> Iterator[tuple[bytes, Stat]]:
    """Path without leading slash and inode of every regular file.

    The files of a directory come in byte order of their names, then those below it, directory by directory. A file of
    several names comes under the first. Raises FormatError.
    """
    directories: set[int] = set()
    linked: set[int] = set()
    stack = [(b"", image.root)]
    while stack:
        path, number = stack.pop()
        if number in directories:
            raise FormatError("a directory of the image has two names")
        directories.add(number)
        below = []
        directory = image.stat(number)
        if not directory.is_directory:
            raise FormatError("the image calls a directory what is none")
        for entry in image.entries(directory):
            inside = path + b"/" + entry.name if path else entry.name
            if stat.S_ISDIR(entry.kind):
                if entry.name not in (b".", b".."):
                    below.append((inside, entry.number))
            elif stat.S_ISREG(entry.kind) and entry.number not in linked:
                inode = image.stat(entry.number)
                if not inode.is_file:
                    raise FormatError("the image calls a file what is none")
                if inode.links > 1:
                    linked.add(entry.number)
                yield inside, inode
        stack += reversed(below)
