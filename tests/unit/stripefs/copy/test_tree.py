"""Expansion of a source into the items to copy."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from stripefs.api import Entry, FileSystem
from stripefs.copy.tree import Place, expand


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc"])
def test_a_name_that_leads_out_of_the_target_is_not_copied(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").touch()
    source = Place(*FileSystem.of_service(f"file://{tmp_path}/source"))
    (file,) = source.files.scandir(source.path)
    listed: list[Entry] = [dataclasses.replace(file, name=name), file]
    monkeypatch.setattr(FileSystem, "scandir", lambda *_: listed)
    told: list[str] = []
    target = Place(*FileSystem.of_service(f"{tmp_path}/target"), local=True)
    entry = source.stat()
    assert entry is not None
    items = list(expand(source, entry, target, lambda place, error: told.append(f"{place}: {error.strerror}")))
    assert [str(item.target) for item in items] == [f"{tmp_path}/target", f"{tmp_path}/target/file"]
    assert told == [f"{tmp_path}/source: it lists {name!r}, which is no name"]


def test_trees_may_be_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d").mkdir()
    source = Place(FileSystem(f"file://{tmp_path}"), b"/d")
    target = Place(FileSystem(f"file://{tmp_path}/target"), b"/d")
    entry = source.stat()
    assert entry is not None
    depth = 1500  # more than Python calls into one another
    monkeypatch.setattr(FileSystem, "scandir", lambda _, path: [entry] * (path.count(b"/") < depth))
    items = list(expand(source, entry, target, lambda *_: None))
    assert [item.target.path for item in items] == [b"/d" * level for level in range(1, depth + 1)]
