"""The cache's disk: damaged, full, read-only, and used by two; what is read stays right, or is an error."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stripefs.fuse import kernel
from tests.integration.imagefs.conftest import clear
from tests.support.images.faults import (
    MIB,
    cut,
    ensure,
    flip,
    make_image,
    mount_here,
    mounts_below,
    objects,
    sums,
    umount_here,
)
from tests.tools.imagefs_daemon import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root, pytest.mark.slow]

SETTINGS = {"background_rate": "0", "io_timeout": "5"}


@pytest.fixture
def small_disk(service: Service) -> Iterator[Path]:
    """The cache on a file system of 3 MiB, less than an image needs."""
    cache = Path(service.settings.cache)
    cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(cache)], check=True)
    yield cache
    service.close()
    clear(str(cache))


def flip_in_place(path: Path, at: int = 0) -> None:
    """As a bad disk does it: the same inode, its length kept. at: the place, in the middle unless given."""
    data = bytearray(path.read_bytes())
    data[at or len(data) // 2] ^= 4
    with path.open("r+b") as file:
        file.write(data)


PLACES = ["blocks/*.data", "blocks/*.table", "blocks/*.complete", "indexes/*", "metadata/*", "manifests/*", "names/*"]

DAMAGE: dict[str, Callable[[Path], None]] = {
    "flipped": flip,
    "flipped in place": flip_in_place,
    "flipped at the end": lambda path: flip_in_place(path, -20),
    "cut": cut,
    "empty": lambda path: os.truncate(path, 0),
    "gone": os.unlink,
}


def test_a_damaged_cache(service: Service, tmp_path: Path) -> None:
    """An image for each kind of file and damage; all of it was here. The next daemon shows the right bytes of all."""
    cache = Path(service.settings.cache)
    sources: dict[tuple[str, str], Path] = {}
    kept: dict[tuple[str, str], dict[str, Path]] = {}
    known: set[Path] = set()
    ensure(service)
    for number, case in enumerate((place, how) for place in PLACES for how in DAMAGE):
        sources[case], store = make_image(tmp_path / f"image{number}", seed=number, size=MIB // 2, small=2)
        mount_here(service, store, service.mountpoint(f"mnt{number}"))
        assert sums(service.mountpoint(f"mnt{number}")) == sums(sources[case])
        kept[case] = {place: path for place in PLACES for path in cache.glob(place) if path not in known}
        known |= set(kept[case].values())
        kept[case]["blocks/*.complete"] = kept[case]["blocks/*.data"].with_suffix(".complete")  # which comes later
    eventually(lambda: all(path.exists() for paths in kept.values() for path in paths.values()), "all to be whole")
    for number in range(len(sources)):
        umount_here(service, service.mountpoint(f"mnt{number}"))
    service.stop()
    for (place, how), paths in kept.items():
        DAMAGE[how](paths[place])
    ensure(service)
    for number, (case, source) in enumerate(sources.items()):
        mount_here(service, source.parent / "store", service.mountpoint(f"mnt{number}"))
        assert sums(service.mountpoint(f"mnt{number}")) == sums(source), case
    status = service.status()
    assert status["restarts"] == 0
    assert len(status["images"]) == len(sources)


def test_a_cache_that_becomes_read_only(service: Service, small_disk: Path, tmp_path: Path) -> None:
    source, store = make_image(tmp_path / "image")
    _, others = make_image(tmp_path / "other", seed=2)
    target = service.mountpoint()
    ensure(service)
    mount_here(service, store, target)
    remount(small_disk, "ro")
    assert sums(target) == sums(source)
    service.kill_worker()  # the next one comes up
    done = service.run("mount", f"{others}#t", str(service.mountpoint("second")))
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert "Read-only file system" in done.stderr
    status = service.status()
    assert len(status["images"]) == status["restarts"] == 1
    assert sums(target) == sums(source)
    umount_here(service, target)
    service.stop()
    service.ok("mount", f"{store}#t", str(target))  # its documents are here
    assert sums(target) == sums(source)
    umount_here(service, target)
    remount(small_disk, "rw")
    mount_here(service, store, target)
    assert sums(target) == sums(source)
    umount_here(service, target)


def remount(path: Path, how: str) -> None:
    """Files that are open for writing stay so, but nothing else can be written."""
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
    assert len(service.status()["images"]) == 1
    assert objects(Path(service.settings.cache), "names") != []


def test_a_block_is_damaged_while_it_is_served(service: Service, new_image: tuple[Path, Path]) -> None:
    """Each read is checked, of a device that is not here as a whole; the kernel's own copies are dropped."""
    source, store = new_image  # of which no start has left a plan
    target = service.mountpoint()
    service.environment["IMAGEFS_BACKGROUND_RATE"] = "0"  # nothing comes that is not read
    ensure(service)
    mount_here(service, store, target)
    with (target / "large").open("rb") as file:
        begun = file.read(MIB)
    (data,) = Path(service.settings.cache, "blocks").glob("*.data")
    present = eventually(lambda: service.status()["images"][0]["devices"][0]["present"], "blocks on disk")
    assert present < 40
    umount_here(service, target)
    with data.open("r+b") as file:
        for at in range(0, 4 * MIB, 32 << 10):
            file.seek(at + 11)
            file.write(b"\xff\x00\xff")
    Path("/proc/sys/vm/drop_caches").write_text("2")  # the daemon's file, which nobody has open now
    mount_here(service, store, target)
    assert (target / "large").read_bytes()[: len(begun)] == begun
    assert sums(target) == sums(source)
    assert service.status()["blocks"]["damaged"]["disk"] > 0
    umount_here(service, target)


def test_a_disk_that_fills_up(service: Service, small_disk: Path, tmp_path: Path) -> None:
    source, store = make_image(tmp_path / "image")
    target = service.mountpoint()
    service.environment["IMAGEFS_CACHE_SIZE"] = "1GB"  # more than there is
    ensure(service)
    mount_here(service, store, target)
    assert sums(target) == sums(source)
    eventually(lambda: service.status()["blocks"]["disk_errors"], "the disk to be full")
    status = service.status()
    assert status["restarts"] == 0
    os.kill(status["worker_pid"], signal.SIGKILL)
    assert sums(target) == sums(source)
    umount_here(service, target)
