"""gc beside others who write, move and collect."""

from __future__ import annotations

import os
import threading

import pytest

from stripefs.gc.collect import Collected
from stripefs.gc.rules import GcVerdict
from stripefs.write.file_lock import acquire
from tests.support.leftovers import Hooked, Place, version
from tests.unit.stripefs.gc.collecting import OLD, collect, crashes, files, kept, removed


def moving(place: Place, moves: list[tuple[str, str]], trigger: bytes) -> Hooked:
    """A store in which the next of `moves` is made when the directory `trigger` is about to be listed."""

    def before(call: str, path: bytes) -> None:
        if moves and (call, path) == ("scandir", trigger):
            source, target = moves.pop(0)
            os.rename(place.root / source, place.root / target)

    return Hooked(place.store, before)


@pytest.mark.parametrize(("below", "moved"), [("", "striped"), ("run/deep/", "run")])
def test_what_is_moved_past_the_walk_keeps_its_parts(place: Place, below: str, moved: str) -> None:
    place.file("a/first", seconds=OLD)
    place.file("m/middle", seconds=OLD)
    place.striped(f"z/{below}striped", version(1), seconds=OLD)
    for folder in ("a", "m", "z", *(["z/run", "z/run/deep"] if below else [])):
        os.utime(place.root / folder, (1, 1))
    before = place.everything()
    found = collect(place, moving(place, [(f"z/{moved}", f"a/{moved}")], b"/m"))
    assert (removed(found), found.trouble) == (set(), [])
    assert place.everything() == before - {f"z/{below}striped"} | {f"a/{below}striped"}


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
    assert kept(found) == {GcVerdict.LEASED: 5}
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
