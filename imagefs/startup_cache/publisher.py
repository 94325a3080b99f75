"""`python -m imagefs.startup_cache.publisher`: publishes the caches that a job has filled, while the job goes on.

On standard input comes one line, a JSON object: `job` (a `Job` of `imagefs.deps.publish`), `folder` (what the container
wrote) and `copy` (a path where nothing is yet). When standard input ends this ends as well, at once and with nothing
published that was not yet. How it ended is kept and told as `imagefs.deps.publisher` does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from imagefs.deps.publish import Job
from imagefs.deps.publisher import conclude
from imagefs.startup_cache.capture import captured

__all__ = ["main"]


def main() -> int:
    """The program; its exit code."""
    with open(0, "rb", buffering=0, closefd=False) as lines:
        wish = json.loads(lines.readline())
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_input, daemon=True).start()
    return conclude(Job(**wish["job"]), captured(wish["folder"], wish["copy"]))


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # the main thread then takes back what it stored, and lets others lead


if __name__ == "__main__":
    sys.exit(main())
