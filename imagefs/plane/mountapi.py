"""The mount API of the kernel: detached EROFS mounts, copies of a mount for others, idmapped mounts.

A detached mount stands in no directory until somebody shows it. The holder of its descriptor has it; others copy it by
its path below /proc and show it where they like, also in mount namespaces of their own. All are one and the same file
system, so what one container has read is in memory for all of them, once. When the holder lets go it lives on where it
is shown, and ends with the last of those. The kernel allows the copy since Linux 6.15; before, and wherever any of this
is refused, an image is mounted for each.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping, Sequence

__all__ = ["clone", "copy", "device_of", "make", "memory", "set_idmap", "show"]

# System calls, by numbers that all architectures share, and their flags: include/uapi/linux/mount.h.
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 428, 429, 430, 431, 432
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_CLOEXEC = 1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV, _MOUNT_ATTR_NOEXEC = 1, 2, 4, 8
_MOUNT_ATTR_IDMAP = 0x00100000
_MOUNT_SETATTR = 442
_AT_EMPTY_PATH, _AT_RECURSIVE = 0x1000, 0x8000
_AT_FDCWD = -100
_libc = ctypes.CDLL(None, use_errno=True)


def make(metadata: str, devices: Sequence[str]) -> int:
    """A descriptor of a new EROFS mount of this image. Reads all these files, so none may be of a mount that the caller
    serves. Raises OSError."""
    context = _call(_FSOPEN, b"erofs", _CLOEXEC)
    try:
        _call(_FSCONFIG, context, _SET_STRING, b"source", os.fsencode(metadata), 0)
        for device in devices:
            _call(_FSCONFIG, context, _SET_STRING, b"device", os.fsencode(device), 0)
        _call(_FSCONFIG, context, _SET_FLAG, b"ro", None, 0)
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        return _call(_FSMOUNT, context, _CLOEXEC, _MOUNT_ATTR_RDONLY)
    finally:
        os.close(context)


def memory(options: Mapping[str, str]) -> int:
    """A descriptor of a new file system in memory, with nosuid, nodev and noexec, and these options of tmpfs. Raises
    OSError."""
    context = _call(_FSOPEN, b"tmpfs", _CLOEXEC)
    try:
        for name, value in options.items():
            _call(_FSCONFIG, context, _SET_STRING, name.encode(), value.encode(), 0)
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        return _call(_FSMOUNT, context, _CLOEXEC, _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV | _MOUNT_ATTR_NOEXEC)
    finally:
        os.close(context)


def device_of(descriptor: int) -> str:
    """MAJOR:MINOR of the file system, as mountinfo has it: no other that lives has the same."""
    number = os.fstat(descriptor).st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def copy(path: str, device: str) -> int:
    """A descriptor of another mount of the file system that the descriptor at `path`, in /proc, is of.

    Raises OSError, also when that is not the one with this `device_of`: its holder may have died, and its number be
    somebody else's.
    """
    descriptor = _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), _OPEN_TREE_CLONE | os.O_CLOEXEC)
    if device_of(descriptor) != device:
        os.close(descriptor)
        raise FileNotFoundError(path)
    return descriptor


def clone(path: str, *, recursive: bool = False) -> int:
    """A descriptor of another mount of what is at `path`, with what is mounted below it or without. Raises OSError."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    return _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)


def set_idmap(descriptor: int, namespace: int) -> None:
    """Let a mount that was shown nowhere yet, and those below it, show owners as the user namespace maps them.

    Raises OSError, EINVAL's where a file system cannot.
    """
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, namespace)
    _call(_MOUNT_SETATTR, descriptor, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, attributes, len(attributes))


def show(descriptor: int, target: str, *, confined: bool = False) -> None:
    """Put the mount at `target`; once. confined: with nosuid and nodev. Raises OSError."""
    if confined:  # struct mount_attr: what to set, what to clear, how mounts spread, and a user namespace
        attributes = struct.pack("=QQQQ", _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV, 0, 0, 0)
        _call(_MOUNT_SETATTR, descriptor, b"", _AT_EMPTY_PATH, attributes, len(attributes))
    _call(_MOVE_MOUNT, descriptor, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)


def _call(*arguments: int | bytes | None) -> int:
    result: int = _libc.syscall(*(ctypes.c_long(one) if isinstance(one, int) else one for one in arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
