"""The plan of `bench ceiling` as tables: cases, systems, ratios with their targets, the report. Pure."""

from __future__ import annotations

from bench.harness.report import Bar, Bars, Facts, Report, machine, tools
from bench.harness.results import Document, Key, RatioPlan

__all__ = ["CASES", "REPORT", "SYSTEMS", "measured", "ratios"]

CASES = {
    "sequential": "one reader, 1 MiB a read, through the page cache",
    "four_readers": "four readers, a quarter of the file each, in the same way",
    "mmap": "the file mapped and copied out in order",
    "direct": "16 threads, O_DIRECT, 1 MiB a read, a sixteenth of the file each",
    "write": "one writer, 1 MiB a write, until close has answered",
}

SYSTEMS = {
    "stripefs": "stripefs mount of a folder in memory",
    "one_core": "the same, its processes on one processor",
    "minimal": "a pyfuse3 file system that answers from one buffer",
    "passthrough": "libfuse's passthrough_ll on that folder, in C",
    "rclone": "rclone mount of that folder",
}
"""In the order in which the first round runs them, with words for people."""


def measured(case: str, system: str) -> bool:
    """True if the system runs that case. For `write` the system `passthrough` only copies to memory, which the others
    do not do; `one_core` is a question about one reader."""
    return (system != "passthrough" or case != "write") and (system != "one_core" or case == "sequential")


def ratios() -> list[RatioPlan]:
    """Every ratio, targets first."""
    made = [
        RatioPlan("ceiling_seq_vs_minimal_pyfuse3", *_pair("sequential", "throughput"), 0.8, at_least=True),
        RatioPlan("ceiling_cpu_per_gb_vs_minimal_pyfuse3", *_pair("sequential", "cpu_per_gb"), 1.4),
        RatioPlan("ceiling_seq_vs_one_core", *_pair("sequential", "throughput", "one_core"), at_least=True),
    ]
    for case in CASES:
        if case != "sequential":
            made.append(RatioPlan(f"ceiling_{case}_vs_minimal_pyfuse3", *_pair(case, "throughput"), at_least=True))
        made.append(RatioPlan(f"ceiling_{case}_vs_rclone", *_pair(case, "throughput", "rclone"), at_least=True))
    return made


def _pair(case: str, metric: str, other: str = "minimal") -> tuple[Key, Key]:
    return Key(case, "stripefs", metric), Key(case, other, metric)


def _head(facts: Facts) -> str:
    return (
        f"a file of {facts['file_mib']} MiB in memory, kernel read-ahead of {facts['read_ahead_kib']} KiB for all; "
        f"{facts['rounds']} rounds. {machine(facts, tools(facts))}"
    )


def _chart(document: Document) -> Bars:
    rows = {name: document.row("sequential", name, "throughput") for name in SYSTEMS}
    return Bars(
        [Bar(SYSTEMS[name], row, ours=name in ("stripefs", "one_core")) for name, row in rows.items() if row],
        of="mounts",
        title=f"One reader of a file of {document.environment['file_mib']} MiB in memory",
        scale="MB/s through the page cache: median, lowest and highest round",
        digits=0,
    )


REPORT = Report(
    ratios=ratios(),
    columns=("throughput", "cpu_per_gb", "user_per_gb", "system_per_gb"),
    cases=list(CASES),
    systems=list(SYSTEMS),
    spread="throughput",
    head=_head,
    chart=_chart,
)
