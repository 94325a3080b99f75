"""A source directory and a cache folder for each test; nothing of them is left on disk for long."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.cache import cache_format, policy, writeback
from tests.integration.cache.writing import World, world
from tests.support.caches import Cached, cached


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
def one(source: Path, folder: Path) -> Iterator[Cached]:
    """The source with a cache in front, for a process that reads."""
    with cached(source, folder) as made:
        yield made


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written versions count as settled at once, and no disk is avoided for being slow."""
    monkeypatch.setattr(cache_format, "SETTLED", 0)
    monkeypatch.setattr(policy, "SLOWER", 0.0)
    monkeypatch.setattr(writeback, "LONGEST_WAIT", float("inf"))


@pytest.fixture
def here(at_once: None, source: Path, folder: Path) -> Iterator[World]:
    """The same for a process that writes."""
    with world(source, folder) as made:
        yield made
