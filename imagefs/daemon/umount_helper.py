"""`python -m imagefs.daemon.umount_helper`: unmounts what the daemon mounted for processes that have ended.

On standard input it takes a JSON object with `target`, `remove` where that folder is to go as well (with which the
kernel takes away copies of the mount in other mount namespaces), and `lazy` where it is only hidden. A busy mount stays
otherwise, and standard error says because of whom.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

from stripefs.errors import MountError
from stripefs.fuse import kernel
from stripefs.fuse.mounting import unmount

__all__ = ["main"]


def main() -> int:
    """The program; its exit code."""
    facts = json.loads(sys.stdin.read())
    target: str = facts["target"]
    try:
        if kernel.find_mount(target) is not None:
            unmount(target, lazy=bool(facts.get("lazy")))
        if facts.get("remove"):
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(target)
    except (MountError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
