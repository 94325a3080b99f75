"""The fluid model: small cases by hand, and what must hold for every placement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.harness.data import Extent
from bench.read.model import assign, placement_limit


def blocks(owners: str, length: int = 10) -> list[Extent]:
    """One block of `length` bytes for each letter, on the host of that name."""
    return [Extent(i * length, length, (owner,)) for i, owner in enumerate(owners)]


def test_a_window_shorter_than_a_block_lets_the_next_host_start_only_when_it_is_in_reach() -> None:
    # Block a takes 2 s at 5 a second. Its last 4 bytes have b's first bytes in the window of 4, so at 1.2 s b starts
    # and rides on the edge; at 2 s it has 4 of its 10 bytes and takes 1.2 s more for the others.
    assert placement_limit(blocks("ab"), 5.0, budget=4) == pytest.approx(20 / 3.2)


def test_a_slow_host_holds_the_others_at_the_edge() -> None:
    # a delivers 10 bytes at 1 a second; b (rate 100) has bytes 10..19 at once, and 20..29 as they come into reach.
    time = placement_limit(blocks("abb"), {"a": 1.0, "b": 100.0}, budget=15)
    # b holds bytes up to 15 + a's position until a is done at 10 s; 5 bytes are left then.
    assert 30 / time == pytest.approx(10 + 5 / 100)


def test_moves_may_need_a_chain_of_hosts() -> None:
    placed = [Extent(0, 10, ("a", "b")), Extent(10, 10, ("b", "c")), Extent(20, 10, ("a",)), Extent(30, 10, ("b",))]
    assert sorted(len(own) for own in assign(placed).values()) == [1, 1, 2]


owners = st.text("abcdefgh", min_size=1, max_size=40)
budgets = st.integers(1, 500)
rates = st.fixed_dictionaries({host: st.floats(0.5, 50) for host in "abcdefgh"})


@given(owners, rates, budgets)
def test_never_above_the_sum_of_rates_nor_below_the_slowest_in_a_row(
    placed: str, speed: dict[str, float], budget: int
) -> None:
    rate = placement_limit(blocks(placed), speed, budget)
    used = {host: speed[host] for host in set(placed)}
    assert rate <= sum(used.values()) * (1 + 1e-6)
    one_after_the_other = sum(10 / used[host] for host in placed)
    assert 10 * len(placed) / rate <= one_after_the_other * (1 + 1e-6)


@given(st.lists(st.sets(st.sampled_from("abcde"), min_size=1, max_size=3), min_size=1, max_size=30))
def test_every_block_goes_to_one_of_its_replicas_and_none_could_be_moved_to_level(replicas: list[set[str]]) -> None:
    placed = [Extent(i * 10, 10, tuple(sorted(hosts))) for i, hosts in enumerate(replicas)]
    owned = assign(placed)
    assert sorted((e for own in owned.values() for e in own), key=lambda e: e.offset) == placed
    for host, own in owned.items():
        assert all(host in extent.hosts for extent in own)
        for extent in own:
            assert all(len(owned.get(other, [])) >= len(own) - 1 for other in extent.hosts)
