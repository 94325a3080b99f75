"""The document of a key: one text for equal components, everything else refused; what people are told of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.deps.key import NAMES, Key, canonical, changes, explain
from imagefs.errors import FormatError
from tests.golden.deps import DOCUMENTS, FOLDER, KEY

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=3,
)
_components = st.fixed_dictionaries(dict.fromkeys(NAMES, _values))


@given(_components, st.randoms())
def test_a_key_comes_back_from_its_document_in_whatever_order_it_was_gathered(
    components: dict[str, Any], random: Any
) -> None:
    names = list(components)
    random.shuffle(names)
    key = Key({name: components[name] for name in names})
    again = _read(key.to_json())
    assert again.components == components
    assert again.to_json() == key.to_json() == Key(components).to_json()
    assert again.digest == key.digest


@given(_values, _values)
def test_values_have_the_same_text_if_and_only_if_they_are_equal(first: Any, second: Any) -> None:
    def typed(value: Any) -> Any:
        """With True apart from 1, which Python takes for equal."""
        if isinstance(value, dict):
            return {name: typed(inner) for name, inner in value.items()}
        return [typed(inner) for inner in value] if isinstance(value, list) else (type(value), value)

    assert (canonical(first) == canonical(second)) == (typed(first) == typed(second))


def test_the_golden_key_is_what_is_written_today() -> None:
    (name,) = DOCUMENTS
    assert (FOLDER / name).read_bytes() == KEY.to_json()
    assert _read((FOLDER / name).read_bytes()) == KEY
    assert KEY.digest == "d3ef5014b5af092990a6d737d8d9b41e72bf3f0361eeb43b343327c612ce871e"


def test_names_that_are_no_text_elsewhere_have_one_here() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    key = Key({**KEY.components, "files": {name: "ab" * 32}})
    assert key.to_json().isascii()
    assert _read(key.to_json()).components["files"] == {name: "ab" * 32}


@pytest.mark.parametrize("value", [0.5, float("nan"), b"x", {1: "x"}, {"a": [{"b": 1.0}]}, object()])
def test_what_has_no_one_text_is_refused(value: Any) -> None:
    with pytest.raises(FormatError):
        canonical(value)


def _read(data: bytes) -> Key:
    return Key.from_document(json.loads(data))


def _without(name: str) -> dict[str, Any]:
    return {one: value for one, value in KEY.components.items() if one != name}


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"bootseer": "image", "version": 1, "components": KEY.components},
        {"bootseer": "deps-key", "version": 1, "components": KEY.components},
        {"bootseer": "deps-key", "version": 2, "components": list(NAMES)},
        {"bootseer": "deps-key", "version": 2, "components": KEY.components, "hostname": "node-7"},
        {"bootseer": "deps-key", "version": 2, "components": _without("salt")},
        {"bootseer": "deps-key", "version": 2, "components": {**KEY.components, "hostname": "node-7"}},
        {"bootseer": "deps-key", "version": 2, "components": {**KEY.components, "salt": 0.5}},
    ],
)
def test_other_documents_are_refused(document: Any) -> None:
    with pytest.raises(FormatError):
        Key.from_document(json.loads(json.dumps(document)))


def test_explain_has_every_component_with_short_digests() -> None:
    lines = explain(KEY)
    assert list(dict.fromkeys(name for name, _ in lines)) == list(NAMES)
    assert ("files", "requirements.txt " + "5f" * 6) in lines
    assert ("command", "python3 -m pip install --target /opt/deps -r requirements.txt") in lines
    assert ("targets", "1 /opt/deps 0 0 022") in lines
    assert ("environment", "CUDAARCHS none") in lines
    assert ("salt", "none") in lines


_trees = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2))


@given(_trees, _trees)
def test_changes_make_one_of_the_other(first: dict[str, int], second: dict[str, int]) -> None:
    found = changes(first, second)
    made = {name: value for name, value in first.items() if name not in found.removed}
    made |= {**found.added, **{name: new for name, (_, new) in found.changed.items()}}
    assert made == second
    assert any(found) == (first != second)
    for names in found:
        assert list(names) == sorted(names)
