"""Assembled stores: their layers, the end of a connection that is late or refused, and where a file's source begins."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import trio

from stripefs import assembly
from stripefs.assembly import AssembledStore, connect, find_source, open_cache, open_source
from stripefs.cache.cached_store import CachedStore
from stripefs.errors import ConfigError, ServiceDown, Unsupported
from stripefs.settings import CacheSettings, MountSettings, Settings, StoreSettings, WriteSettings
from stripefs.store.base import Store
from stripefs.store.local import LocalStore
from stripefs.store.striped import pool_of
from stripefs.write_session import WriteSession
from tests.support.python_api import python
from tests.support.stores import content
from tests.support.striped_files import write_striped


class Closing(LocalStore):
    """Tells when it is closed."""

    def __init__(self, root: Path) -> None:
        super().__init__(os.fsencode(root))
        self.closed = threading.Event()

    def close(self) -> None:
        super().close()
        self.closed.set()


def at(path: Path, *trusted: bytes) -> Settings:
    return Settings(StoreSettings(url=str(path)), write=WriteSettings(trust_pool=tuple(map(os.fsdecode, trusted))))


def test_each_layer_is_closed_and_the_cache_is_its_owners(tmp_path: Path) -> None:
    settings = at(tmp_path)._replace(cache=CacheSettings(directory=str(tmp_path / "cache")))
    cache = open_cache(settings)
    assert cache is not None
    several = [AssembledStore(Closing(tmp_path), settings, each) for each in (cache, cache, None)]
    write_striped(several[0].base, b"/file", content(2 << 20))
    for one in several:
        assert one.files.get(b"/file") == one.view.get(b"/file") == content(2 << 20)
        assert isinstance(one.files, CachedStore) == (one.cache is not None)
        one.close()
        assert isinstance(one.base, Closing)
        assert one.base.closed.is_set()
    assert several[2].cache_status() == {}
    assert several[0].cache_status()["cache"]["missed_bytes"] > 0  # it still answers
    cache.close()


def test_a_cache_is_not_kept_on_the_mount_that_it_serves(tmp_path: Path) -> None:
    mounted = Settings(
        mount=MountSettings(mountpoint=str(tmp_path)), cache=CacheSettings(directory=f"{tmp_path}/cache")
    )
    with pytest.raises(ConfigError):
        open_cache(mounted)


@pytest.mark.parametrize("kept", [False, True])
async def test_written_bytes_are_cached_where_settings_say_so(tmp_path: Path, kept: bool) -> None:
    (tmp_path / "source").mkdir()
    settings = at(tmp_path / "source")._replace(cache=CacheSettings(directory=str(tmp_path / "cache"), writes=kept))
    cache = open_cache(settings)
    assert cache is not None
    source = open_source(settings, cache)
    observer = WriteSession(source, settings).uploads._shared.observers(b"/file")
    assert (observer is not None) == kept
    source.close()
    cache.close()


def test_one_process_that_fetches_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools outside of a source are reached as it is, but without a process for each."""
    (tmp_path / "run").mkdir()
    above = LocalStore(os.fsencode(tmp_path))
    write_striped(above, b"/run/file", b"12345")
    settings = at(tmp_path / "run", pool_of(str(tmp_path)))
    source = open_source(settings._replace(store=settings.store._replace(fetch_process=True, host_timeout=7.0)))
    seen: list[StoreSettings] = []

    def opened(wanted: StoreSettings) -> Store:
        seen.append(wanted)
        return above

    monkeypatch.setattr(assembly, "open_store", opened)
    assert source.files.get(b"/file") == b"12345"
    assert seen == [StoreSettings(url=str(tmp_path), host_timeout=7.0)]
    source.close()


async def test_a_store_that_connects_too_late_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late, store = threading.Event(), Closing(tmp_path)

    def slow(_settings: StoreSettings) -> Store:
        late.wait()
        return store

    monkeypatch.setattr(assembly, "open_store", slow)
    with pytest.raises(ServiceDown, match=r"^hdfs://nn/ did not answer within 0\.5 s \(see whether its host"):
        await connect(StoreSettings(url="hdfs://nn/"), 0.5)
    assert not store.closed.is_set()
    late.set()
    assert await trio.to_thread.run_sync(store.closed.wait, 20)


async def test_a_store_that_is_not_wanted_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Closing(tmp_path)
    monkeypatch.setattr(assembly, "open_store", lambda _settings: store)

    def refuse(found: Store) -> None:
        assert found is store
        raise Unsupported("not this one")

    with pytest.raises(Unsupported, match="not this one"):
        await connect(StoreSettings(), 20, refuse)
    assert store.closed.is_set()


@pytest.mark.parametrize(
    ("url", "exists", "root", "path"),
    [
        ("a/b/file", False, "a", b"/b/file"),
        ("a/b/missing", False, "a", b"/b/missing"),
        ("a/b/file", True, "a", b"/b/file"),
        ("a/b", True, "a", b"/b/"),
        ("a", True, "a", b"/"),
        ("other/file", False, "other", b"/file"),
        ("other", True, "other", b"/"),
    ],
)
def test_the_source_is_the_nearest_directory_with_a_pool(
    tmp_path: Path, url: str, exists: bool, root: str, path: bytes
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    write_striped(LocalStore(os.fsencode(tmp_path / "a")), b"/b/file", b"12345")
    (tmp_path / "other/file").write_bytes(b"plain")
    found, inside = find_source(at(tmp_path / url, b"/trusted"), b"", exists=exists)
    assert found.store.url.rstrip("/") == str(tmp_path / root)
    assert inside.rstrip(b"/") == path.rstrip(b"/")
    assert found.write.trust_pool == ("/trusted",)


def test_a_path_in_a_known_source_is_taken_as_it_is(tmp_path: Path) -> None:
    settings = at(tmp_path / "not/looked/at")
    assert find_source(settings, b"/x/y", exists=True) == (settings, b"/x/y")


def test_a_worker_that_only_reads_loads_nothing_that_writes_or_caches(tmp_path: Path) -> None:
    program = f"""
import sys, trio
from stripefs.fuse.store_worker import StoreBackend
from stripefs.settings import MountSettings, Settings, StoreSettings
from stripefs.fuse.worker import Start
settings = Settings(StoreSettings(url={str(tmp_path)!r}))
backend = StoreBackend(Start(settings.to_json(), MountSettings(), True, {{}}, None, None))
trio.run(backend.open)
print(*(name for name in sys.modules if name.startswith("stripefs.")))
backend.close()
"""
    loaded = python(program).stdout.split()
    assert "stripefs.assembly" in loaded
    heavy = ("stripefs.write", "stripefs.cache", "stripefs.testing", "stripefs.gc", "stripefs.vfs.write")
    assert [name for name in loaded if name.startswith(heavy)] == []
