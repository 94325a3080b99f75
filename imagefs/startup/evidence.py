"""Evidence of one start: the time of each stage in each unit, and the figures of each unit that point at causes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imagefs.startup.load import Ints
from imagefs.startup.report import Overlap, Stage
from imagefs.startup.spans import SECOND, alone, durations, quantile
from imagefs.startup.timeline import Timeline

__all__ = ["Evidence"]


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
