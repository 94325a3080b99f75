"""A snapshotter in a directory of its own, with lazy images in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.snapshotter.snapshotter import Snapshotter
from tests.unit.imagefs.snapshotter.fake_images import FakeImages


@pytest.fixture
def images(tmp_path: Path) -> FakeImages:
    return FakeImages(tmp_path)


@pytest.fixture
def core(tmp_path: Path, images: FakeImages) -> Iterator[Snapshotter]:
    made = Snapshotter(tmp_path / "root", images)
    yield made
    made.close()
