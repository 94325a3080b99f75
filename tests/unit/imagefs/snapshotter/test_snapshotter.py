"""Each promise of containerd's documentation to snapshotters, by itself."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imagefs.snapshotter.metastore import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    Kind,
    Layer,
    Metastore,
    SnapshotRecord,
    Tree,
    Usage,
)
from imagefs.snapshotter.snapshotter import TARGET, Mount, Snapshotter
from stripefs.errors import MountError, StripefsError
from tests.support.caches import refusing
from tests.unit.imagefs.snapshotter.fake_images import HIGHEST, IMAGE, FakeImages


def layers(core: Snapshotter, *names: str) -> None:
    """Committed snapshots, each on the one before."""
    parent = ""
    for name in names:
        core.prepare(f"extract {name}", parent, {})
        core.commit(name, f"extract {name}", {})
        parent = name


def lazy(core: Snapshotter, *chain: str, image: str = "lazy") -> None:
    """The layers of a lazy image, as containerd asks for them."""
    parent = ""
    for number, name in enumerate(chain):
        labels = {TARGET: name, IMAGE: image} | ({HIGHEST: ""} if number == len(chain) - 1 else {})
        with pytest.raises(AlreadyExists):
            core.prepare(f"extract {name}", parent, labels)
        parent = name


def options(mounts: list[Mount]) -> dict[str, str]:
    (mount,) = mounts
    return dict(one.partition("=")[::2] for one in mount.options)


def files(core: Snapshotter, tmp_path: Path, name: str) -> str:
    return str(tmp_path / "root/snapshots" / str(core.stat(name).id) / "fs")


def test_times_are_of_the_change(tmp_path: Path) -> None:
    store, now = Metastore(tmp_path / "db", clock=lambda: now), 1
    made = store.create("a", "", Kind.ACTIVE, {})
    now = 2
    changed = store.relabel("a", {"x": "1"})
    now = 3
    committed = store.commit("b", "a", {}, Usage())
    store.close()
    assert [(one.created, one.updated) for one in (made, changed, committed)] == [(1, 1), (1, 2), (3, 3)]


@pytest.mark.parametrize("path", ["name", "parent", "kind", "labels.", "other.a"])
def test_nothing_but_labels_can_be_changed(core: Snapshotter, path: str) -> None:
    core.prepare("key", "", {})
    with pytest.raises(InvalidArgument, match="cannot be changed"):
        core.update("key", {"a": "1"}, [path])


def test_a_label_is_no_longer_than_containerd_allows(core: Snapshotter) -> None:
    core.prepare("fits", "", {"k" * 96: "v" * 4000})
    with pytest.raises(InvalidArgument, match="4096"):
        core.prepare("key", "", {"k" * 97: "v" * 4000})


def test_usage_is_that_of_the_snapshot_alone(core: Snapshotter, tmp_path: Path) -> None:
    core.prepare("key", "", {})
    own = Path(files(core, tmp_path, "key"))
    (own / "file").write_bytes(b"x" * 100_000)
    os.link(own / "file", own / "same")
    (own / "folder").mkdir()
    usage = core.usage("key")
    assert usage.inodes == 3
    assert 100_000 <= usage.bytes < 200_000
    core.commit("one", "key", {})
    core.prepare("above", "one", {})
    with pytest.raises(FailedPrecondition, match="committed"):
        core.mounts("one")
    assert core.usage("one") == usage
    assert core.usage("above").inodes == 1


def test_the_root_directory_has_the_owner_and_mode_of_the_layer_below(core: Snapshotter, tmp_path: Path) -> None:
    core.prepare("key", "", {})
    os.chmod(files(core, tmp_path, "key"), 0o1751)
    if os.geteuid() == 0:
        os.chown(files(core, tmp_path, "key"), 12, 34)
    core.commit("one", "key", {})
    core.prepare("above", "one", {})
    found, below = (os.stat(files(core, tmp_path, name)) for name in ("above", "one"))
    assert (found.st_mode, found.st_uid, found.st_gid) == (below.st_mode, below.st_uid, below.st_gid)


def told(count: int, call: Callable[[int], object]) -> int:
    """The number of those calls, all at once, that are told that it is there already."""
    start = threading.Barrier(count)

    def take(number: int) -> bool:
        start.wait()
        try:
            call(number)
        except AlreadyExists:
            return True
        return False

    with ThreadPoolExecutor(count) as pool:
        return sum(pool.map(take, range(count)))


def test_a_database_that_is_none_or_of_a_later_version_is_left_alone(tmp_path: Path, images: FakeImages) -> None:
    Snapshotter(tmp_path / "root", images).close()
    connection = sqlite3.connect(tmp_path / "root/metadata.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StripefsError, match="version 99"):
        Snapshotter(tmp_path / "root", images)
    (tmp_path / "root/metadata.db").write_bytes(b"no database at all" * 1000)
    with pytest.raises(StripefsError, match=r"metadata\.db cannot be used"):
        Snapshotter(tmp_path / "root", images)


# -- lazy images


def test_an_image_that_is_damaged_is_fetched_from_its_registry(
    core: Snapshotter, images: FakeImages, tmp_path: Path
) -> None:
    lazy(core, "chain1", "chain2")
    images.damaged = {"lazy"}
    mounts = core.prepare("container", "chain2", {})
    assert options(mounts)["lowerdir"] == str(tmp_path / "layers of chain2")
    assert (core.mounts("container"), images.built) == (mounts, [("chain2", 2)])


def test_many_clients_extract_one_layer(core: Snapshotter, images: FakeImages) -> None:
    """Two pods pull one image: each is told that the layer is there, or has an extraction of its own."""
    lazy(core, "chain1")
    labels = {TARGET: "chain2", IMAGE: "lazy", HIGHEST: ""}
    assert told(16, lambda number: core.prepare(f"extract {number % 2}", "chain1", labels)) == 16
    assert [one.name for one in core.walk([])] == ["chain1", "chain2"]
    assert core.figures()["prepared"] == {"lazy": 17, "ordinary": 0, "fallback": 0}


def test_many_clients_extract_a_layer_that_is_pulled(core: Snapshotter, tmp_path: Path) -> None:
    """One commits it; the others are told so, and what they made goes with their keys."""

    def pull(number: int) -> None:
        core.prepare(f"extract {number}", "", {TARGET: "chain1", IMAGE: "unknown"})
        try:
            core.commit("chain1", f"extract {number}", {})
        except AlreadyExists:
            core.remove(f"extract {number}")
            raise

    assert told(8, pull) == 7
    core.cleanup()
    (found,) = core.walk([])
    assert found.name == "chain1"
    assert [path.name for path in (tmp_path / "root/snapshots").iterdir()] == [str(found.id)]
    assert core.figures()["prepared"] == {"lazy": 0, "ordinary": 0, "fallback": 8}


def test_a_layer_that_is_removed_while_it_is_asked_for(core: Snapshotter, monkeypatch: pytest.MonkeyPatch) -> None:
    """containerd looks for it after ALREADY_EXISTS, does not find it, and asks again."""
    lazy(core, "chain1")
    create = Metastore.create

    def late(store: Metastore, *arguments: object, **options: object) -> SnapshotRecord:
        try:
            return create(store, *arguments, **options)  # type: ignore[arg-type]
        except AlreadyExists:
            store.remove("chain1")
            raise

    monkeypatch.setattr(Metastore, "create", late)
    with pytest.raises(AlreadyExists):
        core.prepare("extract", "", {TARGET: "chain1", IMAGE: "lazy", HIGHEST: ""})


def test_a_key_that_is_taken_again_while_its_first_snapshot_fails(
    core: Snapshotter, images: FakeImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client gave up, removed it and began anew: the new one is not taken for the one that failed."""
    lazy(core, "chain1")

    def mount(*_: object) -> list[str]:
        core.remove("container")
        monkeypatch.undo()
        core.prepare("container", "chain1", {})
        raise MountError("the daemon does not answer")

    monkeypatch.setattr(images, "mount", mount)
    with pytest.raises(MountError, match="does not answer"):
        core.prepare("container", "chain1", {})
    assert images.leases == {core.stat("container").id: "lazy"}
    core.mounts("container")


