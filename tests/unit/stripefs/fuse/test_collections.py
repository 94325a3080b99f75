"""Collections of garbage in a worker: none looks at all inodes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from stripefs.fuse import worker
from stripefs.store.base import Identity, Kind
from stripefs.vfs import ROOT, InodeTable

NAMES = 100_000


class Thing:
    me: Thing | None = None


@pytest.fixture
def as_before() -> Iterator[None]:
    """Collections are afterwards what they were before."""
    before = list(gc.callbacks)
    yield
    gc.callbacks[:] = before
    gc.unfreeze()


@pytest.fixture
def frozen(as_before: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a worker whose collections are all slow."""
    monkeypatch.setattr(worker, "SLOW", 0.0)
    worker.freeze_survivors()


def at_full_collections(look: Callable[[], int]) -> list[int]:
    """The answers of `look` when full collections begin, from now on until the test ends."""
    found: list[int] = []

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 2:
            found.append(look())

    gc.callbacks.append(note)
    return found


def test_a_full_collection_looks_at_what_is_new(frozen: None) -> None:
    table, looked_at = InodeTable(), at_full_collections(lambda: len(gc.get_objects()))
    for number in range(NAMES):
        table.add_lookup(ROOT, b"file-%d" % number, Kind.FILE, Identity(number, number, str(number)))
        if number % (NAMES // 10) == 0:
            gc.collect()
    assert max(looked_at) < NAMES // 2  # all of them are two objects each


def test_collections_do_not_wait_for_many_new_objects_after_names_were_replayed(as_before: None) -> None:
    replayed = [[number] for number in range(800_000)]
    new: list[list[int]] = []
    gc.collect()
    worker.freeze_survivors()
    full = at_full_collections(lambda: len(new))
    new += ([number] for number in range(len(replayed) // 5))
    assert full


def test_what_is_forgotten_is_freed_and_so_are_young_cycles(frozen: None) -> None:
    old = Thing()
    gc.collect()
    cycle = Thing()
    cycle.me = cycle
    gone = [weakref.ref(old), weakref.ref(cycle)]
    del old, cycle
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_a_cycle_that_lived_through_quick_collections_is_freed(frozen: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SLOW", float("inf"))
    cycle = Thing()
    cycle.me = cycle
    gc.collect()
    gone = weakref.ref(cycle)
    del cycle
    gc.collect()
    assert gone() is None
