"""Changes of a local directory: new files, moves, attributes, joins. Every call may raise OSError.

Nothing here follows a link: a path is a descriptor of its folder, held open, and a name in it. A change is on disk when
its call returns, names included.

A new file (`NewFile`) appears under its name whole or not at all. Where the file system can, it is written without a
name, so a process that dies leaves nothing behind. Where the file system cannot (NFS, FUSE, overlayfs of older
kernels), the file has a hidden name in the same directory until it is done, `.NAME.RANDOM.tmp`; a crash leaves that
file, and it can be deleted. The last step is one call of the kernel's in either case: a link or a rename that does not
replace, or a rename that does.

Joining copies, since a local file system has no call that moves blocks from file to file. The joined file is written
beside the target, as a whole, and takes its place by one rename; file systems that can share blocks (XFS, Btrfs) do.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import grp
import os
import pwd
import secrets
import stat as modes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from stripefs.errors import NotEmpty, StaleVersion, StoreError, Unsupported
from stripefs.store.base import Attributes, Buffer, Sink, Status

__all__ = [
    "LocalSink",
    "NewFile",
    "change",
    "join",
    "make_directory",
    "move",
    "rename_without_replacing",
    "sync_directory",
    "unreplaced",
]

_NO_NAMELESS = frozenset((errno.EOPNOTSUPP, errno.EISDIR))  # the latter where O_TMPFILE is not known at all
_NO_LINKS = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS))
_NO_FLAGS = frozenset((errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS))
_NOREPLACE = 1  # linux/fs.h

_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # not in every C library


class NewFile:
    """To be `name` in the directory `folder`, a descriptor; close it in any case. Every call may raise OSError.

    descriptor: open for writing, at the file's end so far.
    """

    def __init__(self, folder: int, name: bytes) -> None:
        self._folder = folder
        self._name = name
        self._hidden = b""
        try:
            self.descriptor = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o644, dir_fd=folder)
        except OSError as error:
            if error.errno not in _NO_NAMELESS:
                raise
            hidden = self._hidden_name()
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            self.descriptor = os.open(hidden, flags, 0o644, dir_fd=folder)
            self._hidden = hidden

    def write(self, data: Buffer) -> None:
        _write(self.descriptor, data)

    def publish(self, *, replace: bool) -> None:
        """Give the file its name; FileExistsError where that is taken and not to be replaced.

        Raises Unsupported where the file system could only replace.
        """
        os.fsync(self.descriptor)
        if replace:
            self._replace()
        elif self._hidden:
            self._publish_hidden()
        else:
            os.link(_link(self.descriptor), self._name, dst_dir_fd=self._folder, follow_symlinks=True)
        sync_directory(self._folder)

    def close(self) -> None:
        """Without `publish` before it, nothing stays."""
        try:
            if self._hidden:
                with contextlib.suppress(FileNotFoundError):  # someone tidied up
                    os.unlink(self._hidden, dir_fd=self._folder)
        finally:
            os.close(self.descriptor)

    def _hidden_name(self) -> bytes:
        # Random, since a crash may leave it, and process numbers come again and are not those of other hosts.
        return b".%b.%b.tmp" % (self._name[:200], secrets.token_hex(8).encode())

    def _replace(self) -> None:
        """Only rename can replace, and it needs a name to start from."""
        if not self._hidden:
            hidden = self._hidden_name()
            os.link(_link(self.descriptor), hidden, dst_dir_fd=self._folder, follow_symlinks=True)
            self._hidden = hidden
        os.rename(self._hidden, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._hidden = b""

    def _publish_hidden(self) -> None:
        try:
            os.link(self._hidden, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except FileExistsError:
            # An NFS client that repeats a request whose answer got lost gets this error although the link is its own.
            if os.fstat(self.descriptor).st_nlink != 2:
                raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            rename_without_replacing(self._folder, self._hidden, self._folder, self._name)
            self._hidden = b""


def sync_directory(folder: int) -> None:
    """Names are there, or gone, for good when their directory is on disk. `folder` may be open as a path only."""
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_without_replacing(source_folder: int, source: bytes, target_folder: int, target: bytes) -> None:
    """FileExistsError where something is at the target; Unsupported where the file system could only replace it."""
    if _renameat2 is None or _renameat2(source_folder, source, target_folder, target, _NOREPLACE):
        number = ctypes.get_errno() if _renameat2 is not None else errno.ENOSYS
        if number in _NO_FLAGS:
            raise Unsupported("the file system can neither link files nor rename them without replacing others")
        raise OSError(number, os.strerror(number))


Errors = Callable[[], AbstractContextManager[None]]
"""Turns the OSErrors inside into StoreErrors about one path."""

_COPY = 1 << 30  # bytes for one copy_file_range; it may do less
_NO_COPY = frozenset((errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS))
_NO_FLOCK = frozenset((errno.EBADF, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS))  # EBADF: NFS, for a reader
_PIECE = 1 << 20


class LocalSink(Sink):
    """A new file `name` in the directory `folder`, a descriptor that stays the caller's; made at once.

    attributes: extended attributes that it bears from the start, by name.
    """

    def __init__(
        self,
        folder: int,
        name: bytes,
        describe: Callable[[os.stat_result], Status],
        errors: Errors,
        attributes: Mapping[str, bytes],
    ) -> None:
        self._name = name
        self._describe = describe
        self._errors = errors
        self._done = False
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with errors():
            self._folder = os.dup(folder)
            try:
                self._descriptor = os.open(name, flags, 0o644, dir_fd=folder)
            except OSError:
                os.close(self._folder)
                raise
        try:
            with errors():
                for key, value in attributes.items():
                    os.setxattr(self._descriptor, key, value)
        except BaseException:
            self.abort()
            raise

    def write(self, data: Buffer) -> None:
        self._check_open()
        with self._errors():
            _write(self._descriptor, data)

    def close(self) -> Status:
        self._check_open()
        with self._errors():
            os.fsync(self._descriptor)
            sync_directory(self._folder)
            status = self._describe(os.fstat(self._descriptor))
        self._release()
        return status

    def abort(self) -> None:
        if self._done:
            return
        with contextlib.suppress(OSError):
            ours, there = os.fstat(self._descriptor), os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
            if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino):
                os.unlink(self._name, dir_fd=self._folder)
        self._release()

    def _check_open(self) -> None:
        if self._done:
            raise StoreError(f"{os.fsdecode(self._name)}: its writer is closed")

    def _release(self) -> None:
        self._done = True
        for descriptor in (self._descriptor, self._folder):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def make_directory(folder: int, name: bytes, mode: int) -> None:
    """With exactly `mode`: the caller has applied a umask already, and this process's must not be added."""
    os.mkdir(name, mode, dir_fd=folder)
    with _entry(folder, name) as made:
        if modes.S_IMODE(os.fstat(made).st_mode) != mode:
            os.chmod(_link(made), mode)
    sync_directory(folder)


