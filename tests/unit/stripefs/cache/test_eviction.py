from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.cache.policy import Retention, SegmentUse, checkpoint_of, matches, victims

A, B, C, D = (bytes([number]) * 16 for number in range(4))
MIB = 1 << 20


def piece(key: bytes, number: int, used: float, size: int = 64 * MIB) -> SegmentUse:
    return SegmentUse(key, number, size, used)


def chosen(
    pieces: list[SegmentUse], wanted: int, kept: dict[bytes, Retention] | None = None, *, key: bytes = D
) -> list[SegmentUse]:
    return victims(pieces, kept or {}, wanted * 64 * MIB, wanted * 64 * MIB, key, 1000.0)


def test_what_was_used_longest_ago_goes_first() -> None:
    pieces = [piece(A, 0, 30), piece(B, 0, 10), piece(A, 1, 20)]
    assert chosen(pieces, 1) == [pieces[1]]
    assert chosen(pieces, 2) == [pieces[1], pieces[2]]


def test_no_more_goes_than_is_needed() -> None:
    assert chosen([piece(A, 0, 1)], 0) == []


def test_a_file_does_not_push_itself_out() -> None:
    pieces = [piece(A, 0, 1), piece(A, 1, 2), piece(B, 0, 3)]
    assert chosen(pieces, 1, key=A) == [pieces[2]]
    assert chosen(pieces[:2], 1, key=A) == []


def test_pins_stay_and_then_nothing_goes_in_vain() -> None:
    pieces = [piece(A, 0, 1), piece(B, 0, 2)]
    kept = {A: Retention(pinned=True)}
    assert chosen(pieces, 1, kept) == [pieces[1]]
    assert chosen(pieces, 2, kept) == []


def test_times_after_now_are_from_before_the_clock_was_set_back() -> None:
    """They say nothing any more; what was used since does."""
    pieces = [piece(A, 0, 5000), piece(B, 0, 999)]
    assert chosen(pieces, 1) == [pieces[1]]
    assert len(chosen(pieces, 2)) == 2


def checkpoint(number: int, keep: int = 2, run: str = "/run") -> Retention:
    return Retention(source="hdfs://nn", checkpoint=f"{run}/step-{number}", keep=keep, changed=number)


def test_the_newest_checkpoints_stay() -> None:
    kept = {A: checkpoint(100), B: checkpoint(300), C: checkpoint(200)}
    pieces = [piece(B, 0, 1), piece(C, 0, 2), piece(A, 0, 3)]
    assert chosen(pieces, 1, kept) == [pieces[2]]
    assert chosen(pieces, 2, kept) == []


def test_a_newer_checkpoint_pushes_the_oldest_of_its_kind_out() -> None:
    kept = {A: checkpoint(100), B: checkpoint(200), D: checkpoint(300)}
    pieces = [piece(B, 0, 1), piece(A, 0, 2)]
    assert chosen(pieces, 1, kept) == [pieces[1]]  # it is one of three now
    assert chosen(pieces, 2, kept) == [pieces[1], pieces[0]]  # the two newest do not fit: the newest matters most
    kept[D] = checkpoint(50)
    assert chosen(pieces, 1, kept) == []
    kept[D] = checkpoint(300, run="/another")
    assert chosen(pieces, 1, kept) == []


def test_kinds_are_apart() -> None:
    kept = {A: checkpoint(100, keep=1), B: checkpoint(200, keep=1, run="/other"), C: checkpoint(50, keep=1)}
    pieces = [piece(A, 0, 1), piece(B, 0, 2), piece(C, 0, 3)]
    assert chosen(pieces, 1, kept) == [pieces[2]]


def test_all_files_of_a_checkpoint_stay_together() -> None:
    kept = {A: checkpoint(100, keep=1), B: checkpoint(100, keep=1), C: checkpoint(90, keep=1)}
    pieces = [piece(A, 0, 1), piece(B, 0, 2), piece(C, 0, 3)]
    assert chosen(pieces, 1, kept) == [pieces[2]]
    assert chosen(pieces, 2, kept) == []


@pytest.mark.parametrize(
    ("path", "patterns", "found"),
    [
        ("/run/step-5/model.safetensors", ("*.safetensors",), "/run/step-5/model.safetensors"),
        ("/run/step-5/model.safetensors", ("step-*/*.safetensors",), "/run/step-5"),
        ("/run/step-5/model.safetensors", ("/run/step-*/*",), "/run"),
        ("/run/step-5/model.safetensors", ("/step-*/*",), ""),
        ("/a/run/step-5/x", ("/run/step-*/*",), ""),
        ("/x.bin", ("*/*.bin", "*.bin"), "/x.bin"),
        ("/step-5/deep/x", ("step-*/*",), ""),
        ("/x", (), ""),
    ],
)
def test_a_pattern_names_the_checkpoint(path: str, patterns: tuple[str, ...], found: str) -> None:
    assert checkpoint_of(path, patterns) == found
    assert matches(path, patterns) == bool(found)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 100), st.integers(1, 64 * MIB)),
        unique_by=lambda one: one[:2],
    ),
    st.dictionaries(
        st.integers(0, 5),
        st.builds(
            Retention,
            pinned=st.booleans(),
            checkpoint=st.sampled_from(["", "/a/1", "/a/2", "/b/1"]),
            keep=st.integers(0, 2),
            changed=st.integers(0, 3),
        ),
    ),
    st.integers(0, 5),
    st.integers(1, 300 * MIB),
)
def test_enough_goes_or_nothing(
    drawn: list[tuple[int, int, int, int]], kept: dict[int, Retention], key: int, least: int
) -> None:
    pieces = [SegmentUse(bytes([version]) * 16, number, size, used) for version, number, used, size in drawn]
    known = {bytes([version]) * 16: why for version, why in kept.items()}
    mine = bytes([key]) * 16
    gone = victims(pieces, known, least * 2, least, mine, 50.0)
    assert not gone or sum(one.size for one in gone) >= least
    assert len({(one.key, one.number) for one in gone}) == len(gone)
    assert all(one.key != mine and not known.get(one.key, Retention()).pinned for one in gone)
