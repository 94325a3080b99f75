"""A small share of the model of writers that are held up while others publish; and it sees files that are lost."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stripefs.errors import NotFound
from stripefs.store.base import Store
from stripefs.write import file_lock
from stripefs.write.file_lock import FileLock
from tests.soak.right import Context, Violation, publication
from tests.support.memory_store import MemoryStore


def play(seed: int, scale: float) -> Counter[str]:
    counters: Counter[str] = Counter()
    publication.model(Context(seed, scale, Path("/nonexistent"), print), counters)
    return counters


def test_no_closed_file_is_lost_and_a_seed_is_one_history() -> None:
    counters = play(7, 0.05)
    assert counters["publications"] >= 95
    wanted = {*publication.KINDS, "closed", "published", "taken_over", "abandoned", "pauses", "collectors"}
    assert all(counters[kind] for kind in wanted)
    assert play(7, 0.05) == counters
    assert play(8, 0.05)["history"] != counters["history"]


def _fence_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is moved away from a writer that wakes up between comparing its lock and renaming."""
    monkeypatch.setattr(file_lock, "_fence", lambda *_: None)


def _remove_any_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer removes what stands at the path of its lock, whosever it is by then."""

    def remove(lock: FileLock) -> None:
        with contextlib.suppress(NotFound):
            lock._store.remove(lock._path)

    monkeypatch.setattr(FileLock, "_remove", remove)


def _compare_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has no capability `compare`, as HDFS without WebHDFS: docs/architecture.md tells of this case."""
    monkeypatch.setattr(MemoryStore, "capabilities", replace(MemoryStore.capabilities, compare=False))
    for name in ("compare_and_rename", "compare_and_remove"):
        monkeypatch.setattr(publication.Client, name, getattr(Store, name))


@pytest.mark.parametrize(
    ("spoil", "seed", "scale"), [(_fence_nobody, 7, 0.1), (_remove_any_lock, 15, 0.5), (_compare_in_steps, 8, 0.5)]
)
def test_a_lock_that_does_not_fence_is_seen(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[pytest.MonkeyPatch], None], seed: int, scale: float
) -> None:
    spoil(monkeypatch)
    with pytest.raises(Violation, match="had the lock"):
        play(seed, scale)
