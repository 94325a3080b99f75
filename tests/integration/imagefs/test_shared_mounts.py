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
from tests.support.images.faults import ensure, make_image, mount_here, mounts_below, sums, umount_here
from tests.tools.containers import fill
from tests.tools.imagefs_daemon import Service, built, eventually

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
    held = Client(service.settings).hold(StoreSettings(url=str(store)), "t", Lease("1", "containerd"))
    mount_here(service, store, targets[2], backing="loop")
    assert device(targets[0]) == device(held.lowerdir) != device(targets[2])
    umount_here(service, targets[0])
    service.kill_worker()
    mount_here(service, store, targets[3])
    assert device(targets[3]) == device(held.lowerdir)
    Client(service.settings).release(Lease("1", "containerd"), at_once=True)
    eventually(lambda: kernel.find_mount(held.lowerdir) is None, "the end of the lease's mount")
    for target in targets[1:]:
        assert {name: sums(target)[name] for name in sums(tree)} == sums(tree)
        umount_here(service, target)
    eventually(lambda: service.status()["blocks"]["devices"] == [], "the devices to be closed")


def test_containers_that_start_together_show_one_file_system(service: Service, tmp_path: Path) -> None:
    """Also one that starts when the container is gone whose client had mounted it, while another goes on."""
    fill(tmp_path / "root")
    (tmp_path / "root/srv/unread").write_bytes(os.urandom(8 << 20))  # an image that is whole here is mounted anew
    built(tmp_path / "root", tmp_path / "store", "t", {"config": {"Env": ["PATH=/bin"]}})
    ensure(service)
    script = "stat -c %d /; read line; cat /srv/data > /dev/null; stat -c %d /"

    def start() -> subprocess.Popen[str]:
        return service.start("run", f"{tmp_path}/store#t", "--", "sh", "-c", script, stdin=-1)

    def first_line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line: str = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr is not None else ""
        return line

    processes = [start() for _ in range(3)]
    (number,) = {first_line(process) for process in processes}
    for process in (processes[0], processes[1]):
        assert process.communicate("\n", timeout=60) == (number, "")
    service.kill_worker()
    later = start()
    assert first_line(later) == number
    for process in (processes[2], later):
        assert process.communicate("\n", timeout=60) == (number, "")
    eventually(lambda: service.status()["blocks"]["devices"] == [], "the devices to be closed")


@pytest.mark.slow
def test_all_who_use_an_image_look_at_one_file_system(service: Service, image: tuple[Path, Path]) -> None:
    """But for those who write, and for loop devices, which are nobody else's. It outlives the worker."""
    tree, store = image
    name = f"{store}#t"
    service.environment["IMAGEFS_BACKGROUND_RATE"] = "1GB/s"
    service.ok("mount", name, str(service.mountpoint()))
    service.ok("ready", str(service.mountpoint()))

    def whole() -> bool:
        (one,) = service.status()["images"]
        return all(device["complete"] for device in one["devices"])

    eventually(whole, "the image to be whole")
    service.ok("umount", str(service.mountpoint()))
    loop = ["--erofs-backing", "loop"]
    kinds = {"plain": [], "file": ["--erofs-backing", "file"], "writable": ["--rw"], "loop": loop, "other loop": loop}
    targets = {kind: service.mountpoint(kind) for kind in [*kinds, "later"]}
    for kind, options in kinds.items():
        service.ok("mount", name, str(targets[kind]), *options)
    service.kill_worker()
    service.ok("mount", name, str(targets["later"]))
    numbers = {kind: os.stat(target).st_dev for kind, target in targets.items()}
    assert numbers["plain"] == numbers["file"]
    assert len({numbers[kind] for kind in kinds}) == 4
    for target in targets.values():
        assert sums(target) == sums(tree)
    (targets["writable"] / "new").write_text("new")
    assert not (targets["plain"] / "new").exists()
    with pytest.raises(OSError, match="Read-only"):
        (targets["plain"] / "new").write_text("new")
    for target in targets.values():
        service.ok("umount", str(target))
    assert mounts_below(service) == [service.settings.devices]
