"""The planner in a simulated world where some blocks also lie on a local host: a disk of this machine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import HostFailed
from stripefs.read.planner import FilePlan, HostTable
from stripefs.read.planner.budget_share import LOCAL_AHEAD
from stripefs.read.planner.range_buffer import KEPT
from stripefs.store.base import Block
from tests.unit.stripefs.read.planner.world import MIB, Host, World, eight, limits, placed, played, sequential

LOCAL = "local"


def cached(blocks: Sequence[Block], which: Sequence[bool]) -> list[Block]:
    return [
        Block(block.offset, block.length, (LOCAL, *block.hosts) if local else block.hosts)
        for block, local in zip(blocks, which, strict=True)
    ]


def stream(local: Host, blocks: Sequence[Block], reads: Sequence[tuple[int, int]], **changes: object) -> World:
    """The world after one reader; none of its reads failed."""
    found = played(blocks, reads, hosts={LOCAL: local, **eight()}, local_hosts=frozenset((LOCAL,)), **changes)
    assert not found.clients[0].errors
    return found


def fetched_from(world: World, name: str) -> int:
    return world.planner.hosts[name].bytes_total


@pytest.mark.parametrize("trouble", ["dead", "frozen"])
def test_a_local_host_that_fails_or_hangs_is_replaced_by_the_others(trouble: str) -> None:
    length = 128 * MIB
    broken = World(limits(local_hosts=frozenset((LOCAL,))), {LOCAL: Host(300e6), **eight()})
    client = broken.client(broken.open(cached(placed(length, 8 * MIB, 8, 2, 3), [True] * 16)), sequential(length))
    broken.at(0.1, lambda: setattr(broken.hosts[LOCAL], trouble, True))
    broken.run(until=30)
    assert not client.errors
    assert 0 < fetched_from(broken, LOCAL) < length
    if trouble == "frozen":
        assert broken.planner.hedge_wins > 0
    else:  # the calls under way failed, and none was tried there again
        assert 5.0 < broken.planner.hosts.health.seconds(LOCAL, 0.0) < 5.0 + broken.now


def test_a_local_host_that_comes_back_is_used_again() -> None:
    length = 512 * MIB
    blocks = placed(length, 8 * MIB, 8, 2, 5)
    reads = sequential(length)
    back = stream(Host(100e6, dead=True), cached(blocks, [True] * len(blocks)), reads[: len(reads) // 8])
    assert fetched_from(back, LOCAL) == 0
    back.hosts[LOCAL].dead = False
    back.now += 20.0  # past the 5 s for which it is avoided
    back.client(back.clients[0].file, reads[len(reads) // 2 :])
    back.run()
    assert fetched_from(back, LOCAL) > length // 4


def test_hosts_are_slow_by_the_pace_of_their_own_kind() -> None:
    table = HostTable(per_host=3, total=32, local=(LOCAL,))
    for _ in range(20):
        table.succeeded(LOCAL, MIB, 0.0005)
        table.succeeded("h1", MIB, 0.5)
    assert table.slow_after("h2", MIB) == pytest.approx(2.0)
    assert table.slow_after(LOCAL, MIB) == 1.0


def test_a_busy_local_host_is_waited_for_but_not_one_that_was_tried() -> None:
    table = HostTable(per_host=1, total=2, local=(LOCAL,))
    names = ("h1", LOCAL, "h2")
    assert table.choose(names, 0.0, demanded=False) == LOCAL
    table.started(LOCAL)
    assert table.choose(names, 0.0, demanded=False) is None
    assert table.choose(names, 0.0, demanded=True, tried=[LOCAL]) == "h1"
    table.ended(LOCAL)
    table.failed(LOCAL, 0.0, "refused")
    assert table.choose(names, 0.1, demanded=False) == "h1"
    assert table.preferred(names, 0.1) == names
    # On probation one read goes there, and the others do not wait for it.
    assert table.choose(names, 6.0, demanded=False) == LOCAL
    table.started(LOCAL)
    assert table.choose(names, 6.0, demanded=False) == "h1"


def test_a_stream_is_served_from_a_local_host_with_little_memory() -> None:
    length = 768 * MIB
    blocks = [Block(at, 64 * MIB, (LOCAL,)) for at in range(0, length, 64 * MIB)]
    quick = stream(Host(400e6), blocks, sequential(length), budget=1024 * MIB)
    assert quick.planner.bytes_fetched == length
    assert quick.planner.pool.peak <= LOCAL_AHEAD + KEPT + 3 * 8 * MIB
    assert quick.now < 1.1 * length / 400e6


def test_remote_blocks_are_looked_for_beyond_local_ones() -> None:
    local = [Block(at, 64 * MIB, (LOCAL,)) for at in range(0, 256 * MIB, 64 * MIB)]
    remote = [Block(at, 8 * MIB, (f"h{at // (8 * MIB) % 8}",)) for at in range(256 * MIB, 384 * MIB, 8 * MIB)]
    mixed = stream(Host(100e6), [*local, *remote], sequential(128 * MIB), budget=512 * MIB)
    assert fetched_from(mixed, LOCAL) <= 128 * MIB + LOCAL_AHEAD + 8 * MIB
    assert sum(fetched_from(mixed, f"h{number}") for number in range(8)) == 128 * MIB


def test_a_backward_stream_from_a_local_host_looks_no_further_ahead_either() -> None:
    length = 512 * MIB
    blocks = [Block(at, 64 * MIB, (LOCAL,)) for at in range(0, length, 64 * MIB)]
    back = stream(Host(400e6), blocks, sequential(length)[::-1][:200], budget=512 * MIB)
    assert fetched_from(back, LOCAL) <= 200 * MIB + LOCAL_AHEAD + 2 * 8 * MIB


@given(
    blocks=st.integers(1, 24),
    which=st.lists(st.booleans(), min_size=24, max_size=24),
    trouble=st.sampled_from(["none", "dead", "frozen", "flaky", "late"]),
    at=st.floats(0, 2),
    choose_host=st.booleans(),
    readers=st.integers(1, 3),
    budget=st.integers(8, 128),
)
def test_every_read_ends_whatever_the_local_host_does(
    blocks: int, which: list[bool], trouble: str, at: float, choose_host: bool, readers: int, budget: int
) -> None:
    length = blocks * 4 * MIB
    local = Host(200e6)
    drawn = World(
        limits(local_hosts=frozenset((LOCAL,)), choose_host=choose_host, budget=budget * MIB),
        {LOCAL: local, "": Host(100e6), **eight()},
    )
    file: FilePlan = drawn.open(cached(placed(length, 4 * MIB, 8, 2, 6), which[:blocks]))
    clients = [drawn.client(file, sequential(length)) for _ in range(readers)]
    if trouble == "flaky":
        local.flaky = 0.5
    elif trouble == "late":
        local.latency = 3.0
    elif trouble != "none":
        drawn.at(at, lambda: setattr(local, trouble, True))
    drawn.run(until=600)
    assert not any(isinstance(error, HostFailed) for client in clients for error in client.errors)
    if trouble == "none":
        remote = sum(state.bytes_total for state in drawn.planner.hosts.states() if state.name != LOCAL)
        if readers == 1:
            assert remote == sum(4 * MIB for local_too in which[:blocks] if not local_too)
