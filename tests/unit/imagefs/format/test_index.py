"""The block index, found by number and by digest, and block codecs: round trips, what is refused, the choice."""

from __future__ import annotations

import hashlib
import io
import random
import struct
from collections.abc import Sequence
from unittest.mock import Mock

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from imagefs.errors import FormatError
from imagefs.format.codec import choose, decode, encode
from imagefs.format.index import BLOCK, CODECS, NOWHERE, BlockLocation, Index, Pack, write
from imagefs.settings import Compression

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


def document(found: list[BlockLocation], short: int = 0, packs: Sequence[Pack] = PACKS) -> bytes:
    out = io.BytesIO()
    write(found, packs, len(found) * BLOCK - short, out)
    return out.getvalue()


@given(st.lists(places(), max_size=40), st.integers(0, BLOCK - 1))
def test_what_is_written_is_found_by_number_and_by_digest(found: list[BlockLocation], short: int) -> None:
    if found and found[-1].pack != NOWHERE:
        length = min(found[-1].length, BLOCK - short)
        found[-1] = found[-1]._replace(length=length, stored=min(found[-1].stored, length))
    index = Index(document(found, short if found else 0))
    assert index.packs == PACKS
    assert [index.place(number) for number in range(index.blocks)] == found
    for digest in {*(place.digest for place in found), bytes(32), b"\xff" * 32}:
        stored = [place for place in found if place.digest == digest and place.pack != NOWHERE]
        assert index.find(digest) in (stored or [None])
    assert index.stored == sum(place.pack != NOWHERE for place in found)


# Codecs


TEXT = b"".join(b"import package_%d\n" % (number % 997) for number in range(6000))[:BLOCK]
NOISE = random.Random(1).randbytes(BLOCK)


def place_of(data: bytes, stored: bytes) -> BlockLocation:
    return BlockLocation(hashlib.sha256(data).digest(), 0, 0, len(stored), len(data))


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_or_of_another_size(codec: str) -> None:
    stored = encode(codec, TEXT)
    place = place_of(TEXT, stored)
    for length in (0, 1, 5, len(stored) // 2, len(stored) - 1):
        assert decode(codec, stored[:length], place) is None
        assert decode(codec, stored[:length], place._replace(stored=length)) is None
    for length in (len(TEXT) - 1, len(TEXT) + 1):
        assert decode(codec, stored, place._replace(length=length)) is None
    assert decode(CODECS[1 - CODECS.index(codec)], stored, place) is None


def test_a_frame_that_states_more_than_the_index_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zstandard.compress(bytes(1 << 30))
    monkeypatch.setattr(zstandard, "ZstdDecompressor", Mock(side_effect=AssertionError("unpacked")))
    assert decode("zstd", bomb, BlockLocation(bytes(32), 0, 0, len(bomb), BLOCK)) is None
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    assert decode("zstd", unsized, place_of(TEXT, unsized)) is None


def test_the_slower_the_link_the_smaller_the_codec() -> None:
    sample = [TEXT, TEXT[::-1]]
    assert [choose(Compression("auto", rate), sample) for rate in (1_000_000, 0)] == ["zstd", "lz4"]
    assert choose(Compression("auto", 1_000_000), [NOISE]) == "lz4"
    assert choose(Compression("auto", 1_000_000), []) == "lz4"
    assert [choose(Compression(codec, 1), [TEXT]) for codec in CODECS] == list(CODECS)


def of_packs(packs: list[Pack]) -> bytes:
    """An index with a block in each."""
    return document([BlockLocation(bytes([number]) * 32, number, 0, 5, 9) for number in range(len(packs))], packs=packs)


def test_an_index_holds_the_codec_of_each_pack() -> None:
    packs = [Pack(b"a" * 32, 5, "zstd"), Pack(b"b" * 32, 5), Pack(b"c" * 32, 5, "zstd")]
    data = of_packs(packs)
    assert data.startswith(b"BSINDEX2")
    assert Index(data).packs == packs
    assert of_packs([pack._replace(codec="lz4") for pack in packs]).startswith(b"BSINDEX1")


@pytest.mark.parametrize("number", [2, 255, 1 << 63])
def test_an_unknown_codec_is_named(number: int) -> None:
    data = bytearray(of_packs([Pack(b"a" * 32, 5, "zstd")]))
    struct.pack_into("<Q", data, 32 + 40, number)
    with pytest.raises(FormatError, match=f"codec {number}, which this program does not know"):
        Index(bytes(data))
