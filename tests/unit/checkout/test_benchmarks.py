"""docs/benchmarks.md: it shows the committed results of benchmarks, and names the targets of each."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from bench.cli import DOCS, RESULTS, with_results
from bench.harness.report import Report
from tests.support.checkout import CHECKOUT

PLANS = {path.parent.name for path in (CHECKOUT / "bench").glob("*/plan.py")} - {"fleet", "growth"}
"""The benchmarks, but for those whose targets are in their results alone."""


def test_the_docs_show_the_committed_results() -> None:
    text = DOCS.read_text()
    assert with_results(text, RESULTS) == text, "run ./scripts/bench table"


@pytest.mark.parametrize("bench", sorted(PLANS))
def test_the_docs_tell_every_target(bench: str) -> None:
    """By its name, or as one of a family such as `start_vs_stargz`, `_soci`."""
    report: Report = import_module(f"bench.{bench}.plan").REPORT
    text = DOCS.read_text()
    for plan in report.ratios:
        if plan.bound:
            stem, _, last = plan.name.rpartition("_")
            rows = re.findall(rf"^\| (?:.*`{plan.name}`|`{stem}_\w+`.*, `_{last}`).*", text, re.MULTILINE)
            assert any(f"{'≥' if plan.at_least else '≤'} {plan.bound:g}" in row for row in rows), plan.name
