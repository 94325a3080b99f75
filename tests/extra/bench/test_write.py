"""`bench write` without a cluster: its plan, ratios, the order of runs; bytes of the writers."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from bench.cli import main
from bench.harness.data import CHUNK, MIB, PAGE, DataFile, contents, wrong_page
from bench.write.driver import even_parts, with_property
from bench.write.measure import sequence, since_gain, warm, warm_facts
from bench.write.plan import LAYOUTS, Run, choose, runs
from bench.write.programs import Source, create_query, list_directory, save, segments


def test_reading_back_brings_the_writing_of_what_it_reads() -> None:
    made = runs(quick=False, rclone=True)
    chosen = choose(made, ["read_back"])
    assert {run.system for run in chosen if run.case == "write"} == {f"stripefs:{layout}" for layout in LAYOUTS}
    assert [run for run in chosen if run.case == "read_back"] == [run for run in made if run.case == "read_back"]
    assert choose(made, ["ls"]) == [run for run in made if run.case == "ls"]
    assert choose(made, []) == made


def test_each_round_begins_one_further_on_and_reads_what_it_has_written() -> None:
    made = [Run("write", "a", ""), Run("write", "b", ""), Run("read_back", "c", ""), Run("ls", "d", "")]
    order = [(number, [run.system for run in turn]) for number, turn in sequence(made, 2)]
    assert order == [(0, ["a", "b", "c"]), (1, ["b", "a", "c"]), (0, ["d"]), (1, ["d"])]


@pytest.mark.parametrize(
    ("rates", "since"),
    [([], 0), ([200], 0), ([200, 205], 1), ([200, 209, 215], 2), ([200, 300, 310, 250], 2), ([200, 150, 300], 0)],
)
def test_how_long_ago_a_rate_rose(rates: list[float], since: int) -> None:
    assert since_gain(rates) == since


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


def test_a_program_saves_a_file_and_times_its_calls(tmp_path: Path) -> None:
    seconds, sync, close = save(str(tmp_path / "saved"), 3 * MIB, Source(chunk=MIB))
    assert (tmp_path / "saved").read_bytes() == b"".join(Source(chunk=MIB).pieces(3 * MIB))
    assert seconds >= sync + close


def test_a_listing_that_is_not_right_is_refused(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(bytes(100))
    assert list_directory(str(tmp_path), 3, 100) > 0
    with pytest.raises(RuntimeError, match="lists 3 of 4 files"):
        list_directory(str(tmp_path), 4, 100)
    os.truncate(tmp_path / "b", 99)
    with pytest.raises(RuntimeError, match="1 of them with a wrong length"):
        list_directory(str(tmp_path), 3, 100)


@pytest.mark.parametrize(("size", "count"), [(2 << 30, 8), (256 * MIB, 3), (10 * PAGE + 1, 3)])
def test_parts_are_whole_pages_and_make_up_the_file(size: int, count: int) -> None:
    parts = even_parts(size, count)
    assert (len(parts), sum(parts)) == (count, size)
    assert all(part % PAGE == 0 for part in parts[:-1])


def test_a_long_file_of_a_raw_writer_is_cut() -> None:
    assert segments("/a", 100, 0) == [("/a", 0, 100)]
    assert segments("/a", 100, 100) == [("/a", 0, 100)]
    assert segments("/a", 100, 40) == [("/a-0", 0, 40), ("/a-1", 40, 40), ("/a-2", 80, 20)]


def test_a_placed_create_names_the_namenode() -> None:
    query = create_query("hdfs://198.18.0.2:9000", 8 * MIB, 2)
    assert "namenoderpcaddress=198.18.0.2:9000&" in query
    assert query.endswith("&blocksize=8388608&replication=2")


def test_a_property_of_a_site_file_is_changed_alone() -> None:
    site = "<property><name>dfs.replication</name><value>1</value></property><property><name>x</name><value>1</value>"
    assert with_property(site, "dfs.replication", "2") == site.replace(">1<", ">2<", 1)
    assert with_property(site, "dfs.other", "2") == site


def test_a_size_that_raw_writers_cannot_share_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main(["write", "--size", "1MiB"]) == 1
    assert capsys.readouterr().err == "bench: error: --size must be a multiple of 8 MiB\n"
