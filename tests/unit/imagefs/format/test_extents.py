"""The extents table: everything is found by content and by place."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from imagefs.format.inodes import DIGEST, ExtentTable, write_extents

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
