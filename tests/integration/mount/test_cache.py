"""A mount with `--cache`: what it read once it reads from local disk, whatever happens to either."""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stripefs.cache.cachedir import CacheDir, cached_versions
from stripefs.errors import ConfigError
from stripefs.settings import CacheSettings, WriteSettings
from tests.support.caches import write
from tests.support.cgroup import MemoryCgroup
from tests.support.waiting import eventually
from tests.tools.mounts import MIB, REPLACED, Mounted, Mounts, drop_cache, sha256

pytestmark = [pytest.mark.mount, pytest.mark.root]

HOSTS = ("throttled+", "?rate=25MB/s&hosts=4&block-size=8MiB&placement=even")
"""Slower than any disk, also one that other tests use: else the cache is rightly left alone."""


def caching(
    mounts: Mounts, folder: Path, *, memory: int = 128 * MIB, write: WriteSettings | None = None, **settings: Any
) -> Mounted:
    """`settings` as of CacheSettings. With `write` the mount can be written to."""
    prepared = mounts.prepare(mounts.url(*HOSTS), memory=memory, rw=write is not None)
    prepared = prepared._replace(write=write or WriteSettings())
    cache = CacheSettings(directory=str(folder), **{"size": 1 << 40, **settings})
    return mounts.start(prepared._replace(cache=cache)).wait_ready()


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


def test_the_cache_stands_when_a_worker_dies(mounts: Mounts, folder: Path) -> None:
    mounts.forgive(REPLACED)
    data = write(mounts.source / "model", 60 * MIB)
    mounted = caching(mounts, folder)
    with (mounted.path / "model").open("rb") as file:
        assert file.read(20 * MIB) == data[: 20 * MIB]
        mounted.kill_worker()
        assert file.read() == data[20 * MIB :]
    settled(mounted)
    drop_cache(mounted.path / "model")
    before = counted(mounted, "missed_bytes")
    assert (mounted.path / "model").read_bytes() == data
    assert settled(mounted) - before < 30 * MIB


@pytest.mark.parametrize(
    ("memory", "size", "order"),
    [
        # Each reads every fourth tensor.
        (1024 * MIB, 5 * MIB, lambda reader: range(reader, 32, 4)),
        # Each reads all of it in an order of its own, in less memory than the file has bytes.
        (64 * MIB, 8 * MIB, lambda reader: [(reader * 5 + step * 7) % 20 for step in range(20)]),
    ],
    ids=["tensors", "orders"],
)
def test_four_readers_around_the_page_cache_cause_one_fetch(
    mounts: Mounts, folder: Path, memory: int, size: int, order: Callable[[int], Iterable[int]]
) -> None:
    data = write(mounts.source / "model", 160 * MIB)
    mounted = caching(mounts, folder, memory=memory)

    def read(reader: int) -> bool:
        descriptor = os.open(mounted.path / "model", os.O_RDONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, size) as buffer:
                for piece in order(reader):
                    assert os.preadv(descriptor, [buffer], piece * size) == size
                    assert buffer[:] == data[piece * size :][:size]
        finally:
            os.close(descriptor)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(4)))
    fetched = settled(mounted)
    assert fetched <= 1.05 * len(data) + (counted(mounted, "unfilled_bytes") if memory < len(data) else 0)


def test_memory_stays_within_a_limit_far_below_the_file(mounts: Mounts, folder: Path, tmp_path: Path) -> None:
    """Filling the cache and reading from it. Written and read bytes stay in memory nowhere."""
    data = write(mounts.source / "model", 100 * MIB + 4096, times=7)
    mounts.forgive("reads slower than the store")  # as long as the kernel makes room for it
    limit = MemoryCgroup((64 + 256) * MIB)
    try:
        prepared = mounts.prepare(mounts.url(*HOSTS), memory=64 * MIB)
        cache = CacheSettings(directory=str(folder), size=1 << 40)
        mounted = mounts.start(prepared._replace(cache=cache), wrapper=limit.wrapper).wait_ready()
        for _ in range(2):
            drop_cache(mounted.path / "model")
            assert sha256(mounted.path / "model") == sha256_of(data)
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


def test_a_folder_that_vanishes_while_it_is_read(mounts: Mounts, folder: Path) -> None:
    mounts.forgive("cannot be", "is damaged")
    data = write(mounts.source / "model", 100 * MIB)
    mounted = caching(mounts, folder)
    digest = sha256(mounted.path / "model")
    settled(mounted)
    drop_cache(mounted.path / "model")
    stop = threading.Event()

    def remove() -> None:
        while not stop.is_set():
            shutil.rmtree(folder, ignore_errors=True)

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        assert sha256(mounted.path / "model") == digest == sha256_of(data)
    finally:
        stop.set()
        remover.join()


def test_what_was_saved_is_loaded_from_local_disk(mounts: Mounts, folder: Path) -> None:
    """By this mount, and by the next one of this host; a writer that was killed has published nothing and keeps
    nothing here."""
    mounts.forgive("its writer was killed")
    striped = WriteSettings(layout="striped", grace=0.0)
    first = caching(mounts, folder, memory=1024 * MIB, write=striped, writes=True)
    data = os.urandom(100 * MIB + 4567)
    (first.path / "model").write_bytes(data)
    settled(first)
    assert (first.path / "model").read_bytes() == data
    assert settled(first) == 0
    killed = "import os, sys; file = open(sys.argv[1], 'wb'); file.write(bytes(20 << 20)); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", killed, str(first.path / "other")], check=False)
    eventually(lambda: kept(folder) == {"model"}, "what was not published to go")
    first.stop()
    second = caching(mounts, folder)
    assert sha256(second.path / "model") == sha256_of(data)
    assert settled(second) == 0


def kept(folder: Path) -> set[str]:
    """Names of the versions of which something is kept."""
    return {Path(version.name).name for version in cached_versions(CacheDir(str(folder))) if version.numbers}


def test_a_cache_on_the_mount_is_refused(mounts: Mounts, tmp_path: Path) -> None:
    settings = mounts.prepare(mounts.url())
    inside = Path(settings.mount.mountpoint) / "cache"
    mounted = mounts.start(settings._replace(cache=CacheSettings(directory=str(inside))))
    with pytest.raises(ConfigError, match="on the mount itself"):
        mounted.wait_ready()


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
