"""Rounds of a benchmark: how many, in which order they take their runs, and what these gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bench.cluster import BenchError, Say
from bench.results import UNITS, Samples
from stripefs.errors import StripefsError

__all__ = ["Options", "Rounds", "how_many", "in_turn"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Options:
    """`cases` empty means all; `rounds` 0 means as many as usual. name: of the HDFS instance, which may be kept."""

    quick: bool = False
    cases: tuple[str, ...] = ()
    rounds: int = 0
    name: str = "bench"
    keep: bool = False


def how_many(asked: int, *, quick: bool) -> int:
    """`asked`, 0 for as many as usual."""
    return asked or (2 if quick else 3)


def in_turn(runs: Sequence[_T], number: int) -> list[_T]:
    """`runs` as round `number` takes them: each begins one further on, so that no system always follows the same."""
    shift = number % len(runs) if runs else 0
    return [*runs[shift:], *runs[:shift]]


@dataclass(slots=True, kw_only=True)
class Rounds:
    """What was measured in so many `rounds`; `notes` tells what could not be, and why, `failed` names it."""

    rounds: int
    say: Say
    samples: Samples = field(default_factory=Samples)
    notes: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)

    def take(self, case: str, system: str, number: int, measure: Callable[[], Mapping[str, float]]) -> None:
        """One run of `system`, in round `number`."""
        try:
            values = measure()
        except BenchError as error:
            self.notes.append(f"{case}, {system}: {error}")
            self.say(self.notes[-1])
            return
        self.samples.add(case, system, number, values)
        first, value = next(iter(values.items()))
        self.say(f"round {number + 1}/{self.rounds}  {case:18} {system:22} {value:8.2f} {UNITS[first]}")

    def attempt(self, what: str, function: Callable[..., None], *arguments: object) -> bool:
        """Call it, with this object first, unless it failed before; whether it went well. A failure becomes a note."""
        if what in self.failed:
            return False
        try:
            function(self, *arguments)
        except (BenchError, StripefsError, OSError) as error:
            if _interrupted(error):
                raise KeyboardInterrupt from error
            self.failed.add(what)
            self.notes.append(f"{what}: {error}")
            self.say(f"{what} failed: {error}")
        return what not in self.failed


def _interrupted(error: BaseException) -> bool:
    """Whether it only came up while an interrupt was on its way out."""
    context: BaseException | None = error
    while context is not None and not isinstance(context, KeyboardInterrupt):
        context = context.__context__
    return context is not None
