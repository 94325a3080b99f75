"""Tables and the chart of `bench write`."""

from __future__ import annotations

from pathlib import Path

from bench import tables
from bench.bars import Bar, draw
from bench.results import Document
from bench.write.plan import CASES, SYSTEMS, ratios

__all__ = ["chart", "markdown", "marks", "text"]

_TARGETS = {plan.name: (plan.bound, plan.at_least) for plan in ratios() if plan.bound}
_COLUMNS = {
    "throughput": ("MB/s", 0),
    "time": ("s", 2),
    "again_time": ("s again", 2),
    "sync_time": ("s in fsync", 2),
    "close_time": ("s in close", 2),
    "cpu_per_gb": ("CPU s/GB", 2),
    "datanode_cpu_per_gb": ("DataNodes' CPU s/GB", 2),
    "peak_pss": ("peak MiB", 0),
}


def text(document: Document) -> str:
    """Both tables in columns, and the notes."""
    return tables.text(_tables(document), document.notes)


def markdown(document: Document) -> str:
    """The same as Markdown, headed by the facts of the machine."""
    facts = document.environment
    head = (
        f"Version {document.version}; {facts['rounds']} rounds; {facts['datanodes']} DataNodes behind "
        f"{facts['rate_mb_s']:g} MB/s each; files of {facts['file_mib']} MiB in blocks of {facts['block_mib']} MiB; "
        f"{facts['listed']} files listed; warmed up with {sum(way['gib'] for way in facts['warm_up'].values()):g} GiB; "
        f"{tables.machine(facts, tables.hdfs(facts))}"
    )
    return tables.markdown(head, _tables(document), document.notes)


def marks(_document: Document) -> str:
    """Between which marks of the docs the tables belong."""
    return "results of write"


def chart(document: Document, file: Path) -> None:
    """Draw the writing of one file by system; the ending of `file` says as what (svg, png). Needs matplotlib."""
    shown = [
        Bar(label, row, ours=name.startswith("stripefs"))
        for name, label in SYSTEMS.items()
        if (row := document.row("write", name))
    ]
    facts = document.environment
    draw(
        file,
        shown,
        of="writes",
        size=(7.5, 0.45),
        digits=0,
        scale="MB/s from open to the end of close: median with lowest and highest round",
        title=f"Writing {facts['file_mib']} MiB to {facts['datanodes']} DataNodes of {facts['rate_mb_s']:g} MB/s each, "
        "replication 1",
    )


def _tables(document: Document) -> list[list[list[str]]]:
    return [tables.ratio_cells(document.ratios, _TARGETS), tables.row_cells(document, _COLUMNS, CASES)]
