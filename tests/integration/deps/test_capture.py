"""A container's changes as a lower directory of the next one: above the same image it shows the same."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.build.image import build
from imagefs.deps.capture import CapturedTree, capture_upper
from imagefs.plane import kernel_mounts
from stripefs.fuse import kernel
from tests.support.images import nasty
from tests.support.images.local_image import LocalImage
from tests.support.images.stores import images_in

pytestmark = [pytest.mark.mount, pytest.mark.root]

TARGET = "opt/deps"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system on which an upper directory can be, whatever the tests' own folder lies on."""
    folder = tmp_path / "disk"
    folder.mkdir()
    kernel.mount("test", str(folder), "tmpfs", 0, "mode=755")
    yield folder
    kernel.unmount(str(folder), kernel.MNT_DETACH)


@pytest.fixture
def base(disk: Path) -> Path:
    """The tree of an image."""
    top = disk / "base"
    for path in ("removed.py", "replaced/old.py", "kept/a.py", "kept/gone.py", "shared", "becomes-folder", "folder/x"):
        (top / TARGET / path).parent.mkdir(parents=True, exist_ok=True)
        (top / TARGET / path).write_text(path)
    (top / "etc").mkdir()
    (top / "etc" / "passwd").write_text("root")
    (top / "opt").chmod(0o750)
    return top


@contextlib.contextmanager
def container(base: Path, disk: Path) -> Iterator[Path]:
    """Its root, in which everything may be changed; what was, is in `disk`/rw/upper."""
    root = disk / "root"
    root.mkdir()
    kernel_mounts.mount_overlay([str(base)], str(disk / "rw"), str(root))
    try:
        yield root
    finally:
        kernel.unmount(str(root), kernel.MNT_DETACH)


@contextlib.contextmanager
def seen(tree: CapturedTree, base: Path, folder: Path) -> Iterator[Path]:
    """The tree, packed, above `base`."""
    images = images_in(folder / "store")
    with contextlib.closing(LocalImage(images, build(*tree, images).digest, folder / "image")) as image:
        assert not image.fsck()
        image.mount()
        merged = folder / "merged"
        merged.mkdir()
        kernel_mounts.mount_read_only_overlay([str(image.mountpoint), str(base)], str(merged))
        try:
            yield merged
        finally:
            kernel.unmount(str(merged), kernel.MNT_DETACH)


def _change(target: Path) -> None:
    """All that installers do, and more."""
    (target / "removed.py").unlink()
    shutil.rmtree(target / "replaced")
    (target / "replaced").mkdir()
    (target / "replaced" / "new.py").write_text("new")
    (target / "kept" / "gone.py").unlink()
    (target / "kept" / "a.py").write_text("changed")
    (target / "becomes-folder").unlink()
    (target / "becomes-folder").mkdir(mode=0o711)
    shutil.rmtree(target / "folder")
    (target / "folder").write_text("now a file")
    os.setxattr(target / "shared", "user.note", b"copied up")
    os.chown(target / "kept", 12, 34)
    (target / "everything").mkdir()
    nasty.make(target / "everything")


@pytest.mark.parametrize("target", [f"/{TARGET}", "/"])
def test_it_shows_what_the_container_saw(base: Path, disk: Path, tmp_path: Path, target: str) -> None:
    """Of the rest of the image nothing is changed."""
    with container(base, disk) as root:
        _change(root / TARGET)
        (root / "etc" / "passwd").unlink()
        (root / "opt" / "other").write_text("other")
        tree = capture_upper(str(disk / "rw" / "upper"), [target])
        with seen(tree, base, tmp_path) as merged:
            assert nasty.differences(Path(f"{merged}{target}"), Path(f"{root}{target}")) == {}
            assert sorted(os.listdir(merged / TARGET / "replaced")) == ["new.py"]
            assert (merged / "etc" / "passwd").exists() == (target != "/")
            assert (merged / "opt" / "other").exists() == (target == "/")
            assert (merged / "opt").stat().st_mode & 0o7777 == 0o750
