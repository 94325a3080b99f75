"""Clocks of nodes, aligned with one another.

Monotonic clocks give durations and compare within one boot. For moments of different boots each clock gets an offset:
the median of wall minus monotonic time, less the skew of its wall clock. The skew is estimated at barriers, the ends of
`rendezvous` spans, which all ranks leave at the same moment; its bound is by how much barriers disagree, or the ranks
of one clock at the same barrier. Barriers are not believed where they would tear apart the first begins of most of the
clocks that they correct: then each rank left by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from imagefs.startup.load import Ints, group_ids
from imagefs.startup.report import Clock
from imagefs.startup.spans import Spans

__all__ = ["SECOND", "Alignment", "Barriers", "align", "find_barriers"]

SECOND = 1e9

_BOUND = 1_000_000  # ns: the ranks of one node leave a barrier so far apart without any skew
_SEVERAL = 64  # barriers are looked at, the first ones


class Barriers(NamedTuple):
    """Finished `rendezvous` spans: positions in the list of spans, and a number for each barrier."""

    span: Ints
    barrier: Ints


class Alignment(NamedTuple):
    """shift: to add to the monotonic time of each row of the start's events to get aligned time."""

    shift: Ints
    clocks: list[Clock]


def find_barriers(spans: Spans) -> Barriers:
    """The barriers of a start: of each name the first of every rank, the second of every rank, and so on."""
    events = spans.events
    rendezvous = events.code("stage", "rendezvous")
    found = np.flatnonzero((events.codes["stage"][spans.begin] == rendezvous) & (spans.end >= 0))
    rows = spans.begin[found]
    name = events.codes["name"][rows]
    key = group_ids(events.codes["node"][rows], events.ints["rank"][rows], name)
    order = np.lexsort((events.ints["mono_ns"][rows], key))
    key = key[order]
    position = np.arange(len(key))
    first = np.maximum.accumulate(np.where(np.concatenate(([True], key[1:] != key[:-1]))[: len(key)], position, 0))
    barrier = np.unique(group_ids(name[order], position - first), return_inverse=True)[1]
    return Barriers(found[order], barrier.astype(np.int64))


def align(spans: Spans, barriers: Barriers) -> Alignment:
    """Align the clocks of one start."""
    events = spans.events
    boot, node = events.codes["boot"], events.codes["node"]
    nameless = (boot < 0) | (boot == events.code("boot", "wall clock"))
    key = group_ids(boot, np.where(nameless, node, -1))
    keys, clock = np.unique(key, return_inverse=True)
    count = len(keys)

    apart = events.ints["wall_ns"] - events.ints["mono_ns"]
    order = np.lexsort((apart, clock))
    first = np.searchsorted(clock[order], np.arange(count))
    size = np.bincount(clock, minlength=count)
    offset = apart[order[first + size // 2]]
    jump = apart[order[first + size - 1]] - apart[order[first]]

    skew, bound, seen = np.zeros(count, np.int64), np.full(count, -1, np.int64), np.zeros(count, np.int64)
    if count > 1 and len(barriers.span):
        ends = spans.end[barriers.span]
        left = events.ints["mono_ns"][ends] + offset[clock[ends]]
        skew, bound, seen = _skews(barriers.barrier, clock[ends], left, count)
        begun = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(begun, clock, events.ints["mono_ns"])
        if _torn(begun + offset, skew, bound):
            skew, bound, seen = np.zeros(count, np.int64), np.full(count, -1, np.int64), seen * 0
    nodes: list[list[str]] = [[] for _ in range(count)]
    pairs = np.unique(group_ids(clock, node), return_index=True)[1]
    for one in pairs:
        nodes[clock[one]].append(events.word("node", int(one)))
    described = [
        Clock(
            sorted(nodes[one]),
            events.word("boot", int(order[first[one]])),
            "same boot" if count == 1 else "barrier" if bound[one] >= 0 else "wall",
            float(skew[one] / SECOND),
            0.0 if count == 1 else float(bound[one] / SECOND) if bound[one] >= 0 else None,
            float(jump[one] / SECOND),
            int(seen[one]),
        )
        for one in range(count)
    ]
    return Alignment((offset - skew)[clock], described)


def _skews(barrier: Ints, clock: Ints, left: Ints, count: int) -> tuple[Ints, Ints, Ints]:
    """Skew and bound of each clock, the bound -1 where no barrier tells, and the number of barriers that do."""
    used = barrier < _SEVERAL
    barrier, clock, left = barrier[used], clock[used], left[used]
    earliest = np.full((_SEVERAL, count), np.iinfo(np.int64).max)
    latest = np.zeros((_SEVERAL, count), np.int64)
    np.minimum.at(earliest, (barrier, clock), left)
    np.maximum.at(latest, (barrier, clock), left)
    there = latest > 0
    told = there & (there.sum(axis=1) > 1)[:, None]
    rows, some = np.flatnonzero(told.any(axis=1)), np.flatnonzero(told.any(axis=0))
    skew, bound = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    if len(some):
        told_here = told[np.ix_(rows, some)]
        first, last = earliest[np.ix_(rows, some)], latest[np.ix_(rows, some)]
        apart = np.where(told_here, first - first.min(), np.nan)
        apart -= np.nanmedian(apart, axis=1, keepdims=True)
        skew[some] = np.nanmedian(apart, axis=0)
        half = (np.nanmax(apart, axis=0) - np.nanmin(apart, axis=0)) / 2
        spread = np.nanmedian(np.where(told_here, last - first, np.nan), axis=0)
        bound[some] = np.maximum(_BOUND, np.maximum(half, spread))
    return skew, bound, told.sum(axis=0)


def _torn(begun: Ints, skew: Ints, bound: Ints) -> bool:
    """True if most of the clocks with a skew that matters would begin farther from the others when it is corrected."""
    corrected = (np.abs(skew) > np.maximum(SECOND, bound)) & (bound >= 0)
    if not corrected.any():
        return False
    before, after = np.abs(begun - np.median(begun)), np.abs(begun - skew - np.median(begun - skew))
    return bool((after > before + np.abs(skew) / 2)[corrected].mean() > 0.5)
