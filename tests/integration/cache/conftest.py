"""A source directory and a cache folder for each test; nothing of them is left on disk for long."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.cache import policy, segment_format, writeback


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "source"
    path.mkdir()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "cache"
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written versions count as settled at once, and no disk is avoided for being slow."""
    monkeypatch.setattr(segment_format, "SETTLED", 0)
    monkeypatch.setattr(policy, "SLOWER", 0.0)
    monkeypatch.setattr(writeback, "LONGEST_WAIT", float("inf"))
