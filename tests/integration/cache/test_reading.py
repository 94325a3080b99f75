"""A range that was read once comes from local disk afterwards; planners of reads learn which blocks are cached."""

from __future__ import annotations

import dataclasses
import os
from contextlib import closing
from pathlib import Path

import pytest

from stripefs.cache import cache, writeback
from stripefs.cache.cached_store import CACHE, CachedHandle
from stripefs.errors import ConfigError, StaleVersion
from stripefs.store import local
from stripefs.store.base import Handle, Identity
from tests.support.caches import AGE, MIB, PATIENCE, Cached, cached, read, write
from tests.support.stores import RecordingWatch


def hosts(handle: Handle, length: int) -> list[tuple[int, int, tuple[str, ...]]]:
    return [(block.offset, block.length, block.hosts) for block in handle.locate(0, length)]


def test_a_second_load_asks_the_store_for_nothing(source: Path, folder: Path) -> None:
    """Nor does a load of any part."""
    data = write(source / "a", 70 * MIB + 123)
    with cached(source, folder) as one:
        assert one.read(b"/a") == data
        assert one.counts.bytes == len(data)
        assert one.fetched(b"/a") == 0
        for offset, length in ((0, 1), (5, 4096), (MIB - 1, 2), (63 * MIB, 2 * MIB), (70 * MIB, 123)):
            assert one.read(b"/a", offset, length) == data[offset : offset + length]
        assert one.counts.bytes == len(data)
    with cached(source, folder) as later:
        assert later.read(b"/a") == data
        assert later.counts.bytes == 0
        assert later.store.cache.stats["hit_bytes"] == len(data)
        assert len(later.segments()) == 2


def test_whole_blocks_of_what_was_read_are_kept_and_no_more_is_fetched(source: Path, one: Cached) -> None:
    data = write(source / "a", 10 * MIB)
    assert one.read(b"/a", 3 * MIB + 1, 3 * MIB) == data[3 * MIB + 1 :][: 3 * MIB]
    assert one.counts.bytes == 3 * MIB
    assert one.fetched(b"/a", 4 * MIB, 2 * MIB) == 0
    assert one.fetched(b"/a", 0, 8 * MIB) == 6 * MIB  # blocks that are here are not fetched with the others
    assert one.fetched(b"/a", 0, 8 * MIB) == 0


def test_what_is_cached_is_told_with_its_place(source: Path, folder: Path) -> None:
    write(source / "a", 20 * MIB)
    query = "?rate=1GB/s&block-size=10MiB&replication=2&hosts=4"
    with cached(source, folder, "counting+throttled", query) as one, closing(one.store.open(b"/a")) as handle:
        far = {block.offset: block.hosts for block in handle.locate(0, 20 * MIB)}
        assert hosts(handle, 20 * MIB)[0][:2] == (0, 10 * MIB)
        one.read(b"/a", 4 * MIB, 8 * MIB)
        assert hosts(handle, 20 * MIB) == [
            (0, 4 * MIB, far[0]),
            (4 * MIB, 6 * MIB, (CACHE, *far[0])),
            (10 * MIB, 2 * MIB, (CACHE, *far[10 * MIB])),
            (12 * MIB, 8 * MIB, far[10 * MIB]),
        ]
        placed = [(block.offset, block.hosts) for block in handle.placed(0, 20 * MIB)]
        assert placed == [(0, far[0]), (10 * MIB, far[10 * MIB])]  # without CACHE, for people and schedulers


def test_a_file_that_is_wholly_here_is_located_without_the_store(source: Path, folder: Path) -> None:
    data = write(source / "a", 70 * MIB)
    with cached(source, folder, "counting+throttled", "?rate=1GB/s&block-size=10MiB&hosts=4") as one:
        one.read(b"/a")
        handle = one.store.open(b"/a")
        assert isinstance(handle, CachedHandle)
        assert hosts(handle, 70 * MIB) == [(0, 64 * MIB, (CACHE,)), (64 * MIB, 6 * MIB, (CACHE,))]
        for segment in one.segments():
            segment.unlink()
        one.forget()
        # It was said to be here and is not: now the client chooses where it comes from, and then the store is asked.
        assert bytes(handle.read(0, 8 * MIB, host=CACHE)) == data[: 8 * MIB]
        assert all(CACHE not in names for _, _, names in hosts(handle, 70 * MIB)[1:])
        handle.close()


def test_blocks_that_begin_off_the_grid_are_cut_at_it(source: Path, folder: Path) -> None:
    """So that chunks, which are counted from where blocks begin, stay the same whatever is cached."""
    data = write(source / "a", 5 * MIB)
    query = "?rate=1GB/s&block-size=2500000&hosts=2"
    with cached(source, folder, "counting+throttled", query) as one, closing(one.store.open(b"/a")) as handle:
        offsets = [0, 2500000, 3 * MIB, 5000000]
        assert [offset for offset, _, _ in hosts(handle, 5 * MIB)] == offsets
        assert one.read(b"/a", 0, 4 * MIB) == data[: 4 * MIB]
        found = hosts(handle, 5 * MIB)
        assert [offset for offset, _, _ in found] == [0, 2500000, 3 * MIB, 4 * MIB, 5000000]
        assert [names[0] == CACHE for _, _, names in found] == [True, True, True, False, False]


