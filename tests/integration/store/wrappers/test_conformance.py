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

WRAPPED = {
    "throttled": "?rate=1GB/s&block-size=64KiB&replication=2&hosts=5",
    "counting+short+faulty+delayed+throttled": (
        "?throttled.rate=1GB/s&block-size=50000&delay=10us&faulty.rate=0&short.rate=0"
    ),
}


class TestWrapped(WriteConformance, PutConformance, ListingConformance, StoreConformance):
    time_step = 1

    @pytest.fixture(scope="class", params=WRAPPED)
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Place]:
        root = tmp_path_factory.mktemp("wrapped")
        store = open_store(StoreSettings(url=f"{request.param}+file://{root}{WRAPPED[request.param]}"))
        yield Place(store, LocalPopulate(root))
        store.close()
