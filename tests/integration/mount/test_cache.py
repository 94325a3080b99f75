"""A mount with `--cache`: what it read once it reads from local disk, whatever happens to either."""

from __future__ import annotations

import hashlib
import mmap
import subprocess
from pathlib import Path

import pytest

from stripefs.settings import CacheSettings
from tests.support.caches import write
from tests.support.cgroup import MemoryCgroup
from tests.support.waiting import eventually
from tests.tools.mounts import MIB, Mounted, Mounts, drop_cache, sha256

pytestmark = [pytest.mark.mount, pytest.mark.root]

HOSTS = ("throttled+", "?rate=25MB/s&hosts=4&block-size=8MiB&placement=even")
"""Slower than any disk, also one that other tests use: else the cache is rightly left alone."""


def caching(mounts: Mounts, folder: Path, *, memory: int = 128 * MIB, wrapper: tuple[str, ...] = ()) -> Mounted:
    prepared = mounts.prepare(mounts.url(*HOSTS), memory=memory)
    cache = CacheSettings(directory=str(folder), size=1 << 40)
    return mounts.start(prepared._replace(cache=cache), wrapper=wrapper).wait_ready()


def counted(mounted: Mounted, name: str) -> int:
    return int(mounted.status()["cache"][name])


def settled(mounted: Mounted) -> int:
    """The bytes that came from the store, once all that is to be kept is."""
    eventually(lambda: not counted(mounted, "waiting_bytes"), "what was read to be on disk")
    return counted(mounted, "missed_bytes")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_the_next_mount_reads_from_local_disk(mounts: Mounts, folder: Path) -> None:
    data = write(mounts.source / "model", 100 * MIB + 4567)
    first = caching(mounts, folder, memory=1024 * MIB)  # so that all of it may wait for the disk
    digest = sha256(first.path / "model")
    assert settled(first) == len(data)
    first.stop()
    second = caching(mounts, folder)
    assert sha256(second.path / "model") == digest
    assert settled(second) == 0
    with (second.path / "model").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[50 * MIB : 50 * MIB + 100] == data[50 * MIB : 50 * MIB + 100]
    hosts = {host["name"]: host["bytes"] for host in second.status()["reader"]["hosts"]}
    assert hosts["local cache"] > 90 * MIB


def test_memory_stays_within_a_limit_far_below_the_file(mounts: Mounts, folder: Path) -> None:
    """Filling the cache and reading from it. Written and read bytes stay in memory nowhere."""
    data = write(mounts.source / "model", 100 * MIB + 4096, times=7)
    mounts.forgive("reads slower than the store")  # as long as the kernel makes room for it
    limit = MemoryCgroup((64 + 256) * MIB)
    try:
        mounted = caching(mounts, folder, memory=64 * MIB, wrapper=limit.wrapper)
        for _ in range(2):
            drop_cache(mounted.path / "model")
            assert sha256(mounted.path / "model") == hashlib.sha256(data).hexdigest()
            settled(mounted)
        assert counted(mounted, "hit_bytes") > 100 * MIB
        assert resident(folder) < 10 * MIB
        assert limit.killed() == 0
        mounted.stop()
    finally:
        mounts.close()
        limit.close()


def resident(folder: Path) -> int:
    """Bytes of the segments in a cache folder that the page cache holds."""
    segments = [path for path in folder.glob("stripefs-1/versions/*/*/*") if len(path.name) == 6]
    assert segments
    told = subprocess.run(["fincore", "-bn", "-o", "RES", *segments], check=True, capture_output=True, text=True)
    return sum(map(int, told.stdout.split()))
