"""A writer that can be told where to die: `python -m tests.soak.writers JSON`, a process of its own.

JSON: {"folder", "seed", "first", "until", "die", "tell"}. It writes versions `first` to `until` (excluded) of
FOLDER/file, as `tests.soak.versions` has them, and prints lines of JSON: {"published": N}; {"failed": N, "step": K,
"errno": E} for a call that failed, after which it begins that version again. die: [N, K, S]: SIGKILL itself S seconds
after step K of version N begins, or right before it when S is 0. tell: [N, K]: print {"at": [N, K]} before that step.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tests.soak.versions import Step, Version, version
from tests.support.checked_content import content

__all__ = ["FILE"]

FILE = "file"

_PATIENCE = 120.0
_PAUSE = 0.05  # before a failed version is begun again


class _Writer:
    def __init__(self, folder: Path, version_: Version) -> None:
        self._version = version_
        self._file = folder / FILE
        self._path = folder / f"{FILE}.tmp" if version_.beside else self._file
        self._descriptor = -1

    def do(self, step: Step) -> None:
        if step.what == "open":
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        elif step.what == "write":
            rest = memoryview(content(self._version.name, step.offset, step.length))
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        elif step.what == "fsync":
            os.fsync(self._descriptor)
        elif step.what == "close":
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
        else:
            os.replace(self._path, self._file)

    def give_up(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)


def main() -> int:
    wanted = json.loads(sys.argv[1])
    folder, seed = Path(wanted["folder"]), wanted["seed"]
    deadline = time.monotonic() + _PATIENCE
    number = wanted["first"]
    while number < wanted["until"]:
        this = version(seed, number)
        writer = _Writer(folder, this)
        try:
            for at, step in enumerate(this.steps):
                _pass(wanted, number, at)
                writer.do(step)
            _pass(wanted, number, len(this.steps))
        except OSError as error:
            writer.give_up()
            _say({"failed": number, "step": at, "errno": error.errno})
            if time.monotonic() > deadline:
                return 1
            time.sleep(_PAUSE)
            continue
        _say({"published": number})
        number += 1
    return 0


def _pass(wanted: dict[str, list[float]], number: int, step: int) -> None:
    """Tell or die where that was asked for."""
    if wanted.get("tell") == [number, step]:
        _say({"at": [number, step]})
    if (wanted.get("die") or [])[:2] == [number, step]:
        delay = wanted["die"][2]
        if not delay:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()


def _say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
