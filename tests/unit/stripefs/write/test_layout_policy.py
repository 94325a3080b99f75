"""Plain values: which layout, which parts, which host, and where each byte of a segment lies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.format.manifest import part_data
from stripefs.store.base import Host
from stripefs.write.layout_policy import (
    LONGEST_PART,
    MEMORY_PER_PART,
    Layout,
    Shape,
    WritePolicy,
    best_layout,
    concat_shape,
    striped_shape,
)
from stripefs.write.parts import PartBuffer, UploadSegment
from stripefs.write.uploader import ANYWHERE, ANYWHERE_AT_ONCE, PER_HOST, SendHosts

MIB = 1 << 20


@pytest.mark.parametrize(
    ("wanted", "writes", "replace", "concat", "marks", "got"),
    [
        ("concat", True, True, True, False, "concat"),
        ("concat", True, True, False, True, "plain"),
        ("concat", True, False, True, True, "plain"),
        ("striped", True, True, False, True, "striped"),
        ("striped", True, True, True, False, "concat"),
        ("striped", True, True, False, False, "plain"),
        ("striped", True, False, True, True, "plain"),
        ("plain", True, True, True, True, "plain"),
        ("striped", False, False, False, True, "plain"),
    ],
)
def test_the_best_layout(wanted, writes, replace, concat, marks, got):
    layout, why = best_layout(Layout(wanted), writes=writes, replace=replace, concat=concat, marks=marks)
    assert layout is Layout(got)
    assert bool(why) == (wanted != got)


@given(st.integers(0, 300), st.integers(1, 1 << 34), st.integers(0, 100), st.sampled_from([4096, MIB, 4 * MIB]))
def test_striped_segments_fit_the_memory(hosts, share, done, unit):
    shape = striped_shape(WritePolicy(unit=unit), hosts, share, done)
    assert 1 <= shape.width <= max(1, hosts or 4)
    assert shape.part_length % unit == 0
    assert shape.width * MEMORY_PER_PART <= share or shape.width == 1
    assert unit <= shape.part_length <= max(unit, LONGEST_PART)
    assert 2 * shape.length <= share or shape.part_length == unit


@given(st.integers(0, 300), st.integers(1, 1 << 34), st.sampled_from([0, MIB, 8 * MIB, 64 * MIB, 128 * MIB, 256 * MIB]))
def test_concat_parts_are_whole_blocks(hosts, share, block):
    shape = concat_shape(hosts, share, block)
    assert (shape.width, shape.unit) == (1, 0)
    if block:
        assert shape.part_length % shape.block_size == 0
        assert block % shape.block_size == 0
        assert shape.block_size >= min(block, LONGEST_PART)
        assert shape.part_length <= max(shape.block_size, LONGEST_PART)
    else:
        assert MEMORY_PER_PART <= shape.part_length <= LONGEST_PART


def test_a_block_of_an_odd_length_is_not_halved():
    block = 128 * MIB + 512
    assert concat_shape(8, 512 * MIB, block) == Shape(1, block, 0, block)


def test_the_figures_of_the_defaults():
    """8 hosts, 512 MiB: what docs and benchmarks speak of."""
    policy = WritePolicy()
    assert striped_shape(policy, 8, policy.memory, 9) == Shape(8, 16 * MIB, 4 * MIB, 0)
    assert [striped_shape(policy, 8, policy.memory, done).part_length // MIB for done in range(4)] == [4, 8, 16, 16]
    assert striped_shape(policy, 8, policy.memory, 9, 8 * MIB).block_size == 17 * MIB
    assert striped_shape(policy, 8, policy.memory, 9, 128 * MIB).block_size == 0
    assert concat_shape(8, policy.memory, 8 * MIB) == Shape(1, 16 * MIB, 0, 8 * MIB)
    assert concat_shape(8, policy.memory, 128 * MIB) == Shape(1, 64 * MIB, 0, 64 * MIB)
    assert concat_shape(8, 8192 * MIB, 128 * MIB) == Shape(1, 128 * MIB, 0, 128 * MIB)


@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 50),
    st.lists(st.binary(min_size=1, max_size=70), max_size=30),
    st.booleans(),
)
def test_every_byte_has_its_place(width, rows, unit, pieces, striped):
    shape = Shape(width, rows * unit, unit, 0) if striped else Shape(1, width * rows * unit, 0, 0)
    shipped = []

    def ship(segment, column):
        shipped.append(column)
        column.part = object()

    segment = UploadSegment(100, shape, ship)
    data = b"".join(pieces)[: segment.space]
    at = 0
    for piece in pieces:
        piece = piece[: segment.space]
        segment.add(memoryview(piece))
        at += len(piece)
        assert segment.length == at
        assert all(column.size == shape.part_length for column in shipped)
    segment.seal()
    assert len(shipped) == len(set(map(id, shipped))) == len(segment.columns)
    if striped:
        sizes = [part_data(len(data), len(segment.columns), k, unit) for k in range(len(segment.columns))]
        assert [column.size for column in segment.columns] == sizes
    for offset in range(0, len(data), 7):
        size = min(61, len(data) - offset)
        got = b"".join(bytes(found) for c, o, n in segment.places(100 + offset, size) for found in c.read(o, n))
        assert got == data[offset : offset + size]


@given(st.lists(st.integers(0, 200_000), max_size=12), st.integers(0, 1 << 21), st.integers(1, 1 << 21))
def test_columns_hold_what_was_added(sizes, offset, size):
    column, whole = PartBuffer(), b""
    for number, length in enumerate(sizes):
        piece = bytes([number]) * length
        column.add(memoryview(piece))
        whole += piece
    assert b"".join(map(bytes, column.read(offset, size))) == whole[offset : offset + size]
    assert b"".join(map(bytes, column.pieces())) == whole
    assert column.size == len(whole)
    assert len(column.pieces()) <= len(sizes)


def hosts_of(count):
    hosts = SendHosts()
    hosts.known([Host(f"h{number}") for number in range(count)] + [Host("dead", live=False)])
    return hosts


def resting(hosts, now):
    return [host["name"] for host in hosts.snapshot(now) if host["avoided_seconds"] > 0]


def test_what_is_told_of_hosts():
    hosts = hosts_of(2)
    hosts.choose({"h1"}, 0.0)
    hosts.begin_file(0.0)
    hosts.took("h1", 7)
    hosts.succeeded("h0", 5)
    hosts.failed("h0", 1.0, 0.0, "away")
    hosts.failed("h0", 2.0, 0.5, "away")
    nothing = {"avoided_seconds": 0.0, "reason": ""}
    assert hosts.snapshot(3.0) == [
        {"name": "h0", "parts": 1, "files": 0, "bytes": 5, "errors": 2, "avoided_seconds": 3.0, "reason": "away"},
        {"name": "h1", "parts": 0, "files": 1, "bytes": 7, "errors": 0, **nothing},
    ]
    assert hosts.kept_bytes == 12


def test_hosts_take_turns():
    hosts = hosts_of(3)
    assert hosts.count == 3
    taken = [hosts.choose(frozenset(), 0.0) for _ in range(3 * PER_HOST)]
    assert sorted(taken) == sorted(["h0", "h1", "h2"] * PER_HOST)
    assert hosts.choose(frozenset(), 0.0) is None
    hosts.done("h1")
    assert hosts.choose(frozenset(), 0.0) == "h1"


def test_siblings_go_to_different_hosts():
    hosts = hosts_of(3)
    taken: set[str] = set()
    for _ in range(3):
        taken.add(hosts.choose(taken, 0.0))
    assert taken == {"h0", "h1", "h2"}
    assert hosts.choose(taken, 0.0) in taken
    for _ in range(PER_HOST - 1):
        hosts.choose({"h0", "h1"}, 0.0)
    assert hosts.choose({"h0", "h1"}, 0.0) is None, "better to wait than to share"


def test_failed_hosts_rest():
    hosts = hosts_of(2)
    hosts.failed("h0", 0.0, 0.0, "away")
    assert resting(hosts, 0.1) == ["h0"]
    assert [hosts.choose(frozenset(), 0.1) for _ in range(PER_HOST)] == ["h1"] * PER_HOST
    hosts.failed("h1", 1.0, 1.0, "away")
    assert hosts.choose(frozenset(), 1.0) == "h0", "all rest: any is better than none"
    hosts.succeeded("h0", 1)
    assert resting(hosts, 1.0) == ["h1"]


def test_files_in_one_piece_spread_and_take_no_places():
    hosts = hosts_of(3)
    assert sorted(hosts.begin_file(0.0) for _ in range(3 * PER_HOST)) == sorted(["h0", "h1", "h2"] * PER_HOST)
    hosts.end_file("h1")
    assert hosts.choose(frozenset(), 0.0) == "h1"
    hosts.done("h1")
    hosts.failed("h1", 1.0, 0.0, "away")
    assert hosts.begin_file(2.0) != "h1"
    assert SendHosts().begin_file(0.0) == ANYWHERE


def test_a_store_that_places_files_itself():
    hosts = SendHosts()
    hosts.failed(ANYWHERE, 0.0, 0.0, "away")
    assert [hosts.choose({ANYWHERE}, 0.0) for _ in range(ANYWHERE_AT_ONCE)] == [ANYWHERE] * ANYWHERE_AT_ONCE
    assert hosts.choose(frozenset(), 0.0) is None
    assert resting(hosts, 0.0) == []
