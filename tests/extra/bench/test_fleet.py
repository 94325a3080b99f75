"""The model of fleets against what can be reckoned by hand, and what must hold in any world."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.fleet.model import DATANODES, MIRROR, STORE, Stage, World, simulate
from bench.fleet.plan import FLEETS, Scenario, ways

MB = 1e6
WORLD = World(store=100 * MB, node=1000 * MB)


def test_a_store_is_shared() -> None:
    stage = Stage("image", 200 * MB)
    for nodes in (1, 4, 16):
        assert simulate([stage], nodes, WORLD).slowest == pytest.approx(2 * nodes, rel=0.03)


def test_a_mirror_fetches_once_and_serves_all() -> None:
    world = dataclasses.replace(WORLD, mirrors=1, mirror=1000 * MB, poll=0.01)
    stage = Stage("image", 200 * MB, MIRROR, streams=8)
    alone, many = (simulate([stage], nodes, world).slowest for nodes in (1, 10))
    assert alone == pytest.approx(2, rel=0.05)
    assert many == pytest.approx(max(2, 10 * 0.2), rel=0.15)
    apart = simulate([dataclasses.replace(stage, common=False)], 10, world).slowest
    assert apart == pytest.approx(20, rel=0.05)


def test_ranges_use_all_datanodes_and_a_stream_one() -> None:
    world = dataclasses.replace(WORLD, datanodes=10, datanode=20 * MB, node=1e12)
    stream = Stage("checkpoint", 400 * MB, DATANODES, request=8 << 20, common=False, chosen=False)
    assert simulate([stream], 1, world).slowest == pytest.approx(20, rel=0.05)
    ranges = dataclasses.replace(stream, streams=64, chosen=True)
    assert 2 < simulate([ranges], 1, dataclasses.replace(world, replication=3)).slowest < 3


def test_stages_follow_one_another_or_overlap() -> None:
    one, other = Stage("image", 100 * MB), Stage("dependencies", cpu=3.0)
    together = simulate([one, other], 1, WORLD)
    apart = simulate([one, dataclasses.replace(other, after=("image",))], 1, WORLD)
    assert together.slowest == pytest.approx(3, rel=0.05)
    assert apart.slowest == pytest.approx(4, rel=0.05)
    assert apart.stages["dependencies"] == apart.slowest


@given(st.integers(1, 6), st.floats(0, 0.2), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_failures_and_slow_hosts_never_help_and_seeds_repeat(nodes: int, failures: float, seed: int) -> None:
    stage = Stage("checkpoint", 64 * MB, DATANODES, streams=8, common=False)
    world = dataclasses.replace(WORLD, datanodes=8, datanode=20 * MB, replication=1)
    worse = dataclasses.replace(world, failures=failures, slow_datanodes=0.25)
    result = simulate([stage], nodes, worse, seed)
    assert result == simulate([stage], nodes, worse, seed)
    assert result.slowest >= result.median
    assert result.slowest >= nodes * 64 / (8 * 20) * 0.99


def test_the_ways_of_a_job_are_made_of_its_figures() -> None:
    stages = {name: {"bytes": 50 * MB, "fixed": 1.0} for name in ("image", "dependencies", "checkpoint")}
    made = ways({"today": stages, "all": stages})
    scenario = Scenario()
    assert [stage.source for stage in made["ours:mirrors"]] == [MIRROR, MIRROR, DATANODES]
    assert [stage.source for stage in made["ours"]] == [STORE, STORE, DATANODES]
    for name, parts in made.items():
        for nodes in FLEETS[:3]:
            assert simulate(parts, nodes, scenario.world(nodes, mirrors=name.endswith("mirrors"))).slowest > 0
    with pytest.raises(ValueError, match="'all'"):
        ways({"today": stages})
