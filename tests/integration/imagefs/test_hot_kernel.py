"""An image with a hot device before the kernel: the tree it was made of, read from both devices."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from imagefs.build.optimize import optimize
from tests.support.images import nasty
from tests.support.images.local_image import LocalImage
from tests.support.images.starts import build_tree, trace
from tests.support.images.stores import images_in

pytestmark = [pytest.mark.mount, pytest.mark.root]


def test_the_kernel_shows_the_tree_that_was_scanned_and_fsck_accepts_it(nasty_tree: Path, tmp_path: Path) -> None:
    images = images_in(tmp_path / "store")
    digest = build_tree(nasty_tree, images)
    modules = sorted(path for path in (nasty_tree / "many").iterdir() if path.stat().st_size > 2048)[::-3]
    reads = [(os.fsencode(path.relative_to(nasty_tree)), 0) for path in modules]
    reads += [(b"files/%d" % (3 * nasty.MIB + 5), at << 16) for at in (48, 7, 8)]  # its last bytes among them
    reads += [(b"files/%d" % size, 0) for size in (2049, 4095, 4097, 65535, 65536, 65537)]
    reads += [(b"hard", 65536), (b"hard", 3 << 16), (b"sparse", 10 << 20)]
    optimized = optimize(images, digest, [trace(images, digest, reads)], tag="app")
    assert optimized.extents == len(reads)
    with contextlib.closing(LocalImage(images, optimized.digest, tmp_path / "image")) as local:
        assert not local.fsck()
        local.mount()
        assert nasty.differences(local.mountpoint, nasty_tree) == {}
