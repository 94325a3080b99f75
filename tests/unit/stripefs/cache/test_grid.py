from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from stripefs.cache.segment_format import (
    BLOCK,
    PER_SEGMENT,
    SEGMENT,
    block_at,
    by_segment,
    clip,
    index_in_segment,
    inside,
    length_of,
    next_block,
    offset_of,
    over,
    runs,
    segment_blocks,
    segment_of,
    segments_over,
)

LENGTHS = st.integers(1, 200 * BLOCK)


@given(LENGTHS, st.data())
def test_blocks_over_a_range_hold_it_and_those_inside_lie_in_it(file_length: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, file_length - 1))
    length = data.draw(st.integers(1, file_length - offset))
    outer, inner = over(offset, length), inside(offset, length, file_length)
    assert outer.start * BLOCK <= offset < (outer.start + 1) * BLOCK
    assert (outer.stop - 1) * BLOCK < offset + length <= outer.stop * BLOCK
    for block in outer:
        begin, end = block * BLOCK, min((block + 1) * BLOCK, file_length)
        assert (block in inner) == (offset <= begin and end <= offset + length)


def test_nothing_is_over_nothing() -> None:
    assert not over(5, 0)
    assert not inside(BLOCK, BLOCK - 1, 5 * BLOCK)
    assert inside(0, 3 * BLOCK + 1, 3 * BLOCK + 1) == range(4)
    assert length_of(range(4), 3 * BLOCK + 1) == 3 * BLOCK + 1
    assert length_of(range(7, 9), 3 * BLOCK) == 0


@given(st.integers(0, 300), st.integers(0, 300))
def test_segments_cut_neighbours_without_a_gap(start: int, count: int) -> None:
    blocks = range(start, start + count)
    parts = list(by_segment(blocks))
    assert [block for part in parts for block in part] == list(blocks)
    assert all(len({block // PER_SEGMENT for block in part}) == 1 for part in parts)
    assert len({part.start // PER_SEGMENT for part in parts}) == len(parts)


@given(LENGTHS, st.data())
def test_a_byte_lies_in_one_block_of_one_segment(file_length: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, file_length - 1))
    block = block_at(offset)
    blocks = range(block, block + 1)
    assert offset_of(block) <= offset < offset_of(block + 1)
    assert next_block(offset) in (offset, offset_of(block + 1))
    assert clip(blocks, offset, file_length) == (offset, min(file_length, offset_of(block + 1)))
    assert segment_blocks(segment_of(blocks))[index_in_segment(blocks)] == block
    first, stop = segments_over(offset, offset + 1, file_length)
    assert first == segment_of(blocks) * SEGMENT <= offset < stop == min(first + SEGMENT, file_length)


@given(st.lists(st.booleans()), st.integers(0, 100))
def test_runs_are_cut_where_presence_changes(flags: list[bool], start: int) -> None:
    found = list(runs(range(start, start + len(flags)), bytes(flags)))
    assert [flag for run, flag in found for _ in run] == flags
    assert [block for run, _ in found for block in run] == list(range(start, start + len(flags)))
    assert all(one[1] != other[1] for one, other in itertools.pairwise(found))
