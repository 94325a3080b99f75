"""gc finds what crashes left and nothing else, whatever goes on beside it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs.errors import PermissionDenied, ServiceDown, StoreError, Unsupported
from stripefs.layout.striped import Segment
from stripefs.store.base import Capabilities, Store
from stripefs.store.wrappers.striped import StripedStore
from stripefs.write.collect import Collected, Collection
from stripefs.write.lease import take
from stripefs.write.survey import Verdict

from .leftovers import DAY, Hooked, Place, version
from .shifted import Shifted

OLD = 2 * DAY


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


def collect(place: Place, store: Store | None = None, **options: object) -> Collected:
    inner = store or place.store
    return Collection(inner, StripedStore(inner), **options).run()


def removed(found: Collected) -> set[str]:
    return {item.path.decode().removeprefix("/") for item in found.items}


def kept(found: Collected) -> dict[Verdict, int]:
    return {verdict: count for verdict, (count, _) in found.kept.items()}


def crashes(place: Place, seconds: float) -> set[str]:
    """One of each kind of rubbish, so old; what gc should name."""
    place.hidden("d", "model", f"{version(1)}-0", seconds)
    place.hidden("d", "model", f"{version(1)}-draft", seconds)
    place.lock("d", "model", [version(1)], seconds)
    place.record("d", "model", place.concat_record("d", "model", version(2), [4]), seconds)
    place.hidden("d/deep/er", "x" * 240, f"{version(3)}-17", seconds)
    place.file(f"d/..model.stripefs-lock.{version(4)}.tmp", b"", seconds)
    place.parts(version(5), b"y" * 10_000, 2, seconds)
    return {
        f"d/.model.stripefs-{version(1)}-0",
        f"d/.model.stripefs-{version(1)}-draft",
        f"d/.model.stripefs-{version(2)}-record",
        "d/.model.stripefs-lock",
        next(f"d/deep/er/{path.name}" for path in (place.root / "d/deep/er").iterdir()),
        f"d/..model.stripefs-lock.{version(4)}.tmp",
        f".stripefs/{version(5)}",
    }


def files(place: Place, seconds: float) -> set[str]:
    """What is of use, so old; and names that are somebody else's."""
    place.striped("d/striped", version(100), seconds=seconds)
    place.striped("other/deeper/striped", version(101), seconds=seconds)
    place.file("d/model", b"old", seconds)
    place.file("d/.model.swp", b"an editor's", seconds)
    place.file(f"d/.rsync.{version(4)}.tmp", b"a program's own", seconds)
    place.file(f"d/.model.stripefs-{version(1)}-future", b"a newer program's", seconds)
    place.file("d/..stripefs-layout", b"the layout of what is made in a directory", seconds)
    place.file("other/.stripefs/notes", b"the pool of another mount", seconds)
    place.file(f"other/.stripefs/{version(5)}/0", b"the pool of another mount", seconds)
    place.file(".stripefs/notes", b"not a version", seconds)
    return place.everything()


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
    assert kept(found) == {Verdict.YOUNG: len(rubbish)}
    assert removed(collect(place, force=True)) == rubbish
    assert place.everything() == good


def test_force_spares_what_is_younger_than_two_minutes(place: Place) -> None:
    rubbish = crashes(place, 60)
    assert kept(collect(place, force=True)) == {Verdict.YOUNG: len(rubbish)}


@pytest.mark.parametrize("force", [False, True])
def test_a_live_lock_protects_its_versions_wherever_they_are(place: Place, force: bool) -> None:
    crashes(place, OLD)
    place.lock("d", "model", [version(1), version(5)], 10)
    place.lock("d/deep", "moved", [version(3)], 50)
    before = place.everything()
    found = collect(place, force=force)
    assert removed(found) == set()
    assert place.everything() == before
    assert set(kept(found)) == {Verdict.LEASED}


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
    assert kept(found) == {Verdict.RECOVERABLE: 4}
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
    assert kept(collect(below)) == {Verdict.RECOVERABLE: 1}
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


# -- what cannot be read


def test_a_directory_that_cannot_be_listed_keeps_the_pool_and_is_named(place: Place) -> None:
    files(place, OLD)
    rubbish = crashes(place, OLD)
    place.file("private/x")

    def before(call: str, path: bytes) -> None:
        if (call, path) == ("scandir", b"/private"):
            raise PermissionDenied("/private: no permission")

    found = collect(place, Hooked(place.store, before))
    assert removed(found) == rubbish - {f".stripefs/{version(5)}"}
    assert kept(found) == {Verdict.UNKNOWN: 1}
    assert found.trouble == [(b"/private", "/private: no permission")]


def test_a_manifest_that_cannot_be_read_keeps_the_pool_and_is_named(place: Place) -> None:
    files(place, OLD)
    crashes(place, OLD)
    target = place.root / "d/striped"
    data = bytearray(target.read_bytes())
    data[40] ^= 1
    target.write_bytes(data)
    found = collect(place)
    assert kept(found) == {Verdict.UNKNOWN: 2}
    assert [path for path, _ in found.trouble] == [b"/d/striped"]
    assert "damaged" in found.trouble[0][1]


