"""Traces and plans as documents: round trips, and refusing everything else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.errors import FormatError
from imagefs.format.trace import ENDS, Plan, Touch, Trace
from tests.golden.make import PLAN, TRACE

_paths = st.binary(min_size=1, max_size=300).filter(lambda path: b"\0" not in path and not path.startswith(b"/"))
_touches = st.builds(
    Touch,
    st.integers(0, 1 << 32),
    _paths,
    st.integers(0, 1 << 40).map(lambda block: block << 12),
    st.integers(1, 65536),
    st.binary(min_size=16, max_size=16),
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    reason = draw(st.text(max_size=30))
    touches = sorted(draw(st.lists(_touches, max_size=10)), key=lambda touch: touch.ms)
    ahead = tuple(number for number in range(len(touches)) if draw(st.booleans()))
    return Trace(
        draw(st.binary(min_size=32, max_size=32)).hex(),
        draw(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", fullmatch=True)),
        draw(st.text(max_size=100)),
        draw(st.integers(0, 1 << 41)) / 1000,
        draw(st.integers(0, 1 << 30)) / 1000,
        draw(st.sampled_from(ENDS)),
        not reason,
        reason,
        touches,
        ahead,
    )


@given(traces())
def test_traces_come_back(trace: Trace) -> None:
    document = trace.to_json()
    assert Trace.from_json(document) == trace
    assert Trace.from_json(document).to_json() == document


@pytest.mark.parametrize(("offset", "version"), [(0, 1), (3 << 16, 1), (16384, 2), (4096, 2)])
def test_versions_that_know_longer_extents_alone_refuse_others(offset: int, version: int) -> None:
    trace = replace(TRACE, touches=[*TRACE.touches, Touch(5, b"lib", offset, 16384, bytes(16))])
    assert json.loads(trace.to_json())["version"] == version
    assert Trace.from_json(trace.to_json()) == trace


def changed(document: bytes, **values: Any) -> bytes:
    return json.dumps({**json.loads(document), **values}).encode()


BAD = [
    {"image": "ab"},
    {"workload": "../up"},
    {"node": "n" * 5000},
    {"started": -1},
    {"started": True},
    {"seconds": 1e300},
    {"ended_by": "magic"},
    {"complete": 1},
    {"complete": False},
    {"touches": {}},
    *({"touches": [touch]} for touch in (
        [1.5, "a", 0, 5, "00" * 16],
        [True, "a", 0, 5, "00" * 16],
        [1, "", 0, 5, "00" * 16],
        [1, "/a", 0, 5, "00" * 16],
        [1, "a\0", 0, 5, "00" * 16],
        [1, "x" * 70_000, 0, 5, "00" * 16],
        [1, "a", 100, 5, "00" * 16],
        [1, "a", 1 << 70, 5, "00" * 16],
        [1, "a", 0, 0, "00" * 16],
        [1, "a", 0, 65537, "00" * 16],
        [1, "a", 0, 5, "00" * 15],
    )),
    {"touches": [[2, "a", 0, 5, "00" * 16], [1, "b", 0, 5, "00" * 16]]},
    *({"ahead": numbers} for numbers in ({}, "01", [3], [-1], [1, 0], [0, 0], ["0"], [True], [0.0])),
]  # fmt: skip


@pytest.mark.parametrize("values", BAD, ids=str)
def test_a_trace_that_says_nonsense_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        Trace.from_json(changed(TRACE.to_json(), **values))


@pytest.mark.parametrize(
    "values",
    [
        {"image": "x"},
        {"workload": "a b"},
        {"traces": -1},
        {"runs": [[0, 0, 1]]},
        {"runs": [[1, 0, 0]]},
        {"runs": [[1, -1, 1]]},
        {"runs": [[1, 0, True]]},
        {"runs": [[1, 1 << 27, 1]]},
        {"runs": [[1, 0, 5], [1, 4, 1]]},
    ],
    ids=str,
)
def test_a_plan_that_says_nonsense_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        Plan.from_json(changed(PLAN.to_json(), **values))


def test_too_much_is_refused_before_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefs.format.trace.SIZE_LIMIT", 100)
    with pytest.raises(FormatError, match="more than this program takes"):
        Trace.from_json(TRACE.to_json())
    monkeypatch.undo()
    monkeypatch.setattr("imagefs.format.trace.TOUCH_LIMIT", 1)
    with pytest.raises(FormatError, match="3 touches"):
        Trace.from_json(TRACE.to_json())
    with pytest.raises(FormatError, match="3 touches"):
        TRACE.to_json()
