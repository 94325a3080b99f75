"""Sets of byte ranges, and the bound that mounts of one host share: what is allowed, and who counts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import ConfigError
from stripefs.write import staged_file as staging_account
from stripefs.write.staged_file import RangeSet, StagingQuota, allowed

BOUND = 1000


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(
    ("most", "mine", "used", "files"),
    [(750, 0, 0, 1), (0, 750, 750, 1), (250, 0, 750, 2)],
    ids=["one alone may take three quarters", "and no more", "a late one finds room"],
)
def test_the_most_that_a_file_may_take(most: int, mine: int, used: int, files: int) -> None:
    assert allowed(most, mine, used, files, BOUND)
    assert not allowed(most + 1, mine, used, files, BOUND)


@given(st.integers(1, 12), st.lists(st.integers(0, 11), min_size=1, max_size=400))
def test_files_that_grow_together_end_up_even(files: int, turns: list[int]) -> None:
    """For any order of turns, no file passes the bound, and each can get its share of the last quarter."""
    held = [0] * files
    for turn in [*turns, *list(range(files)) * 200]:
        mine = held[turn % files]
        if allowed(10, mine, sum(held), files, BOUND):
            held[turn % files] += 10
    assert sum(held) <= BOUND
    assert min(held) >= min(BOUND // 4 // files, BOUND // (files + 1)) // 10 * 10


def test_mounts_share_the_bound(folder: int) -> None:
    one, two = StagingQuota(folder, BOUND), StagingQuota(folder, BOUND)
    one.begin()
    two.begin()
    assert one.acquire(600, 0)
    assert two.totals() == (600, 2)
    assert not two.acquire(500, 0)
    assert two.acquire(400, 0) is False  # past the even share of three
    assert two.acquire(333, 0)
    assert not one.acquire(1, 600)
    one.end(600)
    assert two.totals() == (333, 1)
    assert two.acquire(400, 333)
    one.begin()
    assert one.acquire(50, 0)
    one.close()
    three = StagingQuota(folder, BOUND)  # in the slot of the one that went
    assert three.totals() == (733, 1)
    two.close()
    three.close()


_DYING = """
import os, sys
from stripefs.write.staged_file import StagingQuota
account = StagingQuota(os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY), 1000)
account.begin()
account.acquire(700, 0)
print(*account.totals(), flush=True)
sys.stdin.read()
"""


def test_a_killed_mount_counts_for_nothing(folder: int, tmp_path: Path) -> None:
    mine = StagingQuota(folder, BOUND)
    command = [sys.executable, "-c", _DYING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "700 1\n"
        assert mine.totals() == (700, 1)
        child.kill()
        child.wait()
        assert mine.totals() == (0, 0)
    mine.close()


def test_too_many_mounts(folder: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_account, "_SLOTS", 2)
    accounts = [StagingQuota(folder, BOUND) for _ in range(2)]
    with pytest.raises(ConfigError, match="2 mounts"):
        StagingQuota(folder, BOUND)
    accounts.pop().close()
    accounts.append(StagingQuota(folder, BOUND))
    for account in accounts:
        account.close()


def test_a_table_of_rubbish_counts_for_nothing(folder: int, tmp_path: Path) -> None:
    (tmp_path / staging_account.NAME).write_bytes(b"\xff" * 5000)
    account = StagingQuota(folder, BOUND)
    assert account.totals() == (0, 0)
    account.begin()
    assert account.acquire(BOUND * 3 // 4, 0)
    account.close()


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
