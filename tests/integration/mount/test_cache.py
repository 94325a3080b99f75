"""A mount with `--cache`: what it read once it reads from local disk, and its memory is bounded."""

from __future__ import annotations

import hashlib
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


def counted(mounted: Mounted, name: str) -> int:
    return int(mounted.status()["cache"][name])


def test_memory_stays_within_a_limit_far_below_the_file(mounts: Mounts, tmp_path: Path) -> None:
    """Filling the cache and reading from it. Written and read bytes stay in memory nowhere."""
    data = write(mounts.source / "model", 100 * MIB + 4096, times=7)
    mounts.forgive("reads slower than the store")  # as long as the kernel makes room for it
    folder = tmp_path / "cache"
    limit = MemoryCgroup((64 + 256) * MIB)
    try:
        prepared = mounts.prepare(mounts.url(*HOSTS), memory=64 * MIB)
        cache = CacheSettings(directory=str(folder), size=1 << 40)
        mounted = mounts.start(prepared._replace(cache=cache), wrapper=limit.wrapper).wait_ready()
        for _ in range(2):
            drop_cache(mounted.path / "model")
            assert sha256(mounted.path / "model") == hashlib.sha256(data).hexdigest()
            eventually(lambda: not counted(mounted, "waiting_bytes"), "what was read to be on disk")
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
