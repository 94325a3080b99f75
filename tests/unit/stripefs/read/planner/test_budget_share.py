"""The shares of the memory that streams and hosts get, whatever the settings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stripefs.format.blocks import CHUNK
from stripefs.read.planner.budget_share import BudgetShare

MIB = 1 << 20


@given(
    budget=st.integers(8 * CHUNK, 1 << 36),
    setting=st.integers(1, 64).map(lambda chunks: chunks * CHUNK),
    threads=st.integers(1, 256),
    limit=st.integers(1, 16),
    streams=st.integers(1, 64),
    hosts=st.integers(1, 300),
    longest=st.integers(CHUNK, 1 << 28),
    data=st.data(),
)
def test_every_host_and_stream_gets_something_and_none_more_than_there_is(
    budget: int,
    setting: int,
    threads: int,
    limit: int,
    streams: int,
    hosts: int,
    longest: int,
    data: st.DataObject,
) -> None:
    groups = data.draw(st.integers(1, streams), "groups")
    between = data.draw(st.integers(0, budget), "between")
    share = BudgetShare(budget, setting, threads=threads, per_host=limit)
    share.divide(streams=streams, groups=groups, between=between, hosts=hosts, longest=longest)
    assert share.streams == streams
    assert share.range_size % CHUNK == 0
    assert CHUNK <= share.range_size <= max(CHUNK, min(setting, longest))
    assert share.heads == streams * share.range_size
    assert 1 <= share.per_host <= min(limit, max(1, threads // hosts))
    room = budget - share.heads
    assert share.per_host == 1 or share.per_host * hosts * share.range_size <= room
    assert CHUNK <= share.share <= max(CHUNK, room // groups)


def test_one_stream_over_eight_hosts_has_full_ranges_and_all_but_one_to_read_ahead() -> None:
    share = BudgetShare(1024 * MIB, 8 * MIB, threads=32, per_host=3)
    share.divide(streams=1, groups=1, between=0, hosts=8, longest=128 * MIB)
    assert (share.range_size, share.per_host, share.share) == (8 * MIB, 3, 1016 * MIB)
    share.divide(streams=1, groups=1, between=16 * MIB, hosts=8, longest=128 * MIB)
    assert share.share == 1000 * MIB


def test_ranges_are_smaller_where_the_memory_is_short_of_hosts() -> None:
    share = BudgetShare(48 * MIB, 8 * MIB, threads=32, per_host=3)
    share.divide(streams=1, groups=1, between=0, hosts=8, longest=128 * MIB)
    assert (share.range_size, share.per_host) == (2 * MIB, 2)
