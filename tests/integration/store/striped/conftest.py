"""A store in a local directory, and the view of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.store.local import LocalStore
from stripefs.store.striped import StripedStore


@pytest.fixture
def inner(tmp_path: Path) -> LocalStore:
    return LocalStore(os.fsencode(tmp_path))


@pytest.fixture
def store(inner: LocalStore) -> Iterator[StripedStore]:
    store = StripedStore(inner)
    yield store
    store.close()


@pytest.fixture
def short_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that some thirty parts are too many."""
    monkeypatch.setattr("stripefs.format.manifest.MANIFEST_MAX", 4096)
