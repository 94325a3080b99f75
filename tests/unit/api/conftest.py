"""A local directory to read and write, and an engine that ends with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.api import engine


@pytest.fixture(autouse=True)
def _engine_ends() -> Iterator[None]:
    yield
    engine.stop()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "source"
    place.mkdir()
    return place
