from __future__ import annotations

import itertools
import random

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stripefs.format.blocks import CHECK, DIGEST, SUM, PartTable, check_sums, digest_of, table_length

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


def test_as_documented() -> None:
    data = DATA[: CHECK + 5]
    sums = check_sums(data)
    assert sums == xxhash.xxh3_64(data[:CHECK]).digest() + xxhash.xxh3_64(data[CHECK:]).digest()
    assert len(sums) == 2 * SUM
    assert digest_of(sums) == xxhash.xxh3_128(sums).digest()
    assert len(digest_of(b"")) == DIGEST
