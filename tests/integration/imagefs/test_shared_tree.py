"""Images that are whole on this machine are mounted once, and shown by all who use them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from imagefs.daemon import mount_pool
from imagefs.plane import mounts
from tests.support.images.faults import mounts_below, sums
from tests.tools.imagefs_daemon import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow]

SETTINGS = {"background_rate": "1GB/s"}


def test_all_who_use_an_image_look_at_one_file_system(service: Service, image: tuple[Path, Path]) -> None:
    """But for those who write, and for loop devices, which are nobody else's. It outlives the worker."""
    tree, store = image
    name = f"{store}#t"
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


def test_a_descriptor_of_something_else_is_not_taken(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_PATH)
    try:
        with pytest.raises(FileNotFoundError):
            mounts.copy(f"/proc/self/fd/{descriptor}", "0:1")
        with pytest.raises(FileNotFoundError):
            mounts.copy(f"/proc/self/fd/{descriptor + 1000}", "0:1")
    finally:
        os.close(descriptor)


async def test_a_tree_is_kept_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    made: list[int] = []

    def make(metadata: str, devices: object) -> int:
        made.append(os.open(tmp_path, os.O_PATH))
        return os.dup(made[-1])

    monkeypatch.setattr(mount_pool.mounts, "make", make)
    monkeypatch.setattr(mount_pool.mounts, "copy", lambda path, device: os.open(tmp_path, os.O_PATH))
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
