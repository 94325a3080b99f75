"""Files that tests in process write are in memory."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(memory_path: Path) -> Path:
    return memory_path


@pytest.fixture
def disk_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For properties that only disks have: bytes that are not in memory."""
    return tmp_path_factory.mktemp("disk")
