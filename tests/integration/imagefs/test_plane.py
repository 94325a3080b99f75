"""Planes before the kernel: files and loop devices below EROFS, overlays above it, and taking them away again."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from imagefs.plane import erofs, kernel_mounts
from stripefs.errors import MountError
from stripefs.fuse import kernel
from stripefs.fuse.mounting import unmount, users
from tests.integration.imagefs.conftest import clear
from tests.support.images import small_image
from tests.support.images.small_image import SmallImage, loops
from tests.tools.containers import wait_for

pytestmark = [pytest.mark.mount, pytest.mark.root]

CONTENT = os.urandom(300_000)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "root"
    (root / "folder").mkdir(parents=True)
    (root / "folder" / "big").write_bytes(CONTENT)
    (root / "small").write_text("small")
    root.chmod(0o751)
    os.chown(root, 12, 34)
    return root


@pytest.fixture(scope="module")
def image(source: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallImage:
    return small_image.make(source, tmp_path_factory.mktemp("image"))


def shows_the_image(target: str) -> bool:
    return Path(target, "folder/big").read_bytes() == CONTENT and Path(target, "small").read_text() == "small"


# EROFS


@pytest.mark.parametrize(("asked", "backing"), [("auto", "file"), ("loop", "loop")])
def test_files_or_loop_devices_are_mounted_and_go_with_the_mount(
    image: SmallImage, target: str, asked: Literal["auto", "loop"], backing: erofs.Backing
) -> None:
    folder = Path(image.metadata).parent
    assert erofs.mount(image.metadata, [image.device], target, asked) == backing
    assert shows_the_image(target)
    assert len(loops(folder)) == (2 if backing == "loop" else 0)
    assert [one for one in erofs.mounted() if one.path == target] == [erofs.ErofsMount(target, image.metadata, backing)]
    unmount(target)
    assert kernel.find_mount(target) is None
    assert wait_for(lambda: not loops(folder))


def test_loop_devices_are_freed_when_the_image_cannot_be_mounted(
    image: SmallImage, tmp_path: Path, target: str
) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_bytes(bytes(1 << 16))
    with pytest.raises(MountError, match="EROFS refused"):
        erofs.mount(str(garbage), [], target, "loop")
    with pytest.raises(MountError, match="EROFS refused"):
        erofs.mount(str(garbage), [], target)
    for backing in ("auto", "file", "loop"):
        with pytest.raises(MountError, match="No such file"):
            erofs.mount(image.metadata, [str(tmp_path / "nothing")], target, backing)
    assert wait_for(lambda: not loops(tmp_path) and not loops(Path(image.metadata).parent))


def test_loop_devices_go_with_a_process_that_is_killed(image: SmallImage) -> None:
    program = (
        "import os, signal, sys; from imagefs.plane import erofs\n"
        "with erofs.attached(sys.argv[1:]) as devices: os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, image.metadata, image.device], check=False)
    assert done.returncode == -9
    assert wait_for(lambda: not loops(Path(image.metadata).parent))


def test_many_take_loop_devices_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    program = (
        "import sys; from imagefs.plane import erofs\n"
        "for _ in range(10):\n"
        "    with erofs.attached([sys.argv[1]] * 4) as devices:\n"
        "        assert len(set(devices)) == 4 and {erofs.backing_file(one) for one in devices} == {sys.argv[1]}"
    )
    several = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "file")]) for _ in range(4)]
    assert [one.wait() for one in several] == [0, 0, 0, 0]
    assert wait_for(lambda: not loops(tmp_path))


def test_files_on_an_overlay_get_loop_devices(source: Path, tmp_path: Path, target: str) -> None:
    lower, here = tmp_path / "lower", tmp_path / "here"
    lower.mkdir()
    here.mkdir()
    kernel_mounts.mount_overlay([str(lower)], str(tmp_path / "rw"), str(here))
    try:
        image = small_image.make(source, here)
        with pytest.raises(MountError, match="loop"):
            erofs.mount(image.metadata, [image.device], target, "file")
        assert erofs.mount(image.metadata, [image.device], target) == "loop"
        assert shows_the_image(target)
        unmount(target)
        assert wait_for(lambda: not loops(here))
    finally:
        clear(str(here))


@pytest.mark.parametrize("backing", ["file", "loop"])
def test_a_path_with_commas_and_colons(source: Path, tmp_path: Path, target: str, backing: erofs.Backing) -> None:
    odd = tmp_path / "a,b:c\\d e"
    odd.mkdir()
    image = small_image.make(source, odd, "cold,device=none")
    assert erofs.mount(image.metadata, [image.device], target, backing) == backing
    assert shows_the_image(target)
    assert erofs.ErofsMount(target, image.metadata, backing) in erofs.mounted()


# Unmounting


def test_a_busy_mount_names_its_users(image: SmallImage, target: str) -> None:
    erofs.mount(image.metadata, [image.device], target)
    with Path(target, "small").open("rb"), pytest.raises(MountError, match=f"busy.*process {os.getpid()} "):
        unmount(target)
    child = subprocess.Popen(["sleep", "100"], cwd=f"{target}/folder")
    try:
        with pytest.raises(MountError, match=rf"process {child.pid} \(sleep\)"):
            unmount(target)
        unmount(target, lazy=True)
        assert kernel.find_mount(target) is None
    finally:
        child.kill()
        child.wait()


def test_a_mount_below_keeps_it_busy(image: SmallImage, target: str) -> None:
    erofs.mount(image.metadata, [image.device], target)
    inner = f"{target}/folder"
    erofs.mount(image.metadata, [image.device], inner)
    with pytest.raises(MountError, match=f"mount {inner}"):
        unmount(target)
    unmount(inner)
    assert users(target) == []
    unmount(target)
    with pytest.raises(MountError, match="nothing is mounted"):
        unmount(target)


# Overlays


@pytest.fixture
def mounted(image: SmallImage, tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "image"
    path.mkdir()
    erofs.mount(image.metadata, [image.device], str(path))
    yield str(path)
    clear(str(path))


def test_writing_leaves_the_image_as_it_is(mounted: str, tmp_path: Path, target: str) -> None:
    folder = tmp_path / "rw"
    assert kernel_mounts.mount_overlay([mounted], str(folder), target) == "disk"
    root = os.stat(target)
    assert (root.st_mode & 0o7777, root.st_uid, root.st_gid) == (0o751, 12, 34)
    Path(target, "new").write_text("new")
    with Path(target, "folder/big").open("r+b") as file:
        file.write(b"changed")
    Path(target, "small").unlink()
    with pytest.raises(OSError, match="cross-device"):
        os.rename(f"{target}/folder", f"{target}/elsewhere")
    assert shows_the_image(mounted)
    upper = folder / "upper"
    assert sorted(os.listdir(upper)) == ["folder", "new", "small"]
    assert os.stat(upper / "folder/big").st_size == len(CONTENT)
    assert os.stat(upper / "small").st_rdev == 0
    with pytest.raises(MountError, match="in use"):  # one upper serves one overlay
        kernel_mounts.mount_overlay([mounted], str(folder), mounted)
    unmount(target)
    kernel_mounts.mount_overlay([mounted], str(folder), target)
    assert Path(target, "new").read_text() == "new"
    assert not Path(target, "small").exists()


def test_over_the_image_at_its_own_place(mounted: str, tmp_path: Path) -> None:
    kernel_mounts.mount_overlay([mounted], str(tmp_path / "rw"), mounted, volatile=True)
    Path(mounted, "new").write_text("new")
    unmount(mounted)
    assert shows_the_image(mounted)
    assert not Path(mounted, "new").exists()


def test_several_trees_at_odd_paths(mounted: str, tmp_path: Path, target: str) -> None:
    lowers = [tmp_path / name for name in ("a,b", "c:d", "e\\f", "plain")]
    for number, lower in enumerate(lowers):
        lower.mkdir()
        (lower / "which").write_text(str(number))
        (lower / f"only{number}").touch()
    kernel_mounts.mount_overlay([*map(str, lowers), mounted], str(tmp_path / "r,w:x\\y"), target)
    assert Path(target, "which").read_text() == "0"
    assert {f"only{number}" for number in range(4)} | {"which", "small", "folder"} == set(os.listdir(target))
    Path(target, "new").touch()
    assert (tmp_path / "r,w:x\\y" / "upper" / "new").exists()


def test_more_trees_than_an_option_has_room_for(tmp_path: Path, target: str) -> None:
    lowers = []
    for number in range(30):
        lower = tmp_path / f"{number:0200}"
        lower.mkdir()
        (lower / f"from{number}").touch()
        lowers.append(str(lower))
    kernel_mounts.mount_read_only_overlay(lowers, target)
    assert len(os.listdir(target)) == 30
    with pytest.raises(OSError, match="Read-only"):
        Path(target, "new").touch()


def test_an_upper_cannot_lie_on_an_overlay(mounted: str, tmp_path: Path, target: str) -> None:
    (tmp_path / "first").mkdir()
    kernel_mounts.mount_overlay([mounted], str(tmp_path / "rw"), str(tmp_path / "first"))
    try:
        folder = str(tmp_path / "first" / "rw")
        with pytest.raises(MountError, match="lies on an overlay"):
            kernel_mounts.mount_overlay([mounted], folder, target)
        assert kernel_mounts.mount_overlay([mounted], folder, target, without_disk="memory") == "memory"
        Path(target, "new").write_text("new")
        assert os.listdir(folder) == []
        assert kernel.find_mount(folder) is None
        unmount(target)
    finally:
        clear(target)
        clear(str(tmp_path / "first"))


def test_a_lower_that_is_not_there(tmp_path: Path, target: str) -> None:
    with pytest.raises(MountError, match=os.strerror(errno.ENOENT)):
        kernel_mounts.mount_overlay([str(tmp_path / "nothing")], str(tmp_path / "rw"), target)
    with pytest.raises(MountError, match=os.strerror(errno.ENOENT)):
        kernel_mounts.mount_read_only_overlay([str(tmp_path), str(tmp_path / "nothing")], target)


# Copies


def test_a_descriptor_of_something_else_is_not_taken(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_PATH)
    try:
        with pytest.raises(FileNotFoundError):
            kernel_mounts.copy(f"/proc/self/fd/{descriptor}", "0:1")
        with pytest.raises(FileNotFoundError):
            kernel_mounts.copy(f"/proc/self/fd/{descriptor + 1000}", "0:1")
    finally:
        os.close(descriptor)
