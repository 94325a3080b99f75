"""The analysis of starts: from places with events to the report on the starts in them (`analyse`), and figures of many
starts together: nodes that are slow again and again, growth with job size, before and after, and GPU time.

Intervals are percentiles of bootstraps whose random numbers are always the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagefs.startup.causes import advise, changes, common_causes, look, stragglers
from imagefs.startup.evidence import Evidence, critical_path
from imagefs.startup.load import Events, Problems, group_ids, load
from imagefs.startup.report import (
    Comparison,
    Growth,
    Interval,
    Lost,
    Offender,
    Report,
    SizeGroup,
    SpanRow,
    Start,
    Step,
    Straggler,
    UnusedModule,
)
from imagefs.startup.sources import File
from imagefs.startup.spans import SECOND, pair, quantile
from imagefs.startup.timeline import Timeline, timelines
from stripefs.errors import ConfigError

__all__ = ["Gpus", "analyse"]

_LANES = 8  # units that are drawn
_LANE = 200  # spans of each, the longest
_UNFINISHED = 100  # spans that are shown
_METHODS = ("wall", "barrier", "same boot")  # the weakest first

_Floats = NDArray[np.float64]
Units = tuple[Start, Mapping[str, _Floats]]
"""A start with the seconds of each of its units by stage, "" being its end."""

_RESAMPLES = 1000
_FEW = 3  # fewer starts are not resampled


class Gpus(NamedTuple):
    """Options about the cost of a start; 0 is not given."""

    gpus: float = 0.0
    per_node: float = 0.0
    price: float = 0.0
    run_length_s: float = 0.0


def analyse(sides: Sequence[tuple[str, Sequence[File]]], runs: Iterable[str] = (), gpus: Gpus | None = None) -> Report:
    """The report on the starts in these files. sides: ("", files), or the files "before" and those "after".

    runs: only starts of these runs. Raises ConfigError where no start is found.
    """
    gpus, wanted = gpus or Gpus(), frozenset(runs)
    problems = Problems()
    loaded: list[Events] = []
    starts: list[Start] = []
    found: list[Evidence] = []
    for side, files in sides:
        spans = pair(load(files, problems), problems)
        loaded.append(spans.events)
        of_side = [Evidence(one) for one in timelines(spans, problems, wanted)]
        if not of_side:
            named = sorted(set(spans.events.words["run"]) - {""})
            hint = f"runs there: {', '.join(named[:5])}" if named and wanted else "a start needs the begin of a span"
            raise ConfigError("no start among the events", hint=hint)
        found += of_side
        starts += [_start(side, evidence, gpus) for evidence in of_side]
    remaining = look(found)
    advised = [list(changes(evidence, remaining, start)) for start, evidence in zip(starts, found, strict=True)]
    before, after = (
        [(start, _seconds(evidence)) for start, evidence in zip(starts, found, strict=True) if start.side == side]
        for side in ("before", "after")
    )
    versions = sum((Counter(events.versions) for events in loaded), Counter[str]())
    return Report(
        sum(map(len, loaded)),
        sum(events.lines for events in loaded),
        sum(events.files for events in loaded),
        dict(versions),
        problems.listed(),
        starts,
        offenders(starts),
        lost_together(starts, gpus),
        growth(starts),
        compare(before, after) if before and after else [],
        unused_modules(found),
        advise(starts, advised),
    )


def _start(side: str, evidence: Evidence, gpus: Gpus) -> Start:
    t = evidence.timeline
    last = int(t.end.argmax())
    queued = int(t.stop[t.stage == t.label("queue")].max(initial=0))
    total = int(t.end[last])
    p50, p99 = quantile(t.end / SECOND, 0.5, 0.99)
    bounds = [clock.bound_s for clock in t.clocks]
    slow, path = stragglers(evidence), critical_path(t)
    alone = {t.stages[label]: float(evidence.alone[:, label].mean() / SECOND) for label in range(len(t.stages))}
    held = {stage: seconds for stage, seconds in alone.items() if seconds and stage != "queue"}
    nodes, ranks = len(np.unique(t.unit_node)), int(np.count_nonzero(t.unit_rank >= 0))
    held_s = (total - queued) / SECOND
    return Start(
        *t.key,
        side,
        t.origin_ns / SECOND,
        nodes,
        ranks,
        len(t.end),
        len(t.events),
        total / SECOND,
        held_s,
        t.ended_by[last],
        "last event" not in t.ended_by,
        p50,
        p99,
        t.name(last),
        evidence.stages(),
        evidence.overlap(),
        path,
        t.clocks,
        min((clock.method for clock in t.clocks), key=_METHODS.index),
        max(abs(clock.skew_s) for clock in t.clocks),
        None if None in bounds else max(bound for bound in bounds if bound is not None),
        slow,
        common_causes(evidence),
        _unfinished(t),
        _lanes(t, slow, path),
        lost(nodes, ranks, held_s, held, gpus),
    )


def _seconds(evidence: Evidence) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    t, union = evidence.timeline, evidence.union
    return {"": t.end / SECOND} | {name: union[:, label] / SECOND for label, name in enumerate(t.stages)}


def _unfinished(t: Timeline) -> list[SpanRow]:
    """Spans without an end, each surely as long as its process goes on writing events; the longest first."""
    events, moment = t.events, t.events.ints["mono_ns"]
    spans = np.flatnonzero(t.spans.end < 0)
    processes = group_ids(events.codes["node"], events.codes["boot"], events.ints["pid"])
    process = np.unique(processes, return_inverse=True)[1]
    last = np.zeros(len(events), np.int64)
    np.maximum.at(last, process, moment)
    begins = t.spans.begin[spans]
    surely = last[process[begins]] - moment[begins]
    return [
        _row(t, int(spans[at]), events.word("node", begins[at]), events.rank(begins[at]), float(surely[at] / SECOND))
        for at in np.argsort(-surely, kind="stable")[:_UNFINISHED]
    ]


def _lanes(t: Timeline, slow: list[Straggler], path: list[Step]) -> list[SpanRow]:
    """The spans of the units of the critical path, of the median unit, and of the slowest stragglers."""
    order = np.argsort(t.end, kind="stable")

    def last(node: str, rank: int | None = None) -> int:
        """The unit of this rank, or the last of the node."""
        mine = t.unit_node[order] == t.events.code("node", node)
        return int(order[np.flatnonzero(mine if rank is None else mine & (t.unit_rank[order] == rank))[-1]])

    wanted = [int(order[-1]), *(last(step.node, step.rank) for step in reversed(path)), int(order[len(order) // 2])]
    wanted += [last(one.node) for one in sorted(slow, key=lambda one: -one.excess_s)[:_LANES] if not one.apparent]
    lanes = []
    for unit in list(dict.fromkeys(wanted))[:_LANES]:
        rows = np.flatnonzero(t.unit == unit)
        rows = np.sort(rows[np.argsort(t.begin[rows] - t.stop[rows], kind="stable")][:_LANE])
        lanes += [_row(t, int(t.span[row]), t.node(unit), t.rank(unit)) for row in rows[np.argsort(t.begin[rows])]]
    return lanes


def _row(t: Timeline, span: int, node: str, rank: int | None, at_least_s: float | None = None) -> SpanRow:
    begin, end = int(t.spans.begin[span]), int(t.spans.end[span])
    word, fact = t.events.word, end if end >= 0 else begin
    return SpanRow(
        node, rank, word("stage", begin), word("name", begin), word("kind", begin) or "work",
        t.aligned[begin] / SECOND, t.aligned[end] / SECOND if end >= 0 else None,
        word("source", begin), word("cause", fact), word("host", fact), at_least_s,
    )  # fmt: skip


def offenders(starts: Sequence[Start]) -> list[Offender]:
    """Nodes that straggled in at least two starts and a third of those they were in, and data hosts that stragglers
    waited for in at least two, those that cost most first."""
    seen = Counter(node for start in starts for clock in start.clocks for node in clock.nodes)
    slow: dict[tuple[str, str], list[tuple[int, float, str]]] = defaultdict(list)
    for number, start in enumerate(starts):
        for one in start.stragglers:
            if not one.apparent:
                likely = one.causes[0]
                slow["node", one.node].append((number, one.excess_s, likely.cause))
                if host := likely.evidence.get("host"):
                    slow["host", str(host)].append((number, likely.seconds, likely.cause))
    made = []
    for (kind, name), found in slow.items():
        times, of = len({number for number, _, _ in found}), seen[name] or len(starts)
        if times > 1 and (kind == "host" or 3 * times >= of):
            causes = Counter(cause for _, cause in dict.fromkeys((number, cause) for number, _, cause in found))
            made.append(Offender(kind, name, times, of, sum(seconds for _, seconds, _ in found), dict(causes)))
    return sorted(made, key=lambda one: -one.seconds)


def unused_modules(starts: Sequence[Evidence]) -> list[UnusedModule]:
    """The modules that units imported and did not use, the slowest first. seconds: of the mean unit that shows it."""
    seconds: Counter[str] = Counter()
    units: Counter[str] = Counter()
    for evidence in starts:
        events = evidence.timeline.events
        for row in evidence.unused.tolist():
            seconds[events.word("name", row)] += events.ints["own_ns"][row] / SECOND
            units[events.word("name", row)] += 1
    return [UnusedModule(name, float(total / units[name]), units[name]) for name, total in seconds.most_common()]


def lost(nodes: int, ranks: int, held_s: float, alone: dict[str, float], options: Gpus) -> Lost | None:
    """GPU time that a start cost. alone: seconds of the mean unit in which only this stage ran."""
    gpus, assumed = options.gpus, "--gpus"
    if not gpus and options.per_node:
        gpus, assumed = options.per_node * nodes, f"{options.per_node:g} per node"
    if not gpus and ranks:
        gpus, assumed = float(ranks), "one per rank"
    if not gpus:
        return None
    hours = gpus * held_s / 3600
    return _lost(gpus, assumed, hours, {stage: gpus * value / 3600 for stage, value in alone.items()}, 1, options)


def lost_together(starts: Sequence[Start], options: Gpus) -> Lost | None:
    """GPU time of all starts that tell theirs."""
    each = [start.lost for start in starts if start.lost]
    if not each:
        return None
    stages: Counter[str] = Counter()
    for one in each:
        stages.update(one.by_stage)
    gpus = sum(one.gpus for one in each) / len(each)
    return _lost(gpus, each[0].assumed, sum(one.gpu_hours for one in each), dict(stages), len(each), options)


def _lost(gpus: float, assumed: str, hours: float, by_stage: dict[str, float], starts: int, options: Gpus) -> Lost:
    cost = hours * options.price if options.price else None
    length = options.run_length_s or None
    share = hours / (hours + gpus * length * starts / 3600) if length else None
    return Lost(gpus, assumed, hours, by_stage, cost, length, share, None if share is None else 1 - share)


def growth(starts: Sequence[Start]) -> Growth | None:
    """Growth of the total with the number of nodes: the power or logarithmic law, whichever is closer to the starts."""
    nodes = np.array([start.nodes for start in starts], float)
    total = np.array([start.total_s for start in starts], float)
    sizes = np.unique(nodes)
    if len(sizes) < 2:
        return None
    groups = []
    for size in sizes:
        values = total[nodes == size]
        groups.append(SizeGroup(int(size), len(values), *quantile(values, 0.5, 0.9)))
    if len(sizes) < _FEW or total.min() <= 0:
        return Growth(groups, "", None, None)
    laws = {"power": np.log(total), "log": total}
    x = np.log(nodes)
    fits = {law: _line(x[None], y[None]) for law, y in laws.items()}
    errors = {}
    for law, (a, b) in fits.items():
        predicted = np.exp(a + b * x) if law == "power" else a + b * x
        errors[law] = float(np.square(predicted - total).sum())
    law = min(errors, key=lambda one: errors[one])
    first, slope = (float(value[0]) for value in fits[law])
    slope = round(slope, 9)  # of starts on one line all slopes are the same, but for their last digits
    chosen = np.random.default_rng(0).integers(0, len(x), (_RESAMPLES, len(x)))
    chosen = chosen[np.ptp(x[chosen], axis=1) > 0]
    slopes = np.round(_line(x[chosen], laws[law][chosen])[1], 9)
    return Growth(groups, law, float(np.exp(first)) if law == "power" else first, _interval(slope, slopes))


def _line(x: _Floats, y: _Floats) -> tuple[_Floats, _Floats]:
    """Least squares in each row: intercept and slope."""
    from_mean = x - x.mean(axis=1, keepdims=True)
    b = (from_mean * (y - y.mean(axis=1, keepdims=True))).sum(axis=1) / np.square(from_mean).sum(axis=1)
    return y.mean(axis=1) - b * x.mean(axis=1), b


def compare(before: Sequence[Units], after: Sequence[Units]) -> list[Comparison]:
    """The median over starts of the total, and of each stage's mean over units.

    An interval is the middle 95% of the ratio of these medians in resamples: of the starts, or where a side has fewer
    than three, of the units within each start. It holds the ratio itself: of the data, one of the resamples, neither
    the median, the mean nor the latest end is on the edge of what they are in the others.
    """
    sides = (before, after)
    stages = list(dict.fromkeys(["", *(one.stage for start, _ in (*after, *before) for one in start.stages)]))
    by_starts = min(map(len, sides)) >= _FEW
    counts = [len(side) if by_starts else sum(len(units[""]) for _, units in side) for side in sides]
    generator, resampled = np.random.default_rng(0), min(counts) >= _FEW
    figures = [_figures(side, stages, by_starts, _RESAMPLES if resampled else 0, generator) for side in sides]
    made = []
    for number, stage in enumerate(stages):
        first, second = (table[:, number] for table in figures)
        ratios = np.divide(second, first, out=np.full(len(first), np.inf), where=first > 0)
        ratio = _interval(float(ratios[0]), ratios) if first[0] > 0 else None
        told = "" if ratio is None or ratio.low is None else "starts" if by_starts else "units"
        made.append(Comparison(stage, float(first[0]), float(second[0]), ratio, counts[0], counts[1], told))
    return [made[0], *sorted(made[1:], key=lambda one: -max(one.before_s, one.after_s))]


def _figures(
    side: Sequence[Units], stages: Sequence[str], by_starts: bool, resamples: int, generator: np.random.Generator
) -> _Floats:
    """The figure of each stage (column) in the data (the first row) and in each resample."""
    tables = []
    for _, units in side:
        nothing = np.zeros(len(units[""]))
        # in whole microseconds, whose sums are the same in any order
        tables.append(np.rint(np.stack([units.get(stage, nothing) for stage in stages], axis=1) * 1e6))
    if by_starts:
        each = np.array([_of_start(table, np.ones(len(table))) for table in tables])
        chosen = generator.integers(0, len(each), (resamples, len(each)))
        figures: _Floats = np.median(each[np.vstack([np.arange(len(each)), chosen])], axis=1)
        return figures / 1e6
    rows = []
    for table in tables:
        size = len(table)
        drawn = (np.bincount(generator.integers(0, size, size), minlength=size) for _ in range(resamples))
        rows.append([_of_start(table, times) for times in (np.ones(size), *drawn)])
    return np.asarray(np.median(rows, axis=0)) / 1e6


def _of_start(table: _Floats, times: NDArray[Any]) -> _Floats:
    """The latest end and the mean of each stage, of units that are drawn so many times."""
    found: _Floats = times @ table / len(table)
    found[0] = table[times > 0, 0].max()
    return found


def _interval(value: float, resampled: _Floats) -> Interval:
    """The middle 95% of the resampled values; no interval where there are none, or they have no bound."""
    ordered = np.sort(resampled)
    cut = len(ordered) // 40
    low, high = float(ordered[cut]), float(ordered[-1 - cut])
    return Interval(value, low, high) if len(ordered) > 1 and np.isfinite(high) else Interval(value)
