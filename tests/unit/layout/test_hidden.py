from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.layout import hidden
from stripefs.layout.hidden import Hidden

VERSION = "0123456789abcdef"
NAMES = st.binary(min_size=1, max_size=255).filter(lambda name: b"/" not in name and b"\0" not in name)


def test_names_as_documented() -> None:
    assert hidden.part_name(b"a.pt", VERSION, 7) == b".a.pt.stripefs-0123456789abcdef-7"
    assert hidden.draft_name(b"a.pt", VERSION) == b".a.pt.stripefs-0123456789abcdef-draft"
    assert hidden.record_name(b"a.pt", VERSION) == b".a.pt.stripefs-0123456789abcdef-record"
    assert hidden.record_name(b"a.pt", VERSION, 12) == b".a.pt.stripefs-0123456789abcdef-record-12"
    assert hidden.lock_name(b"a.pt") == b".a.pt.stripefs-lock"
    assert hidden.pool_part(VERSION, 0) == b"/.stripefs/0123456789abcdef/0"
    assert hidden.list_path(VERSION, bytes(15) + b"\xff") == b"/.stripefs/0123456789abcdef/list-" + b"0" * 30 + b"ff"


@given(NAMES, st.integers(0, (1 << 32) - 1))
def test_what_is_made_is_hidden_fits_and_is_read_back(name: bytes, number: int) -> None:
    stem = hidden.stem(name)
    made = {
        hidden.part_name(name, VERSION, number): Hidden("part", stem, VERSION, number),
        hidden.draft_name(name, VERSION): Hidden("draft", stem, VERSION),
        hidden.record_name(name, VERSION): Hidden("record", stem, VERSION, 0),
        hidden.record_name(name, VERSION, 9_999_999_999): Hidden("record", stem, VERSION, 9_999_999_999),
        hidden.lock_name(name): Hidden("lock", stem),
    }
    for each, parsed in made.items():
        assert len(each) <= hidden.NAME_MAX
        assert hidden.is_hidden(each)
        assert hidden.parse_hidden(each) == parsed


def test_long_names_do_not_meet() -> None:
    one, other = b"x" * 254 + b"1", b"x" * 254 + b"2"
    assert hidden.stem(one) != hidden.stem(other)
    assert hidden.lock_name(one) == hidden.lock_name(one)


@pytest.mark.parametrize("name", [b".stripefs", b".x.stripefs-lock", b".x.stripefs-from-the-future", b"..stripefs-"])
def test_hidden(name: bytes) -> None:
    assert hidden.is_hidden(name)


@pytest.mark.parametrize("name", [b"stripefs", b"x.stripefs-lock", b".stripefs.toml", b".x.stripefs", b".stripefs-"])
def test_not_hidden(name: bytes) -> None:
    assert not hidden.is_hidden(name)


@pytest.mark.parametrize("rest", [b"0", b"0123456789abcdef-01", b"0123456789ABCDEF-1", b"0123456789abcdef-", b"lock2"])
def test_names_of_another_program_are_hidden_but_not_understood(rest: bytes) -> None:
    assert hidden.parse_hidden(b".x.stripefs-" + rest) is None


def test_paths() -> None:
    assert hidden.is_hidden_path(b"/.stripefs/0123456789abcdef/3")
    assert hidden.is_hidden_path(b"/a/.b.stripefs-lock")
    assert not hidden.is_hidden_path(b"/a/b")
    assert not hidden.is_hidden_path(b"/")


def test_versions_are_new() -> None:
    made = {hidden.new_version() for _ in range(100)}
    assert len(made) == 100
    assert all(map(hidden.is_version, made))
    assert not hidden.is_version("0123456789abcdeF")
