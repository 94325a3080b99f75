"""Containers of one small image, which leave nothing behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.images import small_image
from tests.support.images.small_image import SmallImage
from tests.tools.containers import Containers, fill


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> SmallImage:
    root = tmp_path_factory.mktemp("source") / "root"
    fill(root)
    return small_image.make(root, tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="session")
def _all(image: SmallImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    with contextlib.closing(Containers(image, tmp_path_factory.mktemp("containers"))) as made:
        yield made


@pytest.fixture
def containers(_all: Containers) -> Iterator[Containers]:
    yield _all
    assert _all.left() == []
