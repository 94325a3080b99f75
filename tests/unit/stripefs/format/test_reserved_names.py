from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.format import reserved_names
from stripefs.format.reserved_names import ReservedName

VERSION = "0123456789abcdef"
NAMES = st.binary(min_size=1, max_size=255).filter(lambda name: b"/" not in name and b"\0" not in name)


def test_names_as_documented() -> None:
    assert reserved_names.part_name(b"a.pt", VERSION, 7) == b".a.pt.stripefs-0123456789abcdef-7"
    assert reserved_names.draft_name(b"a.pt", VERSION) == b".a.pt.stripefs-0123456789abcdef-draft"
    assert reserved_names.record_name(b"a.pt", VERSION) == b".a.pt.stripefs-0123456789abcdef-record"
    assert reserved_names.record_name(b"a.pt", VERSION, 12) == b".a.pt.stripefs-0123456789abcdef-record-12"
    assert reserved_names.lock_name(b"a.pt") == b".a.pt.stripefs-lock"
    assert reserved_names.pool_part(VERSION, 0) == b"/.stripefs/0123456789abcdef/0"
    assert (
        reserved_names.list_path(VERSION, bytes(15) + b"\xff")
        == b"/.stripefs/0123456789abcdef/list-" + b"0" * 30 + b"ff"
    )


@given(NAMES, st.integers(0, (1 << 32) - 1))
def test_what_is_made_is_hidden_fits_and_is_read_back(name: bytes, number: int) -> None:
    stem = reserved_names.stem(name)
    made = {
        reserved_names.part_name(name, VERSION, number): ReservedName("part", stem, VERSION, number),
        reserved_names.draft_name(name, VERSION): ReservedName("draft", stem, VERSION),
        reserved_names.record_name(name, VERSION): ReservedName("record", stem, VERSION, 0),
        reserved_names.record_name(name, VERSION, 9_999_999_999): ReservedName("record", stem, VERSION, 9_999_999_999),
        reserved_names.lock_name(name): ReservedName("lock", stem),
    }
    for each, parsed in made.items():
        assert len(each) <= reserved_names.NAME_MAX
        assert reserved_names.is_hidden(each)
        assert reserved_names.parse_reserved(each) == parsed


def test_long_names_do_not_meet() -> None:
    one, other = b"x" * 254 + b"1", b"x" * 254 + b"2"
    assert reserved_names.stem(one) != reserved_names.stem(other)
    assert reserved_names.lock_name(one) == reserved_names.lock_name(one)


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        *[(name, True) for name in (b".stripefs", b".x.stripefs-lock", b".x.stripefs-from-the-future", b"..stripefs-")],
        *[
            (name, False)
            for name in (b"stripefs", b"x.stripefs-lock", b".stripefs.toml", b".x.stripefs", b".stripefs-")
        ],
    ],
)
def test_hidden(name: bytes, hidden: bool) -> None:
    assert reserved_names.is_hidden(name) == hidden
    assert reserved_names.is_hidden_path(b"/a/" + name) == reserved_names.is_hidden_path(b"/" + name + b"/b") == hidden


@pytest.mark.parametrize("rest", [b"0", b"0123456789abcdef-01", b"0123456789ABCDEF-1", b"0123456789abcdef-", b"lock2"])
def test_names_of_another_program_are_hidden_but_not_understood(rest: bytes) -> None:
    assert reserved_names.parse_reserved(b".x.stripefs-" + rest) is None


def test_versions_are_new() -> None:
    made = {reserved_names.new_version() for _ in range(100)}
    assert len(made) == 100
    assert all(map(reserved_names.is_version, made))
    assert not reserved_names.is_version("0123456789abcdeF")
