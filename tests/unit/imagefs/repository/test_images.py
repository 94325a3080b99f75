"""Objects in a store: looked for before they are written, written again where they are damaged or old."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from unittest.mock import Mock

import lz4.frame
import pytest

from imagefs.errors import DamagedObject, FormatError, NoSuchImage
from imagefs.format.documents import Metadata
from imagefs.format.index import Pack
from imagefs.repository.images import GRACE, Images, object_path
from stripefs.errors import ServiceDown
from tests.support.images.stores import age, build_tree, files, write_tree

DATA = b"blocks of a pack"
PACK = Pack(hashlib.sha256(DATA).digest(), len(DATA))
HOURS = GRACE / 3600


def test_an_old_object_is_written_again_as_gc_may_be_about_to_take_it(images: Images, tmp_path: Path) -> None:
    images.put_pack(PACK, DATA)
    age(files(tmp_path / "store", "packs"), HOURS / 2 - 1)
    assert not images.put_pack(PACK, DATA)
    assert images.keeps("packs", PACK.digest.hex())
    age(files(tmp_path / "store", "packs"), 2)
    assert not images.keeps("packs", PACK.digest.hex())
    assert images.put_pack(PACK, DATA)
    assert not images.put_pack(PACK, DATA)


def test_the_beginning_of_a_digest_names_an_image(images: Images, tmp_path: Path) -> None:
    report = build_tree(write_tree(tmp_path / "source", a=1), images, "app")
    for name in ("app", report.digest, report.digest[:12], report.digest[:40]):
        assert images.resolve(name) == report.digest
    for name in (report.digest[:11], "f" * 12, "other", "../escape"):
        with pytest.raises(NoSuchImage, match="no tag" if "/" in name else "has no image"):
            images.resolve(name)
    with pytest.raises(NoSuchImage):
        images.manifest("0" * 64)


def test_patience_outlasts_a_store_that_comes_back(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    images.put_pack(PACK, DATA)
    away, there = ServiceDown("away"), images.repository.stat(object_path("packs", PACK.digest.hex()))
    monkeypatch.setattr(images.repository, "stat", Mock(side_effect=[away, away, away, there]))
    with pytest.raises(ServiceDown):
        images.has_pack(PACK)
    assert Images(images.repository, patience=5).has_pack(PACK)


EROFS = bytes(5000) + random.Random(1).randbytes(90_000)
FRAME: bytes = lz4.frame.compress(EROFS, store_size=True)


def metadata_of(images: Images, packed: bytes, size: int = len(EROFS)) -> bytes:
    """The metadata read of an image that declares EROFS, with so many bytes, stored as `packed`."""
    name = hashlib.sha256(packed).hexdigest()
    images.repository.put(object_path("metadata", name), packed)
    return images.metadata(Metadata(hashlib.sha256(EROFS).hexdigest(), size, name))


def test_metadata_is_what_was_stored(images: Images) -> None:
    assert metadata_of(images, FRAME) == EROFS
    assert images.metadata(images.put_metadata(b"")) == b""


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(FRAME[:10], id="a part of the header"),
        pytest.param(FRAME[: len(FRAME) // 2], id="half a frame"),
        pytest.param(FRAME[:-4], id="a frame without its end"),
        pytest.param(FRAME + b"more", id="bytes behind the frame"),
        pytest.param(FRAME + FRAME, id="two frames"),
        pytest.param(
            lz4.frame.compress(EROFS[:50_000]) + lz4.frame.compress(EROFS[50_000:]), id="a frame for each half"
        ),
        pytest.param(FRAME[:20] + bytes([FRAME[20] ^ 255]) + FRAME[21:], id="a damaged block"),
        pytest.param(lz4.frame.compress(EROFS[:-1] + b"x"), id="other bytes"),
        pytest.param(EROFS, id="not compressed"),
    ],
)
def test_metadata_that_is_not_one_frame_of_the_right_bytes_is_refused(images: Images, packed: bytes) -> None:
    with pytest.raises(DamagedObject):
        metadata_of(images, packed)


@pytest.mark.parametrize("size", [0, 1, len(EROFS) - 1, len(EROFS) + 1, 1 << 30, 1 << 33])
def test_metadata_of_another_size_than_the_image_says_is_refused(images: Images, size: int) -> None:
    with pytest.raises(FormatError if size == 1 << 33 else DamagedObject):
        metadata_of(images, FRAME, size)
