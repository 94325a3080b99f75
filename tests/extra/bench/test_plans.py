"""Plans of all benchmarks: what their runs and ratios name, their tables and charts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.checkpoint import plan as checkpoint
from bench.cli import DOCS, main
from bench.harness.data import GIB, MIB
from bench.harness.report import Report, insert
from bench.harness.results import METRICS, Document, Key, Row, Samples
from bench.read import plan as read
from bench.read.measure import summarize as read_summary
from bench.write import plan as write
from bench.write.measure import summarize as write_summary
from tests.extra.bench import documents

TABLES = {
    "read": ("sequential", "stripefs", "throughput", "8 DataNodes behind 40 MB/s each"),
    "write": ("write", "stripefs:striped", "throughput", "warmed up with 2 GiB"),
    "checkpoint": ("first", "safetensors:mount", "time", "torch 2.15.0, safetensors 0.8.0"),
    "image": ("start_50", "imagefs", "time", "160.7 MB compressed in 3 layers"),
    "container": ("start_50", "imagefs", "time", "Peers: stargz."),
    "deps": ("fresh", "imagefs", "time", "64 packages, 218.5 MB of wheels, 632.1 MB in 18098 files"),
    "compile": ("start", "hit", "time", "a model of 2 layers"),
    "startup": ("start", "all", "time", "64 packages, a checkpoint of 2048 MiB in 8 files"),
    "ceiling": ("sequential", "stripefs", "throughput", "a file of 2048 MiB in memory"),
    "namenode": ("create", "stripefs", "calls_per_file", "50 files of 20 kB"),
}
"""A figure that each chart shows, and words of the head."""

BESIDE = {
    "image": {"imagefs:first_start", "changed_files", "umoci"},
    "deps": {"uv:fastest", "plain:fastest", "imagefs:miss_fastest"}
    | {f"{what}:{count}" for what in ("imagefs", "unique", "installed") for count in ("one", "all")},
    "startup": {"events", "report_5000", "own", "plain", "traced", "report", "json_parse"},
}
"""Cases and systems of ratios that the report puts in no order."""

FULL = read.Scale(quick=False, size=2 * GIB, budget=GIB, rclone=Path("/rclone"), libhdfs=True)


class Planned(NamedTuple):
    """The runs of a benchmark: all of them, those of a quick run, and those where other programs are missing."""

    whole: Sequence[Any]
    few: Sequence[Any]
    bare: Sequence[Any]
    cases: Sequence[str]


PLANNED = {
    "read": Planned(
        read.runs(FULL),
        read.runs(replace(FULL, quick=True, size=256 * MIB, libhdfs=False)),
        read.runs(replace(FULL, rclone=None, libhdfs=False)),
        read.CASES,
    ),
    "write": Planned(
        write.runs(quick=False, rclone=True),
        write.runs(quick=True, rclone=True),
        write.runs(quick=False, rclone=False),
        write.CASES,
    ),
    "checkpoint": Planned(
        checkpoint.runs(few=False, rclone=True),
        checkpoint.runs(few=True, rclone=True),
        checkpoint.runs(few=False, rclone=False),
        checkpoint.CASES,
    ),
}


def report_of(bench: str) -> Report:
    found: Report = import_module(f"bench.{bench}.plan").REPORT
    return found


def available(key: Key, made: Sequence[Any]) -> bool:
    """True if a run gives these figures, or those that they are derived from."""
    case = "write" if (key.case, key.system) == ("write_repl2", "even_limit") else key.case
    wanted = {"placement_limit": "one_datanode", "even_limit": "one_datanode"}.get(key.system, key.system)
    return any(run.case == case and (run.system == wanted or run.system.startswith(f"{wanted}:")) for run in made)


@pytest.mark.parametrize("bench", PLANNED)
def test_runs_are_planned_once_and_measure_both_sides_of_each_target(bench: str) -> None:
    planned = PLANNED[bench]
    assert len({(run.case, run.system) for run in planned.whole}) == len(planned.whole)
    assert {run.case for run in planned.whole} == set(planned.cases)
    assert not [run.system for run in planned.bare if "rclone" in run.system or "libhdfs" in run.system]
    for made in (planned.whole, planned.few):
        for plan in import_module(f"bench.{bench}.plan").ratios():
            if plan.bound or made is planned.whole:
                assert available(plan.upper, made), plan.name
                assert plan.lower is None or available(plan.lower, made), plan.name


@pytest.mark.parametrize(
    ("bench", "case"), [(bench, case) for bench, planned in PLANNED.items() for case in planned.cases]
)
def test_a_single_case_brings_what_its_ratios_need(bench: str, case: str) -> None:
    whole = PLANNED[bench].whole
    module = import_module(f"bench.{bench}.plan")
    chosen = module.choose(whole, [case])
    assert [run for run in chosen if run.case == case] == [run for run in whole if run.case == case]
    for plan in module.ratios():
        if plan.upper.case == case:
            assert plan.lower is None or available(plan.lower, chosen), plan.name
    assert module.choose(whole, []) == whole


def test_reading_takes_the_best_of_a_family_and_the_worst_memory() -> None:
    samples = Samples()
    for number in range(3):
        samples.add("sequential", "raw_parallel:8", number, {"throughput": 100.0})
        samples.add("sequential", "raw_parallel:32", number, {"throughput": 200.0 + number})
        samples.add("sequential", "stripefs", number, {"throughput": 190.0, "over_budget": -5.0})
        samples.add("large_blocks", "stripefs", number, {"throughput": 150.0, "over_budget": 20.0 + number})
        samples.add("sequential", "stripefs:libhdfs", number, {"throughput": 150.0, "over_budget": 300.0})
        samples.add("sequential", "stripefs_bounded", number, {"throughput": 180.0, "over_budget": -9.0})
        for streams, rate in ((32, 100.0), (64, 150.0)):
            samples.add("sequential", f"rclone_bounded:{streams}", number, {"throughput": rate, "over_budget": -1.0})
    document = Document("read", "0", {})
    read_summary(samples, document)
    best = document.row("sequential", read.RAW)
    assert best is not None
    assert best.median == 201.0
    found = {ratio.name: ratio for ratio in document.ratios}
    assert found["seq_vs_raw_parallel"].value == pytest.approx(190 / 201)
    memory = found["memory_over_budget_mib"]
    assert (memory.value, memory.low, memory.high) == (21.0, 20.0, 22.0)
    assert found["memory_over_budget_mib_sequential"].value == -5.0
    assert found["memory_over_budget_mib_libhdfs"].value == 300.0
    assert found["seq_vs_rclone_equal_memory"].value == pytest.approx(1.2)
    assert "seq_vs_rclone" not in found


def test_writing_is_held_against_eight_times_what_one_datanode_gives() -> None:
    samples = Samples()
    for number in range(3):
        samples.add("write", "one_datanode", number, {"throughput": 40.0})
        samples.add("write", "raw_placed:8", number, {"throughput": 250.0})
        samples.add("write", "raw_placed:16", number, {"throughput": 300.0})
        samples.add("write", "stripefs:striped", number, {"throughput": 288.0, "cpu_per_gb": 1.2})
        samples.add("write", "single_stream", number, {"throughput": 32.0, "cpu_per_gb": 1.0})
        samples.add("write_repl2", "stripefs:striped", number, {"throughput": 120.0})
        write.derive(samples, number)
    document = Document("write", "0", {})
    write_summary(samples, document)
    found = {ratio.name: ratio.value for ratio in document.ratios}
    assert found["striped_write_vs_even_limit"] == pytest.approx(0.9)
    assert found["striped_write_vs_raw_placed"] == pytest.approx(0.96)
    assert found["write_cpu_per_gb_vs_single_stream"] == pytest.approx(1.2)
    assert "ls_striped_vs_plain" not in found
    assert samples.get(Key("write_repl2", "even_limit")) == dict.fromkeys(range(3), 160.0)


@pytest.mark.parametrize("bench", [*TABLES, "fleet"])
def test_ratios_name_cases_systems_and_metrics_that_there_are(bench: str) -> None:
    report, beside = report_of(bench), BESIDE.get(bench, set())
    assert len({plan.name for plan in report.ratios}) == len(report.ratios)
    for plan in report.ratios:
        for key in (plan.upper, plan.lower):
            if key is not None and key.case:
                assert key.case in {*report.cases, *beside}
                assert not report.systems or key.system in {*report.systems, *beside}
                assert key.metric in METRICS


@pytest.mark.parametrize("bench", TABLES)
def test_tables_go_between_the_marks_of_their_benchmark_and_the_chart_is_drawn(tmp_path: Path, bench: str) -> None:
    case, system, metric, head = TABLES[bench]
    document = documents.document(bench, [Row(case, system, metric, METRICS[metric].unit, 7.0, 6.0, 8.0, 3)])
    stored, page, drawn = tmp_path / "it.json", tmp_path / "page.md", tmp_path / "it.svg"
    stored.write_text(document.to_json())
    section = report_of(bench).section(document)
    page.write_text(f"before\n<!-- results of {section} -->\nold\n<!-- end of results of {section} -->\nafter\n")
    for _ in range(2):
        assert main(["table", str(stored), "--into", str(page), "--chart", str(drawn)]) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert text.count(head) == 1
    assert "old" not in text
    assert re.search(rf"^\| {case} \| {system} \| 7[.0]* \| 6[.0]* \| 8[.0]* \| 3 \|$", text, re.MULTILINE)
    picture = drawn.read_text()
    assert "<svg" in picture
    report_of(bench).draw(document, drawn)
    assert drawn.read_text() == picture, "the same figures make no change to commit"
    assert bench == "ceiling" or insert(DOCS.read_text(), "tables", section)
