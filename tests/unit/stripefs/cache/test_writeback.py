"""Bytes as O_DIRECT wants them, copied only where they are not so already."""

from __future__ import annotations

import pytest

from stripefs.cache.checked_blocks import _direct
from stripefs.store.allocator import PAGE, address_of, aligned

MIB = 1 << 20


@pytest.mark.parametrize("begin", [0, MIB])
def test_what_begins_and_ends_with_a_page_goes_to_the_disk_as_it_is(begin: int) -> None:
    data = aligned(3 * MIB)[begin : begin + MIB]
    assert _direct(data) is data


@pytest.mark.parametrize("data", [bytes(range(256)) * 16, memoryview(bytearray(MIB + 1))[1:], aligned(2 * PAGE)[:5000]])
def test_all_else_is_copied_and_padded_with_zeros(data: bytes | memoryview) -> None:
    found = _direct(memoryview(data))
    assert address_of(found) % PAGE == len(found) % PAGE == 0
    assert found[: len(data)] == data
    assert bytes(found[len(data) :]) == bytes(len(found) - len(data))
