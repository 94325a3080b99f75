"""Samples, quotients by round, and the JSON document that others read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.harness.results import Document, Key, Ratio, Row, Samples, load, quotients


def test_quotients_are_made_round_by_round_and_only_where_both_sides_were_measured() -> None:
    assert quotients({0: 10.0, 1: 30.0, 2: 5.0}, {1: 10.0, 0: 10.0, 3: 1.0}) == [1.0, 3.0]


def test_the_best_system_is_the_one_with_the_highest_median_not_the_luckiest_round() -> None:
    samples = Samples()
    for number, (steady, lucky) in enumerate([(10.0, 1.0), (10.0, 99.0), (10.0, 2.0)]):
        samples.add("case", "steady", number, {"throughput": steady})
        samples.add("case", "lucky", number, {"throughput": lucky})
    assert samples.best("case", ["lucky", "steady", "absent"]) == "steady"
    assert samples.best("case", ["absent"]) is None


def test_rows_carry_the_unit_and_the_extremes() -> None:
    samples = Samples()
    for number, value in enumerate([3.0, 1.0, 2.0]):
        samples.add("sequential", "stripefs", number, {"throughput": value, "cpu_per_gb": value})
    assert samples.rows() == [
        Row("sequential", "stripefs", "throughput", "MB/s", 2.0, 1.0, 3.0, 3),
        Row("sequential", "stripefs", "cpu_per_gb", "s/GB", 2.0, 1.0, 3.0, 3),
    ]
    assert samples.get(Key("sequential", "stripefs")) == {0: 3.0, 1: 1.0, 2: 2.0}


def test_the_document_has_the_agreed_form_and_reads_back(tmp_path: Path) -> None:
    row = Row("sequential", "stripefs", "throughput", "MB/s", 200.0, 190.0, 210.0, 3)
    document = Document("read", "0.1", {"cpus": 2}, [row], [Ratio("seq_vs_rclone", 1.1234567, 1.0, 1.2)], ["a note"])
    file = tmp_path / "read.json"
    file.write_text(document.to_json())
    data = json.loads(file.read_text())
    assert {"bench", "version", "environment", "rows", "ratios"} <= data.keys()
    assert list(data["rows"][0]) == ["case", "system", "metric", "unit", "median", "min", "max", "n"]
    assert data["ratios"] == [{"name": "seq_vs_rclone", "value": 1.123, "low": 1.0, "high": 1.2}]
    again = load(file)
    assert again.rows == [row]
    assert again.notes == ["a note"]
    assert again.row("sequential", "stripefs") == row
    assert again.row("sequential", "rclone") is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"bench": "read", "version": 1, "environment": {}, "rows": [{}]}'])
def test_anything_else_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"other\.json"):
        load(file)
