"""Tables for people: text on a terminal, Markdown for the docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.results import Document, Ratio, Row

__all__ = ["hdfs", "insert", "machine", "markdown", "ratio_cells", "row_cells", "text"]

_Cells = Sequence[Sequence[str]]


def text(tables: Sequence[_Cells], notes: Sequence[str]) -> str:
    """The tables in columns, and the notes."""
    return "\n\n".join([*map(_columns, tables), *notes]) + "\n"


def markdown(head: str, tables: Sequence[_Cells], notes: Sequence[str]) -> str:
    """The same as Markdown, headed by the facts that the figures rest on."""
    listed = ["\n".join(f"- {note}" for note in notes)] if notes else []
    return "\n\n".join([head, *map(_pipes, tables), *listed]) + "\n"


def machine(facts: Mapping[str, Any], with_: str) -> str:
    """The end of a head: this machine, what was used on it, how slow its memory is and how busy it was."""
    return (
        f"{facts['cpus']} CPUs ({facts['cpu']}), kernel {facts['kernel']}, Python {facts['python']}, {with_}; "
        f"first touch of memory {facts['first_touch_s_per_gib']:g} s/GiB; load {facts['load_15min']}."
    )


def hdfs(facts: Mapping[str, Any]) -> str:
    """What was used to measure HDFS."""
    client = facts["packages"].get("hdfs-native", "-")
    return f"Hadoop {facts['hadoop']}, hdfs-native {client}, rclone {facts['rclone'] or 'not built'}"


def insert(page: str, tables: str, name: str = "results") -> str:
    """`page` with `tables` in place of what stands between its marks of this name. Raises ValueError without them."""
    first, last = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the page has no lines {first} and {last} to put the tables between")
    return f"{before}{begin}\n\n{tables}\n{end}{after}"


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


def row_cells(
    document: Document,
    columns: Mapping[str, tuple[str, int]],
    cases: Sequence[str],
    systems: Sequence[str] = (),
    *,
    spread: str = "",
) -> list[list[str]]:
    """A head and a line for each case and system, in these orders. columns: by metric, its head and its digits.

    spread: the metric whose extremes are shown, where a line has it; "" for the first metric of each line.
    """
    used = [metric for metric in columns if any(row.metric == metric for row in document.rows)]
    of = f" {columns[spread][0]}" if spread else ""
    cells = [["case", "system", *(columns[metric][0] for metric in used), f"lowest{of}", f"highest{of}", "rounds"]]
    pairs = dict.fromkeys((row.case, row.system) for row in document.rows)
    for case, system in sorted(pairs, key=lambda pair: (_place(pair[0], cases), _place(pair[1], systems), pair)):
        found: dict[str, Row] = {metric: row for metric in used if (row := document.row(case, system, metric))}
        if not found:
            continue
        values = [f"{found[m].median:.{columns[m][1]}f}" if m in found else "" for m in used]
        extremes = ["", ""]
        if main := found.get(spread or next(iter(found))):
            extremes = [f"{value:.{columns[main.metric][1]}f}" for value in (main.min, main.max)]
        cells.append([case, system, *values, *extremes, str(max(row.n for row in found.values()))])
    return cells


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
