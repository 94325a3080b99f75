"""The size of the cache, and the order of eviction."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stripefs.cache import quota as rooms
from stripefs.cache.cachedir import CacheDir
from stripefs.cache.policy import Retention, SegmentUse
from stripefs.cache.quota import Quota, default_limit, free_to_keep
from stripefs.osutil import flocked
from tests.support.caches import AGE, MIB, Cached, cached, write

OVERHEAD = 8192
"""Bytes that a segment takes beside its blocks, at most."""

A, B = b"a" * 16, b"b" * 16


def used_ago(one: Cached, name: str, seconds: float) -> None:
    """Pretend that this file was last used so long ago."""
    for path in one.segments():
        if f'/{name}", "length"' in (path.parent / "about").read_text():
            when = path.stat().st_mtime - seconds
            os.utime(path, (when, when))


@pytest.fixture(autouse=True)
def to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Space is looked for each time that it is wanted, and no more is taken than that."""
    monkeypatch.setattr(rooms, "FULL_PAUSE", 0.0)
    monkeypatch.setattr(rooms, "LEASE", 0)


def test_what_is_used_is_counted(source: Path, one: Cached) -> None:
    write(source / "a", 10 * MIB)
    one.read(b"/a")
    found = one.store.cache.snapshot()["used_bytes"]
    assert 10 * MIB <= found <= 10 * MIB + OVERHEAD
    assert one.store.cache.quota.recount() - found <= OVERHEAD
    assert sum(path.stat().st_blocks * 512 for path in one.segments()) <= 10 * MIB + OVERHEAD


@pytest.mark.parametrize("pinned", [False, True])
def test_what_was_used_longest_ago_makes_room_unless_it_is_pinned(source: Path, folder: Path, pinned: bool) -> None:
    for number, name in enumerate("abc"):
        write(source / name, 30 * MIB, seed=number)
    with cached(source, folder, size=70 * MIB) as one:
        one.read(b"/b")
        place = CacheDir(str(folder))
        if pinned:
            place.pin(next(place.versions()))
        one.read(b"/a")
        used_ago(one, "a", 100)
        used_ago(one, "b", 200)
        one.read(b"/c")
        assert one.fetched(b"/c") == 0
        assert one.fetched(b"/b" if pinned else b"/a") == 0
        assert one.store.cache.quota.recount() <= 70 * MIB
        assert one.store.cache.snapshot()["evicted_bytes"] >= 30 * MIB
        one.forget()
        assert one.fetched(b"/a" if pinned else b"/b") == 30 * MIB


def test_a_file_larger_than_the_cache_keeps_its_beginning(source: Path, folder: Path) -> None:
    data = write(source / "a", 200 * MIB)
    with cached(source, folder, size=100 * MIB) as one:
        for _ in range(2):
            assert one.read(b"/a") == data
        assert one.fetched(b"/a") <= 105 * MIB
        assert one.store.cache.quota.recount() <= 100 * MIB
        assert one.store.cache.stats["unfilled_bytes"] > 0


def test_the_newest_checkpoints_stay_whoever_needs_room(source: Path, folder: Path) -> None:
    for number in (1, 2, 3):
        (source / f"step-{number}").mkdir()
        write(source / f"step-{number}" / "model.pt", 20 * MIB, seed=number, changed=AGE + number)
    write(source / "other", 50 * MIB, seed=9)
    keep: dict[str, Any] = {"match": ("step-*/*",), "keep_newest": 2}
    with cached(source, folder, size=70 * MIB, **keep) as one:
        for number in (3, 1, 2):
            one.read(b"/step-%d/model.pt" % number)
        used_ago(one, "step-3/model.pt", 1000)
        used_ago(one, "step-2/model.pt", 2000)
        with cached(source, folder, size=70 * MIB) as another:  # which knows nothing of checkpoints
            another.read(b"/other")
        assert one.fetched(b"/step-3/model.pt") == 0
        assert one.fetched(b"/step-2/model.pt") == 0
        one.forget()
        assert one.fetched(b"/step-1/model.pt") == 20 * MIB


