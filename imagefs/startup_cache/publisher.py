"""The process that publishes the caches a job has filled, while the job goes on: its beginning and end, and itself.

`python -m imagefs.startup_cache.publisher` takes one line on standard input, a JSON object: `job` (a `PublishJob` of
`imagefs.deps.publish`), `folder` (the directory that the container writes to) and `copy` (a path where nothing is yet).
When its standard input ends it ends as well, with nothing published that was not yet; so it never outlives the run.

The job goes on and may write to its caches. So the files that are whole are copied first, and the copy, a
`SnapshotPlace` of `imagefs.deps.publish`, is packed. docs/startup-caches.md tells which files are whole, and what is
refused.

A job may put a link in the place of a directory meanwhile. A file that was looked at is therefore opened without
following any, and nothing outside of the folder is read.

A file that is open for writing is found by a read lease (F_SETLEASE), which the kernel refuses for it. The lease is
given back at once, so no writer waits.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from imagefs.build.content import scan
from imagefs.deps import inventory
from imagefs.deps.capture import CapturedTree
from imagefs.deps.check.tree import Findings, check_privileged
from imagefs.deps.engine import SmokeTestResult
from imagefs.deps.inventory import FileFacts, Inventory
from imagefs.deps.publish import PublishJob, SnapshotPlace, conclude
from imagefs.errors import SnapshotError
from imagefs.format.documents import SnapshotKind
from imagefs.startup_cache.key import FOLDER
from stripefs.units import format_size

__all__ = ["MOST_BYTES", "MOST_FILES", "Publishing", "captured", "main"]

_GRACE, _ENDS_WITHIN = 10.0, 5.0
"""Seconds that publishing may go on after a job that ended well; and to take back what is not published."""

MOST_BYTES, MOST_FILES = 4 << 30, 200_000
"""Beyond these a folder is no cache of compiled code, and every node would have to fetch it."""

_PASSING = re.compile(
    r"(.*/)?(locks/.*|tmp\.[^/]*(/.*)?|[^/]*\.tmp\.[^/]*|[^/]*\.(tmp|temp|swp)|([^/]*[.-])?lock|[^/]*\.pyc\.\d+)",
    re.DOTALL,
)
"""Paths of files that caches write under another name first, or hold as locks. Some wait until a lock is gone: torch
for ever, for a `lock` beside an extension that it loads."""


class Publishing:
    """The process, as the run of the job sees it. `tell` gets the lines for people."""

    def __init__(self, job: PublishJob, folder: str, copy: str, tell: Callable[[str], None]) -> None:
        self._job, self._folder, self._copy, self._tell = job, folder, copy, tell
        self._log = Path(f"{copy}.log")  # of this run alone: others may publish under the same key
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start it. Called on a thread of its own, which ends before `end` is called."""
        command = [sys.executable, "-P", "-m", "imagefs.startup_cache.publisher"]
        request = {"job": self._job._asdict(), "folder": self._folder, "copy": self._copy}
        try:
            with open(self._log, "wb") as log:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, cwd="/"
                )
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            self._tell(f"the start-up caches are not published: {error}")

    def end(self, *, failed: bool) -> None:
        """Wait until it has ended, which is a moment; say how."""
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if failed else _GRACE)
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        told = []
        with contextlib.suppress(OSError):  # the cache was removed
            told = self._log.read_text(errors="replace").splitlines()
        for line in told or ["the start-up caches are not published, since the run has ended"]:
            self._tell(line.removeprefix("imagefs: "))


def main() -> int:
    """The program; its exit code."""
    with open(0, "rb", buffering=0, closefd=False) as lines:
        request = json.loads(lines.readline())
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the run holds it back for itself
    threading.Thread(target=_end_with_input, daemon=True).start()
    return conclude(PublishJob(**request["job"]), captured(request["folder"], request["copy"]))


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # the main thread then takes back what it stored, and lets others lead


class Captured:
    """A copy of the caches, which nobody writes to. A `SnapshotPlace`."""

    kind: SnapshotKind = "cache"
    targets: tuple[str, ...] = (FOLDER,)

    def __init__(self, copy: str) -> None:
        self._copy = copy

    def changed(self) -> Sequence[str]:
        return ()

    def look(self) -> tuple[Inventory, Findings]:
        return inventory.take(self._copy), Findings((), ())

    def capture(self) -> CapturedTree:
        return scan(self._copy)

    def smoke_test(self, image: str) -> SmokeTestResult:
        return SmokeTestResult("")


@contextlib.contextmanager
def captured(folder: str, copy: str) -> Iterator[SnapshotPlace | None]:
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


def _copy(source: str, target: str, facts: FileFacts) -> bool:
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
def _opened(path: str, facts: FileFacts) -> Iterator[int]:
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


def _describe(target: str, facts: FileFacts) -> None:
    os.chown(target, facts.uid, facts.gid)
    os.chmod(target, stat.S_IMODE(facts.mode))
    os.utime(target, ns=(facts.modified_ns, facts.modified_ns))


def _is_same(descriptor: int, facts: FileFacts) -> bool:
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


if __name__ == "__main__":
    sys.exit(main())
