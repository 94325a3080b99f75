"""`analyse`: from places with events to the report on the starts in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from imagefs.startup.causes import advise, changes, common_causes, look, stragglers
from imagefs.startup.evidence import Evidence, critical_path
from imagefs.startup.load import Events, Problems, group_ids, load
from imagefs.startup.many_starts import Gpus, compare, growth, lost, lost_together, offenders, unused_modules
from imagefs.startup.report import Report, SpanRow, Start, Step, Straggler
from imagefs.startup.sources import File
from imagefs.startup.spans import SECOND, pair, quantile
from imagefs.startup.timeline import Timeline, timelines
from stripefs.errors import ConfigError

__all__ = ["Gpus", "analyse"]

_LANES = 8  # units that are drawn
_LANE = 200  # spans of each, the longest
_UNFINISHED = 100  # spans that are shown
_METHODS = ("wall", "barrier", "same boot")  # the weakest first


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
