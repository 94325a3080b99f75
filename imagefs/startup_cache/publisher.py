"""The process that publishes the caches a job has filled, while the job goes on: its beginning and end, and itself.

`python -m imagefs.startup_cache.publisher` takes one line on standard input, a JSON object: `job` (a `Job` of
`imagefs.deps.publish`), `folder` (the directory that the container writes to) and `copy` (a path where nothing is yet).
When its standard input ends it ends as well, with nothing published that was not yet; so it never outlives the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from imagefs.deps.publish import Job
from imagefs.deps.publisher import conclude
from imagefs.startup_cache.capture import captured

__all__ = ["Publishing", "main"]

_GRACE, _ENDS_WITHIN = 10.0, 5.0
"""Seconds that publishing may go on after a job that ended well; and to take back what is not published."""


class Publishing:
    """The process, as the run of the job sees it. `tell` gets the lines for people."""

    def __init__(self, job: Job, folder: str, copy: str, tell: Callable[[str], None]) -> None:
        self._job, self._folder, self._copy, self._tell = job, folder, copy, tell
        self._log = Path(f"{copy}.log")  # of this run alone: others may publish under the same key
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start it. Called on a thread of its own, which ends before `end` is called."""
        command = [sys.executable, "-P", "-m", "imagefs.startup_cache.publisher"]
        wish = {"job": self._job._asdict(), "folder": self._folder, "copy": self._copy}
        try:
            with open(self._log, "wb") as log:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, cwd="/"
                )
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(wish).encode() + b"\n")
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
        wish = json.loads(lines.readline())
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the run holds it back for itself
    threading.Thread(target=_end_with_input, daemon=True).start()
    return conclude(Job(**wish["job"]), captured(wish["folder"], wish["copy"]))


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # the main thread then takes back what it stored, and lets others lead


if __name__ == "__main__":
    sys.exit(main())
