"""What survives a worker: the state that records make is the state that was recorded."""

from __future__ import annotations

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from imagefs.daemon.state import Attachment, DeviceUse, State

INDEXES = ("a" * 64, "b" * 64, "c" * 64)


def attachment(name: str, indexes: tuple[str, ...], store: str = "/store") -> Attachment:
    uses = tuple(DeviceUse("cold", 4096, index) for index in indexes)
    return Attachment(name, f"{store}#{name}", {"url": store}, "d" * 64, "d" * 64, "/m", uses, 1.0)


_names = st.sampled_from(["one", "two", "three"])
_indexes = st.sampled_from(INDEXES)
_records = st.lists(
    st.one_of(
        st.builds(
            lambda name, indexes: {"attach": attachment(name, tuple(indexes)).to_json()},
            _names,
            st.lists(_indexes, min_size=1, max_size=2, unique=True),
        ),
        st.builds(lambda name: {"detach": name}, _names),
        st.builds(lambda name, where: {"change": {"id": name, "mountpoint": where}}, _names, st.sampled_from("xy")),
        st.builds(lambda index: {"lookup": index}, _indexes),
        st.builds(lambda index, count: {"forget": [index, count]}, _indexes, st.integers(1, 3)),
        st.builds(lambda handle, index: {"open": [handle, index]}, st.integers(1, 5), _indexes),
        st.builds(lambda handle: {"release": handle}, st.integers(1, 5)),
        st.builds(lambda index: {"pages": index}, _indexes),
    ),
    max_size=30,
)


@given(_records)
def test_records_of_a_state_make_it_again(records: list[dict[str, object]]) -> None:
    state = State.replayed(json.dumps(record).encode() for record in records)
    again = State.replayed(json.dumps(record).encode() for record in state.records())
    assert dataclasses.asdict(again) == dataclasses.asdict(state)


@given(_records)
def test_a_device_is_known_while_it_is_in_use_and_no_longer(records: list[dict[str, object]]) -> None:
    state = State()
    attached: set[str] = set()
    for record in records:
        state.apply(record)
        now = {use.index for one in state.attachments.values() for use in one.devices}
        attached |= now
        held = set(state.handles.values())
        assert now <= set(state.known) <= now | held
        assert set(state.known) >= held & set(state.known)
        assert all(state.in_use(index) == (index in state.known) for index in INDEXES)


def test_a_device_outlives_its_attachment_while_the_kernel_holds_it() -> None:
    state = State()
    state.apply({"attach": attachment("one", INDEXES[:1]).to_json()})
    state.apply({"lookup": INDEXES[0]})
    state.apply({"open": [state.next_handle, INDEXES[0]]})
    state.apply({"detach": "one"})
    assert state.known == {INDEXES[0]: {"store": {"url": "/store"}, "size": 4096}}
    state.apply({"release": 1})
    assert not state.in_use(INDEXES[0])
    assert state.known == {}
    assert state.next_handle == 2


def test_a_call_that_is_answered_twice_holds_too_much_until_the_kernel_forgets() -> None:
    """The worker that answered died before the kernel heard."""
    state = State()
    state.apply({"attach": attachment("one", INDEXES[:1]).to_json()})
    state.apply({"lookup": INDEXES[0]})
    state.apply({"open": [1, INDEXES[0]]})
    state.apply({"open": [2, INDEXES[0]]})
    state.apply({"pages": INDEXES[0]})
    state.apply({"detach": "one"})
    for _ in range(2):
        state.apply({"release": 2})
        assert state.holders(INDEXES[0]) == 1
    state.apply({"forget": [INDEXES[0], 1]})
    assert (state.handles, state.pages, state.known) == ({}, set(), {})


def test_the_store_that_was_first_counts_until_another_is_told() -> None:
    state = State()
    state.apply({"attach": attachment("one", INDEXES[:1]).to_json()})
    state.apply({"attach": attachment("two", INDEXES[:1], "/other").to_json()})
    assert state.known[INDEXES[0]]["store"] == {"url": "/store"}
    state.apply({"known": {INDEXES[0]: {"store": {"url": "/other"}, "size": 4096}}})
    state.apply({"detach": "two"})
    assert State.replayed(json.dumps(one).encode() for one in state.records()).known == state.known
