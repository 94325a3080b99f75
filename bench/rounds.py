"""Rounds of a benchmark: how many, in which order they take their runs, and what these gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bench.cluster import BenchError, Say
from bench.results import UNITS, Samples

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
    """What was measured in so many `rounds`; `notes` tells what could not be, and why."""

    rounds: int
    say: Say
    samples: Samples = field(default_factory=Samples)
    notes: list[str] = field(default_factory=list)

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
