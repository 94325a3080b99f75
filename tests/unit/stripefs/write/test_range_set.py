"""Sets of byte ranges against plain sets of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stripefs.write.staged_file import RangeSet

RANGE = st.tuples(st.integers(0, 40), st.integers(0, 40))


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "cut"]), RANGE), max_size=30), RANGE)
def test_like_a_set_of_numbers(steps: list[tuple[str, tuple[int, int]]], asked: tuple[int, int]) -> None:
    extents, model = RangeSet(), set[int]()
    for what, (start, stop) in steps:
        if what == "add":
            extents.add(start, stop)
            model |= set(range(start, stop))
        elif what == "remove":
            extents.remove(start, stop)
            model -= set(range(start, stop))
        else:
            extents.cut(start)
            model = {number for number in model if number < start}
        ranges = extents.ranges()
        assert {number for begin, end in ranges for number in range(begin, end)} == model
        assert extents.total == len(model)
        assert bool(extents) == bool(model)
        # In order, none empty, none next to another.
        flat = [edge for pair in ranges for edge in pair]
        assert flat == sorted(set(flat))
        assert extents.missing(*asked) == len(set(range(*asked)) - model)
