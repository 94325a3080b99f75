"""A thing that gc cannot read, list or remove keeps all that it might need, and is named."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stripefs.errors import NoSpace, PermissionDenied, QuotaExceeded, ServiceDown, StoreError, Unsupported
from stripefs.format.manifest import Manifest, Segment
from stripefs.gc.rules import GcVerdict
from stripefs.store.base import Capabilities
from tests.support.leftovers import Hooked, Place, version
from tests.unit.stripefs.gc.collecting import OLD, collect, crashes, files, kept, removed


def test_a_directory_that_cannot_be_listed_keeps_the_pool_and_is_named(place: Place) -> None:
    files(place, OLD)
    rubbish = crashes(place, OLD)
    place.file("private/x")

    def before(call: str, path: bytes) -> None:
        if (call, path) == ("scandir", b"/private"):
            raise PermissionDenied("/private: no permission")

    found = collect(place, Hooked(place.store, before))
    assert removed(found) == rubbish - {f".stripefs/{version(5)}"}
    assert kept(found) == {GcVerdict.UNKNOWN: 1}
    assert found.trouble == [(b"/private", "/private: no permission")]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: b"",
        lambda data: data[:11],
        lambda data: data * 100,
    ],
    ids=["a field", "the magic number", "empty", "cut", "longer"],
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


def test_what_cannot_be_removed_stops_nothing_else(place: Place) -> None:
    rubbish = crashes(place, OLD)

    def before(call: str, path: bytes) -> None:
        if call == "remove" and path.endswith(f"{version(1)}-5000000000".encode()):  # moved away from its writer
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

    monkeypatch.setattr("stripefs.retry.FIRST_RETRY", 0.0)
    found = collect(place, Hooked(place.store, before))
    assert (removed(found), found.trouble) == (rubbish, [])
    assert not any(faults.values())


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


@pytest.mark.parametrize("error", [NoSpace, QuotaExceeded])
def test_where_nothing_makes_room_all_but_the_lock_goes(place: Place, error: type[StoreError]) -> None:
    rubbish = crashes(place, OLD)

    def before(call: str, path: bytes) -> None:
        if call == "put" and path.endswith(b"-lock"):
            raise error("full")

    found = collect(place, Hooked(place.store, before))
    assert removed(found) == rubbish - {"d/.model.stripefs-lock"}
    assert found.trouble == [(b"/d/model", "full")]
    assert place.everything() == {"d/.model.stripefs-lock"}


def test_stores_that_cannot_do_it_are_refused(place: Place) -> None:
    for missing in ("put", "listing"):
        store = Hooked(place.store, lambda call, path: None)
        store.capabilities = Capabilities(**{"put": True, "put_if_absent": True, "writes": True, missing: False})
        with pytest.raises(Unsupported):
            collect(place, store)