def test_a_disk_that_others_fill_is_left_its_last_room(
    source: Path, one: Cached, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(source / "a", 10 * MIB)
    monkeypatch.setattr(rooms, "free_to_keep", lambda total: total)
    one.read(b"/a")
    assert one.fetched(b"/a") == 10 * MIB
    assert one.store.cache.quota.recount() <= 2 * OVERHEAD


def test_limits_by_the_size_of_the_disk() -> None:
    gib = 1 << 30
    assert default_limit(1000 * gib) == 100 * gib
    assert free_to_keep(1000 * gib) == 20 * gib
    assert free_to_keep(20 * gib) == gib
    assert free_to_keep(2 * gib) == gib // 2


def test_a_count_that_a_killed_process_left_too_high_is_put_right(folder: Path) -> None:
    assert Quota(CacheDir(str(folder)), 100 * MIB).acquire(90 * MIB, A)  # and then it died
    room = Quota(CacheDir(str(folder)), 100 * MIB)
    assert room.acquire(90 * MIB, B)
    assert room.used() == 90 * MIB


@pytest.mark.parametrize("damage", [b"", b"\xff" * 3, b"\xff" * 8, b"\0" * 8])
def test_a_damaged_count_is_counted_anew(folder: Path, damage: bytes) -> None:
    room = Quota(CacheDir(str(folder)), 100 * MIB)
    assert room.acquire(MIB, A)
    room.wrote(MIB)
    (folder / "stripefs-1" / "usage").write_bytes(damage)
    assert room.acquire(MIB, A)
    assert room.used() == MIB


def test_what_is_being_written_counts_until_it_is_given_back(folder: Path) -> None:
    """The disk does not show it yet, when all is counted anew."""
    room = Quota(CacheDir(str(folder)), 100 * MIB)
    assert room.acquire(60 * MIB, A)
    assert not room.acquire(60 * MIB, B)
    room.release(60 * MIB)
    assert room.used() == 0
    assert room.acquire(60 * MIB, B)
    room.release(60 * MIB)
    room.return_lease()
    assert Quota(CacheDir(str(folder)), 0).used() == 0


def test_room_is_leased_so_that_not_every_block_asks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "LEASE", 64 * MIB)
    one, other = (Quota(CacheDir(str(folder)), 1 << 40) for _ in range(2))
    assert one.acquire(MIB, A)
    assert one.used() == MIB
    assert other.used() == 65 * MIB  # the lease of the other counts as taken
    for _ in range(64):
        assert one.acquire(MIB, A)
    assert other.used() == 65 * MIB
    one.release(MIB)
    one.return_lease()
    assert one.used() == other.used() == 64 * MIB


def segment(folder: Path, key: bytes, number: int, size: int = MIB) -> Path:
    """A segment of `size` bytes in which no block is, last used at the time `number`."""
    path = Path(CacheDir(str(folder)).segment(key, number))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (number, number))
    return path


def test_who_finds_room_waits_for_nobody_who_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting a large cache takes seconds."""
    several = [segment(folder, A, number) for number in range(10)]
    one, other = (Quota(CacheDir(str(folder)), 10 * MIB) for _ in range(2))
    assert one.recount() == 10 * MIB
    other.return_lease()
    looks = CacheDir.segment_uses
    taken = []

    def look(self: CacheDir, *keys: Iterable[bytes]) -> Iterator[SegmentUse]:
        with flocked(self.usage, wait=False):
            pass
        for found in looks(self, *keys):
            yield found
            if found.number == 9:
                several[9].unlink()  # another process gives room back, and takes it
                with flocked(self.usage) as usage:
                    os.pwrite(usage, (9 * MIB).to_bytes(8, "little"), 0)
                taken.append(other.acquire(MIB, B))

    monkeypatch.setattr(CacheDir, "segment_uses", look)
    assert one.acquire(MIB, B)
    assert taken == [True]
    assert not several[0].exists()
    assert one.evicted >= MIB
    assert one.used() <= 10 * MIB


def test_two_who_find_no_room_evict_once(folder: Path) -> None:
    several = [segment(folder, A, number) for number in range(10)]
    quotas = [Quota(CacheDir(str(folder)), 10 * MIB) for _ in range(4)]
    quotas[0].recount()
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda one: one.acquire(64 << 10, B), quotas)) == [True] * 4
    assert [path.exists() for path in several] == [False] + [True] * 9


def test_what_others_take_while_room_is_made_is_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several = [segment(folder, A, number) for number in range(10)]
    one, other = (Quota(CacheDir(str(folder)), 10 * MIB) for _ in range(2))
    one.recount()
    taken: list[bool] = []
    whole = Quota._remove

    def remove(quota: Quota, pieces: Sequence[SegmentUse]) -> int:
        freed = whole(quota, pieces)
        if quota is one and not taken:
            taken.append(other.acquire(freed, A))
            segment(folder, A, 100, freed)
            other.wrote(freed)
        return freed

    monkeypatch.setattr(Quota, "_remove", remove)
    assert one.acquire(MIB, B)
    assert taken == [True]
    assert [path.exists() for path in several[:5]] == [False] * 4 + [True]
    assert one.used() <= 10 * MIB


def test_threads_that_find_no_room_look_for_it_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "FULL_PAUSE", 60.0)
    segment(folder, A, 0)
    quota = Quota(CacheDir(str(folder)), MIB)
    quota.recount()
    looks: list[bytes] = []
    whole = CacheDir.kept

    def look(place: CacheDir, keys: Iterable[bytes]) -> dict[bytes, Retention]:
        looks.extend(keys)
        return whole(place, keys)

    monkeypatch.setattr(CacheDir, "kept", look)
    with ThreadPoolExecutor(4) as threads:
        with flocked(quota._cachedir.eviction):
            found = [threads.submit(quota.acquire, MIB, A) for _ in range(4)]
            time.sleep(0.2)
        assert [one.result() for one in found] == [False] * 4
    assert looks == [A]


def test_what_is_removed_twice_is_counted_once(folder: Path) -> None:
    segment(folder, A, 0)
    segment(folder, B, 0)
    place = CacheDir(str(folder))
    quota = Quota(place, 10 * MIB)
    quota.recount()
    (piece,) = place.segment_uses([A])
    assert place.remove(piece) == MIB
    assert place.remove(piece) == 0
    assert quota.remove([A]) == 0
    assert quota.used() == 2 * MIB
    assert quota.remove([B]) == MIB
    assert quota.recount() == 0
