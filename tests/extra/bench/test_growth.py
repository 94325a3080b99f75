"""`bench growth`: exponents, and every operation on tables of a small size."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.growth.plan import CASES, REPORT, SIZES, exponent, ratios, sizes
from bench.growth.tables import OPERATIONS
from bench.harness.results import Samples, sum_up
from tests.extra.bench import documents

SMALL = {
    "find_block": 50,
    "evict_blocks": 100_000,
    "remove_device": 1000,
    "evict_segments": 200,
    "compact_journal": 2000,
    "learn_inodes": 2000,
    "gc_images": 3,
    "build_image": 3,
}


def test_the_exponent_is_the_slope_of_the_logarithms() -> None:
    assert exponent({10: 5.0, 100: 50.0, 1000: 500.0}) == pytest.approx(1)
    assert exponent({10: 5.0, 100: 5.0}) == pytest.approx(0)
    assert exponent({10: 1.0, 100: 100.0, 1000: 10_000.0}) == pytest.approx(2)


def test_cases_that_do_as_much_at_each_size_have_no_bound_of_their_exponent() -> None:
    samples = Samples()
    for case in ("gc_images", "build_image"):
        samples.add(case, "exponent", 0, {"exponent": 1.3})
    samples.add("find_block", "50", 0, {"time": 2.0, "relative": 1.1})
    found = {one.name: one for one in sum_up(samples, ratios())}
    lines = REPORT.text(documents.document("growth", samples.rows(), list(found.values()))).splitlines()
    verdicts = {line.split()[0]: line.split()[-1] for line in lines if line.endswith(("met", "missed"))}
    assert verdicts == {"gc_images_exponent": "missed", "find_block_50_devices_vs_1": "met"}


def test_a_quick_run_leaves_out_the_largest_sizes() -> None:
    assert sizes("gc_images", quick=True) == (10, 100, 1000)
    assert all(len(sizes(case, quick=True)) > 1 and sizes(case, quick=False) == SIZES[case] for case in CASES)


@pytest.mark.parametrize("case", OPERATIONS)
def test_an_operation_on_tables(case: str, tmp_path: Path) -> None:
    answer = OPERATIONS[case](SMALL[case], tmp_path)
    assert answer["time"] > 0
    stalls = {key.case for plan in ratios() if (key := plan.upper).metric == "stall"}
    assert ("stall" in answer) == (case in stalls)
    assert answer.get("stall", 0) >= 0
