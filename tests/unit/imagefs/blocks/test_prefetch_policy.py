"""The order in which a first start is fetched ahead."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from imagefs.blocks.prefetch_policy import following


@given(count=st.integers(0, 200), reads=st.lists(st.integers(0, 199), max_size=30), every=st.integers(1, 10))
def test_every_block_comes_once_and_those_behind_the_last_read_come_first(
    count: int, reads: list[int], every: int
) -> None:
    read, left = -1, set(range(count))
    order = following(count, lambda: read)
    waiting = iter(reads)
    for number in itertools.count():
        moved = number % every == 0 and (latest := next(waiting, -1)) >= 0
        if moved:
            before, read = read, latest
        block = next(order, None)
        if block is None:
            break
        if moved and read != before:
            behind = [one for one in left if one > read]
            assert block == min(behind or left)
        left.remove(block)
    assert not left
