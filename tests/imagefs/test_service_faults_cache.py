"""The cache's disk: damaged, full, read-only, and used by two; what is read stays right, or is an error."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stripefs.mount import kernel
from tests.imagefs.faults import (
    MIB,
    cut,
    ensure,
    flip,
    make_image,
    mount_here,
    mounts_below,
    objects,
    status_of,
    sums,
    umount_here,
)
from tests.imagefs.service import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.stress]

SETTINGS = {"background_rate": "0", "io_timeout": "5"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path, **SETTINGS)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def small_disk(service: Service) -> Iterator[Path]:
    """The cache on a file system of 3 MiB, less than an image needs."""
    cache = Path(service.settings.cache)
    cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(cache)], check=True)
    yield cache
    service.close()
    while kernel.find_mount(str(cache)) is not None:
        kernel.unmount(str(cache), kernel.MNT_DETACH)


def overwrite(change: Callable[[bytearray], object]) -> Callable[[Path], None]:
    """Damage in place, as a bad disk does it: the same inode, its length kept."""

    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        change(data)
        with path.open("r+b") as file:
            file.write(data)

    return damage


def flip_middle(data: bytearray) -> None:
    data[len(data) // 2] ^= 4


def flip_end(data: bytearray) -> None:
    data[-20] ^= 4


PLACES = ["blocks/*.data", "blocks/*.table", "blocks/*.complete", "indexes/*", "metadata/*", "manifests/*", "names/*"]

DAMAGE: dict[str, Callable[[Path], None]] = {
    "flipped": flip,
    "flipped in place": overwrite(flip_middle),
    "flipped at the end": overwrite(flip_end),
    "cut": cut,
    "empty": lambda path: os.truncate(path, 0),
    "gone": os.unlink,
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_cache(service: Service, tmp_path: Path, how: str) -> None:
    """An image for each kind of file; all of it was here as a whole. The next daemon shows the right bytes of all."""
    images = [make_image(tmp_path / f"image{number}", seed=number, size=MIB // 2) for number in range(len(PLACES))]
    cache = Path(service.settings.cache)
    damaged: list[Path] = []
    known: set[Path] = set()
    target = service.mountpoint()
    ensure(service)
    for (source, store), place in zip(images, PLACES, strict=True):
        mount_here(service, store, target)
        assert sums(target) == sums(source)
        eventually(lambda: status_of(service)["images"][0]["devices"][0]["complete"], "the whole image")
        umount_here(service, target)
        (path,) = set(cache.glob(place)) - known
        damaged.append(path)
        known |= {path for one in PLACES for path in cache.glob(one)}
    service.ok("daemon", "--stop")
    eventually(lambda: not service.processes(), "the end of the daemon")
    for path in damaged:
        DAMAGE[how](path)
    ensure(service)
    targets = [service.mountpoint(f"again{number}") for number in range(len(images))]
    for (source, store), target, place in zip(images, targets, PLACES, strict=True):
        mount_here(service, store, target)
        assert sums(target) == sums(source), place
    status = status_of(service)
    assert status["restarts"] == 0
    assert len(status["images"]) == len(images)
    for target in targets:
        umount_here(service, target)


def test_a_block_is_damaged_while_it_is_served(service: Service, tmp_path: Path) -> None:
    """Each read is checked, of a device that is not here as a whole; the kernel's own copies are dropped."""
    source, store = make_image(tmp_path / "image")
    target = service.mountpoint()
    service.ok("mount", f"{store}#t", str(target))
    with (target / "large").open("rb") as file:
        begun = file.read(MIB)
    (data,) = Path(service.settings.cache, "blocks").glob("*.data")
    present = eventually(lambda: status_of(service)["images"][0]["devices"][0]["present"], "blocks on disk")
    assert present < 40
    service.ok("umount", str(target))
    with data.open("r+b") as file:
        for at in range(0, 4 * MIB, 32 << 10):
            file.seek(at + 11)
            file.write(b"\xff\x00\xff")
    Path("/proc/sys/vm/drop_caches").write_text("2")  # the daemon's file, which nobody has open now
    service.ok("mount", f"{store}#t", str(target))
    assert (target / "large").read_bytes()[: len(begun)] == begun
    assert sums(target) == sums(source)
    assert status_of(service)["blocks"]["damaged"]["disk"] > 0
    service.ok("umount", str(target))


