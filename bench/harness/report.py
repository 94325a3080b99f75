"""Reports on documents: tables as text and as Markdown, charts, and the places of both in the docs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bench.harness.results import METRICS, Document, Metric, Ratio, RatioPlan, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Bar", "Bars", "Chart", "Facts", "Lines", "Report", "hdfs", "insert", "machine", "tools"]

Facts = Mapping[str, Any]
"""The environment of a document."""

_Cells = Sequence[Sequence[str]]


class Chart(Protocol):
    """A picture without its file yet."""

    @property
    def size(self) -> tuple[float, float]:
        """In inches."""
        ...

    def plot(self, axes: Axes) -> None:
        """Draw everything. Raises ValueError where there is nothing to draw."""
        ...


@dataclass(frozen=True, slots=True)
class Report:
    """The form in which documents of one benchmark are shown.

    columns: the metrics of the second table. cases, systems: its order. spread: the metric whose extremes it shows, ""
    for the first metric of each line. metrics: those that this benchmark shows in another way than others do. head: the
    facts that the figures rest on, in words. variant: tells documents of one benchmark apart in the docs, by a name.
    """

    ratios: Sequence[RatioPlan]
    columns: Sequence[str]
    cases: Sequence[str]
    head: Callable[[Facts], str]
    chart: Callable[[Document], Chart]
    systems: Sequence[str] = ()
    spread: str = "time"
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    variant: Callable[[Facts], str] = lambda _facts: ""

    def text(self, document: Document) -> str:
        """Both tables in columns, and the notes."""
        return "\n\n".join([*map(_columns, self._tables(document)), *document.notes]) + "\n"

    def markdown(self, document: Document) -> str:
        """The same as Markdown, headed by the facts that the figures rest on."""
        facts = document.environment
        when = f", {facts['date']}" if "date" in facts else ""  # which older documents do not have
        head = f"Version {document.version}{when}; {self.head(facts)}"
        listed = ["\n".join(f"- {note}" for note in document.notes)] if document.notes else []
        return "\n\n".join([head, *map(_pipes, self._tables(document)), *listed]) + "\n"

    def section(self, document: Document) -> str:
        """The name of the document's place in the docs, as `insert` takes it."""
        return f"{document.bench} {self.variant(document.environment)}".strip()

    def draw(self, document: Document, file: Path) -> None:
        """Draw the chart; the ending of `file` gives its format (svg, png). Needs matplotlib.

        Raises ValueError where there is nothing to draw.
        """
        import matplotlib
        from matplotlib.figure import Figure

        matplotlib.rcParams["svg.hashsalt"] = "bench"  # else its ids are drawn at random: same numbers, same file
        chart = self.chart(document)
        figure = Figure(figsize=chart.size, layout="tight")
        axes = figure.subplots()
        chart.plot(axes)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)

    def _tables(self, document: Document) -> list[_Cells]:
        return [self._ratio_cells(document.ratios), self._row_cells(document)]

    def _ratio_cells(self, found: Sequence[Ratio]) -> list[list[str]]:
        """A head, and a line for each ratio, those with a target first."""
        targets = {plan.name: plan for plan in self.ratios if plan.bound}
        cells = [["ratio", "value", "low", "high", "target", ""]]
        for ratio in sorted(found, key=lambda ratio: ratio.name not in targets):
            verdict = ["", ""]
            if plan := targets.get(ratio.name):
                met = ratio.value >= plan.bound if plan.at_least else ratio.value <= plan.bound
                verdict = [f"{'≥' if plan.at_least else '≤'} {plan.bound:g}", "met" if met else "missed"]
            cells.append([ratio.name, f"{ratio.value:.3g}", f"{ratio.low:.3g}", f"{ratio.high:.3g}", *verdict])
        return cells

    def _row_cells(self, document: Document) -> list[list[str]]:
        """A head, and a line for each case and system."""
        known = {**METRICS, **self.metrics}
        used = [metric for metric in self.columns if any(row.metric == metric for row in document.rows)]
        of = f" {known[self.spread].head}" if self.spread else ""
        heads = [known[metric].head for metric in used]
        cells = [["case", "system", *heads, f"lowest{of}", f"highest{of}", "rounds"]]
        pairs = dict.fromkeys((row.case, row.system) for row in document.rows)
        order = sorted(pairs, key=lambda pair: (_place(pair[0], self.cases), _place(pair[1], self.systems), pair))
        for case, system in order:
            found: dict[str, Row] = {metric: row for metric in used if (row := document.row(case, system, metric))}
            if not found:
                continue
            values = [f"{found[m].median:.{known[m].digits}f}" if m in found else "" for m in used]
            extremes = ["", ""]
            if main := found.get(self.spread or next(iter(found))):
                extremes = [f"{value:.{known[main.metric].digits}f}" for value in (main.min, main.max)]
            cells.append([case, system, *values, *extremes, str(max(row.n for row in found.values()))])
        return cells


