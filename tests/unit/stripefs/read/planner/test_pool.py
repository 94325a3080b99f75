"""The order in which ranges are dropped when memory is needed."""

import pytest

from stripefs.read.planner import FilePlan, RangeBuffer, RangeState
from stripefs.store.base import Block
from tests.unit.stripefs.read.planner.world import MIB


class Shelf:
    """A file of 64 MiB, all of whose ranges are put into the pool by hand."""

    def __init__(self, budget):
        self.pool = RangeBuffer(budget)
        self.file = FilePlan(64 * MIB)
        self.file.blocks.add([Block(0, 64 * MIB, ("h",))])

    def here(self, mib, cursor=None, **state):
        """A range of one MiB that has arrived, for `cursor` to read or else already consumed."""
        range_ = self.file.plan(self.file.absent_run(mib * MIB, (mib + 1) * MIB, MIB), ("h",), cursor)
        range_.state, range_.data = RangeState.READY, b""
        for name, value in state.items():
            setattr(range_, name, value)
        self.pool.reserve(range_.length)
        self.pool.arrived(range_)
        return range_


def cursor_at(shelf, position, now):
    cursor, _ = shelf.file.cursors.match(position, now)
    cursor.advance(position, 1, starved=False, limit=64 * MIB, now=now)
    return cursor


@pytest.fixture
def shelf():
    return Shelf(4 * MIB)


def test_consumed_ranges_go_first_and_the_oldest_of_them(shelf):
    cursor = cursor_at(shelf, 0, now=100.0)
    ahead, older, newer = shelf.here(3, cursor), shelf.here(1), shelf.here(2)
    shelf.pool.touch(older)
    assert shelf.pool.make_room(2 * MIB, 100.0, keep=0)
    assert (older.state, newer.state, ahead.state) == (RangeState.READY, RangeState.DROPPED, RangeState.READY)
    assert shelf.file.ranges.get(2 * MIB) is None


def test_what_a_reader_waits_for_stays(shelf):
    for mib in range(4):
        shelf.here(mib, waiters=1)
    assert not shelf.pool.make_room(MIB, 100.0, keep=0, of_active=True)
    assert shelf.pool.free == 0


def test_look_ahead_of_a_stream_that_moves_gives_way_to_demand_alone(shelf):
    cursor = cursor_at(shelf, 0, now=100.0)
    ranges = [shelf.here(mib, cursor) for mib in range(1, 5)]
    assert not shelf.pool.make_room(MIB, 101.0, keep=0)
    assert shelf.pool.dropped == 0
    assert shelf.pool.make_room(MIB, 101.0, keep=0, of_active=True)
    assert [range_.state is RangeState.DROPPED for range_ in ranges] == [False, False, False, True]
    assert shelf.pool.dropped == 1


def test_look_ahead_of_a_stream_that_stands_still_is_free_for_all(shelf):
    cursor = cursor_at(shelf, 0, now=100.0)
    ranges = [shelf.here(mib, cursor) for mib in range(1, 5)]
    assert shelf.pool.make_room(2 * MIB, 110.0, keep=MIB)
    assert [range_.state is RangeState.DROPPED for range_ in ranges] == [False, True, True, True]
    assert shelf.pool.dropped == 0


def test_what_nobody_asked_for_costs_trust_when_it_is_dropped(shelf):
    asked, unasked = shelf.here(0, wanted=True), shelf.here(1)
    shelf.pool.drop(asked)
    assert shelf.file.cursors.trust.unwanted == 0
    shelf.pool.drop(unasked)
    assert shelf.file.cursors.trust.unwanted == MIB


def test_of_what_streams_have_consumed_little_stays(shelf):
    shelf.pool.budget, shelf.pool.kept = 64 * MIB, 2 * MIB
    cursor = cursor_at(shelf, 0, now=100.0)
    ranges = [shelf.here(mib, cursor, waiters=int(mib == 1), used=100.0 + mib) for mib in range(1, 5)]
    for range_ in ranges:
        shelf.pool.consumed(range_)
    waited, second, third, fourth = ranges
    assert [one.state for one in (waited, second, third)] == [RangeState.READY, RangeState.DROPPED, RangeState.DROPPED]
    assert fourth.state is RangeState.READY
    assert shelf.pool.used == 2 * MIB
    assert shelf.file.passed == {2 * MIB: 102.0, 3 * MIB: 103.0}


def test_of_what_came_from_local_hosts_little_stays_once_consumed(shelf):
    shelf.pool.budget, shelf.pool.local_kept = 64 * MIB, 2 * MIB
    far = shelf.here(0)
    first, waited, third, fourth = (shelf.here(mib, local=True, waiters=int(mib == 2)) for mib in range(1, 5))
    assert (first.state, far.state) == (RangeState.DROPPED, RangeState.READY)
    assert [one.state for one in (waited, third, fourth)] == [RangeState.READY, RangeState.DROPPED, RangeState.READY]
    shelf.pool.touch(fourth)
    assert shelf.pool.make_room(62 * MIB, 100.0, keep=0)
    assert (fourth.state, far.state, waited.state) == (RangeState.DROPPED, RangeState.READY, RangeState.READY)
