"""Builds: each block is stored once, by any codec, relying on nothing that is gone; and every byte comes back."""

from __future__ import annotations

import hashlib
import os
import random
import stat
from pathlib import Path

import pytest

from imagefs.build import packs
from imagefs.build.content import Segment, scan
from imagefs.build.image import BuildReport, build
from imagefs.build.packs import PACK_SIZE, Known, Packs, blocks_of, store
from imagefs.errors import BuildError
from imagefs.format.documents import Manifest
from imagefs.format.index import BLOCK, Index, Pack
from imagefs.housekeeping.gc import collect
from imagefs.housekeeping.verify import verify
from imagefs.repository.images import Images
from imagefs.settings import Compression
from tests.support.images import nasty
from tests.support.images.starts import Stored
from tests.support.images.stores import build_tree, files, write_tree
from tests.unit.imagefs.build.test_layout import Bytes


def test_a_pack_that_is_not_whole_is_stored_again(images: Images, tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", a=1)
    first = build_tree(source, images, "app")
    (pack,) = files(tmp_path / "store", "packs")
    data = pack.read_bytes()
    pack.write_bytes(data[:-1])
    again = build_tree(source, images, "app")
    assert (again.digest, again.new_bytes) == (first.digest, len(data))
    assert pack.read_bytes() == data


@pytest.mark.parametrize("kind", ["images", "indexes"])
def test_damaged_documents_of_others_only_cost_bytes(
    images: Images, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    build_tree(write_tree(tmp_path / "one", a=1), images, "one")
    (document,) = files(tmp_path / "store", kind)
    document.write_bytes(b"x" + document.read_bytes()[1:])
    assert build_tree(write_tree(tmp_path / "two", a=1, b=2), images, "two").stored_bytes > 0
    assert "share" in caplog.text


def test_the_image_that_the_tag_names_comes_first_and_the_rest_as_far_as_memory_goes(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "_INDEX_BYTES", 300)  # that of one such image
    build_tree(write_tree(tmp_path / "one", a=1), images, "one")
    build_tree(write_tree(tmp_path / "two", b=2), images, "two")
    assert build_tree(write_tree(tmp_path / "next", a=1), images, "one").new_bytes == 0
    other = tmp_path / "other"
    assert build_tree(write_tree(other, b=2, c=3), images, "other").new_bytes == 600_000


def test_an_image_that_is_removed_meanwhile_fails_the_build(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build_tree(write_tree(tmp_path / "one", a=1), images, "one")
    put = Images.put

    def put_after_removal(self: Images, manifest: Manifest, tag: str = "") -> str:
        digest = put(self, manifest, tag)
        images.remove(first.digest)
        return digest

    monkeypatch.setattr(Images, "put", put_after_removal)
    with pytest.raises(BuildError, match="removed whose blocks this one shares"):
        build_tree(write_tree(tmp_path / "two", a=1, b=2), images, "two")
    assert images.images() == {}
    assert "two" not in images.tags()


# -- images of each codec in one store ------------------------------------------------------------------------------


def tree(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"".join(b"%s = %d\n" % (name.encode(), number) for number in range(20_000)))
    return folder


def made(folder: Path, images: Images, tag: str, codec: str, link_rate: int = 100_000_000) -> BuildReport:
    return build(*scan(str(folder)), images, tag=tag, compression=Compression(codec, link_rate))


def index_of(images: Images, report: BuildReport) -> Index:
    return images.index(images.manifest(report.digest).devices[0].index)


def test_images_of_both_codecs_share_blocks(images: Images, tmp_path: Path) -> None:
    first = made(tree(tmp_path / "one", "a"), images, "one", "lz4")
    mixed = made(tree(tmp_path / "two", "a", "b"), images, "two", "auto", link_rate=1_000_000)
    alone = made(tree(tmp_path / "three", "b"), images, "three", "lz4")
    assert [pack.codec for pack in index_of(images, mixed).packs] == ["lz4", "zstd"]
    assert (mixed.stored_bytes - first.stored_bytes, alone.new_bytes) == (mixed.new_bytes, 0)
    assert verify(images).damage == []
    images.untag("one")
    collect(images, untagged=True)
    assert verify(images).damage == []
    for pack in files(tmp_path / "store", "packs"):
        data = pack.read_bytes()
        pack.write_bytes(data[:99] + bytes([data[99] ^ 1]) + data[100:])
    assert {one.path.partition("/")[0] for one in verify(images).damage} == {"packs"}


# -- from a directory into a store and back, without a kernel ---------------------------------------------------------


def test_every_byte_comes_back(tmp_path: Path, images: Images) -> None:
    source = tmp_path / "source"
    source.mkdir()
    nasty.make(source)
    report = build_tree(source, images)
    found = Stored(images, report.digest).tree()
    assert len(found) > 3000
    for path, (content, *_) in found.items():
        assert content == (source / os.fsdecode(path)).read_bytes(), path
    regular = {path.lstat().st_ino for path in source.rglob("*") if stat.S_ISREG(path.lstat().st_mode)}
    assert len(found) == len(regular)
    result = verify(images)
    assert (result.damage, result.images, result.blocks) == ([], 1, report.blocks)
    assert result.bytes == report.stored_bytes
    assert verify(images, report.digest).damage == []


def test_an_empty_directory_is_an_image(tmp_path: Path, images: Images) -> None:
    (tmp_path / "nothing").mkdir()
    image = Stored(images, build_tree(tmp_path / "nothing", images).digest).image
    assert [entry[0] for entry in image.entries(image.stat(image.root))] == [b".", b".."]


# -- packs -----------------------------------------------------------------------------------------------------------


def put(pack: Pack, data: bytes) -> bool:
    assert (hashlib.sha256(data).digest(), len(data)) == (pack.digest, pack.length)
    return True


def nothing(_digest: bytes) -> Known | None:
    return None


def test_equal_blocks_are_stored_once() -> None:
    data = random.Random(2).randbytes(BLOCK)
    segments = [Segment(Bytes(data), 0, BLOCK, number * BLOCK) for number in range(5)]  # type: ignore[arg-type]
    packs = Packs(put)
    places = store(blocks_of(segments, 5 * BLOCK), 5, packs, nothing)
    assert len(set(places)) == 1
    assert packs.stored_bytes == BLOCK


def test_packs_are_closed_when_full() -> None:
    blocks = PACK_SIZE // BLOCK + 3
    content = Bytes(random.Random(4).randbytes(blocks * BLOCK))
    packs = Packs(put)
    segments = [Segment(content, 0, blocks * BLOCK, 0)]  # type: ignore[arg-type]
    places = store(blocks_of(segments, blocks * BLOCK), blocks, packs, nothing)
    assert [pack.length for pack in packs.all] == [PACK_SIZE, 3 * BLOCK]
    assert [place.pack for place in places] == [0] * (blocks - 3) + [1] * 3


def test_a_file_that_shrinks_is_an_error() -> None:
    with pytest.raises(BuildError, match="became shorter"):
        list(blocks_of([Segment(Bytes(b"x"), 0, 2, 0)], BLOCK))  # type: ignore[arg-type]
