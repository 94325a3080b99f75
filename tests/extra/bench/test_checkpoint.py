"""`bench checkpoint` without a cluster and torch: the content of checkpoints, and ranks that check it."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from bench.checkpoint.driver import check_cached
from bench.checkpoint.ranks import RANKS
from bench.checkpoint.state import COLUMNS, Place, Seen, State
from bench.harness import BenchError
from bench.harness.data import GIB, MIB, PAGE, wrong_page

SMALL = State(120 * MIB)


def test_a_cache_from_which_nothing_is_read_is_no_figure() -> None:
    check_cached(0.05)
    with pytest.raises(BenchError, match="fetched 108% of a file that should be in its cache"):
        check_cached(1.08)


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
