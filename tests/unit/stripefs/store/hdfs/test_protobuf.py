from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.store.hdfs import protobuf

VALUES = st.lists(st.tuples(st.integers(1, 2000), st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=200))))


def encoded(values: list[tuple[int, int | bytes]]) -> bytes:
    return b"".join(
        protobuf.number_field(number, value) if isinstance(value, int) else protobuf.bytes_field(number, value)
        for number, value in values
    )


@given(VALUES)
def test_fields_come_back(values: list[tuple[int, int | bytes]]) -> None:
    assert list(protobuf.fields(encoded(values))) == values


@given(VALUES, st.data())
def test_a_message_that_is_cut_off_brings_no_other_fields(
    values: list[tuple[int, int | bytes]], data: st.DataObject
) -> None:
    message = encoded(values)
    cut = message[: data.draw(st.integers(0, len(message)))]
    found: list[tuple[int, int | bytes]] = []
    with contextlib.suppress(ValueError):
        found.extend(protobuf.fields(cut))  # those before the error stay
    assert found == values[: len(found)]


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_a_value_error(message: bytes) -> None:
    with contextlib.suppress(ValueError):
        list(protobuf.fields(message))


def test_values_of_a_fixed_size() -> None:
    message = b"\x09" + b"12345678" + b"\x15" + b"abcd"
    assert list(protobuf.fields(message)) == [(1, b"12345678"), (2, b"abcd")]
    with pytest.raises(ValueError, match="ends within a field"):
        list(protobuf.fields(message[:-1]))
    with pytest.raises(ValueError, match="wire type 3"):
        list(protobuf.fields(b"\x0b"))


@pytest.mark.parametrize(("value", "wire"), [(0, 0), (-1, 1), (1, 2), (-3, 5), (2**31 - 1, 2**32 - 2)])
def test_signed_numbers(value: int, wire: int) -> None:
    assert protobuf.signed(value) == wire


def test_a_field_of_another_kind() -> None:
    assert protobuf.field({1: 7}, 1, int) == 7
    assert protobuf.field({}, 1, bytes, b"none") == b"none"
    for found in ({}, {1: b"text"}):
        with pytest.raises(ValueError, match="no field 1"):
            protobuf.field(found, 1, int)
