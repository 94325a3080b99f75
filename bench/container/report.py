"""Tables and the chart of `bench container`."""

from __future__ import annotations

from pathlib import Path

from bench import tables
from bench.bars import Bar, draw
from bench.container.plan import CASES, RATES, SYSTEMS, case, ratios
from bench.results import Document

__all__ = ["chart", "markdown", "marks", "text"]

_TARGETS = {plan.name: (plan.bound, plan.at_least) for plan in ratios() if plan.bound}
_COLUMNS = {
    "time": ("s", 2),
    "pull": ("s of the pull", 2),
    "inside": ("s inside", 2),
    "local": ("s until local", 1),
    "moved": ("MB moved", 1),
    "cpu": ("CPU s", 2),
    "prepared": ("ms", 2),
    "idle_pss": ("idle MiB", 0),
    "peak_pss": ("peak MiB", 0),
}


def text(document: Document) -> str:
    """Both tables in columns, and the notes."""
    return tables.text(_tables(document), document.notes)


def markdown(document: Document) -> str:
    """The same as Markdown, headed by the facts of image, link and machine."""
    facts = document.environment
    image = facts["image"]
    tools = ", ".join(f"{name} {number}" for name, number in facts["tools"].items())
    links = "; ".join(f"{rate} MB/s set: {said}" for rate, said in facts["link"].items())
    peers = ", ".join(facts["peers"]) or "none on PATH"
    head = (
        f"Version {document.version}; image {image['name']}: {image['compressed_mb']:g} MB compressed in "
        f"{image['layers']} layers; {facts['rounds']} rounds. Link: {links}. Peers: {peers}. "
        f"{tables.machine(facts, tools)}"
    )
    return tables.markdown(head, _tables(document), document.notes)


def marks(document: Document) -> str:
    """Between which marks of the docs the tables belong."""
    return f"results of {document.bench}"


def chart(document: Document, file: Path) -> None:
    """Draw the seconds until the container prints; the ending of `file` says as what (svg, png). Needs matplotlib."""
    shown = [
        Bar(f"{label}, {rate / 1e6:g} MB/s", row, ours=name.startswith("imagefs"))
        for rate in RATES
        for name, label in SYSTEMS.items()
        if (row := document.row(case(rate), name, "time"))
    ]
    image = document.environment["image"]
    draw(
        file,
        shown,
        of="starts",
        size=(9, 0.36),
        digits=1,
        scale="seconds from the pull until its modules are imported: median, lowest and highest round",
        title=f"containerd, an image of {image['compressed_mb']:g} MB compressed",
        wide=True,
    )


def _tables(document: Document) -> list[list[list[str]]]:
    return [
        tables.ratio_cells(document.ratios, _TARGETS),
        tables.row_cells(document, _COLUMNS, CASES, list(SYSTEMS), spread="time"),
    ]
