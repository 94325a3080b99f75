"""`bench read` without a cluster: each ratio has runs to summarize on, and what is made of their figures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.harness import mounts
from bench.harness.data import GIB, MIB
from bench.harness.results import Document, Key, Ratio, Samples
from bench.read.measure import groups, summarize
from bench.read.plan import CASES, RAW, Run, Scale, choose, ratios, runs

FULL = Scale(quick=False, size=2 * GIB, budget=GIB, rclone=Path("/rclone"), libhdfs=True)
QUICK = Scale(quick=True, size=256 * MIB, budget=GIB, rclone=Path("/rclone"), libhdfs=False)
DERIVED = {"placement_limit": "one_datanode"}


def available(key: Key, made: list[Run]) -> bool:
    wanted = DERIVED.get(key.system, key.system)
    return any(run.case == key.case and (run.system == wanted or run.system.startswith(wanted + ":")) for run in made)


@pytest.mark.parametrize("scale", [FULL, QUICK], ids=["full", "quick"])
def test_every_target_has_both_of_its_sides_measured(scale: Scale) -> None:
    made = runs(scale)
    for plan in ratios():
        if plan.bound or scale is FULL:
            assert available(plan.upper, made), plan.name
            assert plan.lower is None or available(plan.lower, made), plan.name


def test_no_run_is_planned_twice_and_each_belongs_to_a_case() -> None:
    made = runs(FULL)
    assert len({(run.case, run.system) for run in made}) == len(made)
    assert {run.case for run in made} == set(CASES)


def test_what_is_not_built_is_left_out() -> None:
    made = runs(Scale(quick=False, size=GIB, budget=GIB, rclone=None, libhdfs=False))
    assert not [run.system for run in made if "rclone" in run.system or "libhdfs" in run.system]


@pytest.mark.parametrize("case", CASES)
def test_a_single_case_brings_what_its_ratios_need(case: str) -> None:
    chosen = choose(runs(FULL), [case])
    assert {run.system for run in chosen if run.case == case} == {run.system for run in runs(FULL) if run.case == case}
    for plan in ratios():
        if plan.upper.case == case:
            assert plan.lower is None or available(plan.lower, chosen), plan.name


def test_groups_share_a_file_and_a_rate_and_the_uncapped_one_comes_first() -> None:
    found = groups(runs(FULL))
    for group in found:
        assert len({(run.rate, run.file) for run in group}) == 1
    assert [group[0].rate for group in found] == sorted(group[0].rate for group in found)


def test_both_mounts_get_the_same_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[str, int] = {}
    for name in ("stripefs", "rclone"):
        monkeypatch.setattr(mounts, name, lambda *_words, name=name, limit=0: limits.setdefault(name, limit))
    driver = SimpleNamespace(cluster=None, environment={}, mounted=lambda *_arguments: {})
    for run in runs(FULL):
        if run.system in ("stripefs_bounded", "rclone_bounded:64"):
            run.measure(driver, 0)  # type: ignore[arg-type]
    assert limits == {"stripefs": FULL.budget, "rclone": FULL.budget}


def test_summing_up_takes_the_best_of_a_family_and_the_worst_memory() -> None:
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
    summarize(samples, document)
    best = document.row("sequential", RAW)
    assert best is not None
    assert best.median == 201.0
    found = {ratio.name: ratio for ratio in document.ratios}
    assert found["seq_vs_raw_parallel"].value == pytest.approx(190 / 201)
    assert found["memory_over_budget_mib"] == Ratio("memory_over_budget_mib", 21.0, 20.0, 22.0)
    assert found["memory_over_budget_mib_sequential"].value == -5.0
    assert found["memory_over_budget_mib_libhdfs"].value == 300.0
    assert found["seq_vs_rclone_equal_memory"].value == pytest.approx(1.2)
    assert "seq_vs_rclone" not in found
