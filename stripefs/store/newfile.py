"""Files that appear under their name whole or not at all, in a directory that is held open.

Where the file system can, a file is written without a name, so that nothing is left behind by whoever dies on the way.
Where it cannot (NFS, FUSE, overlayfs of older kernels) it has a hidden name in the same directory until it is done,
`.NAME.RANDOM.tmp`; that is what a crash leaves, and it can be deleted. The last step is one call of the kernel's in
either case: a link or a rename that does not replace, or a rename that does.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets

from stripefs.errors import Unsupported
from stripefs.store.base import Buffer

__all__ = ["NewFile", "rename_without_replacing", "sync_directory"]

_NO_NAMELESS = frozenset((errno.EOPNOTSUPP, errno.EISDIR))  # the latter where O_TMPFILE is not known at all
_NO_LINKS = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS))
_NO_FLAGS = frozenset((errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS))
_NOREPLACE = 1  # linux/fs.h

_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # not in every C library


class NewFile:
    """To be `name` in the directory `folder`, a descriptor; close it in any case. Every call may raise OSError."""

    def __init__(self, folder: int, name: bytes) -> None:
        self._folder = folder
        self._name = name
        self._hidden = b""
        try:
            self._descriptor = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o644, dir_fd=folder)
        except OSError as error:
            if error.errno not in _NO_NAMELESS:
                raise
            hidden = self._hidden_name()
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            self._descriptor = os.open(hidden, flags, 0o644, dir_fd=folder)
            self._hidden = hidden

    @property
    def descriptor(self) -> int:
        """Open for writing, at the file's end so far."""
        return self._descriptor

    def write(self, data: Buffer) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def publish(self, *, replace: bool) -> None:
        """Give the file its name; FileExistsError where that is taken and not to be replaced.

        Raises Unsupported where the file system could only replace.
        """
        os.fsync(self._descriptor)
        if replace:
            self._replace()
        elif self._hidden:
            self._publish_hidden()
        else:
            os.link(self._nameless, self._name, dst_dir_fd=self._folder, follow_symlinks=True)
        sync_directory(self._folder)

    def close(self) -> None:
        """Without `publish` before it, nothing stays."""
        try:
            if self._hidden:
                with contextlib.suppress(FileNotFoundError):  # someone tidied up
                    os.unlink(self._hidden, dir_fd=self._folder)
        finally:
            os.close(self._descriptor)

    @property
    def _nameless(self) -> str:
        return f"/proc/self/fd/{self._descriptor}"

    def _hidden_name(self) -> bytes:
        # Random, since a crash may leave it, and process numbers come again and are not those of other hosts.
        return b".%b.%b.tmp" % (self._name[:200], secrets.token_hex(8).encode())

    def _replace(self) -> None:
        """Only rename can replace, and it needs a name to start from."""
        if not self._hidden:
            hidden = self._hidden_name()
            os.link(self._nameless, hidden, dst_dir_fd=self._folder, follow_symlinks=True)
            self._hidden = hidden
        os.rename(self._hidden, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._hidden = b""

    def _publish_hidden(self) -> None:
        try:
            os.link(self._hidden, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except FileExistsError:
            # An NFS client that repeats a request whose answer got lost is told so although the link is its own.
            if os.fstat(self._descriptor).st_nlink != 2:
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
