"""Readers of the soak see what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.soak.crowd import Crowd
from tests.soak.readers import KINDS
from tests.support.checked_content import PAGE, content, difference

SIZE = 3 * (1 << 20) + 12345


@given(st.binary(min_size=1, max_size=3), st.integers(0, 3 * PAGE))
def test_any_other_byte_is_a_difference(wrong: bytes, at: int) -> None:
    right = content("v", PAGE, 4 * PAGE)
    data = right[:at] + wrong + right[at + len(wrong) :]
    assert (difference(data, "v", PAGE) == "") == (data == right)


@pytest.mark.parametrize("kind", KINDS)
def test_readers_see_one_wrong_byte(tmp_path: Path, kind: str) -> None:
    data = bytearray(content("a", 0, SIZE))
    data[SIZE // 2] ^= 1
    (tmp_path / "a").write_bytes(data)
    with Crowd(tmp_path, 1, kinds=(kind,), patience=30) as crowd:
        (error,) = crowd.errors()
    assert f"byte {SIZE // 2} of a: " in error
