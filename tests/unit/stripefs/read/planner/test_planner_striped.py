"""The planner on striped files: blocks of one unit, each on another host, and a window hardly larger than a row."""

import pytest

from stripefs.store.base import Block
from tests.unit.stripefs.read.planner.world import MIB, Host, World, eight, limits, placed, played, sequential

UNIT = 4 * MIB
RATE = 40e6


def striped(length, width, hosts, segment=256 * MIB):
    """Units in turn over `width` parts on a host each; the next segment begins on the next host."""
    return [
        Block(at, min(UNIT, length - at), (f"h{(at % segment // UNIT % width + at // segment) % hosts}",))
        for at in range(0, length, UNIT)
    ]


def share_of_the_limit(blocks, hosts, budget, latency=0.005):
    """Bytes a second of a sequential reader, divided by those of all hosts together."""
    length = blocks[-1].offset + blocks[-1].length
    world = played(
        blocks,
        sequential(length),
        hosts={f"h{number}": Host(RATE, latency=latency) for number in range(hosts)},
        budget=budget,
        range_size=min(8 * MIB, budget // 8),
    )
    assert world.planner.bytes_fetched == length
    return length / world.now / (hosts * RATE)


@pytest.mark.parametrize(
    ("hosts", "budget", "at_least"),
    [(8, 64, 0.96), (8, 48, 0.9), (8, 32, 0.88), (8, 96, 0.95), (8, 256, 0.97), (4, 32, 0.96), (16, 96, 0.9)],
)
def test_a_small_window_keeps_all_hosts_busy(hosts, budget, at_least):
    assert share_of_the_limit(striped(512 * MIB, hosts, hosts), hosts, budget * MIB) > at_least


def test_a_small_window_on_hosts_that_answer_late_and_parts_on_half_of_the_hosts():
    assert share_of_the_limit(striped(512 * MIB, 8, 8), 8, 64 * MIB, latency=0.02) > 0.9
    assert share_of_the_limit(striped(512 * MIB, 4, 8), 8, 64 * MIB) > 0.47


@pytest.mark.parametrize(("budget", "at_least"), [(32, 0.35), (64, 0.46), (128, 0.6)])
def test_blocks_at_random_gain_from_it_too(budget, at_least):
    """Without ranges that fit the hosts these were 0.33, 0.38 and 0.6."""
    assert share_of_the_limit(placed(512 * MIB, 8 * MIB, 8, 1, 3), 8, budget * MIB, latency=0.01) > at_least


def test_ranges_are_whole_units_where_there_is_room():
    world = played(striped(256 * MIB, 8, 8), sequential(256 * MIB))
    assert {end - begin for _, begin, end in world.fetched if begin >= 64 * MIB} == {UNIT}
    assert world.planner.range_size() == UNIT


def told(world):
    """(offset, bytes ahead) of what is under way."""
    return [(attempt.range.offset, attempt.ahead) for attempt in world.planner.attempts]


def test_a_stream_says_how_far_it_goes_on():
    """As far as it is trusted to, which is further than the memory reaches, and never past the end of the file."""
    length = 1024 * MIB
    world = played(striped(length, 8, 8), sequential(4 * MIB), budget=64 * MIB)
    ends = {offset + ahead for offset, ahead in told(world)}
    assert all(ahead > 0 for _, ahead in told(world))
    assert max(ends) > 64 * MIB
    assert max(ends) <= length
    world.client(world.clients[0].file, sequential(length)[4:])
    world.run()
    assert all(offset + ahead <= length for offset, ahead in told(world))


def test_a_header_and_reads_in_no_order_say_nothing():
    world = World(limits(), eight())
    file = world.open(striped(1024 * MIB, 8, 8))
    for offset in (0, 500 * MIB, 100 * MIB):
        world.planner.read(file, offset, 4096, world.now)
        world._pump()
    assert [ahead for _, ahead in told(world)] == [0, 0, 0]


def test_a_backward_stream_says_nothing():
    world = World(limits(), eight())
    file = world.open(striped(64 * MIB, 8, 8))
    seen = []
    start = world.planner._start
    world.planner._start = lambda *args, **more: seen.append(start(*args, **more)) or seen[-1]
    world.client(file, [(at, MIB) for at in range(63 * MIB, -1, -MIB)])
    world.run()
    assert list(file.cursors)
    assert not any(attempt.ahead for attempt in seen if attempt.range.offset < 48 * MIB)
