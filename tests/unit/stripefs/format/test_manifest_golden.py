"""Version 1 of the format: the committed files are what is written today, and are read as they were then."""

from __future__ import annotations

import struct

import pytest
import xxhash

from stripefs.format.manifest import Manifest, ManifestHeader, check_sums, may_be_manifest
from tests.golden.striped import DATA, DOCUMENTS, FOLDER, MANIFEST, MANY, UNIT, outside


def golden(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_same_bytes_are_written(name: str) -> None:
    assert DOCUMENTS[name]() == golden(name)


def test_manifest() -> None:
    assert Manifest.from_bytes(golden("striped.manifest")) == MANIFEST
    assert may_be_manifest(len(golden("striped.manifest")))


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
