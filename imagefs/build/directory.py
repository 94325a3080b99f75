"""A local directory as the source of an image."""

from __future__ import annotations

import os
import stat

from imagefs.build.content import Content, FileContent
from imagefs.errors import BuildError
from imagefs.format.inode import Inode

__all__ = ["scan"]


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
