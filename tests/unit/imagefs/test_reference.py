"""References of a store and an image in it, as users write them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imagefs.reference import Reference, parse_reference, parse_store
from stripefs.errors import ConfigError

DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "store", "name"),
    [
        ("/srv/images#app", "/srv/images", "app"),
        ("/srv/images#sha256:" + DIGEST, "/srv/images", DIGEST),
        ("/srv/#1/images#v1.2_3-x", "/srv/#1/images", "v1.2_3-x"),
        ("s3://bucket/images?region=x#app", "s3://bucket/images?region=x", "app"),
        ("hdfs://nn:8020/images#app", "hdfs://nn:8020/images", "app"),
        ("images#app", os.path.abspath("images"), "app"),
        ("~/images#app", os.path.expanduser("~/images"), "app"),
    ],
)
def test_an_image(text: str, store: str, name: str) -> None:
    assert parse_reference(text) == Reference(store, name)
    assert parse_reference(text, name=None) == Reference(store, name)


@pytest.mark.parametrize("text", ["/srv/images", "s3://bucket/images"])
def test_a_store(text: str) -> None:
    assert parse_store(text) == text
    assert parse_reference(text, name=None) == Reference(text)


def test_a_directory_with_a_hash_sign(tmp_path: Path) -> None:
    (tmp_path / "a#b").mkdir()
    assert parse_store(str(tmp_path / "a#b")) == str(tmp_path / "a#b")


@pytest.mark.parametrize(
    ("text", "name", "what"),
    [
        ("/srv/images", True, "names no image"),
        ("/srv/images#", True, "names no image"),
        ("#app", True, "names no store"),
        ("", None, "names no store"),
        ("/srv/images#app", False, "names an image where a store belongs"),
        ("/srv/images#../x", True, "neither a tag nor a digest"),
        ("/srv/images#" + "x" * 129, True, "neither a tag nor a digest"),
        ("/srv/images#", None, "neither a tag nor a digest"),
    ],
)
def test_what_is_refused(text: str, name: bool | None, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parse_reference(text, name=name)


def test_secrets_do_not_show() -> None:
    reference = parse_reference("https://user:secret@host/images?token=secret#app")
    assert "secret" not in str(reference)
    assert str(reference).endswith("#app")