@pytest.mark.parametrize("order", [1, -1])
def test_blocks_that_come_in_parts_are_kept_too(source: Path, folder: Path, order: int) -> None:
    """No read crosses a block of the store, and some of ours lie in two or three of them."""
    data = write(source / "a", 5 * MIB)
    with cached(source, folder, "counting+throttled", "?rate=1GB/s&block-size=700000&hosts=2") as one:
        for turn in range(2):
            with closing(one.store.open(b"/a")) as handle:
                for offset, length, _ in hosts(handle, 5 * MIB)[::order]:
                    assert bytes(handle.read(offset, length)) == data[offset : offset + length]
            assert one.store.cache.queue.drain(60)
            assert one.counts.bytes == len(data), turn
        assert one.store.cache.partial._parts == {}


def test_parts_of_blocks_that_nobody_completes_are_not_held_for_long(source: Path, one: Cached) -> None:
    write(source / "a", 40 * MIB)
    for offset in range(0, 40 * MIB, MIB):
        one.read(b"/a", offset + 5, 1000)
    assert len(one.store.cache.partial._parts) == writeback.MOST


def test_another_version_finds_nothing_of_the_one_before_which_open_files_keep(source: Path, one: Cached) -> None:
    before = write(source / "a", 4 * MIB)
    one.read(b"/a")
    with closing(one.store.open(b"/a")) as handle:
        data = write(source / "a", 4 * MIB, seed=1, changed=AGE)  # of the same length and time
        assert one.read(b"/a") == data
        assert one.fetched(b"/a") == 0
        assert read(handle, 0, 4 * MIB) == before
    with pytest.raises(StaleVersion):
        one.store.open(b"/a", Identity(4 * MIB, 1, "other"))


def test_small_files_and_those_that_no_pattern_names_are_not_kept(source: Path, folder: Path) -> None:
    write(source / "small.pt", MIB - 1)
    write(source / "other.bin", 2 * MIB)
    write(source / "model.pt", 2 * MIB)
    with cached(source, folder, match=("*.pt",)) as one:
        for name in (b"/small.pt", b"/other.bin", b"/model.pt"):
            one.read(name)
        assert one.fetched(b"/small.pt") == MIB - 1
        assert one.fetched(b"/other.bin") == 2 * MIB
        assert one.fetched(b"/model.pt") == 0


def test_where_versions_have_no_ids_nothing_is_kept_unless_times_are_trusted(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = local._status
    monkeypatch.setattr(local, "_status", lambda *entry, **more: dataclasses.replace(found(*entry, **more), file_id=""))
    write(source / "a", 2 * MIB)
    with cached(source, folder) as one:
        one.read(b"/a")
        assert one.fetched(b"/a") == 2 * MIB
    with cached(source, folder, trust_mtime=True) as trusting:
        trusting.read(b"/a")
        assert trusting.fetched(b"/a") == 0


def test_more_segments_than_may_be_open(source: Path, one: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST", 2)
    path = source / "sparse"
    with path.open("wb") as file:
        file.truncate(300 * MIB)
    os.utime(path, (AGE, AGE))
    for _ in range(2):
        for offset in range(0, 300 * MIB, 30 * MIB):
            assert one.read(b"/sparse", offset, MIB) == bytes(MIB)
    assert one.counts.bytes == 10 * MIB


def test_somebody_elses_folder_is_refused(source: Path, folder: Path) -> None:
    (folder / "stripefs-1").mkdir(parents=True)
    (folder / "stripefs-1").chmod(0o777)
    with pytest.raises(ConfigError, match="others may write"), cached(source, folder):
        pass


def test_what_another_has_fetched_since_counts_as_cached(source: Path, folder: Path) -> None:
    data = write(source / "a", 2 * MIB)
    query = "?hosts=2&block-size=1048576"
    with cached(source, folder, "counting+throttled", query) as ours, closing(ours.store.open(b"/a")) as handle:
        (host,) = handle.locate(0, MIB)[0].hosts
        watch = RecordingWatch()
        assert bytes(handle.read(0, MIB, host=host, watch=watch)) == data[:MIB]
        assert ours.store.cache.queue.drain(PATIENCE)
        assert watch.served == []
        before = ours.counts.bytes
        assert bytes(handle.read(0, MIB, host=host, watch=watch)) == data[:MIB]
        assert (watch.served, ours.counts.bytes) == ([CACHE], before)
        assert bytes(handle.read(0, MIB, host=CACHE, watch=watch)) == data[:MIB]
        assert watch.served == [CACHE]
