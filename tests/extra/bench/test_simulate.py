"""The simulator: its physics, and that the policy it drives stays within what placement allows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.harness.data import MIB
from bench.read.simulate import SimulatedHost, random_placement, simulate
from stripefs.read.planner.hosts import Limits

LIMITS = Limits(budget=256 * MIB, range_size=8 * MIB, threads=32, per_host=3, io_timeout=90.0)
NAMES = ["a", "b", "c", "d"]


def test_one_host_gives_what_it_has() -> None:
    file = random_placement(64 * MIB, 8 * MIB, ["a"])
    outcome = simulate(file, {"a": SimulatedHost(10 * MIB, latency=0.0)}, LIMITS)
    assert outcome.seconds == pytest.approx(6.4, rel=0.01)
    assert outcome.efficiency == pytest.approx(1, rel=0.01)
    assert outcome.fetched == 64 * MIB


def test_a_frozen_host_is_got_round_by_its_replicas() -> None:
    file = random_placement(256 * MIB, 8 * MIB, NAMES, replication=2, seed=1)
    hosts = dict.fromkeys(NAMES, SimulatedHost(40 * MIB))
    whole = simulate(file, hosts, LIMITS)
    frozen = simulate(file, hosts | {"b": SimulatedHost(40 * MIB, frozen_at=whole.seconds / 4)}, LIMITS)
    assert frozen.hedges > 0
    assert whole.seconds < frozen.seconds < math.inf


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 40),
    st.sampled_from([4, 8, 24]),
    st.integers(0, 1000),
    st.sampled_from([64, 128, 512]),
    st.integers(1, 6),
)
def test_the_policy_never_beats_what_placement_allows(
    blocks: int, block_mib: int, seed: int, budget_mib: int, per_host: int
) -> None:
    file = random_placement(blocks * block_mib * MIB, block_mib * MIB, NAMES, seed=seed)
    limits = Limits(budget_mib * MIB, 8 * MIB, 16, per_host, 90.0)
    outcome = simulate(file, dict.fromkeys(NAMES, SimulatedHost(40 * MIB)), limits)
    assert outcome.efficiency <= 1.001
    assert outcome.peak <= budget_mib * MIB
    assert outcome.fetched >= blocks * block_mib * MIB
