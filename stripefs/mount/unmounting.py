"""Taking a mount away, and saying who keeps it."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import time

from stripefs.errors import MountError
from stripefs.mount import kernel

__all__ = ["unmount", "users"]

_NAMED = 5
"""So many users the message names."""

_PATIENCE, _PAUSE = 1.0, 0.02
"""Seconds that a mount may be busy, and between looks: who only looks at a process's files in /proc keeps a mount for a
moment."""


def unmount(target: str, *, lazy: bool = False) -> None:
    """Unmount what is on top at `target`. Loop devices and memory that the mount held go with it.

    lazy: hide it now, and let it end when its last user does. Raises MountError, which names users where it is busy.
    """
    give_up = time.monotonic() + _PATIENCE
    while True:
        try:
            return _unmount(target, lazy)
        except OSError as error:
            if error.errno != errno.EBUSY:
                hint = {errno.EINVAL: "nothing is mounted there", errno.EPERM: "unmounting needs root"}
                raise MountError(
                    f"{target} cannot be unmounted: {error.strerror}", hint=hint.get(error.errno or 0, "")
                ) from error
            if time.monotonic() > give_up:
                raise _busy(target) from error
        time.sleep(_PAUSE)


def users(target: str) -> list[str]:
    """Mounts below `target` (a path without links), and processes that stand or keep files there, for people to read.

    Of processes that we may look at. Only names that the kernel knows already are compared; the mount is not touched.
    """
    below = target.rstrip("/") + "/"
    found = [f"mount {one.path}" for one in kernel.mounts() if one.path.startswith(below)]
    processes = [name for name in os.listdir("/proc") if name.isdigit() and _uses(f"/proc/{name}", target, below)]
    return found + [f"process {name} ({_command(name)})" for name in processes]


def _unmount(target: str, lazy: bool) -> None:
    """Raises OSError, and MountError with what fusermount3 said."""
    if os.geteuid() != 0 and (here := kernel.find_mount(target)) is not None and here.fstype.startswith("fuse."):
        from stripefs.mount import unprivileged  # which root never needs

        unprivileged.unmount(target, lazy=lazy)
    else:
        kernel.unmount(target, kernel.MNT_DETACH if lazy else 0)


def _busy(target: str) -> MountError:
    found = users(os.path.realpath(target))
    if not found:
        return MountError(
            f"{target} is busy", hint=f"fuser -vm {shlex.quote(target)} names the processes that use it; or give --lazy"
        )
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return MountError(
        f"{target} is busy: {', '.join(found[:_NAMED])}{more}", hint="end what uses it first, or give --lazy"
    )


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
