"""Several real processes with one cache folder: one fetch, whoever dies, however many they are."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stripefs import osutil
from stripefs.cache import checked_blocks
from stripefs.cache.cachedir import CacheDir
from stripefs.cache.segment import _LOCKS_AT, CacheSegment
from stripefs.cache.writeback import WriteJob
from stripefs.store.allocator import aligned
from tests.integration.cache.reader_process import STORE
from tests.support.caches import MIB, Cached, cached, write
from tests.support.checkout import CHECKOUT
from tests.support.waiting import PATIENCE, eventually


@contextmanager
def readers(count: int, source: Path, folder: Path, *paths: str, **job: Any) -> Iterator[list[subprocess.Popen[str]]]:
    """So many processes that wait for a line before they read."""
    told = {"source": str(source), "folder": str(folder), "paths": paths, "settings": {}, **job}
    with ExitStack() as stack:
        started = []
        for seed in range(count):
            mine = json.dumps({**told, "seed": seed})
            command = [sys.executable, "-m", "tests.integration.cache.reader_process", mine]
            process = subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            started.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started


def go(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


@pytest.mark.parametrize(
    ("count", "files", "size", "limit", "shuffled"),
    [
        (4, 1, 100 * MIB, 0, False),
        (4, 1, 100 * MIB, 0, True),
        pytest.param(24, 4, 5 * MIB, 0, True, marks=pytest.mark.slow),
        (3, 6, 70 * MIB, 150 * MIB, True),  # they push one another's segments out while they are in use
    ],
)
def test_several_processes_fetch_each_byte_once_unless_the_cache_is_too_small(
    source: Path, folder: Path, count: int, files: int, size: int, limit: int, shuffled: bool
) -> None:
    names = [f"/file{number}" for number in range(files)]
    digests = {
        name: hashlib.sha256(write(source / name[1:], size, seed=number)).hexdigest()
        for number, name in enumerate(names)
    }
    settings = {"size": limit} if limit else {}
    found: list[dict[str, Any]] = []
    with readers(count, source, folder, *names, shuffled=shuffled, settings=settings) as processes:
        go(processes)
        for process in processes:
            output, _ = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0
            found += map(json.loads, output.splitlines())
    assert len(found) == count * files
    assert all(line["sha256"] == digests[line["path"]] for line in found)
    if not limit:
        assert sum(line["fetched"] for line in found) <= 1.05 * files * size
    else:
        with cached(source, folder, size=limit) as one:
            assert one.store.cache.quota.recount() <= limit + 3 * 8192


def test_who_dies_while_it_fills_leaves_nothing_wrong_and_no_lock(source: Path, folder: Path) -> None:
    data = write(source / "a", 64 * MIB)
    draw = random.Random(5)
    for _ in range(6):
        with readers(2, source, folder, "/a", shuffled=True) as processes:
            go(processes)
            time.sleep(draw.uniform(0.01, 0.3))
            for process in processes:
                process.send_signal(signal.SIGKILL)
    with cached(source, folder, *STORE) as one:
        assert one.read(b"/a") == data
        assert one.store.cache.stats["waits"] == 0
        assert one.fetched(b"/a") == 0


def test_a_holder_that_stands_still_is_not_waited_for_forever(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(source / "a", 24 * MIB)
    monkeypatch.setattr(checked_blocks, "PATIENCE", 0.2)
    with cached(source, folder) as one, cached(source, folder) as other:
        one.read(b"/a", 0, MIB)
        handle = other.store.open(b"/a")
        segment = one.segments()[0]
        descriptor = os.open(segment, os.O_RDWR)
        assert osutil.try_lock(descriptor, _LOCKS_AT, 64)
        assert one.read(b"/a") == data
        assert one.store.cache.stats["waits"] == 1  # and then no more: each fetches for itself
        os.close(descriptor)
        assert other.read(b"/a") == data
        handle.close()


FORKING = """
import os, signal, sys, time
from stripefs.cache.cachedir import CacheDir
from stripefs.cache.segment import CacheSegment
place = CacheDir(sys.argv[1])
segment = CacheSegment(place.segment(bytes(16), 0), bytes(16), 0, 64 << 20, make=True)
assert segment.lock(range(64), segment)
mark = place.begin(bytes(16))
if not os.fork():
    segment.close()  # whatever a child does with what is its parent's
    print(os.getpid(), flush=True)
    time.sleep(1000)
