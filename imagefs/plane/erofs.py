"""The kernel's own EROFS over a local metadata image and the devices with the data.

Since Linux 6.12 the kernel takes files as they are (`file`); before, and where it refuses them because they lie on an
overlay, a loop device stands before each of them (`loop`). Devices may be files of a FUSE mount whose every answer
waits for a worker, so nothing here looks at them: the kernel opens them, and nobody reads before the mount is used.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from typing import Literal, NamedTuple

from imagefs.plane import loop
from stripefs.errors import MountError
from stripefs.fuse import kernel

__all__ = ["Backing", "ErofsMount", "mount", "mounted"]

Backing = Literal["file", "loop"]

_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4

_NO_FILES = (errno.ENOTBLK, errno.EINVAL, errno.EOPNOTSUPP)
"""What the kernel answers when it cannot mount files: it is too old or built without, or they lie on an overlay."""

_HINTS = {
    errno.ENOTBLK: "file-backed EROFS needs Linux 6.12 and CONFIG_EROFS_FS_BACKED_BY_FILE: --erofs-backing loop",
    errno.EINVAL: "dmesg says more; where the file lies on an overlay: --erofs-backing loop",
    errno.ENODEV: "the kernel has no EROFS: modprobe erofs, or --plane tree",
    errno.EPERM: "mounting needs root: --plane tree does without",
}


class ErofsMount(NamedTuple):
    """One EROFS mount: its mountpoint, the metadata image it was mounted from, and what was put before the files.

    metadata: "" for a loop device whose file is not known any more, and the device for any other block device.
    """

    path: str
    metadata: str
    backing: Backing


def mount(
    metadata: str,
    devices: Sequence[str],
    target: str,
    backing: Literal["auto", "file", "loop"] = "auto",
    *,
    confined: bool = False,
) -> Backing:
    """Mount the image at `target`, read-only. Answers what was put before the files. confined: with nosuid and nodev.

    `auto` takes loop devices where the kernel refuses files. The system call and not mount(8), which may quietly do
    so anywhere. Raises MountError.
    """
    metadata, devices = os.path.abspath(metadata), [os.path.abspath(device) for device in devices]
    flags = _MS_RDONLY | (_MS_NOSUID | _MS_NODEV if confined else 0)
    if backing != "loop":
        try:
            _mount(metadata, devices, target, flags)
        except OSError as error:
            if backing == "file" or error.errno not in _NO_FILES:
                raise _refused(metadata, target, error) from error
        else:
            return "file"
    with loop.attached([metadata, *devices]) as (first, *others):
        try:
            _mount(first, others, target, flags)
        except OSError as error:
            raise _refused(metadata, target, error) from error
    return "loop"


def mounted() -> list[ErofsMount]:
    """All EROFS mounts that this process sees, oldest first; of other programs too. Touches none of them."""
    found = []
    for one in kernel.mounts():
        if one.fstype != "erofs":
            continue
        is_loop = one.source.startswith("/dev/loop")
        metadata = loop.backing_file(one.source) if is_loop else one.source
        found.append(ErofsMount(one.path, metadata, "loop" if is_loop else "file"))
    return found


def _mount(source: str, devices: Sequence[str], target: str, flags: int) -> None:
    """Raises OSError."""
    with contextlib.ExitStack() as held:
        options = []
        for device in devices:
            if "," in device:  # would end the option; the kernel has no way to escape it
                descriptor = os.open(device, os.O_PATH | os.O_CLOEXEC)
                held.callback(os.close, descriptor)
                device = f"/proc/self/fd/{descriptor}"
            options.append(f"device={device}")
        kernel.mount(source, target, "erofs", flags, ",".join(options))


def _refused(metadata: str, target: str, error: OSError) -> MountError:
    hint = _HINTS.get(error.errno or 0, "")
    return MountError(f"{target}: EROFS refused {metadata}: {os.strerror(error.errno or 0)}", hint=hint)
