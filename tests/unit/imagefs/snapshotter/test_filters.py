"""containerd's filter language."""

from __future__ import annotations

import pytest

from imagefs.snapshotter.filters import Fields, compile_filters
from imagefs.snapshotter.metastore import InvalidArgument

FIELDS = Fields(
    "sha256:abc", "below", "committed", {"simple": "1", "containerd.io/snapshot.ref": "sha256:def", "e": ""}
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        'name=="sha256:abc"',
        "kind==committed",
        "name!=other",
        "name~=^sha256:[a-f]+$",
        'labels."containerd.io/snapshot.ref"==sha256:def,parent=="below"',
        "labels.simple",
        "labels.missing!=1",
        'labels.missing~=""',
        r'name=="sha256:\x61bc"',
        r'name=="sha256:\u0061bc"',
    ],
)
def test_a_filter_that_matches(text: str) -> None:
    assert compile_filters([text])(FIELDS)
    assert compile_filters(["name==other", text])(FIELDS)


@pytest.mark.parametrize(
    "text",
    [
        "name==sha256:abc,kind==active",
        "labels.missing",
        'labels.missing==""',
        "labels.simple!=1",
        "name~=^abc",
        "unknown==1",
        "name.more==1",
    ],
)
def test_a_filter_that_does_not(text: str) -> None:
    assert not compile_filters([text])(FIELDS)


@pytest.mark.parametrize(
    "text",
    [
        "name==",
        "name=x",
        "name==a,",
        "name~=[",
        'name=="open',
        "name==a b",
        r'name=="\q"',
    ],
)
def test_text_that_is_no_filter(text: str) -> None:
    with pytest.raises(InvalidArgument, match="filter"):
        compile_filters([text])
