"""One file system for all who show an image, whether it is whole here or the first who uses it has mounted it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Lease
from stripefs.fuse import kernel
from stripefs.settings import StoreSettings
from tests.integration.imagefs.conftest import next_line, programs
from tests.support.images.faults import ensure, make_image, mount_here, sums, umount_here
from tests.tools.imagefs_daemon import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]

SETTINGS = {"background_rate": "0"}


def device(target: Path | str) -> int:
    return os.stat(target).st_dev


def test_mounts_and_leases_show_one_file_system(service: Service, tmp_path: Path) -> None:
    tree, store = make_image(tmp_path / "image", seed=77)
    ensure(service)
    targets = [service.mountpoint(f"m{number}") for number in range(4)]
    mount_here(service, store, targets[0])
    mount_here(service, store, targets[1], rw=True)
    client, settings = Client(service.settings), StoreSettings(url=str(store))
    held = client.hold(settings, "t", Lease("1", "containerd", "training"))
    mount_here(service, store, targets[2], backing="loop")
    assert device(targets[0]) == device(held.lowerdir) != device(targets[2])
    umount_here(service, targets[0])
    assert client.hold(settings, held.image, Lease("2", "containerd")).lowerdir == held.lowerdir
    service.kill_worker()
    mount_here(service, store, targets[3])
    assert device(targets[3]) == device(held.lowerdir)
    assert [one.lease.name for one in client.leases("containerd")] == ["1", "2"]
    (shown,) = [one for one in service.status()["images"] if one["mountpoint"] == held.lowerdir]
    assert shown["holders"][0] == {"kind": "lease", "name": "1", "client": "containerd", "label": "training"}
    assert "lease 1 of containerd (training) and lease 2 of containerd" in service.ok("status")
    client.release(Lease("1", "containerd"), at_once=True)
    assert sums(Path(held.lowerdir)) == sums(tree)
    client.release(Lease("2", "containerd"), at_once=True)
    assert client.leases() == []
    eventually(lambda: kernel.find_mount(held.lowerdir) is None, "the end of the leases' mount")
    for target in targets[1:]:
        assert {name: sums(target)[name] for name in sums(tree)} == sums(tree)
        umount_here(service, target)
    eventually(lambda: service.status()["blocks"]["devices"] == [], "the devices to be closed")


def test_containers_that_start_together_show_one_file_system(service: Service, tmp_path: Path) -> None:
    """Also one that starts when the container is gone whose client had mounted it, while another goes on."""
    store = programs(tmp_path, 8 << 20)  # which nobody reads: an image that is whole here is mounted anew
    ensure(service)
    script = "stat -c %d /; read line; cat /srv/data > /dev/null; stat -c %d /"

    def start() -> subprocess.Popen[str]:
        return service.start("run", f"{store}#small", "--", "sh", "-c", script, stdin=-1)

    processes = [start() for _ in range(3)]
    (number,) = {next_line(process) for process in processes}
    for process in (processes[0], processes[1]):
        assert process.communicate("\n", timeout=60) == (number, "")
    service.kill_worker()
    later = start()
    assert next_line(later) == number
    for process in (processes[2], later):
        assert process.communicate("\n", timeout=60) == (number, "")
    eventually(lambda: service.status()["blocks"]["devices"] == [], "the devices to be closed")
