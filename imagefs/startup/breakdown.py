"""The time of each stage in each unit of a start, and the figures over units that reports show of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from imagefs.startup.clock import SECOND
from imagefs.startup.load import Ints
from imagefs.startup.report import Overlap, Stage
from imagefs.startup.spans import alone, durations, quantile
from imagefs.startup.timeline import Timeline

__all__ = ["Breakdown", "measure"]


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Nanoseconds by unit (row) and stage (column of `stages` of the timeline), and by unit.

    total: durations added, waits only where the stage has nothing else. union: time covered; of `setup` only gaps of
    the others. wait: time of spans that waited. alone: time in which no other stage ran. covered: time of any stage.
    """

    timeline: Timeline
    total: Ints
    union: Ints
    wait: Ints
    alone: Ints
    covered: Ints

    def stages(self) -> list[Stage]:
        """The stages that took any time, in the order of the vocabulary."""
        found = []
        for label in np.flatnonzero(self.union.any(axis=0)):
            union = self.union[:, label] / SECOND
            p50, p99, most = quantile(union, 0.5, 0.99, 1.0)
            mean, wait = float(union.mean()), float(self.wait[:, label].mean() / SECOND)
            found.append(
                Stage(
                    self.timeline.stages[label],
                    int(np.count_nonzero(union)),
                    float(self.total[:, label].mean() / SECOND),
                    mean,
                    mean - wait,
                    wait,
                    float(self.alone[:, label].mean() / SECOND),
                    p50,
                    p99,
                    most,
                    most / p50 if p50 else None,
                    self.timeline.name(int(union.argmax())),
                    quantile(union, *np.linspace(0, 1, 21).tolist()),
                )
            )
        return found

    def overlap(self) -> Overlap:
        covered = self.covered
        return Overlap(
            float(self.union.sum(axis=1).mean() / SECOND),
            float(covered.mean() / SECOND),
            float((self.timeline.end - covered).mean() / SECOND),
            float(self.timeline.end.mean() / SECOND),
        )


def measure(timeline: Timeline) -> Breakdown:
    units, labels = len(timeline.end), len(timeline.stages)
    unit, stage, begin, stop, wait = timeline.unit, timeline.stage, timeline.begin, timeline.stop, timeline.wait
    setup = timeline.label("setup")
    key = unit * labels + stage
    shape = (units, labels)

    def sums(chosen: Ints) -> Ints:
        lengths = (stop - begin)[chosen]
        return np.bincount(key[chosen], weights=lengths, minlength=units * labels).astype(np.int64).reshape(shape)

    def unions(chosen: Ints) -> Ints:
        return durations(key[chosen], begin[chosen], stop[chosen], units * labels).reshape(shape)

    working, waiting = np.flatnonzero(~wait), np.flatnonzero(wait)
    work = sums(working)
    union, waited = unions(np.arange(len(key))), unions(waiting)
    inner = stage != setup
    single = alone(unit[inner], stage[inner], begin[inner], stop[inner], units, labels)
    covered = single.sum(axis=1)
    if not inner.all():
        everything = alone(unit, stage, begin, stop, units, labels)
        covered = everything.sum(axis=1)
        single[:, setup] = union[:, setup] = everything[:, setup]
        waited[:, setup] = 0
    return Breakdown(timeline, np.where(work > 0, work, sums(waiting)), union, waited, single[:, :-1], covered)
