"""Samples, quotients by round, the JSON document that others read, and its text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.cli import main
from bench.harness.results import Document, Key, Ratio, RatioPlan, Row, Samples, load, quotients, sum_up
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


def test_quotients_are_made_round_by_round_and_only_where_both_sides_were_measured() -> None:
    assert quotients({0: 10.0, 1: 30.0, 2: 5.0}, {1: 10.0, 0: 10.0, 3: 1.0}) == [1.0, 3.0]


def test_a_figure_measured_once_stands_in_every_round() -> None:
    samples = Samples()
    samples.add("case", "once", 0, {"time": 40.0})
    for number in range(3):
        samples.add("case", "often", number, {"time": 80.0 + number})
    often, once = Key("case", "often", "time"), Key("case", "once", "time")
    plans = [RatioPlan("up", often, once), RatioPlan("down", once, often), RatioPlan("alone", once, None)]
    plans.append(RatioPlan("missing", Key("case", "never"), once))
    up, down = Ratio("up", 81 / 40, 2.0, 82 / 40), Ratio("down", 40 / 81, 40 / 82, 0.5)
    assert sum_up(samples, plans) == [up, down, Ratio("alone", 40.0, 40.0, 40.0)]


def test_the_best_system_is_the_one_with_the_highest_median_not_the_luckiest_round() -> None:
    samples = Samples()
    for number, (steady, lucky) in enumerate([(10.0, 1.0), (10.0, 99.0), (10.0, 2.0)]):
        samples.add("case", "steady", number, {"throughput": steady})
        samples.add("case", "lucky", number, {"throughput": lucky})
    assert samples.best("case", ["lucky", "steady", "absent"]) == "steady"
    assert samples.best("case", ["absent"]) is None


def test_the_document_has_the_agreed_form_and_reads_back(tmp_path: Path) -> None:
    made = Document("read", "0.1", {"cpus": 2}, [ROWS[0]], [Ratio("seq_vs_rclone", 1.1234567, 1.0, 1.2)], ["a note"])
    file = tmp_path / "read.json"
    file.write_text(made.to_json())
    data = json.loads(file.read_text())
    assert {"bench", "version", "environment", "rows", "ratios"} <= data.keys()
    assert list(data["rows"][0]) == ["case", "system", "metric", "unit", "median", "min", "max", "n"]
    assert data["ratios"] == [{"name": "seq_vs_rclone", "value": 1.123, "low": 1.0, "high": 1.2}]
    again = load(file)
    assert (again.rows, again.notes) == ([ROWS[0]], ["a note"])
    assert again.row("sequential", "rclone") is None


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (Ratio("seq_vs_placement_limit", 0.9, 0.8, 1.0), "met"),
        (Ratio("seq_vs_placement_limit", 0.899, 0.8, 1.0), "missed"),
        (Ratio("frozen_datanode_time_vs_normal", 2.0, 1.0, 3.0), "met"),
        (Ratio("frozen_datanode_time_vs_normal", 2.01, 1.0, 3.0), "missed"),
        (Ratio("seq_vs_single_stream", 5.9, 5.0, 6.7), ""),
    ],
)
def test_verdicts_follow_the_targets(ratio: Ratio, verdict: str) -> None:
    (line,) = [line for line in REPORT.text(document(ratio)).splitlines() if line.startswith(ratio.name)]
    last = line.split()[-1]
    assert (last if last in ("met", "missed") else "") == verdict


def test_the_command_prints_facts_both_tables_and_the_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "read.json").write_text(document(Ratio("seq_vs_single_stream", 5.9, 5.0, 6.7)).to_json())
    assert main(["table", str(tmp_path / "read.json")]) == 0
    text = capsys.readouterr().out
    assert "8 DataNodes behind 40 MB/s each" in text
    assert "| seq_vs_single_stream | 5.9 | 5 | 6.7 |  |  |" in text
    assert "| sequential | stripefs | 220 |  | 1.23 | 210 | 230 | 3 |" in text
    assert "| frozen_datanode | stripefs |  | 6.5 |  | 6.0 | 7.0 | 3 |" in text
    assert "- rclone is not built: Go is missing" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} == {7, 9}
