"""Spans out of begins and ends, and the algebra of their intervals.

`pair` matches begins and ends by node, boot and span. Intervals are half-open, in nanoseconds, and belong to groups:
the other functions handle all groups of a start at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagefs.startup.load import Codes, Events, Ints, Problems, group_ids

__all__ = ["SECOND", "Spans", "alone", "durations", "merged", "pair", "quantile"]

SECOND = 1e9  # ns


@dataclass(frozen=True, slots=True)
class Spans:
    """Rows of `events`: of the begin and of the end of each span; end is -1 where there is none."""

    events: Events
    begin: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.begin)

    def number(self, name: str) -> Ints:
        """A fact of each span: the end's, else the begin's."""
        column = self.events.ints[name]
        ends = np.where(self.end >= 0, column[self.end], 0)
        return np.where(ends != 0, ends, column[self.begin])

    def code(self, name: str) -> Codes:
        column = self.events.codes[name]
        ends = np.where(self.end >= 0, column[self.end], np.int32(-1))
        return np.where(ends >= 0, ends, column[self.begin])


def pair(events: Events, problems: Problems) -> Spans:
    """The spans of all events, in the order of their begins' rows.

    Begins and ends that share a span belong together in the order of time: the first end to the first begin, and so on.
    """
    kind = events.codes["event"]
    rows = np.flatnonzero(kind != events.code("event", "instant"))
    ends = kind[rows] == events.code("event", "end")
    span = events.codes["span"][rows]
    unnamed = span < 0  # these are distinguished by their process, stage and name
    columns = [events.codes[name][rows] for name in ("node", "boot")] + [span]
    if unnamed.any():
        columns += [np.where(unnamed, events.codes[name][rows], -1) for name in ("stage", "name")]
        columns += [np.where(unnamed, events.ints[name][rows], -1) for name in ("pid", "rank")]
    key = group_ids(*columns)
    order = np.lexsort((ends, events.ints["mono_ns"][rows], key))
    rows, ends, key = rows[order], ends[order], key[order]
    if not len(rows):
        return Spans(events, rows, rows)

    first = np.concatenate(([True], key[1:] != key[:-1]))
    whole = np.flatnonzero(first[:-1] & ~ends[:-1] & ends[1:] & ~first[1:] & np.append(first[2:], True))
    end = np.full(len(rows), -1)
    end[whole] = rows[whole + 1]  # spans of a begin and an end; an end without begin becomes its own
    waiting: deque[int] = deque()
    for at in np.delete(np.arange(len(rows)), np.concatenate((whole, whole + 1))).tolist():
        if first[at]:
            waiting.clear()
        if not ends[at]:
            waiting.append(at)
        else:
            end[waiting.popleft() if waiting else at] = rows[at]

    def note(kind: str, which: NDArray[np.bool_]) -> None:
        row = int(rows[int(np.argmax(which))])
        example = f"{events.word('node', row)}: {events.word('stage', row)} {events.word('name', row)}".rstrip()
        problems.note(kind, example, count=int(which.sum()))

    note("end without begin", ends & (end >= 0))
    note("unfinished", ~ends & (end < 0))
    begin, end = rows[~ends], end[~ends]
    order = np.argsort(begin)
    return Spans(events, begin[order], end[order])


def merged(group: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """The union of the intervals of each group: disjoint intervals in the order of group and time."""
    if not len(group):
        return group, begin, end
    order = np.lexsort((begin, group))
    group, begin, end = group[order], begin[order], end[order]
    changes = group[1:] != group[:-1]
    number = np.concatenate(([0], np.cumsum(changes)))
    low = int(begin.min())
    width = int(end.max()) - low + 1
    if int(number[-1]) >= (1 << 62) // width:  # too many for the numbers below: in two halves
        cut = int(np.searchsorted(number, number[-1] // 2, side="right"))
        halves = (merged(group[:cut], begin[:cut], end[:cut]), merged(group[cut:], begin[cut:], end[cut:]))
        return tuple(map(np.concatenate, zip(*halves, strict=True)))  # type: ignore[return-value]
    latest = np.maximum.accumulate(end - low + number * width) - number * width + low  # a running maximum in each group
    starts = np.concatenate(([True], changes | (begin[1:] > latest[:-1])))
    lasts = np.concatenate((np.flatnonzero(starts)[1:] - 1, [len(group) - 1]))
    return group[starts], begin[starts], latest[lasts]


def durations(group: Ints, begin: Ints, end: Ints, groups: int) -> Ints:
    """The time that the union of the intervals of each of the groups 0 to `groups` - 1 covers."""
    number, first, last = merged(group, begin, end)
    return np.bincount(number, weights=last - first, minlength=groups).astype(np.int64)


def alone(group: Ints, label: Ints, begin: Ints, end: Ints, groups: int, labels: int) -> Ints:
    """Per group and label: the time in which intervals of this label ran, and of no other; one more column holds the
    time that several covered."""
    key, begin, end = merged(group * labels + label, begin, end)
    group, label = key // labels, key % labels
    moment = np.concatenate((begin, end))
    order = np.lexsort((moment, np.concatenate((group, group))))
    moment, owner = moment[order], np.concatenate((group, group))[order]
    running = np.cumsum(np.concatenate((np.ones_like(begin), -np.ones_like(end)))[order])
    which = np.cumsum(np.concatenate((label, -label))[order])
    length = np.diff(moment)
    used = (running[:-1] > 0) & (length > 0)
    column = np.where(running[:-1] == 1, which[:-1], labels)[used]
    sums = np.bincount(owner[:-1][used] * (labels + 1) + column, weights=length[used], minlength=groups * (labels + 1))
    return sums.astype(np.int64).reshape(groups, labels + 1)


def quantile(values: NDArray[Any], *shares: float) -> list[float]:
    """Quantiles by linear interpolation, 0 of nothing."""
    if not len(values):
        return [0.0] * len(shares)
    return [float(value) for value in np.quantile(values, shares)]
