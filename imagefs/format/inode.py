"""The tree of an image in memory, between the sources it is merged from and the formats it is written in."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from imagefs.errors import FormatError

__all__ = ["HOLE", "Inode", "address", "printable", "shown", "walk"]

HOLE = 0xFFFF_FFFF
"""The address of a chunk that holds nothing but zeros and is stored nowhere."""

_MAX_BLOCK = HOLE - 1


def address(device: int, block: int) -> int:
    """The address of a chunk: `block` (4 KiB each) of the device with this number, the first being 1.

    Raises FormatError past 16 TiB, which is as far as 32 bits of block number go.
    """
    if not 0 <= block <= _MAX_BLOCK:
        raise FormatError(f"block {block} of device {device} is past the 16 TiB that an image can address")
    return device << 32 | block


@dataclass(slots=True, eq=False)
class Inode:
    """One inode. A hardlink is the same object under several names.

    `mode` holds type and permission bits; `mtime` seconds since 1970, also negative, and `mtime_ns` the rest; `size`
    bytes of a regular file, `rdev` major and minor of a device node. `data` is the target of a symbolic link, or the
    content of a file that is kept beside its inode; `chunks` the addresses of the chunks of any other.
    """

    mode: int
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    mtime_ns: int = 0
    size: int = 0
    rdev: tuple[int, int] = (0, 0)
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    children: dict[bytes, Inode] | None = None
    data: bytes | None = None
    chunks: Sequence[int] = ()

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)


def walk(root: Inode, *, directories: bool = False) -> Iterator[tuple[bytes, Inode]]:
    """Every name once, as a path without leading slash, a directory before what is in it, names in byte order.

    With `directories` only those.
    """
    stack: list[tuple[bytes, bytes, Inode]] = [(b"", b"", root)]
    while stack:
        above, name, inode = stack.pop()
        path = above + name
        yield path, inode
        if inode.children:
            above = path + b"/" if path else b""  # one for all that is below: whole paths take too much memory
            below = sorted(inode.children.items(), key=lambda entry: entry[0], reverse=True)
            stack += [(above, name, child) for name, child in below if child.is_directory or not directories]


def shown(name: bytes) -> str:
    """A name or path as part of a line for people, whatever bytes it has; no more than a line holds."""
    return printable(name[:500].decode("utf-8", "backslashreplace"))


def printable(text: str) -> str:
    """A text that somebody else wrote, as part of a line for people: no terminal obeys it, and any can show it."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
