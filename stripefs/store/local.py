"""Local directories as a store: names of any bytes, links shown as links, versions checked after every read.

The root is held open from the start. A path is walked from there one component at a time without following links, so
that a directory swapped for a link cannot lead out of the root (the kernel resolves links above a mount by itself).

A handle holds the inode open, which a rename or unlink cannot take away. Bytes written into that inode show as a new
size or mtime, looked at after each read. Two things escape this check: a write within the file system's time stamp
granularity (a tick of the kernel, 1 to 10 ms) of the previous one, and a writer that puts the old mtime back.

The mark of a manifest is the extended attribute MARK, since a local file has no block size of its own. A file that this
process may not read shows no mark.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
import stat as modes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace as replaced
from typing import Unpack

from stripefs.errors import (
    Busy,
    IsADirectory,
    NotFound,
    StaleVersion,
    StoreError,
    Unsupported,
)
from stripefs.format.manifest import MANIFEST_BLOCK_SIZE
from stripefs.store.allocator import aligned, uninitialised
from stripefs.store.base import (
    Attributes,
    Block,
    Buffer,
    Capabilities,
    Creation,
    Handle,
    Identity,
    Kind,
    Sink,
    Space,
    Status,
    Store,
    Watch,
)
from stripefs.store.common import STORE_ERRORS, InUse, blocks_by_size, check_range, in_order
from stripefs.store.local_write import (
    LocalSink,
    NewFile,
    change,
    join,
    make_directory,
    move,
    sync_directory,
    unreplaced,
)
from stripefs.units import shown

__all__ = ["MARK", "LocalHandle", "LocalStore"]

MARK = "user.stripefs.manifest"
"""Set by this store alone: a mount answers no request to set attributes of the store's files. `user.` serves mounts of
plain users too. Copies keep it where they keep extended attributes (`cp -a`, `rsync -X`, `tar --xattrs`)."""

_UNMARKED = frozenset((errno.ENODATA, errno.EOPNOTSUPP, errno.EACCES, errno.EPERM, errno.ENOENT))

_BATCH = 1000
"""Entries looked up per scandir batch: about 3 ms of lstat calls."""


class LocalStore(Store):
    """The directory `root` (absolute, any bytes), made where it is missing if `make` says so.

    Raises NotFound, NotADirectory or PermissionDenied for the root.
    """

    capabilities = Capabilities(
        file_ids=True,
        pinned=True,
        any_names=True,
        permissions=True,
        put=True,
        put_if_absent=True,
        writes=True,
        replace=True,
        concat=True,
        compare=True,
        attributes=True,
        marks=True,
    )

    def __init__(self, root: bytes, url: str = "", *, make: bool = False) -> None:
        self.url = url or f"file://{os.fsdecode(root)}"
        self._root_path = root
        with _errors(root):
            if make:
                with contextlib.suppress(FileExistsError):
                    os.makedirs(root)
            self._root = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if not _keeps_marks(self._root):
            self.capabilities = replaced(self.capabilities, marks=False)
        self._in_use = InUse(self.url, lambda: os.close(self._root))

    def stat(self, path: bytes) -> Status:
        with self._parent(path) as (folder, name):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            return _status(b"" if path == b"/" else name, found, marked=_is_marked(found, folder, name))

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        with self._parent(path) as (folder, name):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            listed = os.open(name, flags, dir_fd=folder)
        try:
            with _errors(path), os.scandir(listed) as entries:
                names = in_order([os.fsencode(entry.name) for entry in entries])
            for start in range(bisect.bisect_right(names, after), len(names), _BATCH):
                with _errors(path):
                    found = [_look(listed, name) for name in names[start : start + _BATCH]]
                yield [status for status in found if status is not None]
        finally:
            os.close(listed)

    def open(self, path: bytes, expect: Identity | None = None) -> LocalHandle:
        with self._parent(path) as (folder, name):
            # Looked at before it is opened: opening a device can have effects, opening a FIFO can block.
            _refuse_unreadable(path, os.stat(name, dir_fd=folder, follow_symlinks=False))
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                found = os.fstat(fd)
                _refuse_unreadable(path, found)
                status = _status(name, found, marked=_has_mark(fd))
                if expect is not None and status.identity != expect:
                    raise StaleVersion(f"{shown(path)} was replaced or changed")
            except BaseException:
                os.close(fd)
                raise
        return LocalHandle(path, fd, status)

    def put(self, path: bytes, data: Iterable[Buffer], *, replace: bool = False, parents: bool = True) -> Status:
        with self._parent(path, make=parents) as (folder, name):
            new = NewFile(folder, name)
            try:
                for piece in data:
                    new.write(piece)
                new.publish(replace=replace)
                return _status(name, os.fstat(new.descriptor))
            finally:
                new.close()

    def remove(self, path: bytes) -> None:
        with self._parent(path) as (folder, name):
            os.unlink(name, dir_fd=folder)
            sync_directory(folder)

    def create(self, path: bytes, **how: Unpack[Creation]) -> Sink:
        if how.get("host"):
            raise Unsupported("a local directory has no data hosts to choose from")
        mark = how.get("block_size") == MANIFEST_BLOCK_SIZE
        if mark and not self.capabilities.marks:
            raise Unsupported(f"{self.url} cannot mark manifests: its file system has no extended attributes")
        with self._parent(path) as (folder, name):
            return LocalSink(
                folder,
                name,
                lambda found: _status(name, found, marked=mark),
                lambda: _errors(path),
                {MARK: b"1"} if mark else {},
            )

    def mkdir(self, path: bytes, mode: int = 0o755) -> None:
        with self._parent(path) as (folder, name):
            make_directory(folder, name, mode)

    def rmdir(self, path: bytes) -> None:
        _refuse_root(path)
        with self._parent(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)
            sync_directory(folder)

    def rename(self, source: bytes, target: bytes, *, replace: bool = False) -> None:
        _refuse_root(source, target)
        with self._parent(target) as new, self._parent(source) as old:
            move(old, new, replace=replace)

    def compare_and_rename(self, source: bytes, target: bytes, seen: Identity) -> None:
        with self._parent(target) as new, self._parent(source) as old, unreplaced(*new, lambda now: _is(now, seen)):
            move(old, new, replace=True)

    def compare_and_remove(self, path: bytes, seen: Identity) -> None:
        with self._parent(path) as (folder, name), unreplaced(folder, name, lambda now: _is(now, seen)):
            os.unlink(name, dir_fd=folder)
            sync_directory(folder)

    def set_attributes(self, path: bytes, attributes: Attributes) -> None:
        if attributes.replication is not None:
            raise Unsupported(f"{self.url} keeps no replicas")
        with self._parent(path) as (folder, name):
            change(folder, name, attributes)

    def concat(self, target: bytes, sources: Sequence[bytes]) -> None:
        with contextlib.ExitStack() as held:
            first, *others = [held.enter_context(self._parent(path)) for path in (target, *sources)]
            join(first, others)

    def readlink(self, path: bytes) -> bytes:
        with self._parent(path) as (folder, name):
            if not modes.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise StoreError(f"{shown(path)} is not a symbolic link")
            return os.readlink(name, dir_fd=folder)

    def space(self) -> Space:
        with self._in_use.reading(), _errors(b"/"):
            found = os.statvfs(self._root)
        return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, found.f_files - found.f_ffree)

    def describe(self) -> dict[str, str]:
        return {"transport": "local directory", "root": shown(self._root_path)}

    def close(self) -> None:
        self._in_use.close()

    @contextmanager
    def _parent(self, path: bytes, *, make: bool = False) -> Iterator[tuple[int, bytes]]:
        """(descriptor of the folder that holds `path`, its name there); OSErrors inside become StoreErrors.

        With `make` folders that are missing are made.
        """
        if b"\0" in path:
            raise NotFound(f"{shown(path)}: no name holds a NUL byte")
        *folders, name = path.removeprefix(b"/").split(b"/")
        with self._in_use.reading(), _errors(path):
            folder = self._root
            try:
                for component in folders:
                    if make:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(component, 0o755, dir_fd=folder)
                    below = os.open(component, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                    if folder != self._root:
                        os.close(folder)
                    folder = below
                yield folder, name or b"."
            finally:
                if folder != self._root:
                    os.close(folder)


class LocalHandle(Handle):
    """An open descriptor; it takes `fd` over."""

    def __init__(self, path: bytes, fd: int, status: Status) -> None:
        self.status = status
        self._path = path
        self._fd = fd
        self._without_wait: int | None = os.RWF_NOWAIT
        """Flags of a read that does not wait; None where the file system has no such reads."""
        self._in_use = InUse(shown(path), lambda: os.close(fd))

    def locate(self, offset: int, length: int) -> Sequence[Block]:
        return blocks_by_size(self.status, offset, length)

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        check_range(self.status, offset, length)
        if host:
            raise Unsupported("a local directory has no data hosts to choose from")
        with self._in_use.reading(), _errors(self._path):
            data, done = aligned(length), 0  # so that a cache on disk takes it as it is
            while done < length and (count := os.preadv(self._fd, [data[done:]], offset + done)):
                done += count  # a read ends at a signal or at 2 GiB less a page
            unchanged = self._unchanged()
        if done != length or not unchanged:
            raise StaleVersion(f"{shown(self._path)} was changed while it was open")
        if watch is not None:
            watch.progress(length)
        return data

    def read_now(self, offset: int, length: int) -> Buffer | None:
        if self._without_wait is None:
            return None
        data = uninitialised(length)
        with self._in_use.reading():
            try:
                count = os.preadv(self._fd, [data], offset, self._without_wait)
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:  # an error that lasts meets the read that waits
                    return None
                self._without_wait = 0 if _is_on_tmpfs(self._fd) else None
                return self.read_now(offset, length)
            return data if count == length and self._unchanged() else None

    def _unchanged(self) -> bool:
        now = os.fstat(self._fd)
        return (now.st_size, now.st_mtime_ns) == (self.status.length, self.status.mtime_ns)

    def close(self) -> None:
        self._in_use.close()


def _look(folder: int, name: bytes) -> Status | None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return _status(name, found, marked=_is_marked(found, folder, name))
    except FileNotFoundError:
        return None  # vanished since it was listed


def _is_on_tmpfs(fd: int) -> bool:
    """True if the file is on a tmpfs, which knows no reads without waiting, and where none waits but for swap."""
    device = os.fstat(fd).st_dev
    number = f"{os.major(device)}:{os.minor(device)}".encode()
    with open("/proc/self/mountinfo", "rb") as table:
        return any(line.split()[2] == number and b" - tmpfs " in line for line in table)


def _keeps_marks(root: int) -> bool:
    """True if the file system of the directory `root` has extended attributes that users may set."""
    try:
        os.getxattr(f"/proc/self/fd/{root}", MARK)
    except OSError as error:
        return error.errno != errno.EOPNOTSUPP
    return True


def _is_marked(found: os.stat_result, folder: int, name: bytes) -> bool:
    return modes.S_ISREG(found.st_mode) and _has_mark(b"/proc/self/fd/%d/%b" % (folder, name))


def _has_mark(file: int | bytes) -> bool:
    """True if the file, given as an open descriptor or a path, bears MARK. Links are not followed."""
    try:
        os.getxattr(file, MARK, **({} if isinstance(file, int) else {"follow_symlinks": False}))
    except OSError as error:
        if error.errno in _UNMARKED:
            return False
        raise
    return True


def _status(name: bytes, found: os.stat_result, *, marked: bool = False) -> Status:
    return Status(
        name=name,
        kind=_kind(found.st_mode),
        length=found.st_size if modes.S_ISREG(found.st_mode) or modes.S_ISLNK(found.st_mode) else 0,
        mtime_ns=found.st_mtime_ns,
        atime_ns=found.st_atime_ns,
        mode=modes.S_IMODE(found.st_mode),
        owner=str(found.st_uid),
        group=str(found.st_gid),
        file_id=f"{found.st_dev}:{found.st_ino}",
        links=found.st_nlink,
        marked=marked,
    )


def _is(now: os.stat_result, seen: Identity) -> bool:
    return _status(b"", now).identity == seen


def _kind(mode: int) -> Kind:
    if modes.S_ISREG(mode):
        return Kind.FILE
    if modes.S_ISDIR(mode):
        return Kind.DIRECTORY
    return Kind.SYMLINK if modes.S_ISLNK(mode) else Kind.OTHER


def _refuse_unreadable(path: bytes, found: os.stat_result) -> None:
    kind = _kind(found.st_mode)
    if kind is Kind.DIRECTORY:
        raise IsADirectory(f"{shown(path)} is a directory")
    if kind is not Kind.FILE:
        raise Unsupported(f"{shown(path)} is not a regular file")


def _refuse_root(*paths: bytes) -> None:
    if b"/" in paths:
        raise Busy("the root of the store stays where it is")


@contextmanager
def _errors(path: bytes) -> Iterator[None]:
    """Turn an OSError into the StoreError that means the same."""
    try:
        yield
    except OSError as error:
        kind = STORE_ERRORS.get(error.errno, StoreError)
        raise kind(f"{shown(path)}: {os.strerror(error.errno or errno.EIO)}") from error
