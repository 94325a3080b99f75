"""Tables and the chart of `bench checkpoint`."""

from __future__ import annotations

from pathlib import Path

from bench import tables
from bench.bars import Bar, draw
from bench.checkpoint.plan import CASES, SYSTEMS, ratios
from bench.results import Document

__all__ = ["chart", "markdown", "marks", "text"]

_TARGETS = {plan.name: (plan.bound, plan.at_least) for plan in ratios() if plan.bound}
_COLUMNS = {
    "time": ("s", 2),
    "throughput": ("MB/s", 0),
    "fetched": ("MB fetched", 0),
    "kept": ("kept", 2),
    "warm_time": ("s of warm", 2),
    "cpu_per_gb": ("CPU s/GB", 2),
}


def text(document: Document) -> str:
    """Both tables in columns, and the notes."""
    return tables.text(_tables(document), document.notes)


def markdown(document: Document) -> str:
    """The same as Markdown, headed by the facts of the machine."""
    facts = document.environment
    loaders = ", ".join(f"{name} {version}" for name, version in facts["loaders"].items())
    head = (
        f"Version {document.version}; {facts['rounds']} rounds; {facts['datanodes']} DataNodes behind "
        f"{facts['rate_mb_s']:g} MB/s each; checkpoints of {facts['file_mib']} MiB; budget {facts['budget_mib']} MiB; "
        f"read-ahead of the local disk {facts['read_ahead_kib']} KiB; memory {facts['memory_mib']} MiB; "
        f"{tables.machine(facts, f'{tables.hdfs(facts)}, {loaders}')}"
    )
    return tables.markdown(head, _tables(document), document.notes)


def marks(_document: Document) -> str:
    """Between which marks of the docs the tables belong."""
    return "results of checkpoint"


def chart(document: Document, file: Path) -> None:
    """Draw how long loading takes; the ending of `file` says as what (svg, png). Needs matplotlib."""
    shown = [
        Bar(label, row, ours=label.startswith("stripefs"))
        for (case, system), label in SYSTEMS.items()
        if (row := document.row(case, system, "time"))
    ]
    facts = document.environment
    draw(
        file,
        shown,
        of="loads",
        size=(8.0, 0.45),
        digits=1,
        scale="seconds: median with lowest and highest round",
        title=f"Loading a checkpoint of {facts['file_mib']} MiB from {facts['datanodes']} DataNodes of "
        f"{facts['rate_mb_s']:g} MB/s each",
    )


def _tables(document: Document) -> list[list[list[str]]]:
    return [
        tables.ratio_cells(document.ratios, _TARGETS),
        tables.row_cells(document, _COLUMNS, CASES, spread="time"),
    ]
