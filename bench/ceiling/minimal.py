"""A minimal file system: `python -m bench.ceiling.minimal SIZE FOLDER` mounts one that does nothing but answer.

It shows one file, `file`, of SIZE bytes, which are answered from one buffer, and takes what is written to any other
name and forgets it. This is the least that pyfuse3 costs: no store, no planner, no state.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import stat
from functools import partial

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileHandleT, FileInfo, FUSEError, InodeT

__all__ = ["main"]

_FILE, _WRITTEN = InodeT(2), InodeT(3)
_BUFFER = 1 << 20
_CACHED = 60.0  # seconds for which the kernel may keep names and attributes


class _Minimal(pyfuse3.Operations):
    supports_dot_lookup = False

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._buffer = os.urandom(_BUFFER)
        self._written = 0

    def _entry(self, inode: InodeT) -> EntryAttributes:
        entry = EntryAttributes()
        folder = inode == pyfuse3.ROOT_INODE
        entry.st_ino, entry.st_nlink = inode, 1
        entry.st_mode = pyfuse3.ModeT(stat.S_IFDIR | 0o755 if folder else stat.S_IFREG | 0o644)
        entry.st_size = {_FILE: self._size, _WRITTEN: self._written}.get(inode, 0)
        entry.entry_timeout = entry.attr_timeout = _CACHED if inode != _WRITTEN else 0.0
        return entry

    async def lookup(self, parent_inode: InodeT, name: bytes, ctx: pyfuse3.RequestContext) -> EntryAttributes:
        if name != b"file":
            raise FUSEError(errno.ENOENT)
        return self._entry(_FILE)

    async def getattr(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> EntryAttributes:
        return self._entry(inode)

    async def open(self, inode: InodeT, flags: int, ctx: pyfuse3.RequestContext) -> FileInfo:
        return FileInfo(fh=FileHandleT(inode))

    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        size = max(0, min(size, self._size - off, _BUFFER))
        return self._buffer if size == _BUFFER else self._buffer[:size]

    async def create(
        self, parent_inode: InodeT, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        self._written = 0
        return FileInfo(fh=FileHandleT(_WRITTEN), direct_io=True), self._entry(_WRITTEN)

    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        self._written = max(self._written, off + len(buf))
        return len(buf)

    async def unlink(self, parent_inode: InodeT, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        self._written = 0

    async def opendir(self, inode: InodeT, ctx: pyfuse3.RequestContext) -> FileHandleT:
        return FileHandleT(inode)

    async def readdir(self, fh: FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        if start_id == 0:
            pyfuse3.readdir_reply(token, b"file", self._entry(_FILE), 1)


def main(arguments: list[str] | None = None) -> None:
    """Serve until the file system is unmounted."""
    parser = argparse.ArgumentParser(prog="bench.ceiling.minimal")
    parser.add_argument("size", type=int)
    parser.add_argument("folder")
    given = parser.parse_args(arguments)
    pyfuse3.init(_Minimal(given.size), given.folder, {*pyfuse3.default_options, "fsname=minimal"})
    signal.signal(signal.SIGTERM, lambda *_: pyfuse3.terminate())
    try:
        trio.run(partial(pyfuse3.main))
    finally:
        pyfuse3.close()


if __name__ == "__main__":
    main()
