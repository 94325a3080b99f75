"""gc finds what crashes left and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stripefs.errors import StoreError
from stripefs.format.manifest import Segment
from stripefs.gc.rules import GcVerdict
from stripefs.store.base import Capabilities, Store
from tests.support.leftovers import DAY, Hooked, Place, version
from tests.support.shifted_store import Shifted
from tests.unit.stripefs.gc.collecting import OLD, collect, crashes, files, kept, removed


def test_all_rubbish_goes_and_nothing_else(place: Place) -> None:
    good = files(place, OLD)
    rubbish = crashes(place, OLD)
    before = place.everything()

    tried = collect(place, dry_run=True)
    assert removed(tried) == rubbish
    assert place.everything() == before

    found = collect(place)
    assert removed(found) == rubbish
    assert (found.removed, found.size, found.trouble, found.kept) == (len(rubbish), tried.size, [], {})
    assert place.everything() == good
    assert not (place.root / ".stripefs" / version(5)).exists()
    assert collect(place).removed == 0


def test_what_is_younger_than_a_day_stays_unless_forced(place: Place) -> None:
    good = files(place, 0)
    rubbish = crashes(place, DAY / 2)
    before = place.everything()
    found = collect(place)
    assert (found.removed, place.everything()) == (0, before)
    assert kept(found) == {GcVerdict.YOUNG: len(rubbish)}
    assert removed(collect(place, force=True)) == rubbish
    assert place.everything() == good


def test_force_spares_what_is_younger_than_two_minutes(place: Place) -> None:
    rubbish = crashes(place, 60)
    assert kept(collect(place, force=True)) == {GcVerdict.YOUNG: len(rubbish)}


@pytest.mark.parametrize("force", [False, True])
def test_a_live_lock_protects_its_versions_wherever_they_are(place: Place, force: bool) -> None:
    crashes(place, OLD)
    place.lock("d", "model", [version(1), version(5)], 10)
    place.lock("d/deep", "moved", [version(3)], 50)
    before = place.everything()
    found = collect(place, force=force)
    assert removed(found) == set()
    assert place.everything() == before
    assert set(kept(found)) == {GcVerdict.LEASED}


@pytest.mark.parametrize("seconds", [-400 * DAY, 400 * DAY])
def test_only_the_stores_clock_counts(place: Place, seconds: float) -> None:
    files(place, OLD)
    old = crashes(place, OLD)
    assert removed(collect(place, Shifted(place.store, seconds), dry_run=True)) == old
    crashes(place, DAY / 2)
    assert removed(collect(place, Shifted(place.store, seconds))) == set()


def test_a_store_without_times_is_left_alone(place: Place) -> None:
    crashes(place, OLD)
    before = place.everything()
    with pytest.raises(StoreError, match="no times"):
        collect(place, Shifted(place.store, None))
    assert place.everything() == before


def test_records_keep_what_can_be_recovered_for_a_week(place: Place) -> None:
    place.hidden("d", "model", f"{version(1)}-0", 20 * DAY, b"12345")
    place.record("d", "model", place.concat_record("d", "model", version(1), [5]), 6 * DAY)
    parts = place.parts(version(2), b"y" * 10_000, 2, 20 * DAY)
    segment = Segment(10_000, parts)
    place.record("d", "striped", place.striped_record("d", "striped", version(2), [segment]), 6 * DAY)
    before = place.everything()

    found = collect(place)
    assert (removed(found), place.everything()) == (set(), before)
    assert kept(found) == {GcVerdict.RECOVERABLE: 4}
    assert found.recoverable == [b"/d/model", b"/d/striped"]

    for path in (place.root / "d").iterdir():
        place.age(str(path.relative_to(place.root)), 8 * DAY)
    assert len(removed(collect(place, dry_run=True))) == 4
    assert place.everything() == before
    place.age("d", DAY / 2)
    assert len(removed(collect(place, force=True))) == 4


def test_records_of_published_files_go(place: Place) -> None:
    manifest = place.striped("d/striped", version(1), seconds=OLD)
    place.record("d", "striped", place.striped_record("d", "striped", version(1), manifest.segments), OLD)
    place.file("d/spoiled", b"", OLD)
    place.hidden("d", "spoiled", f"{version(2)}-record", OLD, b"no record")
    assert removed(collect(place)) == {
        f"d/.striped.stripefs-{version(1)}-record",
        f"d/.spoiled.stripefs-{version(2)}-record",
    }


def test_a_record_seen_from_another_root_is_kept(tmp_path: Path) -> None:
    whole = Place(tmp_path)
    parts = whole.parts(version(2), b"y" * 10_000, 2, OLD)
    segment = Segment(10_000, parts)
    whole.record("d", "striped", whole.striped_record("d", "striped", version(2), [segment]), OLD)
    below = Place(tmp_path / "d")
    assert kept(collect(below)) == {GcVerdict.RECOVERABLE: 1}
    whole.close()
    below.close()


def stray(place: Place, number: int, seconds: float = OLD) -> str:
    """A part of a published version that its manifest does not name."""
    place.file(f".stripefs/{version(number)}/17", b"stray")
    place.age(f".stripefs/{version(number)}", seconds)
    return f".stripefs/{version(number)}/17"


def test_what_a_published_version_does_not_need_goes(place: Place) -> None:
    manifest = place.striped("d/striped", version(1), seconds=OLD)
    place.striped("d/other", version(2), seconds=OLD)
    good = place.everything()
    path = stray(place, 1)
    assert removed(collect(place, dry_run=True)) == {path}
    assert removed(collect(place)) == {path}
    assert place.everything() == good
    # A generation that was being written behind the published one when its writer died.
    path = stray(place, 1)
    parts = (*manifest.segments, Segment(1, place.parts(version(3), b"z", 1, OLD)))
    place.record("d", "striped", place.striped_record("d", "striped", version(1), parts), OLD)
    assert removed(collect(place)) == set()


@pytest.mark.parametrize("why", ["young", "leased", "shared", "moved"])
def test_what_a_published_version_may_need_stays(place: Place, why: str) -> None:
    place.striped("d/striped", version(1), seconds=OLD)
    path = stray(place, 1)
    store: Store = place.store
    if why == "young":
        stray(place, 1, DAY / 2)
    elif why == "leased":
        place.lock("d", "other", [version(1)], 10)
    elif why == "shared":
        place.file("d/copy", (place.root / "d/striped").read_bytes(), OLD)
    else:

        def before(call: str, where: bytes) -> None:
            if call == "scandir" and where.endswith(version(1).encode()) and (place.root / "d/striped").exists():
                os.rename(place.root / "d/striped", place.root / "d/elsewhere")

        store = Hooked(place.store, before)
    assert removed(collect(place, store)) == set()
    assert path in place.everything()


def test_any_number_in_bounded_memory(place: Place) -> None:
    good = files(place, OLD)
    rubbish = crashes(place, OLD)
    for number in range(1000, 1007):
        place.parts(version(number), b"x", 1, OLD)
        place.hidden("many", f"f{number}", f"{version(number)}-0", OLD)
    tried = collect(place, most=3, dry_run=True)
    assert "more hidden files" in tried.trouble[0][1]
    found = collect(place, most=3)
    # A lock that found no room among the suspects goes with its file's, uncounted.
    assert found.removed - len(rubbish) - 14 in (0, -1)
    assert (found.trouble, place.everything()) == ([], good)


def test_a_folder_of_the_pool_that_holds_something_else_is_named(place: Place) -> None:
    place.parts(version(5), b"x", 1, OLD)
    (place.root / ".stripefs" / version(5) / "folder").mkdir()
    place.age(f".stripefs/{version(5)}", OLD)
    found = collect(place)
    assert found.trouble == [(f"/.stripefs/{version(5)}".encode(), "it holds what no writer put there")]


def test_links_are_not_followed(place: Place, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = Place(tmp_path_factory.mktemp("outside"))
    crashes(outside, OLD)
    (place.root / "link").symlink_to(outside.root)
    (place.root / ".model.stripefs-lock").symlink_to(outside.root / "d" / ".model.stripefs-lock")
    before = outside.everything()
    assert removed(collect(place)) == set()
    assert outside.everything() == before
    outside.close()


def test_a_store_without_locks_goes_by_age(place: Place) -> None:
    rubbish = crashes(place, OLD)
    store = Hooked(place.store, lambda call, path: None)
    store.capabilities = Capabilities(put=True, writes=True)
    assert removed(collect(place, store)) == rubbish
