"""Plans of all benchmarks: what their ratios name, their targets in the docs, their tables and charts."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from bench.cli import DOCS, main
from bench.harness.report import Report, insert
from bench.harness.results import METRICS, Row
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


def report_of(bench: str) -> Report:
    found: Report = import_module(f"bench.{bench}.plan").REPORT
    return found


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
def test_the_docs_tell_every_target(bench: str) -> None:
    """By its name, or as one of a family such as `start_vs_stargz`, `_soci`. Those of fleets are in their results."""
    text = DOCS.read_text()
    for plan in report_of(bench).ratios:
        if plan.bound:
            stem, _, last = plan.name.rpartition("_")
            rows = re.findall(rf"^\| (?:.*`{plan.name}`|`{stem}_\w+`.*, `_{last}`).*", text, re.MULTILINE)
            assert any(f"{'≥' if plan.at_least else '≤'} {plan.bound:g}" in row for row in rows), plan.name


@pytest.mark.parametrize("bench", TABLES)
def test_tables_go_between_the_marks_of_their_benchmark_and_the_chart_is_drawn(tmp_path: Path, bench: str) -> None:
    case, system, metric, head = TABLES[bench]
    document = documents.document(bench, [Row(case, system, metric, METRICS[metric].unit, 7.0, 6.0, 8.0, 3)])
    stored, page, drawn = tmp_path / "it.json", tmp_path / "page.md", tmp_path / "it.svg"
    stored.write_text(document.to_json())
    section = report_of(bench).section(document)
    page.write_text(f"<!-- results of {section} -->\nold\n<!-- end of results of {section} -->\n")
    assert main(["table", str(stored), "--into", str(page), "--chart", str(drawn)]) == 0
    text = page.read_text()
    assert head in text
    assert re.search(rf"^\| {case} \| {system} \| 7[.0]* \| 6[.0]* \| 8[.0]* \| 3 \|$", text, re.MULTILINE)
    assert "<svg" in drawn.read_text()
    assert bench == "ceiling" or insert(DOCS.read_text(), "tables", section)
