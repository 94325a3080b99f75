"""Documents of images: stores that hang hold nothing up, read errors fetch anew, and the cache stays bounded."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import trio
from trio.testing import MockClock

from imagefs.blocks.source import PackSource
from imagefs.daemon import documents, metadata_cache
from imagefs.daemon.devices import DeviceTree, OpenDevices
from imagefs.daemon.documents import Documents
from imagefs.daemon.metadata_cache import RECENT, MetadataCache
from imagefs.daemon.state import DeviceUse, StateJournal
from imagefs.errors import DocumentUnreadable
from imagefs.format.documents import DeviceEntry, Manifest, Metadata
from imagefs.format.index import BLOCK, BlockLocation, Pack, write
from imagefs.repository.base import Repository
from imagefs.repository.images import Images, object_path
from imagefs.repository.store import StoreRepository
from stripefs.errors import ServiceDown, StoreError
from stripefs.fuse.protocol import ROOT
from stripefs.fuse.state_memory import MemoryJournal
from stripefs.settings import StoreSettings
from stripefs.store.local import LocalStore
from tests.support.caches import overwrite, refusing
from tests.support.images.devices import make, noise, running
from tests.support.images.stores import images_in
from tests.unit.imagefs.daemon.fake_host import attachment


@pytest.mark.parametrize("error", [ImportError("socksio"), ValueError("proxy"), OSError(2, "none"), SystemExit(1)])
async def test_clients_that_cannot_be_loaded_and_stores_that_are_remembered_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    prepare = Mock(side_effect=error)
    monkeypatch.setattr(documents, "prepare", prepare)
    cache = MetadataCache(tmp_path)
    cache.remember("s3://bucket/images", "t", "0" * 64)
    for number, data in enumerate((b"", b"\xff", b"[]")):
        (tmp_path / "names" / str(number)).write_bytes(data)
    await Documents(cache, 1.0).prepare()
    assert sorted(one.args for one in prepare.call_args_list) == [("http",), ("s3",)]
    prepare.reset_mock()
    for data in (b"[" * 100_000, b'{"store": 5}', b'{"store": "what://is/this"}'):
        (tmp_path / "names/0").write_bytes(data)
        await Documents(cache, 1.0).prepare()
    assert [one.args for one in prepare.call_args_list] == [("http",)] * 3


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


async def test_a_client_of_another_version_is_an_error_of_the_store_that_tells_what_to_do(tmp_path: Path) -> None:
    """An upgrade in place renamed a module that this worker has not loaded yet."""

    class Upgraded(PackSource):
        def images(self) -> Images:
            import stripefs.store.earlier_name  # type: ignore[import-not-found]  # noqa: F401

            return super().images()

    cache = MetadataCache(tmp_path / "cache")
    source, found = Upgraded(StoreSettings(url=str(tmp_path / "store"))), Documents(cache, 90.0)
    with pytest.raises(StoreError, match="the program is not whole") as caught:
        await found.resolve(source, "app")
    assert f"kill -HUP {os.getppid()}" in caught.value.hint
    cache.remember(source.url, "app", "a" * 64)
    assert await found.resolve(source, "app") == ("a" * 64, True)


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


# -- on local disk -----------------------------------------------------------------------------------------------------


def index_bytes(blocks: int) -> bytes:
    out = io.BytesIO()
    packs = [Pack(bytes(32), blocks * 10)]
    write([BlockLocation(bytes([n]) * 32, 0, n * 10, 10, BLOCK) for n in range(blocks)], packs, blocks * BLOCK, out)
    return out.getvalue()


Cached = tuple[MetadataCache, str, Callable[[], Images]]


@pytest.fixture
def cached(tmp_path: Path) -> Cached:
    """A cache, the digest of an index in a store, and that store."""
    data = index_bytes(200)
    images = images_in(tmp_path / "store")
    return MetadataCache(tmp_path / "cache"), images.put_object("indexes", data), lambda: images


@pytest.mark.parametrize("fault", ["cut", "EIO"])
def test_an_index_that_cannot_be_read_is_an_error_and_fetched_anew(
    cached: Cached, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapped one would end the process: SIGBUS."""
    cache, digest, images = cached
    index = cache.index(digest, images)
    if fault == "cut":
        os.truncate(cache.folder / "indexes" / digest, 100)
    else:
        monkeypatch.setattr(os, "pread", refusing(errno.EIO))
    for call in (lambda: index.place(150), lambda: index.length(150), lambda: list(index.digests())):
        with pytest.raises(DocumentUnreadable):
            call()
    assert cache.cached_index(digest) is None
    monkeypatch.undo()
    assert cache.index(digest, images).place(150).digest == bytes([150]) * 32


