"""Figures of many starts together: nodes that are slow again and again, growth with job size, before and after, and GPU
time. Intervals are percentiles of bootstraps whose random numbers are always the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imagefs.startup.evidence import Evidence
from imagefs.startup.report import Comparison, Growth, Interval, Lost, Offender, SizeGroup, Start, UnusedModule
from imagefs.startup.spans import SECOND, quantile

__all__ = ["Gpus", "compare", "growth", "lost", "lost_together", "offenders", "unused_modules"]

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
