"""A folder for what a build needs while it runs, gone when it ends, whichever way it ends.

Whoever uses one holds a lock on it, which ends with the process; so the next build can tell what a killed one left, and
removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imagefs.errors import BuildError

__all__ = ["local_errors", "scratch"]

_PREFIX = "build-"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A new folder below `parent`, which is made where it is missing. Raises BuildError."""
    with local_errors(parent):
        parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(parent):  # so that nobody sweeps ours away before it is locked
            _sweep(parent)
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            lock = os.open(folder, _DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def local_errors(where: Path | str) -> Iterator[None]:
    """Turn an OSError about a local file, else about `where`, into a BuildError."""
    try:
        yield
    except OSError as error:
        name = error.filename if isinstance(error.filename, str | bytes) else str(where)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise BuildError(
            f"{os.fsdecode(name)}: {error.strerror or error}",
            hint="nothing was published; --tmp names a folder with more space" if full else "",
        ) from error


def _sweep(parent: Path) -> None:
    """Remove the folders of builds that are no more."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _locked(folder, fcntl.LOCK_NB):  # in use, or just ended
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path, flags: int = 0) -> Iterator[None]:
    descriptor = os.open(folder, _DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(descriptor)
