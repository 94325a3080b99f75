"""The planner in a simulated world: hosts that are frozen, dead, slow or moved, and reads that cannot succeed."""

import pytest

from stripefs.errors import Corrupt, HostFailed, PermissionDenied, StaleVersion
from stripefs.read.planner import HostTable, RangeState
from tests.unit.stripefs.read.planner.world import MIB, Host, World, eight, limits, placed, played, sequential


def test_a_frozen_host_is_hedged_and_then_avoided():
    length = 512 * MIB
    blocks = placed(length, 8 * MIB, 8, 2, 7)
    normal = played(blocks, sequential(length))
    world = World(limits(), eight())
    world.client(world.open(blocks), sequential(length))
    world.at(0.5, lambda: setattr(world.hosts["h3"], "frozen", True))
    world.run()
    assert world.planner.hedges > 0
    assert world.now < 2 * normal.now + 1.0
    assert world.planner.hosts.health.reason("h3")


def test_without_hedging_the_clients_time_out_decides():
    length = 64 * MIB
    hosts = {**eight(), "h3": Host(40e6, frozen=True)}
    world = played(placed(length, 8 * MIB, 8, 2, 7), sequential(length), hosts=hosts, hedge=False)
    assert world.planner.hedges == 0
    assert not world.clients[0].errors


def test_a_dead_only_replica_fails_at_the_deadline_and_not_before():
    world = played(placed(4 * MIB, MIB, 1, 1, 0), [(0, 4096)], hosts={"h0": Host(40e6, dead=True)}, io_timeout=10.0)
    assert len(world.clients[0].errors) == 1
    assert 8.0 <= world.now <= 12.0


def test_a_host_that_comes_back_is_used_again():
    """By a reader that has waited, and by one that came late and has its whole time."""
    length = 32 * MIB
    world = World(limits(io_timeout=20.0), {"h0": Host(40e6, dead=True)})
    file = world.open(placed(length, 8 * MIB, 1, 1, 0))
    first = world.client(file, sequential(length))
    late = []
    world.at(15.0, lambda: late.append(world.client(file, [(0, 4096)])))
    world.at(30.0, lambda: setattr(world.hosts["h0"], "dead", False))
    world.run(until=60)
    assert not first.errors
    assert not late[0].errors
    assert world.planner.retries > 0
    assert not world.planner.hosts.health.reason("h0")


def test_a_stale_version_fails_what_is_absent_and_keeps_what_is_here():
    world = played(placed(512 * MIB, 8 * MIB, 8, 1, 0), [(0, MIB)])
    planner, file = world.planner, world.clients[0].file
    planner.read(file, 300 * MIB, MIB, world.now)
    attempt = planner.dispatch(world.now)[0]
    failed = planner.failed(attempt, StaleVersion("replaced"), world.now)
    assert [range_.state for range_ in failed].count(RangeState.FAILED) == len(failed) >= 1
    assert planner.need(file, 0, world.now).state is RangeState.READY
    with pytest.raises(StaleVersion):
        planner.need(file, 400 * MIB, world.now)


def test_one_host_never_holds_more_than_half_the_threads():
    assert [HostTable(per_host=100, total=total).per_host for total in (8, 1)] == [4, 1]


def test_replicas_that_moved_are_asked_for_and_found():
    world = World(limits(), {"h0": Host(40e6, dead=True), "h1": Host(40e6)})
    blocks = placed(4 * MIB, 4 * MIB, 1, 1, 0)
    file = world.open(blocks)
    client = world.client(file, [(0, 4096)])

    def move():
        assert world.planner.outdated == {file: 0}
        world.planner.located(file, [type(block)(block.offset, block.length, ("h1",)) for block in blocks])

    world.at(1.0, move)
    world.run(until=20)
    assert not client.errors


def test_a_process_that_stood_still_suspects_no_host():
    world = World(limits(), eight())
    file = world.open(placed(64 * MIB, 8 * MIB, 8, 2, 0))
    planner = world.planner
    planner.overdue(0.0)
    planner.read(file, 0, MIB, 0.0)
    attempt, *others = planner.dispatch(0.0)
    for other in others:
        planner.failed(other, PermissionDenied("no"), 0.0)
    attempt.progress_at = 0.1
    assert planner.overdue(30.0) == []
    assert planner.hosts[attempt.host].suspected == 0
    # At the next look it is the host that is silent.
    assert len(planner.overdue(30.1)) == 1
    assert planner.hosts[attempt.host].suspected == 1


def test_a_host_on_probation_keeps_to_its_limit():
    hosts = World(limits(threads=8), eight()).planner.hosts
    hosts.failed("h0", 0.0, "refused")
    for _ in range(4):
        assert hosts.room("h0", 60.0, demanded=True)
        hosts.started("h0")
        assert not hosts.room("h0", 60.0, demanded=False)
    assert not hosts.room("h0", 60.0, demanded=True)


def test_a_corrupt_block_fails_at_once_though_another_host_is_still_silent():
    world = World(limits(), {"h0": Host(40e6), "h1": Host(40e6)})
    planner = world.planner
    planner.read(world.open(placed(4 * MIB, 4 * MIB, 2, 2, 0)), 0, 4096, 0.0)
    [first] = planner.dispatch(0.0)
    first.progress_at = 0.01
    planner.overdue(0.9)
    [second] = planner.overdue(1.5)
    [range_] = planner.failed(first, Corrupt("block blk_1 fails its checksum"), 2.0)
    assert range_.state is RangeState.FAILED
    assert second.cancelled
    assert planner.overdue(2.05) == []  # it is given up already
    assert planner.failed(second, HostFailed("cut"), 2.1) == []
    assert planner.pool.used == 0
