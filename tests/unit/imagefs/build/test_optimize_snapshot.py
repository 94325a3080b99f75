"""The hot device of a snapshot: made once, from what a start touched, and never at the snapshot's expense."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from imagefs.build import optimize_snapshot
from imagefs.build.content import scan
from imagefs.build.image import build
from imagefs.build.optimize_snapshot import add_hot_device
from imagefs.format.documents import Snapshot, key_digest
from imagefs.housekeeping.gc import collect, collect_snapshots
from imagefs.housekeeping.listing import remove_snapshot
from imagefs.housekeeping.verify import verify
from imagefs.repository import snapshot_lease
from imagefs.repository.images import GRACE, Images
from imagefs.repository.snapshot_lease import RenewedLock, acquire
from imagefs.repository.snapshots import Snapshots
from imagefs.repository.traces import Traces
from imagefs.settings import AUTO
from imagefs.trace.references import open_image, plan_for
from stripefs.errors import DraftLost, Unsupported
from stripefs.settings import StoreSettings
from tests.support.images.starts import Stored, imports, trace
from tests.support.images.stores import age, files

KEY = {"salt": "hot"}
NAME = key_digest(KEY)


@pytest.fixture
def snapshots(images: Images, source: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshots:
    """One, and a start with it."""
    monkeypatch.setattr(optimize_snapshot, "SCATTERED", 8)
    digest = build(*scan(str(source)), images, source=NAME).digest
    snapshots = Snapshots(images)
    assert snapshots.put(Snapshot(KEY, digest, "host", ("/opt/deps",), 1.0, 2.0))
    started(images, digest, source, 1)
    return snapshots


def started(images: Images, digest: str, source: Path, seed: int) -> None:
    found = trace(images, digest, imports(source, seed), workload="deps")
    Traces(images.repository).put(found)
    Traces(images.repository).put_plan(plan_for(open_image(images, digest), "deps", [found])[0])


def test_it_is_made_once(snapshots: Snapshots, source: Path) -> None:
    images, before = snapshots.images, snapshots.load(NAME)
    assert "are one hot device now" in add_hot_device(snapshots, NAME)
    after = snapshots.load(NAME)
    manifest = images.manifest(after.image)
    assert manifest.base == before.image
    assert [device.tag for device in manifest.devices] == ["cold", "hot"]
    assert (after.key, after.made_at, after.targets) == (before.key, before.made_at, before.targets)
    assert Stored(images, after.image).tree() == Stored(images, before.image).tree()
    assert snapshots.checked_image(NAME) == after.image
    started(images, after.image, source, 2)
    assert add_hot_device(snapshots, NAME) == "it has a hot device"
    assert snapshots.load(NAME) == after
    assert verify(images).damage == []
    assert sorted(remove_snapshot(images, NAME)) == sorted([before.image, after.image])
    assert images.images() == {}


def test_little_is_fetched_as_it_lies(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize_snapshot, "SCATTERED", 10_000)
    before = snapshots.load(NAME)
    assert add_hot_device(snapshots, NAME).startswith("what starts touch lies in ")
    assert snapshots.load(NAME) == before


def test_one_host_at_a_time(snapshots: Snapshots) -> None:
    before = snapshots.load(NAME)
    held = acquire(snapshots, NAME)
    assert add_hot_device(snapshots, NAME) == "another host does it"
    assert snapshots.load(NAME) == before
    held.release()
    assert "are one hot device now" in add_hot_device(snapshots, NAME)
    acquire(snapshots, NAME).release()  # it is free again


def test_two_at_once_where_there_are_no_locks(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal starts make the same of it, and neither takes that away."""
    images, base, real = snapshots.images, snapshots.load(NAME).image, optimize_snapshot.optimize

    def slow(*given: object, **more: object) -> object:
        monkeypatch.setattr(optimize_snapshot, "optimize", real)
        assert "are one hot device now" in add_hot_device(snapshots, NAME)
        return real(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot_lease, "acquire", Mock(side_effect=Unsupported("no locks here")))
    monkeypatch.setattr(optimize_snapshot, "optimize", slow)
    assert "are one hot device now" in add_hot_device(snapshots, NAME)
    assert images.images().keys() == {base, snapshots.load(NAME).image}


