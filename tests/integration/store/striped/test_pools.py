"""Pools outside of what is mounted: reached by the URL of the source, for those that the user trusts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stripefs.assembly import open_source
from stripefs.errors import ConfigError, StoreError
from stripefs.format.manifest import Manifest
from stripefs.settings import Settings, StoreSettings, WriteSettings
from stripefs.store.base import Store
from stripefs.store.local import LocalStore
from stripefs.store.striped import StripedStore, pool_of
from stripefs.store.url import elsewhere, open_store
from tests.integration.store.striped.material import DATA, OTHER, UNIT, whole
from tests.support.stores import content
from tests.support.striped_files import write_striped


@pytest.mark.parametrize(
    ("url", "place", "there"),
    [
        ("/data/run%1", b"/data", "/data"),
        ("/data/run", b"/a b%20\xff", "/a b%20\udcff"),
        ("file:///data/run", b"/a b%20\xff", "file:///a%20b%2520%FF"),
        ("hdfs://namenode:8020/checkpoints/run1", b"/checkpoints", "hdfs://namenode:8020/checkpoints"),
        ("hdfs://prod/checkpoints", b"/", "hdfs://prod/"),
        ("s3://bucket/prefix/run?region=eu&scheme=http", b"/bucket/prefix", "s3://bucket/prefix?region=eu&scheme=http"),
        ("s3://bucket/prefix", b"/other", "s3://other/"),
        ("gs://bucket/prefix", b"/bucket/a b", "gs://bucket/a%20b"),
        ("faulty+throttled+file:///data/x?rate=1MB/s", b"/data", "faulty+throttled+file:///data?rate=1MB/s"),
    ],
)
def test_urls_of_other_places(url: str, place: bytes, there: str) -> None:
    assert elsewhere(url, place) == there
    assert pool_of(there) == (place.rstrip(b"/") + b"/.stripefs")


@pytest.mark.parametrize(
    ("url", "pool"),
    [
        ("file:///data//a/../b%20c/", b"/data/b c/.stripefs"),
        ("hdfs://namenode", b"/.stripefs"),
        ("memory:nothing", b"/.stripefs"),
    ],
)
def test_where_the_pool_is(url: str, pool: bytes) -> None:
    assert pool_of(url) == pool
    Manifest("0" * 16, 0, UNIT, pool, ())


def trusting(source: str, *pools: bytes) -> StripedStore:
    wanted = WriteSettings(trust_pool=tuple(map(os.fsdecode, pools)))
    return open_source(Settings(StoreSettings(url=source), write=wanted)).view


def reads(above: Store, source: str) -> None:
    """A file in a directory of `above`, which `source` names, is read with the pool of `above`, and not without."""
    pool = pool_of(above.url)
    write_striped(above, b"/run/f", DATA, version="0" * 16)
    many = content(40 * UNIT)
    manifest = write_striped(above, b"/run/many", many, [(UNIT, 1)] * 40, version="1" * 16)
    assert manifest.parts_list() is not None  # so it lies in that pool too
    inside = trusting(source, pool)
    assert whole(inside, b"/f") == DATA
    assert whole(inside, b"/many") == many
    write_striped(inside, b"/own", OTHER, version="2" * 16)
    assert whole(inside, b"/own") == OTHER
    inside.close()
    for pools in ((), (pool_of(source),), (b"/somewhere/else/.stripefs",)):
        other = trusting(source, *pools)
        with pytest.raises(StoreError, match=r"is missing.*--trust-pool"):
            other.get(b"/f")
        assert whole(other, b"/own") == OTHER
        other.close()


@pytest.mark.usefixtures("short_manifests")
@pytest.mark.parametrize("url", ["{0}", "file://{0}", "throttled+file://{0}?hosts=3&rate=4GB/s"])
def test_local_directories(tmp_path: Path, url: str) -> None:
    (tmp_path / "a ä" / "run").mkdir(parents=True)
    root = str(tmp_path / "a ä") if url == "{0}" else f"{tmp_path}/a%20%C3%A4"
    above = open_store(StoreSettings(url=url.format(root)))
    reads(above, url.format(f"{root}/run"))
    above.close()


def test_pools_above_and_below_the_mount(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    above, below = LocalStore(os.fsencode(tmp_path)), LocalStore(os.fsencode(tmp_path / "below"))
    write_striped(above, b"/below/f", DATA, version="0" * 16)
    write_striped(below, b"/g", OTHER, version="1" * 16)
    pool = {above: os.fsencode(tmp_path) + b"/.stripefs", below: os.fsencode(tmp_path) + b"/below/.stripefs"}

    untrusting = StripedStore(above), StripedStore(below)
    for store, path in zip(untrusting, (b"/below/g", b"/f"), strict=True):
        with pytest.raises(StoreError, match=r"is missing.*--trust-pool"):
            store.get(path)
    opened = []

    def open_pool(path: bytes) -> Store:
        opened.append(path)
        return LocalStore(path)

    with pytest.raises(StoreError, match="cannot be reached"):
        StripedStore(below, [pool[above]]).get(b"/f")
    trusting = StripedStore(above, [os.fsdecode(pool[below])]), StripedStore(below, [pool[above]], open_pool)
    assert whole(trusting[0], b"/below/g") == OTHER
    assert whole(trusting[1], b"/f") == DATA
    assert whole(trusting[1], b"/f") == DATA
    assert opened == [os.fsencode(tmp_path)]
    for store in trusting:
        store.close()


def test_a_pool_that_cannot_be_reached(tmp_path: Path) -> None:
    """The line says which, whatever kept it from being opened."""
    (tmp_path / "run").mkdir()
    above = open_store(StoreSettings(url=str(tmp_path)))
    write_striped(above, b"/run/f", DATA)
    above.close()
    pool = os.fsencode(tmp_path) + b"/.stripefs"

    def gone(_place: bytes) -> Store:
        return open_store(StoreSettings(url=str(tmp_path / "gone")))

    def nonsense(_place: bytes) -> Store:
        raise ConfigError("that means nothing", hint="say something else")

    for open_pool in (gone, nonsense):
        store = StripedStore(open_store(StoreSettings(url=str(tmp_path / "run"))), [pool], open_pool)
        with pytest.raises(StoreError, match=rf"the pool {tmp_path}/.stripefs cannot be reached") as caught:
            store.get(b"/f")
        assert type(caught.value) is StoreError
        store.close()
