"""Mounts of the kernel besides plain EROFS: detached and copied ones, idmapped ones, and overlays above trees.

A detached mount stands in no directory until somebody shows it. The holder of its descriptor has it; others copy it by
its path below /proc and show it where they like, also in mount namespaces of their own. All are one and the same file
system, so what one container has read is in memory for all of them, once. When the holder lets go it lives on where it
is shown, and ends with the last of those. The kernel allows the copy since Linux 6.15; before, and wherever any of this
is refused, an image is mounted for each.

An overlay gives the trees of an image a place to write (`--rw`), or puts further trees above them. Everything that
changes goes to `upper` below a folder of the caller's; the image stays as it is. Directories that are renamed answer
EXDEV and files are copied up whole (redirect_dir, metacopy and index off), so that `upper` alone says what was changed,
in the whiteouts and opaque directories that every tool knows.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Mapping, Sequence

from stripefs.errors import MountError
from stripefs.fuse import kernel
from stripefs.osutil import check

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Literal

    UpperKind = Literal["disk", "memory"]

__all__ = [
    "clone",
    "copy",
    "device_of",
    "lasting_upper",
    "make",
    "memory",
    "mount_overlay",
    "mount_read_only_overlay",
    "set_idmap",
    "show",
]

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
_MS_RDONLY = 1
_OVERLAY_MAGIC = 0x794C7630  # OVERLAYFS_SUPER_MAGIC of include/uapi/linux/magic.h
_LONG = 3000

_OVERLAY_OPTIONS = ("metacopy=off", "index=off", "xino=off")
"""xino would make one device of all layers, by inode numbers past 2^63, which some programs cannot hold."""

_OVERLAY_HINTS = {
    errno.EINVAL: "dmesg says more; an upper directory needs a local file system with extended attributes",
    errno.ENODEV: "the kernel has no overlay file system: modprobe overlay",
    errno.EPERM: "mounting needs root",
    errno.ELOOP: "a lower directory lies on too many file systems that stand on one another",
    errno.ESTALE: "the upper directory was used with another image",
}

_libc = ctypes.CDLL(None, use_errno=True)


def make(metadata: str, devices: Sequence[str]) -> int:
    """A descriptor of a new EROFS mount of this image. Reads all these files, so none may be of a mount that the caller
    serves. Raises OSError."""
    options = [("source", metadata), *(("device", device) for device in devices), ("ro", None)]
    return _new("erofs", options, _MOUNT_ATTR_RDONLY)


def memory(options: Mapping[str, str]) -> int:
    """A descriptor of a new file system in memory, with nosuid, nodev and noexec, and these options of tmpfs. Raises
    OSError."""
    return _new("tmpfs", options.items(), _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV | _MOUNT_ATTR_NOEXEC)


def _new(kind: str, options: Iterable[tuple[str, str | None]], attributes: int) -> int:
    """A descriptor of a new file system. An option without a value is a flag. Raises OSError."""
    context = _call(_FSOPEN, kind.encode(), _CLOEXEC)
    try:
        for name, value in options:
            given = os.fsencode(value) if value is not None else None
            _call(_FSCONFIG, context, _SET_FLAG if given is None else _SET_STRING, name.encode(), given, 0)
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        return _call(_FSMOUNT, context, _CLOEXEC, attributes)
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
    _set_attributes(descriptor, _AT_RECURSIVE, _MOUNT_ATTR_IDMAP, namespace)


def show(descriptor: int, target: str, *, confined: bool = False) -> None:
    """Put the mount at `target`; once. confined: with nosuid and nodev. Raises OSError."""
    if confined:
        _set_attributes(descriptor, 0, _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV, 0)
    _call(_MOVE_MOUNT, descriptor, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)


def _set_attributes(descriptor: int, flags: int, attributes: int, namespace: int) -> None:
    # struct mount_attr: what to set, what to clear, how mounts spread, and a user namespace
    packed = struct.pack("=QQQQ", attributes, 0, 0, namespace)
    _call(_MOUNT_SETATTR, descriptor, b"", _AT_EMPTY_PATH | flags, packed, len(packed))


def _call(*arguments: int | bytes | None) -> int:
    return check(_libc.syscall(*(ctypes.c_long(one) if isinstance(one, int) else one for one in arguments)))


def mount_overlay(
    lowers: Sequence[str],
    folder: str,
    target: str,
    *,
    without_disk: Literal["refuse", "memory"] = "refuse",
    volatile: bool = False,
    rootless: bool = False,
) -> UpperKind:
    """Mount an overlay at `target`, which may be a lower itself; what is written goes to `folder`/upper.

    The first of `lowers` is on top. `folder` is made, and may hold what an earlier mount wrote; the overlay's source
    in mountinfo is its path. An upper directory cannot lie on an overlay, as the root of most containers does:
    `without_disk` says whether that is refused or memory is taken instead, given back when the overlay goes. With
    `volatile` nothing is ever synced: for an upper that nobody needs after a crash; it cannot be mounted again.
    `rootless` is for the root of a user namespace: what marks directories is user.*, as trusted.* is the host's root's.
    Answers where the upper lies. Raises MountError.
    """
    folder = os.path.abspath(folder)
    if any(one.fstype == "overlay" and one.source == folder for one in kernel.mounts()):
        raise MountError(f"{folder} is in use by another overlay", hint="take another folder, or unmount that one")
    kind: UpperKind = "disk"
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        if _is_overlay(folder):
            if without_disk == "refuse":
                hint = "take a folder on a disk, such as a volume of the container"
                raise MountError(f"{folder} lies on an overlay, where no upper directory can be", hint=hint)
            _on_memory(folder)
            kind = "memory"
        try:
            upper, work = _make_upper(folder, lowers[0])
            more = ["volatile"] if volatile else []
            _mount_overlay(lowers, target, folder, 0, [*_overlay_options(rootless), *more], upper, work)
        finally:
            if kind == "memory":
                kernel.unmount(folder, kernel.MNT_DETACH)  # the overlay alone holds it from here on
    except OSError as error:
        raise _refused(target, folder, error) from error
    return kind


def lasting_upper(folder: str) -> UpperKind:
    """Make a folder whose upper directory is there when its overlay is not, for `mount_overlay`; where that is.

    Where it lies on an overlay itself it is memory, which stays mounted there until it is taken off. Raises OSError.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    if not _is_overlay(folder):
        return "disk"
    _on_memory(folder)
    return "memory"


