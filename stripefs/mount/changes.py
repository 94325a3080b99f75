"""The kernel's requests that change something, handed to a tree that can be written; reading is as in `operations`.

The kernel keeps nothing that may change any moment: no entry for a name that is not there, and whatever the tree says
of files that are being written is believed for no time at all. Handles that write are for direct I/O unless a program
may want to map the file, so that nothing of what is written stays in pages of a node that will not be looked up again.
"""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Callable, Iterator

import pyfuse3
from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    FUSEError,
    InodeT,
    ModeT,
    RequestContext,
    SetattrFields,
    XAttrNameT,
)

from stripefs.errors import Unsupported
from stripefs.mount.journal import Board
from stripefs.mount.operations import WRITING, TreeOperations, entry_of, handler
from stripefs.mount.served import ServedTree, ServedVersion, WritableServedTree

__all__ = ["WritingOperations", "operations_for"]

_ORDINARY = frozenset((errno.EEXIST, errno.ENOTEMPTY, errno.EBUSY, errno.EINVAL, errno.EXDEV))


def operations_for(tree: ServedTree, board: Board, on_init: Callable[[], None], *, writable: bool) -> TreeOperations:
    """What answers the kernel for `tree`; for all workers of a mount the same."""
    if writable and isinstance(tree, WritableServedTree):
        return WritingOperations(tree, board, on_init)
    return TreeOperations(tree, board, on_init)


class WritingOperations(TreeOperations):
    """Serves a tree that can be written."""

    ordinary = TreeOperations.ordinary | _ORDINARY

    def __init__(self, tree: WritableServedTree, board: Board, on_init: Callable[[], None]) -> None:
        super().__init__(tree, board, on_init)
        self._writable = tree

    # Names and attributes

    @handler
    async def lookup(self, parent_inode: InodeT, name: bytes, ctx: RequestContext) -> EntryAttributes:
        return entry_of(await self._tree.lookup(parent_inode, name))

    @handler
    async def access(self, inode: InodeT, mode: int, ctx: RequestContext) -> bool:
        return True  # permission bits are the kernel's part (default_permissions)

    @handler
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        return _seen(await self._writable.getattr(inode))

    @handler
    async def setattr(
        self, inode: InodeT, attr: EntryAttributes, fields: SetattrFields, fh: FileHandleT | None, ctx: RequestContext
    ) -> EntryAttributes:
        answer = await self._writable.setattr(
            inode,
            size=attr.st_size if fields.update_size else None,
            mode=stat.S_IMODE(attr.st_mode) if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
        )
        return _seen(answer)

    @handler
    async def mkdir(self, parent_inode: InodeT, name: FileNameT, mode: ModeT, ctx: RequestContext) -> EntryAttributes:
        return entry_of(await self._writable.mkdir(parent_inode, name, stat.S_IMODE(mode)))

    @handler
    async def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        await self._writable.rmdir(parent_inode, name)

    @handler
    async def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        await self._writable.unlink(parent_inode, name)

    @handler
    async def rename(
        self,
        parent_inode_old: InodeT,
        name_old: FileNameT,
        parent_inode_new: InodeT,
        name_new: FileNameT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> None:
        if flags & ~pyfuse3.RENAME_NOREPLACE:
            raise FUSEError(errno.EINVAL)  # no store can exchange two names, or leave a whiteout
        await self._writable.rename(
            parent_inode_old, name_old, parent_inode_new, name_new, replace=not flags & pyfuse3.RENAME_NOREPLACE
        )

    @handler
    async def symlink(self, *_args: object) -> EntryAttributes:
        raise FUSEError(errno.EPERM)  # what symlink(2), link(2) and mknod(2) say of a file system that has none

    @handler
    async def link(self, *_args: object) -> EntryAttributes:
        raise FUSEError(errno.EPERM)

    @handler
    async def mknod(self, *_args: object) -> EntryAttributes:
        raise FUSEError(errno.EPERM)

    # Files

    @handler
    async def create(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, flags: FlagT, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        handle, attributes, direct = await self._writable.create(parent_inode, name, stat.S_IMODE(mode), flags, ctx.pid)
        return FileInfo(fh=FileHandleT(handle), direct_io=direct), entry_of(attributes)

    @handler
    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        if flags & WRITING:
            handle, direct = await self._writable.open_writing(inode, flags, ctx.pid)
            return FileInfo(fh=FileHandleT(handle), direct_io=direct)
        handle, direct = await self._writable.open_reading(inode)
        return FileInfo(fh=FileHandleT(handle), keep_cache=not direct, direct_io=direct)

    @handler
    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        await self._writable.write(fh, off, buf)
        self._board.count(written_bytes=len(buf))
        return len(buf)

    @handler
    async def flush(self, fh: FileHandleT) -> None:
        await self._writable.flush(fh)

    @handler
    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        await self._writable.fsync(fh)

    @handler
    async def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        """Names are as durable as the store makes them when it answers."""

    # Extended attributes

    @handler
    async def setxattr(self, inode: InodeT, name: XAttrNameT, value: bytes, ctx: RequestContext) -> None:
        with _quietly():
            await self._writable.setxattr(inode, name, value)

    @handler
    async def removexattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> None:
        with _quietly():
            await self._writable.removexattr(inode, name)


def _seen(attributes: ServedVersion) -> EntryAttributes:
    """For answers that are about a node and do not name it, so that the number to be shown is free."""
    entry = entry_of(attributes)
    if attributes.inode:
        entry.st_ino = InodeT(attributes.inode)
    return entry


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Programs that copy files try to copy every attribute, and expect this answer: nothing to log."""
    try:
        yield
    except Unsupported as error:
        raise FUSEError(error.errno) from None
