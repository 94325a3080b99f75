"""The caches that a job has filled, as a tree to be published: a `Place` of `imagefs.deps.publish`.

The job goes on and may write there. So the files that are whole are copied first, and the copy is packed: regular files
that nobody has open for writing, whose facts are the same before and after they were copied. Temporary and lock files,
files of more than one name, sockets and pipes are left out; a program that gives privileges stands against all of it.

A job may put a link in the place of a directory meanwhile. What was looked at is therefore opened without following
any, and nothing outside of the folder is read.

A file that is open for writing is found by a read lease (F_SETLEASE), which the kernel refuses for it. The lease is
given back at once, so no writer waits.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import signal
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from imagefs.build.directory import scan
from imagefs.deps import inventory
from imagefs.deps.capture import Tree
from imagefs.deps.check.tree import Findings, check_privileged
from imagefs.deps.inventory import Facts, Inventory
from imagefs.deps.packed import Tried
from imagefs.deps.publish import Place
from imagefs.errors import SnapshotError
from imagefs.format.snapshot import Kind
from imagefs.startup_cache.table import FOLDER
from stripefs.units import format_size

__all__ = ["MOST_BYTES", "MOST_FILES", "captured"]

MOST_BYTES, MOST_FILES = 4 << 30, 200_000
"""Beyond these a folder is no cache of compiled code, and every node would have to fetch it."""

_PASSING = re.compile(
    r"(.*/)?(locks/.*|tmp\.[^/]*(/.*)?|[^/]*\.tmp\.[^/]*|[^/]*\.(tmp|temp|swp)|([^/]*[.-])?lock|[^/]*\.pyc\.\d+)",
    re.DOTALL,
)
"""Paths of files that caches write under another name first, or hold as locks. Some wait until a lock is gone: torch
for ever, for a `lock` beside an extension that it loads."""


class Captured:
    """A copy of the caches, which nobody writes to. A `Place`."""

    kind: Kind = "cache"
    targets: tuple[str, ...] = (FOLDER,)

    def __init__(self, copy: str) -> None:
        self._copy = copy

    def changed(self) -> Sequence[str]:
        return ()

    def look(self) -> tuple[Inventory, Findings]:
        return inventory.take(self._copy), Findings((), ())

    def capture(self) -> Tree:
        return scan(self._copy)

    def tried(self, image: str) -> Tried:
        return Tried("")


@contextlib.contextmanager
def captured(folder: str, copy: str) -> Iterator[Place | None]:
    """Copy the files that are whole below `folder` to `copy` until the block ends. Raises SnapshotError, OSError."""
    try:
        seen = inventory.take(os.path.realpath(folder))
        chosen = {
            path: facts
            for path, facts in seen.entries.items()
            if (facts.is_directory or facts.is_link or facts.is_file) and not _PASSING.fullmatch(path)
        }
        for privileged in check_privileged(seen):
            raise SnapshotError(f"{privileged.subject} in the caches is {privileged.what}")
        files = [facts for facts in chosen.values() if not facts.is_directory]
        size = sum(facts.size for facts in files)
        if size > MOST_BYTES or len(files) > MOST_FILES:
            raise SnapshotError(
                f"the caches hold {format_size(size)} in {len(files)} files, and at most {format_size(MOST_BYTES)} in "
                f"{MOST_FILES} are published"
            )
        if not sum(_copy(seen.path(path), os.path.join(copy, path), facts) for path, facts in chosen.items()):
            raise SnapshotError("the job has written nothing to its caches that is whole")
        for path in sorted((path for path, facts in chosen.items() if facts.is_directory), reverse=True):
            with contextlib.suppress(FileNotFoundError):  # it was not copied
                _describe(os.path.join(copy, path), chosen[path])  # its time last, after all that is made in it
        yield Captured(copy)
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _copy(source: str, target: str, facts: Facts) -> bool:
    """Copy one entry; whether a file was copied whole, and is not left out."""
    with (
        contextlib.suppress(FileNotFoundError),  # it was removed since, or what it lies in was not copied
        _opened(source, facts) as descriptor,
    ):
        if facts.is_directory:
            os.mkdir(target, 0o700)
        elif facts.is_link:
            os.symlink(os.readlink("", dir_fd=descriptor), target)
            os.chown(target, facts.uid, facts.gid, follow_symlinks=False)
        elif _is_same(descriptor, facts) and not _is_written(descriptor):
            with open(descriptor, "rb", closefd=False) as file, open(target, "xb") as made:
                shutil.copyfileobj(file, made)
            if _is_same(descriptor, facts):
                _describe(target, facts)
                return True
            Path(target).unlink()
    return False


@contextlib.contextmanager
def _opened(path: str, facts: Facts) -> Iterator[int]:
    """A descriptor of an entry. Raises FileNotFoundError where there is something else, or a link above it."""
    how = os.O_RDONLY | os.O_NONBLOCK if facts.is_file else os.O_PATH
    try:
        descriptor = os.open(path, how | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise FileNotFoundError(path) from error
        raise
    try:
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        if place != path.rstrip("/") or os.fstat(descriptor).st_ino != facts.inode:
            raise FileNotFoundError(path)
        yield descriptor
    finally:
        os.close(descriptor)


def _describe(target: str, facts: Facts) -> None:
    os.chown(target, facts.uid, facts.gid)
    os.chmod(target, stat.S_IMODE(facts.mode))
    os.utime(target, ns=(facts.modified_ns, facts.modified_ns))


def _is_same(descriptor: int, facts: Facts) -> bool:
    found = os.fstat(descriptor)
    now = (found.st_nlink, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return now == (1, facts.inode, facts.size, facts.modified_ns, facts.changed_ns)


def _is_written(descriptor: int) -> bool:
    """True where somebody has it open for writing; False where the file system cannot tell."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # which a writer that comes just now would have sent
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        signal.signal(signal.SIGIO, before)
    return False
