"""The kernel's own EROFS over a local metadata image and the devices with the data."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from stripefs.errors import MountError
from stripefs.mount import kernel

__all__ = ["mount"]

_MS_RDONLY = 1


def mount(metadata: str, devices: Sequence[str], target: str) -> None:
    """Mount the image at `target`, read-only. Files as devices need a kernel of 6.12; block devices any since 5.16.

    The system call and not mount(8), which may quietly put a loop device in between. Raises MountError.
    """
    for path in devices:
        if "," in path:
            raise MountError(f"{path}: the kernel takes no device whose path has a comma in it")
    options = ",".join(f"device={path}" for path in devices)
    try:
        kernel.mount(metadata, target, "erofs", _MS_RDONLY, options)
    except OSError as error:
        hint = (
            "file-backed EROFS needs Linux 6.12 and CONFIG_EROFS_FS_BACKED_BY_FILE"
            if error.errno == errno.ENOTBLK
            else ""
        )
        raise MountError(f"{target}: EROFS refused {metadata}: {os.strerror(error.errno or 0)}", hint=hint) from error
