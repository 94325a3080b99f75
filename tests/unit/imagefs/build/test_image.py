"""From a directory into a store and back, without a kernel: every byte, every name."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from imagefs.repository.images import Images
from tests.support.images import nasty
from tests.support.images.starts import Stored, build_tree


def test_every_byte_comes_back(tmp_path: Path, images: Images) -> None:
    source = tmp_path / "source"
    source.mkdir()
    nasty.make(source)
    stored = Stored(images, build_tree(source, images))
    checked = 0
    for folder, _, names in os.walk(os.fsencode(source)):
        for name in names:
            path = os.path.join(folder, name)
            if not stat.S_ISREG(os.lstat(path).st_mode):
                continue
            inode = stored.image.stat(stored.image.root)
            for part in os.path.relpath(path, os.fsencode(source)).split(b"/"):
                number = stored.image.lookup(inode, part)
                assert number is not None, path
                inode = stored.image.stat(number)
            assert stored.content(inode) == Path(os.fsdecode(path)).read_bytes(), path
            checked += 1
    assert checked > 3000


def test_an_empty_directory_is_an_image(tmp_path: Path, images: Images) -> None:
    (tmp_path / "nothing").mkdir()
    image = Stored(images, build_tree(tmp_path / "nothing", images)).image
    assert [entry[0] for entry in image.entries(image.stat(image.root))] == [b".", b".."]
