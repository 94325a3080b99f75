"""A local directory to read and write."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "source"
    place.mkdir()
    return place
