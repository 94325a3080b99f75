"""Tables for people, from the document of a run: text on a terminal, Markdown for the docs, a chart for the README."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.plan import CASES, ratios
from bench.results import Document, Ratio, Row

__all__ = ["chart", "columns", "insert", "markdown", "pipes", "ratio_cells", "text"]

_TARGETS = {plan.name: (plan.bound, plan.at_least) for plan in ratios() if plan.bound} | {
    "memory_over_budget_mib": (150.0, False)
}
_METRICS = ("throughput", "time", "cpu_per_gb", "datanode_cpu_per_gb", "peak_pss")
_ROW_HEAD = [
    "case",
    "system",
    "MB/s",
    "lowest",
    "highest",
    "s",
    "CPU s/GB",
    "DataNodes' CPU s/GB",
    "peak MiB",
    "rounds",
]
_CHARTED = {
    "placement_limit": "what placement allows",
    "stripefs": "stripefs",
    "raw_parallel": "raw parallel read_range",
    "raw_libhdfs": "raw parallel libhdfs",
    "rclone": "rclone, chunk streams",
    "single_stream": "one hdfs-native stream",
    "one_datanode": "one DataNode alone",
}


def text(document: Document) -> str:
    """Both tables in columns, and the notes."""
    parts = [columns(_ratio_cells(document.ratios)), columns(_row_cells(document))]
    return "\n\n".join([*parts, *document.notes]) + "\n"


def markdown(document: Document) -> str:
    """The same as Markdown, headed by the facts of the machine."""
    facts = document.environment
    head = (
        f"Version {document.version}; {facts['rounds']} rounds; {facts['datanodes']} DataNodes behind "
        f"{facts['rate_mb_s']:g} MB/s each; files of {facts['file_mib']} MiB; budget {facts['budget_mib']} MiB; "
        f"{facts['cpus']} CPUs ({facts['cpu']}), kernel {facts['kernel']}, Python {facts['python']}, "
        f"Hadoop {facts['hadoop']}, hdfs-native {facts['packages'].get('hdfs-native', '-')}, "
        f"rclone {facts['rclone'] or 'not built'}; first touch of memory {facts['first_touch_s_per_gib']:g} s/GiB; "
        f"load {facts['load_15min']}."
    )
    notes = [f"- {note}" for note in document.notes]
    tables = [pipes(_ratio_cells(document.ratios)), pipes(_row_cells(document))]
    return "\n\n".join([head, *tables, *(["\n".join(notes)] if notes else [])]) + "\n"


def insert(page: str, tables: str, name: str = "results") -> str:
    """`page` with `tables` in place of what stands between its marks of this name. Raises ValueError without them."""
    first, last = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the page has no lines {first} and {last} to put the tables between")
    return f"{before}{begin}\n\n{tables}\n{end}{after}"


def chart(document: Document, file: Path) -> None:
    """Draw sequential throughput by system; the ending of `file` says as what (svg, png). Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [(label, row) for name, label in _CHARTED.items() if (row := document.row("sequential", name))]
    if not rows:
        raise ValueError("this document holds no sequential reads to draw")
    rows.reverse()  # barh draws from the bottom up
    figure, axes = plt.subplots(figsize=(7.5, 0.45 * len(rows) + 1.2))
    medians = [row.median for _, row in rows]
    errors = [[row.median - row.min for _, row in rows], [row.max - row.median for _, row in rows]]
    colours = ["#d95f02" if label == "stripefs" else "#9aa5b1" for label, _ in rows]
    bars = axes.barh([label for label, _ in rows], medians, xerr=errors, color=colours, ecolor="#444444")
    axes.bar_label(bars, fmt="%.0f", padding=6)
    axes.set_xlabel("MB/s, median with lowest and highest round")
    facts = document.environment
    axes.set_title(
        f"One {facts['file_mib']} MiB file in 8 MiB blocks on {facts['datanodes']} DataNodes "
        f"of {facts['rate_mb_s']:g} MB/s each",
        fontsize=10,
    )
    axes.set_xlim(0, max(row.max for _, row in rows) * 1.12)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    metadata = {"Date": None} if file.suffix == ".svg" else None  # same numbers, same file
    figure.savefig(file, metadata=metadata)
    plt.close(figure)


def ratio_cells(found: Sequence[Ratio], targets: Mapping[str, tuple[float, bool]]) -> list[list[str]]:
    """A head and a line for each ratio. targets: by name, the bound and whether it is the least that is asked for."""
    cells = [["ratio", "value", "low", "high", "target", ""]]
    for ratio in found:
        verdict = ["", ""]
        if ratio.name in targets:
            bound, at_least = targets[ratio.name]
            met = ratio.value >= bound if at_least else ratio.value <= bound
            verdict = [f"{'≥' if at_least else '≤'} {bound:g}", "met" if met else "missed"]
        cells.append([ratio.name, f"{ratio.value:.3g}", f"{ratio.low:.3g}", f"{ratio.high:.3g}", *verdict])
    return cells


def _ratio_cells(found: Sequence[Ratio]) -> list[list[str]]:
    return ratio_cells(sorted(found, key=lambda ratio: ratio.name not in _TARGETS), _TARGETS)


def _row_cells(document: Document) -> list[list[str]]:
    cells = [_ROW_HEAD]
    order = {case: number for number, case in enumerate(CASES)}
    pairs = dict.fromkeys((row.case, row.system) for row in document.rows)
    for case, system in sorted(pairs, key=lambda pair: (order.get(pair[0], len(order)), pair[1])):
        found: dict[str, Row] = {m: row for m in _METRICS if (row := document.row(case, system, m))}
        main = found.get("throughput")
        spread = [f"{main.median:.0f}", f"{main.min:.0f}", f"{main.max:.0f}"] if main else ["", "", ""]
        rest = [
            f"{found[metric].median:.{digits}f}" if metric in found else ""
            for metric, digits in (("time", 1), ("cpu_per_gb", 2), ("datanode_cpu_per_gb", 2), ("peak_pss", 0))
        ]
        cells.append([case, system, *spread, *rest, str(next(iter(found.values())).n) if found else ""])
    return cells


def columns(cells: Sequence[Sequence[str]]) -> str:
    """A table for terminals; the first row is its head."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    names = 1 if cells[0][0] == "ratio" else 2  # columns of words stand left, numbers right
    lines = []
    for row in cells:
        padded = [cell.ljust(widths[i]) if i < names else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def pipes(cells: Sequence[Sequence[str]]) -> str:
    """The same as Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    names = 1 if cells[0][0] == "ratio" else 2
    rule = "|" + "".join("---|" if i < names else "--:|" for i in range(len(cells[0])))
    return "\n".join([lines[0], rule, *lines[1:]])