def mount_read_only_overlay(lowers: Sequence[str], target: str, *, rootless: bool = False) -> None:
    """Mount two or more trees on one another, the first on top, so that nobody can write. Raises MountError."""
    try:
        _mount_overlay(lowers, target, "imagefs", _MS_RDONLY, _overlay_options(rootless))
    except OSError as error:
        raise _refused(target, lowers[0], error) from error


def _overlay_options(rootless: bool) -> list[str]:
    """Renames of directories are followed nowhere; "off" would follow those of trusted.* where a kernel is built so."""
    return [*_OVERLAY_OPTIONS, *(["redirect_dir=nofollow", "userxattr"] if rootless else ["redirect_dir=off"])]


def _on_memory(folder: str) -> None:
    kernel.mount("imagefs", folder, "tmpfs", 0, "mode=700")


def _make_upper(folder: str, lower: str) -> tuple[str, str]:
    """The upper directory, whose owner and mode those of the lower root are, and the overlay's own directory."""
    upper, work = os.path.join(folder, "upper"), os.path.join(folder, "work")
    os.makedirs(work, 0o700, exist_ok=True)
    try:
        os.mkdir(upper)
    except FileExistsError:
        return upper, work
    root = os.stat(lower)
    os.chown(upper, root.st_uid, root.st_gid)
    os.chmod(upper, root.st_mode & 0o7777)
    os.utime(upper, ns=(root.st_atime_ns, root.st_mtime_ns))
    return upper, work


def _mount_overlay(
    lowers: Sequence[str],
    target: str,
    source: str,
    flags: int,
    options: Sequence[str],
    upper: str = "",
    work: str = "",
) -> None:
    """Raises OSError."""
    with contextlib.ExitStack() as held:
        paths = [*lowers, *((upper, work) if upper else ())]
        # Kernels differ in which characters they let a backslash protect, and mount(2) takes no more than a page.
        if len(os.fsencode(":".join(paths))) > _LONG or any(set(path) & set(",:\\") for path in paths):
            paths = [_by_descriptor(path, held) for path in paths]
        options = [*options, "lowerdir=" + ":".join(paths[: len(lowers)])]
        if upper:
            options += [f"upperdir={paths[-2]}", f"workdir={paths[-1]}"]
        kernel.mount(source, target, "overlay", flags, ",".join(options))


def _by_descriptor(path: str, held: contextlib.ExitStack) -> str:
    """A name of the directory that is short and has no odd characters."""
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    held.callback(os.close, descriptor)
    return f"/proc/self/fd/{descriptor}"


def _is_overlay(folder: str) -> bool:
    """Tells whether statfs(2) calls it an overlay. Raises OSError."""
    answer = ctypes.create_string_buffer(512)
    check(_libc.statfs(os.fsencode(folder), answer), folder)
    kind: int = struct.unpack_from("@l", answer)[0]  # f_type comes first
    return kind == _OVERLAY_MAGIC


def _refused(target: str, folder: str, error: OSError) -> MountError:
    reason = os.strerror(error.errno or 0)
    subject = error.filename if error.filename not in (None, target) else folder
    return MountError(f"{target}: no overlay with {subject}: {reason}", hint=_OVERLAY_HINTS.get(error.errno or 0, ""))
