"""Directories of stores with many entries."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stripefs.settings import StoreSettings
from stripefs.store.base import Store
from stripefs.store.url import open_store
from tests.integration.store.conftest import server
from tests.integration.store.test_s3 import store
from tests.support.stores import listing
from tests.tools.s3_server import BUCKET, Server

__all__ = ["server", "store"]


@pytest.mark.slow
def test_more_entries_than_a_page(server: Server, store: Store, request: pytest.FixtureRequest) -> None:
    for number in range(1100):
        server.client.put_object(Bucket=BUCKET, Key=f"{request.node.name}/many/{number:04}", Body=b"")
    assert [status.name for status in listing(store, b"/many")] == [b"%04d" % number for number in range(1100)]


@pytest.mark.slow
def test_a_directory_of_100_000_entries(tmp_path: Path) -> None:
    store = open_store(StoreSettings(url=tmp_path.as_uri()))
    for number in range(100_000):
        os.mknod(tmp_path / f"{number:06}")
    assert [status.name for status in listing(store, b"/")] == [b"%06d" % number for number in range(100_000)]
    store.close()
