"""Ratios and tables that `bench compile` draws from its samples; tests/integration/loaders runs its job."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cli import main
from bench.compile.plan import REPORT, SYSTEMS, ratios
from bench.harness.results import Document, Ratio, Row, Samples, sum_up
from tests.extra.bench import documents

FACTS = {"tools": {"torch": "2.15.0", "g++": "12.2.0"}, "layers": 2}
ROWS = (Row("start", "first", "time", "s", 20.0, 19.0, 21.0, 2), Row("start", "hit", "time", "s", 2.0, 1.9, 2.1, 2))


def document(*found: Ratio) -> Document:
    return documents.document("compile", FACTS, ROWS, found)


def test_the_second_start_is_compared_with_the_first_of_its_round() -> None:
    samples = Samples()
    for number, seconds in enumerate(((10.0, 20.0, 2.0), (30.0, 60.0, 3.0))):
        for system, value in zip(SYSTEMS, seconds, strict=True):
            samples.add("start", system, number, {"time": value, "cpu": 2 * value})
    found = {one.name: (one.low, one.high) for one in sum_up(samples, ratios())}
    assert found["compile_cache_hit_vs_first_compile"] == (0.05, 0.1)
    assert found["compile_cache_hit_vs_plain"] == (0.1, 0.2)
    assert found["compile_cache_first_vs_plain_cpu"] == (2.0, 2.0)


@pytest.mark.parametrize(("value", "verdict"), [(0.3, "met"), (0.31, "missed")])
def test_verdicts_follow_the_target(value: float, verdict: str) -> None:
    ratio = Ratio("compile_cache_hit_vs_first_compile", value, value, value)
    assert documents.verdict(REPORT.text(document(ratio)), ratio) == verdict


def test_the_command_draws_tables_and_chart_into_their_own_marks(tmp_path: Path) -> None:
    stored, page, drawn = tmp_path / "compile.json", tmp_path / "page.md", tmp_path / "compile.svg"
    stored.write_text(document(Ratio("compile_cache_hit_vs_first_compile", 0.1, 0.1, 0.1)).to_json())
    page.write_text("<!-- results of compile -->\nold\n<!-- end of results of compile -->\n")
    assert main(["table", str(stored), "--into", str(page), "--chart", str(drawn)]) == 0
    text = page.read_text()
    assert "a model of 2 layers" in text
    assert "| start | hit | 2.00 |" in text
    assert drawn.read_text().startswith("<?xml")
