"""Manifests as documents: the committed files of version 1 are what is written today, and are read as they were then;
what is no manifest is refused with one line, and never by any other error."""

from __future__ import annotations

import os
import random
import struct

import pytest
import xxhash

from stripefs.format.manifest import Manifest, ManifestError, ManifestHeader, check_sums, may_be_manifest
from tests.golden.striped import DATA, DOCUMENTS, FOLDER, MANIFEST, MANY, UNIT, outside


def golden(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_same_bytes_are_written(name: str) -> None:
    assert DOCUMENTS[name]() == golden(name)


def test_manifest_byte_by_byte() -> None:
    """As docs/format-striped.md has it, without the code under test."""
    data = golden("striped.manifest")
    assert len(data) == 1789
    assert data[:12] == b"STRIPEFS\0\r\n\x1a"
    assert struct.unpack_from("<HHQIIQIIHH", data, 12) == (1, 0, 0xFEDCBA9876543210, 2, UNIT, 32_000, 2, 4, 22, 0)
    assert data[68:90] == b"/checkpoints/.stripefs"
    listed = data[90 : 90 + 2 * 16 + 4 * 40]
    assert data[52:68] == xxhash.xxh3_128_digest(listed)
    assert struct.unpack_from("<QIIQII", listed) == (20_000, 2, 0, 12_000, 2, 0)
    part = golden("striped.part")
    assert struct.unpack_from("<QIIQ", listed, 32) == (0x0123456789ABCDEF, 0, 0, len(part))
    assert listed[56:72] == xxhash.xxh3_128_digest(part[-16:])
    assert not any(data[90 + len(listed) : -16])
    assert data[-16:] == xxhash.xxh3_128_digest(data[:-16])


def test_part() -> None:
    part = golden("striped.part")
    units = [DATA[:UNIT], DATA[2 * UNIT : 20_000]]
    assert part == b"".join(units) + b"".join(map(check_sums, units))
    assert part[-16:-8] == xxhash.xxh3_64_digest(units[0])


def test_a_list_outside() -> None:
    document, listed = golden("striped.outside"), golden("striped.list")
    heading = ManifestHeader.from_bytes(document)
    assert heading is not None
    assert heading.outside
    assert heading.list_path() == outside()[0]
    assert heading.list_digest == xxhash.xxh3_128_digest(listed)
    assert Manifest.from_bytes(document, listed) == MANY


# -- refused

ROUNDS = int(os.environ.get("STRIPEFS_FUZZ_ROUNDS", "400"))

GOOD = golden("striped.manifest")

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
    "longer-by-a-step": sealed(GOOD + bytes(4096 - 1)),
    "magic": b"s" + GOOD[1:],
    "checksum": GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
    "newer": patched("<H", 12, 2),
    "format-0": patched("<H", 12, 0),
    "unknown-flag": patched("<H", 14, 2),
    "list-outside-and-inside": patched("<H", 14, 1),
    "unit-0": patched("<I", 28, 0),
    "unit-odd": patched("<I", 28, 8191),
    "unit-other": patched("<I", 28, 4096),
    "unit-huge": patched("<I", 28, 1 << 31),
    "length-less": patched("<Q", 32, 31_999),
    "length-huge": patched("<Q", 32, (1 << 64) - 1),
    "parts-less": patched("<I", 44, 3),
    "parts-more": patched("<I", 44, 5),
    "parts-huge": patched("<I", 44, 0xFFFFFFFF),
    "pool-empty": patched("<H", 48, 0),
    "reserved": patched("<H", 50, 1),
    "list-digest": GOOD[:52] + bytes(16) + GOOD[68:-16] + xxhash.xxh3_128_digest(GOOD[:52] + bytes(16) + GOOD[68:-16]),
    "pool-relative": patched("<s", POOL_AT, b"x"),
    "pool-of-another-name": patched("<s", POOL_AT + 21, b"x"),
    "pool-climbs": patched("<12s", POOL_AT, b"/../checkpoi"),
    "pool-nul": patched("<s", POOL_AT + 3, b"\0"),
    "segment-empty": patched("<Q", LIST_AT, 0),
    "segment-other": patched("<Q", LIST_AT, 19_999),
    "segments-overflow": patched("<QIIQ", LIST_AT, 1 << 62, 2, 0, 1 << 62),
    "width-0": patched("<I", LIST_AT + 8, 0),
    "width-1": patched("<I", LIST_AT + 8, 1),
    "width-3": patched("<I", LIST_AT + 8, 3),
    "segment-reserved": patched("<I", LIST_AT + 12, 1),
    "part-reserved": patched("<I", PARTS_AT + 12, 1),
    "part-shorter": patched("<Q", PARTS_AT + 16, 11_823),
    "part-twice": patched("<I", PARTS_AT + 40 + 8, 0),
    "bytes-behind-the-list": patched("<B", LIST_END, 1),
    "bytes-before-the-checksum": patched("<B", len(GOOD) - 17, 1),
}


def test_the_good_one_is_read() -> None:
    assert sealed(GOOD) == GOOD
    assert Manifest.from_bytes(GOOD) == MANIFEST
    assert may_be_manifest(len(GOOD))


@pytest.mark.parametrize("name", WRONG)
def test_refused(name: str) -> None:
    with pytest.raises(ManifestError) as caught:
        Manifest.from_bytes(WRONG[name])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [WRONG["newer"], GOOD[:12] + b"\2\0" + GOOD[14:]])
def test_newer_ones_say_what_to_do_and_need_not_have_our_checksum(data: bytes) -> None:
    with pytest.raises(ManifestError, match="use a newer stripefs"):
        ManifestHeader.from_bytes(data)


def test_any_cut_is_refused() -> None:
    for length in range(len(GOOD)):
        with pytest.raises(ManifestError) as caught:
            Manifest.from_bytes(GOOD[:length])
        assert "\n" not in str(caught.value)


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