# -- words of heads ----------------------------------------------------------------------------------------------------


def machine(facts: Facts, used: str) -> str:
    """The end of a head: this machine, what was used on it, how slow its memory is and how busy it was."""
    return (
        f"{facts['cpus']} CPUs ({facts['cpu']}), kernel {facts['kernel']}, Python {facts['python']}, {used}; "
        f"first touch of memory {facts['first_touch_s_per_gib']:g} s/GiB; load {facts['load_15min']}."
    )


def tools(facts: Facts) -> str:
    """The programs that were used, with their versions."""
    return ", ".join(f"{name} {number}" for name, number in facts["tools"].items())


def hdfs(facts: Facts) -> str:
    """The software that HDFS was measured with."""
    client = facts["packages"].get("hdfs-native", "-")
    return f"Hadoop {facts['hadoop']}, hdfs-native {client}, rclone {facts['rclone'] or 'not built'}"


# -- charts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """`ours`: in the colour of this project's own."""

    label: str
    row: Row
    ours: bool


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each system, from the top down: medians with the lowest and highest round.

    of: names what there is nothing of where there are no bars. width in inches; height, for each bar. digits: after the
    point, of the figures beside the bars. scale: their quantity and unit.
    """

    bars: Sequence[Bar]
    of: str
    title: str
    scale: str
    digits: int = 1
    width: float = 9
    height: float = 0.36

    @property
    def size(self) -> tuple[float, float]:
        return self.width, self.height * len(self.bars) + 1.4

    def plot(self, axes: Axes) -> None:
        if not self.bars:
            raise ValueError(f"this document holds no {self.of} to draw")
        bars = self.bars[::-1]  # barh draws from the bottom up
        rows = [bar.row for bar in bars]
        errors = [[row.median - row.min for row in rows], [row.max - row.median for row in rows]]
        colours = ["#d95f02" if bar.ours else "#9aa5b1" for bar in bars]
        drawn = axes.barh(
            [bar.label for bar in bars], [row.median for row in rows], xerr=errors, color=colours, ecolor="#444444"
        )
        axes.bar_label(drawn, fmt=f"%.{self.digits}f", padding=6)
        axes.set_xlabel(self.scale, loc="right")
        axes.figure.suptitle(self.title, fontsize=10)
        axes.set_xlim(0, max(row.max for row in rows) * 1.12)


@dataclass(frozen=True, slots=True)
class Lines:
    """A line of (x, y) for each label, on logarithmic axes. none: what to do where there are no points at all."""

    lines: Mapping[str, Sequence[tuple[float, float]]]
    none: str
    title: str
    across: str
    upwards: str
    size: tuple[float, float] = (9, 4.5)

    def plot(self, axes: Axes) -> None:
        if not any(self.lines.values()):
            raise ValueError(self.none)
        for label, points in self.lines.items():
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=label)
        axes.set(xscale="log", yscale="log", xlabel=self.across, ylabel=self.upwards)
        axes.set_title(self.title, loc="left", fontsize=11)
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(frameon=False, fontsize=9)


# -- tables ------------------------------------------------------------------------------------------------------------


def insert(page: str, tables: str, section: str) -> str:
    """`page` with `tables` in place of what stands between the marks of `section`. Raises ValueError without them."""
    first, last = f"<!-- results of {section} -->", f"<!-- end of results of {section} -->"
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the page has no lines {first} and {last} to put the tables between")
    return f"{before}{begin}\n\n{tables}\n{end}{after}"


def _place(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def _columns(cells: _Cells) -> str:
    """A table for terminals; the first row is its head."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    names = 1 if cells[0][0] == "ratio" else 2  # columns of words stand left, numbers right
    lines = []
    for row in cells:
        padded = [cell.ljust(widths[i]) if i < names else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _pipes(cells: _Cells) -> str:
    """The same as Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    names = 1 if cells[0][0] == "ratio" else 2
    rule = "|" + "".join("---|" if i < names else "--:|" for i in range(len(cells[0])))
    return "\n".join([lines[0], rule, *lines[1:]])
