"""Documents that are no manifest: refused with one line, and never by any other error."""

from __future__ import annotations

import os
import random
import struct

import pytest
import xxhash

from stripefs.format.manifest import Manifest, ManifestError, ManifestHeader
from tests.golden.striped import FOLDER

ROUNDS = int(os.environ.get("STRIPEFS_FUZZ_ROUNDS", "400"))

GOOD = (FOLDER / "striped.manifest").read_bytes()
OUTSIDE = (FOLDER / "striped.outside").read_bytes()
LISTED = (FOLDER / "striped.list").read_bytes()

POOL_AT = 68
LIST_AT = 90
PARTS_AT = LIST_AT + 2 * 16
LIST_END = PARTS_AT + 4 * 40


def sealed(data: bytes | bytearray) -> bytes:
    """With checksums that fit."""
    changed = bytearray(data)
    changed[52:68] = xxhash.xxh3_128_digest(changed[LIST_AT:LIST_END])
    return bytes(changed[:-16]) + xxhash.xxh3_128_digest(changed[:-16])


def patched(form: str, at: int, *values: int | bytes) -> bytes:
    data = bytearray(GOOD)
    struct.pack_into(form, data, at, *values)
    return sealed(data)


WRONG = {
    "cut-in-the-magic": GOOD[:11],
    "cut-in-the-head": GOOD[:60],
    "cut-behind-the-head": GOOD[:84],
    "cut-in-the-list": GOOD[:200],
    "cut-of-a-byte": GOOD[:-1],
    "longer-by-a-byte": GOOD + b"\0",
    "longer-by-a-step": sealed(GOOD + bytes(4096 - 1)),
    "magic": b"s" + GOOD[1:],
    "checksum": GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
    "flipped": GOOD[:30] + bytes([GOOD[30] ^ 1]) + GOOD[31:],
    "newer": patched("<H", 12, 2),
    "newest": patched("<H", 12, 65535),
    "format-0": patched("<H", 12, 0),
    "unknown-flag": patched("<H", 14, 2),
    "list-outside-and-inside": patched("<H", 14, 1),
    "unit-0": patched("<I", 28, 0),
    "unit-odd": patched("<I", 28, 8191),
    "unit-other": patched("<I", 28, 4096),
    "unit-huge": patched("<I", 28, 1 << 31),
    "length-less": patched("<Q", 32, 31_999),
    "length-more": patched("<Q", 32, 32_001),
    "length-huge": patched("<Q", 32, (1 << 64) - 1),
    "segments-less": patched("<I", 40, 1),
    "segments-more": patched("<I", 40, 3),
    "segments-none": patched("<II", 40, 0, 0),
    "segments-huge": patched("<I", 40, 0xFFFFFFFF),
    "parts-less": patched("<I", 44, 3),
    "parts-more": patched("<I", 44, 5),
    "parts-huge": patched("<I", 44, 0xFFFFFFFF),
    "all-huge": patched("<II", 40, 0xFFFFFFFF, 0xFFFFFFFF),
    "pool-shorter": patched("<H", 48, 21),
    "pool-longer": patched("<H", 48, 23),
    "pool-huge": patched("<H", 48, 65535),
    "pool-empty": patched("<H", 48, 0),
    "reserved": patched("<H", 50, 1),
    "list-digest": GOOD[:52] + bytes(16) + GOOD[68:-16] + xxhash.xxh3_128_digest(GOOD[:52] + bytes(16) + GOOD[68:-16]),
    "pool-relative": patched("<s", POOL_AT, b"x"),
    "pool-of-another-name": patched("<s", POOL_AT + 21, b"x"),
    "pool-climbs": patched("<12s", POOL_AT, b"/../checkpoi"),
    "pool-nul": patched("<s", POOL_AT + 3, b"\0"),
    "segment-empty": patched("<Q", LIST_AT, 0),
    "segment-other": patched("<Q", LIST_AT, 19_999),
    "segment-huge": patched("<Q", LIST_AT, (1 << 64) - 1),
    "segments-overflow": patched("<QIIQ", LIST_AT, 1 << 62, 2, 0, 1 << 62),
    "width-0": patched("<I", LIST_AT + 8, 0),
    "width-1": patched("<I", LIST_AT + 8, 1),
    "width-3": patched("<I", LIST_AT + 8, 3),
    "width-huge": patched("<I", LIST_AT + 8, 0xFFFFFFFF),
    "segment-reserved": patched("<I", LIST_AT + 12, 1),
    "part-reserved": patched("<I", PARTS_AT + 12, 1),
    "part-shorter": patched("<Q", PARTS_AT + 16, 11_823),
    "part-longer": patched("<Q", PARTS_AT + 16, 11_825),
    "part-huge": patched("<Q", PARTS_AT + 16, (1 << 64) - 1),
    "part-twice": patched("<I", PARTS_AT + 40 + 8, 0),
    "bytes-behind-the-list": patched("<B", LIST_END, 1),
    "bytes-before-the-checksum": patched("<B", len(GOOD) - 17, 1),
}


def test_the_good_one_is_read() -> None:
    assert sealed(GOOD) == GOOD
    assert Manifest.from_bytes(GOOD).length == 32_000
    assert PARTS_AT + 4 * 40 == LIST_END


@pytest.mark.parametrize("name", WRONG)
def test_refused(name: str) -> None:
    with pytest.raises(ManifestError) as caught:
        Manifest.from_bytes(WRONG[name])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["newer", "newest"])
def test_newer_ones_say_what_to_do(name: str) -> None:
    with pytest.raises(ManifestError, match="use a newer stripefs"):
        ManifestHeader.from_bytes(WRONG[name])


def test_newer_ones_need_not_have_our_checksum() -> None:
    with pytest.raises(ManifestError, match="use a newer stripefs"):
        ManifestHeader.from_bytes(GOOD[:12] + b"\2\0" + GOOD[14:])


def test_any_cut_is_refused() -> None:
    for length in range(len(GOOD)):
        with pytest.raises(ManifestError):
            Manifest.from_bytes(GOOD[:length])


def test_noise_is_refused_or_another_manifest() -> None:
    draw = random.Random(5)
    refused = 0
    for _ in range(ROUNDS):
        data = bytearray(GOOD)
        for _ in range(draw.randint(1, 4)):
            at = draw.choice([draw.randrange(12, 68), draw.randrange(68, LIST_END), draw.randrange(len(data))])
            data[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])
        try:
            found = Manifest.from_bytes(sealed(data))
            assert sum(piece.length for piece in found.pieces(0, found.length)) == found.length
        except ManifestError:
            refused += 1
    assert refused > ROUNDS // 2


def test_noise_in_a_list_outside_is_refused() -> None:
    draw = random.Random(6)
    for _ in range(20):
        data = bytearray(LISTED)
        data[draw.randrange(len(data))] ^= 1 + draw.randrange(255)
        with pytest.raises(ManifestError):
            Manifest.from_bytes(OUTSIDE, bytes(data))
