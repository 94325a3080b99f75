"""From a directory into a store and back, without a kernel: every byte, every name."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import lz4.block
import pytest

from imagefs.build.content import scan
from imagefs.build.image import BuildReport, build
from imagefs.format.erofs import ErofsImage
from imagefs.format.index import BLOCK, NOWHERE, Index
from imagefs.format.inode import HOLE
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


def test_an_empty_directory_is_an_image(tmp_path: Path, images: Images) -> None:
    (tmp_path / "nothing").mkdir()
    put(tmp_path / "nothing", images)
    opened = Opened(images, "app")
    assert [entry[0] for entry in opened.image.entries(opened.image.stat(opened.image.root))] == [b".", b".."]
