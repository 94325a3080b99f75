"""`bench checkpoint` without a cluster and torch: its plan, ratios, content of checkpoints."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from bench.checkpoint import measure
from bench.checkpoint.driver import check_cached
from bench.checkpoint.plan import Run, copies, name_of, room, runs, sequence
from bench.checkpoint.ranks import RANKS
from bench.checkpoint.state import COLUMNS, Place, Seen, State
from bench.cli import main
from bench.harness import BenchError
from bench.harness.cluster import Cluster
from bench.harness.data import GIB, MIB, PAGE, wrong_page
from bench.harness.results import METRICS, Key

SMALL = State(120 * MIB)


def test_each_round_goes_through_all_cases_and_begins_one_further_on() -> None:
    made = [Run("four", "d", ""), Run("save", "a", ""), Run("save", "b", ""), Run("save", "c", "", rounds=1)]
    assert [run.system for run in sequence(made, 0)] == ["a", "b", "c", "d"]
    assert [run.system for run in sequence(made, 1)] == ["b", "a", "d"]


def test_what_must_be_there_before_the_first_run() -> None:
    made = runs(few=False, rclone=True)
    every = {"model.safetensors", "model.pt", "dcp"}
    assert copies(made) == {"stored": every, "local": every, "cached": every}
    assert room(made) == 11
    few = runs(few=True, rclone=False)
    assert copies(few) == {
        "stored": {"model.safetensors", "dcp"},
        "local": {"model.safetensors"},
        "cached": {"model.safetensors"},
    }
    assert room(few) == 6
    assert {name_of(run) for run in made if run.format.startswith("torch")} == {"model.pt"}
    disk = [run for run in made if run.case == "warm_disk"]
    assert copies(disk)["local"] == {"model.safetensors"}


def test_a_cache_from_which_nothing_is_read_is_no_figure() -> None:
    check_cached(0.05)
    with pytest.raises(BenchError, match="fetched 108% of a file that should be in its cache"):
        check_cached(1.08)


def test_there_must_be_room_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BenchError, match="make room, or give --size"):
        measure._need_room(runs(few=False, rclone=False), 1 << 60)


@pytest.mark.parametrize("size", [120 * MIB, 256 * MIB, 2 * GIB, 8 * GIB])
def test_the_tensors_fill_the_file(size: int) -> None:
    state = State(size)
    pieces = list(state.pieces.values())
    assert pieces[-1].offset + pieces[-1].length == size
    assert all(a.first + a.pages == b.first for a, b in itertools.pairwise(pieces))
    assert list(state.pieces) == sorted(state.pieces)
    assert state.length == size - pieces[0].offset
    ranks = [state.share(rank, 4) for rank in range(4)]
    assert sorted(name for names in ranks for name in names) == list(state.pieces)


def test_a_file_of_safetensors_has_its_pages_where_they_say() -> None:
    data = safetensors.numpy.save(SMALL.make(), metadata=SMALL.metadata)
    assert len(data) == SMALL.size
    begin = next(iter(SMALL.pieces.values())).offset
    assert all(not wrong_page(offset, data[offset : offset + PAGE]) for offset in range(begin, len(data), 501 * PAGE))
    loaded = safetensors.numpy.load(data)
    seen = Seen(SMALL)
    seen.check_all(loaded)
    assert seen.done() == SMALL.length


def test_what_is_wrong_with_a_tensor_is_told() -> None:
    name, piece = next((name, piece) for name, piece in SMALL.pieces.items() if 1 < piece.pages < 3000)
    rows = SMALL.make()[name]
    assert rows.shape == (piece.pages, COLUMNS)
    assert SMALL.complaint(name, rows) == ""
    assert "with" in SMALL.complaint(name, rows[:-1])
    rows[[0, 1]] = rows[[1, 0]]
    assert SMALL.complaint(name, rows) == f"{name}: 2 of {piece.pages} pages are wrong"
    with pytest.raises(RuntimeError, match="pages are wrong"):
        Seen(SMALL).check(name, rows)
    with pytest.raises(RuntimeError, match="tensors did not come"):
        Seen(SMALL).done()


@pytest.mark.parametrize("kind", sorted(RANKS))
def test_ranks_read_their_share_and_check_it(tmp_path: Path, kind: str) -> None:
    safetensors.numpy.save_file(SMALL.make(), tmp_path / "model", metadata=SMALL.metadata)
    place = Place("model", str(tmp_path)) if kind == "fsspec" else Place(str(tmp_path / "model"))
    counts = [RANKS[kind](place, SMALL, rank, 4) for rank in range(4)]
    assert sum(counts) == SMALL.length * (1 if kind in ("direct", "safetensors") else 4)
    with (tmp_path / "model").open("r+b") as file:
        file.seek(next(iter(SMALL.pieces.values())).offset)
        file.write(np.uint64(1 << 40).tobytes())
    with pytest.raises(RuntimeError, match="pages are wrong"):
        RANKS[kind](place, SMALL, 0, 4)


@pytest.mark.parametrize(
    ("words", "error"),
    [(["--quick", "--large"], "are two sizes: choose one"), (["--size", "1MiB"], "must be a multiple of 8 MiB")],
)
def test_what_cannot_be_is_refused(
    words: list[str], error: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main(["checkpoint", *words]) == 1
    assert error in capsys.readouterr().err


def test_what_a_link_carried_is_less_than_what_it_sent() -> None:
    node = {"node": "dn1", "pid": os.getpid(), "transfer": "", "http": ""}
    cluster = Cluster({"name": "x", "url": "", "conf": "", "rate": 0, "http": "", "datanodes": [node]})
    before = cluster.payload_sent()
    assert 0 <= before <= cluster.bytes_sent()
    assert Key("four", "fsspec", "fetched_share").metric in METRICS
