"""Leases on a real host: a lazy image mounted once for all, over workers that are killed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.build.content import scan
from imagefs.build.image import build
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import SOURCE, FoundImage, HeldImage, Lease
from imagefs.errors import NoSuchImage
from imagefs.format.documents import Snapshot, key_digest
from imagefs.repository.snapshots import Snapshots
from stripefs.fuse import kernel
from stripefs.settings import StoreSettings
from tests.support.images.faults import make_image, objects, sums
from tests.support.images.stores import images_in
from tests.support.waiting import eventually
from tests.tools.imagefs_daemon import Service

pytestmark = [pytest.mark.mount, pytest.mark.root]


MIB = 1 << 20
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
    assert client.find(settings, MANIFEST, 10) == FoundImage(held.image, settings[1])
    assert client.find(settings, "sha256:" + "6" * 64, 10) is None
    (store / "tags/t").unlink()
    (store / "sources" / MANIFEST.removeprefix("sha256:")).unlink()
    assert client.find(settings, MANIFEST, 10) == FoundImage(held.image, settings[1])


def test_snapshots_are_mounted_with_the_image(
    service: Service, image: tuple[Path, Path], pool: Path, tmp_path: Path
) -> None:
    deps, installed = StoreSettings(url=str(tmp_path / "deps")), tmp_path / "installed"
    installed.mkdir()
    images = images_in(Path(deps.url))
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


def taken(service: Service) -> int:
    """Bytes on disk of the whole cache."""
    cache = Path(service.settings.cache)
    return sum(path.stat().st_blocks * 512 for path in cache.rglob("*") if path.is_file())


def test_what_an_image_takes_is_told_and_goes_with_it(
    service: Service, image: tuple[Path, Path], new_image: tuple[Path, Path], pool: Path
) -> None:
    client = Client(service.settings)
    held = [
        client.hold(StoreSettings(url=str(store)), "t", Lease(name, "containerd"))
        for name, (_, store) in (("1", image), ("2", new_image))
    ]
    before = client.usage(held[0].image)
    wanted = [sums(Path(one.lowerdir)) for one in held]

    def bytes_of(one: HeldImage) -> int:
        return sum(size for size, _ in client.usage(one.image).values())

    content = sum(path.stat().st_size for path in image[0].rglob("*") if path.is_file())
    eventually(lambda: bytes_of(held[0]) >= content // 2, "the blocks on disk")
    assert bytes_of(held[0]) + bytes_of(held[1]) <= taken(service)
    assert client.usage("0" * 64) == {}
    parts = client.usage(held[0].image)
    assert parts.keys() == before.keys()
    client.discard(held[0].image, parts)
    client.discard(held[0].image, parts)
    assert sums(Path(held[0].lowerdir)) == wanted[0], "a lease is on it"
    assert client.usage(held[0].image)
    client.release(Lease("1", "containerd"))
    client.discard(held[0].image, parts)
    eventually(lambda: not os.path.exists(held[0].lowerdir), "the end of the mount, which did not linger")
    eventually(lambda: not client.usage(held[0].image), "the end of its documents")
    blocks = Path(service.settings.cache, "blocks")
    eventually(lambda: not [path for path in blocks.iterdir() if path.stem in parts], "the end of its blocks")
    assert sums(Path(held[1].lowerdir)) == wanted[1]
    again = client.hold(StoreSettings(url=str(image[1])), "t", Lease("1", "containerd"))
    assert sums(Path(again.lowerdir)) == wanted[0]


def test_what_is_held_does_not_age(
    service: Service, image: tuple[Path, Path], new_image: tuple[Path, Path], pool: Path
) -> None:
    client = Client(service.settings._replace(cache_age=3600.0))
    for name, (_, store) in (("1", image), ("2", new_image)):
        held = client.hold(StoreSettings(url=str(store)), "t", Lease(name, "containerd"))
        sums(Path(held.lowerdir))
    first, second = (one.image for one in client.leases("containerd"))
    client.release(Lease("2", "containerd"), at_once=True)
    eventually(lambda: len(client.status()["images"]) == 1, "the end of the other mount")
    for path in Path(service.settings.cache).rglob("*"):
        if path.is_file():
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 7200))
    service.kill_worker()
    eventually(lambda: not client.usage(second), "the end of what nobody used for an hour")
    assert client.usage(first)


def test_the_cache_is_bounded_by_bytes_while_images_are_held(service: Service, tmp_path: Path, pool: Path) -> None:
    limit = 64 * MIB
    client = Client(service.settings._replace(cache_size=limit, background_rate=0))
    held: list[HeldImage] = []
    for number in range(3):
        tree, store = make_image(tmp_path / f"image{number}", seed=number, size=40 * MIB)
        held.append(client.hold(StoreSettings(url=str(store)), "t", Lease(str(number), "containerd")))
        assert sums(Path(held[-1].lowerdir)) == sums(tree)
        if number == 0:
            client.release(Lease("0", "containerd"), at_once=True)

    def sizes() -> list[int]:
        return [sum(size for size, _ in client.usage(one.image).values()) for one in held]

    eventually(lambda: client.status()["blocks"]["used"] <= limit, "the bound of the cache")
    eventually(lambda: sum(sizes()) <= limit, "the bound with the documents written since")
    assert sizes()[0] < sizes()[2], "blocks without a lease go first"
