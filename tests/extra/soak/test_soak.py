"""The soak's own parts: that its plan is the seed's, and that its readers see what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.soak.crowd import Crowd, ReaderFailed
from tests.soak.readers import KINDS
from tests.support.checked_content import PAGE, content, difference, versions_in

SIZE = 3 * (1 << 20) + 12345


@settings(deadline=None)
@given(st.integers(0, 40_000), st.integers(0, 20_000))
def test_content_is_the_same_however_it_is_cut(offset: int, length: int) -> None:
    whole = content("some", 0, 60_000)
    assert content("some", offset, length) == whole[offset : offset + length]


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=3), st.integers(0, 3 * PAGE))
def test_any_other_byte_is_a_difference(wrong: bytes, at: int) -> None:
    right = content("v", PAGE, 4 * PAGE)
    data = right[:at] + wrong + right[at + len(wrong) :]
    assert (difference(data, "v", PAGE) == "") == (data == right)


def test_other_versions_and_places_are_told_apart() -> None:
    assert versions_in(content("v1", 0, PAGE) + content("v2", PAGE, 100)) == {"v1", "v2"}
    assert "byte 1 of v1" in difference(content("v2", 0, 10), "v1", 0)
    assert difference(content("v1", PAGE, PAGE), "v1", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_readers_are_content_with_what_is_right(tmp_path: Path, kind: str) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(content(name, 0, SIZE))
    with Crowd(tmp_path, 2, kinds=(kind,)) as crowd:
        crowd.get_on()
        assert crowd.finish().bytes > 0


@pytest.mark.parametrize("kind", KINDS)
def test_readers_see_one_wrong_byte(tmp_path: Path, kind: str) -> None:
    data = bytearray(content("a", 0, SIZE))
    data[SIZE // 2] ^= 1
    (tmp_path / "a").write_bytes(data)
    with Crowd(tmp_path, 1, kinds=(kind,), patience=30) as crowd:
        (error,) = crowd.errors()
    assert f"byte {SIZE // 2} of a: " in error


@pytest.mark.parametrize("kind", ["pread", "mmap"])
def test_readers_see_a_file_that_lost_its_end(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").write_bytes(content("a", 0, SIZE))
    with Crowd(tmp_path, 1, kinds=(kind,), patience=30) as crowd:
        crowd.get_on()
        with open(tmp_path / "a", "r+b") as file:
            file.truncate(PAGE)
        (error,) = crowd.errors()
    assert error == "SIGBUS" if kind == "mmap" else "were asked for" in error


def test_a_reader_that_ends_is_no_success(tmp_path: Path) -> None:
    with Crowd(tmp_path / "none", 1, patience=30) as crowd, pytest.raises(ReaderFailed):
        crowd.get_on()
