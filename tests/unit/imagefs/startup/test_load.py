"""Events out of files: the two ways to parse give the same, damage is counted and hides nothing else."""

from __future__ import annotations

import errno
import gzip
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bench.startup.synthetic import Fleet
from imagefs.startup import load as module
from imagefs.startup.load import Problems, load
from imagefs.startup.sources import find_files, find_run
from stripefs.errors import ConfigError, NotFound, StoreError
from tests.support.examples import examples
from tests.unit.imagefs.startup.events import counts, event, file, fleet, loaded, report, span

LINES = fleet(Fleet(3, ranks=2, seed=1)).splitlines(keepends=True)
BAD = (b"garbage\n", b"{\n", b'"text"\n', b'{"v": NaN, "event": 1}\n', b"\xff\xfe\n", b"{}{}\n", b"[" * 2000 + b"\n")


def table(data: bytes) -> tuple[list[tuple[object, ...]], dict[str, int]]:
    """All fields of all events, and the problems."""
    events, problems = loaded(data)
    names = sorted(events.ints), sorted(events.codes)
    columns = [events.ints[name].tolist() for name in names[0]]
    columns += [[events.words[name][code] for code in events.codes[name]] for name in names[1]]
    return sorted(zip(*columns, strict=True), key=repr), problems


@examples(25)
@given(st.lists(st.tuples(st.integers(0, len(LINES)), st.sampled_from(BAD)), max_size=8))
def test_bad_lines_cost_themselves_alone(bad: list[tuple[int, bytes]]) -> None:
    lines = list(LINES)
    for where, line in bad:
        lines.insert(where, line)
    rows, problems = table(b"".join(lines))
    assert rows == table(b"".join(LINES))[0]
    assert sum(problems.values()) >= len(bad)


def test_both_parsers_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = table(b"".join(LINES))
    monkeypatch.setattr(module, "_arrow", lambda data, lines: None)
    assert table(b"".join(LINES)) == quick
    assert quick[1] == {}


