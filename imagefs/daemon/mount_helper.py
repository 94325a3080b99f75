"""`python -m imagefs.daemon.mount_helper`: mounts images for holders of leases, and unmounts what nobody uses any more.

A process of its own: the kernel reads the devices of a lazy image from the daemon while it mounts them, and an unmount
may wait for the daemon. On standard input it takes a JSON object of one member:

    mount     `target`, `metadata`, `devices` (paths), `lazy` where the daemon serves any of these, and `tree`, where
              the daemon has the image mounted already (`path` and `device` of a descriptor, see
              `imagefs.plane.kernel_mounts`) or null. A mount at the target that a killed daemon left is hidden first.
    unmount   `target`, `remove` where that folder is to go as well (with which the kernel takes away copies of the
              mount in other mount namespaces), and `lazy` where it is only hidden. A busy mount stays otherwise, and
              standard error says because of whom.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

from imagefs.plane import erofs, kernel_mounts
from stripefs.errors import StripefsError
from stripefs.fuse import kernel
from stripefs.fuse.mounting import unmount

__all__ = ["main"]


def main() -> int:
    """The program; its exit code."""
    ((action, facts),) = json.loads(sys.stdin.read()).items()
    try:
        {"mount": _mount, "unmount": _unmount}[action](facts)
    except (StripefsError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _mount(facts: dict[str, Any]) -> None:
    target: str = facts["target"]
    os.makedirs(target, mode=0o700, exist_ok=True)
    while kernel.find_mount(target) is not None:
        unmount(target, lazy=True)
    if (tree := facts.get("tree")) is not None:
        with contextlib.suppress(OSError):  # the worker that had it has just ended
            descriptor = kernel_mounts.copy(tree["path"], tree["device"])
            try:
                kernel_mounts.show(descriptor, target)
            finally:
                os.close(descriptor)
            return
    with erofs.lazy_read_ahead() if facts.get("lazy") else contextlib.nullcontext():
        erofs.mount(facts["metadata"], facts["devices"], target)


def _unmount(facts: dict[str, Any]) -> None:
    target: str = facts["target"]
    if kernel.find_mount(target) is not None:
        unmount(target, lazy=bool(facts.get("lazy")))
    if facts.get("remove"):
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(target)


if __name__ == "__main__":
    sys.exit(main())
