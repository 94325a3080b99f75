from __future__ import annotations

import bisect
import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import StoreError
from stripefs.format.manifest import (
    MANIFEST_MAX,
    Manifest,
    ManifestError,
    ManifestHeader,
    Part,
    Segment,
    may_be_manifest,
    table_length,
)
from tests.support.striping import POOL, VERSION, stripe

K4 = 4096


@st.composite
def shapes(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int]], int]:
    """(bytes, segments of (length, width), unit): of a few pages each, ends wherever they fall."""
    unit = K4 * draw(st.integers(1, 3))
    widths = []
    for _ in range(draw(st.integers(0, 4))):
        length = draw(st.integers(1, 9 * unit))
        widths.append((length, draw(st.integers(1, min(5, -(-length // unit))))))
    return random.Random(0).randbytes(sum(length for length, _ in widths)), widths, unit


@given(shapes(), st.data())
def test_every_byte_lies_where_the_pieces_say(shape: Any, data: st.DataObject) -> None:
    content, widths, unit = shape
    manifest, objects = stripe(content, widths, unit)
    offset = data.draw(st.integers(0, len(content) + 2))
    length = data.draw(st.integers(0, len(content) + 2))
    pieces = list(manifest.pieces(offset, length))
    found = [
        objects[manifest.parts[piece.part].path()][piece.part_offset : piece.part_offset + piece.length]
        for piece in pieces
    ]
    assert b"".join(found) == content[offset : offset + length]
    at = offset
    for piece in pieces:
        assert piece.offset == at
        assert 1 <= piece.length <= unit
        assert piece.unit_offset <= piece.offset
        assert piece.offset + piece.length <= piece.unit_offset + piece.unit_length
        assert piece.part_offset + piece.length <= manifest.data_length(piece.part)
        at += piece.length
    for wrong in (-1, len(manifest.parts)):
        with pytest.raises(IndexError):
            manifest.data_length(wrong)


@given(shapes())
def test_read_back_as_written(shape: Any) -> None:
    content, widths, unit = shape
    manifest, _ = stripe(content, widths, unit)
    document = manifest.to_bytes()
    assert Manifest.from_bytes(document) == manifest
    assert manifest.parts_list() is None
    assert may_be_manifest(len(document))
    heading = ManifestHeader.from_bytes(document)
    assert heading is not None
    assert (heading.version, heading.length, heading.unit) == (VERSION, len(content), unit)
    assert (heading.segments, heading.parts) == (len(widths), len(manifest.parts))


def many(parts: int, width: int = 8) -> Manifest:
    """A file of segments of `width` parts of one unit each."""
    length = K4 + table_length(K4, K4)
    made = [Part(VERSION, number, length, bytes(16)) for number in range(parts)]
    segments = [Segment(width * K4, tuple(made[at : at + width])) for at in range(0, parts, width)]
    return Manifest(VERSION, 3, K4, POOL, tuple(segments))


def test_the_longest_list_inside_and_the_shortest_outside() -> None:
    inside = bisect.bisect_left(range(1700), True, key=lambda count: many(count, 1).parts_list() is not None) - 1
    assert 1000 < inside < 1600
    assert len(many(inside, 1).to_bytes()) <= MANIFEST_MAX
    manifest = many(inside + 1, 1)
    found = manifest.parts_list()
    assert found is not None
    path, listed = found
    heading = ManifestHeader.from_bytes(manifest.to_bytes())
    assert heading is not None
    assert heading.outside
    assert (heading.list_path(), heading.list_length) == (path, len(listed))
    assert path.startswith(b"/.stripefs/" + VERSION.encode() + b"/list-")
    assert Manifest.from_bytes(manifest.to_bytes(), listed) == manifest
    for wrong in (None, b"", listed[:-1], listed + b"\0", listed[:-1] + b"\1"):
        with pytest.raises(ManifestError, match="its list"):
            Manifest.from_bytes(manifest.to_bytes(), wrong)


def test_too_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    document = many(24).to_bytes()
    monkeypatch.setattr("stripefs.format.manifest.MAX_PARTS", 23)
    for too_many in (lambda: many(24), lambda: Manifest.from_bytes(document)):
        with pytest.raises(ManifestError, match="too many parts"):
            too_many()


def test_the_width_of_a_part_s_segment() -> None:
    manifest, _ = stripe(bytes(10 * K4), [(6 * K4, 3), (K4, 1), (3 * K4, 2)], K4)
    assert [manifest.width(part) for part in range(6)] == [3, 3, 3, 1, 2, 2]


def test_lengths_that_may_be_manifests() -> None:
    assert [length for length in range(70_000) if may_be_manifest(length)] == list(range(1789, MANIFEST_MAX, 4096))


PART = Part(VERSION, 0, K4 + 8, bytes(16))
GOOD: dict[str, Any] = {
    "version": VERSION,
    "generation": 0,
    "unit": K4,
    "pool": POOL,
    "segments": (Segment(K4, (PART,)),),
}
WRONG: dict[str, dict[str, Any]] = {
    "version-short": {"version": "0123"},
    "version-upper-case": {"version": "0123456789ABCDEF"},
    "generation-negative": {"generation": -1},
    "generation-huge": {"generation": 1 << 32},
    "unit-odd": {"unit": K4 + 1},
    "pool-dots": {"pool": b"/./.stripefs"},
    "pool-doubled-slash": {"pool": b"//.stripefs"},
    "pool-long": {"pool": b"/" + b"x" * 4096 + b"/.stripefs"},
    "segment-negative": {"segments": (Segment(-1, (PART,)),)},
    "part-of-no-version": {"segments": (Segment(K4, (dataclasses.replace(PART, version="../../etc/passwd"),)),)},
    "part-negative": {"segments": (Segment(K4, (dataclasses.replace(PART, number=-1),)),)},
    "part-without-digest": {"segments": (Segment(K4, (dataclasses.replace(PART, digest=b""),)),)},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_not_made(name: str) -> None:
    Manifest(**GOOD)
    with pytest.raises(ManifestError) as caught:
        Manifest(**{**GOOD, **WRONG[name]})
    assert isinstance(caught.value, StoreError)
    assert "\n" not in str(caught.value)
