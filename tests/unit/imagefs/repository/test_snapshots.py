"""Dependency snapshots in a store: their documents, and what looks after a store sees in them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from imagefs.build.content import scan
from imagefs.build.image import build
from imagefs.errors import DamagedObject, FormatError, NoSuchSnapshot
from imagefs.format.documents import Snapshot, key_digest
from imagefs.housekeeping.gc import collect, collect_snapshots
from imagefs.housekeeping.listing import list_snapshots, remove_image, remove_snapshot
from imagefs.housekeeping.verify import verify
from imagefs.repository.images import Images
from imagefs.repository.snapshots import NOTES, Note, Snapshots
from stripefs.errors import ConfigError, Exists
from tests.support.images.faults import flip
from tests.support.images.stores import age, build_tree, files, write_tree

KEY = {"salt": "é", "targets": [["/opt/deps", 0, 0]]}


def snapshot_of(images: Images, folder: Path, key: Any = KEY) -> Snapshot:
    """One whose image is stored, and whose document is not."""
    report = build(*scan(str(write_tree(folder, a=1))), images, source=key_digest(key))
    return Snapshot(key, report.digest, "host", ("/opt/deps",), 1700000000.5, 12.25, ("one line",))


# -- the document --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda one: one.update(bootseer="image"), "no dependency snapshot"),
        (lambda one: one.update(version=2), "does not know"),
        (lambda one: one.update(key={}), "key of another one"),
        (lambda one: one.update(image="a" * 63 + "/"), "names no image"),
        (lambda one: one.update(kind="other"), "of kind"),
        (lambda one: one.update(targets=["opt"]), "no absolute path"),
        (lambda one: one.update(targets=[]), "one target"),
        (lambda one: one.update(targets=["/a", "/b"]), "one target"),
        (lambda one: one["made"].update(at="now"), "when it was made"),
        (lambda one: one["made"].update(at=float("nan")), "when it was made"),
        (lambda one: one["made"].update(at=10**400), "when it was made"),
        (lambda one: one["made"].update(seconds=-1), "when it was made"),
        (lambda one: one.pop("made"), "damaged"),
        (lambda one: one.update(findings=None), "damaged"),
    ],
)
def test_documents_that_are_refused(change: Callable[[dict[str, Any]], Any], why: str) -> None:
    snapshot = Snapshot(KEY, "a" * 64, "host", ("/opt/deps",), 1.0, 2.0)
    document = json.loads(snapshot.to_json())
    change(document)
    with pytest.raises(FormatError, match=why):
        Snapshot.from_json(json.dumps(document).encode(), snapshot.name)
    with pytest.raises(FormatError, match="damaged"):
        Snapshot.from_json(snapshot.to_json()[:-2], snapshot.name)


# -- in a store ----------------------------------------------------------------------------------------------------


def test_the_first_for_a_key_stays(images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots, first = Snapshots(images), snapshot_of(images, tmp_path / "source")
    with monkeypatch.context() as patch:
        patch.setattr(images, "create", Mock(side_effect=Exists("another was quicker")))
        assert not snapshots.put(first)
    assert not snapshots.has(first.name)
    assert snapshots.put(first)
    assert not snapshots.put(Snapshot(KEY, first.image, "host", ("/opt/deps",), 2.0, 3.0))
    assert snapshots.load(first.name) == first
    assert snapshots.resolve(first.name[:8]) == first.name
    with pytest.raises(NoSuchSnapshot):
        snapshots.resolve("")


def test_an_image_that_goes_meanwhile_takes_the_document_with_it(images: Images, tmp_path: Path) -> None:
    snapshots, first = Snapshots(images), snapshot_of(images, tmp_path / "source")
    images.remove(first.image)
    with pytest.raises(DamagedObject, match="was removed"):
        snapshots.put(first)
    assert not snapshots.has(first.name)


def test_a_use_is_noted_once_a_day(images: Images, tmp_path: Path) -> None:
    snapshots, first = Snapshots(images), snapshot_of(images, tmp_path / "source")
    snapshots.put(first)
    assert snapshots.used() == {}
    snapshots.mark_used(first.name)
    (mark,) = files(tmp_path / "store", "used")
    age([mark], 23)
    told = snapshots.used()[first.name]
    snapshots.mark_used(first.name)
    assert snapshots.used()[first.name] == told
    age([mark], 2)
    snapshots.mark_used(first.name)
    assert snapshots.used()[first.name] > told + 23 * 3600


def test_why_it_is_not_published(images: Images, tmp_path: Path) -> None:
    """For as long as it is not; whatever stands there is one short line."""
    snapshots, first = Snapshots(images), snapshot_of(images, tmp_path / "source")
    assert snapshots.unpublished_reason(first.name) == ""
    snapshots.note_unpublished(first.name, "no\n  room")
    assert snapshots.unpublished_reason(first.name) == "no room"
    (note,) = files(tmp_path / "store", "unkept")
    for said in (b"", b"\x1b[2J\xff", b"x" * 10_000):
        note.write_bytes(said)
        assert snapshots.unpublished_reason(first.name).isprintable()
        assert 0 < len(snapshots.unpublished_reason(first.name)) <= 1000
    assert list(snapshots.notes_since("unkept")) == [first.name]
    snapshots.put(first)
    assert snapshots.unpublished_reason(first.name) == ""


@pytest.mark.parametrize("kind", NOTES)
def test_notes_of_starts_go_when_they_are_old(images: Images, tmp_path: Path, kind: Note) -> None:
    snapshots, name = Snapshots(images), "ab" * 32
    snapshots.put_note(kind, name, b"said")
    (note,) = files(tmp_path / "store", kind)
    (note.parent / ".left.tmp").touch()
    age([note, note.parent / ".left.tmp"], 25)
    assert collect(images, untagged=True).removed == [f"{kind}/.left.tmp"]
    collect_snapshots(images, older_than=26 * 3600)
    assert snapshots.note(kind, name) == b"said"
    collect_snapshots(images, older_than=24 * 3600)
    assert snapshots.note(kind, name) == b""


# -- looking after it ----------------------------------------------------------------------------------------------


def test_gc_keeps_what_snapshots_name(images: Images, tmp_path: Path) -> None:
    first = snapshot_of(images, tmp_path / "source")
    Snapshots(images).put(first)
    store = tmp_path / "store"
    (store / "deps/.x.stripefs-lock").write_text("of a leader that died")
    age(files(store), 25)
    assert collect(images, untagged=True).removed == ["deps/.x.stripefs-lock"]
    assert verify(images).damage == []
    document = store / "deps" / first.name
    for damaged in ("{}", document.read_text().replace(first.image, "0" * 64)):
        document.write_text(damaged)
        with pytest.raises(DamagedObject, match="deps rm"):
            collect(images, untagged=True)
    assert images.images().keys() == {first.image}


def test_the_image_of_a_snapshot_goes_with_it_alone(images: Images, tmp_path: Path) -> None:
    first = snapshot_of(images, tmp_path / "source")
    Snapshots(images).put(first)
    with pytest.raises(ConfigError, match="dependency snapshot"):
        remove_image(images, first.image)
    images.tag("mine", first.image)
    assert remove_image(images, "mine") == (["mine"], [])
    assert remove_snapshot(images, first.name) == [first.image]
    assert images.images() == {}
    with pytest.raises(NoSuchSnapshot):
        remove_snapshot(images, first.name)


def test_verify_tells_of_snapshots_without_their_image(images: Images, tmp_path: Path) -> None:
    first = snapshot_of(images, tmp_path / "source")
    Snapshots(images).put(first)
    other = build_tree(write_tree(tmp_path / "other", b=2), images, "other")
    document = tmp_path / "store/deps" / first.name
    document.write_text(document.read_text().replace(first.image, other.digest))
    assert ["not made for it" in one.what for one in verify(images).damage] == [True]
    document.write_text(document.read_text().replace(other.digest, "f" * 64))
    assert ["is not there" in one.what for one in verify(images).damage] == [True]
    document.write_text("spoiled")
    (damage,) = verify(images).damage
    assert damage.path == f"deps/{first.name}"
    assert list_snapshots(images)[0].error
    assert remove_snapshot(images, first.name) == []


def test_what_nobody_used_for_long_goes(images: Images, tmp_path: Path) -> None:
    store, snapshots = tmp_path / "store", Snapshots(images)
    old, used, young = (snapshot_of(images, tmp_path / name, {"salt": name}) for name in ("old", "used", "young"))
    for one in (old, used):
        snapshots.put(one)
    lost = snapshot_of(images, tmp_path / "lost", {"salt": "lost"})
    age(files(store), 50)
    snapshots.put(young)
    snapshots.mark_used(used.name)
    assert [row.name for row in list_snapshots(images)][-1] == old.name
    assert list_snapshots(images)[0].used_at > time.time() - 3600
    gone = [old.name], sorted((old.image, lost.image))
    assert collect_snapshots(images, older_than=24 * 3600, dry_run=True) == gone
    assert old.name in snapshots.stored()
    assert collect_snapshots(images, older_than=24 * 3600) == gone
    assert snapshots.stored().keys() == {used.name, young.name}
    assert images.images().keys() == {used.image, young.image}


# -- broken ones ---------------------------------------------------------------------------------------------------


def without_version(data: bytes) -> bytes:
    return data.replace(b'"version":1', b'"version":2')


@pytest.mark.parametrize("kind", ["deps", "images", "indexes", "metadata", "packs"])
def test_a_snapshot_that_nobody_can_use_gives_way(images: Images, tmp_path: Path, kind: str) -> None:
    snapshots, snapshot = Snapshots(images), snapshot_of(images, tmp_path / "tree")
    assert snapshots.put(snapshot)
    assert snapshots.why_broken(snapshot.name) == ""
    for path in files(tmp_path / "store", kind):
        path.unlink() if kind == "packs" else flip(path)
    assert snapshots.why_broken(snapshot.name) != ""
    assert not snapshots.is_usable(snapshot.name)
    report = build(*scan(str(tmp_path / "tree")), images, source=snapshot.name)
    assert report.digest == snapshot.image  # which mends all but the document
    assert snapshots.put(snapshot) == (kind == "deps")
    assert snapshots.is_usable(snapshot.name)
    assert not snapshots.put(snapshot)


@pytest.mark.parametrize("kind", ["deps", "images"])
def test_a_snapshot_of_a_later_version_does_not(images: Images, tmp_path: Path, kind: str) -> None:
    snapshots, snapshot = Snapshots(images), snapshot_of(images, tmp_path / "tree")
    manifest = without_version(images.manifest(snapshot.image).to_json())
    if kind == "images":
        snapshot = replace(snapshot, image=hashlib.sha256(manifest).hexdigest())
        images.create(f"/images/{snapshot.image}".encode(), manifest)
    snapshots.put(snapshot)
    (path,) = files(tmp_path / "store", "deps")
    if kind == "deps":
        path.write_bytes(without_version(path.read_bytes()))
    kept = path.read_bytes()
    assert not snapshots.put(snapshot_of(images, tmp_path / "tree"))
    assert path.read_bytes() == kept


def test_a_snapshot_that_gives_way_takes_its_image_along(images: Images, tmp_path: Path) -> None:
    snapshots, old = Snapshots(images), snapshot_of(images, tmp_path / "tree")
    snapshots.put(old)
    for path in files(tmp_path / "store", "packs"):
        path.unlink()
    report = build(*scan(str(write_tree(tmp_path / "other", a=2))), images, source=old.name)
    assert snapshots.put(replace(old, image=report.digest))
    assert set(images.images()) == {report.digest}
