"""Pairing of begins and ends, and the algebra of intervals, against slow and obvious ways."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from imagefs.startup.load import Problems
from imagefs.startup.spans import alone, durations, merged, pair
from tests.unit.imagefs.startup.events import event, loaded

MOMENTS = st.tuples(
    st.sampled_from(["begin", "end", "instant"]), st.integers(0, 9), st.sampled_from("xyz"), st.sampled_from("ab")
)
INTERVALS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 30), st.integers(0, 8)), max_size=30
)


@given(st.lists(MOMENTS, max_size=30, unique=True))
def test_the_first_end_belongs_to_the_first_begin(moments: list[tuple[str, int, str, str]]) -> None:
    lines = [event(at, kind, "imports", node=node, span=name) for kind, at, name, node in moments]
    events, _ = loaded(event(0, "instant", "model") + b"".join(lines))
    problems = Problems()
    spans = pair(events, problems)
    made = {
        (events.word("node", int(b)), events.word("span", int(b)), int(events.ints["mono_ns"][b]) // 10**9,
         int(events.ints["mono_ns"][e]) // 10**9 if e >= 0 else None)
        for b, e in zip(spans.begin, spans.end, strict=True)
    }  # fmt: skip

    waiting, expected, orphans = defaultdict(list), set(), 0
    for kind, at, name, node in sorted(moments, key=lambda one: (one[1], one[0] != "begin")):
        if kind == "begin":
            waiting[node, name].append(at)
        elif kind == "end" and waiting[node, name]:
            expected.add((node, name, waiting[node, name].pop(0), at))
        elif kind == "end":
            orphans += 1
    unfinished = {(node, name, at, None) for (node, name), some in waiting.items() for at in some}
    assert made == expected | unfinished
    told = {one.kind: one.count for one in problems.listed()}
    assert (told.get("end without begin", 0), told.get("unfinished", 0)) == (orphans, len(unfinished))


def columns(intervals: list[tuple[int, int, int, int]]) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Group, label, begin and end, far apart, so that groups need their halves."""
    table = np.array(intervals, np.int64).reshape(-1, 4)
    return [table[:, 0], table[:, 1], table[:, 2], table[:, 2] + table[:, 3]]


@given(INTERVALS, st.sampled_from([1, 1 << 56]))
def test_durations_are_those_of_the_moments_covered(intervals: list[tuple[int, int, int, int]], scale: int) -> None:
    group, _, begin, end = columns(intervals)
    covered = [len({at for g, _, b, n in intervals if g == one for at in range(b, b + n)}) for one in range(4)]
    first, low, high = merged(group, begin * scale, end * scale)
    lengths = [sum(int(h - b) for g, b, h in zip(first, low, high, strict=True) if g == one) for one in range(4)]
    assert lengths == [one * scale for one in covered]
    assert durations(group, begin, end, 4).tolist() == covered
    same = first[1:] == first[:-1]
    assert (low[1:][same] > high[:-1][same]).all()


@given(INTERVALS)
def test_alone_is_the_time_of_exactly_one_label(intervals: list[tuple[int, int, int, int]]) -> None:
    expected = np.zeros((4, 4), np.int64)
    for group in range(4):
        for at in range(40):
            labels = {label for g, label, b, n in intervals if g == group and b <= at < b + n}
            if labels:
                expected[group, labels.pop() if len(labels) == 1 else 3] += 1
    assert alone(*columns(intervals), 4, 3).tolist() == expected.tolist()
