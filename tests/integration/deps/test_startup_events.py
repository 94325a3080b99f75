"""Events that a start writes about its dependencies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.deps.engine import Miss, hit_or_install
from imagefs.repository import snapshot_lease
from imagefs.startup.emission import EventRecorder, events
from stripefs.settings import StoreSettings
from stripefs.startup_events import ProcessIdentity, Writer
from tests.support.deps.installed import snapshots_in
from tests.support.deps.starting import away, by_uv, done
from tests.support.start_events import events_in, pairs
from tests.tools.imagefs_daemon import Service


@pytest.fixture
def spool(service: Service, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "events"
    service.environment |= {"BOOTSEER_EVENTS": str(folder), "BOOTSEER_RUN": "r7"}
    yield folder
    del service.environment["BOOTSEER_EVENTS"], service.environment["BOOTSEER_RUN"]


def instants(folder: Path) -> list[str]:
    return [one["name"] for one in events_in(folder) if one["event"] == "instant" and one["stage"] == "dependencies"]


@pytest.mark.mount
@pytest.mark.root
def test_a_miss_and_hits_of_a_host(service: Service, store: Path, wheels: Path, target: Path, spool: Path) -> None:
    assert done(service, store, target, by_uv(wheels, target), wait=True)[0] == 0
    (name,) = snapshots_in(store).stored()
    begin, end = pairs(events_in(spool))["dependencies", "install"]
    assert (begin["facts"], "facts" in end) == ({"key": name}, False)
    assert done(service, store, target, ["false"])[0] == 0
    away(target)
    assert done(service, store, target, ["false"])[0] == 0
    assert pairs(events_in(spool))["dependencies", "mount"][0]["facts"] == {"key": name}
    assert instants(spool) == ["miss", "hit", "hit"]


@pytest.mark.mount
@pytest.mark.root
def test_an_installer_that_takes_our_place(service: Service, tmp_path: Path, target: Path, spool: Path) -> None:
    """The events of this process are written before it becomes the installer."""
    command = ["--store", str(tmp_path / "store"), "--target", str(target), "--", "pip", "install", "--help"]
    told = service.run("deps", "run", *command)
    assert (told.returncode, "without a snapshot" in told.stderr) == (0, True)
    assert instants(spool) == ["miss"]


class Published:
    """The place of a host that waited for another, which has published."""

    def __init__(self, store: object, name: str, patience: float, waiting: object, *, damaged: bool) -> None:
        self.published = True
        waiting("host-b")  # type: ignore[operator]

    def __enter__(self) -> Published:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_wait_for_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(str(tmp_path), ProcessIdentity(run="r7"), "imagefs")
    ours = EventRecorder(writer)
    monkeypatch.setattr("imagefs.deps.engine.events", lambda: ours)
    monkeypatch.setattr(snapshot_lease, "InstallLease", Published)
    found = iter([Miss("it is not there", absent=True), "mounted"])
    told: list[str] = []
    used = hit_or_install(
        StoreSettings(url="/s"), "k" * 64, 1.0, lambda: next(found), lambda *_: "installed", told.append
    )
    assert used == "mounted"
    assert writer.close()
    seen = events_in(tmp_path)
    begin, end = pairs(seen)["dependencies", "wait"]
    assert begin["facts"] == {"cause": "lease", "host": "host-b", "key": "k" * 64}
    assert (begin["kind"], end["kind"]) == ("wait", "wait")
    assert [one.get("name") for one in seen] == ["miss", "wait", "wait", "mount", "mount", "hit"]
    assert not events().on  # of this process, whose environment names no folder
