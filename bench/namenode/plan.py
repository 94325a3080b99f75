"""The plan of `bench namenode` as tables: cases, systems, ratios with their targets, the report. Pure."""

from __future__ import annotations

from bench.harness.report import Bar, Bars, Facts, Report, hdfs, machine
from bench.harness.results import Document, Key, RatioPlan

__all__ = ["CASES", "REPORT", "SYSTEMS", "ratios"]

CASES = {
    "create": "small files, each created, written and closed by one program",
    "read": "small files of a directory, each opened and read to its end",
    "list": "names, sizes and times of a directory of small files",
    "sequential": "one reader of a large file, from its start to its end",
}

SYSTEMS = {
    "stripefs": "stripefs mount",
    "rclone": "rclone mount",
    "hdfs_native": "hdfs-native without a mount",
}
"""In the order in which the first round runs them, with words for people."""

_MOST = 5.0
"""Calls a second of one reader: a thousand readers are to cost a NameNode less than 5,000."""


def ratios() -> list[RatioPlan]:
    """Every ratio, targets first. Those of one system alone are its figures."""
    made = [
        RatioPlan("small_file_create_namenode_calls", Key("create", "stripefs", "calls_per_file"), None, 8),
        RatioPlan("calls_per_s_of_one_reader", Key("sequential", "stripefs", "calls_per_s"), None, _MOST),
    ]
    for case, metric in (
        ("create", "calls_per_file"),
        ("read", "calls_per_file"),
        ("list", "calls_per_file"),
        ("sequential", "calls_per_gb"),
    ):
        made += [
            RatioPlan(f"{case}_calls_vs_{other}", Key(case, "stripefs", metric), Key(case, other, metric))
            for other in ("rclone", "hdfs_native")
        ]
    return made


def _head(facts: Facts) -> str:
    return (
        f"{facts['files']} files of {facts['small_kb']} kB, and one of {facts['file_mib']} MiB in blocks of "
        f"{facts['block_mib']} MiB on {facts['datanodes']} DataNodes of {facts['rate_mb_s']:g} MB/s; calls are "
        f"the operations that the NameNode counts itself (TotalFileOps); {facts['rounds']} rounds. "
        f"{machine(facts, hdfs(facts))}"
    )


def _chart(document: Document) -> Bars:
    rows = {name: document.row("create", name, "calls_per_file") for name in SYSTEMS}
    return Bars(
        [Bar(SYSTEMS[name], row, ours=name == "stripefs") for name, row in rows.items() if row],
        of="clients",
        title="Calls to the NameNode for a small file that is created",
        scale="calls a file: median, lowest and highest round",
        digits=1,
    )


REPORT = Report(
    ratios=ratios(),
    columns=("calls_per_file", "calls_per_gb", "calls_per_s", "throughput", "time"),
    cases=list(CASES),
    systems=list(SYSTEMS),
    spread="",
    head=_head,
    chart=_chart,
)
