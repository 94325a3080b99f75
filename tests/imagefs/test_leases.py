"""Leases on a real host: a lazy image mounted once for all, over workers that are killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Lease
from stripefs.errors import StripefsError
from stripefs.mount import kernel
from stripefs.settings import StoreSettings
from tests.imagefs.faults import sums
from tests.imagefs.service import Service

pytestmark = [pytest.mark.mount, pytest.mark.root]


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
    with pytest.raises(StripefsError, match="no image 'nosuch'"):
        client.hold(settings, "nosuch", Lease("2", "containerd"))
    assert [one.lease.name for one in client.leases()] == ["1"]
