"""A read answers the file's bytes whatever happened to the files of the cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stripefs.cache.cache_format import DATA_AT, HEADER, SLOT, SLOTS_AT
from stripefs.cache.segment import CacheSegment
from tests.support.caches import MIB, Cached, flip, overwrite, take, write

SIZE = 6 * MIB + 1000


def replace(path: Path, make: Callable[[Path], object]) -> None:
    """Something else where the file was."""
    path.unlink()
    make(path)


def exchange(path: Path, first: int, second: int, size: int) -> None:
    """Swap so many bytes at two places of a file."""
    before = take(path, first, size)
    overwrite(path, first, take(path, second, size))
    overwrite(path, second, before)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a check value": lambda path: flip(path, SLOTS_AT + 2 * SLOT),
    "all check values": lambda path: overwrite(path, SLOTS_AT, os.urandom(SLOT * 64)),
    "the header": lambda path: flip(path, 0),
    "an empty header": lambda path: overwrite(path, 0, bytes(HEADER)),
    "cut to nothing": lambda path: os.truncate(path, 0),
    "cut in the header": lambda path: os.truncate(path, 20),
    "cut in the table": lambda path: os.truncate(path, SLOTS_AT + 20),
    "cut before the data": lambda path: os.truncate(path, DATA_AT),
    "cut in a block": lambda path: os.truncate(path, DATA_AT + 4 * MIB + 4097),
    "cut off a page": lambda path: os.truncate(path, DATA_AT + 2 * MIB + 100),
    "zeros": lambda path: overwrite(path, DATA_AT + MIB, bytes(2 * MIB)),
    "removed": lambda path: path.unlink(),
    "made a directory": lambda path: replace(path, Path.mkdir),
    "made a link": lambda path: replace(path, lambda at: at.symlink_to("/etc/passwd")),
    "made a pipe": lambda path: replace(path, os.mkfifo),
}


@pytest.mark.parametrize("still_open", [True, False])
@pytest.mark.parametrize("name", DAMAGE)
def test_damage(source: Path, one: Cached, name: str, still_open: bool) -> None:
    data = write(source / "a", SIZE)
    one.read(b"/a")
    DAMAGE[name](one.segments()[0])
    if not still_open:
        one.forget()
    for _ in range(3):
        assert one.read(b"/a") == data


def exchange_all(path: Path) -> None:
    """Swap two blocks, and what is noted of them."""
    exchange(path, DATA_AT, DATA_AT + MIB, MIB)
    exchange(path, SLOTS_AT, SLOTS_AT + SLOT, SLOT)


def replace_folder(path: Path, other: Path) -> None:
    shutil.rmtree(path.parent)
    shutil.copytree(other.parent, path.parent)


MIXED: dict[str, Callable[[Path, Path], object]] = {
    "blocks": lambda path, _: exchange(path, DATA_AT, DATA_AT + MIB, MIB),
    "blocks with their check values": lambda path, _: exchange_all(path),
    "segments": lambda path, other: (
        other.rename(aside := path.with_name("aside")),
        path.rename(other),
        aside.rename(path),
    ),
    "versions": replace_folder,
}


@pytest.mark.parametrize("name", MIXED)
def test_what_got_to_another_place_does_not_fit(source: Path, one: Cached, name: str) -> None:
    data, other = write(source / "a", SIZE), write(source / "b", SIZE, seed=1)
    one.read(b"/a")
    one.read(b"/b")
    MIXED[name](*one.segments())
    one.forget()
    assert one.read(b"/a") == data
    assert one.read(b"/b") == other
    assert one.store.cache.stats["damaged"] == (1 if name == "versions" else 2)
    assert one.fetched(b"/a") == one.fetched(b"/b") == 0


@pytest.mark.parametrize("what", [".", "stripefs-1/versions", "stripefs-1/usage", "stripefs-1/versions/*/*/about"])
def test_what_is_removed_is_made_again(source: Path, folder: Path, one: Cached, what: str) -> None:
    data = write(source / "a", SIZE)
    one.read(b"/a")
    for path in [folder] if what == "." else list(folder.glob(what)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for _ in range(3):
        assert one.read(b"/a") == data
    one.forget()
    assert one.read(b"/a") == data
    assert one.fetched(b"/a") == 0


def refuse_at_open(patch: pytest.MonkeyPatch) -> None:
    whole = os.open

    def refusing(path: str, flags: int, *args: int, **names: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return whole(path, flags, *args, **names)

    patch.setattr(os, "open", refusing)


def refuse_late(patch: pytest.MonkeyPatch) -> None:
    """Reads into memory that O_DIRECT does not take, which is then copied to where it belongs."""
    whole = CacheSegment.read

    def reading(segment: CacheSegment, blocks: range, into: memoryview, skip: int = 0, *, shared: bool = False) -> None:
        odd = memoryview(bytearray(len(into) + 1))[1:]
        whole(segment, blocks, odd, skip, shared=shared)
        into[:] = odd

    patch.setattr(CacheSegment, "read", reading)


@pytest.mark.parametrize("refuse", [refuse_at_open, refuse_late])
def test_a_disk_that_takes_no_direct_access_serves_through_the_page_cache(
    source: Path, one: Cached, monkeypatch: pytest.MonkeyPatch, refuse: Callable[[pytest.MonkeyPatch], None]
) -> None:
    data = write(source / "a", SIZE)
    refuse(monkeypatch)
    assert one.read(b"/a") == data
    assert one.fetched(b"/a") == 0
    assert one.read(b"/a") == data
    assert not any(segment.direct for segment in one.store.cache.segments._open.values())
