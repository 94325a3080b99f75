"""Evidence of one start: the time of each stage in each unit, the figures of each unit that point at causes, and the
critical path: the chain of spans, over nodes and ranks, that determines when the last unit ends.

From that end backwards, each span is preceded by the one of its unit that ended last before it began. The path goes
over to another unit where a span waited for that one: at a barrier to the unit that arrived last, and from a wait for a
lease to the unit that installed.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from imagefs.startup.load import Ints
from imagefs.startup.report import Overlap, Stage, Step
from imagefs.startup.spans import SECOND, alone, durations, quantile
from imagefs.startup.timeline import Timeline

__all__ = ["Evidence", "critical_path"]

_NEAR = 1_000_000  # ns: spans that follow one another are so close
_GAP = 50_000_000  # ns: a shorter gap is not shown
_LONGEST = 10_000  # steps


class Evidence:
    """Nanoseconds, bytes and counts by unit (row) and stage (column of `stages` of the timeline), or by unit.

    total: durations added, waits only where the stage has nothing else. union: time covered; of `setup` only gaps of
    the others. wait: time of spans that waited. alone: time in which no other stage ran. covered: time of any stage.
    unused: rows of the events of modules that were imported and not used before the first step.
    """

    def __init__(self, timeline: Timeline) -> None:
        t = self.timeline = timeline
        spans, events = t.spans, t.events
        self._units, self._labels = len(t.end), len(t.stages)
        self._key = t.unit * self._labels + t.stage
        self._waited: dict[tuple[str, ...], Ints] = {}
        self._cause, self._host = spans.code("cause")[t.span], spans.code("host")[t.span]
        self._time(t.label("setup"))
        self.install = self.named("dependencies", "install")
        self.mount = self.named("dependencies", "mount")
        self.cache_bytes, self.store_bytes = (
            self._by_stage(spans.number(f"{name}_bytes")[t.span]) for name in ("cache", "store")
        )

        def instants(**words: str) -> Ints:
            chosen = events.codes["event"] == events.code("event", "instant")
            for column, word in words.items():
                chosen &= events.codes[column] == events.code(column, word)
            return np.flatnonzero(chosen)

        on_demand, imports, ones = instants(name="on demand"), instants(stage="imports"), np.ones(len(events), np.int64)
        self.on_demand_misses = self._summed(on_demand, events.ints["misses"])
        self.on_demand_wait = self._summed(on_demand, events.ints["wait_ns"])
        self.unused = imports[events.ints["used"][imports] == 0]
        self.unused_time = self._summed(self.unused, events.ints["own_ns"])
        self.dependency_misses = self._summed(instants(stage="dependencies", name="miss"), ones)
        self.warmings = self._summed(instants(name="warm"), ones)

    def _time(self, setup: int) -> None:
        """The time of each stage. setup: the column of the stage that contains others."""
        t, lengths = self.timeline, self.timeline.stop - self.timeline.begin
        work, every, inner = self._by_stage(np.where(t.wait, 0, lengths)), np.ones(len(lengths), bool), t.stage != setup

        def unions(chosen: NDArray[np.bool_]) -> Ints:
            return self._lasted(chosen, self._key, self._units * self._labels).reshape(self._units, self._labels)

        def singles(chosen: NDArray[np.bool_]) -> Ints:
            return alone(
                t.unit[chosen], t.stage[chosen], t.begin[chosen], t.stop[chosen], self._units, self._labels
            )  # fmt: skip

        self.total = np.where(work > 0, work, self._by_stage(np.where(t.wait, lengths, 0)))
        self.union, self.wait, single = unions(every), unions(t.wait), singles(inner)
        whole = single if inner.all() else singles(every)
        self.covered = whole.sum(axis=1)
        single[:, setup] = self.union[:, setup] = whole[:, setup]
        self.wait[:, setup] = 0
        self.alone = single[:, :-1]

    def stages(self) -> list[Stage]:
        """The stages that took any time, in the order of the vocabulary."""
        found = []
        for label in np.flatnonzero(self.union.any(axis=0)):
            union = self.union[:, label] / SECOND
            p50, p99, most = quantile(union, 0.5, 0.99, 1.0)
            total, mean, wait, single = (
                float(table[:, label].mean() / SECOND) for table in (self.total, self.union, self.wait, self.alone)
            )
            name, units, slowest = self.timeline.stages[label], int(np.count_nonzero(union)), int(union.argmax())
            quantiles, ratio = quantile(union, *np.linspace(0, 1, 21).tolist()), most / p50 if p50 else None
            found.append(
                Stage(
                    name, units, total, mean, mean - wait, wait, single, p50, p99, most, ratio,
                    self.timeline.name(slowest), quantiles,
                )
            )  # fmt: skip
        return found

    def overlap(self) -> Overlap:
        end, covered = self.timeline.end, self.covered
        means = (each.mean() / SECOND for each in (self.union.sum(axis=1), covered, end - covered, end))
        return Overlap(*map(float, means))

    def named(self, stage: str, name: str) -> Ints:
        """The time that spans of this name took in each unit."""
        t = self.timeline
        code = t.events.code("name", name)
        return self._lasted((t.stage == t.label(stage)) & (t.events.codes["name"][t.spans.begin[t.span]] == code))

    def waited(self, stages: list[str], cause: str, host: str = "") -> Ints:
        """The time that each unit waited for this cause, and this host, in these stages; in all of them without any."""
        key = (*stages, cause, host)
        if key in self._waited:
            return self._waited[key]
        t = self.timeline
        chosen = t.wait & (self._cause == t.events.code("cause", cause))
        if stages:
            chosen &= np.isin(t.stage, [t.label(stage) for stage in stages])
        if host:
            chosen &= self._host == t.events.code("host", host)
        return self._waited.setdefault(key, self._lasted(chosen))

    def causes_of_waits(self) -> list[str]:
        """The causes that waits name."""
        words = self.timeline.events.words["cause"]
        return sorted(words[code] for code in np.unique(self._cause[self.timeline.wait]) if code >= 0)

    def hosts(self, cause: str, unit: int | None = None) -> dict[str, int]:
        """The time that units, or one unit, waited for each host, the longest first."""
        t = self.timeline
        chosen = t.wait & (self._cause == t.events.code("cause", cause)) & (self._host >= 0)
        if unit is not None:
            chosen &= t.unit == unit
        words = t.events.words["host"]
        lengths = np.bincount(self._host[chosen], weights=(t.stop - t.begin)[chosen], minlength=len(words))
        return {words[one]: int(lengths[one]) for one in np.argsort(-lengths, kind="stable")[:50] if lengths[one]}

    def _lasted(self, chosen: NDArray[np.bool_], group: Ints | None = None, groups: int = 0) -> Ints:
        """The time that the chosen spans cover, of each unit or of each of these groups."""
        t, group = self.timeline, self.timeline.unit if group is None else group
        return durations(group[chosen], t.begin[chosen], t.stop[chosen], groups or self._units)

    def _by_stage(self, column: Ints) -> Ints:
        sums = np.bincount(self._key, weights=column, minlength=self._units * self._labels)
        return sums.astype(np.int64).reshape(self._units, self._labels)

    def _summed(self, rows: Ints, column: Ints) -> Ints:
        at, unit = self.timeline.units_of(rows)
        return np.bincount(unit, weights=column[rows[at]], minlength=self._units).astype(np.int64)


def critical_path(timeline: Timeline) -> list[Step]:
    """Its steps in the order of time; they follow one another without gaps."""
    walk = _Walk(timeline)
    steps: list[Step] = []
    unit = int(timeline.end.argmax())
    now = int(timeline.end[unit])
    seen: set[tuple[int, int]] = set()
    while now > _NEAR and len(steps) < _LONGEST:
        follow = (unit, now) not in seen  # by clocks that are not aligned barriers may lead in a circle
        seen.add((unit, now))
        step, unit, now = walk.back(unit, now, follow=follow)
        if step is not None:
            steps.append(step)
    return _joined(steps[::-1])


class _Walk:
    def __init__(self, timeline: Timeline) -> None:
        self._t = timeline
        self._stop = timeline.aligned[timeline.spans.end[timeline.span]]  # not cut off at the end of the unit
        self._order = np.argsort(timeline.unit, kind="stable")
        self._bounds = np.searchsorted(timeline.unit[self._order], np.arange(len(timeline.end) + 1))
        self._barrier_of = dict(zip(timeline.barriers.span.tolist(), timeline.barriers.barrier.tolist(), strict=True))
        self._setup = timeline.label("setup")
        self._leased = timeline.spans.code("cause") == timeline.events.code("cause", "lease")

    def back(self, unit: int, now: int, *, follow: bool = True) -> tuple[Step | None, int, int]:
        """The step of the path that ends now in this unit, and where and when the path goes on. follow: also in other
        units."""
        t = self._t
        rows = self._order[self._bounds[unit] : self._bounds[unit + 1]]
        rows = rows[t.begin[rows] < now]
        inner = rows[t.stage[rows] != self._setup]
        ended = inner[self._stop[inner] <= now + _NEAR]
        best = int(self._stop[ended].max(initial=0))
        if now - best > _NEAR:
            running = inner[self._stop[inner] > now + _NEAR]
            if not len(running):
                running = rows[(t.stage[rows] == self._setup) & (self._stop[rows] >= now - _NEAR)]
            if len(running):
                row = int(running[np.argmax(t.begin[running])])
                begin = max(int(t.begin[row]), best)
                return self._step(unit, row, begin, now), unit, begin
            if now - best < _GAP and best:
                return None, unit, best
            note = "no span" if best else "before its first span"
            gap = Step(
                t.node(unit), t.rank(unit), "", "", "", best / SECOND, now / SECOND, (now - best) / SECOND, note=note
            )
            return gap, unit, best
        near = ended[self._stop[ended] >= best - _NEAR]
        row = int(near[np.argmin(t.begin[near])])
        begin = int(t.begin[row])
        span = int(t.span[row])
        if follow and span in self._barrier_of:
            return self._arrival(unit, row, now)
        if follow and self._leased[span] and t.wait[row]:
            installed = self._installation(unit, row)
            if installed is not None:
                other = int(t.unit[installed])
                moment = min(int(self._stop[installed]), now)
                step = self._step(unit, row, moment, now)
                return step._replace(note=f"waited for {t.node(other)} to install"), other, moment
        return self._step(unit, row, begin, now), unit, begin

    def _arrival(self, unit: int, row: int, now: int) -> tuple[Step, int, int]:
        t = self._t
        number = self._barrier_of[int(t.span[row])]
        spans = t.barriers.span[t.barriers.barrier == number]
        arrivals = t.aligned[t.spans.begin[spans]]
        last = int(spans[np.argmax(arrivals)])
        _, others = t.units_of(t.spans.begin[[last]])
        other = int(others[0])
        moment = min(int(arrivals.max()), now)
        step = self._step(other, row, moment, now)
        if len(spans) == 1:
            return step, other, moment
        waited = float(np.median(moment - arrivals)) / SECOND
        return step._replace(note=f"last of {len(spans)} to arrive; half waited {waited:.1f} s or more"), other, moment

    def _installation(self, unit: int, row: int) -> int | None:
        """The row of the installation in another unit that a wait for a lease ended with."""
        t = self._t
        rows = np.flatnonzero(
            (t.stage == t.label("dependencies"))
            & (t.unit != unit)
            & (t.events.codes["name"][t.spans.begin[t.span]] == t.events.code("name", "install"))
            & (self._stop > t.begin[row])
            & (self._stop <= self._stop[row] + SECOND)
        )
        key = t.spans.code("key")
        rows = rows[(key[t.span[rows]] == key[t.span[row]]) | (key[t.span[row]] < 0)]
        return int(rows[np.argmax(self._stop[rows])]) if len(rows) else None

    def _step(self, unit: int, row: int, begin: int, end: int) -> Step:
        t = self._t
        event = int(t.spans.begin[t.span[row]])
        rows = self._order[self._bounds[unit] : self._bounds[unit + 1]]
        rows = rows[(t.begin[rows] < end) & (t.stop[rows] > begin)]
        label, kind = t.stages[t.stage[row]], "wait" if t.wait[row] else "work"
        first, last = np.maximum(t.begin[rows], begin), np.minimum(t.stop[rows], end)
        nested = (t.stage[rows] != t.stage[row]) & (t.stage[rows] != self._setup) & (t.begin[rows] >= begin)
        nested &= t.stop[rows] <= end
        waits = t.wait[rows] & (t.stage[rows] == t.stage[row])
        lengths = durations(t.stage[rows[nested]], first[nested], last[nested], len(t.stages))
        inside = {t.stages[one]: float(lengths[one] / SECOND) for one in np.flatnonzero(lengths)}
        waited = int(durations(np.zeros(int(waits.sum()), np.int64), first[waits], last[waits], 1)[0])
        return Step(
            t.node(unit), t.rank(unit), label, t.events.word("name", event), kind,
            begin / SECOND, end / SECOND, (end - begin) / SECOND, waited / SECOND, inside,
        )  # fmt: skip


def _joined(steps: list[Step]) -> list[Step]:
    """Steps of the same unit and stage that follow one another become one, named after the longest."""
    place = attrgetter("node", "rank", "stage")
    groups: list[list[Step]] = []
    for step in steps:
        if step.note or not groups or place(groups[-1][0]) != place(step):
            groups.append([])
        groups[-1].append(step)
    joined = []
    for group in groups:
        longest, inside = max(group, key=attrgetter("seconds")), Counter[str]()
        for step in group:
            inside.update(step.inside)
        seconds, waited = sum(one.seconds for one in group), sum(one.wait_s for one in group)
        joined.append(
            group[0]._replace(
                name=longest.name, kind=longest.kind, end_s=group[-1].end_s, seconds=seconds, wait_s=waited,
                inside=dict(inside),
            )
        )  # fmt: skip
    return joined
