"""Block maps: chunks and ranges never cross a block, whatever the sizes of the blocks; checksums of parts."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from stripefs.format.blocks import CHECK, CHUNK, BlockMap, PartTable, check_sums, table_length
from stripefs.store.base import Block

lengths = st.lists(st.integers(1, 5 * CHUNK), min_size=1, max_size=12)


def laid_out(sizes: list[int]) -> list[Block]:
    blocks, at = [], 0
    for number, size in enumerate(sizes):
        blocks.append(Block(at, size, (f"h{number % 3}",)))
        at += size
    return blocks


@given(lengths, st.randoms(use_true_random=False), st.integers(1, 4))
def test_spans_from_chunk_to_chunk_cover_the_file_without_crossing_blocks(sizes, random, chunks):
    blocks = laid_out(sizes)
    total = sum(sizes)
    known = BlockMap(total)
    shuffled = blocks + blocks[:2]
    random.shuffle(shuffled)
    known.add(shuffled[:3])
    known.add(shuffled)
    at = 0
    while at < total:
        span = known.span(at, chunks * CHUNK)
        block = known.find(at)
        assert span is not None
        assert block is not None
        assert span.offset == at
        assert 0 < span.length <= chunks * CHUNK
        assert span.end <= block.offset + block.length
        assert span.hosts == block.hosts
        for offset in (at, span.end - 1, at + span.length // 2):
            start = known.chunk_start(offset)
            assert start <= offset < start + CHUNK
            assert (start - block.offset) % CHUNK == 0
        at = span.end
    assert at == total


@given(lengths, st.data())
def test_missing_names_the_first_unknown_byte(sizes, data):
    blocks = laid_out(sizes)
    total = sum(sizes)
    kept = data.draw(st.sets(st.integers(0, len(blocks) - 1)))
    known = BlockMap(total)
    known.add([blocks[index] for index in kept])
    gone = [block for index, block in enumerate(blocks) if index not in kept]
    offset = data.draw(st.integers(0, total - 1))
    end = data.draw(st.integers(offset + 1, total + 10))
    expected = next(
        (
            max(offset, block.offset)
            for block in gone
            if block.offset < min(end, total) and block.offset + block.length > offset
        ),
        None,
    )
    assert known.missing(offset, end) == expected


def test_a_block_past_the_end_is_clipped_and_an_empty_one_dropped():
    known = BlockMap(10)
    known.add([Block(0, 8, ("a",)), Block(8, 100, ("b",)), Block(10, 5, ("c",))])
    assert len(known) == 2
    assert known.find(9) == Block(8, 2, ("b",))
    assert known.find(10) is None
    assert known.span(10, CHUNK) is None


@given(lengths, st.lists(st.tuples(st.integers(0, 10 * CHUNK), st.integers(1, 20 * CHUNK), st.integers(0, 9))))
def test_what_is_located_anew_takes_the_place_of_what_was_known_of_these_bytes(sizes, later):
    """The new blocks may be cut in any way: every known byte lies in exactly one block, on the hosts told last."""
    total = sum(sizes)
    known = BlockMap(total)
    known.add(laid_out(sizes))
    marks = sorted({at for offset, length, _ in later for at in (offset, offset + length)} | {0, CHUNK + 1, total - 1})
    told = {mark: known.find(mark).hosts for mark in marks if mark < total}
    for offset, length, host in later:
        known.add([Block(offset, length, (f"new{host}",))])
        told |= {mark: (f"new{host}",) for mark in told if offset <= mark < offset + length}
        assert known.missing(0, total) is None
    for mark, hosts in told.items():
        assert known.find(mark).hosts == hosts


# -- checksums

UNITS = (4096, CHECK // 2, CHECK, CHECK + 4096, 2 * CHECK)
DATA = random.Random(1).randbytes(5 * CHECK + 12345)


@given(st.sampled_from(UNITS), st.integers(0, len(DATA)), st.lists(st.integers(0, len(DATA)), max_size=5))
def test_pieces_may_be_cut_anywhere(unit: int, length: int, cuts: list[int]) -> None:
    if unit == 4096:
        length = min(length, CHECK)
    data = DATA[:length]
    table = PartTable(unit)
    marks = sorted({0, length, *(cut for cut in cuts if cut < length)})
    for begin, end in itertools.pairwise(marks):
        table.add(data[begin:end])
    whole = b"".join(check_sums(data[at : at + unit]) for at in range(0, length, unit))
    assert table.finish() == whole
    assert table.length == length
    assert len(whole) == table_length(length, unit)
