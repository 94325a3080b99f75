"""Ratios of what was measured, as they are planned and as they come out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.results import Key, Ratio, Samples, quotients, spread

__all__ = ["RatioPlan", "sum_up"]


@dataclass(frozen=True, slots=True)
class RatioPlan:
    """`upper / lower`, or without a `lower` the figure itself. `bound` 0 means that it is only reported."""

    name: str
    upper: Key
    lower: Key | None
    bound: float = 0.0
    at_least: bool = False


def sum_up(samples: Samples, plans: Sequence[RatioPlan]) -> list[Ratio]:
    """The ratios that the samples allow.

    Where one side was measured once (a size, say) its median stands in every round of the other.
    """
    found = []
    for plan in plans:
        upper = samples.get(plan.upper)
        values = list(upper.values()) if plan.lower is None else quotients(*_matched(upper, samples.get(plan.lower)))
        if values:
            found.append(Ratio(plan.name, *spread(values)))
    return found


def _matched(upper: Mapping[int, float], lower: Mapping[int, float]) -> tuple[Mapping[int, float], Mapping[int, float]]:
    if len(lower) == 1 < len(upper):
        lower = dict.fromkeys(upper, statistics.median(lower.values()))
    if len(upper) == 1 < len(lower):
        upper = dict.fromkeys(lower, statistics.median(upper.values()))
    return upper, lower
