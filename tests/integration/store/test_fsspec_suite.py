"""fsspec's own suite for file systems: on a local directory by its URL, and in part on a source spread over hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from fsspec.tests import abstract

from stripefs.fsspec import LocalFileSystem, StripefsFileSystem
from tests.support.python_api import spread
from tests.unit.conftest import tmp_path
from tests.unit.stripefs.api.conftest import place

__all__ = ["place", "tmp_path"]


class ByUrl(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self) -> LocalFileSystem:
        return LocalFileSystem(skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self, place: Path) -> str:
        return str(place)


class OnASource(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, place: Path) -> StripefsFileSystem:
        return StripefsFileSystem(root=spread(place), layout="striped", skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self, fs: StripefsFileSystem) -> str:
        fs.mkdir("inside")
        return "inside"


class TestCopyByUrl(abstract.AbstractCopyTests, ByUrl):
    pass


class TestGetByUrl(abstract.AbstractGetTests, ByUrl):
    pass


class TestPutByUrl(abstract.AbstractPutTests, ByUrl):
    pass


class TestOpenByUrl(abstract.AbstractOpenTests, ByUrl):
    pass


class TestPipeByUrl(abstract.AbstractPipeTests, ByUrl):
    pass


class TestGetOnASource(abstract.AbstractGetTests, OnASource):
    pass


class TestOpenOnASource(abstract.AbstractOpenTests, OnASource):
    pass


class TestPipeOnASource(abstract.AbstractPipeTests, OnASource):
    pass
