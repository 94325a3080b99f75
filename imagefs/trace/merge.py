"""Several starts into one order: what most of them touched, in the order in which they typically did.

An extent is kept when at least half of the traces, rounded up, touched it: a node that did something of its own once
does not cost every later start, and one that was interrupted does not take away what all others need. Each trace
then says how far along the kept extents it came to each, as a share of the whole, so that traces of different lengths
can be compared; the median of these decides. The order in which traces are given does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

__all__ = ["Wanted", "merge"]

_SCALE = 1 << 32


class Wanted(NamedTuple):
    """An extent by its cold place, and how many traces touched it."""

    cold: int
    traces: int


def merge(orders: Sequence[Sequence[int]], share: float = 0.5) -> list[Wanted]:
    """One order of what at least `share` of `orders` hold (and at least one does). Each holds nothing twice."""
    need = max(1, ceil(len(orders) * share))
    counts: dict[int, int] = {}
    for order in orders:
        for cold in order:
            counts[cold] = counts.get(cold, 0) + 1
    ranks: dict[int, list[int]] = {cold: [] for cold, count in counts.items() if count >= need}
    for order in orders:
        kept = [cold for cold in order if cold in ranks]
        for position, cold in enumerate(kept):
            ranks[cold].append(position * _SCALE // len(kept))
    return [Wanted(cold, counts[cold]) for cold in sorted(ranks, key=lambda cold: (_middle(ranks[cold]), cold))]


def _middle(ranks: list[int]) -> tuple[int, int]:
    """The lower median, then the earliest."""
    ranks.sort()
    return ranks[(len(ranks) - 1) // 2], ranks[0]
