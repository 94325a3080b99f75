"""Disks that are full, read-only, broken or slow: reading goes on past them, and comes back to them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stripefs import retry
from stripefs.cache import policy
from stripefs.cache.cached_store import CACHE
from stripefs.cache.segment import CacheSegment
from stripefs.cache.writeback import WriteJob, WriteQueue
from stripefs.errors import HostFailed
from tests.support.caches import AGE, MIB, Cached, Gate, cached, read, refusing, write
from tests.support.checkout import CHECKOUT
from tests.support.waiting import PATIENCE


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that failed is tried again at once."""
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(retry, "LONGEST_PAUSE", 0.0)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_disk_that_takes_nothing_costs_nothing_but_its_help(
    impatient: None, one: Cached, source: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    data = write(source / "a", 20 * MIB)
    with monkeypatch.context() as patch:
        patch.setattr(CacheSegment, "write", refusing(number))
        for _ in range(2):
            assert one.read(b"/a") == data
        assert one.store.cache.stats["disk_errors"] > 0
        assert one.store.cache.snapshot()["used_bytes"] < MIB  # its room was given back
    assert one.read(b"/a") == data
    assert one.fetched(b"/a") == 0


@pytest.mark.parametrize("call", ["read", "slots"])
def test_a_disk_that_gives_nothing_is_read_past(
    impatient: None, one: Cached, source: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    data = write(source / "a", 20 * MIB)
    one.read(b"/a")
    with monkeypatch.context() as patch:
        patch.setattr(CacheSegment, call, refusing(errno.EIO))
        assert one.read(b"/a") == data
    assert one.fetched(b"/a") == 0


def test_a_disk_that_failed_is_left_alone_for_a_while(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(source / "a", 20 * MIB)
    monkeypatch.setattr(retry, "FIRST_PAUSE", 1000.0)  # however busy this machine is
    now = time.monotonic()
    with cached(source, folder) as one:
        one.read(b"/a")
        with monkeypatch.context() as patch:
            patch.setattr(CacheSegment, "read", refusing(errno.EIO))
            one.read(b"/a")
        assert one.store.cache.stats["disk_errors"] == 1
        handle = one.store.open(b"/a")
        with pytest.raises(HostFailed) as caught:  # so that whoever plans reads asks the other hosts meanwhile
            handle.read(0, MIB, host=CACHE)
        assert caught.value.host == CACHE
        assert one.store.cache.stats["bypassed_bytes"] > 0
        monkeypatch.setattr(time, "monotonic", lambda: now + 3600.0)
        assert len(handle.read(0, MIB, host=CACHE)) == MIB
        handle.close()


def test_a_disk_slower_than_the_store_is_left_alone(source: Path, folder: Path) -> None:
    data = write(source / "a", 40 * MIB)
    whole = CacheSegment.read

    def slowly(segment: CacheSegment, blocks: range, into: memoryview, skip: int = 0, *, shared: bool = False) -> None:
        time.sleep(0.1)
        whole(segment, blocks, into, skip, shared=shared)

    with cached(source, folder) as one, pytest.MonkeyPatch.context() as patch:  # undone before what `cached` does is
        one.read(b"/a")
        for segment in one.segments():
            os.utime(segment, (AGE, AGE))  # a segment that was just written may be slow
        patch.setattr(policy, "SLOWER", 0.9)
        patch.setattr(policy, "LEAST_BUSY", 0.01)
        patch.setattr(CacheSegment, "read", slowly)
        measured = one.store.cache.disk._bypass.store
        measured.bytes, measured.seconds = 1 << 30, 1.0  # however slow this machine is
        before = one.store.cache.stats["hit_bytes"]
        with closing(one.store.open(b"/a")) as handle:
            assert read(handle, 0, 40 * MIB) == data
        assert one.store.cache.stats["hit_bytes"] - before < 40 * MIB
        assert one.store.cache.stats["bypassed_bytes"] > 0


def test_what_waits_for_the_disk_is_not_fetched_again(
    one: Cached, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, gate = write(source / "a", 20 * MIB + 77), Gate(monkeypatch)
    handle = one.store.open(b"/a")
    try:
        assert read(handle, 0, len(data)) == data
        assert read(handle, 0, len(data), step=5 * MIB) == data
        assert bytes(handle.read(3 * MIB - 5, 10)) == data[3 * MIB - 5 :][:10]
        assert one.counts.bytes == len(data)
    finally:
        gate.open.set()
    handle.close()
    assert one.store.cache.queue.drain(PATIENCE)
    assert not one.store.cache.pending._blocks
    assert one.fetched(b"/a") == 0


def run(source: Path, folder: Path, names: Sequence[str], *prepare: str) -> tuple[list[dict[str, Any]], str]:
    """Reads of a process in a mount namespace of its own, in which these commands were run first."""
    job = {"source": str(source), "folder": str(folder), "paths": names, "settings": {}}
    script = " && ".join([*prepare, 'exec "$0" -m tests.integration.cache.reader_process "$1"'])
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable, json.dumps(job)],
        cwd=CHECKOUT,
        input="\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert "Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()[1:]], done.stderr


@pytest.mark.root
@pytest.mark.parametrize("options", ["size=40m", "size=200m,nr_inodes=4", "size=64k"])
def test_a_disk_that_is_full(source: Path, folder: Path, options: str) -> None:
    folder.mkdir()
    digest = hashlib.sha256(write(source / "a", 100 * MIB)).hexdigest()
    found, _ = run(source, folder, ["/a"] * 3, f"mount -t tmpfs -o {options} tmpfs {folder}")
    assert [line["sha256"] for line in found] == [digest] * 3
    if options == "size=40m":
        assert found[2]["fetched"] < 100 * MIB  # blocks that fit are kept all the same


@pytest.mark.root
def test_a_disk_that_became_read_only_still_gives_what_it_has(source: Path, folder: Path) -> None:
    digests = [hashlib.sha256(write(source / name, 10 * MIB, seed=len(name))).hexdigest() for name in ("a", "bb")]
    run(source, folder, ["/a"])
    read_only = f"mount --bind {folder} {folder}", f"mount -o remount,bind,ro {folder}"
    found, errors = run(source, folder, ["/a", "/bb", "/bb"], *read_only)
    assert [line["sha256"] for line in found] == [digests[0], digests[1], digests[1]]
    assert [line["fetched"] for line in found] == [0, 10 * MIB, 10 * MIB]
    assert "Read-only file system" in errors


@pytest.mark.root
def test_a_folder_that_cannot_be_made(source: Path) -> None:
    digest = hashlib.sha256(write(source / "a", 10 * MIB)).hexdigest()
    found, _ = run(source, Path("/proc/cache"), ["/a", "/a"])
    assert [(line["sha256"], line["fetched"]) for line in found] == [(digest, 10 * MIB)] * 2


def test_a_reader_never_waits_for_the_disk() -> None:
    """Blocks that the queue does not take are not kept. One fill is taken however large, and none after the end."""
    written: list[int] = []
    ended: list[int] = []
    queue = WriteQueue(3 * MIB, lambda: None)

    def hang(number: int) -> None:
        written.append(number)
        while len(ended) < 1:
            time.sleep(0.001)

    def fill(number: int, size: int = 2 * MIB) -> WriteJob:
        return WriteJob(partial(hang, number), size, lambda: ended.append(number))

    assert queue.offer(fill(0))
    assert not queue.offer(fill(2))
    assert queue.waiting == 2 * MIB
    ended.append(-1)
    assert queue.drain(PATIENCE)
    assert queue.offer(fill(4, 8 * MIB))
    assert queue.drain(PATIENCE)
    queue.close()
    assert not queue.offer(fill(6))
    assert written == [0, 4]
    assert ended == [-1, 0, 4]


def test_a_bug_in_one_fill_ends_neither_the_thread_nor_its_lock(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[int] = []
    queue = WriteQueue(MIB, lambda: None)

    def bug() -> None:
        raise ValueError("a bug")

    for _ in range(2):
        assert queue.offer(WriteJob(bug, MIB, lambda: ended.append(1)))
        assert queue.drain(PATIENCE)
    queue.close()
    assert ended == [1, 1]
    assert "please report this" in caplog.text
