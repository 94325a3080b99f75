"""The starts among events, and the timeline of each: spans of all units, on aligned clocks, until each unit's end.

A start is an attempt of a run. A unit is a rank, or a node that has no ranks; spans of a whole node count for each of
its ranks. A unit's end is its `ready`, else that of its node, else the end of its first `first_step`.

Monotonic clocks give durations and compare within one boot. For moments of different boots each clock gets an offset:
the median of wall minus monotonic time, less the skew of its wall clock, which barriers show: the ends of `rendezvous`
spans. Barriers that would tear apart the first begins of most clocks are not believed: then each rank left by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagefs.startup.load import Events, Ints, Problems, group_ids
from imagefs.startup.report import Clock
from imagefs.startup.spans import SECOND, Spans
from stripefs.startup_events import STAGES

__all__ = ["Timeline", "timelines"]

_LATEST = np.iinfo(np.int64).max
_BEFORE = 600 * 10**9  # ns: events that name no run belong to a start that begins so much later at most
_OTHERS = 20  # stages that are not in the vocabulary and keep their own name
_BOUND = 1_000_000  # ns: the ranks of one node leave a barrier so far apart without any skew
_SEVERAL = 64  # barriers are looked at, the first ones


class Barriers(NamedTuple):
    """Finished `rendezvous` spans: positions in the list of spans, and a number for each barrier."""

    span: Ints
    barrier: Ints


class Timeline(NamedTuple):
    """One start. aligned: the times of its events; units: node codes and ranks, in this order; end: of each unit.

    Of each pair of a finished span and a unit that it counts for, in no order: unit, span (position in `spans`), stage
    (position in `stages`), wait, begin, end. Times are nanoseconds since the first begin.
    """

    key: tuple[str, str, int]
    spans: Spans
    aligned: Ints
    origin_ns: int
    clocks: list[Clock]
    barriers: Barriers
    stages: list[str]
    unit_node: Ints
    unit_rank: Ints
    end: Ints
    ended_by: list[str]
    unit: Ints
    span: Ints
    stage: Ints
    wait: NDArray[np.bool_]
    begin: Ints
    stop: Ints

    @property
    def events(self) -> Events:
        return self.spans.events

    def name(self, unit: int) -> str:
        rank = self.rank(unit)
        return self.node(unit) + ("" if rank is None else f" rank {rank}")

    def node(self, unit: int) -> str:
        return self.events.words["node"][int(self.unit_node[unit])]

    def rank(self, unit: int) -> int | None:
        rank = int(self.unit_rank[unit])
        return None if rank < 0 else rank

    def units_of(self, rows: Ints) -> tuple[Ints, Ints]:
        """The units that each of these events counts for: positions in `rows`, and units."""
        return _spread(self.events, rows, self.unit_node, self.unit_rank)

    def first(self, chosen: NDArray[np.bool_]) -> Ints:
        """The first begin in each unit among the chosen pairs of a span and a unit; long after the end without any."""
        return _earliest(len(self.end), self.unit[chosen], self.begin[chosen])

    def label(self, stage: str) -> int:
        return self.stages.index(stage) if stage in self.stages else -1


def timelines(spans: Spans, problems: Problems, runs: frozenset[str] = frozenset()) -> Iterator[Timeline]:
    """The starts in the order of time; only those of `runs`, names of runs or JOB/RUN, unless there are none."""
    events = spans.events
    of_row = _starts(events, problems)
    finished = spans.end >= 0
    of_row[spans.end[finished]] = of_row[spans.begin[finished]]
    names, stage_of = _stages(events)
    order = np.argsort(of_row, kind="stable")
    bounds = np.searchsorted(of_row[order], np.arange(int(of_row.max(initial=-1)) + 2))
    of_span = of_row[spans.begin]
    span_order = np.argsort(of_span, kind="stable")
    span_bounds = np.searchsorted(of_span[span_order], np.arange(len(bounds)))
    made = []
    for number in range(len(bounds) - 1):
        rows = order[bounds[number] : bounds[number + 1]]
        chosen = np.sort(span_order[span_bounds[number] : span_bounds[number + 1]])
        if not len(chosen):  # instants alone, or ends whose begins are of another start
            continue
        named = rows[(events.codes["run"][rows] >= 0) | (events.codes["job"][rows] >= 0)]
        row = int(named[0] if len(named) else rows[0])
        key = (events.word("job", row), events.word("run", row), int(events.ints["attempt"][row]))
        if not runs or runs & {key[1], f"{key[0]}/{key[1]}"}:
            made.append((int(np.min(events.ints["wall_ns"][spans.begin[chosen]])), key, rows, chosen))
    position = np.full(len(events) + 1, -1, np.int64)
    for _, key, rows, chosen in sorted(made, key=lambda one: one[:2]):
        position[rows] = np.arange(len(rows))
        local = Spans(events.taken(rows), position[spans.begin[chosen]], position[spans.end[chosen]])
        position[rows] = -1
        yield _timeline(key, local, names, stage_of, problems)


def _timeline(
    key: tuple[str, str, int], spans: Spans, names: list[str], stage_of: Ints, problems: Problems
) -> Timeline:
    events = spans.events
    barriers = _barriers(spans)
    aligned, clocks = _aligned(spans, barriers)
    origin = int(aligned[spans.begin].min())
    aligned -= origin

    node, rank = events.codes["node"], events.ints["rank"]
    width = int(rank.max()) + 2
    pairs = np.unique(node.astype(np.int64) * width + rank + 1)
    unit_node, unit_rank = pairs // width, pairs % width - 1
    kept = (unit_rank >= 0) | ~np.isin(unit_node, unit_node[unit_rank >= 0])
    unit_node, unit_rank = unit_node[kept], unit_rank[kept]

    finished = np.flatnonzero(spans.end >= 0)
    at, unit = _spread(events, spans.begin[finished], unit_node, unit_rank)
    span = finished[at]
    stage = stage_of[events.codes["stage"][spans.begin[span]]]
    begin, stop = aligned[spans.begin[span]], aligned[spans.end[span]]
    wait = spans.code("kind")[span] == events.code("kind", "wait")

    count = len(unit_node)
    ready = np.flatnonzero(events.codes["stage"] == events.code("stage", "ready"))
    at, where = _spread(events, ready, unit_node, unit_rank)
    ready = ready[at]
    mine = rank[ready] >= 0
    own, of_node = (_earliest(count, where[some], aligned[ready[some]]) for some in (mine, ~mine))
    steps = stage == names.index("first_step")
    stepped = _earliest(count, unit[steps], stop[steps])
    last = np.zeros(count, np.int64)
    np.maximum.at(last, unit, stop)
    end = np.where(own < _LATEST, own, of_node)
    by_ready = end < _LATEST
    end = np.where(by_ready, np.maximum(end, 0), np.where(stepped < _LATEST, stepped, last))  # not before the start
    by_step = ~by_ready & (stepped < _LATEST)

    late = begin >= end[unit]
    ended = by_ready | by_step
    which = late & ended[unit]
    row = int(spans.begin[span[int(np.argmax(which))]]) if which.any() else 0
    problems.note("late", f"{events.word('node', row)}: {events.word('stage', row)}", count=len(np.unique(span[which])))
    kept = ~late
    return Timeline(
        key, spans, aligned, origin, clocks, barriers, names, unit_node, unit_rank, end,
        ["ready" if first else "first_step" if second else "last event"
         for first, second in zip(by_ready.tolist(), by_step.tolist(), strict=True)],
        unit[kept], span[kept], stage[kept], wait[kept], begin[kept], np.minimum(stop, end[unit])[kept],
    )  # fmt: skip


def _earliest(groups: int, group: Ints, moment: Ints) -> Ints:
    found = np.full(groups, _LATEST)
    np.minimum.at(found, group, moment)
    return found


def _spread(events: Events, rows: Ints, unit_node: Ints, unit_rank: Ints) -> tuple[Ints, Ints]:
    """Pairs of a position in `rows` and a unit: the unit of its rank, or all units of its node."""
    node, rank = events.codes["node"][rows].astype(np.int64), events.ints["rank"][rows]
    width = int(unit_rank.max(initial=0)) + 2
    keys = unit_node * width + unit_rank + 1  # these ascend
    low = np.searchsorted(keys, node * width + rank + 1)
    counts = np.where(rank >= 0, 1, np.searchsorted(keys, (node + 1) * width) - low)
    at = np.repeat(np.arange(len(rows)), counts)
    return at, np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts - low, counts)


def _stages(events: Events) -> tuple[list[str], Ints]:
    """Names of stages, and the position of the stage of each code in them. Too many unknown names become `other`."""
    known = [name for name in STAGES if name != "ready"]
    unknown = sorted(set(events.words["stage"]) - set(STAGES) - {"dropped", ""})
    names = [*known, *unknown[:_OTHERS], "other"]
    found = {name: number for number, name in enumerate(names)}
    return names, np.array([found.get(word, len(names) - 1) for word in events.words["stage"]], np.int64)


def _starts(events: Events, problems: Problems) -> Ints:
    """The number of the start of each event. Events without a run belong to the start that ended next on their node, or
    else to its last, unless they lie more than ten minutes before it."""
    named = (events.codes["run"] >= 0) | (events.codes["job"] >= 0)
    key = group_ids(events.codes["job"], events.codes["run"], events.ints["attempt"])
    keys, of_row = np.unique(np.where(named, key, -1), return_inverse=True)
    if named.all() or not named.any():
        return of_row.astype(np.int64)
    of_row = of_row.astype(np.int64) - 1
    loose = np.flatnonzero(~named)
    problems.note("no run", events.word("node", int(loose[0])), count=len(loose))
    node, wall = events.codes["node"].astype(np.int64), events.ints["wall_ns"]
    moment = node * len(events) + np.unique(wall, return_inverse=True)[1]
    closing = np.flatnonzero(named & (events.codes["event"] != events.code("event", "begin")))
    closing = closing[np.argsort(-wall[closing], kind="stable")]
    ends = closing[np.unique(group_ids(node[closing], of_row[closing]), return_index=True)[1]]  # of each start and node
    ends = ends[np.argsort(moment[ends], kind="stable")]
    of_row[loose] = -1
    following = np.searchsorted(moment[ends], moment[loose])
    for at in (following - 1, following):  # the next one wins
        fits = (at >= 0) & (at < len(ends))
        fits[fits] = node[ends[at[fits]]] == node[loose[fits]]
        of_row[loose[fits]] = of_row[ends[at[fits]]]
    starting = _earliest(len(keys), of_row[named] + 1, wall[named])
    early = loose[wall[loose] < starting[of_row[loose] + 1] - _BEFORE]
    of_row[early] = -1
    strangers = loose[of_row[loose] < 0]
    if len(strangers):
        problems.note("no start", events.word("node", int(strangers[0])), count=len(strangers))
    return of_row


def _barriers(spans: Spans) -> Barriers:
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


def _aligned(spans: Spans, barriers: Barriers) -> tuple[Ints, list[Clock]]:
    """The aligned time of each event of a start, and its clocks."""
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

    skew, bound, seen = unknown = np.zeros(count, np.int64), np.full(count, -1, np.int64), np.zeros(count, np.int64)
    if count > 1 and len(barriers.span):
        ends = spans.end[barriers.span]
        left = events.ints["mono_ns"][ends] + offset[clock[ends]]
        skew, bound, seen = _skews(barriers.barrier, clock[ends], left, count)
        if _torn(_earliest(count, clock, events.ints["mono_ns"]) + offset, skew, bound):
            skew, bound, seen = unknown
    nodes: list[list[str]] = [[] for _ in range(count)]
    for one in np.unique(group_ids(clock, node), return_index=True)[1]:
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
    return events.ints["mono_ns"] + (offset - skew)[clock], described


def _skews(barrier: Ints, clock: Ints, left: Ints, count: int) -> tuple[Ints, Ints, Ints]:
    """Skew and bound of each clock, the bound -1 where no barrier tells, and the number of barriers that do."""
    used = barrier < _SEVERAL
    barrier, clock, left = barrier[used], clock[used], left[used]
    earliest = np.full((_SEVERAL, count), _LATEST)
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
