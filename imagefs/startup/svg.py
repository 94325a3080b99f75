"""Charts of a report as SVG, each with the table of its figures. Pure: a Report in, text out.

A chart is drawn for a narrow screen, labels above their bars, and scales. Colours come from the style sheet STYLE by
class, for light and dark; time of waiting is pale and outlined. Texts of users are escaped, and characters that XML
forbids or that change the direction of text are replaced.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from imagefs.startup.report import Comparison, Growth, SpanRow, Stage, Start, Step
from stripefs.startup_events import STAGES

__all__ = ["STYLE", "Chart", "breakdown", "comparison", "critical_path", "escape", "growth", "seconds", "spread",
           "standalone", "timeline", "unit_name"]  # fmt: skip

_W, _BAR, _ROW, _TOP = 400.0, 12.0, 36.0, 8.0
_STEPS_DRAWN, _TRACKS = 30, 6
"""More are told in the table, or counted, and not drawn."""

_BAD = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_HUES = (220, 205, 165, 135, 95, 50, 30, 12, 345, 315, 285, 255, 0)


def _colours(tone: str) -> str:
    return "".join(
        f"svg .s-{stage}{{fill:hsl({hue} {tone})}}svg .s-{stage}.wait{{stroke:hsl({hue} {tone})}}\n"
        for stage, hue in zip((*STAGES[:-1], "other"), _HUES, strict=True)
    )


STYLE = """\
svg{font:13px system-ui,sans-serif;color-scheme:light dark}
svg text{fill:#1a1a1a}svg .dim{fill:#595959;font-size:12px}svg .end{text-anchor:end}svg .middle{text-anchor:middle}
svg .grid{stroke:#d5d5d5}svg .line{stroke:#1a1a1a;stroke-width:1.5;fill:none}svg .mark{fill:#1a1a1a}
svg .paper{fill:#fff}svg .b{stroke-width:1;stroke:none}svg .wait{fill-opacity:.3}svg .gap{fill:#8a8a8a;fill-opacity:.35}
svg .before{fill:#8a8a8a}svg .after{fill:#2266bb}svg .open{stroke-dasharray:3 2}
""" + _colours("62% 42%") + """\
@media (prefers-color-scheme:dark){svg text{fill:#ececec}svg .dim{fill:#b3b3b3}svg .grid{stroke:#4a4a4a}
svg .line{stroke:#ececec}svg .mark{fill:#ececec}svg .paper{fill:#16181c}svg .after{fill:#66aaff}
""" + _colours("60% 62%") + "}\n"  # fmt: skip


class Chart(NamedTuple):
    """title and about are plain texts, body is SVG of `height`, rows are the figures as texts."""

    title: str
    about: str
    body: str
    height: float
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def svg(self) -> str:
        """The element, for a page that has STYLE."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_W:g} {self.height:g}" role="img" '
            f'aria-label="{escape(f"{self.title}. {self.about}")}">{self.body}</svg>'
        )


def standalone(chart: Chart) -> str:
    """An SVG file of its own."""
    head, body = chart.svg().split(">", 1)
    title = (
        f'<title>{escape(chart.title)}</title><style>{STYLE}</style><rect class="paper" width="100%" height="100%"/>'
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head} width="{2 * _W:g}">{title}{body}\n'


def escape(text: str) -> str:
    """Text for HTML and XML, also within quotes."""
    return html.escape(_BAD.sub("\ufffd", text))


def seconds(value: float | None) -> str:
    if value is None:
        return "not known"
    return f"{value:.2f} s" if abs(value) < 10 else f"{value:.1f} s" if abs(value) < 100 else f"{value:.0f} s"


def unit_name(node: str, rank: int | None) -> str:
    return (node or "all nodes") + ("" if rank is None else f" rank {rank}")


def breakdown(start: Start) -> Chart:
    """Work and wait of each stage, the mean over units."""
    drawing = _Drawing(max((stage.union_s for stage in start.stages), default=0))
    for stage in start.stages:
        at = drawing.row(stage.stage, f"{seconds(stage.work_s)} work, {seconds(stage.wait_s)} wait")
        drawing.bar(at, 0, stage.work_s, _class(stage.stage), f"{stage.stage}: {seconds(stage.work_s)} work")
        drawing.bar(at, stage.work_s, stage.work_s + stage.wait_s, f"{_class(stage.stage)} wait",
                    f"{stage.stage}: {seconds(stage.wait_s)} wait")  # fmt: skip
    rows = [[one.stage, seconds(one.work_s), seconds(one.wait_s), seconds(one.union_s), seconds(one.alone_s)]
            for one in start.stages]  # fmt: skip
    return drawing.chart("Breakdown by stage", "Mean time of a unit in each stage; pale is time of waiting.",
                         ("Stage", "Work", "Wait", "Total", "Alone"), rows)  # fmt: skip


def spread(start: Start) -> Chart:
    """Differences of the units in each stage: the range, the middle half and the median."""
    drawing = _Drawing(max((stage.max_s for stage in start.stages), default=0))

    def ratio(stage: Stage) -> str:
        return "not known" if stage.max_over_median is None else f"{stage.max_over_median:.2f}"

    for stage in start.stages:
        at = drawing.row(stage.stage, f"median {seconds(stage.p50_s)}, max {seconds(stage.max_s)}")
        low, first, middle, third, high = stage.quantiles_s[::5]
        drawing.line(at + _BAR / 2, low, high, f"{stage.stage}: {seconds(low)} to {seconds(high)}")
        told = f"{stage.stage}: half of the units take {seconds(first)} to {seconds(third)}"
        drawing.bar(at, first, third, _class(stage.stage), told)
        drawing.tick(at, middle)
    rows = [[one.stage, seconds(one.p50_s), seconds(one.p99_s), seconds(one.max_s), ratio(one), one.slowest]
            for one in start.stages]  # fmt: skip
    return drawing.chart("Spread over nodes", f"{start.units} units: range, middle half and median of each stage.",
                         ("Stage", "p50", "p99", "Max", "Max / median", "Slowest"), rows)  # fmt: skip


def timeline(start: Start) -> Chart:
    """Spans of the units that the report picked: those of the critical path, a median one, stragglers."""
    units: dict[tuple[str, int | None], list[SpanRow]] = {}
    for span in start.lanes:
        units.setdefault((span.node, span.rank), []).append(span)
    drawing = _Drawing(start.total_s)
    for unit, spans in units.items():
        ends: list[float] = []  # of each track, so that spans that overlap are beside one another
        at = drawing.row(unit_name(*unit), "")
        for span in sorted(spans, key=lambda one: one.begin_s):
            end = span.end_s if span.end_s is not None else span.begin_s + (span.at_least_s or 0)
            track = next((number for number, free in enumerate(ends) if free <= span.begin_s), len(ends))
            if track == _TRACKS:
                continue
            ends[track : track + 1] = [end]
            state = " open" if span.end_s is None else ""
            told = f"{span.stage} {span.name}: {seconds(span.begin_s)} to {_end(span)} {span.cause} {span.host}".strip()
            drawing.bar(at + track * (_BAR + 1), span.begin_s, end, _class(span.stage, span.kind) + state, told)
        drawing.grow(max(0, len(ends) - 1) * (_BAR + 1))
    drawing.legend(span.stage for span in start.lanes)
    rows = [[unit_name(one.node, one.rank), one.stage, one.name, one.kind, seconds(one.begin_s), _end(one)]
            for one in start.lanes]  # fmt: skip
    about = f"Spans of {len(units)} of {start.units} units. Pale is time of waiting."
    return drawing.chart("Timeline", about,
                         ("Unit", "Stage", "Name", "Kind", "Begin", "End"), rows)  # fmt: skip


def critical_path(start: Start) -> Chart:
    """The chain of spans that the end of the start waited for; the longest are drawn."""
    longest = sorted(start.critical_path, key=lambda step: -step.seconds)[:_STEPS_DRAWN]
    drawing = _Drawing(start.total_s)

    def name(step: Step) -> str:
        return f"{step.stage} {step.name}".strip() if step.stage else "no span explains this time"

    for step in sorted(longest, key=lambda one: one.begin_s):
        at = drawing.row(f"{name(step)}, {unit_name(step.node, step.rank)}", seconds(step.seconds))
        kind = _class(step.stage, step.kind) if step.stage else "gap"
        told = f"{name(step)}: {seconds(step.begin_s)} to {seconds(step.end_s)} {step.note}".strip()
        drawing.bar(at, step.begin_s, step.end_s, kind, told)
    rows = [[unit_name(one.node, one.rank), name(one), seconds(one.begin_s), seconds(one.seconds), seconds(one.wait_s),
             one.note] for one in start.critical_path]  # fmt: skip
    return drawing.chart("Critical path", "The spans that the end of the start waited for, in order of time.",
                         ("Unit", "Step", "Begin", "Share of the path", "Wait", "Note"), rows)  # fmt: skip


def growth(found: Growth) -> Chart:
    """Median and 90th percentile of the total by job size, and the law that fits."""
    sizes = [group.nodes for group in found.groups]
    low, high = math.log(max(1, min(sizes))), math.log(max(2, *sizes))
    top, height = max(group.p90_s for group in found.groups) or 1, 200.0

    def place(nodes: float, value: float) -> tuple[float, float]:
        across = 0.5 if high <= low else (math.log(max(1, nodes)) - low) / (high - low)
        return 50 + across * (_W - 70), _TOP + 12 + height * (1 - min(value / top, 1.2))

    parts = []
    for value in _ticks(top):
        y = place(1, value)[1]
        parts.append(f'<path class="grid" d="M50 {y:.1f}H{_W:g}"/>')
        parts.append(f'<text class="dim end" x="46" y="{y + 4:.1f}">{seconds(value)}</text>')
    if found.a is not None and found.b is not None:
        a, b = found.a, found.b.value
        steps = [math.exp(low + (high - low) * step / 40) for step in range(41)]
        law = [(nodes, a * nodes**b if found.law == "power" else a + b * math.log(nodes)) for nodes in steps]
        points = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in law)
        parts.append(f'<polyline class="line" points="{points}"/>')
    labelled = 0.0
    for group in found.groups:
        x, y = place(group.nodes, group.median_s)
        told = (
            f"{group.nodes} nodes: median {seconds(group.median_s)}, p90 {seconds(group.p90_s)}, {group.starts} starts"
        )
        parts.append(
            f'<g><title>{escape(told)}</title><circle class="after" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
            f'<path class="line" d="M{x:.1f} {y:.1f}V{place(1, group.p90_s)[1]:.1f}"/></g>'
        )
        if x - labelled >= 28:
            parts.append(f'<text class="dim middle" x="{x:.1f}" y="{height + 38:g}">{group.nodes}</text>')
            labelled = x
    rows = [[str(one.nodes), str(one.starts), seconds(one.median_s), seconds(one.p90_s)] for one in found.groups]
    about = "Time to the first step by number of nodes: median, and a line to the 90th percentile."
    if found.b is not None and found.law == "power":
        about += f" It grows with nodes to the power {found.b:.2f}."
    return Chart("Growth with job size", about, "".join(parts), height + 46, ("Nodes", "Starts", "Median", "p90"), rows)


def comparison(found: Sequence[Comparison]) -> Chart:
    """Before and after by stage; the ratio with its 95% interval is in the label and the table."""
    drawing = _Drawing(max((max(one.before_s, one.after_s) for one in found), default=0))

    def ratio(one: Comparison) -> str:
        return "not known" if one.ratio is None else f"{one.ratio:.2f}"

    for one in found:
        name = one.stage or "total"
        at = drawing.row(name, f"ratio {ratio(one)}" if one.ratio else "")
        drawing.bar(at, 0, one.before_s, "before", f"{name} before: {seconds(one.before_s)}")
        drawing.bar(at + _BAR + 1, 0, one.after_s, "after", f"{name} after: {seconds(one.after_s)}")
        if one.ratio and one.ratio.low is not None and one.ratio.high is not None:
            low, high = one.before_s * one.ratio.low, one.before_s * one.ratio.high
            drawing.line(at + _BAR * 1.5 + 1, low, high, f"{name}, 95% interval: {seconds(low)} to {seconds(high)}")
        drawing.grow(_BAR + 1)
    rows = [[one.stage or "total", seconds(one.before_s), seconds(one.after_s), ratio(one),
             f"{one.before_n} / {one.after_n} {one.resampled}".strip()] for one in found]  # fmt: skip
    return drawing.chart("Before and after", "Grey before, blue after; the line is the 95% interval of the ratio.",
                         ("Stage", "Before", "After", "Ratio (95%)", "Sample"), rows)  # fmt: skip


class _Drawing:
    """Rows of bars over one axis of seconds, each with a label on the left and one on the right."""

    def __init__(self, longest: float) -> None:
        self._longest = longest if longest > 0 else 1.0
        self._parts: list[str] = []
        self._y, self._foot = _TOP, 16.0

    def row(self, left: str, right: str) -> float:
        """Begin a row; the height at which its bars begin."""
        room = 47 - len(right)
        short = left if len(left) <= room else left[: room - 1] + "…"
        self._parts.append(f'<text x="0" y="{self._y + 11:g}"><title>{escape(left)}</title>{escape(short)}</text>'
                           f'<text class="dim end" x="{_W:g}" y="{self._y + 11:g}">{escape(right)}</text>')  # fmt: skip
        self._y += _ROW
        return self._y - _ROW + 16

    def grow(self, height: float) -> None:
        self._y += height

    def bar(self, y: float, begin: float, end: float, kind: str, told: str) -> None:
        if end < begin or begin > self._longest:
            return
        x, width = self._x(begin), max(self._x(end) - self._x(begin), 0.75)
        self._parts.append(f'<rect class="b {kind}" x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{_BAR:g}">'
                           f"<title>{escape(told)}</title></rect>")  # fmt: skip

    def line(self, y: float, begin: float, end: float, told: str) -> None:
        self._parts.append(f'<path class="line" d="M{self._x(begin):.2f} {y:g}H{self._x(end):.2f}">'
                           f"<title>{escape(told)}</title></path>")  # fmt: skip

    def tick(self, y: float, at: float) -> None:
        self._parts.append(
            f'<rect class="mark" x="{self._x(at) - 1:.2f}" y="{y - 2:g}" width="2" height="{_BAR + 4:g}"/>'
        )

    def legend(self, stages: Iterable[str]) -> None:
        """The colour of each stage, several in a line below the axis. Call it after the last row."""
        for number, stage in enumerate(
            sorted(set(stages), key=lambda one: (STAGES.index(one) if one in STAGES else len(STAGES), one))
        ):
            x, y = number % 3 * _W / 3, self._y + number // 3 * 18 + 22
            self._parts.append(
                f'<rect class="b {_class(stage)}" x="{x:g}" y="{y:g}" width="10" height="10"/>'
                f'<text class="dim" x="{x + 14:g}" y="{y + 9:g}">{escape(stage[:14])}</text>'
            )
            self._foot = y + 18 - self._y

    def chart(self, title: str, about: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Chart:
        axis = [f'<path class="grid" d="M{self._x(value):.2f} {_TOP:g}V{self._y:g}"/>'
                f'<text class="dim{" end" if value else ""}" x="{self._x(value):.2f}" y="{self._y + 10:g}">'
                f"{seconds(value) if value else '0'}</text>" for value in _ticks(self._longest)]  # fmt: skip
        return Chart(title, about, "".join(axis + self._parts), self._y + self._foot, heads, rows)

    def _x(self, value: float) -> float:
        return min(max(value, 0) / self._longest, 1) * _W


def _ticks(longest: float) -> list[float]:
    """Round figures from 0 to at most `longest`, about five."""
    rough = longest / 4
    unit = 10 ** math.floor(math.log10(rough))
    step = next(size * unit for size in (1, 2, 5, 10) if size * unit >= rough)
    return [number * step for number in range(int(longest / step) + 1)]


def _end(span: SpanRow) -> str:
    return seconds(span.end_s) if span.end_s is not None else "no end found"


def _class(stage: str, kind: str = "work") -> str:
    return f"s-{stage if stage in STAGES[:-1] else 'other'}" + (" wait" if kind == "wait" else "")
