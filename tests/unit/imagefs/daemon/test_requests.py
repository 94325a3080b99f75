"""The daemon's border: what clients of other versions send and read, and how a wrong request is refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.daemon import requests
from imagefs.daemon.protocol import (
    Attached,
    AttachedDevice,
    AttachRequest,
    HeldImage,
    HintDocument,
    HoldRequest,
    Lease,
    MountedTree,
    Recording,
    SharedSnapshot,
    SnapshotKey,
    SnapshotUse,
    Unusable,
)
from imagefs.daemon.requests import (
    CapabilitiesAnswer,
    DetachAnswer,
    DetachRequest,
    FindAnswer,
    LeasesAnswer,
    NoteAnswer,
    ReleaseRequest,
    Unserved,
    UsageAnswer,
    decode,
    typed,
)
from stripefs.errors import ConfigError
from stripefs.settings import StoreSettings
from tests.support.examples import examples

STORE = StoreSettings(url="hdfs://nn/i", mirrors=("http://m",))
STORE_TEXT = (
    '{"url": "hdfs://nn/i", "transport": "auto", "hdfs_user": "", "hadoop_conf": "", "webhdfs_port": 0,'
    ' "use_datanode_hostname": false, "host_timeout": 5.0, "fetch_process": false, "mirrors": ["http://m"],'
    ' "proxy": ""}'
)
MOST = AttachRequest(
    "1", STORE, "t", 3, 4, "/m", 5, 6.0, Recording("train", 7.0, "/r", off=True), shares=True,
    snapshot=SnapshotUse("n", ((1, 2),), kept=True), mounted=True, hint=HintDocument("h", "{}"),
    lease=Lease("c", "x", "l"), events={"job": "j"},
)  # fmt: skip
HOLD = HoldRequest(STORE, "t", Lease("c", "x"), 1, 6.0, "w", (SnapshotKey(STORE, "k"),), {"job": "j"})

REQUESTS = [
    (
        AttachRequest("1", STORE, "t"),
        f'{{"id": "1", "store": {STORE_TEXT}, "image": "t", "owner": 0, "owner_began": 0, "mountpoint": "",'
        ' "namespace": 0, "timeout": 0.0, "recording": {"workload": "default", "seconds": 0.0, "ready_file": "",'
        ' "off": false}, "shares": false, "mounted": false}',
    ),
    (
        MOST,
        f'{{"id": "1", "store": {STORE_TEXT}, "image": "t", "owner": 3, "owner_began": 4, "mountpoint": "/m",'
        ' "namespace": 5, "timeout": 6.0, "recording": {"workload": "train", "seconds": 7.0, "ready_file": "/r",'
        ' "off": true}, "shares": true, "mounted": true, "snapshot": {"name": "n", "users": [[1, 2]], "kept": true},'
        ' "lease": {"name": "c", "client": "x", "label": "l"}, "hint": {"name": "h", "document": "{}"},'
        ' "events": {"job": "j"}}',
    ),
    (
        HOLD,
        f'{{"store": {STORE_TEXT}, "image": "t", "lease": {{"name": "c", "client": "x", "label": ""}}, "namespace": 1,'
        f' "timeout": 6.0, "workload": "w",'
        f' "above": [{{"store": {STORE_TEXT}, "key": "k"}}], "events": {{"job": "j"}}}}',
    ),
]


@pytest.mark.parametrize(("request_", "text"), REQUESTS, ids=["attach", "attach all", "hold"])
def test_requests_are_written_and_read_as_by_version_0_1(request_: AttachRequest | HoldRequest, text: str) -> None:
    assert json.dumps(request_.to_json()) == text
    assert decode(type(request_), json.loads(text)) == request_


HELD = HeldImage(Lease("c", "x"), "/l", "ab", {"Env": []}, ("/a",), (Unusable("k", "missing", "w"),))
HELD_TEXT = (
    '{"lease": {"name": "c", "client": "x", "label": ""}, "lowerdir": "/l", "image": "ab", "config": {"Env": []},'
    ' "above": ["/a"], "unusable": [{"key": "k", "kind": "missing", "why": "w"}]}'
)
ATTACHED = Attached(
    "1", "ab", "/m", (AttachedDevice("hot", "/d", local=True),), MountedTree("/proc/1/fd/2", "0:3"), {"Env": []},
    offline=False, base="cd", upper="/u",
)  # fmt: skip
ATTACHED_TEXT = (
    '{"id": "1", "image": "ab", "metadata": "/m", "devices": [{"tag": "hot", "path": "/d", "local": true}],'
    ' "tree": {"path": "/proc/1/fd/2", "device": "0:3"}, "config": {"Env": []}, "offline": false, "base": "cd",'
    ' "upper": "/u"}'
)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "{}"),
        ({"recording": True}, '{"recording": true}'),
        (ATTACHED, ATTACHED_TEXT),
        (ATTACHED._replace(tree=None), ATTACHED_TEXT.replace('{"path": "/proc/1/fd/2", "device": "0:3"}', "null")),
        (SharedSnapshot("1", "ab"), '{"shared": true, "id": "1", "image": "ab"}'),
        (Unserved("missing"), '{"missing": true}'),
        (Unserved("stale"), '{"stale": true}'),
        (Unserved("damaged", "m"), '{"damaged": {"message": "m", "hint": ""}}'),
        (Unserved("broken", "m", "h", block=False), '{"broken": {"message": "m", "hint": "h", "block": false}}'),
        (HELD, HELD_TEXT),
        (LeasesAnswer((HELD,)), f'{{"leases": [{HELD_TEXT}]}}'),
        (DetachAnswer({}), "{}"),
        (DetachAnswer({"who": {}, "events": []}), '{"events": {"who": {}, "events": []}}'),
        (FindAnswer("ab", 1), '{"image": "ab", "store": 1}'),
        (NoteAnswer("text"), '{"note": "text"}'),
        (UsageAnswer({"ab": (1, 2)}), '{"parts": {"ab": [1, 2]}}'),
        (CapabilitiesAnswer(), '{"version": 1, "capabilities": ["leases", "find", "above", "usage", "discard"]}'),
    ],
    ids=repr,
)
async def test_answers_are_those_of_version_0_1(answer: Any, text: str) -> None:
    async def handler(request: DetachRequest) -> Any:
        assert request == DetachRequest("7")
        return answer

    found = await typed(DetachRequest, handler)({"v": 1, "op": "detach", "id": "7"})
    assert json.dumps(found) == text


def test_what_a_client_reads_is_what_the_daemon_wrote() -> None:
    for one in (ATTACHED, ATTACHED._replace(tree=None)):
        assert Attached.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert HeldImage.from_json(json.loads(HELD_TEXT)) == HELD
    earlier = {key: value for key, value in ATTACHED.to_json().items() if key not in ("tree", "base")}
    assert Attached.from_json(earlier) == ATTACHED._replace(tree=None, base="ab")


# -- clients of other versions -----------------------------------------------------------------------------------------


def test_keys_of_a_newer_client_are_ignored() -> None:
    newer = {"op": "release", "colour": "red", "lease": {"name": "c", "client": "x", "shade": 1}, "at_once": True}
    assert decode(ReleaseRequest, newer) == ReleaseRequest(Lease("c", "x"), at_once=True)


@pytest.mark.parametrize("absent", [{}, {"timeout": None, "above": None, "workload": None, "events": None}])
def test_fields_that_an_older_client_does_not_know_have_their_defaults(absent: dict[str, Any]) -> None:
    older = {"store": {"url": "/s"}, "image": "t", "lease": {"name": "c", "client": "x"}, "namespace": 1, **absent}
    assert decode(HoldRequest, older) == HoldRequest(StoreSettings(url="/s"), "t", Lease("c", "x"), 1)
    assert decode(HoldRequest, HOLD.to_json() | {"timeout": 6}) == HOLD, "a whole number is a number"
    empty: dict[str, Any] = {"snapshot": {}, "hint": {}, "lease": {}}
    none: dict[str, Any] = dict.fromkeys(empty)
    assert decode(AttachRequest, MOST.to_json() | empty) == MOST._replace(**none)


# -- wrong requests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "wrong", "why"),
    [
        (DetachRequest, {}, "id is missing"),
        (DetachRequest, {"id": 7}, "id is 7 and not a text"),
        (AttachRequest, MOST.to_json() | {"owner": "me"}, "owner is 'me' and not a whole number"),
        (AttachRequest, MOST.to_json() | {"owner": True}, "owner is True and not a whole number"),
        (AttachRequest, MOST.to_json() | {"timeout": "6"}, "timeout is '6' and not a number"),
        (AttachRequest, MOST.to_json() | {"shares": 1}, "shares is 1 and not true or false"),
        (AttachRequest, MOST.to_json() | {"store": "/s"}, "store is '/s' and not an object"),
        (AttachRequest, MOST.to_json() | {"store": {"mirrors": "m"}}, "store.mirrors is 'm' and not a list"),
        (AttachRequest, MOST.to_json() | {"snapshot": {"users": [[1, 2]]}}, "snapshot.name is missing"),
        (
            AttachRequest,
            MOST.to_json() | {"snapshot": {"name": "n", "users": [1]}},
            "users[0] is 1 and not a list of 2",
        ),
        (HoldRequest, HOLD.to_json() | {"lease": {"name": "c"}}, "a lease has a name and a client"),
        (HoldRequest, HOLD.to_json() | {"above": [{"key": "k"}]}, "above[0].store is missing"),
        (
            requests.NoteRequest,
            {"store": {}, "kind": "x", "name": "n", "timeout": 1},
            "kind is 'x' and not locks or hints",
        ),
    ],
)
def test_a_wrong_request_is_refused_in_one_line_that_names_the_field(
    kind: Any, wrong: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        decode(kind, {"op": "verb", **wrong})
    assert why in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith("the request verb: ") or "a lease has" in why


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KINDS = [getattr(requests, name) for name in requests.__all__ if name.endswith("Request")]


def paths(document: Any) -> list[tuple[str | int, ...]]:
    """The paths of all values in a document."""
    several = document.items() if isinstance(document, Mapping) else enumerate(document)
    found: list[tuple[str | int, ...]] = []
    for key, value in several if isinstance(document, Mapping | list) else ():
        found += [(key,), *((key, *path) for path in (paths(value) if isinstance(value, Mapping | list) else []))]
    return found


@examples(300)
@given(st.sampled_from([MOST, HOLD]), st.data(), ANYTHING)
def test_whatever_stands_in_a_field_it_is_taken_or_refused(
    asked: AttachRequest | HoldRequest, data: st.DataObject, other: Any
) -> None:
    document = json.loads(json.dumps(asked.to_json()))
    *above, last = data.draw(st.sampled_from(paths(document)))
    inner = document
    for key in above:
        inner = inner[key]
    inner[last] = other
    try:
        found = decode(type(asked), document)
    except ConfigError:
        return
    assert decode(type(asked), json.loads(json.dumps(found.to_json()))) == found


@examples(100)
@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(["id", "image", "lease", "parts", "which"]), ANYTHING))
def test_nothing_but_a_refusal_comes_of_nonsense(kind: Any, document: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(decode(kind, document), kind)
