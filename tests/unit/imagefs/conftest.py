"""Common fixtures of the tests of images; a test with other needs overrides them."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefs.blocks import store
from imagefs.repository.images import Images
from tests.support.images.starts import make_tree
from tests.support.images.stores import images_in


@pytest.fixture(autouse=True)
def soon_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices are checked as a whole as soon as nobody reads them."""
    monkeypatch.setattr(store, "QUIET", 0.01)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree like an installation of Python. It is never changed."""
    return make_tree(tmp_path_factory.mktemp("tree") / "source")


@pytest.fixture
def images(tmp_path: Path) -> Images:
    """Those of a new store in the folder `store`."""
    return images_in(tmp_path / "store")