def test_a_lock_that_cannot_be_read_protects_everything_it_might(place: Place) -> None:
    crashes(place, OLD)
    place.hidden("d", "model", "lock", 10, b"no lock")
    found = collect(place)
    assert f".stripefs/{version(5)}" not in removed(found)
    assert [path for path, _ in found.trouble] == [b"/d/.model.stripefs-lock"]


def test_what_cannot_be_removed_stops_nothing_else(place: Place) -> None:
    rubbish = crashes(place, OLD)

    def before(call: str, path: bytes) -> None:
        if call == "remove" and path.endswith(f"{version(1)}-0".encode()):
            raise PermissionDenied("sealed")
        if call == "remove" and path == f"/.stripefs/{version(5)}/1".encode():
            raise PermissionDenied("sealed too")

    found = collect(place, Hooked(place.store, before))
    assert removed(found) == rubbish - {f".stripefs/{version(5)}", f"d/.model.stripefs-{version(1)}-0"}
    assert [text for _, text in found.trouble] == ["sealed", "sealed too"]


def test_a_service_that_is_away_for_a_moment_is_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    rubbish = crashes(place, OLD)
    faults = {b"/d": 2, b"/.stripefs/" + version(5).encode(): 1}

    def before(call: str, path: bytes) -> None:
        if faults.get(path):
            faults[path] -= 1
            raise ServiceDown("the NameNode is away")

    monkeypatch.setattr("stripefs.write.walk.FIRST_PAUSE", 0.0)
    found = collect(place, Hooked(place.store, before))
    assert (removed(found), found.trouble) == (rubbish, [])
    assert not any(faults.values())


def test_stores_that_cannot_do_it_are_refused(place: Place) -> None:
    for missing in ("put", "listing"):
        store = Hooked(place.store, lambda call, path: None)
        store.capabilities = Capabilities(**{"put": True, "put_if_absent": True, "writes": True, missing: False})
        with pytest.raises(Unsupported):
            collect(place, store)


# -- beside others


def moving(place: Place, moves: list[tuple[str, str]], trigger: bytes) -> Hooked:
    """A store in which the next of `moves` is made when the directory `trigger` is about to be listed."""

    def before(call: str, path: bytes) -> None:
        if moves and (call, path) == ("scandir", trigger):
            source, target = moves.pop(0)
            os.rename(place.root / source, place.root / target)

    return Hooked(place.store, before)


def test_a_file_that_is_moved_past_the_walk_keeps_its_parts(place: Place) -> None:
    place.file("a/first", seconds=OLD)
    place.file("m/middle", seconds=OLD)
    place.striped("z/striped", version(1), seconds=OLD)
    for folder in ("a", "m", "z"):
        os.utime(place.root / folder, (1, 1))
    before = place.everything()
    store = moving(place, [("z/striped", "a/striped")], b"/m")
    found = collect(place, store)
    assert (removed(found), found.trouble) == (set(), [])
    assert place.everything() == before - {"z/striped"} | {"a/striped"}


def test_a_whole_directory_that_is_moved_past_the_walk_keeps_its_parts(place: Place) -> None:
    place.file("a/first", seconds=OLD)
    place.file("m/middle", seconds=OLD)
    place.striped("z/run/deep/striped", version(1), seconds=OLD)
    for folder in ("a", "m", "z", "z/run", "z/run/deep"):
        os.utime(place.root / folder, (1, 1))
    found = collect(place, moving(place, [("z/run", "a/run")], b"/m"))
    assert (removed(found), found.trouble) == (set(), [])


def test_files_that_never_rest_keep_everything(place: Place) -> None:
    place.file("a/first", seconds=OLD)
    place.file("m/middle", seconds=OLD)
    for number in range(10):
        place.striped(f"z/{number}", version(number), seconds=OLD)
    place.parts(version(99), b"x", 1, OLD)
    hiding = list(range(10))

    def before(call: str, path: bytes) -> None:
        """Whoever hides is in z while a is listed and in a afterwards; one after the other stops."""
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
    touched = {f"/d/.model.stripefs-{version(1)}-0", f"/.stripefs/{version(5)}"}

    def before(call: str, path: bytes) -> None:
        name = path.decode("utf-8", "replace")
        if call == "stat" and name in touched:
            touched.remove(name)
            os.utime(place.root / name[1:])

    found = collect(place, Hooked(place.store, before))
    assert kept(found) == {Verdict.YOUNG: 2}
    assert not touched


def test_a_writer_that_begins_meanwhile_is_safe(place: Place) -> None:
    rubbish = crashes(place, OLD)
    leases = []

    def before(call: str, path: bytes) -> None:
        if call == "remove" and not leases and b"/d/deep" in path:
            leases.append(take(place.store, b"/d/model"))

    found = collect(place, Hooked(place.store, before))
    assert kept(found) == {Verdict.LEASED: 5}
    assert len(removed(found)) == len(rubbish) - 5
    leases[0].check()
    leases[0].release()


def test_two_collections_at_once(place: Place) -> None:
    good = files(place, OLD)
    crashes(place, OLD)
    for number in range(1000, 1040):
        place.parts(version(number), b"x", 1, OLD)
        place.hidden("many", f"f{number}", f"{version(number)}-0", OLD)
    results: list[Collected] = []
    threads = [threading.Thread(target=lambda: results.append(collect(place))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found.trouble for found in results] == [[], []]
    collect(place)
    assert place.everything() == good


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
