"""Images of each codec in one store: built, shared, collected and verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefs.build.content import scan
from imagefs.build.image import BuildReport, build
from imagefs.format.index import Index
from imagefs.housekeeping.gc import collect
from imagefs.housekeeping.verify import verify
from imagefs.repository.images import Images
from imagefs.settings import Compression
from tests.support.images.stores import files


def tree(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"".join(b"%s = %d\n" % (name.encode(), number) for number in range(20_000)))
    return folder


def made(folder: Path, images: Images, tag: str, codec: str, link_rate: int = 100_000_000) -> BuildReport:
    return build(*scan(str(folder)), images, tag=tag, compression=Compression(codec, link_rate))


def index_of(images: Images, report: BuildReport) -> Index:
    return images.index(images.manifest(report.digest).devices[0].index)


@pytest.mark.parametrize(
    ("codec", "link_rate", "found"),
    [("lz4", 1, "lz4"), ("zstd", 0, "zstd"), ("auto", 1_000_000, "zstd"), ("auto", 0, "lz4")],
)
def test_an_image_has_the_codec_that_was_asked_for(
    images: Images, tmp_path: Path, codec: str, link_rate: int, found: str
) -> None:
    report = made(tree(tmp_path / "tree", "a", "b"), images, "app", codec, link_rate)
    assert {pack.codec for pack in index_of(images, report).packs} == {found}
    assert made(tmp_path / "tree", images, "app", codec, link_rate).digest == report.digest
    assert verify(images).damage == []


def test_images_of_both_codecs_share_blocks(images: Images, tmp_path: Path) -> None:
    first = made(tree(tmp_path / "one", "a"), images, "one", "lz4")
    mixed = made(tree(tmp_path / "two", "a", "b"), images, "two", "zstd")
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
