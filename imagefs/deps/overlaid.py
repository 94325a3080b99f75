"""`python -m imagefs.deps.overlaid FOLDER DIRECTORY… -- COMMAND`: runs a command that may write into directories which
stay as they are.

In a mount namespace of its own each directory has an overlay above itself, at its own path, so that links out of it,
paths beside it and repositories around it are what they are without that. What is written lies in FOLDER, which is its
caller's to remove. Where the kernel, or the rights of the user, do not allow that, the command writes into the
directories themselves, as it would without this program.
"""

from __future__ import annotations

import os
import sys

from imagefs.plane import overlay
from imagefs.run import namespace
from stripefs.errors import MountError

__all__ = ["main"]


def main(words: list[str]) -> None:
    """The program, which becomes the command. Raises OSError."""
    end = words.index("--")
    (folder, *directories), command = words[:end], words[end + 1 :]
    here = os.getcwd()
    try:
        namespace.private_mounts()
        for number, directory in enumerate(_outermost(directories)):
            upper = os.path.join(folder, str(number))
            overlay.mount([directory], upper, directory, without_disk="memory", volatile=True)
    except (MountError, OSError) as error:
        sys.stderr.write(f"imagefs: the source is built where it lies: {error}\n")
    os.chdir(here)  # which may be inside of one of them
    os.execvp(command[0], command)  # noqa: S606


def _outermost(directories: list[str]) -> list[str]:
    found: list[str] = []
    for one in sorted({os.path.realpath(path) for path in directories}):
        if not any(one.startswith(f"{other}/") for other in found):
            found.append(one)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
