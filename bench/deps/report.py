"""Tables and the chart of `bench deps`."""

from __future__ import annotations

from pathlib import Path

from bench import tables
from bench.bars import Bar, draw
from bench.deps.plan import CASES, SYSTEMS, ratios
from bench.results import Document

__all__ = ["chart", "markdown", "marks", "text"]

_TARGETS = {plan.name: (plan.bound, plan.at_least) for plan in ratios() if plan.bound}
_COLUMNS = {
    "time": ("s", 2),
    "install": ("s until the job goes on", 2),
    "imports": ("s of imports", 2),
    "net": ("s net", 2),
    "published": ("s until published", 1),
    "answered": ("ms of the daemon", 0),
    "moved": ("MB moved", 1),
    "stored": ("MB stored", 1),
}


def text(document: Document) -> str:
    """Both tables in columns, and the notes."""
    return tables.text(_tables(document), document.notes)


def markdown(document: Document) -> str:
    """The same as Markdown, headed by the facts of installation, link and machine."""
    facts = document.environment
    what = facts["installation"]
    tools = ", ".join(f"{name} {number}" for name, number in facts["tools"].items())
    head = (
        f"Version {document.version}; {what['packages']} packages, {what['wheels_mb']:g} MB of wheels, "
        f"{what['size_mb']:g} MB in {what['files']} files where pip installed them; imports: "
        f"{', '.join(what['modules'])}; {facts['rounds']} rounds. Link: {facts['link']}. Read-ahead of the local disk "
        f"{facts['read_ahead_kib']} KiB. {tables.machine(facts, tools)}"
    )
    return tables.markdown(head, _tables(document), document.notes)


def marks(_document: Document) -> str:
    """Between which marks of the docs the tables belong."""
    return "results of deps"


def chart(document: Document, file: Path) -> None:
    """Draw the seconds until modules are imported; the ending of `file` says as what (svg, png). Needs matplotlib."""
    words = {"fresh": "a host that has nothing", "again": "the same host again"}
    shown = [
        Bar(f"{label}: {words[case]}", row, ours=name.startswith("imagefs"))
        for case in words
        for name, label in SYSTEMS.items()
        if (row := document.row(case, name, "time"))
    ]
    what = document.environment["installation"]
    draw(
        file,
        shown,
        of="starts",
        size=(9, 0.36),
        digits=1,
        scale="seconds until its modules are imported: median, lowest and highest round",
        title=f"Dependencies of a job: {what['packages']} packages, {what['wheels_mb']:g} MB of wheels over 50 MB/s, "
        f"{what['size_mb']:g} MB installed",
        wide=True,
    )


def _tables(document: Document) -> list[list[list[str]]]:
    return [
        tables.ratio_cells(document.ratios, _TARGETS),
        tables.row_cells(document, _COLUMNS, CASES, [*SYSTEMS, "installed"], spread="time"),
    ]
