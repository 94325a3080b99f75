"""Resolution of this host's links, in one question however deep a path is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stripefs.api.sources import real_path

_DEPTH = 500


@pytest.mark.parametrize(
    "name", ["", "a", "a/b/..", "link", "link/b", "lost", "lost/below", "none/below", "loop", "a/./"]
)
def test_it_is_as_python_has_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "lost").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    path = os.fsencode(f"{tmp_path}/{name}")
    assert real_path(path) == os.path.realpath(path)


def test_it_costs_one_question_however_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path.joinpath(*["d"] * _DEPTH)
    deep.mkdir(parents=True)
    monkeypatch.setattr(os, "lstat", lambda *_args, **_kwargs: pytest.fail("it asks name by name"))
    assert real_path(os.fsencode(deep)) == os.fsencode(deep)


def test_what_is_removed_meanwhile_has_no_wrong_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    ask = os.readlink

    def removed_before(path: bytes) -> bytes:
        (tmp_path / "a").rmdir()
        return ask(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "readlink", removed_before)
        assert real_path(os.fsencode(tmp_path / "a")) == os.fsencode(tmp_path / "a")