@pytest.mark.parametrize("piece", [1, 7, 100, 4096])
def test_blocks_of_any_size_hold_the_same_lines(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefs.startup.sources.PIECE", piece)
    monkeypatch.setattr(module, "PIECE", piece)
    monkeypatch.setattr(module, "HUGE", 600)
    lines = [*LINES[:40], b"x" * 2000 + b"\n", b"garbage\n", *LINES[40:60], b'{"v": 1, "na']
    problems = Problems()
    events = load([file(b"".join(lines)), file(b"".join(LINES[60:]))], problems)
    assert len(events) == len(LINES)
    told = {one.kind: (one.count, one.example) for one in problems.listed()}
    assert told["huge line"] == (1, "events.jsonl:41")
    assert told["garbage"] == (1, "events.jsonl:42")
    assert told["truncated"] == (1, "events.jsonl:63")


def test_order_and_copies_change_nothing() -> None:
    lines = LINES * 2
    random.Random(1).shuffle(lines)
    rows, problems = table(b"".join(lines))
    assert rows == table(b"".join(LINES))[0]
    assert problems["duplicate"] == len(LINES)
    shuffled = report(*lines)
    assert shuffled.to_json()["starts"][0]["stages"] == report(*LINES).to_json()["starts"][0]["stages"]


def test_starts_at_the_same_moment_are_no_copies() -> None:
    """Whole seconds of another tool, of two runs on one node."""
    lines = [event(9, "instant", "ready", run=run, rank=None, mono_ns=None, boot=None, pid=None) for run in "ab"]
    assert loaded(b"".join(lines * 2))[1] == {"duplicate": 2, "no monotonic clock": 4}


def test_compressed_files_and_one_that_ends_early(tmp_path: Path) -> None:
    data = b"".join(LINES)
    (tmp_path / "below").mkdir()
    (tmp_path / "below/a.jsonl.gz").write_bytes(gzip.compress(data[: len(data) // 2]))
    compressed = zstandard.ZstdCompressor().compress(b"".join(LINES[:2]))
    (tmp_path / "b.jsonl.zst").write_bytes(compressed)
    (tmp_path / "c.jsonl").write_bytes(data[len(data) // 2 :])
    (tmp_path / "notes.txt").write_text("no events")
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(b"".join(LINES))[:-200])
    problems = Problems()
    events = load(find_files([str(tmp_path)]), problems)
    told = {one.kind: one for one in problems.listed()}
    assert len(events) >= len(LINES) - 1
    assert events.files == 4
    assert told["damaged file"].count == 1
    assert "d.jsonl.gz" in told["damaged file"].example


def test_places_that_cannot_be_read_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that nobody writes to, and a directory of another user."""
    (tmp_path / "a.jsonl").write_bytes(b"".join(LINES))
    os.mkfifo(tmp_path / "b.jsonl")
    (tmp_path / "c").mkdir()

    def scandir(path: str) -> object:
        if path.endswith("/c"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path)

    real = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    problems = Problems()
    load(find_files([str(tmp_path)]), problems)
    assert [(one.kind, one.count) for one in problems.listed()] == [("damaged file", 2)]
    with pytest.raises(ConfigError, match="Permission denied"):
        load(find_files([str(tmp_path / "c")]), Problems())


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({"rank": -5}, {"bad field"}),
        ({"rank": 1 << 62}, {"bad field"}),
        ({"mono_ns": -(1 << 63)}, {"bad field", "no monotonic clock"}),
        ({"wall_ns": -1}, {"not an event"}),
        ({"facts": {"wait_ns": 1 << 62}}, {"bad field"}),
    ],
)
def test_numbers_out_of_range_cost_themselves_alone(fields: dict[str, object], kinds: set[str]) -> None:
    bad = event(5, "instant", "model", **fields)  # type: ignore[arg-type]
    made = report(span(0, 10, "model"), span(0, 20, "model", node="b"), bad)
    assert {one.kind for one in made.problems} == kinds
    assert made.starts[0].total_s == 20


def test_an_end_that_names_another_start_makes_none() -> None:
    torn = event(0, "begin", "model", span="1") + event(9, "end", "model", span="1", run="other")
    starts = report(torn, span(0, 3, "image", run="later")).starts
    assert {(start.run, start.total_s) for start in starts} == {("r", 9), ("later", 3)}


def test_places_without_events(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        find_files([str(tmp_path / "nowhere")])
    with pytest.raises(NotFound):
        find_files([(tmp_path / "nowhere").as_uri()])
    with pytest.raises(ConfigError, match="unknown scheme"):
        find_files(["nothing://here"])
    with pytest.raises(StoreError, match="nothing listens"):
        find_run("hdfs://127.0.0.1:9/events", "run")
    with pytest.raises(ConfigError, match="holds no events"):
        find_files([str(tmp_path)])
    with pytest.raises(ConfigError, match="none of 2 lines in 1 files"):
        loaded(b"garbage\n{\n")
    with pytest.raises(ConfigError, match="JSON objects"):
        loaded(b'{"level": 3}\n')


def test_a_url_holds_what_its_directory_does(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_bytes(b"".join(LINES[:50]))
    (tmp_path / "two.jsonl").write_bytes(b"".join(LINES[50:]))
    local, remote = (load(find_files([place]), Problems()) for place in (str(tmp_path), tmp_path.as_uri()))
    assert np.array_equal(local.ints["mono_ns"], remote.ints["mono_ns"])
    assert local.lines == remote.lines


@pytest.mark.parametrize("form", [str, Path.as_uri])
def test_a_run_is_found_in_a_collector_folder(tmp_path: Path, form: object) -> None:
    assert callable(form)
    folder = form(tmp_path)
    for path in ("train/r%201", "eval/r%201", "eval/other", "_/_"):
        (tmp_path / path).mkdir(parents=True)
    assert find_run(folder, "r 1") == [f"{folder}/eval/r%201", f"{folder}/train/r%201", f"{folder}/_/_"]
    assert find_run(folder, "train/r 1") == [f"{folder}/train/r%201", f"{folder}/_/_"]
    assert find_run(folder, "unknown") == find_run(folder, "\udcff") == [folder]
    (tmp_path / "train/%2Er").mkdir()  # as the collector names it
    assert find_run(folder, ".r") == [f"{folder}/train/%2Er", f"{folder}/_/_"]


def test_gaps_in_numbers_and_told_losses() -> None:
    def numbered(*numbers: int, source: str = "job") -> bytes:
        return b"".join(event(number, "instant", "model", seq=number, source=source) for number in numbers)

    assert loaded(numbered(0, 1, 2))[1] == {}
    assert loaded(numbered(0, 3, 4))[1] == {"lost": 2}
    assert loaded(numbered(2, 3))[1] == {"lost": 2}
    others = b"".join(event(9 + n, "instant", "model", seq=n, run="s", pid=2) for n in range(5))
    assert loaded(numbered(0, 3) + others)[1] == {"lost": 2}  # process ids repeat from container to container
    assert loaded(numbered(0, 9, source="stripefs"))[1] == {}  # may be the events of another start
    assert loaded(numbered(0) + event(1, "instant", "dropped", facts={"events": 7}))[1] == {"dropped": 7}


def test_order_of_a_process() -> None:
    """Imports are told when they have ended, and a program that has executed another one begins its numbers anew."""
    late = event(5, "instant", "model", seq=0), event(4, "instant", "model", seq=1)
    assert loaded(b"".join(late))[1] == {"out of order": 1}
    assert loaded(event(5, "instant", "model", seq=0) + span(3, 4, "imports", "torch", seq=1))[1] == {}
    assert loaded(b"".join(late) + event(6, "instant", "model", seq=0))[1] == {}


def test_events_without_a_run_belong_to_the_start_that_ended_next() -> None:
    parts = []
    for number, run in enumerate(("one", "two", "three")):
        begin = 1000.0 * number
        parts.append(span(begin, begin + 10, "image", "prepare", rank=None, run=None, source="snapshotter"))
        parts.append(span(begin + 10, begin + 20 + number, "first_step", run=run))
    parts.append(span(1500, 1501, "checkpoint", rank=None, run=None))  # 500 s before the third start
    parts.append(span(0, 1, "image", "prepare", node="elsewhere", rank=None, run=None))
    made = report(*parts)
    assert [(one.run, one.total_s) for one in made.starts] == [("one", 20.0), ("two", 21.0), ("three", 522.0)]
    assert {kind: counts(made)[kind] for kind in ("no run", "no start")} == {"no run": 10, "no start": 2}
    alone = report(*parts, runs=["two"])
    assert [one.run for one in alone.starts] == ["two"]


def test_events_with_a_wall_clock_only() -> None:
    fields: dict[str, Any] = {"mono_ns": None, "boot": None, "node": None}
    made = report(span(0, 5, "queue", **fields) + span(5, 9, "first_step", **fields))
    assert [step.node for step in made.starts[0].critical_path] == ["", ""], "nobody names its node"
    assert made.starts[0].total_s == 9
    assert made.starts[0].held_s == 4
    assert counts(made) == {"no monotonic clock": 4}