async def test_a_device_whose_index_is_lost_is_read_on(tmp_path: Path, journal: MemoryJournal) -> None:
    made = make(noise(6))
    images = images_in(tmp_path / "store")
    for digest, data in made.packs.items():
        images.create(object_path("packs", digest.hex()), data)
    out = io.BytesIO()
    write([made.index.place(n) for n in range(6)], made.index.packs, made.index.device_bytes, out)
    assert images.put_object("indexes", out.getvalue()) == made.digest
    store = StoreSettings(url=str(tmp_path / "store"))
    cache = MetadataCache(tmp_path / "cache")
    kept = StateJournal(journal)
    use = DeviceUse("cold", made.index.device_bytes, made.digest)
    kept.record({"attach": attachment("1", store=store._asdict(), devices=(use,)).to_json()})
    async with running(tmp_path / "blocks") as blocks:
        opened = OpenDevices(kept.state, blocks, Documents(cache, 5.0))
        tree = DeviceTree(kept, opened, lambda *_: None, lambda _: None, lambda *_: None, lambda: (1, 0))
        source = opened.source(store)
        await opened.open(made.digest, source)
        handle = await tree.open((await tree.lookup(ROOT, made.digest.encode())).id)
        assert bytes(await tree.read(handle, 0, 10)) == made.content[:10]
        os.truncate(cache.folder / "indexes" / made.digest, 40)
        assert bytes(await tree.read(handle, 0, 6 * BLOCK)) == made.content
        assert (cache.folder / "indexes" / made.digest).stat().st_size > 40
        source.close()
    assert isinstance(source, PackSource)


@pytest.mark.parametrize("seed", range(4))
def test_the_longest_unused_documents_go_and_those_in_use_stay(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    cache = MetadataCache(tmp_path)
    now = metadata_cache.time.time()
    ages: dict[str, float] = {}
    for number in range(40):
        name = hashlib.sha256(bytes([number])).hexdigest()
        path = tmp_path / chance.choice(("manifests", "indexes", "metadata", "names")) / name
        path.write_bytes(bytes(chance.randrange(1, 30_000)))
        ages[name] = chance.uniform(0, 3 * RECENT)
        os.utime(path, (now - ages[name], now - ages[name]))
    in_use = set(chance.sample(sorted(ages), 5))
    sizes = {path.name: path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file()}
    assert cache.evict(sum(sizes.values()), ()) == sum(sizes.values())
    most = sum(sizes.values()) // 2
    left = cache.evict(most, in_use)
    stayed = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == sum(sizes[name] for name in stayed)
    evictable = {name for name, age in ages.items() if age > RECENT + 5 and name not in in_use}
    assert left <= most or not evictable & stayed
    gone = set(ages) - stayed
    assert gone <= {name for name, age in ages.items() if age >= RECENT} - in_use
    assert not gone or max(ages[name] for name in evictable & stayed or {min(gone, key=ages.__getitem__)}) <= min(
        ages[name] for name in gone
    )


def test_what_nobody_used_for_long_goes_and_what_is_in_use_does_not(tmp_path: Path) -> None:
    cache = MetadataCache(tmp_path)
    now = metadata_cache.time.time()
    (tmp_path / "blocks").mkdir()

    def put(place: str, age: float) -> Path:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (now - age, now - age))
        return path

    old = {put(f"{kind}/old", 100) for kind in ("manifests", "indexes", "metadata", "names", "traces/plans/i")}
    kept = {put("manifests/used", 100), put("indexes/young", 10), put("traces/plans/i/young", 10)}
    for device, table, index in (("a", 100, 100), ("b", 10, 100), ("c", 100, 10), ("d", 100, 100), ("used", 100, 100)):
        put(f"blocks/{device}.table", table)
        put(f"indexes/{device}", index)
    (tmp_path / "indexes/d").unlink()
    assert cache.unused_devices(now - 50, {"used"}) == ["a", "d"]
    old |= {tmp_path / "indexes/a", tmp_path / "indexes/b"}
    assert cache.expire(now - 50, {"used"}) == len(old)
    assert [path for path in (*old, *kept) if path.exists() == (path in old)] == []
    assert (tmp_path / "manifests/used").stat().st_mtime > now - 50