def test_another_hot_device_came_meanwhile(snapshots: Snapshots, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, base, real = snapshots.images, snapshots.load(NAME).image, optimize_snapshot.optimize

    def slow(*given: object, **more: object) -> object:
        made = real(*given, **more)  # type: ignore[arg-type]
        started(images, base, source, 5)
        other = real(images, base, [trace(images, base, imports(source, 5), workload="deps")])
        assert other.digest != made.digest
        assert snapshots.add_hot_device(NAME, base, other.digest)
        return made

    monkeypatch.setattr(optimize_snapshot, "optimize", slow)
    assert add_hot_device(snapshots, NAME) == "it was removed, or replaced, meanwhile"
    assert images.images().keys() == {base, snapshots.load(NAME).image}


@pytest.mark.parametrize("when", ["while it is made", "while it is named"])
def test_a_snapshot_that_is_removed_stays_so(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    images = snapshots.images
    if when == "while it is made":
        real = optimize_snapshot.optimize

        def removed(*given: object, **more: object) -> object:
            made = real(*given, **more)  # type: ignore[arg-type]
            remove_snapshot(images, NAME)
            return made

        monkeypatch.setattr(optimize_snapshot, "optimize", removed)
    else:
        create = Images.create

        def removed_first(self: Images, path: bytes, data: bytes, *, replace: bool = False) -> None:
            if path.startswith(b"/deps/"):
                remove_snapshot(images, NAME)
            create(self, path, data, replace=replace)

        monkeypatch.setattr(Images, "create", removed_first)
    assert add_hot_device(snapshots, NAME) == "it was removed, or replaced, meanwhile"
    assert not snapshots.has(NAME)
    assert images.images() == {}


def test_a_lead_that_was_lost_changes_nothing(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    before, images = snapshots.load(NAME), snapshots.images
    lost = Mock(RenewedLock, check=Mock(side_effect=DraftLost("somebody else leads")))
    monkeypatch.setattr(snapshot_lease, "acquire", lambda *_given: lost)
    with pytest.raises(DraftLost):
        add_hot_device(snapshots, NAME)
    assert snapshots.load(NAME) == before
    assert images.images().keys() == {before.image}


def test_gc_keeps_what_it_was_made_from_and_takes_what_came_too_late(
    snapshots: Snapshots, source: Path, tmp_path: Path
) -> None:
    images, base = snapshots.images, snapshots.load(NAME).image
    late = optimize_snapshot.optimize(images, base, [trace(images, base, imports(source, 5), workload="deps")]).digest
    add_hot_device(snapshots, NAME)
    named = snapshots.load(NAME).image
    age(files(tmp_path / "store"), GRACE / 3600 + 1)
    assert collect_snapshots(images, older_than=1e9) == ([], [late])
    collect(images, untagged=True)
    assert images.images().keys() == {base, named}
    assert verify(images).damage == []


def run(store: Path, name: str) -> subprocess.CompletedProcess[str]:
    asked = json.dumps({"store": StoreSettings(str(store))._asdict(), "name": name, "compression": AUTO})
    command = [sys.executable, "-P", "-m", "imagefs.build.optimize_snapshot"]
    return subprocess.run(command, input=asked, capture_output=True, text=True, timeout=60, check=False)


def test_the_program_says_what_it_did_or_why_not(snapshots: Snapshots, tmp_path: Path) -> None:
    done = run(tmp_path / "store", NAME)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    done = run(tmp_path / "store", "0" * 64)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1
    assert "no dependency snapshot" in done.stderr
