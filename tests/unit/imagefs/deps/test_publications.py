"""Pending publications of this host, and their publishers."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from imagefs.daemon.client import Client
from imagefs.deps import inventory, publications
from imagefs.deps.host import HostRequest, run
from imagefs.deps.publications import PublishOutcome, last_outcome
from imagefs.deps.publish import PublishJob
from imagefs.deps.publish import main as publish_main
from imagefs.deps.target import TargetDirectory
from imagefs.format.documents import key_digest
from imagefs.settings import DaemonSettings
from stripefs.errors import ServiceDown, StoreError
from stripefs.settings import StoreSettings

NAME = "a" * 64


def test_who_publishes_holds_it_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    cache = str(tmp_path)
    assert publications.unfinished(cache, NAME) is None
    held = publications.begin_publication(cache, NAME, {"key": 7})
    (path,) = tmp_path.rglob("*.json")
    assert path.stat().st_mode & 0o077 == 0, "a store may have a password"
    assert publications.unfinished(cache, NAME) is None
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[held])
    os.close(held)
    assert publications.unfinished(cache, NAME) is None
    process.kill()
    process.communicate()
    found = publications.unfinished(cache, NAME)
    assert found is not None
    assert found.job == {"key": 7}
    assert publications.unfinished(cache, NAME) is None  # now we do
    os.close(found.descriptor)
    publications.end_publication(cache, NAME)
    assert publications.unfinished(cache, NAME) is None
    publications.end_publication(cache, NAME)


@pytest.mark.parametrize("spoilt", ["", "{", "[1]", "null"])
def test_what_a_power_cut_leaves_is_removed(tmp_path: Path, spoilt: str) -> None:
    os.close(publications.begin_publication(str(tmp_path), NAME, {}))
    (path,) = tmp_path.rglob("*.json")
    path.write_text(spoilt)
    assert publications.unfinished(str(tmp_path), NAME) is None
    assert not path.exists()


@pytest.mark.parametrize(
    ("ends", "stays"),
    [
        (PublishOutcome(True, (), 1.0), False),
        (PublishOutcome(False, ("a secret",), 1.0), False),
        (ServiceDown("away"), True),
        (StoreError("refused"), True),
        (OSError(28, "No space left on device"), True),
    ],
    ids=str,
)
def test_trouble_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: PublishOutcome | Exception, stays: bool
) -> None:
    """A doubt about the snapshot will be there tomorrow; a store may be back by then."""

    def publish(*_given: object) -> PublishOutcome:
        if isinstance(ends, Exception):
            raise ends
        return ends

    job = PublishJob(
        {"url": str(tmp_path / "store")}, str(tmp_path / "cache"), {"salt": time.time_ns()}, "/opt/deps", 1.0
    )
    descriptor = publications.begin_publication(job.cache, job.name, job._asdict())
    monkeypatch.setattr("imagefs.deps.publish.publish", publish)
    monkeypatch.setattr(os, "nice", lambda _by: 0)
    monkeypatch.setattr("signal.pthread_sigmask", lambda *_given: set())
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(job._asdict())))
    assert publish_main() == (not isinstance(ends, PublishOutcome) or not ends.published)
    os.close(descriptor)
    found = publications.unfinished(job.cache, job.name)
    assert (found is not None) == stays
    if found is not None:
        assert found.job == json.loads(json.dumps(job._asdict()))
        os.close(found.descriptor)
    told = last_outcome(job.cache, job.name)
    assert told is not None
    assert told.broken == stays


def test_what_another_version_left_nobody_goes_on_with(tmp_path: Path) -> None:
    key = {"salt": 1}
    name, settings = key_digest(key), DaemonSettings(cache=str(tmp_path / "cache"), runtime=str(tmp_path / "runtime"))
    target = TargetDirectory(str(tmp_path / "target"), settings.cache)
    with target.locked(pytest.fail):
        target.begin(name, [])
        Path(target.path, "module.py").touch()
        target.finish(inventory.take(target.path), name)
    os.close(publications.begin_publication(settings.cache, name, {"of another version": True}))
    told: list[str] = []
    request = HostRequest(StoreSettings(str(tmp_path / "store")), key, target.path, ["false"], "python3", {}, [])
    assert run(Client(settings), request, told.append) == 0
    assert told == [f"hit {name[:12]}: {target.path} was installed by an earlier start"]
    assert not list(Path(settings.cache, "deps/pending").iterdir())
