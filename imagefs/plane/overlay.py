"""One overlay above the trees of an image: a place to write (`--rw`), or further trees to look into.

Everything that changes goes to `upper` below a folder of the caller's; the image stays as it is. Directories that are
renamed answer EXDEV and files are copied up whole (redirect_dir, metacopy and index off), so that `upper` alone says
what was changed, in the whiteouts and opaque directories that every tool knows.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from stripefs.errors import MountError
from stripefs.fuse import kernel

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from typing import Literal

    UpperKind = Literal["disk", "memory"]

__all__ = ["lasting", "mount", "mount_read_only"]

_MS_RDONLY = 1
_MAGIC = 0x794C7630  # OVERLAYFS_SUPER_MAGIC of include/uapi/linux/magic.h
_LONG = 3000

_OPTIONS = ("metacopy=off", "index=off", "xino=off")
"""xino would make one device of all layers, by inode numbers past 2^63, which some programs cannot hold."""

_HINTS = {
    errno.EINVAL: "dmesg says more; an upper directory needs a local file system with extended attributes",
    errno.ENODEV: "the kernel has no overlay file system: modprobe overlay",
    errno.EPERM: "mounting needs root",
    errno.ELOOP: "a lower directory lies on too many file systems that stand on one another",
    errno.ESTALE: "the upper directory was used with another image",
}

_libc = ctypes.CDLL(None, use_errno=True)


def mount(
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
            upper, work = _make(folder, lowers[0])
            more = ["volatile"] if volatile else []
            _mount(lowers, target, folder, 0, [*_options(rootless), *more], upper, work)
        finally:
            if kind == "memory":
                kernel.unmount(folder, kernel.MNT_DETACH)  # the overlay alone holds it from here on
    except OSError as error:
        raise _refused(target, folder, error) from error
    return kind


def lasting(folder: str) -> UpperKind:
    """Make a folder whose upper directory is there when its overlay is not, for `mount`; where that is.

    Where it lies on an overlay itself it is memory, which stays mounted there until it is taken off. Raises OSError.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    if not _is_overlay(folder):
        return "disk"
    _on_memory(folder)
    return "memory"


def mount_read_only(lowers: Sequence[str], target: str, *, rootless: bool = False) -> None:
    """Mount two or more trees on one another, the first on top, so that nobody can write. Raises MountError."""
    try:
        _mount(lowers, target, "imagefs", _MS_RDONLY, _options(rootless))
    except OSError as error:
        raise _refused(target, lowers[0], error) from error


def _options(rootless: bool) -> list[str]:
    """Renames of directories are followed nowhere; "off" would follow those of trusted.* where a kernel is built so."""
    return [*_OPTIONS, *(["redirect_dir=nofollow", "userxattr"] if rootless else ["redirect_dir=off"])]


def _on_memory(folder: str) -> None:
    kernel.mount("imagefs", folder, "tmpfs", 0, "mode=700")


def _make(folder: str, lower: str) -> tuple[str, str]:
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


def _mount(
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
    if _libc.statfs(os.fsencode(folder), answer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), folder)
    kind: int = struct.unpack_from("@l", answer)[0]  # f_type comes first
    return kind == _MAGIC


def _refused(target: str, folder: str, error: OSError) -> MountError:
    reason = os.strerror(error.errno or 0)
    subject = error.filename if error.filename not in (None, target) else folder
    return MountError(f"{target}: no overlay with {subject}: {reason}", hint=_HINTS.get(error.errno or 0, ""))
