"""The recorder against a model that keeps every page in a list; and its raw form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.errors import FormatError
from imagefs.trace import recorder as record
from imagefs.trace.recorder import PAGE, Recorder, Touched

SIZES = (40 * PAGE + 1, 300 * PAGE, 0)
_reads = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 310 * PAGE), st.integers(0, 60 * PAGE), st.floats(-5, 95)), max_size=30
)


def model(reads: list[tuple[int, int, int, float]]) -> tuple[list[tuple[int, int]], dict[tuple[int, int], int]]:
    """Pages in order of first touch, and when each was touched."""
    order, when, latest = [], {}, 0
    for device, offset, length, now in reads:
        new = [
            (device, page)
            for page in range(offset // PAGE, -(-min(offset + length, -(-SIZES[device - 1] // PAGE) * PAGE) // PAGE))
            if (device, page) not in when
        ]
        if new:
            latest = max(latest, int(now * 1000), 0)
        for page in new:
            order.append(page)
            when[page] = latest
    return order, when


def pages(touches: list[Touched]) -> list[tuple[int, int]]:
    return [(touch.device, page) for touch in touches for page in range(touch.first, touch.first + touch.pages)]


@given(_reads)
def test_it_keeps_first_touches_in_order(reads: list[tuple[int, int, int, float]]) -> None:
    recorder = Recorder(SIZES)
    for read in reads:
        recorder.touch(*read)
    order, when = model(reads)
    touches = list(recorder.touches())
    assert pages(touches) == order
    for touch in touches:
        assert all(when[touch.device, page] == touch.ms for page in range(touch.first, touch.first + touch.pages))
    assert not recorder.full
    for device in (1, 2, 3):
        assert recorder.touched_blocks(device) == {page // 32 for number, page in order if number == device}
        for first in range(0, 50, 7):
            expected = any((device, page) in when for page in range(first, first + 9))
            assert recorder.touched(device, first, 9) == expected


@given(_reads, _reads)
def test_it_goes_on_from_its_raw_form(
    before: list[tuple[int, int, int, float]], after: list[tuple[int, int, int, float]]
) -> None:
    whole = Recorder(SIZES)
    for read in before:
        whole.touch(*read)
    restored = Recorder.from_bytes(whole.to_bytes())
    for read in after:
        whole.touch(*read)
        restored.touch(*read)
    assert restored.sizes == SIZES
    assert list(restored.touches()) == list(whole.touches())
    assert restored.to_bytes() == whole.to_bytes()


def test_its_raw_form_stays_as_it_is() -> None:
    recorder = Recorder([PAGE * 3, 10])
    recorder.touch(1, PAGE, 1, 0.002)
    recorder.touch(2, 0, 10, 0.003)
    raw = (
        b"BSTOUCH1" + bytes([2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]) + bytes(4)
        + (3 * PAGE).to_bytes(8, "little") + (10).to_bytes(8, "little")
        + bytes([2, 0, 0, 0, 3, 0, 0, 0]) + bytes([1, 0, 0, 0, 0, 0, 0, 0]) + bytes([1, 0, 0, 0, 1, 0, 0, 0])
        + bytes([1, 0, 2, 0])
    )  # fmt: skip
    assert recorder.to_bytes() == raw


def test_a_read_larger_than_a_run_may_be_is_several() -> None:
    recorder = Recorder([1 << 40])
    recorder.touch(1, 4 * PAGE, 100 << 20, 0)
    assert pages(list(recorder.touches())) == [(1, page) for page in range(4, 4 + (100 << 20) // PAGE)]
    assert len(recorder) == 2


def test_too_many_runs_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RUN_LIMIT", 3)
    recorder = Recorder([100 * PAGE])
    for page in (0, 2, 6):
        recorder.touch(1, page * PAGE, 1, 0)
    before = recorder.full
    recorder.touch(1, 0, 100 * PAGE, 0)
    assert (before, recorder.full) == (False, True)
    assert len(recorder) == 3
    assert Recorder.from_bytes(recorder.to_bytes()).full


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:10],
        lambda raw: b"BSTOUCH2" + raw[8:],
        lambda raw: raw + b"x",
        lambda raw: raw[:-1],
        lambda raw: raw[:8] + b"\xff" * 8 + raw[16:],
        lambda raw: raw[:24] + b"\xff" * 8 + raw[32:],
        lambda raw: raw[:-2] + b"\x09\x00",
        lambda raw: raw[:-2] + b"\x00\x00",
    ],
)
def test_a_raw_form_that_is_none_is_refused(damage: object) -> None:
    recorder = Recorder([PAGE * 3])
    recorder.touch(1, 0, 1, 0)
    with pytest.raises(FormatError):
        Recorder.from_bytes(damage(recorder.to_bytes()))  # type: ignore[operator]


@given(_reads, st.data())
def test_damage_is_an_error_and_nothing_else(reads: list[tuple[int, int, int, float]], data: st.DataObject) -> None:
    recorder = Recorder(SIZES)
    for read in reads:
        recorder.touch(*read)
    damaged = bytearray(recorder.to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = Recorder.from_bytes(bytes(damaged))
    except FormatError:
        return
    assert len(set(pages(list(found.touches())))) == sum(touch.pages for touch in found.touches())
