"""Protocol Buffers on the wire: the few kinds of fields that the messages of HDFS have. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

__all__ = ["bytes_field", "delimited", "field", "fields", "number_field", "read_varint", "signed", "varint"]

_T = TypeVar("_T", int, bytes)

_FIXED = {1: 8, 5: 4}  # bytes of a value, by wire type


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The numbers and values of all fields, in order; those of a fixed size as bytes. Raises ValueError."""
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = read_varint(message, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, at = read_varint(message, at)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise ValueError(f"a field of wire type {kind}")
        if at + length > len(message):
            raise ValueError("a message that ends within a field")
        yield tag >> 3, message[at : at + length]
        at += length


def field(found: Mapping[int, int | bytes], number: int, kind: type[_T], default: _T | None = None) -> _T:
    """The value of a field. Raises ValueError where there is none of this kind."""
    value = found.get(number, default)
    if not isinstance(value, kind):
        raise ValueError(f"no field {number} in a message")
    return value


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends. Raises ValueError."""
    value = shift = 0
    while at < len(message):
        value |= (message[at] & 0x7F) << shift
        shift += 7
        at += 1
        if message[at - 1] < 0x80:
            return value, at
    raise ValueError("a message that ends within a number")


def varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def signed(value: int) -> int:
    """A small number as `sint32` and `sint64` have it."""
    return value << 1 if value >= 0 else ~(value << 1)


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + delimited(value)


def delimited(message: bytes) -> bytes:
    """A message with its length before it."""
    return varint(len(message)) + message
