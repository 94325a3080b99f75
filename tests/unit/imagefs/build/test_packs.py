"""Blocks into packs: equal blocks are stored once, packs are bounded."""

from __future__ import annotations

import hashlib
import random

import pytest

from imagefs.build.layout import Segment
from imagefs.build.packs import PACK_SIZE, Known, Packs, store_blocks
from imagefs.errors import BuildError
from imagefs.format.index import BLOCK, BlockLocation, Pack
from tests.unit.imagefs.build.test_layout import Bytes


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
