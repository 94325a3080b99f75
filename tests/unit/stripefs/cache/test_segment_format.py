from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from stripefs.cache.segment_format import (
    DATA_AT,
    EMPTY,
    FILE_LENGTH,
    HEADER,
    OPEN_END,
    SLOT,
    TABLE,
    check_value,
    described,
    digest,
    header,
    here,
    rekeyed,
)

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


@given(st.binary(min_size=1, max_size=64), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_bytes_fit_in_their_own_place_alone(data: bytes, block: int, other: int) -> None:
    assert len(check_value(KEY, block, data)) == SLOT
    assert check_value(KEY, block, data) == check_value(KEY, block, bytearray(data))
    assert check_value(KEY, block, data) != check_value(OTHER, block, data)
    assert block == other or check_value(KEY, block, data) != check_value(KEY, other, data)
    flipped = bytes([data[0] ^ 1]) + data[1:]
    assert check_value(KEY, block, data) != check_value(KEY, block, flipped)


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
    assert here(found[HEADER:]) == bytes(block in (first, first + 7) for block in range(first, first + 64))
    assert found[HEADER : HEADER + SLOT] == check_value(OTHER, first, b"one")
    assert found[HEADER + 7 * SLOT :][:SLOT] == check_value(OTHER, first + 7, b"two")
    assert rekeyed(b"", KEY, OTHER, 3, 5 << 30, OPEN_END) == header(OTHER, 3, 5 << 30).ljust(TABLE, b"\0")


def test_empty_slots_are_absent_blocks() -> None:
    full = bytes(15) + b"\1"
    assert here(EMPTY + full + EMPTY) == b"\0\1\0"
    assert here(b"") == b""
