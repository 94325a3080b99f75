"""Helpers of the tests of `stripefs cp`: files to copy, a store, and the output of the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stripefs import logs
from stripefs.api import engine
from stripefs.cli import app as application
from tests.contract import commands as command_conformance
from tests.support.python_api import MIB, content

__all__ = ["DATA", "Run", "files", "run", "source", "store", "told"]

DATA = content(20 * MIB + 5)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    command_conformance.forget_settings(tmp_path / "home", monkeypatch)
    monkeypatch.setattr(logs, "configure", lambda *_: None)  # which would hold for the tests that follow as well
    yield lambda *words: command_conformance.said(application, capsys, ["cp", *map(str, words)])
    engine.stop()


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


def told(run: Run, *words: object) -> dict[str, object]:
    code, out, err = run("--json", *words)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["trouble"] == []
    return {name: found[name] for name in ("files", "copied", "copied_bytes", "resumed_bytes", "skipped")}