def move(source: tuple[int, bytes], target: tuple[int, bytes], *, replace: bool) -> None:
    """Each is (folder, name). FileExistsError where something is at the target and not to be replaced."""
    (source_folder, source_name), (target_folder, target_name) = source, target
    if replace:
        try:
            os.rename(source_name, target_name, src_dir_fd=source_folder, dst_dir_fd=target_folder)
        except FileExistsError as error:  # XFS says so that a directory is not empty
            raise NotEmpty("the directory in its place is not empty") from error
    else:
        _move_without_replacing(source, target)
    sync_directory(target_folder)
    sync_directory(source_folder)


@contextlib.contextmanager
def unreplaced(folder: int, name: bytes, matches: Callable[[os.stat_result], bool]) -> Iterator[None]:
    """Around replacing or removing the file `name`, while no other process that does so by this function can.

    Raises StaleVersion where its status does not match, where it is not there, and where another process is at it. All
    of them lock the file itself (flock). Where the file system has no such locks the comparison alone is done.
    """
    stale = StaleVersion(f"{os.fsdecode(name)} was replaced, changed or removed")
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise stale from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise stale from None
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
        try:
            now = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            raise stale from None
        if not os.path.samestat(now, os.fstat(descriptor)) or not matches(now):
            raise stale
        yield
    finally:
        os.close(descriptor)


