"""The root file system of a container, seen from the host: lookups that links never lead out of, directories, volumes.

Directories that the container's mounts need and the image lacks are added by an overlay where nobody may write.

The volumes of a container with a read-only root are directories in memory that begin as the image has them. As Docker
fills a new volume, the directory itself and all below it keep owner, group, mode, times, extended attributes and hard
links. A directory that the image lacks is root's, with mode 0755. This is done before the runtime starts, since runc
and crun each lose something else of it with `tmpcopyup`. Holes of sparse files stay holes. The image cannot change
meanwhile and only its last components may be links, so plain paths are safe for volumes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import posixpath
import stat
import struct
from collections.abc import Iterator, Sequence

from imagefs.errors import RunError
from imagefs.plane import kernel_mounts
from imagefs.run.spec import Volume
from stripefs.fuse import kernel

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from imagefs.run.spec import TreeKind

__all__ = ["RootTree", "add_directories", "copy_tree", "make_directories", "make_volumes"]

_OPENAT2 = 437
_IN_ROOT, _NO_MAGICLINKS = 0x10, 0x02
"""RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS of include/uapi/linux/openat2.h, since Linux 5.6."""

_LINKS = 40
"""As many as the kernel follows."""

_LARGEST_FILE = 16 << 20
"""Of passwd and group; nothing else is read."""

_libc = ctypes.CDLL(None, use_errno=True)


class RootTree:
    """The tree mounted at `root`; a `spec.TreeView`. Raises OSError where the file system does."""

    def __init__(self, root: str) -> None:
        self._root = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._path = os.readlink(f"/proc/self/fd/{self._root}")

    def __enter__(self) -> RootTree:
        return self

    def __exit__(self, *_details: object) -> None:
        os.close(self._root)

    def kind(self, path: str) -> TreeKind | None:
        descriptor = self._open(path)
        if descriptor is None:
            return None
        try:
            mode = os.fstat(descriptor).st_mode
        finally:
            os.close(descriptor)
        return "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"

    def read(self, path: str) -> bytes:
        descriptor = self._open(path)
        if descriptor is None:
            return b""
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return b""  # opening a device or a pipe may do something
            with open(f"/proc/self/fd/{descriptor}", "rb") as file:
                return file.read(_LARGEST_FILE)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def directory(self, path: str) -> Iterator[str | None]:
        """A path of this process for the directory there, inside the block; None where there is nothing."""
        descriptor = self._open(path)
        try:
            yield None if descriptor is None else f"/proc/self/fd/{descriptor}"
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def real(self, path: str) -> str:
        there, rest = posixpath.normpath(path), ""
        links = 0
        while (descriptor := self._open(there)) is None:
            if links < _LINKS and (target := self._link(there)):
                links += 1
                there = posixpath.normpath(posixpath.join(self.real(posixpath.dirname(there)), target))
                continue
            there, name = posixpath.split(there)
            rest = posixpath.join(name, rest)
        try:
            found = os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(self._path)
        finally:
            os.close(descriptor)
        return posixpath.join(found or "/", rest).rstrip("/") or "/"

    def _link(self, path: str) -> str:
        """The target of a link; "" for what is none."""
        descriptor = self._open(path, os.O_NOFOLLOW)
        if descriptor is None:
            return ""
        try:
            if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
                return ""
            return os.readlink("", dir_fd=descriptor)
        finally:
            os.close(descriptor)

    def _open(self, path: str, flags: int = 0) -> int | None:
        how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC | flags, 0, _IN_ROOT | _NO_MAGICLINKS)
        while (result := int(_libc.syscall(_OPENAT2, self._root, os.fsencode(path), how, len(how)))) < 0:
            number = ctypes.get_errno()
            if number in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
                return None
            if number not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: something was mounted or renamed meanwhile
                raise OSError(number, os.strerror(number), path)
        return result


_MS_NOSUID, _MS_NODEV = 2, 4
_STEP = 1 << 20


def make_volumes(folder: str, volumes: Sequence[Volume], tree: RootTree, owner: int = 0) -> None:
    """Make all volumes in one file system in memory that is mounted at `folder`, for this mount namespace.

    owner: user and group of the host to whom those belong that the image lacks.

    Raises RunError where one does not fit in memory, OSError.
    """
    os.mkdir(folder, 0o700)
    kernel.mount("imagefs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=700")
    for volume in volumes:
        _make_directory(volume.source, owner)
        with tree.directory(volume.path) as found:
            if found is None:
                continue
            try:
                copy_tree(found, volume.source)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                raise RunError(
                    f"the image's content of its volume {volume.path} does not fit in memory",
                    hint=f"--bind a directory to {volume.path}, or --rw",
                ) from error


def copy_tree(source: str, target: str) -> None:
    """Make the empty directory `target` like `source`, which does not change meanwhile. Raises OSError."""
    links: dict[tuple[int, int], str] = {}
    directories = ["", *_entries_below(source, target, links)]
    for path in reversed(directories):  # their times last, after all that is made in them
        _describe(source + path, target + path, os.stat(source + path))


def _entries_below(source: str, target: str, links: dict[tuple[int, int], str]) -> Iterator[str]:
    """Copies everything below, and answers the directories, the outer before the inner ones."""
    stack = [""]
    while stack:
        folder = stack.pop()
        with os.scandir(source + folder) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    os.mkdir(target + path, 0o700)
                    stack.append(path)
                    yield path
                else:
                    _copy_entry(source + path, target + path, links)


def _copy_entry(source: str, target: str, links: dict[tuple[int, int], str]) -> None:
    status = os.lstat(source)
    if status.st_nlink > 1:
        first = links.setdefault((status.st_dev, status.st_ino), target)
        if first != target:
            os.link(first, target, follow_symlinks=False)
            return
    if stat.S_ISREG(status.st_mode):
        _copy_content(source, target, status.st_size)
    elif stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
    else:
        os.mknod(target, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev)
    _describe(source, target, status)


def _copy_content(source: str, target: str, size: int) -> None:
    with open(source, "rb", buffering=0) as file, open(target, "xb", buffering=0) as made:
        end = 0
        while end < size:
            try:
                at = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # nothing but a hole is left
                    raise
                break
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            while at < end:
                data = os.pread(file.fileno(), min(_STEP, end - at), at)
                if not data:
                    raise OSError(errno.EIO, "it ends before its size", source)
                at += os.pwrite(made.fileno(), data, at)
        os.truncate(made.fileno(), size)


def _describe(source: str, target: str, status: os.stat_result) -> None:
    """Owner, mode, attributes and times; in this order, as chown takes setuid and capabilities away."""
    os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(target, stat.S_IMODE(status.st_mode))
    for name in os.listxattr(source, follow_symlinks=False):
        try:
            os.setxattr(target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENODATA):  # memory keeps no user.* before Linux 6.6
                raise
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


def add_directories(
    root: str, folder: str, missing: Sequence[str], lowers: Sequence[str], owner: int, *, rootless: bool
) -> None:
    """Let a read-only tree have the directories `missing`, by an overlay of `folder`, which holds nothing else.

    lowers: what the tree is made of. One overlay shows it all, since few may stand on one another. owner: of what the
    tree lacks.
    """
    os.mkdir(folder, 0o755)
    _like(root, folder)
    for path in missing:
        there, made = root, folder
        for name in path.strip("/").split("/"):
            there, made = f"{there}/{name}", f"{made}/{name}"
            if not os.path.isdir(made):
                _make_directory(made, owner)
                _like(there, made)
    if len(lowers) > 1:
        kernel.unmount(root, 0)
    kernel_mounts.mount_read_only_overlay([folder, *lowers], root, rootless=rootless)


def make_directories(root: str, missing: Sequence[str], owner: int) -> None:
    """In a root that can be written, where no link is in the way any more."""
    for path in missing:
        made = root
        for name in path.strip("/").split("/"):
            made = f"{made}/{name}"
            if not os.path.isdir(made):
                _make_directory(made, owner)


def _make_directory(path: str, owner: int) -> None:
    os.mkdir(path)
    os.chown(path, owner, owner)
    os.chmod(path, 0o755)  # noqa: S103  whatever the umask is


def _like(there: str, made: str) -> None:
    """Owner, mode and time of the directory that `made` will stand before, where there is one."""
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(there, follow_symlinks=False)
        os.chown(made, status.st_uid, status.st_gid)
        os.chmod(made, status.st_mode & 0o7777)
        os.utime(made, ns=(status.st_atime_ns, status.st_mtime_ns))
