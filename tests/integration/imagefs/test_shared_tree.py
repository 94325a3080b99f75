"""Images that are whole on this machine are mounted once, and shown by all who use them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from imagefs.daemon import mount_pool
from imagefs.plane import mountapi
from tests.support.images.faults import mounts_below, sums
from tests.tools.imagefs_daemon import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow]

SETTINGS = {"background_rate": "1GB/s"}


@pytest.fixture
def local(service: Service, image: tuple[Path, Path]) -> Iterator[tuple[Service, str, Path]]:
    """A daemon that has an image whole; the image's name, and its tree."""
    tree, store = image
    name, target = f"{store}#t", service.mountpoint("first")
    service.ok("mount", name, str(target))
    service.ok("ready", str(target))

    def whole() -> bool:
        (one,) = service.status()["images"]
        return all(device["complete"] for device in one["devices"])

    eventually(whole, "the image to be whole")
    service.ok("umount", str(target))
    yield service, name, tree
    assert mounts_below(service) in ([], [service.settings.devices])


def test_all_who_use_an_image_look_at_one_file_system(local: tuple[Service, str, Path]) -> None:
    service, name, tree = local
    targets = [service.mountpoint(f"m{number}") for number in range(3)]
    for target, options in zip(targets, ([], ["--erofs-backing", "file"], ["--rw"]), strict=True):
        service.ok("mount", name, str(target), *options)
    first, second, writable = (os.stat(target).st_dev for target in targets)
    assert first == second != writable
    for target in targets:
        assert sums(target) == sums(tree)
    (targets[2] / "new").write_text("new")
    assert not (targets[0] / "new").exists()
    with pytest.raises(OSError, match="Read-only"):
        (targets[0] / "new").write_text("new")
    for target in targets:
        service.ok("umount", str(target))


def test_loop_devices_are_nobody_elses(local: tuple[Service, str, Path]) -> None:
    service, name, _ = local
    targets = [service.mountpoint(f"m{number}") for number in range(2)]
    for target in targets:
        service.ok("mount", name, str(target), "--erofs-backing", "loop")
    assert os.stat(targets[0]).st_dev != os.stat(targets[1]).st_dev
    for target in targets:
        service.ok("umount", str(target))


def test_what_is_shown_outlives_the_worker_and_the_daemon(local: tuple[Service, str, Path]) -> None:
    service, name, tree = local
    before, after = service.mountpoint("before"), service.mountpoint("after")
    service.ok("mount", name, str(before))
    service.kill_worker()
    assert sums(before) == sums(tree)
    service.ok("mount", name, str(after))
    assert sums(after) == sums(tree)
    service.stop()
    assert sums(before) == sums(tree)
    for target in (before, after):
        service.ok("umount", str(target))


def test_containers_see_what_others_read(local: tuple[Service, str, Path]) -> None:
    service, name, _ = local
    target = service.mountpoint()
    service.ok("mount", name, str(target))
    number = os.stat(target).st_dev
    done = service.run("run", name, "--", "/no/such/program")
    assert "no/such/program" in done.stderr
    assert os.stat(target).st_dev == number
    service.ok("umount", str(target))


def test_a_descriptor_of_something_else_is_not_taken(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_PATH)
    try:
        with pytest.raises(FileNotFoundError):
            mountapi.copy(f"/proc/self/fd/{descriptor}", "0:1")
        with pytest.raises(FileNotFoundError):
            mountapi.copy(f"/proc/self/fd/{descriptor + 1000}", "0:1")
    finally:
        os.close(descriptor)


async def test_a_tree_is_kept_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    made: list[int] = []

    def make(metadata: str, devices: object) -> int:
        made.append(os.open(tmp_path, os.O_PATH))
        return os.dup(made[-1])

    monkeypatch.setattr(mount_pool.mountapi, "make", make)
    monkeypatch.setattr(mount_pool.mountapi, "copy", lambda path, device: os.open(tmp_path, os.O_PATH))
    device = tmp_path / "device"
    device.write_bytes(b"1")
    in_use = {"image"}
    held = mount_pool.MountPool(lambda: in_use)
    try:
        first = await held.of("image", "metadata", [str(device)])
        assert first is not None
        assert await held.of("image", "metadata", [str(device)]) is first
        in_use.clear()
        await held.tidy(trio.current_time())
        mock_clock.jump(mount_pool.LINGER)
        await held.tidy(trio.current_time())
        assert len(held) == 1
        mock_clock.jump(1)
        await held.tidy(trio.current_time())
        assert len(held) == 0
        await held.of("image", "metadata", [str(device)])
        device.write_bytes(b"2")  # bytes read of it before may be in memory
        os.utime(device, ns=(1, 1))
        await held.of("image", "metadata", [str(device)])
        assert len(held) == 2
        assert len(made) == 3
    finally:
        mock_clock.jump(mount_pool.LINGER + 1)
        in_use.clear()
        for _ in range(2):
            await held.tidy(trio.current_time())
            mock_clock.jump(mount_pool.LINGER + 1)
        for descriptor in made:
            os.close(descriptor)