def change(folder: int, name: bytes, attributes: Attributes) -> None:
    """Raises StoreError for an owner or group that this host does not know."""
    with _entry(folder, name) as entry:
        here = _link(entry)
        if attributes.owner is not None or attributes.group is not None:
            owner = _id(attributes.owner, "user", lambda name: pwd.getpwnam(name).pw_uid)
            os.chown(here, owner, _id(attributes.group, "group", lambda name: grp.getgrnam(name).gr_gid))
        if attributes.mode is not None:
            os.chmod(here, attributes.mode)  # after chown, which takes set-user-id bits away
        if attributes.mtime_ns is not None or attributes.atime_ns is not None:
            now = os.fstat(entry)
            atime = now.st_atime_ns if attributes.atime_ns is None else attributes.atime_ns
            mtime = now.st_mtime_ns if attributes.mtime_ns is None else attributes.mtime_ns
            os.utime(here, ns=(atime, mtime))


def join(target: tuple[int, bytes], sources: Sequence[tuple[int, bytes]]) -> None:
    """Put the sources' bytes behind the target's, all at once, and remove them. The target gets a new inode."""
    folder, name = target
    with contextlib.ExitStack() as held:
        opened = [held.enter_context(_readable(*entry)) for entry in (target, *sources)]
        new = NewFile(folder, name)
        held.callback(new.close)
        for descriptor in opened:
            _copy(descriptor, new.descriptor)
        before = os.fstat(opened[0])
        with contextlib.suppress(PermissionError):  # only root gives files away
            os.fchown(new.descriptor, before.st_uid, before.st_gid)
        os.fchmod(new.descriptor, modes.S_IMODE(before.st_mode))
        new.publish(replace=True)
    for source_folder, source_name in sources:
        os.unlink(source_name, dir_fd=source_folder)


def _move_without_replacing(source: tuple[int, bytes], target: tuple[int, bytes]) -> None:
    try:
        rename_without_replacing(*source, *target)
    except Unsupported:
        pass
    else:
        return
    # NFS and older FUSE file systems know no such flag. A file gets its second name first, which fails where that is
    # taken. A directory cannot have two; in its way only an empty directory made this instant would be overlooked.
    (source_folder, source_name), (target_folder, target_name) = source, target
    if modes.S_ISDIR(os.stat(source_name, dir_fd=source_folder, follow_symlinks=False).st_mode):
        with contextlib.suppress(FileNotFoundError):
            os.stat(target_name, dir_fd=target_folder, follow_symlinks=False)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        os.rename(source_name, target_name, src_dir_fd=source_folder, dst_dir_fd=target_folder)
        return
    os.link(source_name, target_name, src_dir_fd=source_folder, dst_dir_fd=target_folder, follow_symlinks=False)
    os.unlink(source_name, dir_fd=source_folder)


@contextlib.contextmanager
def _entry(folder: int, name: bytes) -> Iterator[int]:
    """A descriptor of whatever has this name, a link included, good for attributes alone."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _readable(folder: int, name: bytes) -> Iterator[int]:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not modes.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unsupported(f"{os.fsdecode(name)} is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def _copy(source: int, target: int) -> None:
    """All of `source` from its start to where `target` stands."""
    try:
        while os.copy_file_range(source, target, _COPY):
            pass
    except OSError as error:
        if error.errno not in _NO_COPY:
            raise
        while piece := os.read(source, _PIECE):
            _write(target, piece)


def _link(descriptor: int) -> str:
    """A path to what `descriptor` holds open, for calls that take no descriptor of this kind."""
    return f"/proc/self/fd/{descriptor}"


def _write(descriptor: int, data: Buffer) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _id(name: str | None, kind: str, look_up: Callable[[str], int]) -> int:
    """The number of an owner or a group, which may be given as one; -1 for none."""
    if name is None:
        return -1
    try:
        return int(name) if name.isdecimal() else look_up(name)
    except KeyError as error:
        raise StoreError(f"this host knows no {kind} {name!r}") from error
