"""Files that are read with `cache=`: from local disk the next time, whoever read them first."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

import stripefs
from stripefs.api import engine
from stripefs.cache import policy
from stripefs.cache.cache import Cache
from stripefs.settings import CacheSettings
from tests.support.caches import MIB, write
from tests.support.cgroup import MemoryCgroup
from tests.support.stores import content
from tests.support.waiting import eventually
from tests.unit.stripefs.api.conftest import place

__all__ = ["place"]


@pytest.fixture(autouse=True)
def _any_disk_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "SLOWER", 0.0)  # the source is in memory


def test_what_was_saved_is_loaded_from_local_disk(place: Path, tmp_path: Path) -> None:
    data = content(12 * MIB + 345)
    options = {"cache": str(tmp_path / "cache"), "cache_size": "1GiB"}
    source = stripefs.connect(str(place), layout="striped", cache_writes=True, **options)
    with source.open("model", "wb") as file:
        file.write(data)
    eventually(lambda: not source.status()["cache"]["waiting_bytes"], "all of it on disk")
    assert source.read_bytes("model") == data
    assert source.status()["cache"]["missed_bytes"] == 0
    engine.stop()
    again = stripefs.connect(str(place), **options)
    assert again.read_bytes("model") == data
    cache = again.status()["cache"]
    assert (cache["missed_bytes"], cache["hit_bytes"]) == (0, len(data))


def test_a_source_with_a_cache_and_one_without_are_two(place: Path, tmp_path: Path) -> None:
    data = write(place / "model", 2 * MIB)
    assert stripefs.open(str(place / "model")).read() == data
    assert stripefs.open(str(place / "model"), cache=str(tmp_path / "cache")).read() == data
    assert "cache" not in stripefs.connect(str(place)).status()


def test_a_cache_is_named_to_fsspec(place: Path, tmp_path: Path) -> None:
    data = write(place / "model", 4 * MIB)
    options = {"cache": str(tmp_path / "cache"), "cache_size": "1GiB", "memory": "256MiB"}
    assert fsspec.filesystem("stripefs", root=str(place), **options).cat("model") == data
    cache = CacheSettings(directory=str(tmp_path / "cache"), size=1 << 30)
    with contextlib.closing(Cache(cache)) as kept:
        eventually(lambda: kept.quota.recount() >= len(data), "the file in the cache")


BOUNDED = """
import hashlib, sys, stripefs
for turn in range(2):
    digest = hashlib.sha256()
    with stripefs.open(sys.argv[1], cache=sys.argv[2], cache_size="64GiB", memory="64MiB") as file:
        while part := file.read(16 << 20):
            digest.update(part)
    print(digest.hexdigest())
"""


@pytest.mark.root
def test_memory_stays_within_a_limit_far_below_the_file(place: Path, tmp_path: Path) -> None:
    data = write(place / "model", 100 * MIB + 4096, times=7)
    with contextlib.closing(MemoryCgroup((64 + 256) * MIB)) as limit:
        url = f"throttled+file://{place}/model?rate=100MB/s&hosts=4&block-size=8MiB&placement=even"
        done = subprocess.run(
            [*limit.wrapper, sys.executable, "-c", BOUNDED, url, str(tmp_path / "cache")],
            check=True,
            capture_output=True,
            text=True,
        )
        assert done.stdout.split() == [hashlib.sha256(data).hexdigest()] * 2
        assert limit.killed() == 0
