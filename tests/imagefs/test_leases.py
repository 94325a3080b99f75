"""Leases on a real host: a lazy image mounted once for all, over workers that are killed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.build.directory import scan
from imagefs.build.image import build
from imagefs.daemon.client import Client, Found
from imagefs.daemon.protocol import SOURCE, Lease
from imagefs.errors import NoSuchImage
from imagefs.format.snapshot import Snapshot, key_digest
from imagefs.repository.images import Images
from imagefs.repository.snapshots import Snapshots
from imagefs.repository.store import StoreRepository
from stripefs.mount import kernel
from stripefs.settings import StoreSettings
from stripefs.store.local import LocalStore
from tests.imagefs.faults import objects, sums
from tests.imagefs.service import Service

pytestmark = [pytest.mark.mount, pytest.mark.root]


MANIFEST = "sha256:" + "5" * 64


@pytest.fixture
def pool(service: Service) -> Iterator[Path]:
    folder = Path(os.path.realpath(service.settings.runtime), "imagefs/pool")
    yield folder
    for one in folder.iterdir() if folder.is_dir() else ():
        while kernel.find_mount(str(one)) is not None:
            kernel.unmount(str(one), kernel.MNT_DETACH)


def test_leases_share_one_mount_that_outlives_workers(service: Service, image: tuple[Path, Path], pool: Path) -> None:
    tree, store = image
    client, settings = Client(service.settings), StoreSettings(url=str(store))
    first = client.hold(settings, "t", Lease("1", "containerd", "training"))
    assert first.lowerdir == str(pool / first.image)
    assert os.path.ismount(first.lowerdir)
    second = client.hold(settings, first.image, Lease("2", "containerd"))
    assert second.lowerdir == first.lowerdir
    service.kill_worker()
    assert sums(Path(first.lowerdir)) == sums(tree)
    assert client.hold(settings, "t", Lease("1", "containerd")) == client.hold(settings, "t", Lease("1", "containerd"))
    assert [one.lease.name for one in client.leases("containerd")] == ["1", "2"]
    assert client.leases("another") == []
    (shown,) = service.status()["images"]
    assert shown["holders"][0] == {"kind": "lease", "name": "1", "client": "containerd", "label": "training"}
    assert "lease 1 of containerd (training) and lease 2 of containerd" in service.ok("status")
    client.release(Lease("1", "containerd"))
    assert sums(Path(first.lowerdir)) == sums(tree)
    client.release(Lease("2", "containerd"))
    assert client.leases() == []
    (shown,) = service.status()["images"]
    assert (shown["holders"], shown["mountpoint"]) == ([], first.lowerdir)


def test_an_image_that_is_not_there_is_not_held(service: Service, image: tuple[Path, Path], pool: Path) -> None:
    settings = StoreSettings(url=str(image[1]))
    client = Client(service.settings)
    client.hold(settings, "t", Lease("1", "containerd"))
    for name in ("nosuch", SOURCE + MANIFEST):
        with pytest.raises(NoSuchImage, match="no image"):
            client.hold(settings, name, Lease("2", "containerd"))
    assert [one.lease.name for one in client.leases()] == ["1"]


def test_an_image_is_found_and_held_by_the_manifest_it_was_built_from(
    service: Service, new_image: tuple[Path, Path], pool: Path, tmp_path: Path
) -> None:
    tree, store = new_image
    (tmp_path / "empty").mkdir()
    settings = [StoreSettings(url=str(tmp_path / "empty")), StoreSettings(url=str(store))]
    (store / "sources").mkdir()
    (store / "sources" / MANIFEST.removeprefix("sha256:")).write_text((store / "tags/t").read_text())
    client = Client(service.settings)
    held = client.hold(settings[1], SOURCE + MANIFEST, Lease("1", "containerd"))
    assert sums(Path(held.lowerdir)) == sums(tree)
    assert client.find(settings, MANIFEST, 10) == Found(held.image, settings[1])
    assert client.find(settings, "sha256:" + "6" * 64, 10) is None
    (store / "tags/t").unlink()
    (store / "sources" / MANIFEST.removeprefix("sha256:")).unlink()
    assert client.find(settings, MANIFEST, 10) == Found(held.image, settings[1])


def test_snapshots_are_mounted_with_the_image(
    service: Service, image: tuple[Path, Path], pool: Path, tmp_path: Path
) -> None:
    deps, installed = StoreSettings(url=str(tmp_path / "deps")), tmp_path / "installed"
    Path(deps.url).mkdir()
    installed.mkdir()
    images = Images(StoreRepository(LocalStore(os.fsencode(deps.url), deps.url)))
    packs: list[list[Path]] = []
    for number in range(2):
        (installed / "module.so").write_bytes(random.Random(number).randbytes(200_000))
        built = build(*scan(str(installed)), images, source=key_digest(number))
        Snapshots(images).put(Snapshot(number, built.digest, "container", ("/usr/lib/python3",), 0.0, 1.0))
        packs.append(objects(Path(deps.url), "packs"))
    (gone,) = set(packs[1]) - set(packs[0])
    gone.unlink()
    client, lease = Client(service.settings), Lease("1", "containerd")
    keys = [key_digest(1), "f" * 64, key_digest(0)]
    held = client.hold(StoreSettings(url=str(image[1])), "t", lease, above=[(deps, key) for key in keys])
    assert [(one.key, one.kind) for one in held.unusable] == [(keys[0], "damaged"), (keys[1], "missing")]
    (above,) = held.above
    assert held.lowerdirs == (above, held.lowerdir)
    assert Path(above, "module.so").read_bytes() == random.Random(0).randbytes(200_000)
    assert [one.above for one in client.leases()] == [held.above]
    client.release(lease)
    assert client.leases() == []
