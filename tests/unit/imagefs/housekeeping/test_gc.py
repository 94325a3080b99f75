"""`gc`: what no image needs goes once it is old; what a build may be about to name stays."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from imagefs.errors import DamagedObject, NoSuchImage
from imagefs.format.documents import Manifest, Snapshot, key_digest
from imagefs.housekeeping import gc
from imagefs.housekeeping.gc import collect
from imagefs.housekeeping.listing import list_images, remove_image
from imagefs.housekeeping.verify import verify
from imagefs.progress import Progress
from imagefs.repository.images import Images
from imagefs.repository.snapshots import Snapshots
from imagefs.repository.store import StoreRepository
from stripefs.errors import Unsupported
from stripefs.store.base import Capabilities
from stripefs.store.local import LocalStore
from tests.support.images.stores import age, build_tree, files, write_tree


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_what_nobody_needs_goes_when_it_is_old(images: Images, store: Path, tmp_path: Path) -> None:
    build_tree(write_tree(tmp_path / "kept", a=1), images, "kept")
    kept = files(store)
    gone = build_tree(write_tree(tmp_path / "gone", a=1, b=2), images, "gone")
    assert remove_image(images, "gone") == (["gone"], [gone.digest])
    for path in (store / "tags/.app.1.2.tmp", kept[0].parent / ".abc.tmp", store / "images/.x.tmp"):
        path.write_bytes(b"left by a writer that died")
    left = [path for path in files(store) if path not in kept]
    young = collect(images)
    assert (young.removed, young.young) == ([], len(left))
    age(left, 25)
    planned = collect(images, dry_run=True)
    assert {store / path for path in planned.removed} == set(left)
    assert files(store) == sorted(kept + left)
    size = sum(path.stat().st_size for path in left)
    done = collect(images)
    assert (done.removed, done.bytes) == (planned.removed, size)
    assert files(store) == kept
    assert verify(images).damage == []


def test_a_build_during_which_gc_runs(images: Images, store: Path, tmp_path: Path) -> None:
    """Objects that an interrupted build left are found by the next one, and must not go before that has ended."""
    source = write_tree(tmp_path / "source", a=1)
    first = build_tree(source, images)
    images.remove(first.digest)
    age(files(store), 30)

    class Collecting(Progress):
        def stage(self, name: str, total: int = 0) -> None:
            if name == "publishing":
                collect(images)

    build_tree(source, images, "app", progress=Collecting())
    assert verify(images).damage == []


def test_gc_sees_a_manifest_that_comes_while_it_runs(
    images: Images, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "_LISTED", 0.0)
    source = write_tree(tmp_path / "source", a=1)
    first = build_tree(source, images)
    manifest = images.manifest(first.digest)
    images.remove(first.digest)
    age(files(store), 30)
    discard = Images.discard

    def discard_and_publish(self: Images, path: bytes) -> None:
        discard(self, path)
        publish(images, manifest)

    def publish(images: Images, manifest: Manifest) -> None:
        monkeypatch.setattr(Images, "discard", discard)
        images.put(manifest)

    monkeypatch.setattr(Images, "discard", discard_and_publish)
    assert len(collect(images).removed) == 1


def test_no_image_goes_while_a_tag_may_be_damaged(images: Images, store: Path, tmp_path: Path) -> None:
    """One flipped bit makes a digest of another one, which is that of no image."""
    report = build_tree(write_tree(tmp_path / "source", a=1), images, "app")
    age(files(store), 25)
    tag = store / "tags/app"
    tag.write_text(("1" if report.digest[0] == "0" else "0") + report.digest[1:])
    with pytest.raises(DamagedObject, match="the tag app names an image that is not there") as raised:
        collect(images, untagged=True)
    assert "imagefs rm" in raised.value.hint
    assert images.images().keys() == {report.digest}
    assert remove_image(images, "app") == (["app"], [])
    assert f"images/{report.digest}" in collect(images, untagged=True).removed


@pytest.mark.parametrize("written", ["another digest", "rubbish"])
@pytest.mark.parametrize("by", ["tag", "digest"])
def test_an_image_stays_while_another_tag_may_have_named_it(
    images: Images, store: Path, tmp_path: Path, written: str, by: str
) -> None:
    report = build_tree(write_tree(tmp_path / "source", a=1), images, "app")
    images.tag("spoiled", report.digest)
    flipped = ("1" if report.digest[0] == "0" else "0") + report.digest[1:]
    (store / "tags/spoiled").write_text(flipped if written == "another digest" else "rubbish")
    with pytest.raises(DamagedObject, match="the tag spoiled"):
        remove_image(images, "app" if by == "tag" else report.digest)
    assert images.resolve("app") == report.digest
    assert verify(images).images == 1
    remove_image(images, "spoiled")
    assert remove_image(images, "app") == (["app"], [report.digest])


def test_the_base_of_an_image_with_a_tag_stays(images: Images, store: Path, tmp_path: Path) -> None:
    base = build_tree(write_tree(tmp_path / "source", a=1), images)
    made = images.manifest(base.digest)
    hot = images.put(Manifest(made.source, {"hot": 1}, made.metadata, made.devices, base.digest, made.extents), "hot")
    age(files(store), 25)
    assert collect(images, untagged=True).removed == []
    assert {row.digest: row.base for row in list_images(images)} == {hot: base.digest, base.digest: ""}
    assert remove_image(images, "hot") == (["hot"], [hot, base.digest])
    assert images.images() == {}


def test_nothing_is_removed_that_an_unreadable_image_may_need(images: Images, store: Path, tmp_path: Path) -> None:
    build_tree(write_tree(tmp_path / "source", a=1), images, "app")
    (store / "packs/ff").mkdir()
    (store / "packs/ff" / ("f" * 64)).write_bytes(b"unneeded")
    (index,) = files(store, "indexes")
    index.write_bytes(b"damaged")
    age(files(store), 25)
    with pytest.raises(DamagedObject, match="nobody knows what the image"):
        collect(images)
    remove_image(images, "app")
    assert len(collect(images).removed) >= 3


def test_nothing_is_removed_that_an_unreadable_snapshot_may_need(images: Images, store: Path, tmp_path: Path) -> None:
    key = {"targets": ["/opt/deps"]}
    installed = build_tree(write_tree(tmp_path / "deps", a=1), images, source=key_digest(key)).digest
    Snapshots(images).put(Snapshot(key, installed, "host", ("/opt/deps",), 1.0, 1.0))
    for document in files(store, "deps"):
        document.write_bytes(b"damaged")
    age(files(store), 25)
    with pytest.raises(DamagedObject, match="nobody knows what a dependency snapshot needs"):
        collect(images, untagged=True)
    assert images.images().keys() == {installed}


def test_stores_that_cannot(tmp_path: Path) -> None:
    class NoListing(LocalStore):
        capabilities = Capabilities(listing=False)

    class ReadOnly(LocalStore):
        capabilities = Capabilities(put=False)

    with pytest.raises(Unsupported, match="cannot be listed"):
        collect(Images(StoreRepository(NoListing(bytes(tmp_path)))))
    with pytest.raises(Unsupported, match="cannot be written to"):
        collect(Images(StoreRepository(ReadOnly(bytes(tmp_path)))))


@pytest.mark.parametrize("days", [-10, 10])
def test_ages_are_told_by_the_clock_of_the_store(
    images: Images, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """A host whose clock is wrong by days removes nothing young, and builds share nothing that is about to go."""
    source = write_tree(tmp_path / "old", a=1)
    old = build_tree(source, images)
    images.remove(old.digest)
    left = files(store)
    young = build_tree(write_tree(tmp_path / "young", b=2), images)
    images.remove(young.digest)
    kept = [path for path in files(store) if path not in left]
    age(left, 30)
    here = time.time
    monkeypatch.setattr("time.time", lambda: here() + days * 86400)
    assert build_tree(source, Images(images.repository)).digest == old.digest
    images.remove(old.digest)
    assert collect(images).removed == []  # the build has stored them again, as they were old
    age(left, 30)
    collect(images)
    assert files(store) == kept


def test_what_stands_for_an_image_that_is_gone_goes(images: Images, store: Path, tmp_path: Path) -> None:
    source, other = "sha256:" + "5a" * 32, "sha256:" + "5b" * 32
    gone = build_tree(write_tree(tmp_path / "a", a=1), images, source=source)
    build_tree(write_tree(tmp_path / "b", b=2), images, source=other)
    images.remove(gone.digest)  # as a process that was killed right behind this leaves it
    assert [one.path for one in verify(images).damage] == [f"sources/{'5a' * 32}"]
    assert collect(images).removed == []
    age(files(store, "sources"), 25)
    assert collect(images).removed == [f"sources/{'5a' * 32}"]
    with pytest.raises(NoSuchImage, match="no image of sha256:5a5a"):
        images.by_source(source)
    (left,) = files(store, "sources")
    left.write_bytes(b"nonsense")
    assert [(one.path, one.spoiled) for one in verify(images).damage] == [(f"sources/{'5b' * 32}", True)]
    with pytest.raises(DamagedObject):
        images.by_source(other)
