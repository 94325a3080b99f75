"""Ratios, tables and the chart of `bench compile`. Pure, but for the chart."""

from __future__ import annotations

from pathlib import Path

from bench import tables
from bench.bars import Bar, draw
from bench.ratios import RatioPlan
from bench.results import Document, Key

__all__ = ["SYSTEMS", "chart", "markdown", "marks", "ratios", "text"]

SYSTEMS = {
    "plain": "without start-up caches",
    "first": "with them, the first start",
    "hit": "with them, the second start, elsewhere",
}
"""In the order in which a round runs them, with words for people."""

_COLUMNS = {"time": ("s of the first step", 2), "cpu": ("s of processors", 2)}


def ratios() -> list[RatioPlan]:
    """Every ratio, targets first."""
    plain, first, hit = (Key("start", system, "time") for system in SYSTEMS)
    return [
        RatioPlan("compile_cache_hit_vs_first_compile", hit, first, 0.3),
        RatioPlan("compile_cache_hit_vs_plain", hit, plain),
        RatioPlan("compile_cache_first_vs_plain_cpu", Key("start", "first", "cpu"), Key("start", "plain", "cpu")),
    ]


def text(document: Document) -> str:
    """The tables in columns, and the notes."""
    return tables.text(_tables(document), document.notes)


def markdown(document: Document) -> str:
    """The same as Markdown, headed by the facts of the job and the machine."""
    facts = document.environment
    tools = ", ".join(f"{name} {number}" for name, number in facts["tools"].items())
    head = (
        f"Version {document.version}; TorchInductor on the CPU, a model of {facts['layers']} layers, forward and "
        f"backward; {facts['rounds']} rounds. {tables.machine(facts, tools)}"
    )
    return tables.markdown(head, _tables(document), document.notes)


def marks(_document: Document) -> str:
    """Between which marks of the docs the tables belong."""
    return "results of compile"


def chart(document: Document, file: Path) -> None:
    """Draw the seconds of the first step; the ending of `file` says as what (svg, png). Needs matplotlib."""
    shown = [
        Bar(label, row, ours=name == "hit")
        for name, label in SYSTEMS.items()
        if (row := document.row("start", name, "time"))
    ]
    draw(
        file,
        shown,
        of="starts",
        size=(9, 0.36),
        digits=1,
        scale="seconds of the first step, compilation included: median, lowest and highest round",
        title=f"TorchInductor on the CPU: a model of {document.environment['layers']} layers",
        wide=True,
    )


def _tables(document: Document) -> list[list[list[str]]]:
    bounds = {plan.name: (plan.bound, plan.at_least) for plan in ratios() if plan.bound}
    return [
        tables.ratio_cells(document.ratios, bounds),
        tables.row_cells(document, _COLUMNS, ("start",), list(SYSTEMS), spread="time"),
    ]
