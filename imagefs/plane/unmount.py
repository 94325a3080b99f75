"""Taking a mount of an image away, and saying who keeps it."""

from __future__ import annotations

import contextlib
import errno
import os

from stripefs.errors import MountError
from stripefs.mount import kernel

__all__ = ["unmount", "users"]

_NAMED = 5
"""So many users the message names."""


def unmount(target: str, *, lazy: bool = False) -> None:
    """Unmount what is on top at `target`. Loop devices and memory that the mount held go with it.

    lazy: hide it now, and let it end when its last user does. Raises MountError, which names users where it is busy.
    """
    try:
        kernel.unmount(target, kernel.MNT_DETACH if lazy else 0)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise MountError(f"{target} is busy{_because(target)}", hint="end them first, or give --lazy") from error
        hint = {errno.EINVAL: "nothing is mounted there", errno.EPERM: "unmounting needs root"}
        raise MountError(
            f"{target} cannot be unmounted: {os.strerror(error.errno or 0)}", hint=hint.get(error.errno or 0, "")
        ) from error


def users(target: str) -> list[str]:
    """Mounts below `target` (a path without links), and processes that stand or keep files there, for people to read.

    Of processes that we may look at. Only names that the kernel knows already are compared; the mount is not touched.
    """
    below = target.rstrip("/") + "/"
    found = [f"mount {one.path}" for one in kernel.mounts() if one.path.startswith(below)]
    processes = [name for name in os.listdir("/proc") if name.isdigit() and _uses(f"/proc/{name}", target, below)]
    return found + [f"process {name} ({_command(name)})" for name in processes]


def _because(target: str) -> str:
    found = users(os.path.realpath(target))
    if not found:
        return ""
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f": {', '.join(found[:_NAMED])}{more}"


def _uses(process: str, target: str, below: str) -> bool:
    links = [f"{process}/{name}" for name in ("cwd", "root", "exe")]
    with contextlib.suppress(OSError):  # it ended, or is another user's
        links += [f"{process}/fd/{number}" for number in os.listdir(f"{process}/fd")]
    for link in links:
        with contextlib.suppress(OSError):
            path = os.readlink(link)
            if path == target or path.startswith(below):
                return True
    try:
        with open(f"{process}/maps", "rb") as file:
            return os.fsencode(f" {below}") in file.read()
    except OSError:
        return False


def _command(process: str) -> str:
    try:
        with open(f"/proc/{process}/comm", "rb") as file:
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return "ended"
