"""Processes that use images: distinguished from later ones of the same number, and the mounts that they see.

Facts come from /proc; nothing here touches a mount.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from stripefs.errors import MountError

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    from stripefs.fuse import kernel

__all__ = ["began", "must_be_seen", "namespace", "started_by", "tables"]

_STATE, _PARENT, _STARTED = 0, 1, 19
"""Places of `state`, `ppid` and `starttime` behind the name, in the stat of proc(5)."""


def began(process: int) -> int:
    """Time at which the process was started, in ticks since the machine was; 0 when there is none, or it has ended."""
    _, fields = _stat(process)
    return int(fields[_STARTED]) if fields and fields[_STATE] not in (b"Z", b"X") else 0


def started_by(process: int) -> tuple[str, int]:
    """The name of the process, and its parent, 0 for none that is to be seen; "" and 0 when there is no process."""
    name, fields = _stat(process)
    return (name, int(fields[_PARENT])) if fields else ("", 0)


def _stat(process: int) -> tuple[str, list[bytes]]:
    """Its name, and the fields behind; none when there is no process."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            head, _, rest = file.read().rpartition(b")")
    except OSError:
        return "", []
    return head.partition(b"(")[2].decode("utf-8", "replace"), rest.split()


def must_be_seen(process: int, since: int) -> None:
    """Raise MountError unless the process that began `since` is there; 0 stands for no process, and never ends."""
    if process and began(process) != since:
        raise MountError(
            f"process {process} is not to be seen by the daemon",
            hint="both must be in one PID namespace: start the daemon in this one, with a --runtime of its own",
        )


def namespace() -> int:
    """The mount namespace of this process."""
    return os.stat("/proc/self/ns/mnt").st_ino


def tables(namespaces: Collection[int] | None = None) -> dict[int, list[kernel.MountPoint]]:
    """The mounts in each of these mount namespaces, None for all; nothing in one in which there is no process.

    Of processes that we may look at. Raises OSError.
    """
    from stripefs.fuse import kernel  # most callers need none of it

    own = namespace()
    found: dict[int, list[kernel.MountPoint]] = {one: [] for one in namespaces or ()}
    if namespaces is None or own in namespaces:
        found[own] = kernel.mounts()
    if namespaces is not None and set(namespaces) <= {own}:
        return found
    seen = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it ended, or is another user's
                there = os.stat(f"/proc/{name}/ns/mnt").st_ino
                view = there, os.readlink(f"/proc/{name}/root")  # each sees what is below its own root
                if there != own and view not in seen and (namespaces is None or there in namespaces):
                    with open(f"/proc/{name}/mountinfo", "rb") as file:
                        found[there] = found.get(there, []) + kernel.parse_mountinfo(file.read())
                    seen.add(view)
    return found
