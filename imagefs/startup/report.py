"""The report on starts of jobs: plain values that every output shows. docs/startup-report.md documents each field.

Times are seconds since the first begin of the start they belong to; durations are made of monotonic clocks. A figure
that cannot be known is None, never an estimate in disguise. `to_json` gives the document of `--json`, whose fields keep
their meaning within one VERSION.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = [
    "VERSION", "Advice", "Cause", "Clock", "Comparison", "Growth", "Interval", "Lost", "Offender", "Overlap", "Problem",
    "Report", "SizeGroup", "SpanRow", "Stage", "Start", "Step", "Straggler", "UnusedModule",
]  # fmt: skip

VERSION = 1


class Interval(NamedTuple):
    """An estimate with its 95% interval; low and high are None where the data allow no interval."""

    value: float
    low: float | None = None
    high: float | None = None

    def __format__(self, form: str) -> str:
        """The value, with the interval behind it where there is one."""
        bounds = "" if self.low is None else f" ({self.low:{form}} to {self.high:{form}})"
        return f"{self.value:{form}}{bounds}"


class Problem(NamedTuple):
    """A defect of the events. kind: see docs/startup-report.md; example: the file and line, or the span, of one."""

    kind: str
    count: int  # type: ignore[assignment]  # in place of the method of tuples
    meaning: str
    example: str = ""


class SpanRow(NamedTuple):
    """A span on the timeline. end_s is None where no end was found; at_least_s is then how long it surely lasted."""

    node: str
    rank: int | None
    stage: str
    name: str
    kind: str
    begin_s: float
    end_s: float | None
    source: str = ""
    cause: str = ""
    host: str = ""
    at_least_s: float | None = None


class Clock(NamedTuple):
    """The clock of one boot. skew_s: by how much its wall clock is ahead of the median; bound_s: its uncertainty.

    method: "same boot" (all nodes share it), "barrier" (ends of `rendezvous`), or "wall" (not corrected).
    """

    nodes: list[str]
    boot: str
    method: str
    skew_s: float
    bound_s: float | None
    jump_s: float
    barriers: int = 0


class Stage(NamedTuple):
    """A stage over the units of a start. A unit is a rank, or a node that has none."""

    stage: str
    units: int
    sum_s: float
    union_s: float
    work_s: float
    wait_s: float
    alone_s: float
    p50_s: float
    p99_s: float
    max_s: float
    max_over_median: float | None
    slowest: str
    quantiles_s: list[float]


class Overlap(NamedTuple):
    """Means over units: the sum of all stages, the time that any stage covers, the time of none, and the wall time."""

    sum_s: float
    covered_s: float
    uncovered_s: float
    wall_s: float


class Step(NamedTuple):
    """A part of the critical path. seconds: its share of the path; stage "" is a gap that no span explains."""

    node: str
    rank: int | None
    stage: str
    name: str
    kind: str
    begin_s: float
    end_s: float
    seconds: float
    wait_s: float = 0.0
    inside: Mapping[str, float] = {}
    note: str = ""


class Cause(NamedTuple):
    """A likely cause. seconds: how much of the time it explains; evidence: the figures that point at it."""

    cause: str
    seconds: float
    text: str
    evidence: dict[str, Any]


class Straggler(NamedTuple):
    """A node whose stage took much longer than the median. causes: the likeliest first.

    apparent: it only seems late, by a wall clock that is off; stage is then "".
    """

    node: str
    stage: str
    seconds: float
    median_s: float
    excess_s: float
    threshold_s: float
    apparent: bool
    causes: list[Cause]


class Lost(NamedTuple):
    """GPU time that starts cost. assumed: how the number of GPUs was found."""

    gpus: float
    assumed: str
    gpu_hours: float
    by_stage: dict[str, float]
    cost: float | None
    run_length_s: float | None
    share_lost: float | None
    effective_share: float | None


class Start(NamedTuple):
    """One start: an attempt of a run on all its nodes. total_s: first begin to the last unit's end of the start.

    held_s: total_s without the queue, during which no GPU was held. ended_by: "ready", "first_step", or "last event"
    where neither was found. complete: every unit has an end. side: "before" or "after" in a comparison.
    """

    job: str
    run: str
    attempt: int
    side: str
    begin_unix: float
    nodes: int
    ranks: int
    units: int
    events: int
    total_s: float
    held_s: float
    ended_by: str
    complete: bool
    unit_end_p50_s: float
    unit_end_p99_s: float
    last_unit: str
    stages: list[Stage]
    overlap: Overlap
    critical_path: list[Step]
    clocks: list[Clock]
    skew_method: str
    skew_max_s: float
    skew_bound_s: float | None
    stragglers: list[Straggler]
    causes: list[Cause]
    unfinished: list[SpanRow]
    lanes: list[SpanRow]
    lost: Lost | None


class Offender(NamedTuple):
    """A node or DataNode (kind "node", "host") that was a straggler, or its cause, in several starts."""

    kind: str
    name: str
    starts: int
    seen: int
    seconds: float
    causes: dict[str, int]


class SizeGroup(NamedTuple):
    nodes: int
    starts: int
    median_s: float
    p90_s: float


class Growth(NamedTuple):
    """Growth of the total with nodes. law "power": seconds = a * nodes ** b; "log": a + b * ln(nodes); "" too few."""

    groups: list[SizeGroup]
    law: str
    a: float | None
    b: Interval | None


class Comparison(NamedTuple):
    """A figure before and after. ratio: after / before. resampled: "starts" or "units", "" where there is no interval.

    stage: "" is the total.
    """

    stage: str
    before_s: float
    after_s: float
    ratio: Interval | None
    before_n: int
    after_n: int
    resampled: str


class UnusedModule(NamedTuple):
    """A module imported and not used before the first step. units: in how many units."""

    module: str
    seconds: float
    units: int


class Advice(NamedTuple):
    """A change and its expected saving, of the total of the median start. basis: how the saving follows from the data.

    at_most: the data do not show the rest that remains, so that saving_s is an upper bound.
    """

    action: str
    stage: str
    saving_s: float
    saving_share: float
    at_most: bool
    starts: int
    gpu_hours: float | None
    basis: str


class Report(NamedTuple):
    events: int
    lines: int
    files: int
    versions: dict[str, int]
    problems: list[Problem]
    starts: list[Start]
    offenders: list[Offender]
    lost: Lost | None
    growth: Growth | None
    comparison: list[Comparison]
    unused: list[UnusedModule]
    advice: list[Advice]
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        """The document, floats rounded to microseconds."""
        document: dict[str, Any] = _plain(self)
        return document


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, tuple):  # one of the classes above
        value = value._asdict()  # type: ignore[attr-defined]
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
