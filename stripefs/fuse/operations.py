"""FUSE operations: the kernel's requests, handed to the tree. Only this module speaks pyfuse3's language.

Each handler translates and nothing more. Any error of a handler becomes an errno and, unless it is an ordinary
answer (no such file, no permission, replaced), one log line that says what to do: an error that escaped would end
pyfuse3's loop and with it the mount. Of equal failures of equal requests one in 5 s is logged, the others are counted.

Of a tree that can be written (`WritingOperations`) the kernel keeps nothing that may change any moment: no entry for a
name that is not there, and attributes of files that are being written expire at once.
Handles that write are for direct I/O unless a program may want to map the file, so that nothing of what is written
stays in pages of a node that will not be looked up again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import stat
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import pyfuse3
import trio
from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    FUSEError,
    InodeT,
    ModeT,
    ReaddirToken,
    RequestContext,
    SetattrFields,
    StatvfsData,
    XAttrNameT,
)

from stripefs.errors import NotFound, StripefsError, Unsupported
from stripefs.fuse.protocol import ServedAttributes, ServedTree, ServedVersion, WritableServedTree
from stripefs.fuse.state_memory import CounterPage

__all__ = ["WRITING", "TreeOperations", "WritingOperations", "entry_of", "handler", "operations_for"]

_log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")

_ORDINARY = frozenset(
    (
        *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ESTALE, errno.ENODATA, errno.EROFS, errno.ENOTDIR),
        *(errno.EISDIR, errno.ENAMETOOLONG),
    )
)

_REPEAT_AFTER = 5.0

_BLOCK = 4096
"""st_blksize and the unit of statfs. The kernel derives the inode's block bits from it, so it stays the page size."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND | os.O_CREAT


