"""gc finds what crashes left and nothing else, beside others who write, move and collect; a thing that it cannot read,
list or remove keeps all that it might need, and is named."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stripefs.errors import NoSpace, PermissionDenied, QuotaExceeded, ServiceDown, StoreError, Unsupported
from stripefs.format.manifest import Manifest, Segment
from stripefs.gc.rules import GcVerdict
from stripefs.store.base import Capabilities, Store
from stripefs.write.file_lock import acquire
from tests.support.leftovers import DAY, Hooked, Place, version
from tests.support.shifted_store import Shifted
from tests.unit.stripefs.gc.conftest import OLD, collect, crashes, files, kept, removed


def size(place: Place) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in place.root.rglob("*") if path.is_file())


def test_all_rubbish_goes_and_nothing_else(place: Place) -> None:
    good = files(place, OLD)
    rubbish = crashes(place, OLD)
    before = place.everything()

    tried = collect(place, dry_run=True)
    assert removed(tried) == rubbish
    assert place.everything() == before

    stored = size(place)
    found = collect(place)
    assert removed(found) == rubbish
    assert (found.removed, found.trouble, found.kept) == (len(rubbish), [], {})
    assert found.size == tried.size == stored - size(place)
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
    crashes(place, 60)
    assert kept(collect(place, force=True)) == {GcVerdict.YOUNG: len(rubbish)}
    crashes(place, DAY / 2)
    assert removed(collect(place, force=True)) == rubbish
    assert place.everything() == good


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
    rubbish = {stray(place, 1), f"d/.striped.stripefs-{version(1)}-record"}
    place.record("d", "striped", place.striped_record("d", "striped", version(1), manifest.segments), OLD)
    assert removed(collect(place, dry_run=True)) == rubbish
    assert removed(collect(place)) == rubbish
    assert place.everything() == good
    # A generation that was being written behind the published one when its writer died.
    stray(place, 1)
    parts = (*manifest.segments, Segment(1, place.parts(version(3), b"z", 1, OLD)))
    place.record("d", "striped", place.striped_record("d", "striped", version(1), parts), OLD)
    assert removed(collect(place)) == set()


@pytest.mark.parametrize("why", ["young", "one part is young", "leased", "shared", "moved"])
def test_what_a_published_version_may_need_stays(place: Place, why: str) -> None:
    place.striped("d/striped", version(1), seconds=OLD)
    path = stray(place, 1)
    store: Store = place.store
    if why == "young":
        stray(place, 1, DAY / 2)
    elif why == "one part is young":  # though the folder did not change for long
        os.utime(place.root / path)
    elif why == "leased":
        place.lock("d", "other", [version(1)], 10)
    elif why == "shared":
        place.file("d/copy", (place.root / "d/striped").read_bytes(), OLD)
    else:

        def before(call: str, where: bytes) -> None:
            if call == "scandir" and where.endswith(version(1).encode()) and (place.root / "d/striped").exists():
                os.rename(place.root / "d/striped", place.root / "d/elsewhere")

        store = Hooked(place.store, before)
    found = collect(place, store)
    assert removed(found) == set()
    assert path in place.everything()
    if why == "one part is young":
        assert found.kept == {GcVerdict.YOUNG: (1, len(b"stray"))}


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


# -- beside others


@pytest.mark.parametrize(("below", "moved"), [("", "striped"), ("run/deep/", "run")])
def test_what_is_moved_past_the_walk_keeps_its_parts(place: Place, below: str, moved: str) -> None:
    place.file("a/first", seconds=OLD)
    place.file("m/middle", seconds=OLD)
    place.striped(f"z/{below}striped", version(1), seconds=OLD)
    for folder in ("a", "m", "z", *(["z/run", "z/run/deep"] if below else [])):
        os.utime(place.root / folder, (1, 1))
    good = place.everything()

    def before(call: str, path: bytes) -> None:
        if (call, path) == ("scandir", b"/m") and (place.root / "z" / moved).exists():
            os.rename(place.root / "z" / moved, place.root / "a" / moved)

    found = collect(place, Hooked(place.store, before))
    assert (removed(found), found.trouble) == (set(), [])
    assert place.everything() == good - {f"z/{below}striped"} | {f"a/{below}striped"}


def test_files_that_never_rest_keep_everything(place: Place) -> None:
    place.file("a/first", seconds=OLD)
    place.file("m/middle", seconds=OLD)
    for number in range(10):
        place.striped(f"z/{number}", version(number), seconds=OLD)
    place.parts(version(99), b"x", 1, OLD)
    hiding = list(range(10))

    def before(call: str, path: bytes) -> None:
        """Hidden files are in z while a is listed and in a afterwards; one after the other stops."""
        if (call, path) == ("scandir", b"/a"):
            for number in hiding:
                if (place.root / f"a/{number}").exists():
                    os.rename(place.root / f"a/{number}", place.root / f"z/{number}")
        if (call, path) == ("scandir", b"/m"):
            for number in hiding:
                os.rename(place.root / f"z/{number}", place.root / f"a/{number}")
            hiding.pop()

    found = collect(place, Hooked(place.store, before))
    assert removed(found) == set()
    assert "being moved about" in found.trouble[0][1]


def test_what_changes_before_it_goes_stays(place: Place) -> None:
    crashes(place, OLD)
    touched = {f"/d/.model.stripefs-{version(1)}-5000000000", f"/.stripefs/{version(5)}"}

    def before(call: str, path: bytes) -> None:
        name = path.decode("utf-8", "replace")
        if call == "stat" and name in touched:
            touched.remove(name)
            os.utime(place.root / name[1:])

    found = collect(place, Hooked(place.store, before))
    assert kept(found) == {GcVerdict.YOUNG: 2}
    assert not touched


def test_a_writer_that_begins_meanwhile_is_safe(place: Place) -> None:
    rubbish = crashes(place, OLD)
    leases = []

    def before(call: str, path: bytes) -> None:
        if call == "remove" and not leases and b"/d/deep" in path:
            leases.append(acquire(place.store, b"/d/model"))

    found = collect(place, Hooked(place.store, before))
    assert kept(found) == {GcVerdict.LEASED: 6}
    assert len(removed(found)) == len(rubbish) - 6
    leases[0].check()
    leases[0].release()


def test_two_collections_at_once(place: Place) -> None:
    good = files(place, OLD)
    crashes(place, OLD)
    for number in range(1000, 1040):
        place.parts(version(number), b"x", 1, OLD)
        place.hidden("many", f"f{number}", f"{version(number)}-0", OLD)
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(collect, [place, place]))
    assert [found.trouble for found in results] == [[], []]
    collect(place)
    assert place.everything() == good


# -- trouble


FOLDER, PART = f".stripefs/{version(5)}", f"d/.model.stripefs-{version(1)}-0"
ASIDE, LOCK = f"d/.model.stripefs-{version(1)}-5000000000", "d/.model.stripefs-lock"


@pytest.mark.parametrize(
    ("call", "end", "error", "times", "stays", "left", "told"),
    [
        ("scandir", "/private", PermissionDenied, 999, FOLDER, {f"{FOLDER}/0", f"{FOLDER}/1"}, "/private"),
        ("remove", ASIDE, PermissionDenied, 999, PART, {ASIDE}, f"/{PART}"),  # moved away from its writer
        ("remove", f"{FOLDER}/1", PermissionDenied, 999, FOLDER, {f"{FOLDER}/1"}, f"/{FOLDER}"),
        *[("put", "-lock", error, 999, LOCK, {LOCK}, "/d/model") for error in (NoSpace, QuotaExceeded)],
        ("scandir", "/d", ServiceDown, 2, "", set(), ""),
        ("stat", FOLDER, ServiceDown, 1, "", set(), ""),
    ],
)
def test_what_fails_is_named_and_stops_nothing_else(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    end: str,
    error: type[StoreError],
    times: int,
    stays: str,
    left: set[str],
    told: str,
) -> None:
    """A directory that cannot be listed keeps the pool, too. A service that is away for a moment is waited for."""
    rubbish = crashes(place, OLD)
    place.file("private/x")
    errors = itertools.repeat(error("no"), times)

    def before(name: str, path: bytes) -> None:
        if name == call and path.endswith(end.encode()) and (failure := next(errors, None)):
            raise failure

    monkeypatch.setattr("stripefs.retry.FIRST_RETRY", 0.0)
    found = collect(place, Hooked(place.store, before))
    assert removed(found) == rubbish - {stays}
    assert found.trouble == ([(told.encode(), "no")] if told else [])
    assert place.everything() == left | {"private/x"}
    assert bool(told) == bool(next(errors, None))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
        lambda data: data * 100,
    ],
    ids=["a field", "longer"],
)
@pytest.mark.parametrize("force", [False, True])
def test_a_manifest_that_cannot_be_read_keeps_the_pool_and_is_named(
    place: Place, damage: Callable[[bytes], bytes], force: bool
) -> None:
    files(place, OLD)
    crashes(place, OLD)
    target = place.root / "d/striped"
    target.write_bytes(damage(target.read_bytes()))
    before = {path for path in place.everything() if path.startswith(".stripefs/")}
    found = collect(place, force=force)
    assert kept(found) == {GcVerdict.UNKNOWN: 2}
    assert [path for path, _ in found.trouble] == [b"/d/striped"]
    assert "manifest is damaged" in found.trouble[0][1] or "more than the 65536" in found.trouble[0][1]
    assert before <= place.everything()


def test_files_that_users_made_to_look_like_manifests_stop_nothing(place: Place) -> None:
    """One without the mark keeps the versions that it names, whole, and no others."""
    good = place.striped("d/good", version(7), seconds=OLD).to_bytes()
    parts = place.parts(version(5), b"y" * 10_000, 2, OLD)
    lost = Manifest(version(5), 0, 4096, place.view.pool, (Segment(10_000, parts),))
    place.parts(version(6), b"z" * 10_000, 2, OLD)
    place.file("d/copy", lost.to_bytes(), OLD)
    for number, data in enumerate((good[:-1] + b"x", good[:40] + b"\xff" + good[41:], b"x" * 1789)):
        place.file(f"d/user{number}", data, OLD)
    found = collect(place)
    assert found.trouble == []
    assert removed(found) == {f".stripefs/{version(6)}"}


def test_a_lock_that_cannot_be_read_protects_everything_it_might(place: Place) -> None:
    crashes(place, OLD)
    place.hidden("d", "model", "lock", 10, b"no lock")
    found = collect(place)
    assert f".stripefs/{version(5)}" not in removed(found)
    assert [path for path, _ in found.trouble] == [b"/d/.model.stripefs-lock"]


@pytest.mark.root
def test_a_full_disk_is_made_room_on(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], check=True)
    try:
        place = Place(tmp_path)
        rubbish = crashes(place, OLD)
        with (tmp_path / "filling").open("wb", buffering=0) as filling, contextlib.suppress(OSError):
            while True:
                filling.write(bytes(4096))
        with pytest.raises(NoSpace):
            place.store.put(b"/lock", [b"as long as a lock"])
        found = collect(place)
        assert (removed(found), found.trouble) == (rubbish, [])
        assert place.everything() == {"filling"}
        place.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_stores_that_cannot_do_it_are_refused(place: Place) -> None:
    for missing in ("put", "listing"):
        store = Hooked(place.store, lambda call, path: None)
        store.capabilities = Capabilities(**{"put": True, "put_if_absent": True, "writes": True, missing: False})
        with pytest.raises(Unsupported):
            collect(place, store)
