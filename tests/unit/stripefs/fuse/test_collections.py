"""Collections of garbage in a worker: none looks at all inodes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from stripefs.fuse import worker
from stripefs.store.base import Identity, Kind
from stripefs.vfs import ROOT, InodeTable

NAMES = 100_000


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a worker whose collections are all slow, and afterwards as before."""
    before = list(gc.callbacks)
    monkeypatch.setattr(worker, "SLOW", 0.0)
    worker.freeze_survivors()
    yield
    gc.callbacks[:] = before
    gc.unfreeze()


def looked_at(table: InodeTable, most: list[int]) -> None:
    """Make NAMES inodes; add the objects that each full collection looks at to `most`."""

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 2:
            most.append(len(gc.get_objects()))

    gc.callbacks.append(note)
    try:
        for number in range(NAMES):
            table.add_lookup(ROOT, b"file-%d" % number, Kind.FILE, Identity(number, number, str(number)))
            if number % (NAMES // 10) == 0:
                gc.collect()
    finally:
        gc.callbacks.remove(note)


def test_a_full_collection_looks_at_what_is_new(frozen: None) -> None:
    most: list[int] = []
    looked_at(InodeTable(), most)
    assert max(most) < NAMES // 2  # all of them are two objects each


def test_collections_do_not_wait_for_many_new_objects_after_names_were_replayed() -> None:
    replayed = [[number] for number in range(800_000)]
    new: list[list[int]] = []
    full: list[int] = []

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 2:
            full.append(len(new))

    gc.collect()
    before = list(gc.callbacks)
    try:
        worker.freeze_survivors()
        gc.callbacks.append(note)
        new += ([number] for number in range(len(replayed) // 5))
    finally:
        gc.callbacks[:] = before
        gc.unfreeze()
    assert full


def test_what_is_forgotten_is_freed_and_so_are_young_cycles(frozen: None) -> None:
    class Thing:
        def __init__(self) -> None:
            self.me: Thing | None = None

    old = Thing()
    gc.collect()
    cycle = Thing()
    cycle.me = cycle
    gone = [weakref.ref(old), weakref.ref(cycle)]
    del old, cycle
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_a_cycle_that_lived_through_quick_collections_is_freed(frozen: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Thing:
        def __init__(self) -> None:
            self.me = self

    monkeypatch.setattr(worker, "SLOW", float("inf"))
    cycle = Thing()
    gc.collect()
    gone = weakref.ref(cycle)
    del cycle
    gc.collect()
    assert gone() is None
