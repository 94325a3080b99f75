"""Hints: documents that say what they are, of which no other is believed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from imagefs.deps.hint import Hint, name_of
from imagefs.deps.request import Request, Target
from imagefs.errors import FormatError
from imagefs.format.documents import canonical

NAME, ASKED, LOCK, SNAPSHOT = ("ab" * 32, "cd" * 32, "ef" * 32, "01" * 32)
HINT = Hint(ASKED, '{"os": "Linux"}\n\npip 24.0\n', LOCK, SNAPSHOT)
REQUEST = Request([Target("/opt/deps", 0, 0)], (), "/job", env=["EXTRA"])


def changed(**values: Any) -> bytes:
    """The document with these values, and a digest that fits."""
    document = {**json.loads(HINT.to_json(NAME)), **values}
    del document["digest"]
    return canonical({**document, "digest": hashlib.sha256(canonical(document)).hexdigest()})


def test_a_document_says_what_was_put_into_it() -> None:
    assert Hint.from_json(HINT.to_json(NAME), NAME) == HINT
    assert Hint.from_json(changed(lock=""), NAME) == HINT._replace(lock="")


TORN, OTHER_BYTE = HINT.to_json(NAME)[:-2], HINT.to_json(NAME).replace(b"24.0", b"24.1")


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b"null", b"7", b"{}", b"[" * 100_000, TORN, OTHER_BYTE),
        changed(version=2),
        changed(bootseer="deps"),
        changed(name="ba" * 32),
        changed(asked="cd"),
        changed(snapshot="../images/" + "0" * 54),
        changed(snapshot=""),
        changed(lock="../" + "0" * 61),
        changed(lock=None),
        changed(told=7),
        changed(more="of a later version"),
    ],
)
def test_other_documents_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        Hint.from_json(data, NAME)


@pytest.mark.parametrize(
    "other",
    [
        lambda: name_of("next", REQUEST, ["aa"], {}, "x86-64-v3"),
        lambda: name_of("train", REQUEST._replace(salt="s"), ["aa"], {}, "x86-64-v3"),
        lambda: name_of("train", REQUEST, ["bb"], {}, "x86-64-v3"),
        lambda: name_of("train", REQUEST, ["aa"], {"PIP_PRE": "1"}, "x86-64-v3"),
        lambda: name_of("train", REQUEST, ["aa"], {"EXTRA": "1"}, "x86-64-v3"),
        lambda: name_of("train", REQUEST, ["aa"], {}, "x86-64-v2"),
    ],
)
def test_another_request_has_another_hint(other: Callable[[], str]) -> None:
    assert other() != name_of("train", REQUEST, ["aa"], {}, "x86-64-v3")


def test_what_differs_between_starts_of_one_job_is_in_no_name() -> None:
    one = name_of("train", REQUEST, ["aa"], {"RANK": "1", "PIP_INDEX_URL": "http://u:one@i/"}, "")
    moved = REQUEST._replace(folder="/elsewhere")
    assert name_of("train", moved, ["aa"], {"RANK": "2", "PIP_INDEX_URL": "http://u:two@i/"}, "") == one
