"""Lazy images of a daemon that answers, hangs or is away: what it is told, and what containerd's calls wait for."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from imagefs.daemon.client import Client
from imagefs.daemon.protocol import FoundImage, HeldImage, Lease
from imagefs.snapshotter import lazy
from imagefs.snapshotter.lazy import DaemonImages
from imagefs.snapshotter.metastore import Kind, Layer, SnapshotRecord, Tree, Usage
from imagefs.snapshotter.snapshotter import TARGET
from stripefs.errors import MountError
from stripefs.settings import StoreSettings
from tests.support.waiting import eventually

LAYER = Layer("sha256:" + "1" * 64, "registry/image:1", "sha256:manifest")
CONFIG = {"rootfs": {"type": "layers", "diff_ids": [LAYER.chain]}}


class Daemon:
    """The client of a daemon that has `parts` of images on disk. It answers while `answers` is set.

    start: what it was told of the start that the last lease is of."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, tuple[int, int]]] = {}
        self.held: set[str] = set()
        self.start: dict[str, Any] = {}
        self.discarded: list[tuple[str, set[str]]] = []
        self.asked = 0
        self.away = False
        self.answers = threading.Event()
        self.answers.set()

    def hold(self, store: StoreSettings, image: str, lease: Lease, *, start: dict[str, Any], **_: Any) -> HeldImage:
        self._answer()
        self.start = start
        self.held.add(lease.name)
        return HeldImage(lease, f"/pool/{image}", image, CONFIG)

    def release(self, lease: Lease) -> None:
        self._answer()
        self.held.discard(lease.name)

    def leases(self, client: str) -> list[HeldImage]:
        self._answer()
        return [HeldImage(Lease(name, client), "/pool", "image") for name in self.held]

    def usage(self, image: str) -> dict[str, tuple[int, int]]:
        self._answer()
        return self.parts.get(image, {})

    def discard(self, image: str, parts: Iterable[str]) -> None:
        self._answer()
        self.discarded.append((image, set(parts)))

    def _answer(self) -> None:
        self.asked += 1
        assert self.answers.wait(60)
        if self.away:
            raise MountError("the daemon does not answer")


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def images(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DaemonImages]:
    monkeypatch.setattr(lazy, "_TELLS_AGAIN", 0.02)
    made = DaemonImages(
        cast(Client, daemon), [], lambda url: StoreSettings(url=url), name="test", built=tmp_path / "built"
    )
    with contextlib.closing(made):
        yield made
    daemon.answers.set()


def container(number: int) -> SnapshotRecord:
    return SnapshotRecord(number, f"container {number}", "layer", Kind.ACTIVE, 0, 0, {})


def trees(*names: str) -> Sequence[Tree]:
    return [Tree("/store", name) for name in names]


def test_a_part_that_images_share_counts_once(daemon: Daemon, images: DaemonImages) -> None:
    daemon.parts = {"a": {"shared": (100, 2), "own a": (10, 1)}, "b": {"shared": (100, 2), "own b": (20, 3)}}
    a, b, unknown = trees("a", "b", "unknown")
    usages = [images.usage(a, []), images.usage(b, [a]), images.usage(unknown, [a, b]), images.usage(a, [a, b])]
    assert usages == [Usage(110, 3), Usage(20, 3), Usage(), Usage()]
    daemon.parts["b"]["own b"] = (50, 4)
    assert images.usage(b, [a]) == Usage(50, 4), "it is what the disk has now"
    asked = daemon.asked
    images.usage(b, [a])
    assert daemon.asked == asked + 1, "what an image is made of is known"
    daemon.away = True
    with pytest.raises(MountError):
        images.usage(a, [])


def test_an_image_that_came_back_is_not_forgotten_nor_what_it_shares(daemon: Daemon, images: DaemonImages) -> None:
    daemon.parts = {name: {"shared": (100, 2), f"own {name}": (10, 1)} for name in "ab"}
    daemon.away = True
    present = trees("b")
    a, b = trees("a", "b")
    images.forget(a, lambda: present)
    images.forget(b, lambda: present)
    eventually(lambda: daemon.asked > 2, "a try")
    daemon.away = False
    eventually(lambda: daemon.discarded, "the daemon to be told")
    assert daemon.discarded == [("a", {"own a"})]


def test_a_release_does_not_wait_for_a_daemon_that_hangs_or_is_away(daemon: Daemon, images: DaemonImages) -> None:
    """containerd collects its garbage one snapshot after the other. One lease is of an earlier run."""
    for number in range(5):
        images.mount(LAYER, Tree("/store", "a"), container(number))
    daemon.held.add("99")
    assert images.mounted() == {*range(5), 99}
    daemon.answers.clear()
    for number in (*range(5), 99):
        images.release(number)
    assert len(daemon.held) == 6
    daemon.away = True
    daemon.answers.set()
    asked = daemon.asked
    eventually(lambda: daemon.asked > asked + 12, "more than one try")
    daemon.away = False
    eventually(lambda: not daemon.held, "the end of the leases")


