"""Volumes of a container with a read-only root: directories in memory that begin as the image has them.

As Docker fills a new volume: the directory itself and all below it keep owner, group, mode, times, extended attributes
and hard links. A directory that the image lacks is root's, with mode 0755. This is done before the runtime starts,
since runc and crun each lose something else of it with `tmpcopyup`. Holes of sparse files stay holes.

The image cannot change meanwhile and only its last components may be links, so plain paths are safe here.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence

from imagefs.errors import RunError
from imagefs.run.rootfs import RootTree
from imagefs.run.spec import Volume
from stripefs.fuse import kernel

__all__ = ["copy_tree", "make"]

_MS_NOSUID, _MS_NODEV = 2, 4
_STEP = 1 << 20


def make(folder: str, volumes: Sequence[Volume], tree: RootTree, owner: int = 0) -> None:
    """Make all volumes in one file system in memory that is mounted at `folder`, for this mount namespace.

    owner: user and group of the host to whom those belong that the image lacks.

    Raises RunError where one does not fit in memory, OSError.
    """
    os.mkdir(folder, 0o700)
    kernel.mount("imagefs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=700")
    for volume in volumes:
        os.mkdir(volume.source)
        os.chown(volume.source, owner, owner)
        os.chmod(volume.source, 0o755)  # noqa: S103  whatever the umask is
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
    directories = ["", *_below(source, target, links)]
    for path in reversed(directories):  # their times last, after all that is made in them
        _describe(source + path, target + path, os.stat(source + path))


def _below(source: str, target: str, links: dict[tuple[int, int], str]) -> Iterator[str]:
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
                    _copy(source + path, target + path, links)


def _copy(source: str, target: str, links: dict[tuple[int, int], str]) -> None:
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
