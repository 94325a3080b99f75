"""A directory that shows as empty: what dead writers left in it goes, at once where that is certain, nothing else."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import trio

from stripefs.errors import NotEmpty, PermissionDenied
from stripefs.format.lock_and_record import LEASE
from stripefs.format.manifest import Segment
from stripefs.format.reserved_names import part_name
from stripefs.gc.collect import clear_for_rmdir
from stripefs.gc.rules import FORCED_AGE, RECOVERABLE
from stripefs.store.base import Capabilities, Store
from stripefs.store.striped import StripedStore
from stripefs.write import Layout
from tests.support.leftovers import DAY, Hooked, Place, version
from tests.support.uploads import MIB, content, load, spread, until, writing
from tests.unit.stripefs.gc.conftest import collect

DEAD = LEASE + 5
"""Seconds since a writer was heard of last that has lost its lock."""


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()


def clear(place: Place, store: Store | None = None, **options: object) -> set[str]:
    """Vacate /d; what stays in it."""
    inner = store or place.store
    clear_for_rmdir(inner, StripedStore(inner), b"/d", **options)  # type: ignore[arg-type]  # passed on
    return left(place)


def left(place: Place) -> set[str]:
    return {path.name for path in (place.root / "d").iterdir()}


def stays(
    place: Place, caplog: pytest.LogCaptureFixture, why: str, store: Store | None = None, **options: object
) -> None:
    """Nothing is removed, and the log says why and what to do."""
    before = left(place)
    with pytest.raises(NotEmpty, match=why):
        clear(place, store, **options)
    assert left(place) == before
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert why in caplog.text
    assert "stripefs gc" in caplog.text


def test_what_a_writer_left_whose_lock_ran_out_goes_however_young(place: Place) -> None:
    for name in ("model", "x" * 240):
        place.hidden("d", name, f"{version(1)}-0", 0)
        place.hidden("d", name, f"{version(1)}-draft", 0)
        place.lock("d", name, [version(1), version(2)], DEAD)
    place.file("d/..stripefs-layout", b"striped\n")
    assert clear(place) == {"..stripefs-layout"}


def test_what_no_lock_names_goes_when_no_lock_can_be_on_its_way(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.hidden("d", "model", f"{version(1)}-0", FORCED_AGE - 10)
    place.file(f"d/..model.stripefs-lock.{version(4)}.tmp", b"", FORCED_AGE - 10)
    place.lock("d", "other", [version(3)], DEAD)
    (place.root / "d/.other.stripefs-lock").unlink()
    stays(place, caplog, "2 too young")
    place.age("d", FORCED_AGE + 10)
    assert clear(place) == set()


@pytest.mark.parametrize("name", ["model", "another"])
def test_a_lock_that_lives_keeps_everything(place: Place, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """Also what belongs to other files, since a writer may rename its file."""
    place.hidden("d", "model", f"{version(1)}-0", 9 * DAY)
    place.lock("d", "gone", [version(1)], DEAD)
    place.lock("d", name, [version(2)], LEASE - 10)
    stays(place, caplog, "3 of writers that are at work")


def test_a_directory_that_was_never_given_its_name_goes(place: Place) -> None:
    """An HDFS client was killed between making it and renaming it."""
    made = place.root / "d" / os.fsdecode(part_name(b"new", version(1), 0))
    made.mkdir()
    os.utime(made, (1, 1))
    assert clear(place) == set()
    made.mkdir()
    os.utime(made, (1, 1))
    assert [item.path for item in collect(place).items] == [b"/d/" + os.fsencode(made.name)]
    assert left(place) == set()


def test_what_the_mounts_own_writers_have_stays(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.hidden("d", "unlinked", f"{version(1)}-0", 9 * DAY)
    stays(place, caplog, "at work", used={version(1)})


def test_what_can_be_recovered_stays_for_a_week(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    parts = place.parts(version(2), b"y" * 10_000, 2, 20 * DAY)
    record = place.striped_record("d", "striped", version(2), [Segment(10_000, parts)])
    place.record("d", "striped", record, RECOVERABLE - DAY)
    place.hidden("d", "model", f"{version(1)}-0", 20 * DAY, b"12345")
    place.record("d", "model", place.concat_record("d", "model", version(1), [5]), RECOVERABLE - DAY)
    place.lock("d", "model", [version(1)], DEAD)
    with pytest.raises(NotEmpty, match="3 kept for stripefs recover"):
        clear(place)
    assert "stripefs gc" in caplog.text
    assert left(place) == {
        f".striped.stripefs-{version(2)}-record",
        f".model.stripefs-{version(1)}-record",
        f".model.stripefs-{version(1)}-5000000000",  # moved away from its writer, where recover finds it
    }
    place.age("d", RECOVERABLE + DAY)
    assert clear(place) == set()
    assert len(list((place.root / ".stripefs" / version(2)).iterdir())) == 2  # the pool is for gc


def test_what_is_not_ours_keeps_everything(place: Place) -> None:
    place.hidden("d", "model", f"{version(1)}-0", 9 * DAY)
    for other in ("file", f".model.stripefs-{version(1)}-future", ".stripefs"):
        place.file(f"d/{other}", b"not a writer's")
        with pytest.raises(NotEmpty):
            clear(place)
        assert left(place) == {f".model.stripefs-{version(1)}-0", other}
        (place.root / "d" / other).unlink()
    (place.root / f"d/.model.stripefs-{version(2)}-0").mkdir()
    with pytest.raises(NotEmpty):
        clear(place)


def test_what_cannot_be_removed_is_named(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.hidden("d", "model", f"{version(1)}-0", 9 * DAY)

    def before(call: str, path: bytes) -> None:
        if call == "remove" and path.endswith(f"{version(1)}-0".encode()):
            raise PermissionDenied("sealed")

    stays(place, caplog, "sealed", Hooked(place.store, before))


def test_a_store_without_locks_goes_by_the_age_of_gc(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    store = Hooked(place.store, lambda call, path: None)
    store.capabilities = Capabilities(put=True, writes=True)
    place.hidden("d", "model", f"{version(1)}-0", DAY - 60)
    stays(place, caplog, "too young", store)
    place.age("d", DAY + 60)
    assert clear(place, store) == set()


@pytest.mark.parametrize("layout", [Layout.CONCAT, Layout.PLAIN])
async def test_a_file_that_is_renamed_while_it_is_written_keeps_its_parts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, layout: Layout
) -> None:
    """They lie in the directory that it left, where a lock says that somebody needs them, for every other mount."""
    store = spread(tmp_path)
    (tmp_path / "e").mkdir()
    data = content(3 * MIB)

    def hidden(folder: str) -> set[str]:
        return {path.name for path in (tmp_path / folder).iterdir() if "stripefs-" in path.name}

    async with writing(store, layout=layout) as uploads:
        upload = await uploads.begin(b"/d/model", replacing=None)
        await upload.write(0, data[: 2 * MIB])
        await upload.sync()
        (record,) = (name for name in hidden("d") if name.endswith("-record"))
        async with upload.moving(b"/e/model"):
            pass
        (tmp_path / "d" / record).unlink()  # it would keep them, too
        os.utime(tmp_path / "e")
        kept = {name for name in hidden("d") if "lock" not in name}
        assert kept
        for name in kept:
            os.utime(tmp_path / "d" / name, (1, 1))
        assert hidden("d") - kept == {f".{upload.version}.stripefs-lock"}
        with pytest.raises(NotEmpty):
            await trio.to_thread.run_sync(clear_for_rmdir, store, StripedStore(store), b"/d")
        assert kept < hidden("d")
        for name in (f"d/.{upload.version}.stripefs-lock", "e/.model.stripefs-lock"):
            os.utime(tmp_path / name, (1, 1))
        await uploads.heartbeat.beat()
        with pytest.raises(NotEmpty):
            await trio.to_thread.run_sync(clear_for_rmdir, store, StripedStore(store), b"/d")
        await upload.write(2 * MIB, data[2 * MIB :])
        await upload.publish(final=True)
    assert load(store, b"/e/model") == data
    await until(lambda: not hidden("d") and hidden("e") == set())
