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
from imagefs.daemon.protocol import HeldImage, Lease
from imagefs.snapshotter import lazy
from imagefs.snapshotter.lazy import DaemonImages
from imagefs.snapshotter.metastore import Kind, Layer, SnapshotRecord, Tree, Usage
from stripefs.errors import MountError
from stripefs.settings import StoreSettings
from tests.support.waiting import eventually

LAYER = Layer("sha256:" + "1" * 64, "registry/image:1", "sha256:manifest")
CONFIG = {"rootfs": {"type": "layers", "diff_ids": [LAYER.chain]}}


class Daemon:
    """The client of a daemon that has `parts` of images on disk. It answers while `answers` is set."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, tuple[int, int]]] = {}
        self.held: set[str] = set()
        self.discarded: list[tuple[str, set[str]]] = []
        self.asked = 0
        self.away = False
        self.answers = threading.Event()
        self.answers.set()

    def hold(self, store: StoreSettings, image: str, lease: Lease, **_: Any) -> HeldImage:
        self._answer()
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


def test_an_image_that_is_forgotten_keeps_what_others_share(daemon: Daemon, images: DaemonImages) -> None:
    daemon.parts = {"a": {"shared": (100, 2), "own a": (10, 1)}, "b": {"shared": (100, 2)}}
    (a,) = trees("a")
    images.forget(a, lambda: trees("b"))
    eventually(lambda: daemon.discarded, "the daemon to be told")
    assert daemon.discarded == [("a", {"own a"})]


def test_an_image_that_came_back_is_not_forgotten(daemon: Daemon, images: DaemonImages) -> None:
    daemon.parts = {name: {f"own {name}": (10, 1)} for name in "ab"}
    daemon.away = True
    present = trees("b")
    a, b = trees("a", "b")
    images.forget(a, lambda: present)
    images.forget(b, lambda: present)
    eventually(lambda: daemon.asked > 2, "a try")
    daemon.away = False
    eventually(lambda: daemon.discarded, "the daemon to be told")
    assert daemon.discarded == [("a", {"own a"})]


def test_a_release_does_not_wait_for_a_daemon_that_hangs(daemon: Daemon, images: DaemonImages) -> None:
    """containerd collects its garbage one snapshot after the other."""
    for number in range(5):
        images.mount(LAYER, Tree("/store", "a"), container(number))
    daemon.answers.clear()
    for number in range(5):
        images.release(number)
    images.release(99)
    assert daemon.held
    daemon.answers.set()
    eventually(lambda: not daemon.held, "the end of the leases")


def test_leases_are_released_when_the_daemon_is_back(daemon: Daemon, images: DaemonImages) -> None:
    images.mount(LAYER, Tree("/store", "a"), container(1))
    daemon.away = True
    images.release(1)
    eventually(lambda: daemon.asked > 3, "more than one try")
    daemon.away = False
    eventually(lambda: not daemon.held, "the end of the lease")


def test_leases_of_an_earlier_run_can_be_released(daemon: Daemon, images: DaemonImages) -> None:
    daemon.held = {"7"}
    assert images.mounted() == {7}
    images.release(7)
    eventually(lambda: not daemon.held, "the end of the lease")


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
    daemon.held.clear()  # a daemon that began anew knows no leases
    images.mounted()
    assert asks() == 1
    images.release(1)
    assert asks() == 1
