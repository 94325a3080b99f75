"""Tables and the chart of `bench read`."""

from __future__ import annotations

from pathlib import Path

from bench import tables
from bench.bars import Bar, draw
from bench.plan import CASES, ratios
from bench.results import Document, Row

__all__ = ["chart", "markdown", "marks", "text"]

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
    return tables.text(_tables(document), document.notes)


def markdown(document: Document) -> str:
    """The same as Markdown, headed by the facts of the machine."""
    facts = document.environment
    head = (
        f"Version {document.version}; {facts['rounds']} rounds; {facts['datanodes']} DataNodes behind "
        f"{facts['rate_mb_s']:g} MB/s each; files of {facts['file_mib']} MiB; budget {facts['budget_mib']} MiB; "
        f"{tables.machine(facts, tables.hdfs(facts))}"
    )
    return tables.markdown(head, _tables(document), document.notes)


def marks(_document: Document) -> str:
    """Between which marks of the docs the tables belong."""
    return "results"


def chart(document: Document, file: Path) -> None:
    """Draw sequential throughput by system; the ending of `file` says as what (svg, png). Needs matplotlib."""
    shown = [
        Bar(label, row, ours=name == "stripefs")
        for name, label in _CHARTED.items()
        if (row := document.row("sequential", name))
    ]
    facts = document.environment
    draw(
        file,
        shown,
        of="sequential reads",
        size=(7.5, 0.45),
        digits=0,
        scale="MB/s, median with lowest and highest round",
        title=f"One {facts['file_mib']} MiB file in 8 MiB blocks on {facts['datanodes']} DataNodes "
        f"of {facts['rate_mb_s']:g} MB/s each",
    )


def _tables(document: Document) -> list[list[list[str]]]:
    ratios = sorted(document.ratios, key=lambda ratio: ratio.name not in _TARGETS)
    return [tables.ratio_cells(ratios, _TARGETS), _row_cells(document)]


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
