"""A writer that dies between any two calls to the store: recovery gives what its last fsync promised, or what the next
one would have, and a chain of records with a damaged or missing link gives no shorter file as if that were whole."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stripefs.errors import NotFound
from stripefs.format.lock_and_record import DocumentError
from stripefs.format.reserved_names import parse_reserved
from stripefs.gc.recover import recover
from stripefs.gc.rules import GcVerdict
from stripefs.gc.store_reads import find_records
from stripefs.store.base import Store
from stripefs.store.striped import StripedStore
from stripefs.store.wrapper import Parser, WrappedStore
from stripefs.testing.throttled import FOLDER
from stripefs.write import Layout
from tests.support.leftovers import DAY, Place
from tests.support.uploads import KIB, content, hidden, load, spread, writing
from tests.unit.stripefs.gc.conftest import collect, kept, removed

STEP = 24 * KIB
FSYNCS = 6


class Snapshots(WrappedStore):
    """Calls `look` before each call that changes something, and after it."""

    NAME = "snapshots"
    PARAMETERS: ClassVar[dict[str, Parser]] = {}

    def __init__(self, inner: Store, look: Callable[[], None]) -> None:
        super().__init__(inner)
        self._look = look

    def on_change(self, call: str, paths: tuple[bytes, ...], act: Callable[[], Any]) -> Any:
        self._look()
        try:
            return act()
        finally:
            self._look()


def being_written(folder: str, names: list[str]) -> list[str]:
    """Documents that the store of simulated hosts is writing, by other threads."""
    return [name for name in names if name.endswith(".tmp")] if folder.endswith(os.fsdecode(FOLDER)) else []


@pytest.mark.parametrize("layout", [Layout.STRIPED, Layout.PLAIN])
async def test_between_any_two_calls(tmp_path: Path, layout: Layout) -> None:
    data = content(FSYNCS * STEP)
    root = tmp_path / "root"
    root.mkdir()
    at = {"promised": 0, "asked": 0}
    taken: dict[tuple[str, ...], tuple[Path, int, int]] = {}
    turn = threading.Lock()

    def look() -> None:
        with turn:
            names = tuple(sorted(hidden(root) | {path.name for path in root.iterdir()}))
            if names not in taken:
                copy = tmp_path / f"copy{len(taken)}"
                shutil.copytree(root, copy, ignore=being_written)
                taken[names] = copy, at["promised"], at["asked"]

    store = Snapshots(spread(root), look)
    store.capabilities = dataclasses.replace(store.capabilities, concat=False)
    async with writing(store, layout=layout, small=16 * KIB, unit=4 * KIB) as uploads:
        upload = await uploads.begin(b"/file", replacing=None)
        for _ in range(FSYNCS):
            start = at["asked"]
            at["asked"] = start + STEP
            await upload.write(start, data[start : start + STEP])
            await upload.sync()
            at["promised"] = at["asked"]
        await upload.abandon(recoverable=True)
    assert len(taken) > 2 * FSYNCS
    for copy, promised, asked in taken.values():
        assert recovered(copy) in (data[:promised], data[:asked])


def recovered(root: Path) -> bytes:
    """The file that `stripefs recover` makes once the writer's lock has run out; b"" where there is no record."""
    (root / ".file.stripefs-lock").unlink(missing_ok=True)
    store = spread(root)
    try:
        plan = recover(store, StripedStore(store), b"/file")
    except NotFound:
        return b""
    found = load(store, b"/file")
    assert plan.complete
    assert plan.length == len(found)
    return found


async def chain(root: Path) -> list[Path]:
    """Two fsyncs leave a record and one that continues it."""
    store = spread(root)
    data = content(2 * STEP)
    async with writing(store, layout=Layout.STRIPED, small=16 * KIB, unit=4 * KIB) as uploads:
        upload = await uploads.begin(b"/file", replacing=None)
        for start in range(0, len(data), STEP):
            await upload.write(start, data[start : start + STEP])
            await upload.sync()
        await upload.abandon(recoverable=True)
    number = {path: parse_reserved(path.name.encode()) for path in root.glob("*-record*")}
    assert len(number) == 2
    return sorted(number, key=lambda path: number[path].number)  # type: ignore[union-attr]


def flip(record: Path) -> None:
    damaged = bytearray(record.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    record.write_bytes(damaged)


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda oldest, newest: oldest.unlink(), "continues record 0, which is missing"),
        (lambda oldest, newest: shutil.copy(newest, oldest), "continues record 0, which is another one"),
        (lambda oldest, newest: flip(oldest), "sum does not match"),
        (lambda oldest, newest: oldest.write_bytes(oldest.read_bytes()[:-40]), "another one or damaged"),
        (lambda oldest, newest: flip(newest), "sum does not match"),
    ],
    ids=["missing", "another", "flipped", "cut", "spoiled"],
)
async def test_a_chain_that_does_not_hold_is_named(
    tmp_path: Path, harm: Callable[[Path, Path], object], why: str
) -> None:
    harm(*await chain(tmp_path))
    store = spread(tmp_path)
    before = hidden(tmp_path)
    with pytest.raises(DocumentError, match=why):
        recover(store, StripedStore(store), b"/file")
    assert hidden(tmp_path) == before
    assert not (tmp_path / "file").exists()
    async with writing(store, layout=Layout.STRIPED) as uploads:
        upload = await uploads.begin(b"/file", replacing=None)
        await upload.write(0, b"later")
        await upload.sync()
        await upload.abandon(recoverable=True)
    recover(store, StripedStore(store), b"/file")
    assert load(store, b"/file") == b"later"


async def test_records_that_are_merged_meanwhile_are_read_again(tmp_path: Path) -> None:
    """Their writer merges two records right before one of them is read."""
    oldest, newest = await chain(tmp_path)
    store: Any = spread(tmp_path)
    [found] = find_records(store, b"/file")
    copies = {path: path.read_bytes() for path in (oldest, newest)}
    merged, get = tmp_path / newest.name.replace("-record-1", "-record-2"), store.get
    for reached in copies:

        def merging(path: bytes, reached: Path = reached) -> Any:
            if path == b"/" + reached.name.encode() and not merged.exists():
                merged.write_bytes(found.record.to_bytes())
                newest.unlink()
                oldest.unlink()
            return get(path)

        store.get = merging
        [again] = find_records(store, b"/file")
        assert (again.record, len(again.paths)) == (found.record, 1)
        for path, data in copies.items():
            path.write_bytes(data)
        merged.unlink()


async def test_gc_keeps_a_chain_as_long_as_its_newest_record_and_not_what_was_merged(tmp_path: Path) -> None:
    oldest, newest = await chain(tmp_path)
    place = Place(tmp_path)
    place.age("", 30 * DAY)
    place.age(newest.name, 2 * DAY)
    stale = tmp_path / newest.name.replace("-record-1", "-record-7")
    newest.rename(stale)  # it says that it continues the oldest: a number may be missing
    merged = newest
    merged.write_bytes(stale.read_bytes())
    place.age(merged.name, 2 * DAY)
    found = collect(place)
    assert removed(found) == {merged.name}
    assert found.recoverable == [b"/file"]
    assert kept(found)[GcVerdict.RECOVERABLE] == 3  # two records, and the version in the pool
    assert {oldest.name, stale.name} <= hidden(tmp_path)
    assert recovered(tmp_path) == content(2 * STEP)
    assert not [name for name in hidden(tmp_path) if "record" in name]
    place.close()
