"""Synthetic fleets with one planted cause each: the report names the node and the cause."""

from __future__ import annotations

import pytest

from bench.startup.synthetic import CAUSES, Fleet
from imagefs.startup.report import Start
from tests.support.examples import examples
from tests.unit.imagefs.startup.events import fleet, report

FLEETS = max(40, examples(100).max_examples)


def planted(cause: str, seed: int) -> Fleet:
    return Fleet(
        9, cause=cause, victim=seed % 9, delay=8 + seed % 20, run=str(seed), prefix=f"n{seed}", seed=seed, loss=0.003
    )


def found(start: Start, truth: Fleet) -> bool:
    """The planted cause is the likeliest one of the planted node, and no other node is blamed for it."""
    blamed = [one for one in start.stragglers if one.causes[0].cause == truth.cause]
    right = {one.node for one in blamed} == {truth.node(truth.victim)}
    if truth.cause == "datanode":
        return right and {one.causes[0].evidence["host"] for one in blamed} == {truth.host}
    if truth.cause == "clock":
        return right and not [one for one in start.stragglers if not one.apparent and one.node == blamed[0].node]
    return right


@pytest.mark.parametrize("cause", CAUSES)
def test_the_planted_cause_is_found(cause: str) -> None:
    truths = [planted(cause, seed) for seed in range(FLEETS)]
    starts = {start.run: start for start in report(fleet(*truths)).starts}
    right = sum(found(starts[truth.run], truth) for truth in truths)
    assert right >= 0.95 * FLEETS


def test_few_healthy_fleets_have_stragglers() -> None:
    truths = [planted("", seed) for seed in range(FLEETS)]
    assert sum(bool(start.stragglers) for start in report(fleet(*truths)).starts) <= FLEETS // 20
