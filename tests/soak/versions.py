"""The soak's writer: versions of a file that follow from a seed, as steps that can be counted. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Outcome", "Step", "Version", "outcomes", "version"]

MIB = 1 << 20


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
