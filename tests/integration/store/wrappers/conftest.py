"""The stores that are wrapped: an empty local one, and one with a file of 1 MiB."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.store.local import LocalStore
from tests.support.stores import content


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalStore]:
    (tmp_path / "data").mkdir()
    store = LocalStore(os.fsencode(tmp_path / "data"))
    yield store
    store.close()


@pytest.fixture
def filled(local: LocalStore) -> LocalStore:
    local.put(b"/file", [content(1 << 20)])
    return local
