"""Blocks into packs: each is stored once, also if a build finds it stored already; nothing relies on what is gone."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from imagefs.build import packs
from imagefs.build.content import Segment
from imagefs.build.packs import PACK_SIZE, Known, Packs, store_blocks
from imagefs.errors import BuildError
from imagefs.format.documents import Manifest
from imagefs.format.index import BLOCK, BlockLocation, Pack
from imagefs.repository.images import Images
from tests.support.images.stores import build_tree, files, write_tree
from tests.unit.imagefs.build.test_layout import Bytes


def test_blocks_of_several_images_are_shared(images: Images, tmp_path: Path) -> None:
    one = build_tree(write_tree(tmp_path / "one", a=1), images, "one")
    two = build_tree(write_tree(tmp_path / "two", b=2), images, "two")
    both = build_tree(write_tree(tmp_path / "both", a=1, b=2), images, "both")
    assert (one.new_bytes > 0, two.new_bytes > 0, both.new_bytes) == (True, True, 0)
    assert both.stored_bytes == one.stored_bytes + two.stored_bytes


def test_what_was_put_together_from_others_is_the_same_when_it_is_built_again(images: Images, tmp_path: Path) -> None:
    build_tree(write_tree(tmp_path / "one", b=2), images, "one")
    mixed = write_tree(tmp_path / "mixed", a=1, b=2, c=3)
    first = build_tree(mixed, images, "mixed")
    assert build_tree(mixed, images, "mixed").digest == first.digest


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
    places = store_blocks(segments, 5 * BLOCK, packs, nothing)
    assert len(set(places)) == 1
    assert packs.stored_bytes == BLOCK


def test_what_is_known_is_not_stored_again() -> None:
    data = random.Random(3).randbytes(2 * BLOCK)
    segments = [Segment(Bytes(data), 0, 2 * BLOCK, 0)]  # type: ignore[list-item,arg-type]
    elsewhere = Pack(b"p" * 32, 1 << 20)
    known = {hashlib.sha256(data[:BLOCK]).digest(): Known(elsewhere, BlockLocation(b"", 9, 77, BLOCK, BLOCK))}
    packs = Packs(put)
    places = store_blocks(segments, 2 * BLOCK, packs, known.get)
    assert packs.all[places[0].pack] == elsewhere
    assert (places[0].offset, places[0].length) == (77, BLOCK)
    assert packs.stored_bytes == BLOCK


def test_packs_are_closed_when_full() -> None:
    blocks = PACK_SIZE // BLOCK + 3
    content = Bytes(random.Random(4).randbytes(blocks * BLOCK))
    packs = Packs(put)
    places = store_blocks([Segment(content, 0, blocks * BLOCK, 0)], blocks * BLOCK, packs, nothing)  # type: ignore[arg-type]
    assert [pack.length for pack in packs.all] == [PACK_SIZE, 3 * BLOCK]
    assert [place.pack for place in places] == [0] * (blocks - 3) + [1] * 3


def test_a_file_that_shrinks_is_an_error() -> None:
    with pytest.raises(BuildError, match="became shorter"):
        store_blocks([Segment(Bytes(b"x"), 0, 2, 0)], BLOCK, Packs(put), nothing)  # type: ignore[arg-type]