def test_a_disk_that_fills_up(service: Service, small_disk: Path, tmp_path: Path) -> None:
    source, store = make_image(tmp_path / "image")
    target = service.mountpoint()
    service.environment["IMAGEFS_CACHE_SIZE"] = "1GB"  # more than there is
    service.ok("mount", f"{store}#t", str(target))
    assert sums(target) == sums(source)
    status = status_of(service)
    assert status["blocks"]["disk_errors"] > 0
    assert status["restarts"] == 0
    os.kill(status["worker_pid"], 9)
    assert sums(target) == sums(source)
    service.ok("umount", str(target))


def test_no_room_for_an_image_at_all(service: Service, small_disk: Path, tmp_path: Path) -> None:
    """The image is refused by a line that says why; those that are mounted go on, and room is all it takes."""
    source, store = make_image(tmp_path / "image", size=MIB)
    other, others = make_image(tmp_path / "other", seed=2, size=MIB)
    first, second = service.mountpoint("first"), service.mountpoint("second")
    service.ok("mount", f"{store}#t", str(first))
    ballast = small_disk / "ballast"
    fill_up(ballast)
    done = service.run("mount", f"{others}#t", str(second))
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "cannot be kept in" in done.stderr
    assert "No space left on device" in done.stderr
    assert sums(first) == sums(source)
    ballast.unlink()
    service.ok("mount", f"{others}#t", str(second))
    assert sums(second) == sums(other)
    for target in (first, second):
        service.ok("umount", str(target))


def test_a_cache_that_becomes_read_only(service: Service, small_disk: Path, tmp_path: Path) -> None:
    source, store = make_image(tmp_path / "image")
    _, others = make_image(tmp_path / "other", seed=2)
    target = service.mountpoint()
    service.ok("mount", f"{store}#t", str(target))
    remount(small_disk, "ro")
    assert sums(target) == sums(source)
    done = service.run("mount", f"{others}#t", str(service.mountpoint("second")))
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert "Read-only file system" in done.stderr
    status = status_of(service)
    assert len(status["images"]) == 1
    assert status["restarts"] == 0
    service.ok("umount", str(target))
    service.ok("daemon", "--stop")
    service.ok("mount", f"{store}#t", str(target))  # its documents are here
    assert sums(target) == sums(source)
    service.ok("umount", str(target))
    remount(small_disk, "rw")
    service.ok("mount", f"{store}#t", str(target))
    assert sums(target) == sums(source)
    service.ok("umount", str(target))


def test_a_worker_comes_up_on_a_cache_that_became_read_only(service: Service, small_disk: Path, tmp_path: Path) -> None:
    source, store = make_image(tmp_path / "image", size=MIB)
    target = service.mountpoint()
    service.ok("mount", f"{store}#t", str(target))
    remount(small_disk, "ro")
    service.kill_worker()
    assert sums(target) == sums(source)
    service.ok("umount", str(target))


def fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(path).f_bavail == 0


def remount(path: Path, how: str) -> None:
    """What is open for writing stays so, but nothing else can be written."""
    if how == "rw":
        kernel.unmount(str(path), kernel.MNT_DETACH)
        return
    subprocess.run(["mount", "--bind", str(path), str(path)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(path)], check=True)


def test_two_daemons_and_one_cache(service: Service, tmp_path: Path) -> None:
    _, store = make_image(tmp_path / "image", size=MIB)
    service.ok("mount", f"{store}#t", str(service.mountpoint()))
    other = Service(tmp_path / "other", **SETTINGS)
    other.folder.mkdir()
    other.environment["IMAGEFS_CACHE"] = service.settings.cache
    try:
        for command in (["mount", f"{store}#t", str(other.mountpoint())], ["daemon"]):
            done = other.run(*command)
            assert done.returncode == 32
            assert len(done.stderr.splitlines()) == 1
            assert f"in use by process {service.worker()}" in done.stderr
        assert mounts_below(other) == []
        assert not other.answers()
    finally:
        other.close()
    assert len(status_of(service)["images"]) == 1
    assert objects(Path(service.settings.cache), "names") != []
