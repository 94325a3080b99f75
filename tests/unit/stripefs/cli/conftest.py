"""The command `stripefs` in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stripefs import logs
from stripefs.cli import mounting
from stripefs.cli.main import PROGRAM
from stripefs.settings import Settings
from tests.contract import commands as command_conformance

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command_conformance.forget_settings(tmp_path, monkeypatch)
    monkeypatch.setattr(logs, "configure", lambda *_: None)  # which would hold for the tests that follow as well


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, output and errors of the command with these words."""
    return lambda *words: command_conformance.said(PROGRAM, capsys, list(map(str, words)))


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, bool]]:
    """Mounts that would have been made: (settings, in the foreground)."""
    seen: list[tuple[Settings, bool]] = []

    def note(settings: Settings, *, foreground: bool = False) -> int:
        seen.append((settings, foreground))
        return 0

    monkeypatch.setattr(mounting, "start", note)
    return seen