def test_what_was_built_here_is_removed_when_nothing_is_built(
    daemon: Daemon, images: DaemonImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    builds, may_build = threading.Event(), threading.Event()

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        if command[0] == "build":
            builds.set()
            assert may_build.wait(60)
        ran.append(command[0])
        return subprocess.CompletedProcess(command, 0, "digest\n", "")

    monkeypatch.setattr(lazy, "_run", run)
    builder = threading.Thread(target=images.build, args=(LAYER, 1))
    builder.start()
    assert builds.wait(60)
    old, kept = Tree(str(tmp_path / "built"), "old"), Tree(str(tmp_path / "built"), "kept")
    daemon.parts = {tree.image: {tree.image: (1, 1)} for tree in (old, kept)}
    images.forget(kept, lambda: [kept])
    images.forget(old, lambda: [kept])
    eventually(lambda: daemon.discarded, "a try")
    assert ran == []
    may_build.set()
    builder.join()
    eventually(lambda: len(ran) == 3, "the end of the other image")
    assert ran == ["build", "rm", "gc"]


def test_a_mount_that_stands_is_asked_for_once(
    daemon: Daemon, images: DaemonImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = {"/pool/a": 7}
    monkeypatch.setattr(lazy, "_devices", lambda paths: [devices.get(path, 0) for path in paths])
    (a,) = trees("a")

    def asks() -> int:
        before = daemon.asked
        assert images.mount(LAYER, a, container(1)) == ["/pool/a"]
        return daemon.asked - before

    assert [asks(), asks()] == [1, 0]
    devices["/pool/a"] = 1  # unmounted: it is the directory below
    assert asks() == 1
    devices["/pool/a"] = 0  # not there at all
    assert [asks(), asks()] == [1, 1]
    devices["/pool/a"] = 7
    asks()
    daemon.held = {"7"}  # a daemon that began anew knows no others
    assert images.mounted() == {7}
    assert asks() == 1
    images.release(1)
    assert asks() == 1


# -- the lookup of a container image's lazy image: places and their order

SOURCE = "sha256:" + "5a" * 32


class Finder:
    """A daemon that finds the image in the store with that URL. asked: URLs of stores, for each question."""

    def __init__(self, url: str = "") -> None:
        self.url = url
        self.asked: list[list[str]] = []
        self.timeouts: list[float] = []

    def find(self, stores: Sequence[StoreSettings], source: str, timeout: float) -> FoundImage | None:
        assert source == SOURCE
        self.asked.append([store.url for store in stores])
        self.timeouts.append(timeout)
        if self.url == "down":
            raise MountError("no daemon answers")
        return next((FoundImage("ab" * 32, store) for store in stores if store.url == self.url), None)


def lookup(client: Finder, tmp_path: Path, stores: Sequence[str] = (), **options: Any) -> DaemonImages:
    return DaemonImages(
        cast(Client, client),
        stores,
        lambda url: StoreSettings(url=url),
        name="test",
        built=tmp_path,
        **{"registries": True, **options},
    )


def labels_of(reference: str) -> dict[str, str]:
    return {
        lazy.MANIFEST: SOURCE,
        lazy.REFERENCE: reference,
        TARGET: "sha256:1",
        lazy.LAYER: "sha256:2",
        lazy.LAYERS: "sha256:2",
    }


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("registry.example/team/app:1", "oci://registry.example/team/app?lookup=brief"),
        (f"registry.example:5000/app@{SOURCE}", "oci://registry.example:5000/app?lookup=brief"),
        ("docker.io/library/python:3.12", "oci://docker.io/library/python?lookup=brief"),
        ("127.0.0.1:5000/app:1", "oci://127.0.0.1:5000/app?scheme=http&lookup=brief"),
        ("localhost/app:1", "oci://localhost/app?scheme=http&lookup=brief"),
        ("plain.example/app:1", "oci://plain.example/app?scheme=http&lookup=brief"),
        *((name, "") for name in ("", "app", "app:1", "team/app:1", "sha256:" + "ab" * 32)),
    ],
)
def test_the_repository_of_the_image_is_asked(reference: str, url: str, tmp_path: Path) -> None:
    """A name of no registry asks none."""
    client = Finder(url)
    found = lookup(client, tmp_path, plain_http=["plain.example"]).find(labels_of(reference))
    assert client.asked == ([[url]] if url else [])
    assert getattr(found, "tree", None) == (Tree(url, "ab" * 32) if url else None)


def test_stores_come_first_and_all_have_the_same_time(tmp_path: Path) -> None:
    client = Finder("s3://bucket/images")
    made = lookup(client, tmp_path, ["/srv/images", "s3://bucket/images"])
    found = made.find(labels_of("registry.example/app:1"))
    assert client.asked == [["/srv/images", "s3://bucket/images", "oci://registry.example/app?lookup=brief"]]
    assert client.timeouts == [5.0]
    assert getattr(found, "tree", None) == Tree("s3://bucket/images", "ab" * 32)
    lower = made.find({**labels_of("registry.example/app:1"), lazy.LAYERS: "sha256:2,sha256:3"})
    assert lower is not None
    assert lower.tree is None, "the image's tree has the files of higher layers too"


def test_a_repository_that_is_a_store_is_asked_once(tmp_path: Path) -> None:
    client = Finder()
    store = "oci://registry.example/app?ca-file=/ca.pem"
    assert lookup(client, tmp_path, [store]).find(labels_of("registry.example/app:1")) is None
    assert client.asked == [[store]]
    assert lookup(client, tmp_path, registries=False).find(labels_of("registry.example/app:1")) is None
    assert client.asked == [[store]], "no registry is asked where that is off"
    assert lookup(Finder("down"), tmp_path).find(labels_of("registry.example/app:1")) is None
