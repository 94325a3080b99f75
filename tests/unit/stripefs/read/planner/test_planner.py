"""The planner in a simulated world: memory, liveness, single flight, speed. No clock, no thread, no kernel."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.read.planner.range_buffer import QUICK_AHEAD
from stripefs.read.planner.readahead import ReadaheadTrust
from stripefs.store.base import Block
from tests.support.examples import examples
from tests.unit.stripefs.read.planner.world import MIB, Host, World, dealt, eight, limits, placed, played, sequential


def test_a_header_costs_one_chunk_and_random_reads_are_not_read_ahead_for():
    draw = random.Random(5)
    reads = [(0, 4096)] + [(draw.randrange(0, (4 << 30) - 4096), 4096) for _ in range(200)]
    for count in (1, 201):
        world = played(placed(4 << 30, 8 * MIB, 8, 1, 0), reads[:count])
        world.drain()
        assert world.planner.bytes_fetched <= (2 * count - 1) * MIB


def test_a_stream_looks_far_ahead_after_its_first_mebibyte():
    world = played(dealt(1 << 30), [(0, MIB)])
    assert {attempt.host for attempt in world.planner.attempts} == {f"h{number}" for number in range(8)}


@pytest.mark.slow
def test_a_file_read_in_no_order_is_read_ahead_for_less_and_less():
    draw = random.Random(7)
    length, item = 2 << 30, 2 * MIB
    items = list(range(0, length, item))
    draw.shuffle(items)
    reads = [(begin + half, MIB) for begin in items for half in (0, MIB)]
    world = played(placed(length, 8 * MIB, 8, 1, 0), reads, budget=256 * MIB)
    assert world.clients[0].file.cursors.trust.ahead_of_read < ReadaheadTrust().ahead_of_read / 8
    assert world.planner.bytes_fetched < 5 * length  # 7 times without the feedback


def test_a_stream_is_trusted_again_when_its_look_ahead_is_wanted():
    trust = ReadaheadTrust()
    full = trust.ahead_of_read
    trust.read, trust.unwanted = 64 * MIB, 64 * MIB
    doubted = trust.ahead_of_read
    trust.read += 4 << 30
    assert doubted < full / 8 < trust.ahead_of_read < full


def steps_down(begin, end):
    """The kernel's reads of a mapped tensor copied from its end: 2 MiB lower each time, upward in each step."""
    return [(at + half, MIB) for at in range(end - 2 * MIB, begin - 1, -2 * MIB) for half in (0, MIB)]


def test_a_backward_reader_is_read_ahead_for():
    length = 512 * MIB
    forward, backward = (played(dealt(length), reads) for reads in (sequential(length), steps_down(0, length)))
    assert backward.now < 1.25 * forward.now
    assert backward.planner.bytes_fetched <= 1.1 * length


def test_a_backward_reader_that_comes_to_an_unknown_block_has_it_asked_for():
    world = played(dealt(64 * MIB)[4:], steps_down(32 * MIB, 64 * MIB))
    assert list(world.planner.unlocated.values()) == [32 * MIB - 1]


def test_one_request_that_was_overtaken_makes_no_backward_reader():
    world = played(dealt(256 * MIB), [(MIB, MIB), (0, MIB), *sequential(256 * MIB)[2:]])
    ((cursor,),) = (file.cursors for file in world.planner.files)
    assert not cursor.backward
    assert (cursor.start, cursor.position) == (0, 256 * MIB)


def every_other(rank, length, tensor, down=False):
    """Reads of one of two processes that share out the tensors of a file."""
    begins = range(rank * tensor, length, 2 * tensor)
    if down:
        return [read for begin in begins for read in steps_down(begin, begin + tensor)]
    return [(at, min(MIB, length - at)) for begin in begins for at in range(begin, min(begin + tensor, length), MIB)]


@pytest.mark.parametrize("down", [False, True])
def test_two_processes_that_read_every_other_tensor_are_nearly_one_stream(down):
    length, blocks = 1 << 30, placed(1 << 30, 8 * MIB, 8, 1, 3)
    alone = played(blocks, sequential(length), budget=512 * MIB)
    ranks = (every_other(rank, length, 32 * MIB, down) for rank in (0, 1))
    world = played(blocks, *ranks, budget=512 * MIB)
    assert world.now < 1.35 * alone.now
    assert world.planner.bytes_fetched < 1.15 * length


def test_sixteen_streams_in_one_file_share_the_hosts():
    length, part, blocks = 512 * MIB, 32 * MIB, placed(512 * MIB, 8 * MIB, 8, 1, 2)
    world = played(blocks, *([(begin + at, size) for at, size in sequential(part)] for begin in range(0, length, part)))
    assert world.planner.bytes_fetched == length
    fullest = max(sum(b.hosts == (f"h{n}",) for b in blocks) for n in range(8))
    assert world.now < 1.3 * fullest * 8 * MIB / 40e6


@pytest.mark.parametrize(("rate", "ahead"), [(8e9, QUICK_AHEAD), (200e6, 64 * 16 * MIB)])
def test_look_ahead_inside_one_block_ends_with_the_window(rate, ahead):
    """With a quick host sooner, which brings in time what is not here yet."""
    block = Block(0, 4096 * MIB, ("h0",))
    world = played([block], sequential(16 * MIB), hosts={"h0": Host(rate)}, budget=2048 * MIB)
    while world.transfers and world.planner.bytes_fetched < 2048 * MIB:
        world._step(world.now + 1.0)
    assert ahead / 3 < world.planner.bytes_fetched <= 16 * MIB + ahead + 8 * MIB


