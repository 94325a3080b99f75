"""Every wrapper does what a store does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stripefs.settings import StoreSettings
from stripefs.store.url import open_store
from tests.contract.listing import ListingConformance
from tests.contract.putting import PutConformance
from tests.contract.reading import StoreConformance
from tests.contract.writing import WriteConformance
from tests.support.populate import LocalPopulate
from tests.support.stores import Place


def wrapped(tmp_path_factory: pytest.TempPathFactory, prefix: str, query: str) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("wrapped")
    store = open_store(StoreSettings(url=f"{prefix}+file://{root}{query}"))
    yield Place(store, LocalPopulate(root))
    store.close()


class TestThrottled(WriteConformance, PutConformance, ListingConformance, StoreConformance):
    time_step = 1

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
        yield from wrapped(tmp_path_factory, "throttled", "?rate=1GB/s&block-size=64KiB&replication=2&hosts=5")


class TestAllAtOnce(WriteConformance, PutConformance, ListingConformance, StoreConformance):
    time_step = 1

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
        query = "?throttled.rate=1GB/s&block-size=50000&delay=10us&faulty.rate=0&short.rate=0"
        yield from wrapped(tmp_path_factory, "counting+short+faulty+delayed+throttled", query)
