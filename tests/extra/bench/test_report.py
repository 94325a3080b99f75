"""Tables and the chart: what people read of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli import main
from bench.harness.results import Document, Ratio, Row
from bench.read.plan import REPORT
from tests.extra.bench import documents

ROWS = (
    Row("sequential", "stripefs", "throughput", "MB/s", 220.0, 210.0, 230.0, 3),
    Row("sequential", "stripefs", "cpu_per_gb", "s/GB", 1.234, 1.0, 1.5, 3),
    Row("sequential", "single_stream", "throughput", "MB/s", 37.5, 37.0, 38.0, 3),
    Row("frozen_datanode", "stripefs", "time", "s", 6.5, 6.0, 7.0, 3),
)


def document(*ratios: Ratio) -> Document:
    return documents.document("read", ROWS, ratios, "rclone is not built: Go is missing")


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (Ratio("seq_vs_placement_limit", 0.9, 0.8, 1.0), "met"),
        (Ratio("seq_vs_placement_limit", 0.899, 0.8, 1.0), "missed"),
        (Ratio("frozen_datanode_time_vs_normal", 2.0, 1.0, 3.0), "met"),
        (Ratio("frozen_datanode_time_vs_normal", 2.01, 1.0, 3.0), "missed"),
        (Ratio("memory_over_budget_mib", -80.0, -90.0, -70.0), "met"),
        (Ratio("memory_over_budget_mib", 150.1, 100.0, 200.0), "missed"),
        (Ratio("seq_vs_single_stream", 5.9, 5.0, 6.7), ""),
    ],
)
def test_verdicts_follow_the_targets(ratio: Ratio, verdict: str) -> None:
    (line,) = [line for line in REPORT.text(document(ratio)).splitlines() if line.startswith(ratio.name)]
    last = line.split()[-1]
    assert (last if last in ("met", "missed") else "") == verdict


def test_markdown_holds_facts_both_tables_and_the_notes() -> None:
    text = REPORT.markdown(document(Ratio("seq_vs_single_stream", 5.9, 5.0, 6.7)))
    assert "8 DataNodes behind 40 MB/s each" in text
    assert "rclone not built" in text
    assert "| seq_vs_single_stream | 5.9 | 5 | 6.7 |  |  |" in text
    assert "| sequential | stripefs | 220 |  | 1.23 | 210 | 230 | 3 |" in text
    assert "| frozen_datanode | stripefs |  | 6.5 |  | 6.0 | 7.0 | 3 |" in text
    assert "- rclone is not built: Go is missing" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} == {7, 9}


def test_the_command_prints_tables_and_draws_the_chart_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, drawn = tmp_path / "read.json", tmp_path / "read.svg"
    stored.write_text(document().to_json())
    assert main(["table", str(stored), "--chart", str(drawn)]) == 0
    assert capsys.readouterr().out == REPORT.markdown(document())
    picture = drawn.read_text()
    assert picture.startswith("<?xml")
    REPORT.draw(document(), tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == picture  # the same figures make no change to commit
    assert main(["table", str(tmp_path / "absent.json")]) == 1
    assert "absent.json" in capsys.readouterr().err


def test_tables_go_between_the_marks_of_a_page_and_replace_older_ones(tmp_path: Path) -> None:
    stored, page = tmp_path / "read.json", tmp_path / "page.md"
    stored.write_text(document().to_json())
    page.write_text("before\n<!-- results of read -->\nold\n<!-- end of results of read -->\nafter\n")
    for _ in range(2):
        assert main(["table", str(stored), "--into", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert text.count(REPORT.markdown(document())) == 1
    assert "old" not in text
    page.write_text("no marks")
    assert main(["table", str(stored), "--into", str(page)]) == 1


def test_a_document_of_no_known_benchmark_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = tmp_path / "other.json"
    stored.write_text(replace(document(), bench="other").to_json())
    assert main(["table", str(stored)]) == 1
    assert "a benchmark 'other', which is not known here" in capsys.readouterr().err


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    empty = documents.document("read", [])
    with pytest.raises(ValueError, match="no sequential reads"):
        REPORT.draw(empty, tmp_path / "read.svg")
