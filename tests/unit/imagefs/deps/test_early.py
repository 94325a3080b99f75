"""The early start of a snapshot, beside a daemon that is made up; hints, which are believed only as a whole."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Recording
from imagefs.deps.container import early as module
from imagefs.deps.container.early import EarlyStart, Hint, hint_name
from imagefs.deps.key import Request, Target
from imagefs.errors import FormatError
from imagefs.format.documents import canonical
from imagefs.settings import DaemonSettings
from stripefs.errors import MountError
from stripefs.settings import StoreSettings

PATIENCE = 10.0
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


def test_the_name_of_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other requests have others, and what differs between starts of one job is in none."""
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_text("six==1\n")
    other.write_text("six==2\n")

    def name(
        image: str = "train", request: Request = REQUEST, file: Path = one, level: str = "v3", **environ: str
    ) -> str:
        monkeypatch.setattr(module, "own_level", lambda _wanted: level)
        return hint_name(image, request, [str(file)], environ)

    others = [
        name(image="next"),
        name(request=REQUEST._replace(salt="s")),
        name(file=other),
        name(PIP_PRE="1"),
        name(EXTRA="1"),
        name(level="v2"),
    ]
    assert len({name(), *others}) == 1 + len(others)
    moved = REQUEST._replace(folder="/elsewhere")
    first = name(RANK="1", PIP_INDEX_URL="http://u:one@i/")
    assert name(request=moved, RANK="2", PIP_INDEX_URL="http://u:two@i/") == first


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
        return HINT.to_json(NAME).decode()

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
