"""Tables and the chart of `bench startup`."""

from __future__ import annotations

from pathlib import Path

from bench import tables
from bench.bars import Bar, draw
from bench.results import Document
from bench.startup.plan import CASE, FLEET, SYSTEMS, ratios

__all__ = ["chart", "markdown", "marks", "text"]

_TARGETS = {plan.name: (plan.bound, plan.at_least) for plan in ratios() if plan.bound}
_COLUMNS = {
    "time": ("s", 2),
    "image_stage": ("image s", 2),
    "dependencies_stage": ("deps s", 2),
    "checkpoint_stage": ("checkpoint s", 2),
    "step_stage": ("model, step s", 2),
    "overlapped": ("s overlapped", 2),
    "median": ("s of the median node", 2),
    "slowest": ("s of the slowest node", 2),
    "moved": ("MB moved", 1),
    "cpu": ("CPU s", 1),
    "datanode_cpu": ("DataNodes' CPU s", 1),
}


def text(document: Document) -> str:
    """Both tables in columns, and the notes."""
    return tables.text(_tables(document), document.notes)


def markdown(document: Document) -> str:
    """The same as Markdown, headed by the facts of job, links and machine."""
    facts = document.environment
    job = facts["job"]
    tools = ", ".join(f"{name} {number}" for name, number in facts["tools"].items())
    head = (
        f"Version {document.version}; job {job['name']}: an image of {job['image_mb']:g} MB compressed in "
        f"{job['layers']} layers, {job['packages']} packages, a checkpoint of {job['checkpoint_mib']} MiB in "
        f"{job['shards']} files, {job['framework']}{' into an accelerator' if job['gpu'] else ''}; "
        f"{facts['datanodes']} DataNodes behind {facts['rate_mb_s']:g} MB/s each; {facts['rounds']} rounds. Link: "
        f"{facts['link']}. {tables.machine(facts, tools)} Job, services, servers and DataNodes share these CPUs."
    )
    return tables.markdown(head, _tables(document), document.notes)


def marks(_document: Document) -> str:
    """Between which marks of the docs the tables belong."""
    return "results of startup"


def chart(document: Document, file: Path) -> None:
    """Draw the seconds until the first step is done; the ending of `file` says as what (svg, png). Needs matplotlib."""
    shown = [
        Bar(system.words, row, ours=name.startswith("all"))
        for name, system in SYSTEMS.items()
        if (row := document.row(CASE, name, "time"))
    ]
    job = document.environment["job"]
    draw(
        file,
        shown,
        of="starts",
        size=(9, 0.45),
        digits=1,
        scale="seconds until the first step is done: median, lowest and highest round",
        title=f"A job's start: {job['image_mb']:g} MB of image, {job['packages']} packages, "
        f"{job['checkpoint_mib']} MiB of checkpoint",
        wide=True,
    )


def _tables(document: Document) -> list[list[list[str]]]:
    return [
        tables.ratio_cells(document.ratios, _TARGETS),
        tables.row_cells(document, _COLUMNS, (CASE, FLEET), [*SYSTEMS, "techniques"], spread="time"),
    ]
