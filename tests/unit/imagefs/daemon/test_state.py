"""The state that survives a worker: records make the state that was recorded."""

from __future__ import annotations

import dataclasses
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.daemon.protocol import Lease, MountHolder, ProcessHolder, holder_json
from imagefs.daemon.state import Attachment, DaemonState, DeviceUse, UnknownRecord
from stripefs.fuse.state_memory import parse
from stripefs.settings import store_settings
from tests.golden.journals import DAEMON_RECORDS, DOCUMENTS, FOLDER

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
    state = DaemonState()
    for record in records:
        state.apply(record)
        in_use = {use.index for one in state.attachments.values() for use in one.devices}
        assert in_use <= set(state.known) <= in_use | set(state.handles.values())
    again = DaemonState.replayed(json.dumps(record).encode() for record in state.records())
    assert dataclasses.asdict(again) == dataclasses.asdict(state)


def test_the_store_that_was_first_counts_until_another_is_told() -> None:
    state = DaemonState()
    state.apply({"attach": attachment("one", INDEXES[:1]).to_json()})
    state.apply({"attach": attachment("two", INDEXES[:1], "/other").to_json()})
    assert state.known[INDEXES[0]]["store"] == {"url": "/store"}
    state.apply({"known": {INDEXES[0]: {"store": {"url": "/other"}, "size": 4096}}})
    state.apply({"detach": "two"})
    assert DaemonState.replayed(json.dumps(one).encode() for one in state.records()).known == state.known


def test_records_of_a_later_version_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    known: list[dict[str, object]] = [
        {"attach": attachment("one", INDEXES[:1]).to_json()},
        {"lookup": INDEXES[0]},
        {"open": [1, INDEXES[0]]},
    ]
    later: list[dict[str, object]] = [{"lend": [2, INDEXES[1]]}, {"lend": [3, INDEXES[1]]}, {"colour": None}]
    mixed = [later[0], *known[:2], later[1], known[2], later[2]]
    expected = DaemonState.replayed(json.dumps(record).encode() for record in known)
    assert not caplog.records
    state = DaemonState.replayed(json.dumps(record).encode() for record in mixed)
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert "colour (1), lend (2)" in said.getMessage()
    assert state.next_handle > 1 << 32  # the numbers that were lent in those records are never given again
    assert dataclasses.replace(state, next_handle=expected.next_handle) == expected
    again = DaemonState.replayed(json.dumps(record).encode() for record in state.records())
    assert again.next_handle == state.next_handle
    with pytest.raises(UnknownRecord, match="lend"):
        state.apply(later[0])  # ours are all known


def test_the_journal_of_an_earlier_version_is_read_and_written_still(caplog: pytest.LogCaptureFixture) -> None:
    golden = (FOLDER / "daemon.journal").read_bytes()
    assert DOCUMENTS["daemon.journal"]() == golden
    wanted = DaemonState()
    for record in DAEMON_RECORDS:
        wanted.apply(record)
    assert DaemonState.replayed(parse(golden)) == wanted
    assert not caplog.records
    assert wanted.attachments.keys() == {"container", "mount", "snapshot", "pooled"}
    assert (wanted.handles, wanted.next_handle, wanted.lookups["a" * 64]) == ({2: "b" * 64, 7: "a" * 64}, 9, 5)


def test_keys_of_a_newer_version_are_kept_and_ignored() -> None:
    newer = attachment("one", INDEXES[:1]).to_json() | {"colour": {"deep": ["red"]}}
    newer["store"] |= {"proxy": "none"}
    newer["devices"][0]["shade"] = 7
    state = DaemonState.replayed(
        json.dumps(one).encode() for one in ({"attach": newer}, {"change": {"id": "one", "x": 1}})
    )
    for _ in range(2):
        one = state.attachments["one"]
        assert (one.id, one.devices) == ("one", attachment("one", INDEXES[:1]).devices)
        assert one.to_json() == newer | {"x": 1, "id": "one"}
        assert store_settings(one.store).url == "/store"
        state = DaemonState.replayed(json.dumps(record).encode() for record in state.records())


def test_what_holds_an_attachment() -> None:
    one = attachment("one", INDEXES[:1])
    assert one.holders == []
    one.change({"mountpoint": "/m", "owner": 7, "owner_began": 70})
    assert one.holders == [ProcessHolder(7, 70)]
    one.change({"owner": 0})
    assert one.holders == [MountHolder("/m")]
    one.change({"snapshot": "x", "users": [[8, 80], [9, 90]]})
    assert one.holders == [ProcessHolder(8, 80), ProcessHolder(9, 90)]
    one.change({"kept": True})
    assert one.holders[2:] == [MountHolder("/m")]
    one.change({"kept": False, "snapshot": "", "users": [], "pooled": True, "leases": [{"name": "n", "client": "c"}]})
    assert one.holders == [Lease("n", "c")]
    assert holder_json(one.holders[0]) == {"kind": "lease", "name": "n", "client": "c", "label": ""}
    one.change({"leases": []})
    assert one.holders == []
