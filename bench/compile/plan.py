"""The plan of `bench compile` as tables: systems, ratios with their targets, the report. Pure."""

from __future__ import annotations

from bench.harness.report import Bar, Bars, Facts, Report, machine, tools
from bench.harness.results import Document, Key, Metric, RatioPlan

__all__ = ["REPORT", "SYSTEMS", "ratios"]

SYSTEMS = {
    "plain": "without start-up caches",
    "first": "with them, the first start",
    "hit": "with them, the second start, elsewhere",
}
"""In the order in which a round runs them, with words for people."""


def ratios() -> list[RatioPlan]:
    """Every ratio, targets first."""
    plain, first, hit = (Key("start", system, "time") for system in SYSTEMS)
    return [
        RatioPlan("compile_cache_hit_vs_first_compile", hit, first, 0.3),
        RatioPlan("compile_cache_hit_vs_plain", hit, plain),
        RatioPlan("compile_cache_first_vs_plain_cpu", Key("start", "first", "cpu"), Key("start", "plain", "cpu")),
    ]


def _head(facts: Facts) -> str:
    return (
        f"TorchInductor on the CPU, a model of {facts['layers']} layers, forward and backward; "
        f"{facts['rounds']} rounds. {machine(facts, tools(facts))}"
    )


def _chart(document: Document) -> Bars:
    rows = {name: document.row("start", name, "time") for name in SYSTEMS}
    return Bars(
        [Bar(SYSTEMS[name], row, ours=name == "hit") for name, row in rows.items() if row],
        of="starts",
        title=f"TorchInductor on the CPU: a model of {document.environment['layers']} layers",
        scale="seconds of the first step, compilation included: median, lowest and highest round",
    )


REPORT = Report(
    ratios=ratios(),
    columns=("time", "cpu"),
    metrics={"time": Metric("s", "s of the first step", 2), "cpu": Metric("s", "s of processors", 2)},
    cases=("start",),
    systems=list(SYSTEMS),
    head=_head,
    chart=_chart,
)
