"""A read answers the file's bytes whatever happened to the files of the cache."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stripefs.cache.segment import CacheSegment
from stripefs.cache.segment_format import DATA_AT, FILE_LENGTH, HEADER, SLOT, SLOTS_AT
from tests.support.caches import MIB, cached, write

SIZE = 6 * MIB + 1000


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def test_a_flipped_bit_costs_one_block(source: Path, folder: Path) -> None:
    data = write(source / "a", SIZE)
    with cached(source, folder) as one:
        one.read(b"/a")
        flip(one.segments()[0], DATA_AT + 3 * MIB + 12345)
        before = one.counts.bytes
        assert one.read(b"/a") == data
        assert one.store.cache.stats["damaged"] == 1
        assert one.counts.bytes - before == SIZE  # the range that held it
        assert one.fetched(b"/a") == 0
        assert one.store.cache.stats["damaged"] == 1


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a check value": lambda path: flip(path, SLOTS_AT + 2 * SLOT),
    "all check values": lambda path: overwrite(path, SLOTS_AT, os.urandom(SLOT * 64)),
    "the header": lambda path: flip(path, 0),
    "the key": lambda path: flip(path, 33),
    "the number": lambda path: flip(path, 17),
    "an empty header": lambda path: overwrite(path, 0, bytes(HEADER)),
    "cut to nothing": lambda path: os.truncate(path, 0),
    "cut in the header": lambda path: os.truncate(path, 20),
    "cut in the table": lambda path: os.truncate(path, SLOTS_AT + 20),
    "cut before the data": lambda path: os.truncate(path, DATA_AT),
    "cut in a block": lambda path: os.truncate(path, DATA_AT + 4 * MIB + 4097),
    "cut off a page": lambda path: os.truncate(path, DATA_AT + 2 * MIB + 100),
    "zeros": lambda path: overwrite(path, DATA_AT + MIB, bytes(2 * MIB)),
    "removed": lambda path: path.unlink(),
    "made a directory": lambda path: (path.unlink(), path.mkdir())[0],
    "made a link": lambda path: (path.unlink(), path.symlink_to("/etc/passwd"))[0],
    "made a pipe": lambda path: (path.unlink(), os.mkfifo(path))[0],
}


@pytest.mark.parametrize("still_open", [True, False])
@pytest.mark.parametrize("name", DAMAGE)
def test_damage(source: Path, folder: Path, name: str, still_open: bool) -> None:
    data = write(source / "a", SIZE)
    with cached(source, folder) as one:
        one.read(b"/a")
        DAMAGE[name](one.segments()[0])
        if not still_open:
            one.forget()
        for _ in range(3):
            assert one.read(b"/a") == data


def test_blocks_that_were_swapped_do_not_fit(source: Path, folder: Path) -> None:
    data = write(source / "a", SIZE)
    with cached(source, folder) as one:
        one.read(b"/a")
        path = one.segments()[0]
        raw = path.read_bytes()
        for slots in (False, True):  # the bytes alone, then with their check values
            overwrite(path, DATA_AT, raw[DATA_AT + MIB : DATA_AT + 2 * MIB] + raw[DATA_AT : DATA_AT + MIB])
            if slots:
                first, second = raw[SLOTS_AT : SLOTS_AT + SLOT], raw[SLOTS_AT + SLOT : SLOTS_AT + 2 * SLOT]
                overwrite(path, SLOTS_AT, second + first)
            one.forget()
            assert one.read(b"/a") == data


def test_segments_that_were_swapped_are_not_believed(source: Path, folder: Path) -> None:
    data, other = write(source / "a", SIZE), write(source / "b", SIZE, seed=1)
    with cached(source, folder) as one:
        one.read(b"/a")
        one.read(b"/b")
        first, second = one.segments()
        aside = first.with_name("aside")
        first.rename(aside)
        second.rename(first)
        aside.rename(second)
        one.forget()
        assert one.read(b"/a") == data
        assert one.read(b"/b") == other
        assert one.store.cache.stats["damaged"] == 2
        assert one.fetched(b"/a") == one.fetched(b"/b") == 0


def test_a_version_that_was_put_in_the_place_of_another_does_not_fit(source: Path, folder: Path) -> None:
    data, other = write(source / "a", SIZE), write(source / "b", SIZE, seed=1)
    with cached(source, folder) as one:
        one.read(b"/a")
        one.read(b"/b")
        first, second = (path.parent for path in one.segments())
        shutil.rmtree(first)
        shutil.copytree(second, first)
        one.forget()
        assert one.read(b"/a") == data
        assert one.read(b"/b") == other


@pytest.mark.parametrize("what", ["all", "versions", "usage", "about"])
def test_what_is_removed_is_made_again(source: Path, folder: Path, what: str) -> None:
    data = write(source / "a", SIZE)
    with cached(source, folder) as one:
        one.read(b"/a")
        for path in {
            "all": [folder],
            "versions": [folder / "stripefs-1" / "versions"],
            "usage": [folder / "stripefs-1" / "usage"],
            "about": list(folder.rglob("about")),
        }[what]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for _ in range(3):
            assert one.read(b"/a") == data
        one.forget()
        assert one.read(b"/a") == data
        assert one.fetched(b"/a") == 0


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32), where=st.lists(st.integers(0, FILE_LENGTH - 1), min_size=1, max_size=6))
def test_bytes_are_right_or_fetched_wherever_rubbish_is_written(tmp_path: Path, seed: int, where: list[int]) -> None:
    source, folder = tmp_path / "source", tmp_path / "cache"
    source.mkdir(exist_ok=True)
    data = write(source / "a", SIZE)
    with cached(source, folder) as one:
        one.read(b"/a")
        rubbish = random.Random(seed)
        for offset in where:
            overwrite(one.segments()[0], offset % (SIZE + DATA_AT), rubbish.randbytes(rubbish.randint(1, 5000)))
        one.forget()
        assert one.read(b"/a") == data


def test_a_disk_that_takes_no_direct_access_serves_through_the_page_cache(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(source / "a", SIZE)
    whole = os.open

    def refusing(path: str, flags: int, *args: int, **names: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return whole(path, flags, *args, **names)

    monkeypatch.setattr(os, "open", refusing)
    with cached(source, folder) as one:
        assert one.read(b"/a") == data
        assert one.fetched(b"/a") == 0
        assert not any(segment.direct for segment in one.store.cache.segments._open.values())


def test_a_disk_that_refuses_direct_access_late_does_so_too(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(source / "a", SIZE)
    monkeypatch.setattr(CacheSegment, "read", at_odd_places(CacheSegment.read))
    with cached(source, folder) as one:
        one.read(b"/a")
        assert one.read(b"/a") == data
        assert not any(segment.direct for segment in one.store.cache.segments._open.values())


def at_odd_places(read: Callable[..., None]) -> Callable[..., None]:
    """Reads into memory that O_DIRECT does not take, which is then copied to where it belongs."""

    def reading(segment: CacheSegment, blocks: range, into: memoryview, skip: int = 0, *, shared: bool = False) -> None:
        odd = memoryview(bytearray(len(into) + 1))[1:]
        read(segment, blocks, odd, skip, shared=shared)
        into[:] = odd

    return reading
