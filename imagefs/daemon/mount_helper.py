"""`python -m imagefs.daemon.mount_helper`: mounts an image for holders of leases.

A process of its own: the kernel reads the devices of a lazy image from the daemon while it mounts them. On standard
input it takes a JSON object: `target`, `metadata`, `devices` (paths), and `tree`, where the daemon has the image
mounted already (`path` and `device` of a descriptor, see `imagefs.plane.mountapi`) or null. A mount at the target that
a killed daemon left is hidden first.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

from imagefs.plane import erofs, mountapi
from stripefs.errors import StripefsError
from stripefs.fuse import kernel
from stripefs.fuse.mounting import unmount

__all__ = ["main"]


def main() -> int:
    """The program; its exit code."""
    try:
        _mount(json.loads(sys.stdin.read()))
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
            descriptor = mountapi.copy(tree["path"], tree["device"])
            try:
                mountapi.show(descriptor, target)
            finally:
                os.close(descriptor)
            return
    erofs.mount(facts["metadata"], facts["devices"], target)


if __name__ == "__main__":
    sys.exit(main())
