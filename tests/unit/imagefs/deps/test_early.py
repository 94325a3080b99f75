"""The early start of a snapshot, beside a daemon that is made up."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Recording
from imagefs.deps.container.early import EarlyStart
from imagefs.deps.hint import Hint
from imagefs.settings import DaemonSettings
from stripefs.errors import MountError
from stripefs.settings import StoreSettings

NAME, ASKED, SNAPSHOT = "0" * 64, "1" * 64, "2" * 64
PATIENCE = 10.0


@pytest.fixture
def early(tmp_path: Path) -> EarlyStart:
    client = Client(DaemonSettings(cache=str(tmp_path / "cache"), runtime=str(tmp_path / "runtime")))
    return EarlyStart(client, StoreSettings("file:///store"), NAME, shares=False)


def test_a_start_that_knows_its_key_does_not_wait_for_the_hint(
    early: EarlyStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, used = threading.Event(), []

    def note(*_: object) -> str:
        given.wait(PATIENCE)
        return Hint(ASKED, "told", "", SNAPSHOT).to_json(NAME).decode()

    monkeypatch.setattr(Client, "note", note)
    monkeypatch.setattr(Client, "attach_layer", lambda *arguments, **_: used.append(arguments))
    early.begin(Recording())
    assert early.take(ASKED, SNAPSHOT) is None
    given.set()
    early.end()
    assert used == []


def test_an_older_daemon_gives_no_hint(early: EarlyStart, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> str:
        raise MountError("the imagefs daemon refused: the request must be a JSON object with op attach or detach")

    monkeypatch.setattr(Client, "note", refused)
    early.begin(Recording())
    assert early.hint(ASKED) is None
    early.wait()
    assert early.take(ASKED, SNAPSHOT) is None
