"""`python -m imagefs.daemon.umount_helper`: unmounts what the daemon mounted for processes that have ended.

On standard input it takes a JSON object with `target`. What is busy stays, and standard error says because of whom.
"""

from __future__ import annotations

import json
import sys

from stripefs.errors import MountError
from stripefs.mount import kernel
from stripefs.mount.unmounting import unmount

__all__ = ["main"]


def main() -> int:
    """The program; its exit code."""
    target = json.loads(sys.stdin.read())["target"]
    if kernel.find_mount(target) is None:
        return 0
    try:
        unmount(target)
    except MountError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
