"""Tables and the growth chart of `bench fleet`."""

from __future__ import annotations

from pathlib import Path

from bench import tables
from bench.fleet.plan import CHECKED, COUNTS, FLEETS, SYSTEMS, checked, fleet, ratios
from bench.results import Document

__all__ = ["chart", "markdown", "marks", "text"]

_TARGETS = {plan.name: (plan.bound, plan.at_least) for plan in ratios() if plan.bound}
_COLUMNS = {
    "time": ("s, slowest node", 2),
    "median_time": ("s, middle node", 2),
    "predicted": ("s by the model", 2),
    "cpu": ("CPU s", 2),
}
_CASES = [*map(checked, COUNTS), *map(fleet, FLEETS)]


def text(document: Document) -> str:
    """Both tables in columns, and the notes."""
    return tables.text(_tables(document), document.notes)


def markdown(document: Document) -> str:
    """The same as Markdown, headed by the facts of the scenario and the machine."""
    facts = document.environment
    scenario = ", ".join(f"{name} {value:g}" for name, value in facts["scenario"].items())
    fed = f"fed by {facts['fed_by']}" if facts["fed_by"] else "not fed, so no large fleets"
    head = (
        f"Version {document.version}; the model is {fed}; data centre: {scenario}; {facts['rounds']} rounds. "
        f"{tables.machine(facts, 'simpy')}"
    )
    return tables.markdown(head, _tables(document), document.notes)


def marks(document: Document) -> str:
    """Between which marks of the docs the tables belong."""
    return f"results of {document.bench}"


def chart(document: Document, file: Path) -> None:
    """Draw the slowest node's time against the number of nodes; the ending of `file` says as what (svg, png). Needs
    matplotlib. Raises ValueError where no large fleet was simulated."""
    lines = {
        words: [(count, row.median) for count in FLEETS if (row := document.row(fleet(count), system, "time"))]
        for system, words in SYSTEMS.items()
    }
    if not any(lines.values()):
        raise ValueError("there are no simulated fleets to draw: give --from")
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "bench"  # else its ids are drawn at random: same numbers, same file
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    for words, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=words)
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="seconds until the slowest node has all it needs")
    axes.set_title("A job's start on a growing fleet, by the model", loc="left", fontsize=11)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def _tables(document: Document) -> list[list[list[str]]]:
    return [
        tables.ratio_cells(document.ratios, _TARGETS),
        tables.row_cells(document, _COLUMNS, _CASES, [*CHECKED, *SYSTEMS], spread="time"),
    ]
