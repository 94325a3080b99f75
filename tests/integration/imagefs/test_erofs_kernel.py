"""Our EROFS images before the kernel and before fsck.erofs: the tree they show is the tree they were made of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.format.erofs import ErofsImage
from imagefs.format.inodes import COLD
from tests.support.images import nasty, small_image
from tests.support.images.local_image import FileImage

pytestmark = [pytest.mark.mount, pytest.mark.root]


def make(source: Path, folder: Path) -> FileImage:
    made = small_image.make(source, folder)
    return FileImage(Path(made.metadata), [Path(made.device)], folder / "mnt")


@pytest.fixture(scope="module")
def built(nasty_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileImage]:
    with contextlib.closing(make(nasty_tree, tmp_path_factory.mktemp("image"))) as made:
        yield made


def test_the_kernel_shows_the_tree_that_was_scanned(nasty_tree: Path, built: FileImage) -> None:
    built.mount()
    assert nasty.differences(built.mountpoint, nasty_tree) == {}


def test_fsck_accepts_it(built: FileImage) -> None:
    assert not built.fsck()


def test_the_same_tree_gives_the_same_image(nasty_tree: Path, built: FileImage, tmp_path: Path) -> None:
    again = make(nasty_tree, tmp_path)
    assert again.metadata.read_bytes() == built.metadata.read_bytes()
    assert again.devices[0].read_bytes() == built.devices[0].read_bytes()


def test_every_file_lies_in_the_cold_device(built: FileImage) -> None:
    image = ErofsImage(built.metadata.read_bytes())
    assert [device.tag for device in image.devices] == [b"cold"]
    top = image.stat(image.root)
    number = image.lookup(top, b"zeros")
    assert number is not None
    chunks = image.chunks(image.stat(number))
    assert chunks is not None
    assert {address >> 32 for address in chunks[1]} == {COLD}
