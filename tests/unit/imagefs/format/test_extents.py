"""The extents table: everything is found by content and by place, and a build knows all extents of its image."""

from __future__ import annotations

import hashlib
from array import array
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from imagefs.format.erofs import CHUNK
from imagefs.format.inodes import DIGEST, ExtentTable, digest_of, write_extents
from imagefs.trace.references import open_image
from tests.support.images.starts import Stored, build_tree, make_tree, open_store

_digests = st.binary(min_size=DIGEST, max_size=DIGEST) | st.sampled_from([bytes(DIGEST), b"\xff" * DIGEST])
_tables = st.dictionaries(st.integers(0, 2**32 - 2), _digests, max_size=40)


def table(found: dict[int, bytes]) -> bytes:
    return write_extents(b"".join(found.values()), array("I", found))


@given(_tables)
def test_what_is_written_is_found_by_content_and_by_place(found: dict[int, bytes]) -> None:
    extents = ExtentTable(table(found))
    assert len(extents) == len(found)
    for digest in {*found.values(), bytes(DIGEST), b"\x80" * DIGEST}:
        assert list(extents.find(digest)) == sorted(place for place, other in found.items() if other == digest)
    for place in {*found, 0, 1, 2**32 - 1}:
        assert extents.digest_at(place) == found.get(place)


def test_a_build_knows_every_extent_of_its_image(tmp_path: Path) -> None:
    images = open_store(tmp_path / "store")
    digest = build_tree(make_tree(tmp_path / "source"), images)
    opened, stored = open_image(images, digest), Stored(images, digest)
    extents = list(opened.target.extents())
    assert len(extents) > 100
    for extent in extents:
        content = stored.at(extent.place, extent.length)
        source = (tmp_path / "source" / extent.path.decode(errors="surrogateescape")).read_bytes()
        assert content == source[extent.offset : extent.offset + extent.length]
        assert opened.target.digest_at(extent.cold) == digest_of(content) == hashlib.sha256(content).digest()[:DIGEST]
        assert extent.cold in opened.target.find(digest_of(content))
        assert extent.length == min(CHUNK, len(source) - extent.offset)
    assert len({extent.cold for extent in extents}) == len(extents) == len(opened.target.table)
