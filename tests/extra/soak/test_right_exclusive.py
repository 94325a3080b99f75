"""Names that only one may make, over two mounts of a local directory, a small share of the full counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.right import Context, exclusive

pytestmark = pytest.mark.mount


def test_only_one_makes_a_name(tmp_path: Path) -> None:
    counters = exclusive.check(Context(30, 0.02, tmp_path, print), stores=("local",))
    acquisitions = counters.pop("local_mutex_acquisitions")
    assert acquisitions >= 180
    assert counters == {
        "local_exclusive_creates": 170,
        "local_exclusive_creates_in_python": 10,
        "local_directories": 160,
    }
