"""An image with a hot device before the kernel: the tree it was made of, read from both devices."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from imagefs.build.optimize import OptimizeReport, optimize
from imagefs.format.inodes import HOT
from imagefs.repository.images import Images
from tests.support.images import nasty
from tests.support.images.local_image import LocalImage
from tests.support.images.starts import build_tree, open_store, trace

pytestmark = [pytest.mark.mount, pytest.mark.root]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    return open_store(tmp_path_factory.mktemp("images") / "store")


@pytest.fixture(scope="module")
def optimized(nasty_tree: Path, images: Images) -> OptimizeReport:
    digest = build_tree(nasty_tree, images)
    modules = sorted(path for path in (nasty_tree / "many").iterdir() if path.stat().st_size > 2048)[::-3]
    reads = [(os.fsencode(path.relative_to(nasty_tree)), 0) for path in modules]
    reads += [(b"files/%d" % (3 * nasty.MIB + 5), at << 16) for at in (48, 7, 8)]  # its last bytes among them
    reads += [(b"files/%d" % size, 0) for size in (2049, 4095, 4097, 65535, 65536, 65537)]
    reads += [(b"hard", 65536), (b"hard", 3 << 16), (b"sparse", 10 << 20)]
    found = trace(images, digest, reads)
    assert len(found.touches) == len(reads)
    return optimize(images, digest, [found], tag="app")


def test_the_kernel_shows_the_tree_that_was_scanned_and_fsck_accepts_it(
    nasty_tree: Path, images: Images, optimized: OptimizeReport, tmp_path: Path
) -> None:
    with contextlib.closing(LocalImage(images, optimized.digest, tmp_path / "image")) as local:
        assert not local.fsck()
        local.mount()
        assert nasty.differences(local.mountpoint, nasty_tree) == {}


def test_what_was_touched_is_read_from_the_hot_device(
    nasty_tree: Path, images: Images, optimized: OptimizeReport, tmp_path: Path
) -> None:
    """With a hot device of zeros exactly the extents that were traced are other than they should be."""
    image = LocalImage(images, optimized.digest, tmp_path / "image")
    hot = image.devices[HOT - 1]
    hot.write_bytes(bytes(hot.stat().st_size))
    try:
        image.mount()
        module = max((path for path in (nasty_tree / "many").iterdir() if path.stat().st_size > 2048), key=str)
        traced = image.mountpoint / "many" / module.name
        assert traced.read_bytes() == bytes(module.stat().st_size)
        large = f"files/{3 * nasty.MIB + 5}"
        shown, expected = (image.mountpoint / large).read_bytes(), (nasty_tree / large).read_bytes()
        wrong = {at >> 16 for at in range(0, len(shown), 4096) if shown[at : at + 4096] != expected[at : at + 4096]}
        assert wrong == {7, 8, 48}
    finally:
        image.close()