def test_the_first_range_that_takes_long_opens_the_whole_window():
    """Not the next one for which the reader has to wait: that one lies behind what a quick source is read ahead."""
    length = 4 * QUICK_AHEAD
    world = played(dealt(length), [(0, 8 * MIB)], budget=2 * length)
    assert world.planner.bytes_fetched == 8 * MIB + QUICK_AHEAD
    world.drain()
    assert world.planner.bytes_fetched == length
    assert world.now < 1.1 * length / (8 * 40e6)  # virtual seconds


def test_a_reader_far_behind_another_gets_the_memory_kept_for_it():
    """It reads anew what went before it came, and nothing after that."""
    length = 768 * MIB
    world = played(dealt(length), sequential(length), late=(1.0, sequential(length)), budget=1024 * MIB)
    gap = 8 * 40e6 * 1.0
    assert length + 64 * MIB < world.planner.bytes_fetched < length + gap + 64 * MIB


def copied(rank: int, length: int) -> list[tuple[int, int]]:
    """Reads of one of two processes that copy out every other tensor of a mapped file. The kernel's read-ahead for a
    mapping makes them of 8 MiB, and copying goes through a large tensor from its end."""
    reads, at, number = [], 0, 0
    while at < length:
        end = min(at + (8, 16, 44, 8, 125, 32)[number % 6] * MIB, length)
        if number % 2 == rank:
            pieces = [range(piece, min(piece + 8 * MIB, end), MIB) for piece in range(at, end, 8 * MIB)]
            if end - at > 100 * MIB:
                pieces.reverse()
            reads += [(chunk, min(MIB, end - chunk)) for piece in pieces for chunk in piece]
        at, number = end, number + 1
    return reads


@pytest.mark.parametrize(("budget", "twice"), [(1024, 0.0), (512, 0.02)])
def test_two_processes_that_share_out_the_tensors_of_a_file(budget, twice):
    """Each jumps over what the other one is on its way to, and so passes it without having read it."""
    length = 2048 * MIB
    world = played(dealt(length), copied(0, length), late=(0.05, copied(1, length)), budget=budget * MIB)
    assert world.planner.bytes_fetched <= length * (1 + twice)
    assert world.now < 1.1 * length / (8 * 40e6)


def test_the_chunks_of_a_range_begin_anew_in_each_block():
    file = World(limits(), eight()).open([Block(0, 5 * MIB // 2, ("h0",)), Block(5 * MIB // 2, 3 * MIB, ("h1",))])
    starts = [0, MIB, 2 * MIB, 5 * MIB // 2, 7 * MIB // 2, 9 * MIB // 2]
    assert list(file.chunks(0, 6 * MIB)) == starts
    assert list(file.chunks(MIB + 1, 7 * MIB // 2)) == starts[1:4]
    assert list(file.chunks(MIB, MIB)) == []
    file.ranges[7 * MIB // 2] = here = object()
    assert file.range_at(9 * MIB // 2 - 1) is here
    assert file.range_at(9 * MIB // 2) is None


def test_look_ahead_that_arrives_after_its_cursor_was_forgotten_can_be_dropped():
    world = played(placed(256 * MIB, 8 * MIB, 8, 1, 0), sequential(16 * MIB))
    assert any(attempt.range.cursor is not None for attempt in world.planner.attempts)
    world.planner.tick(world.now + 60)  # forgets the cursor while its look-ahead is on its way
    world.drain()
    world.planner.tick(world.now + 120)
    assert world.planner.pool.used == 0


patterns = st.sampled_from(["sequential", "random", "backwards", "strides"])


@examples(25)
@given(
    seed=st.integers(0, 10**6),
    budget=st.integers(16, 96),
    clients=st.lists(st.tuples(st.integers(0, 2), patterns), min_size=1, max_size=12),
    replication=st.integers(1, 3),
    block=st.integers(300_000, 20 * MIB),
    flaky=st.floats(0, 0.3),
    choose_host=st.booleans(),
)
def test_every_read_ends_within_the_budget(seed, budget, clients, replication, block, flaky, choose_host):
    """No mix of readers, placements and failures makes a read hang, exceed the memory or answer other bytes."""
    draw = random.Random(seed)
    hosts = {f"h{n}": Host(40e6, flaky=flaky * draw.random()) for n in range(5)}
    hosts[""] = Host(200e6, flaky=flaky)
    hosts["h4"].frozen = draw.random() < 0.5
    threads = draw.choice([4, 32])
    world = World(limits(budget=budget * MIB, threads=threads, io_timeout=30.0, choose_host=choose_host), hosts, seed)
    lengths = [draw.randrange(1, 30 * MIB) for _ in range(3)]
    files = [world.open(placed(length, block, 5, replication, seed + length)) for length in lengths]
    for number, pattern in clients:
        length = lengths[number]
        size = draw.choice([4096, 131072, MIB, 3 * MIB])
        starts = list(range(0, length, size))[:40]
        if pattern == "random":
            draw.shuffle(starts)
        elif pattern == "backwards":
            starts.reverse()
        elif pattern == "strides":
            starts = starts[::3]
        world.client(files[number], [(at, min(size, length - at)) for at in starts])
    world.run()
    assert not (flaky == 0 and not hosts["h4"].frozen and any(client.errors for client in world.clients))
    for file in files:
        world.planner.close(file)
    world.drain()
    assert world.planner.pool.used == 0
    assert world.planner.hosts.in_flight == 0
