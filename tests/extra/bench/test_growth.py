"""`bench growth`: exponents, and every operation on tables of a small size."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.growth.plan import exponent, ratios
from bench.growth.tables import OPERATIONS

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


@pytest.mark.parametrize("case", OPERATIONS)
def test_an_operation_on_tables(case: str, tmp_path: Path) -> None:
    answer = OPERATIONS[case](SMALL[case], tmp_path)
    assert answer["time"] > 0
    stalls = {key.case for plan in ratios() if (key := plan.upper).metric == "stall"}
    assert ("stall" in answer) == (case in stalls)
    assert answer.get("stall", 0) >= 0
