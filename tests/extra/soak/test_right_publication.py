"""Writers that are held up while others publish, a small share of the full count; and the check sees a lost file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stripefs.write import file_lock
from tests.hdfs_instance import HdfsInstance
from tests.soak.right import publication
from tests.soak.right.context import Context, Violation


def _no_cluster() -> HdfsInstance:
    raise AssertionError("the model needs no cluster")


def test_no_closed_file_is_lost(tmp_path: Path) -> None:
    counters: Counter[str] = Counter()
    publication.model(Context(7, 0.03, tmp_path, print, _no_cluster), counters)
    assert counters["publications"] >= 57
    assert counters["closed"] > 0
    assert counters["pauses"] > 0


def test_a_writer_that_is_not_fenced_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is moved away from a writer that wakes up between comparing its lock and renaming."""
    monkeypatch.setattr(file_lock, "_fence", lambda *_: None)
    monkeypatch.setattr(publication, "_KINDS", ("paused", "late"))
    with pytest.raises(Violation, match="had the lock"):
        publication.model(Context(7, 0.1, tmp_path, print, _no_cluster), Counter())
