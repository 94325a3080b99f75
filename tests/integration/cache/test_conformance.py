"""With a cache in front a store does what a store does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stripefs.cache import cache_format, cached_store, writeback
from stripefs.cache.cache import Cache
from stripefs.settings import CacheSettings, StoreSettings
from stripefs.store.url import open_store
from tests.contract.listing import ListingConformance
from tests.contract.putting import PutConformance
from tests.contract.reading import StoreConformance
from tests.contract.writing import WriteConformance
from tests.support.populate import LocalPopulate
from tests.support.stores import Place


class TestCachedHosts(WriteConformance, PutConformance, ListingConformance, StoreConformance):
    time_step = 1

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
        root, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("cache")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cached_store, "LEAST", 1)  # files of this suite are small, and as new as can be
            patch.setattr(cache_format, "SETTLED", 0)
            # Else the one block of a file would soon be here, and the suite asks where the store has it.
            patch.setattr(writeback.PartialBlocks, "add", lambda *_: None)
            patch.setattr(cached_store.CachedHandle, "_keep", lambda *_: False)
            url = f"throttled+file://{root}?rate=1GB/s&block-size=50000&replication=2&hosts=5"
            cache = Cache(CacheSettings(directory=str(folder), size=1 << 30))
            store = cached_store.CachedStore(open_store(StoreSettings(url=url)), cache)
            yield Place(store, LocalPopulate(root))
            store.close()
            cache.close()
