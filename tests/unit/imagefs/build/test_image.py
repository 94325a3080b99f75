"""From a directory into a store and back, without a kernel: every byte, every name; and what a second build stores."""

from __future__ import annotations

import hashlib
import os
import random
import stat
from pathlib import Path

import lz4.block
import pytest

from imagefs.build.content import scan
from imagefs.build.image import BuildReport, build
from imagefs.errors import DamagedObject, NoSuchImage
from imagefs.format.erofs import ErofsImage
from imagefs.format.index import BLOCK, NOWHERE, Index
from imagefs.format.inode import HOLE
from imagefs.progress import Progress
from imagefs.repository.images import Images
from tests.support.images import nasty


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    root.mkdir()
    nasty.make(root)
    return root


def put(source: Path, images: Images, tag: str = "app") -> BuildReport:
    return build(*scan(str(source)), images, tag=tag)


class Opened:
    """An image of a store, read with nothing but its documents."""

    def __init__(self, images: Images, tag: str) -> None:
        manifest = images.manifest(images.resolve(tag))
        self.image = ErofsImage(images.metadata(manifest.metadata))
        self.indexes = [images.index(device.index) for device in manifest.devices]
        self._images = images
        self._packs: dict[bytes, bytes] = {}

    def file(self, path: bytes) -> bytes:
        inode = self.image.stat(self.image.root)
        for part in path.split(b"/"):
            number = self.image.lookup(inode, part)
            assert number is not None, path
            inode = self.image.stat(number)
        chunks = self.image.chunks(inode)
        if chunks is None:
            return self.image.content(inode)
        size, addresses = chunks
        data = b"".join(bytes(size) if at == HOLE else self._chunk(at, size) for at in addresses)
        return data[: inode.size]

    def _chunk(self, address: int, size: int) -> bytes:
        index, at = self.indexes[(address >> 32) - 1], (address & 0xFFFFFFFF) * 4096
        block, begin = divmod(at, BLOCK)
        return self._block(index, block)[begin : begin + size].ljust(size, b"\0")

    def _block(self, index: Index, number: int) -> bytes:
        place = index.place(number)
        if place.pack == NOWHERE:
            return b""
        pack = index.packs[place.pack].digest
        if pack not in self._packs:
            name = pack.hex()
            self._packs[pack] = bytes(self._images.repository.read(f"/packs/{name[:2]}/{name}".encode()))
        stored = self._packs[pack][place.offset : place.offset + place.stored]
        return stored if place.stored == place.length else lz4.block.decompress(stored, uncompressed_size=place.length)


def test_every_byte_comes_back(source: Path, images: Images) -> None:
    put(source, images)
    opened = Opened(images, "app")
    checked = 0
    for folder, _, names in os.walk(os.fsencode(source)):
        for name in names:
            path = os.path.join(folder, name)
            if stat.S_ISREG(os.lstat(path).st_mode) and name != b"sparse":
                relative = os.path.relpath(path, os.fsencode(source))
                assert opened.file(relative) == Path(os.fsdecode(path)).read_bytes(), relative
                checked += 1
    assert checked > 3000
    with (source / "sparse").open("rb") as file:
        assert hashlib.sha256(opened.file(b"sparse")).digest() == hashlib.file_digest(file, "sha256").digest()


def test_the_same_tree_is_the_same_image_and_is_stored_once(source: Path, images: Images) -> None:
    first = put(source, images)
    again = put(source, images, tag="other")
    assert again.digest == first.digest
    assert again.new_bytes == 0 < first.new_bytes
    assert images.tags() == {"app": first.digest, "other": first.digest}


def test_a_changed_file_costs_little_more_than_itself(source: Path, images: Images) -> None:
    put(source, images)
    changed = random.Random(5).randbytes(40_000)
    (source / "many" / "module_00999.py").write_bytes(changed)
    (source / "many" / "module_01500x.py").write_bytes(changed[:5000])
    again = put(source, images, tag="next")
    assert 0 < again.new_bytes < 6 * BLOCK


def test_nothing_is_published_by_a_build_that_is_interrupted(source: Path, images: Images) -> None:
    class Interrupt(Progress):
        def advance(self, count: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(*scan(str(source)), images, tag="app", progress=Interrupt())
    assert images.images() == {}
    assert images.tags() == {}


def test_an_empty_directory_is_an_image(tmp_path: Path, images: Images) -> None:
    (tmp_path / "nothing").mkdir()
    put(tmp_path / "nothing", images)
    opened = Opened(images, "app")
    assert [entry[0] for entry in opened.image.entries(opened.image.stat(opened.image.root))] == [b".", b".."]


@pytest.mark.parametrize("kind", ["images", "indexes", "metadata"])
def test_a_damaged_object_is_not_used(source: Path, images: Images, tmp_path: Path, kind: str) -> None:
    put(source, images)
    (damaged,) = [path for path in (tmp_path / "store" / kind).rglob("*") if path.is_file()]
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(DamagedObject, match="holds other bytes than its name says"):
        Opened(images, "app")


def test_unknown_names_are_told(images: Images) -> None:
    with pytest.raises(NoSuchImage, match="has no image 'app'"):
        images.resolve("app")
    with pytest.raises(NoSuchImage, match="no tag"):
        images.resolve("../escape")
    with pytest.raises(NoSuchImage):
        images.manifest("0" * 64)
