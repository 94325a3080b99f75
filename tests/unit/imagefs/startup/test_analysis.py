"""Clocks, the critical path, and what many starts tell together, on starts whose truth is plain."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.startup.synthetic import Fleet
from imagefs.startup.analysis import Gpus, analyse
from imagefs.startup.report import Start
from imagefs.startup.sources import File
from tests.support.examples import examples
from tests.unit.imagefs.startup.events import counts, event, file, fleet, report, span

SECOND = 10**9


def path(start: Start) -> list[tuple[str, str, float]]:
    return [(step.node, step.stage, round(step.seconds, 3)) for step in start.critical_path]


@pytest.mark.parametrize("seed", range(8))
def test_the_critical_path_is_as_long_as_the_start(seed: int) -> None:
    causes = ("", "datanode", "cold cache", "on-demand", "dependency miss", "clock", "slow node", "link")
    (start,) = report(fleet(Fleet(6, ranks=2, cause=causes[seed], victim=4, seed=seed, loss=0.01))).starts
    steps = start.critical_path
    assert sum(step.seconds for step in steps) == pytest.approx(start.total_s, abs=0.01 * len(steps))
    assert all(one.end_s <= other.begin_s + 0.01 for one, other in itertools.pairwise(steps))
    before = [step for step in steps if step.end_s <= next(s.begin_s for s in steps if s.stage == "rendezvous") + 0.01]
    if causes[seed] not in ("", "clock"):
        assert {step.node for step in before} == {"node-0004"}


def test_the_path_goes_over_barriers_and_leases_to_who_was_waited_for() -> None:
    parts = []
    for node, arrives in (("a", 30), ("b", 50), ("c", 20)):
        parts.append(span(0, 2, "container", node=node, rank=None))
        if node == "c":
            parts.append(span(2, 12, "dependencies", "install", node=node, rank=None, facts={"key": "k"}))
        else:
            waited = {"cause": "lease", "key": "k"}
            parts.append(span(2, 12.1, "dependencies", "wait", node=node, rank=None, kind="wait", facts=waited))
        parts.append(span(12.1, arrives, "checkpoint", "model", node=node))
        parts.append(span(arrives, 51, "rendezvous", "nccl", node=node))
        parts.append(span(51, 53 if node == "a" else 52, "first_step", node=node))
    (start,) = report(*parts).starts
    assert path(start) == [
        ("c", "container", 2.0),
        ("c", "dependencies", 10.0),
        ("b", "dependencies", 0.1),
        ("b", "checkpoint", 37.9),
        ("b", "rendezvous", 1.0),
        ("a", "first_step", 2.0),
    ]
    notes = [step.note for step in start.critical_path if step.note]
    assert notes == ["waited for c to install", "last of 3 to arrive; half waited 20.0 s or more"]


def test_the_path_goes_in_no_circle() -> None:
    """Over a barrier whose last to arrive is the same unit, by the clock of another boot."""
    parts = (
        span(3, 4, "rendezvous", boot="y", rank=1),
        span(1, 1, "rendezvous", boot="x", rank=None),
        event(19, "instant", "ready", boot="x", rank=None),
    )
    (start,) = report(*parts).starts
    assert len(start.critical_path) < 10
    assert sum(step.seconds for step in start.critical_path) == pytest.approx(start.total_s, abs=0.1)


def test_a_start_that_was_ready_before_it_began_takes_no_time() -> None:
    """Its earlier events are lost. A checkpoint that came at once is no division by zero either."""
    checkpoint = span(5, 5, "checkpoint", facts={"cache_bytes": 1 << 20})
    begun = event(0, "instant", "ready") + span(5, 9, "model") + checkpoint
    whole = span(100, 100, "checkpoint", run="s", facts={"cache_bytes": 1 << 20}) + span(100, 109, "model", run="s")
    made = report(begun, whole + span(109, 112, "checkpoint", run="s", rank=1, facts={"store_bytes": 1 << 20}))
    assert [(start.total_s, start.held_s) for start in made.starts] == [(0, 0), (12, 12)]
    assert counts(made)["late"] == 2


def test_stages_overlap_wait_and_contain_one_another() -> None:
    lines = [
        span(0, 20, "setup"),
        span(1, 5, "image"),
        span(3, 9, "checkpoint", "a"),
        span(6, 10, "checkpoint", "b"),
        span(4, 7, "checkpoint", "stall", kind="wait", facts={"cause": "store"}),
        span(20, 22, "first_step"),
        span(18, 25, "image", "hot device"),
    ]
    (start,) = report(*lines).starts
    stages = {one.stage: one for one in start.stages}
    checkpoint, image = stages["checkpoint"], stages["image"]
    figures = (checkpoint.sum_s, checkpoint.union_s, checkpoint.work_s, checkpoint.wait_s, checkpoint.alone_s)
    assert figures == (10, 7, 4, 3, 5)
    assert (image.union_s, image.alone_s) == (8, 4)  # until the start is over
    assert (stages["setup"].union_s, stages["setup"].alone_s) == (9, 9)
    assert (start.overlap.sum_s, start.overlap.covered_s, start.overlap.uncovered_s) == (26, 22, 0)
    assert start.causes[0].cause == "store"


def test_clocks_of_one_boot_need_no_alignment_and_others_get_it_at_barriers() -> None:
    def node(name: str, ahead: float, boot: str, stage: str = "rendezvous") -> bytes:
        fields = {"node": name, "boot": boot}
        data = span(0, 10, "model", **fields) + span(10, 20, stage, **fields) + span(20, 21, "first_step", **fields)
        rows = [json.loads(line) for line in data.splitlines()]
        moved = [row | {"wall_ns": row["wall_ns"] + round(ahead * SECOND)} for row in rows]
        return b"".join(json.dumps(row).encode() + b"\n" for row in moved)

    (same,) = report(node("a", 0, "x"), node("b", 0, "x")).starts
    assert (same.skew_method, same.skew_max_s, same.skew_bound_s) == ("same boot", 0, 0)
    (apart,) = report(node("a", 0, "x"), node("b", 0, "y"), node("c", 40, "z")).starts
    assert (apart.skew_method, apart.skew_max_s, apart.total_s) == ("barrier", 40, 21)
    assert [(one.node, one.causes[0].cause) for one in apart.stragglers] == [("c", "clock")]
    (wall,) = report(node("a", 0, "x", "compile"), node("c", 40, "z", "compile")).starts
    assert (wall.skew_method, wall.skew_bound_s, wall.total_s) == ("wall", None, 61)


def test_ends_that_are_no_barrier_are_not_believed() -> None:
    """Each rank leaves its rendezvous by itself: the last one is slow, its clock is right."""
    parts = []
    for node, slow in (("a", 0), ("b", 0), ("c", 0), ("d", 30)):
        parts.append(span(0, 10 + slow, "checkpoint", node=node))
        parts.append(span(10 + slow, 11 + slow, "rendezvous", node=node))
        parts.append(span(11 + slow, 12 + slow, "first_step", node=node))
    (start,) = report(*parts).starts
    assert (start.skew_method, start.total_s) == ("wall", 42)
    assert [(one.node, one.stage) for one in start.stragglers] == [("d", "checkpoint")]


def test_gpu_time_of_a_start() -> None:
    lines = (
        span(0, 40, "queue") + span(40, 100, "imports") + span(100, 130, "first_step") + span(0, 90, "imports", rank=1)
    )
    parts = (lines, span(90, 130, "first_step", rank=1))
    lost = report(*parts, gpus=Gpus(price=2.0, run_length_s=810.0)).lost
    assert lost is not None
    assert (lost.gpus, lost.assumed, lost.gpu_hours, lost.cost) == (
        2,
        "one per rank",
        2 * 90 / 3600,
        2.0 * 2 * 90 / 3600,
    )
    assert (lost.share_lost, lost.effective_share) == (pytest.approx(0.1), pytest.approx(0.9))
    per_node = report(*parts, gpus=Gpus(per_node=8)).lost
    assert per_node is not None
    assert (per_node.gpus, per_node.cost, per_node.share_lost) == (8, None, None)
    assert report(span(0, 9, "image", rank=None)).lost is None


def test_growth_has_the_law_of_its_starts() -> None:
    def starts(seconds: object) -> bytes:
        assert callable(seconds)
        parts = []
        for nodes in (1, 2, 4, 8, 16):
            for again in (0.98, 1.0, 1.02):
                run = f"{nodes}-{again}"
                parts += [
                    span(0, again * seconds(nodes), "first_step", node=f"n{one}", run=run) for one in range(nodes)
                ]
        return b"".join(parts)

    power = report(starts(lambda nodes: 10 * nodes**0.7)).growth
    assert power is not None
    assert power.b is not None
    assert power.law == "power"
    assert power.b.value == pytest.approx(0.7, abs=0.01)
    assert power.b.low is not None
    assert power.b.high is not None
    assert power.b.low < 0.7 < power.b.high
    assert [(one.nodes, one.starts) for one in power.groups] == [(1, 3), (2, 3), (4, 3), (8, 3), (16, 3)]
    log = report(starts(lambda nodes: 10 + 5 * math.log(nodes))).growth
    assert log is not None
    assert (log.law, round(log.a or 0, 1)) == ("log", 10.0)


def test_repeat_offenders() -> None:
    fleets = [Fleet(9, cause="datanode", victim=3, run=f"r{number}", seed=8 * number) for number in range(3)]
    made = report(fleet(*fleets, Fleet(9, run="well", seed=99)))
    found = {(one.kind, one.name): (one.starts, one.seen, one.causes["datanode"]) for one in made.offenders}
    assert found == {("node", "node-0003"): (3, 4, 3), ("host", "dn0"): (3, 4, 3)}


def test_advice_follows_from_the_data() -> None:
    def node(name: str, *, installs: bool, warm: bool) -> bytes:
        lines = [span(0, 1, "image", "attach", node=name, rank=None)]
        if installs:
            lines.append(span(1, 41, "dependencies", "install", node=name, rank=None))
        begun = 41 if installs else 1
        lines.append(span(begun, begun + 2, "dependencies", "mount", node=name, rank=None))
        size = {"cache_bytes": 10**10, "store_bytes": 0} if warm else {"store_bytes": 10**10}
        read = begun + 2 + (5 if warm else 30)
        lines.append(span(begun + 2, read, "checkpoint", "model", node=name, facts=size))
        lines.append(span(read, read + 1, "first_step", node=name))
        return b"".join(lines)

    made = report(node("a", installs=True, warm=False), node("b", installs=True, warm=True))
    saved = {one.action.split(" (")[0]: (round(one.saving_s, 3), one.at_most) for one in made.advice}
    assert saved["dependency snapshots"] == (38.0, False)  # a mount of 2 s remains
    assert saved["checkpoint cache"] == (25.0, False)  # b reads the same from its cache in 5 s
    assert saved["checkpoint warmed while the image starts"] == (30.0, True)
    assert "lazy image" not in saved
    warmed = [event(1, "instant", "checkpoint", "warm", node=name, rank=None) for name in "ab"]
    again = report(node("a", installs=True, warm=False), node("b", installs=True, warm=True), *warmed)
    assert "checkpoint warmed while the image starts" not in {one.action.split(" (")[0] for one in again.advice}


def test_modules_that_nothing_used() -> None:
    lines = [
        span(0, 10, "imports", "torch"),
        event(12, "instant", "imports", "pandas", facts={"used": False, "own_ns": 4 * SECOND, "total_ns": 6 * SECOND}),
        event(12, "instant", "imports", "scipy", facts={"used": True, "own_ns": 4 * SECOND}),
        span(10, 12, "first_step"),
    ]
    made = report(*lines)
    assert [(one.module, one.seconds, one.units) for one in made.unused] == [("pandas", 4.0, 1)]
    assert [(one.saving_s, one.basis) for one in made.advice if one.stage == "imports"] == [(4.0, "pandas")]
    assert counts(made) == {}


STARTS = st.lists(st.lists(st.sampled_from([0.0, 1.0, 3.0, 3.1, 50.0]), min_size=1, max_size=5), min_size=1, max_size=5)


@examples(60)
@given(STARTS, STARTS)
def test_an_interval_holds_its_estimate(before: list[list[float]], after: list[list[float]]) -> None:
    """Of starts and of units: one or two of them, ties, zeros, sides of any size."""

    def runs(side: str, starts: list[list[float]]) -> list[File]:
        parts = [span(0, 0.5, "image", rank=None, node=f"n{unit}", run=f"{side}{start}")
                 + span(0, seconds, "model", rank=None, node=f"n{unit}", run=f"{side}{start}")
                 for start, units in enumerate(starts) for unit, seconds in enumerate(units)]  # fmt: skip
        return [file(b"".join(parts))]

    for one in analyse([("before", runs("b", before)), ("after", runs("a", after))]).comparison:
        figures = [[np.mean(some) if one.stage == "model" else max(*some, 0.5) for some in side]
                   for side in (before, after)]  # fmt: skip
        if one.stage != "image":
            assert [one.before_s, one.after_s] == pytest.approx([np.median(some) for some in figures])
        assert (one.ratio is None) == (one.before_s == 0)
        few = min(one.before_n, one.after_n) < 3
        if one.ratio is not None:
            assert one.ratio.value == pytest.approx(one.after_s / one.before_s)
            assert (one.ratio.low is None) == (one.ratio.high is None) == (one.resampled == "")
            assert not few or one.ratio.low is None
            if one.ratio.low is not None and one.ratio.high is not None:
                assert one.ratio.low <= one.ratio.value <= one.ratio.high