def test_a_disk_without_room_for_a_directory_nor_for_the_database(
    core: Snapshotter, images: FakeImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first error is told, and nothing but the name is left until containerd removes that."""
    lazy(core, "chain1")
    with monkeypatch.context() as patch:
        patch.setattr(os, "chown", refusing(errno.ENOSPC))
        patch.setattr(Metastore, "remove", refusing(errno.ENOSPC))
        with pytest.raises(OSError, match="No space left"):
            core.prepare("container", "chain1", {})
    assert (list((tmp_path / "root/snapshots").iterdir()), images.leases) == ([], {})
    core.remove("container")


def test_an_image_is_forgotten_with_its_last_snapshot(core: Snapshotter, images: FakeImages) -> None:
    """A container keeps its tree when there is a newer one."""
    for namespace in ("a", "b"):
        with pytest.raises(AlreadyExists):
            core.prepare("x", "", {TARGET: f"{namespace}/chain1", IMAGE: "lazy", HIGHEST: ""})
    mounts = core.prepare("container", "a/chain1", {})
    images.newest = Tree("store", "newer")
    assert core.mounts("container") == mounts
    assert options(core.prepare("another", "a/chain1", {}))["lowerdir"].endswith("/newer")
    for name in ("container", "b/chain1"):
        assert images.forgotten == []
        core.remove(name)
    assert images.forgotten == ["lazy"], "a/chain1 is of a newer image by now"
    core.remove("another")
    core.remove("a/chain1")
    assert images.forgotten == ["lazy", "newer"]


def test_reconciling_goes_on_after_a_snapshot_that_fails(
    core: Snapshotter, images: FakeImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy(core, "chain1")
    for number in range(3):
        core.prepare(f"container {number}", "chain1", {})
    images.leases.clear()
    mount, failing = images.mount, [OSError(errno.ENOSPC, "No space left on device")]

    def once(layer: Layer, tree: Tree, snapshot: SnapshotRecord) -> list[str]:
        if failing:
            raise failing.pop()
        return mount(layer, tree, snapshot)

    monkeypatch.setattr(images, "mount", once)
    core.reconcile()
    assert len(images.leases) == 2
    core.reconcile()
    assert len(images.leases) == 3
