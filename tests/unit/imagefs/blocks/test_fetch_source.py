"""Packs of a store: a real image read whole through it, stores that come late, break, and are replaced."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imagefs.blocks import source as source_module
from imagefs.blocks.source import PackSource
from imagefs.errors import BlockUnavailable
from imagefs.format.index import Pack
from imagefs.repository.base import Repository
from imagefs.repository.store import StoreRepository
from stripefs.errors import ConfigError, NotFound, ServiceDown, StoreError
from stripefs.settings import StoreSettings
from stripefs.store.base import Buffer, Handle, Identity
from stripefs.store.local import LocalStore
from tests.support.images.devices import eventually, running
from tests.support.images.stores import build_tree, images_in, write_tree


@pytest.fixture
def image(tmp_path: Path) -> tuple[Path, str, Pack]:
    """A store with one image in it, its tag's digest, and a pack of it."""
    store = tmp_path / "store"
    images = images_in(store)
    digest = build_tree(write_tree(tmp_path / "tree", a=1, b=2), images, "app").digest
    return store, digest, images.index(images.manifest(digest).devices[0].index).packs[0]


class Breaking(LocalStore):
    """Counts what is opened, and fails while `broken` is set."""

    def __init__(self, root: Path) -> None:
        super().__init__(os.fsencode(root))
        self.broken: Exception | None = None
        self.opens = 0
        self.closed_handles = 0
        self.closed = False

    def open(self, path: bytes, expect: Identity | None = None) -> Handle:  # type: ignore[override]
        self.opens += 1
        self._check()
        found = super().open(path, expect)
        read, close = found.read, found.close

        def counted_read(offset: int, length: int, **_: object) -> Buffer:
            self._check()
            return read(offset, length)

        def counted_close() -> None:
            self.closed_handles += 1
            close()

        found.read, found.close = counted_read, counted_close  # type: ignore[method-assign]
        return found

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken

    def close(self) -> None:
        self.closed = True
        super().close()


@pytest.fixture
def stores(image: tuple[Path, str, Pack]) -> Iterator[list[Breaking]]:
    made: list[Breaking] = []
    yield made
    assert all(store.closed for store in made)


@pytest.fixture
def source(image: tuple[Path, str, Pack], stores: list[Breaking]) -> Iterator[PackSource]:
    def connect(_: StoreSettings) -> Repository:
        stores.append(Breaking(image[0]))
        return StoreRepository(stores[-1])

    source = PackSource(StoreSettings(url=str(image[0])), connect=connect)
    yield source
    source.close()


async def test_a_damaged_pack_is_looked_for_anew_and_a_whole_image_needs_no_store(
    tmp_path: Path, image: tuple[Path, str, Pack], source: PackSource
) -> None:
    """A good copy that takes its place is read at the next try, though the damaged one was open."""
    entry = source.images().manifest(image[1]).devices[0]
    index = source.images().index(entry.index)
    path = image[0] / "packs" / image[2].digest.hex()[:2] / image[2].digest.hex()
    good = path.read_bytes()
    path.write_bytes(bytes(len(good)))
    async with running(tmp_path / "blocks") as blocks:
        device = await blocks.open(entry.index, index, source)
        with pytest.raises(BlockUnavailable):
            await device.read(0, 1)
        (tmp_path / "good").write_bytes(good)
        (tmp_path / "good").replace(path)
        whole = bytes(await device.read(0, device.size))
        await eventually(lambda: device.complete)
        assert device.path.read_bytes() == whole
    away = PackSource(StoreSettings(url=str(tmp_path / "nowhere")))
    async with running(tmp_path / "blocks", io_timeout=0) as blocks:
        device = await blocks.open(entry.index, index, away)
        assert device.complete
        assert bytes(await device.read(0, device.size)) == whole
    with pytest.raises(NotFound):
        away.images()
    away.close()


def test_nothing_is_asked_before_the_first_read(image: tuple[Path, str, Pack], stores: list[Breaking]) -> None:
    source = PackSource(StoreSettings(url="hdfs://user:secret@namenode/x"))
    assert "secret" not in source.url
    source.close()
    with pytest.raises(StoreError, match="not used any more"):
        source.read(image[2], 0, 1)
    with pytest.raises(ConfigError):
        PackSource(StoreSettings(url="nonsense")).read(image[2], 0, 1)


def test_packs_stay_open_and_the_longest_unused_are_closed(
    image: tuple[Path, str, Pack], source: PackSource, stores: list[Breaking], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "PACKS", 2)
    packs = [Pack(bytes([number]) * 32, 10) for number in range(3)]
    for number, pack in enumerate(packs):
        name = pack.digest.hex()
        (image[0] / "packs" / name[:2]).mkdir(exist_ok=True)
        (image[0] / "packs" / name[:2] / name).write_bytes(bytes([number]) * 10)
    for pack in (*packs, packs[2], packs[1]):
        assert source.read(pack, 2, 3) == pack.digest[:3]
    assert (stores[0].opens, stores[0].closed_handles) == (3, 1)
    source.read(packs[0], 0, 1)
    assert (stores[0].opens, stores[0].closed_handles) == (4, 2)


def test_a_store_that_keeps_failing_is_replaced(
    image: tuple[Path, str, Pack], source: PackSource, stores: list[Breaking], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "PAUSE", 0.0)
    pack = image[2]
    first = bytes(source.read(pack, 0, 100))
    stores[0].broken = ServiceDown("away")
    with pytest.raises(ServiceDown):
        source.read(pack, 0, 100)
    stores[0].broken = None
    assert source.read(pack, 0, 100) == first  # the pack was opened anew
    assert (len(stores), stores[0].closed_handles) == (1, 1)
    images = source.images()
    stores[0].broken = StoreError("broken for good")
    for _ in range(3):
        with pytest.raises(StoreError, match="for good"):
            source.read(pack, 0, 100)
    assert source.read(pack, 0, 100) == first
    assert len(stores) == 2
    stores[0].broken = None
    assert images.resolve("app") == image[1]  # users of the one before may go on for a while


def test_all_wait_for_one_connection(image: tuple[Path, str, Pack]) -> None:
    going = threading.Event()
    made: list[Breaking] = []

    def connect(_: StoreSettings) -> Repository:
        assert going.wait(10)
        made.append(Breaking(image[0]))
        if len(made) == 1:
            raise ServiceDown("not yet")
        return StoreRepository(made[-1])

    source = PackSource(StoreSettings(url="x"), connect=connect)
    with ThreadPoolExecutor(8) as pool:
        reads = [pool.submit(source.read, image[2], 0, 10) for _ in range(8)]
        going.set()
    assert {type(one.exception()) for one in reads} <= {ServiceDown, type(None)}
    assert any(one.exception() for one in reads)
    assert len(made) <= 3
    assert len(source.read(image[2], 0, 10)) == 10
    source.close()
    for store in made:
        store.close()
