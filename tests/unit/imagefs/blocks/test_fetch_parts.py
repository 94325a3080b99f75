"""The parts of fetching: what is known of a link, orders and runs, what stays in memory, what is given up first."""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.blocks.prefetch import FIRST_WINDOW, LEAST_WINDOW, FetchOrder, Link, Pace, following
from imagefs.blocks.writeback import BlockMemory
from imagefs.format.index import BLOCK, NOWHERE
from tests.support.images.devices import MIB, make, noise


def simulate(
    rate: float, delay: float, *, at_once: int = 8, seconds: float = 3.0, grain: float = 0.0
) -> tuple[Link, float]:
    """Keep a link of that rate and round trip full as the prefetch does; the link and its utilisation at the end.

    grain: arrivals are noticed at multiples of it, as on a busy machine.
    """
    link = Link(16 * MIB)
    now, free_at, moved = 0.0, 0.0, 0
    under_way: list[tuple[float, object, int]] = []
    while now < seconds:
        size = max(BLOCK // 2, link.window // at_once)
        while len(under_way) < at_once and link.has_room(size):
            free_at = max(free_at, now + delay) + size / rate
            under_way.append((free_at, link.begin(size, now), size))
            under_way.sort(key=lambda each: each[0])
        arrived, transfer, size = under_way.pop(0)
        now = max(now, -(-arrived // grain) * grain if grain else arrived)
        link.end(transfer, now, arrived=True)  # type: ignore[arg-type]
        moved += size if now > seconds / 2 else 0
    return link, moved / (rate * seconds / 2)


@pytest.mark.parametrize("rate", [2e6, 20e6, 50e6, 120e6])
@pytest.mark.parametrize("delay", [0.0002, 0.01, 0.03])
def test_a_link_is_full_and_not_much_more_than_that(rate: float, delay: float) -> None:
    link, used = simulate(rate, delay)
    assert used > 0.93
    assert 0.7 * rate < link.rate < 1.3 * rate
    assert link.window <= max(LEAST_WINDOW, 1.3 * rate * max(0.045, 4 * delay))


@pytest.mark.parametrize("rate", [20e6, 50e6])
def test_a_busy_machine_does_not_make_it_look_faster(rate: float) -> None:
    link, used = simulate(rate, 0.01, grain=0.015)
    assert used > 0.85
    assert link.rate < 1.25 * rate


def test_a_fast_link_gets_large_windows() -> None:
    link, _ = simulate(2e9, 0.0005)
    assert link.window == link.most


def test_a_new_link_begins_carefully_and_what_failed_says_nothing() -> None:
    link = Link(16 * MIB)
    assert link.window == FIRST_WINDOW
    transfer = link.begin(MIB, 0)
    for _ in range(2):
        link.end(transfer, 100, arrived=False)
    assert (link.rate, link.in_flight, link.window) == (0, 0, FIRST_WINDOW)
    assert link.has_room(100 * MIB)
    link.begin(1, 0)
    assert not link.has_room(FIRST_WINDOW)


def test_a_rate_that_fell_is_forgotten() -> None:
    link = Link(16 * MIB)
    for start, duration in ((0.0, 0.01), (1.0, 1.0), (3.0, 1.0)):
        link.end(link.begin(MIB, start), start + duration, arrived=True)
    assert link.rate == MIB


def test_a_pace_lets_through_what_it_should() -> None:
    pace, now, passed = Pace(1e6, 0), 0.0, 0
    while now < 10:
        now += pace.delay(now)
        pace.spend(100_000, now)
        passed += 100_000
    assert 9.5e6 <= passed <= 10.5e6
    now += 100
    pace.spend(50_000, now)
    assert pace.delay(now) == 0  # unused time is not saved up, but for a little
    pace.spend(100_000, now)
    assert pace.delay(now) > 0
    assert Pace(0, 0).delay(5) == 0


@given(st.lists(st.integers(-5, 60), max_size=80), st.integers(1, 8 * BLOCK), st.sets(st.integers(0, 59)))
def test_runs_are_neighbours_and_every_block_comes_once(wanted: list[int], size: int, here: set[int]) -> None:
    order = FetchOrder(wanted, ORDERED.index)
    taken: list[int] = []
    valid = {block for block in wanted if 0 <= block < 60 and ORDERED.index.place(block).pack != NOWHERE}
    while not order.ended:
        run = order.take(size, lambda block, _place: block not in here)
        if run:
            assert run[0][0] == next(block for block in wanted if block in valid - here and block not in taken)
        places = list(OrderedDict.fromkeys(place for _, place in run))
        for one, next_one in itertools.pairwise(places):
            assert (next_one.pack, next_one.offset) == (one.pack, one.offset + one.stored)
        assert len(places) <= 1 or sum(place.stored for place in places) <= size
        taken += [block for block, _ in run]
    assert sorted(taken) == sorted(valid - here)
    assert order.skipped >= len(valid & here)


ORDERED = make([*noise(20), b"", *noise(3), b"", *noise(35, seed=7)], per_pack=25)


def test_a_long_search_lets_others_work() -> None:
    order = FetchOrder(iter([0] * 10_000), ORDERED.index)
    calls = 0
    while not order.ended:
        assert order.take(1, lambda _block, _place: False) == []
        calls += 1
    assert calls > 10
    assert order.skipped == 10_000


@given(st.lists(st.tuples(st.sampled_from(["add", "hold", "release", "get", "fly"]), st.integers(0, 9)), max_size=80))
def test_memory_is_bounded_and_keeps_what_is_held(steps: list[tuple[str, int]]) -> None:
    memory = BlockMemory(1000)
    held: dict[int, int] = {}
    flying = 0
    for what, number in steps:
        digest, data = bytes([number]), bytes([number]) * 200
        if what == "add":
            memory.add(digest, data)
        elif what == "hold":
            memory.hold(digest, data)
            held[number] = held.get(number, 0) + 1
        elif what == "release" and held.get(number):
            memory.release(digest)
            held[number] -= 1
        elif what == "get":
            assert memory.get(digest) in (None, data)
        elif what == "fly":
            memory.reserve(number * 40 - flying)
            flying = number * 40
        stay = {one for one, count in held.items() if count}
        assert memory.held == 200 * len(stay)
        assert all(memory.get(bytes([one])) for one in stay)
        assert memory.used + flying <= 1000 or memory.used == memory.held


def test_what_the_disk_took_is_let_go() -> None:
    memory = BlockMemory(4 * MIB)
    for digest in (b"one", b"one", b"two"):
        memory.hold(digest, bytes(MIB))
    memory.release(b"one", cached=True)
    assert memory.get(b"one") is not None  # for another device it is still to be written
    memory.release(b"one", cached=True)
    memory.release(b"two")
    assert (memory.get(b"one"), memory.used, memory.held) == (None, MIB, 0)
    assert memory.get(b"two") is not None


def test_the_latest_used_stay() -> None:
    memory = BlockMemory(600)
    for number in range(3):
        memory.add(bytes([number]), bytes(200))
    memory.get(b"\0")
    memory.add(b"\3", bytes(200))
    assert [memory.get(bytes([number])) is not None for number in range(4)] == [True, False, True, True]


# -- the order of a first start --------------------------------------------------------------------------------------


@given(
    count=st.integers(0, 200),
    reads=st.lists(st.integers(0, 199), max_size=30),
    every=st.integers(1, 10),
    told=st.lists(st.lists(st.integers(0, 250), max_size=20), max_size=4),
)
def test_every_block_comes_once_the_likely_ones_first_then_those_behind_the_last_read(
    count: int, reads: list[int], every: int, told: list[list[int]]
) -> None:
    read, left, likely = -1, set(range(count)), deque[int]()
    order = following(count, lambda: read, likely)
    waiting, telling = iter(reads), iter(told)
    behind = False
    for number in itertools.count():
        if number % every == 0:
            likely.extend(next(telling, ()))
            before, read = read, next(waiting, read)
            behind = behind or read != before
        first = next((one for one in likely if one in left), None)
        block = next(order, None)
        if block is None:
            break
        if first is not None:
            assert block == first
        elif behind:
            assert block == min([one for one in left if one > read] or left)
            behind = False
        left.remove(block)
    assert not left
