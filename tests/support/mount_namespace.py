"""Commands in a mount namespace of their own, which let go of what other tests have mounted.

A new mount namespace has a copy of every mount there is. Where the machine's mounts are private, as in most containers,
what is unmounted outside lives on in that copy: a FUSE connection does not end, the directories of an overlay stay in
use, and a test that looks for either fails because another one runs beside it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import imagefs
from imagefs.run.namespace import private_mounts, unmount_others

__all__ = ["unshared"]


def unshared(folder: Path, *command: str, prepare: str = "true") -> tuple[str, ...]:
    """The command line that runs `command` where nobody else sees what it mounts or unmounts. For root.

    folder: the test's own; FUSE mounts and images below it are there too, all others are not.
    prepare: shell commands that come first, in the same namespace. Words added to the line are added to `command`.
    """
    become = ("sh", "-c", f'{prepare} && exec "$@"', "sh", *command)
    return (sys.executable, "-P", __file__, str(folder), *become)


def _run(folder: str, command: list[str]) -> None:
    private_mounts()
    unmount_others([folder, sys.prefix, *imagefs.__path__])
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and that would be inherited
        signal.signal(number, signal.SIG_DFL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2:])
