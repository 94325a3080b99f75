"""`bench write` without a cluster: its plan, the order of runs, the bytes of the writers."""

from __future__ import annotations

import itertools

import pytest

from bench.harness.data import CHUNK, MIB, PAGE, DataFile, contents, wrong_page
from bench.write.driver import even_parts
from bench.write.measure import sequence, warm, warm_facts
from bench.write.plan import LAYOUTS, Run, choose, runs
from bench.write.programs import Source


def test_reading_back_brings_the_writing_of_what_it_reads() -> None:
    made = runs(quick=False, rclone=True)
    chosen = choose(made, ["read_back"])
    assert {run.system for run in chosen if run.case == "write"} == {f"stripefs:{layout}" for layout in LAYOUTS}
    assert choose(made, ["ls"]) == [run for run in made if run.case == "ls"]


def test_each_round_begins_one_further_on_and_reads_what_it_has_written() -> None:
    made = [*(Run("write", system, "") for system in "abc"), Run("read_back", "d", ""), Run("ls", "e", "")]
    order = [(number, "".join(run.system for run in turn)) for number, turn in sequence(made, 4)]
    assert order == [*enumerate(("abcd", "bcad", "cabd", "abcd")), *enumerate("eeee")]


def test_warming_ends_when_two_runs_were_no_faster_or_enough_was_moved() -> None:
    rates = iter([100.0, 200.0, 300.0, 290.0, 310.0, 900.0])
    warmed = warm(lambda: next(rates), 512 * MIB, least=0)
    assert (warmed.rates, warmed.steady, warmed.gib) == ([100, 200, 300, 290, 310], True, 2.5)
    rates = iter([100.0, 90.0, 90.0, 300.0, 290.0, 310.0, 900.0])
    warmed = warm(lambda: next(rates), 512 * MIB, least=2048 * MIB)
    assert (warmed.rates, warmed.steady) == ([100, 90, 90, 300, 290, 310], True)
    rising = itertools.count(100, 100)
    warmed = warm(lambda: float(next(rising)), 512 * MIB, most=1280 * MIB)
    assert (warmed.rates, warmed.steady) == ([100, 200], False)
    assert warm_facts({"read native": warmed}) == {"read native": {"mb_s": [100, 200], "gib": 1.0, "steady": False}}


def test_what_is_written_is_what_readers_check() -> None:
    source = Source(chunk=MIB)
    size, begin = 2 * MIB + 3 * PAGE + 100, 5 * PAGE
    written = b"".join(source.pieces(size, begin))
    assert len(written) == size
    assert wrong_page(begin, written) == ""
    assert all(wrong_page(begin + at, written[at : at + PAGE]) == "" for at in range(0, size - PAGE, PAGE))
    assert source.cpu > 0
    whole = b"".join(Source().pieces(2 * CHUNK))
    assert whole == b"".join(contents(DataFile("x", 2 * CHUNK, CHUNK), 0, 2 * CHUNK))


@pytest.mark.parametrize(("size", "count"), [(2 << 30, 8), (256 * MIB, 3), (10 * PAGE + 1, 3)])
def test_parts_are_whole_pages_and_make_up_the_file(size: int, count: int) -> None:
    parts = even_parts(size, count)
    assert (len(parts), sum(parts)) == (count, size)
    assert all(part % PAGE == 0 for part in parts[:-1])