def handler(function: Callable[_P, Coroutine[Any, Any, _R]]) -> Callable[_P, Coroutine[Any, Any, _R]]:
    """The border at which every exception becomes an errno; counts what was answered and what failed."""

    @functools.wraps(function)
    async def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        self = cast(TreeOperations, args[0])
        try:
            answer = await function(*args, **kwargs)
        except FUSEError:
            self.count(0)  # an answer that the handler chose
            raise
        except StripefsError as error:
            self.count(error.errno)
            if error.logged or error.errno not in self.ordinary:
                self.report(function.__name__, error)
            raise FUSEError(error.errno) from None
        except (trio.Cancelled, GeneratorExit, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001  Rust panics are BaseExceptions; see the module's docstring
            self.count(errno.EIO)
            _log.exception("%s failed unexpectedly; please report this with the lines below", function.__name__)
            raise FUSEError(getattr(error, "errno", None) or errno.EIO) from None
        self.count(0)
        return answer

    return guarded


def change(function: Callable[_P, Coroutine[Any, Any, _R]]) -> Callable[_P, Coroutine[Any, Any, _R]]:
    """The handler of a request that changes something, and is counted until it is answered."""
    guarded = handler(function)

    @functools.wraps(function)
    async def counted(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        self = cast(TreeOperations, args[0])
        self.changes += 1
        try:
            return await guarded(*args, **kwargs)
        finally:
            self.changes -= 1

    return counted


class TreeOperations(pyfuse3.Operations):
    """Serves `tree`. `on_init` is called when the kernel's INIT arrives, before it is answered.

    changes: the requests under way that change something; what is written to files that are open does not count.
    defer_writers: files are opened for writing by the next worker, which the kernel sends what this one leaves.
    """

    supports_dot_lookup = False
    enable_writeback_cache = False

    ordinary = _ORDINARY
    """Error numbers that are answers like any other."""

    def __init__(self, tree: ServedTree, counters: CounterPage, on_init: Callable[[], None]) -> None:
        super().__init__()
        self.enable_acl = tree.posix_acl
        self._tree = tree
        self._counters = counters
        self._on_init = on_init
        self.changes = 0
        self.defer_writers = False
        self._reported: dict[tuple[str, type[StripefsError]], tuple[float, int]] = {}

    def init(self) -> None:
        self._on_init()

    def count(self, error: int) -> None:
        self._counters.count(answered=1, failed=1 if error and error not in self.ordinary else 0)

    def report(self, request: str, error: StripefsError) -> None:
        """Log a failed request, once in a while if such failures repeat."""
        key = (request, type(error))
        now = trio.current_time()
        since, silent = self._reported.get(key, (-_REPEAT_AFTER, 0))
        if now - since < _REPEAT_AFTER:
            self._reported[key] = (since, silent + 1)
            return
        self._reported[key] = (now, 0)
        _log.warning("%s: %s%s", request, error, f" (and {silent} like it before)" if silent else "")

    # Names and attributes

    @handler
    async def lookup(self, parent_inode: InodeT, name: bytes, ctx: RequestContext) -> EntryAttributes:
        try:
            return entry_of(await self._tree.lookup(parent_inode, name))
        except NotFound:
            # Number 0 lets the kernel remember that there is nothing, for as long as it caches names that are there.
            absent = EntryAttributes()
            absent.st_ino = InodeT(0)
            absent.entry_timeout = self._tree.attr_timeout
            return absent

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        with contextlib.suppress(FUSEError):  # it has no reply that could carry an error
            await self._forget(inode_list)

    @handler
    async def _forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        self._tree.forget(inode_list)

    @handler
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        return entry_of(await self._tree.getattr(inode))

    @handler
    async def readlink(self, inode: InodeT, ctx: RequestContext) -> bytes:
        return await self._tree.readlink(inode)

    @handler
    async def access(self, inode: InodeT, mode: int, ctx: RequestContext) -> bool:
        return not mode & os.W_OK  # permission bits are the kernel's part (default_permissions)

    # Files

    @handler
    async def open(self, inode: InodeT, flags: int, ctx: RequestContext) -> FileInfo:
        if flags & WRITING:
            raise FUSEError(errno.EROFS)
        # A node is one version, so what the kernel cached of it stays true.
        return FileInfo(fh=FileHandleT(await self._tree.open(inode)), keep_cache=True)

    @handler
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        data = await self._tree.read(fh, off, size)
        self._counters.count(read_bytes=len(data))
        return cast(bytes, data)  # pyfuse3 takes any contiguous buffer

    @handler
    async def release(self, fh: FileHandleT) -> None:
        await self._tree.release(fh)

    # Directories

    @handler
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        return FileHandleT(await self._tree.opendir(inode))

    @handler
    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        def show(name: bytes, attributes: ServedAttributes, cookie: int) -> bool:
            return pyfuse3.readdir_reply(token, name, entry_of(attributes), cookie)

        await self._tree.readdir(fh, start_id, show)

    @handler
    async def releasedir(self, fh: FileHandleT) -> None:
        await self._tree.releasedir(fh)

    # The rest

    @handler
    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        space = await self._tree.statfs()
        answer = StatvfsData()
        answer.f_bsize = answer.f_frsize = _BLOCK
        answer.f_blocks = space.capacity // _BLOCK
        answer.f_bfree = answer.f_bavail = space.free // _BLOCK
        answer.f_files = space.files
        answer.f_namemax = 255
        return answer

    @handler
    async def getxattr(self, inode: InodeT, name: bytes, ctx: RequestContext) -> bytes:
        if not name.startswith(self._tree.xattr_prefix):
            raise FUSEError(errno.EOPNOTSUPP)
        value = await self._tree.getxattr(inode, name)
        if value is None:
            raise FUSEError(pyfuse3.ENOATTR)
        return value

    @handler
    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[bytes]:
        names = await self._tree.listxattr(inode)
        if names is None:
            raise FUSEError(errno.ENOSYS)
        # Only root may read trusted attributes, and the kernel leaves it to the file system not to name them.
        return names if ctx.uid == 0 else [name for name in names if not name.startswith(b"trusted.")]


async def _read_only(*_args: Any) -> Any:
    raise FUSEError(errno.EROFS)


for _name in (
    *("setattr", "mknod", "mkdir", "unlink", "rmdir", "symlink", "rename", "link"),
    *("create", "write", "setxattr", "removexattr"),
):
    setattr(TreeOperations, _name, _read_only)


def entry_of(attributes: ServedAttributes) -> EntryAttributes:
    entry = EntryAttributes()
    entry.st_ino = InodeT(attributes.id)
    entry.entry_timeout = entry.attr_timeout = attributes.valid
    entry.st_mode = pyfuse3.ModeT(attributes.st_mode)
    entry.st_nlink = attributes.links
    entry.st_rdev = attributes.rdev
    entry.st_uid = attributes.uid
    entry.st_gid = attributes.gid
    entry.st_size = attributes.size
    entry.st_blksize = _BLOCK
    entry.st_blocks = attributes.blocks
    entry.st_mtime_ns = entry.st_ctime_ns = attributes.mtime_ns
    entry.st_atime_ns = attributes.atime_ns
    return entry


_ORDINARY_CHANGES = frozenset((errno.EEXIST, errno.ENOTEMPTY, errno.EBUSY, errno.EINVAL, errno.EXDEV))


def operations_for(
    tree: ServedTree, counters: CounterPage, on_init: Callable[[], None], *, writable: bool
) -> TreeOperations:
    """The operations that serve `tree`; the same for all workers of a mount."""
    if writable and isinstance(tree, WritableServedTree):
        return WritingOperations(tree, counters, on_init)
    return TreeOperations(tree, counters, on_init)


class WritingOperations(TreeOperations):
    """Serves a tree that can be written."""

    ordinary = TreeOperations.ordinary | _ORDINARY_CHANGES

    def __init__(self, tree: WritableServedTree, counters: CounterPage, on_init: Callable[[], None]) -> None:
        super().__init__(tree, counters, on_init)
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
        return _entry_of_version(await self._writable.getattr(inode))

    @change
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
        return _entry_of_version(answer)

    @change
    async def mkdir(self, parent_inode: InodeT, name: FileNameT, mode: ModeT, ctx: RequestContext) -> EntryAttributes:
        return entry_of(await self._writable.mkdir(parent_inode, name, stat.S_IMODE(mode)))

    @change
    async def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        await self._writable.rmdir(parent_inode, name)

    @change
    async def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        await self._writable.unlink(parent_inode, name)

    @change
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
        raise FUSEError(errno.EPERM)  # as symlink(2), link(2) and mknod(2) say of a file system that has none

    link = mknod = symlink  # type: ignore[assignment]  # which takes any arguments

    # Files

    @change
    async def create(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, flags: FlagT, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        await self._admit_writer()
        handle, attributes, direct = await self._writable.create(parent_inode, name, stat.S_IMODE(mode), flags, ctx.pid)
        return FileInfo(fh=FileHandleT(handle), direct_io=direct), entry_of(attributes)

    @change
    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        if flags & WRITING:
            await self._admit_writer()
            handle, direct = await self._writable.open_writing(inode, flags, ctx.pid)
            return FileInfo(fh=FileHandleT(handle), direct_io=direct)
        handle, direct = await self._writable.open_reading(inode)
        return FileInfo(fh=FileHandleT(handle), keep_cache=not direct, direct_io=direct)

    async def _admit_writer(self) -> None:
        if self.defer_writers:
            self.changes -= 1
            try:
                await trio.sleep_forever()
            finally:
                self.changes += 1

    @handler
    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        await self._writable.write(fh, off, buf)
        self._counters.count(written_bytes=len(buf))
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

    @change
    async def setxattr(self, inode: InodeT, name: XAttrNameT, value: bytes, ctx: RequestContext) -> None:
        with _unlogged():
            await self._writable.setxattr(inode, name, value)

    @change
    async def removexattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> None:
        with _unlogged():
            await self._writable.removexattr(inode, name)


def _entry_of_version(attributes: ServedVersion) -> EntryAttributes:
    """For answers that are about a node and do not name it, so that the number to be shown is free."""
    entry = entry_of(attributes)
    if attributes.inode:
        entry.st_ino = InodeT(attributes.inode)
    return entry


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Programs that copy files try to copy every attribute, and expect this answer: nothing to log."""
    try:
        yield
    except Unsupported as error:
        raise FUSEError(error.errno) from None
