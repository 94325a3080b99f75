"""Ratios that `bench compile` draws from its samples; tests/integration/loaders runs its job."""

from __future__ import annotations

from bench.compile.plan import SYSTEMS, ratios
from bench.harness.results import Samples, sum_up


def test_the_second_start_is_compared_with_the_first_of_its_round() -> None:
    samples = Samples()
    for number, seconds in enumerate(((10.0, 20.0, 2.0), (30.0, 60.0, 3.0))):
        for system, value in zip(SYSTEMS, seconds, strict=True):
            samples.add("start", system, number, {"time": value, "cpu": 2 * value})
    found = {one.name: (one.low, one.high) for one in sum_up(samples, ratios())}
    assert found["compile_cache_hit_vs_first_compile"] == (0.05, 0.1)
    assert found["compile_cache_hit_vs_plain"] == (0.1, 0.2)
    assert found["compile_cache_first_vs_plain_cpu"] == (2.0, 2.0)
