"""Blocks into packs: every byte comes back, equal blocks are stored once, memory and packs stay bounded."""

from __future__ import annotations

import hashlib
import random

import lz4.block
import pytest

from imagefs.build.layout import Segment
from imagefs.build.packs import PACK_SIZE, Known, Packs, store_blocks
from imagefs.errors import BuildError
from imagefs.format.index import BLOCK, NOWHERE, BlockLocation, Pack
from tests.unit.imagefs.build.test_layout import Bytes


class Stored:
    """Packs in memory."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.packs = Packs(self._put)

    def _put(self, pack: Pack, data: bytes) -> bool:
        assert (hashlib.sha256(data).digest(), len(data)) == (pack.digest, pack.length)
        self.objects[pack.digest] = data
        return True

    def read(self, place: BlockLocation) -> bytes:
        if place.pack == NOWHERE:
            return b""
        pack = self.packs.all[place.pack]
        stored = self.objects[pack.digest][place.offset : place.offset + place.stored]
        data = stored if place.stored == place.length else lz4.block.decompress(stored, uncompressed_size=place.length)
        assert hashlib.sha256(data).digest() == place.digest
        return data


def nothing(_digest: bytes) -> Known | None:
    return None


def device(places: list[BlockLocation], stored: Stored) -> bytes:
    return b"".join(stored.read(place).ljust(BLOCK, b"\0") for place in places)


def test_every_byte_comes_back() -> None:
    chance = random.Random(1)
    noise = chance.randbytes(3 * BLOCK + 17)
    text = b"all work and no play " * 5000
    segments = [
        Segment(Bytes(noise), 5, len(noise) - 5, 0),  # type: ignore[arg-type]
        Segment(Bytes(text), 0, 4096, 5 * BLOCK + 4096),  # type: ignore[arg-type]
        Segment(Bytes(text), 0, len(text), 5 * BLOCK + 8192),  # type: ignore[arg-type]
    ]
    end = 5 * BLOCK + 8192 + len(text)
    stored = Stored()
    places = store_blocks(segments, end, stored.packs, nothing)
    expected = bytearray(len(places) * BLOCK)
    for segment in segments:
        data = segment.content.open().read()[segment.offset : segment.offset + segment.length]
        expected[segment.at : segment.at + segment.length] = data
    assert device(places, stored) == expected
    assert places[4].pack == NOWHERE
    assert places[0].stored == places[0].length  # noise is kept as it is
    assert places[-1].stored < places[-1].length / 4


def test_equal_blocks_are_stored_once() -> None:
    data = random.Random(2).randbytes(BLOCK)
    segments = [Segment(Bytes(data), 0, BLOCK, number * BLOCK) for number in range(5)]  # type: ignore[arg-type]
    stored = Stored()
    places = store_blocks(segments, 5 * BLOCK, stored.packs, nothing)
    assert len(set(places)) == 1
    assert stored.packs.stored_bytes == BLOCK


def test_what_is_known_is_not_stored_again() -> None:
    data = random.Random(3).randbytes(2 * BLOCK)
    segments = [Segment(Bytes(data), 0, 2 * BLOCK, 0)]  # type: ignore[list-item,arg-type]
    elsewhere = Pack(b"p" * 32, 1 << 20)
    known = {hashlib.sha256(data[:BLOCK]).digest(): Known(elsewhere, BlockLocation(b"", 9, 77, BLOCK, BLOCK))}
    stored = Stored()
    places = store_blocks(segments, 2 * BLOCK, stored.packs, known.get)
    assert stored.packs.all[places[0].pack] == elsewhere
    assert (places[0].offset, places[0].length) == (77, BLOCK)
    assert stored.packs.stored_bytes == BLOCK


def test_packs_are_closed_when_full() -> None:
    blocks = PACK_SIZE // BLOCK + 3
    content = Bytes(random.Random(4).randbytes(blocks * BLOCK))
    stored = Stored()
    places = store_blocks([Segment(content, 0, blocks * BLOCK, 0)], blocks * BLOCK, stored.packs, nothing)  # type: ignore[arg-type]
    assert [pack.length for pack in stored.packs.all] == [PACK_SIZE, 3 * BLOCK]
    assert device(places, stored) == content.open().read()


def test_a_file_that_shrinks_is_an_error() -> None:
    with pytest.raises(BuildError, match="became shorter"):
        store_blocks([Segment(Bytes(b"x"), 0, 2, 0)], BLOCK, Stored().packs, nothing)  # type: ignore[arg-type]