time.sleep(1000)
"""


def test_a_forked_child_keeps_no_lock_of_its_parent(folder: Path) -> None:
    command = [sys.executable, "-c", FORKING, str(folder)]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as parent, ExitStack() as stack:
        stack.callback(parent.kill)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        stack.callback(os.kill, child, signal.SIGKILL)
        place = CacheDir(str(folder))
        segment = CacheSegment(place.segment(bytes(16), 0), bytes(16), 0, 64 * MIB)
        with closing(segment):
            assert not segment.lock(range(1), segment)
            assert list(place.abandoned()) == []
            parent.kill()
            parent.wait()
            assert segment.lock(range(64), segment)
            assert list(place.abandoned()) == [bytes(16)]
        os.kill(child, 0)


def slowly(source: Path, folder: Path, seconds: int) -> AbstractContextManager[Cached]:
    """A process whose fetches take so long."""
    return cached(source, folder, "counting+delayed", f"?delay={seconds}s&on=read")


def test_a_second_try_of_one_reader_does_not_wait_for_the_first(source: Path, folder: Path) -> None:
    """As when a host is slow, and another replica is asked."""
    data = write(source / "a", 8 * MIB)
    with slowly(source, folder, 3) as one:
        with closing(one.store.open(b"/a")) as handle, ThreadPoolExecutor(2) as pool:
            both = [pool.submit(handle.read, 0, len(data)) for _ in range(2)]
            assert [bytes(each.result()) for each in both] == [data, data]
        assert one.store.cache.stats["waits"] == 0


def test_whoever_waited_in_the_same_process_finds_what_was_fetched(source: Path, folder: Path) -> None:
    data = write(source / "a", 8 * MIB)
    with slowly(source, folder, 3) as one, ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(one.read, b"/a")
        eventually(lambda: is_fetched(one), "a lock on what is being fetched")
        assert one.read(b"/a") == fetching.result() == data
        assert (one.counts.bytes, one.store.cache.stats["waits"]) == (len(data), 1)


def is_fetched(one: Cached) -> bool:
    """True if somebody holds the first block of the only file."""
    for path in one.segments():
        with path.open("r+b") as file:
            return osutil.is_locked(file.fileno(), _LOCKS_AT)
    return False


@pytest.mark.parametrize("hangs", [False, True])
def test_what_others_wait_for_is_kept_though_much_waits_for_the_disk(source: Path, folder: Path, hangs: bool) -> None:
    """Else each of them would fetch it again; but a disk that hangs is not waited for long."""
    data = write(source / "a", 8 * MIB)
    with slowly(source, folder, 1) as one, slowly(source, folder, 1) as other:
        disk = threading.Event()

        def held() -> None:
            disk.wait()

        one.store.cache.queue.offer(WriteJob(held, 1 << 40, lambda: None))
        with closing(one.store.open(b"/a")) as handle, ThreadPoolExecutor(2) as pool:
            fetching = pool.submit(handle.read, 0, len(data))
            eventually(lambda: is_fetched(one), "a lock on what is being fetched")
            waiting = pool.submit(other.read, b"/a")
            eventually(lambda: one.counts.bytes == len(data), "the end of the fetch")
            if not hangs:
                disk.set()
            assert bytes(fetching.result()) == waiting.result() == data
        assert (one.counts.bytes, other.counts.bytes) == (len(data), len(data) if hangs else 0)
        assert other.store.cache.stats["waits"] == 1
        assert one.store.cache.stats["unfilled_bytes"] == (len(data) if hangs else 0)
        disk.set()


def test_what_is_read_through_memory_is_what_was_written_around_it(folder: Path) -> None:
    """Pages of blocks that were not here yet, or that were written once more, are not served again."""
    folder.mkdir()
    with closing(CacheSegment(str(folder / "segment"), bytes(16), 0, 64 * MIB, make=True)) as segment:
        blocks, found = range(2, 4), aligned(2 * MIB)
        segment.read(blocks, found, shared=True)
        assert found == bytes(2 * MIB)
        for seed in range(3):
            data = aligned(2 * MIB)
            data[:] = random.Random(seed).randbytes(2 * MIB)
            segment.write(blocks, data)
            segment.read(blocks, found, shared=True)
            assert found == data
            segment.read(blocks, found)
            assert found == data
