from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from stripefs.store.base import Kind, Status
from stripefs.store.hdfs.wire import byte_order


def signed(name: bytes) -> list[int]:
    return [byte - 256 if byte > 127 else byte for byte in name]


def in_batches(names: Sequence[bytes], size: int) -> Iterator[Sequence[Status]]:
    for start in range(0, len(names), size):
        yield [Status(name, Kind.FILE) for name in names[start : start + size]]


NAMES = st.lists(st.text("ab~é\U0001f389", min_size=1, max_size=5).map(str.encode), unique=True, max_size=40)


@given(NAMES, st.integers(1, 7), st.one_of(st.just(b""), st.binary(max_size=3), st.sampled_from([b"a", b"ab", b"~"])))
def test_either_order_becomes_byte_order(names: list[bytes], size: int, after: bytes) -> None:
    for key in (signed, bytes):
        batches = list(byte_order(in_batches(sorted(names, key=key), size), after))
        assert [status.name for batch in batches for status in batch] == sorted(n for n in names if n > after)
        assert all(batches)


def test_ascii_names_stream() -> None:
    taken = 0

    def pages() -> Iterator[Sequence[Status]]:
        nonlocal taken
        for number in range(10):
            taken += 1
            yield [Status(b"%d" % number, Kind.FILE)]

    batches = byte_order(pages())
    next(batches)
    assert taken == 1


def test_names_outside_ascii_wait_for_their_group_only() -> None:
    names = ["aé", "ab", "b", "c"]
    batches = byte_order(in_batches([name.encode() for name in names], 1))
    assert [[status.name.decode() for status in batch] for batch in batches] == [["ab"], ["aé", "b"], ["c"]]