def test_parts_of_an_image_are_told_and_removed(tmp_path: Path) -> None:
    cache = MetadataCache(tmp_path)
    (tmp_path / "blocks").mkdir()
    index, metadata = "1" * 64, "2" * 64
    manifest = Manifest("", {}, Metadata(metadata, 10, "4" * 64), (DeviceEntry("t", 3 * BLOCK, index),))
    digest = hashlib.sha256(manifest.to_json()).hexdigest()
    assert cache.files(digest) == {}, "its manifest is not here"
    for place, size in (
        (f"manifests/{digest}", 0), (f"indexes/{index}", 5000), (f"metadata/{metadata}.erofs", 9000),
        (f"blocks/{index}.data", 70_000), (f"blocks/{index}.table", 100), (f"blocks/{'3' * 64}.data", 10_000),
    ):  # fmt: skip
        (tmp_path / place).write_bytes(bytes(size) if size else manifest.to_json())
    taken = {path: path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file()}
    found = cache.files(digest)
    assert {part: inodes for part, (_, inodes) in found.items()} == {digest: 1, index: 3, metadata: 1}
    assert {part: size for part, (size, _) in found.items()} == {
        part: sum(size for path, size in taken.items() if path.stem == part) for part in found
    }
    for part in found:
        cache.remove(part)
        cache.remove(part)
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {f"{index}.data", f"{index}.table", f"{'3' * 64}.data"}, "blocks are removed by who has them open"


def test_metadata_is_read_again_only_when_its_file_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = images_in(tmp_path / "store")
    content = random.Random(1).randbytes(100_000)
    entry = images.put_metadata(content)
    cache = MetadataCache(tmp_path / "cache")
    read = Mock(side_effect=hashlib.file_digest)
    monkeypatch.setattr(hashlib, "file_digest", read)
    path = cache.metadata(entry, lambda: images)
    for _ in range(3):
        assert cache.metadata(entry, lambda: images) == path
    assert read.call_count == 0, "what was just written is not read, and later it is the same"
    assert MetadataCache(tmp_path / "cache").metadata(entry, lambda: images) == path
    assert read.call_count == 1, "another process reads what it did not write"
    before = path.stat()
    overwrite(path, 0, bytes(10))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    cache.metadata(entry, lambda: images)
    assert read.call_count == 2
    assert path.read_bytes() == content, "fetched anew, although size and time are the same"
    cache.metadata(entry, lambda: images)
    assert read.call_count == 2


def test_documents_go_to_memory_when_the_disk_is_full(
    cached: Cached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (_, digest, images) = tmp_path / "full", cached
    cache = MetadataCache(folder, tmp_path / "spill")
    replace = os.replace

    def full(source: str, target: str) -> None:
        if str(folder) in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert cache.index(digest, images).place(7).digest == bytes([7]) * 32
        with pytest.raises(OSError, match="No space"):
            MetadataCache(folder).index(digest, images)
    spilled = tmp_path / "spill/indexes" / digest
    assert list(tmp_path.glob("full/*/*")) == []
    assert cache.cached_index(digest) is not None, "also without the store"
    cache.evict(0, ())
    assert spilled.exists(), "it was used just now"
    old = metadata_cache.time.time() - 2 * RECENT
    os.utime(spilled, (old, old))
    cache.evict(0, {digest})
    assert spilled.exists(), "it is in use"
    cache.evict(0, ())
    assert not spilled.exists()
    cache.index(digest, images)
    assert (folder / "indexes" / digest).exists(), "there is room again"
