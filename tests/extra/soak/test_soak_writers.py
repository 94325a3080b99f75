"""The soak of writers: its parts, and five deaths of each kind in every run, with a local directory as the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hdfs.conftest import place
from tests.soak.writers import Outcome, outcomes, version
from tests.soak.writing import make_deaths, soak_writers
from tests.support.leftovers import DAY, age
from tests.support.written_mounts import hidden, unreferenced
from tests.tools.command import Place

__all__ = ["place"]

seeds = st.integers(0, 1 << 31)


@given(seeds, st.integers(1, 50), st.data())
def test_nothing_is_visible_before_its_close(seed: int, number: int, data: st.DataObject) -> None:
    made = version(seed, number)
    step = data.draw(st.integers(0, len(made.steps)))
    (outcome,) = outcomes(made, step)
    closed = [step.what for step in made.steps].index("close") < step
    assert (number in (outcome.file, outcome.beside)) == closed
    assert (outcome.file == number) or outcome.file == number - 1
    later = outcomes(made, step, exact=False)
    assert {outcome, Outcome(number)} <= later
    assert outcomes(made, len(made.steps), exact=False) == {Outcome(number)}


@pytest.mark.mount
@pytest.mark.root
@pytest.mark.parametrize("layout", ["concat", "striped"])
def test_writers_and_workers_die(tmp_path: Path, place: Place, layout: str) -> None:
    """The old version is intact every time, and gc leaves nothing but the file."""
    source = tmp_path / "source"
    source.mkdir()
    summary = soak_writers(
        place,
        f"file://{source}",
        make_deaths(20261122, 5, 5),
        seed=20261122,
        say=print,
        options=("--layout", layout, "--write-memory", "64MiB", "--unit", "1MiB"),
        age=lambda: age(source, 2 * DAY),
    )
    assert summary["deaths"] == {"writer": 5, "worker": 5}
    assert summary["read_whole"] > 0
    assert hidden(source) == []
    assert unreferenced(source) == set()
