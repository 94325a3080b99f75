"""The check of dependency keys at a small scale, and that it sees a key that lacks something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imagefs.deps import keybuilder
from tests.soak.right import Context, Violation, dependency_keys

pytestmark = pytest.mark.root


def test_a_few_mutations(tmp_path: Path) -> None:
    counters = dependency_keys.check(Context(3, 0.02, tmp_path, print))
    assert counters["mutations"] == 6
    assert counters["hits"] + counters["misses"] + counters["not_kept"] + counters["failed"] == 6
    assert counters["misses"] > 0


def test_a_key_that_lacks_what_a_project_is_built_to_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(request: Any, gathered: Any, *_more: Any) -> Any:
        return gathered, ()

    monkeypatch.setattr(keybuilder, "_built", blind)
    monkeypatch.setattr(dependency_keys, "_CHOICES", {"module": 3})
    monkeypatch.setattr(dependency_keys, "_FIXED", {**dependency_keys._FIXED, "project": 1})
    with pytest.raises(Violation, match="hits a snapshot of another tree"):
        dependency_keys.check(Context(3, 0.03, tmp_path, print))
