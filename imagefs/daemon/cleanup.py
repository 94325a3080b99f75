"""`python -m imagefs.daemon.cleanup`: what uses of images have on a host besides their mounts, and its removal.

    CACHE/upper/ID                   what is written to a mount
    RUNTIME/imagefs/mounts/ID/lower  the tree below an overlay, until that stands and holds it
    RUNTIME/imagefs/ready/ID         a client writes here that a container's job has started

ID is the attachment's. The process that ends a use removes them; where that was killed the daemon has this program do
it, because an unmount may wait for the daemon itself. On standard input it takes a JSON object: `cache`, `runtime`,
`ids`. A folder that an overlay somewhere still stands on is left. Containers that were killed are swept up too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sys
from collections.abc import Collection

from imagefs.settings import ready_folder
from stripefs.errors import MountError
from stripefs.fuse import kernel
from stripefs.osutil import remove_tree, try_flock

__all__ = ["clear", "find", "hold", "lower_folder", "remove_lower", "unmount_overlay", "upper_folder"]

_ID = r"[0-9a-f]{32}"


def upper_folder(cache: str, identifier: str) -> str:
    """The folder for what is written; also the source of the overlay, by which it is found again."""
    return os.path.join(os.path.abspath(cache), "upper", identifier)


def lower_folder(runtime: str, identifier: str) -> str:
    """The directory with the tree that something else stands on. As the kernel spells it."""
    return os.path.join(os.path.realpath(runtime), "imagefs/mounts", identifier, "lower")


def find(cache: str, runtime: str) -> set[str]:
    """All attachments of which there is something. Raises OSError."""
    found = set()
    places = upper_folder(cache, "ID"), os.path.dirname(lower_folder(runtime, "ID")), ready_folder(runtime, "ID")
    for folder in map(os.path.dirname, places):
        with contextlib.suppress(FileNotFoundError):
            found |= {name for name in os.listdir(folder) if re.fullmatch(_ID, name)}
    return found


def clear(cache: str, runtime: str, identifier: str, in_use: Collection[str] = ()) -> None:
    """Remove what there is of an attachment. in_use: sources of overlays that stand. Raises OSError, MountError.

    Of a container that runs nothing is removed: it may have outlived the daemon that knew it.
    """
    if _is_held(ready_folder(runtime, identifier)):
        return
    lower, upper = lower_folder(runtime, identifier), upper_folder(cache, identifier)
    unmount_overlay(lower)
    remove_lower(lower)
    if upper not in in_use:
        unmount_overlay(os.path.realpath(upper))
        _remove(upper)
    _remove(ready_folder(runtime, identifier))


def unmount_overlay(path: str) -> None:
    """Unmount whatever is mounted there, whoever uses it. Raises MountError."""
    while kernel.find_mount(path) is not None:
        from stripefs.fuse.mounting import unmount  # a container is to start at once, and seldom leaves a mount

        unmount(path, lazy=True)


def remove_lower(lower: str) -> None:
    """Remove the folder, in which nothing is mounted. Raises OSError."""
    for folder in (lower, os.path.dirname(lower)):
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(folder)


def hold(folder: str) -> int:
    """A descriptor that keeps all of an attachment, whose `ready_folder` this is, as long as it is open."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _is_held(folder: str) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_flock(descriptor)
    finally:
        os.close(descriptor)


def _remove(folder: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # somebody else removes it too
        remove_tree(folder)


def main() -> int:
    """The program; its exit code."""
    from pathlib import Path

    from imagefs.daemon import processes
    from imagefs.run.bundle import sweep
    from stripefs.fuse.control import find_mounts

    given = json.loads(sys.stdin.read())
    cache, runtime = given["cache"], given["runtime"]
    in_use = {mount.source for table in processes.tables().values() for mount in table if mount.fstype == "overlay"}
    code = 0
    for identifier in given["ids"]:
        try:
            clear(cache, runtime, identifier, in_use)
        except (OSError, MountError) as error:
            sys.stderr.write(f"{identifier}: {error}\n")
            code = 1
    find_mounts(Path(runtime, "imagefs/trees"))  # which removes what killed supervisors left there
    sweep(os.path.join(runtime, "imagefs"))
    return code


if __name__ == "__main__":
    sys.exit(main())
