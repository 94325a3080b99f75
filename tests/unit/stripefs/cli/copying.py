"""Helpers of the tests of `stripefs cp`: files to copy, a store, and the output of the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.python_api import MIB, content
from tests.unit.stripefs.cli.conftest import Run

__all__ = ["DATA", "Run", "cp", "files", "source", "store", "told"]

DATA = content(20 * MIB + 5)


@pytest.fixture
def cp(run: Run) -> Run:
    return lambda *words: run("cp", *words)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Plain files of this host."""
    path = tmp_path / "source"
    (path / "deep" / "empty").mkdir(parents=True)
    (path / "model").write_bytes(DATA)
    (path / "deep" / "config").write_bytes(b"{}")
    (path / "deep" / "zero").touch()
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path


def files(root: Path) -> dict[str, bytes]:
    """The content of the files below a directory, hidden ones and all, by path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def told(cp: Run, *words: object) -> dict[str, object]:
    code, out, err = cp("--json", *words)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["trouble"] == []
    return {name: found[name] for name in ("files", "copied", "copied_bytes", "resumed_bytes", "skipped")}
