"""The time of each stage in each unit of a start, and the figures over units that reports show of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from imagefs.startup.clock import SECOND
from imagefs.startup.load import Ints
from imagefs.startup.report import Overlap, Stage
from imagefs.startup.spans import alone, durations, quantile
from imagefs.startup.timeline import Timeline

__all__ = ["Breakdown"]


class Breakdown:
    """Nanoseconds by unit (row) and stage (column of `stages` of the timeline), and by unit.

    total: durations added, waits only where the stage has nothing else. union: time covered; of `setup` only gaps of
    the others. wait: time of spans that waited. alone: time in which no other stage ran. covered: time of any stage.
    """

    def __init__(self, timeline: Timeline) -> None:
        t = self.timeline = timeline
        units, labels = len(t.end), len(t.stages)
        key, setup = t.unit * labels + t.stage, t.label("setup")

        def sums(chosen: NDArray[np.bool_]) -> Ints:
            lengths = (t.stop - t.begin)[chosen]
            made = np.bincount(key[chosen], weights=lengths, minlength=units * labels)
            return made.astype(np.int64).reshape(units, labels)

        def unions(chosen: NDArray[np.bool_]) -> Ints:
            return durations(key[chosen], t.begin[chosen], t.stop[chosen], units * labels).reshape(units, labels)

        def singles(chosen: NDArray[np.bool_]) -> Ints:
            return alone(t.unit[chosen], t.stage[chosen], t.begin[chosen], t.stop[chosen], units, labels)

        work, every, inner = sums(~t.wait), np.ones(len(key), bool), t.stage != setup
        self.total = np.where(work > 0, work, sums(t.wait))
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
