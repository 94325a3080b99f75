"""A writer that can be told where to die: `python -m tests.soak.writers JSON`, a process of its own.

JSON: {"folder", "seed", "first", "until", "die", "tell"}. It writes versions `first` to `until` (excluded) of
FOLDER/file, which follow from the seed, and prints lines of JSON: {"published": N}; {"failed": N, "step": K, "errno":
E} for a call that failed, after which it begins that version again. die: [N, K, S]: SIGKILL itself S seconds after step
K of version N begins, or right before it when S is 0. tell: [N, K]: print {"at": [N, K]} before that step.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.checked_content import content

__all__ = ["FILE", "Outcome", "Version", "outcomes", "version"]

FILE = "file"

MIB = 1 << 20

_PATIENCE = 120.0
_PAUSE = 0.05  # before a failed version is begun again


@dataclass(frozen=True, slots=True)
class Step:
    """One system call. what: open, write, fsync, close or replace; offset and length in bytes for a write."""

    what: str
    offset: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True)
class Version:
    """Version `number` of a file: `length` bytes of `tests.support.checked_content` under `name`.

    beside: it is written as NAME.tmp and renamed over NAME, else under its own name from the start.
    """

    number: int
    name: str
    length: int
    beside: bool
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A permitted state after a death: version numbers of the file, and of the file beside it (None: there is none)."""

    file: int
    beside: int | None = None


def version(seed: int, number: int, largest: int = 20 * MIB) -> Version:
    """A function of its arguments alone. Lengths, in bytes, are small, of one part, or of many parts."""
    rng = random.Random(f"{seed} {number}")
    length = rng.choice((rng.randint(0, 100_000), rng.randint(MIB, 9 * MIB), rng.randint(9 * MIB, largest)))
    beside = rng.random() < 0.5
    return Version(number, f"{seed % 100_000}.{number}", length, beside, tuple(_steps(rng, length, beside)))


def _steps(rng: random.Random, length: int, beside: bool) -> Iterator[Step]:
    yield Step("open")
    piece = rng.choice((100_000, MIB, 3 * MIB + 1))
    for offset in range(0, length, piece):
        yield Step("write", offset, min(piece, length - offset))
        if rng.random() < 0.05:
            yield Step("fsync")
    if rng.random() < 0.5:
        yield Step("fsync")
    yield Step("close")
    if beside:
        yield Step("replace")


def outcomes(version: Version, step: int, *, exact: bool = True) -> set[Outcome]:
    """Permitted states when the writer died right before `step`, counted from 0, or (not exact) somewhat later.

    Before its close nothing of it is visible; after that all of it is.
    """
    found = {_after(version, step)}
    if not exact:
        found |= {_after(version, later) for later in range(step, len(version.steps) + 1)}
    return found


def _after(version: Version, step: int) -> Outcome:
    done = {step.what for step in version.steps[:step]}
    if not version.beside:
        return Outcome(version.number if "close" in done else version.number - 1)
    if "replace" in done:
        return Outcome(version.number)
    return Outcome(version.number - 1, version.number if "close" in done else None)


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
