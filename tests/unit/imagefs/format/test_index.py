"""The block index: round trips and finding by digest."""

from __future__ import annotations

import hashlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.errors import FormatError
from imagefs.format.index import BLOCK, NOWHERE, BlockLocation, Index, Pack, write

PACKS = [Pack(hashlib.sha256(b"a").digest(), 1 << 20), Pack(hashlib.sha256(b"b").digest(), 1 << 25)]


@st.composite
def places(draw: st.DrawFn) -> BlockLocation:
    if draw(st.booleans()):
        return BlockLocation(bytes(32), NOWHERE, 0, 0, 0)
    length = draw(st.integers(1, BLOCK))
    stored = draw(st.integers(1, length))
    pack = draw(st.integers(0, 1))
    offset = draw(st.integers(0, PACKS[pack].length - stored))
    return BlockLocation(draw(st.binary(min_size=32, max_size=32)), pack, offset, stored, length)


def document(found: list[BlockLocation], short: int = 0) -> bytes:
    out = io.BytesIO()
    write(found, PACKS, len(found) * BLOCK - short, out)
    return out.getvalue()


@given(st.lists(places(), max_size=40), st.integers(0, BLOCK - 1))
def test_what_is_written_is_found_by_number_and_by_digest(found: list[BlockLocation], short: int) -> None:
    if found and found[-1].pack != NOWHERE:
        length = min(found[-1].length, BLOCK - short)
        found[-1] = found[-1]._replace(length=length, stored=min(found[-1].stored, length))
    index = Index(document(found, short if found else 0))
    assert index.packs == PACKS
    assert [index.place(number) for number in range(index.blocks)] == found
    for place in found:
        if place.pack != NOWHERE:
            known = index.find(place.digest)
            assert known is not None
            assert known.digest == place.digest
    assert index.find(b"\xff" * 32) is None or any(place.digest == b"\xff" * 32 for place in found)
    assert index.stored == sum(place.pack != NOWHERE for place in found)


def test_blocks_and_bytes_must_agree() -> None:
    with pytest.raises(FormatError, match="1 blocks do not make"):
        write([BlockLocation(bytes(32), NOWHERE, 0, 0, 0)], [], 2 * BLOCK, io.BytesIO())
