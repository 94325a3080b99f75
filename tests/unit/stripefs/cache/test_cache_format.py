"""The format of the cache: its grid, the table of a segment, and the keys of versions."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.cache import cache_format
from stripefs.cache.cache_format import (
    BLOCK,
    DATA_AT,
    EMPTY,
    FILE_LENGTH,
    HEADER,
    OPEN_END,
    PER_SEGMENT,
    SEGMENT,
    SLOT,
    TABLE,
    block_at,
    by_segment,
    check_value,
    clip,
    described,
    digest,
    header,
    index_in_segment,
    inside,
    length_of,
    next_block,
    offset_of,
    over,
    presence,
    rekeyed,
    runs,
    segment_blocks,
    segment_of,
    segments_over,
)
from stripefs.store.base import Identity

LENGTHS = st.integers(1, 200 * BLOCK)


@given(LENGTHS, st.data())
def test_blocks_over_a_range_hold_it_and_those_inside_lie_in_it(file_length: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, file_length - 1))
    length = data.draw(st.integers(1, file_length - offset))
    outer, inner = over(offset, length), inside(offset, length, file_length)
    assert outer.start * BLOCK <= offset < (outer.start + 1) * BLOCK
    assert (outer.stop - 1) * BLOCK < offset + length <= outer.stop * BLOCK
    for block in outer:
        begin, end = block * BLOCK, min((block + 1) * BLOCK, file_length)
        assert (block in inner) == (offset <= begin and end <= offset + length)


def test_nothing_is_over_nothing() -> None:
    assert not over(5, 0)
    assert not inside(BLOCK, BLOCK - 1, 5 * BLOCK)
    assert inside(0, 3 * BLOCK + 1, 3 * BLOCK + 1) == range(4)
    assert length_of(range(4), 3 * BLOCK + 1) == 3 * BLOCK + 1
    assert length_of(range(7, 9), 3 * BLOCK) == 0


@given(st.integers(0, 300), st.integers(0, 300))
def test_segments_cut_neighbours_without_a_gap(start: int, count: int) -> None:
    blocks = range(start, start + count)
    parts = list(by_segment(blocks))
    assert [block for part in parts for block in part] == list(blocks)
    assert all(len({block // PER_SEGMENT for block in part}) == 1 for part in parts)
    assert len({part.start // PER_SEGMENT for part in parts}) == len(parts)


@given(LENGTHS, st.data())
def test_a_byte_lies_in_one_block_of_one_segment(file_length: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, file_length - 1))
    block = block_at(offset)
    blocks = range(block, block + 1)
    assert offset_of(block) <= offset < offset_of(block + 1)
    assert next_block(offset) in (offset, offset_of(block + 1))
    assert clip(blocks, offset, file_length) == (offset, min(file_length, offset_of(block + 1)))
    assert segment_blocks(segment_of(blocks))[index_in_segment(blocks)] == block
    first, stop = segments_over(offset, offset + 1, file_length)
    assert first == segment_of(blocks) * SEGMENT <= offset < stop == min(first + SEGMENT, file_length)


@given(st.lists(st.booleans()), st.integers(0, 100))
def test_runs_are_cut_where_presence_changes(flags: list[bool], start: int) -> None:
    found = list(runs(range(start, start + len(flags)), bytes(flags)))
    assert [flag for run, flag in found for _ in run] == flags
    assert [block for run, _ in found for block in run] == list(range(start, start + len(flags)))
    assert all(one[1] != other[1] for one, other in itertools.pairwise(found))


KEY, OTHER = bytes(range(16)), bytes(range(1, 17))


def test_the_header_says_whose_segment_it_is() -> None:
    found = header(KEY, 0x123456, 5 << 30)
    assert len(found) == HEADER == 64
    assert found[:8] == b"STRIPEFS"
    assert struct.unpack_from("<I", found, 8) == (1,)
    assert struct.unpack_from("<QQ", found, 16) == (0x123456, 5 << 30)
    assert found[32:48] == KEY
    assert found[48:] == bytes(16)
    assert described(found) == (KEY, 0x123456, 5 << 30)
    assert described(found[:-1]) is None
    assert described(b"X" + found[1:]) is None
    assert described(found[:8] + b"\2" + found[9:]) is None
    assert TABLE == 64 + 64 * 16
    assert (DATA_AT, FILE_LENGTH) == (1 << 20, 65 << 20)


def test_check_values_are_those_of_the_format() -> None:
    """Golden: a tool of another time must find what this one wrote."""
    assert check_value(bytes(16), 0, b"stripefs").hex() == "7bf11752f35aba3f214688707c27d22e"
    assert check_value(KEY, 77, bytes(4096)).hex() == "cf202c23bfae14963f2e67b0f5dabf94"


@given(st.binary(max_size=64), st.integers(0, 64))
def test_a_digest_is_of_the_bytes_however_they_are_cut(data: bytes, at: int) -> None:
    assert digest(5, [data[:at], memoryview(data)[at:]]) == digest(5, [data])


def test_a_table_becomes_that_of_another_version_without_a_look_at_the_bytes() -> None:
    first = 3 * 64
    slots = {first: b"one", first + 7: b"two", first + 60: b"three"}
    table = bytearray(header(KEY, 3, OPEN_END).ljust(TABLE, b"\0"))
    for block, data in slots.items():
        at = HEADER + SLOT * (block - first)
        table[at : at + SLOT] = check_value(KEY, block, data)
    found = rekeyed(bytes(table), KEY, OTHER, 3, 5 << 30, first + 60)
    assert len(found) == TABLE
    assert described(found) == (OTHER, 3, 5 << 30)
    assert presence(found[HEADER:]) == bytes(block in (first, first + 7) for block in range(first, first + 64))
    assert found[HEADER : HEADER + SLOT] == check_value(OTHER, first, b"one")
    assert found[HEADER + 7 * SLOT :][:SLOT] == check_value(OTHER, first + 7, b"two")
    assert rekeyed(b"", KEY, OTHER, 3, 5 << 30, OPEN_END) == header(OTHER, 3, 5 << 30).ljust(TABLE, b"\0")


def test_empty_slots_are_absent_blocks() -> None:
    full = bytes(15) + b"\1"
    assert presence(EMPTY + full + EMPTY) == b"\0\1\0"
    assert presence(b"") == b""


NOW = 1_800_000_000_000_000_000
VERSION = Identity(5 << 20, 1_700_000_000_000_000_000, "16387")


def key_of(url: str, path: bytes, identity: Identity, *, now: int = NOW, trust_mtime: bool = False) -> bytes | None:
    return cache_format.key_of(url, path, identity, now, trust_mtime=trust_mtime)


def test_a_renamed_file_and_a_mount_of_another_directory_have_the_same_key() -> None:
    key = key_of("hdfs://nn:8020/checkpoints", b"/a", VERSION)
    assert key is not None
    assert len(key) == 16
    assert key == key_of("hdfs://nn:8020/checkpoints", b"/b", VERSION)
    assert key == key_of("hdfs://NN:8020/", b"/checkpoints/a", VERSION)
    assert key == key_of("hdfs://someone:***@nn:8020/", b"/checkpoints/a", VERSION)
    assert key_of("/data", b"/a", VERSION) == key_of("file:///data", b"/a", VERSION)


def test_another_version_and_the_same_id_at_another_service_have_another_key() -> None:
    changes = ({}, {"length": 1}, {"mtime_ns": 1}, {"file_id": "16388"})
    urls = ("hdfs://nn1/", "hdfs://nn2/", "file:///", "throttled+hdfs://nn1/", "https://nn1/")
    assert len({key_of("hdfs://nn/", b"/a", replace(VERSION, **change)) for change in changes}) == 4
    assert len({key_of(url, b"/a", VERSION) for url in urls}) == len(urls)


@pytest.mark.parametrize("scheme", ["https", "http", "s3", "gs"])
def test_where_ids_may_repeat_the_path_counts(scheme: str) -> None:
    """Two files of one length that were changed at once may have one ETag."""
    url = f"{scheme}://bucket/prefix"
    keys = {
        key_of(url, b"/a", VERSION),
        key_of(url, b"/b", VERSION),
        key_of(f"{scheme}://bucket/other", b"/a", VERSION),
        key_of(f"{url}?endpoint-override=elsewhere", b"/a", VERSION),
    }
    assert len(keys) == 4
    assert None not in keys


def test_without_ids_nothing_has_a_key_unless_times_are_trusted() -> None:
    without = Identity(VERSION.length, VERSION.mtime_ns, "")
    assert key_of("hdfs://nn/", b"/a", without) is None
    trusted = {key_of("hdfs://nn/", path, without, trust_mtime=True) for path in (b"/a", b"/b")}
    assert len(trusted) == 2
    assert None not in trusted
    assert key_of("hdfs://nn/", b"/a", Identity(5, 0, ""), trust_mtime=True) is None
    assert key_of("no url://", b"/a", VERSION) is None


def test_a_local_file_that_was_just_changed_has_no_key_yet() -> None:
    """It may change again within the same tick of its time stamps."""
    for url in ("/data", "file:///data", "counting+file:///data"):
        assert key_of(url, b"/a", VERSION, now=VERSION.mtime_ns + 1_000_000) is None
        assert key_of(url, b"/a", VERSION, now=VERSION.mtime_ns - 1_000_000) is None
        assert key_of(url, b"/a", VERSION, now=VERSION.mtime_ns + 10_000_000_000) is not None
    assert key_of("hdfs://nn/", b"/a", VERSION, now=VERSION.mtime_ns) is not None
