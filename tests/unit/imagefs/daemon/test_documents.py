"""Asking stores for documents: clients that cannot be loaded, and stores that hang, hold nothing else up."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from imagefs.blocks.source import PackSource
from imagefs.daemon import documents
from imagefs.daemon.documents import Documents
from imagefs.daemon.metadata_cache import MetadataCache
from imagefs.repository.base import Repository
from imagefs.repository.images import Images
from imagefs.repository.store import StoreRepository
from stripefs.errors import ServiceDown
from stripefs.settings import StoreSettings
from stripefs.store.local import LocalStore
from tests.support.images.stores import images_in


@pytest.mark.parametrize("error", [ImportError("socksio"), ValueError("proxy"), OSError(2, "none"), SystemExit(1)])
async def test_a_client_that_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    loaded = []

    def prepare(scheme: str) -> None:
        loaded.append(scheme)
        raise error

    monkeypatch.setattr(documents, "prepare", prepare)
    cache = MetadataCache(tmp_path)
    cache.remember("s3://bucket/images", "t", "0" * 64)
    await Documents(cache, 1.0).prepare()
    assert sorted(loaded) == ["http", "s3"]


@pytest.mark.parametrize("kept", [b"", b"\xff", b"[]", b"[" * 100_000, b'{"store": 5}', b'{"store": "what://is/this"}'])
async def test_a_store_that_is_remembered_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bytes) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(documents, "prepare", loaded.append)
    (tmp_path / "names").mkdir()
    (tmp_path / "names" / "0").write_bytes(kept)
    await Documents(MetadataCache(tmp_path), 1.0).prepare()
    assert loaded == ["http"]


class Hanging(PackSource):
    """A source whose store does not answer while `gate` is not set. `threads`: how many wait for it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(StoreSettings(url=str(folder)))
        self.gate = threading.Event()
        self.threads = 0

    def images(self) -> Images:
        self.threads += 1
        try:
            assert self.gate.wait(60)
            return super().images()
        finally:
            self.threads -= 1


async def test_a_store_that_hangs_blocks_no_resolve_and_keeps_few_threads(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    images = images_in(tmp_path / "store")
    cache = MetadataCache(tmp_path / "cache")
    source = Hanging(tmp_path / "store")
    cache.remember(source.url, "app", "a" * 64)
    found = Documents(cache, 90.0)
    mock_clock.rate = 200
    try:
        for _ in range(12):
            assert await found.resolve(source, "app") == ("a" * 64, True)
        assert source.threads == 4
    finally:
        source.gate.set()
    images.tag("app", "b" * 64)
    while source.threads:
        await trio.to_thread.run_sync(lambda: None)
    assert await found.resolve(source, "app") == ("b" * 64, False)
    source.close()


def test_a_connection_that_hangs_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    gate, made = threading.Event(), []

    def connect(settings: StoreSettings) -> Repository:
        made.append(settings)
        if len(made) == 1:
            assert gate.wait(60)
        return StoreRepository(LocalStore(settings.url.encode()))

    monkeypatch.setattr("imagefs.blocks.source.CONNECT_WITHIN", 0.05)
    source = PackSource(StoreSettings(url=str(tmp_path / "store")), connect=connect)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(source.images)
        try:
            while not made:
                time.sleep(0.01)
            with pytest.raises(ServiceDown, match="not connected within"):
                source.images()
            assert source.images().images() == {}
        finally:
            gate.set()
    assert len(made) == 2
    assert "took too long" in str(first.exception())
    assert source.images().images() == {}
    source.close()


async def test_notes_of_starts_are_read_and_hints_are_stored_with_a_use(tmp_path: Path) -> None:
    name, snapshot = "ab" * 32, "cd" * 32
    asked = Documents(MetadataCache(tmp_path / "cache"), 5.0)
    with contextlib.closing(PackSource(StoreSettings(url=str(tmp_path)))) as store:
        assert await asked.note(store, "hints", name) == b""
        await asked.note_use(store, snapshot)
        await asked.note_use(store, snapshot, (name, "said"))
        assert await asked.note(store, "hints", name) == b"said"
        assert await asked.note(store, "locks", name) == b""
    assert (tmp_path / "used" / snapshot).exists()
