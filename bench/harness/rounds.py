"""Rounds of a benchmark: how many, in which order they take their runs, and the document that their samples make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from bench.harness import BenchError, Say
from bench.harness.environment import load, machine, version
from bench.harness.results import METRICS, Document, Samples, Summarize
from stripefs.errors import StripefsError

__all__ = ["ClusterOptions", "Options", "Rounds", "Store", "in_turn"]

_T = TypeVar("_T")

Store = Callable[[Document], None]
"""Keeps a document as it stands, anew after each part of a benchmark."""


@dataclass(frozen=True, slots=True)
class Options:
    """`rounds` 0 means as many as usual: 2 when quick, else 3."""

    quick: bool = False
    rounds: int = 0

    @property
    def round_count(self) -> int:
        return self.rounds or (2 if self.quick else 3)


@dataclass(frozen=True, slots=True)
class ClusterOptions(Options):
    """`cases` empty means all. name: of the HDFS instance, which may be kept."""

    cases: tuple[str, ...] = ()
    name: str = "bench"
    keep: bool = False


def in_turn(runs: Sequence[_T], number: int) -> list[_T]:
    """`runs` as round `number` takes them: each begins one further on, so that no system always follows the same."""
    shift = number % len(runs) if runs else 0
    return [*runs[shift:], *runs[:shift]]


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Samples of so many `rounds`, and the document that `summarize` makes of them and `store` keeps.

    A failure becomes a note of the document; `failed` names what it was of.
    """

    document: Document
    summarize: Summarize
    rounds: int
    say: Say
    store: Store
    samples: Samples = field(default_factory=Samples)
    failed: set[str] = field(default_factory=set)

    @classmethod
    def begin(
        cls,
        bench: str,
        options: Options,
        facts: Mapping[str, Any],
        summarize: Summarize,
        say: Say,
        store: Store,
        /,
        **more: Any,
    ) -> Self:
        """Those of a benchmark, with a document without figures: version, facts of the machine and of the benchmark.

        more: the fields that a class made of this one adds.
        """
        rounds = options.round_count
        facts = {**machine(), **facts, "rounds": rounds, "quick": options.quick}
        document = Document(bench, version(), facts)
        return cls(document=document, summarize=summarize, rounds=rounds, say=say, store=store, **more)

    def keep(self) -> None:
        """Summarize the samples anew, and store the document."""
        self.summarize(self.samples, self.document)
        self.document.environment["load_15min"] = load()
        self.store(self.document)

    def note(self, text: str) -> None:
        self.document.notes.append(text)
        self.say(text)

    def take(self, case: str, system: str, number: int, measure: Callable[[], Mapping[str, float]]) -> None:
        """One run of `system`, in round `number`."""
        try:
            values = measure()
        except BenchError as error:
            self.note(f"{case}, {system}: {error}")
            return
        self.samples.add(case, system, number, values)
        first, value = next(iter(values.items()))
        self.say(f"round {number + 1}/{self.rounds}  {case:18} {system:22} {value:8.2f} {METRICS[first].unit}")

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
            self.document.notes.append(f"{what}: {error}")
            self.say(f"{what} failed: {error}")
        return what not in self.failed


def _interrupted(error: BaseException) -> bool:
    """True where the error only came up while an interrupt was on its way out."""
    context: BaseException | None = error
    while context is not None and not isinstance(context, KeyboardInterrupt):
        context = context.__context__
    return context is not None
