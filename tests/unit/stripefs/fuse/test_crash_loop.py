"""When the supervisor gives a mount up, and when it waits before it starts the next worker."""

from __future__ import annotations

import pytest

from stripefs.fuse.supervised import CrashLoop


def after(*deaths: tuple[float, int]) -> CrashLoop:
    seen = CrashLoop()
    for when, answered in deaths:
        seen.record(when, answered)
    return seen


@pytest.mark.parametrize(
    ("deaths", "expected"),
    [
        ([(100, 5), (101, 5)], False),
        ([(100, 5), (101, 5), (102, 5)], True),
        ([(100, 5), (101, 5), (102, 6)], False),  # it answered something in between
        ([(100, 4), (101, 5), (102, 5)], False),
        ([(100, 5), (130, 5), (160, 5)], False),  # a minute
        ([(100, 5), (130, 5), (159, 5)], True),
        ([(100, 4), (200, 5), (201, 5), (202, 5)], True),
    ],
)
def test_three_deaths_in_a_minute_without_an_answer_are_the_end(
    deaths: list[tuple[float, int]], expected: bool
) -> None:
    assert bool(after(*deaths).diagnosis) == expected


def test_a_death_that_was_wanted_says_nothing_about_those_before() -> None:
    seen = after((100, 5), (101, 5))
    seen.clear()
    seen.record(102, 5)
    assert not seen.diagnosis


def test_ten_in_ten_seconds_are_rapid() -> None:
    assert not after(*((100 + n, n) for n in range(9))).rapid
    assert after(*((100 + n, n) for n in range(10))).rapid
    assert not after(*((100 + 2 * n, n) for n in range(10))).rapid
    assert after(*((100 + 20 * (n < 5) + n, n) for n in range(5, 30))).rapid
