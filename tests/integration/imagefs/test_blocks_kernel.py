"""The block store and the kernel: mounts of complete devices keep their bytes, and a small file system fills up."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefs.blocks.source import PackSource
from imagefs.format.index import BLOCK
from imagefs.plane import erofs
from stripefs.fuse.mounting import unmount
from stripefs.settings import StoreSettings
from tests.support.images.devices import FakeSource, eventually, make, noise, running, settled
from tests.support.images.faults import drop_pages
from tests.support.images.stores import build_tree, images_in, write_tree

pytestmark = [pytest.mark.mount, pytest.mark.root]


@pytest.mark.parametrize("backing", ["file", "loop"])
async def test_a_mounted_device_is_left_alone_also_by_the_next_daemon(
    tmp_path: Path, target: str, backing: erofs.Backing
) -> None:
    """No process pins it: as after a daemon that was killed."""
    tree, images = write_tree(tmp_path / "tree", a=1, b=2, c=3, d=4, e=5), images_in(tmp_path / "store")
    manifest = images.manifest(build_tree(tree, images).digest)
    entry = manifest.devices[0]
    index = images.index(entry.index)
    metadata = tmp_path / "meta.erofs"
    metadata.write_bytes(images.metadata(manifest.metadata))
    source = PackSource(StoreSettings(url=str(tmp_path / "store")))
    async with running(tmp_path / "blocks") as blocks:
        device = await blocks.open(entry.index, index, source)
        await device.fetch(range(index.blocks))
        await eventually(lambda: device.complete)
    source.close()
    erofs.mount(str(metadata), [str(device.path)], target, backing)

    other = make(noise(8))
    async with running(tmp_path / "blocks", limit=index.stored * BLOCK + BLOCK) as blocks:
        intruder = await blocks.open(other.digest, other.index, FakeSource(other))
        assert bytes(await intruder.read(0, intruder.size)) == other.content
        await settled(intruder, blocks)
        assert intruder.present < 8
        for path in tree.iterdir():
            drop_pages(Path(target, path.name))
            assert Path(target, path.name).read_bytes() == path.read_bytes()
        unmount(target)
        await intruder.read(0, intruder.size)
        await settled(intruder, blocks)
        assert blocks.snapshot()["evicted"] > 0
