"""A lock says which distributions an installation brings, whoever resolved it."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.deps.lock import Lock, LockedRequirement, RequirementKind
from imagefs.errors import FormatError

_DIGESTS = st.lists(st.integers(0, 5).map(lambda one: f"sha256:{one:064x}"), max_size=3)

_ENTRIES = st.lists(
    st.builds(
        LockedRequirement,
        st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True),
        st.integers(0, 9).map(lambda one: f"1.{one}"),
        st.sampled_from(get_args(RequirementKind)),
        _DIGESTS,
        st.sampled_from(["", "https://host/a.whl", "/src/a"]),
    ),
    unique_by=lambda one: one.name,
    max_size=6,
)


@given(_ENTRIES, st.randoms())
def test_it_comes_back_from_its_document_whatever_the_order_and_spelling(
    entries: list[LockedRequirement], random: object
) -> None:
    lock = Lock.of(entries, "uv 1.0")
    assert Lock.from_document(json.loads(json.dumps(lock.to_document()))) == lock
    shuffled = sorted(entries, key=lambda _: random.random())  # type: ignore[attr-defined]
    spelled = [one._replace(name=one.name.upper(), digests=[*one.digests, *one.digests]) for one in shuffled]
    assert Lock.of(spelled).to_key() == lock.to_key()


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"tool": "", "requirements": [["a"]]},
        {"tool": 1, "requirements": []},
        {"tool": "", "requirements": [["a", "1", "egg", [], ""]]},
        {"tool": "", "requirements": [["a", "1", "wheel", ["sha256:x"], ""]]},
    ],
)
def test_what_is_no_lock_is_refused(document: object) -> None:
    with pytest.raises(FormatError):
        Lock.from_document(document)


def test_it_is_written_as_a_requirements_file() -> None:
    digest = f"sha256:{1:064x}"
    lock = Lock.of(
        [
            LockedRequirement("Some_Name", "1.0", "wheel", [digest]),
            LockedRequirement("other", "2", "vcs", (), "git+https://user:word@host/other@0123"),
        ]
    )
    assert lock.to_text() == f"other @ git+https://host/other@0123\nsome-name==1.0 \\\n    --hash={digest}\n"
    assert lock.constraints(hashed=False) == "other==2\nsome-name==1.0\n"
    assert lock.constraints(hashed=True) == f"other==2\nsome-name==1.0 --hash={digest}\n"


def test_what_was_installed_and_is_not_in_it() -> None:
    lock = Lock.of([LockedRequirement("a", "1.0", "wheel"), LockedRequirement("b", "", "local")])
    assert lock.lacks({"A": "1", "b": "7", "c": "1", "a": "2"}) == ["a 2", "c 1"]


def test_it_tells_what_is_built_and_what_nothing_pins() -> None:
    digest = f"sha256:{1:064x}"
    lock = Lock.of(
        [
            LockedRequirement("a", "1", "wheel", [digest]),
            LockedRequirement("b", "1", "sdist", [digest]),
            LockedRequirement("c", "1", "wheel"),
            LockedRequirement("d", "1", "vcs", (), "git+https://host/d@0123"),
            LockedRequirement("e", "", "editable", (), "/src/e"),
        ]
    )
    assert [one.name for one in lock.built] == ["b", "d", "e"]
    assert [one.name for one in lock.unpinned] == ["c", "e"]
