"""The published part of an installation; nothing is left of the rest."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from imagefs.build.content import scan
from imagefs.deps import capture, inventory, publish
from imagefs.deps.lock import Lock, LockedRequirement
from imagefs.deps.publish import PublishJob
from imagefs.deps.target import TargetDirectory
from imagefs.format.documents import Snapshot
from imagefs.housekeeping.listing import describe_files
from imagefs.repository.images import Images
from imagefs.repository.snapshots import Snapshots
from imagefs.trace.references import open_image
from stripefs.errors import Busy
from tests.support.deps.wheels import wheel
from tests.support.images.faults import flip, objects
from tests.support.images.stores import images_in, write_tree

KEY = {"salt": "x"}
HINT = "ab" * 32


@pytest.fixture
def job(tmp_path: Path) -> PublishJob:
    """Of a directory that was finished."""
    job = PublishJob({}, str(tmp_path / "cache"), KEY, str(tmp_path / "deps"), 2.5)
    with TargetDirectory(job.target, job.cache).locked(lambda: None):
        install(job)
    return job


def install(job: PublishJob, *requires: str) -> None:
    """Install a distribution that requires these, once more where it is there."""
    target = TargetDirectory(job.target, job.cache)
    target.begin(job.name, [])
    with zipfile.ZipFile(wheel(Path(job.cache, "wheels"), "heavy", {}, requires=requires)) as archive:
        archive.extractall(job.target)
    target.finish(inventory.take(job.target), job.name)


def leads() -> None:
    """This host does, as far as anybody knows."""


def test_what_is_without_doubt_is_published(images: Images, job: PublishJob) -> None:
    done = publish.publish(job._replace(hint=(HINT, "document")), images, leads)
    assert (done.published, done.lines) == (True, ())
    assert Snapshots(images).note("hints", HINT) == b"document"
    snapshot = Snapshots(images).load(job.name)
    assert (snapshot.image, snapshot.targets, snapshot.made_seconds) == (done.image, (job.target,), 2.5)
    assert images.manifest(done.image).source == job.name
    again = publish.publish(job, images, leads)
    assert (again.published, again.image) == (True, "")


def test_a_pack_with_other_bytes_is_replaced_once_somebody_could_not_read_it(
    images: Images, job: PublishJob, tmp_path: Path
) -> None:
    install(job, f"packaging\nSummary: {random.Random(1).randbytes(20_000).hex()}")  # more than is kept in the metadata
    doubting = job._replace(tolerant=True, damaged=True)
    first = publish.publish(job._replace(tolerant=True), images, leads)
    again = publish.publish(doubting, images, leads)
    assert (again.published, again.image) == (True, "")  # it was no fault of the store
    (pack,) = objects(tmp_path / "store", "packs")
    good = pack.read_bytes()
    flip(pack)
    assert publish.publish(job._replace(tolerant=True), images, leads).image == ""  # which nobody has noticed
    second = publish.publish(doubting, images_in(tmp_path / "store"), leads)
    assert second.published
    assert Snapshots(images).load(job.name).image == second.image == first.image
    assert pack.read_bytes() == good


def test_conflicts_that_are_allowed_are_noted(images: Images, job: PublishJob) -> None:
    install(job, "torch")
    done = publish.publish(job, images, leads)
    assert not done.published
    assert "heavy 1.0: requires torch, which is not installed (--allow-conflicts" in done.lines[0]
    done = publish.publish(job._replace(tolerant=True), images, leads)
    assert done.published
    (noted,) = Snapshots(images).load(job.name).findings
    assert noted == "packages do not fit one another: heavy 1.0: requires torch, which is not installed"


def test_versions_that_are_not_in_the_lock(images: Images, job: PublishJob) -> None:
    other, own = (Lock.of([LockedRequirement("heavy", one, "wheel")]).to_document() for one in ("2.0", "1"))
    done = publish.publish(job._replace(lock=other), images, leads)
    assert not done.published
    assert "heavy 1.0" in done.lines[0]
    assert publish.publish(job._replace(lock=own), images, leads).published


def test_a_directory_that_was_changed_since_it_was_installed(images: Images, job: PublishJob) -> None:
    Path(job.target, "more.py").write_text("x = 1\n")
    done = publish.publish(job, images, leads)
    assert not done.published
    assert "more.py" in done.lines[0]


@pytest.mark.parametrize("how", ["more", "fewer", "other"])
def test_a_directory_that_changes_while_it_is_packed(
    images: Images, job: PublishJob, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    build, metadata = publish.build, Path(job.target, "heavy-1.0.dist-info/METADATA")

    def slow(*arguments: Any, **options: Any) -> Any:
        report = build(*arguments, **options)
        if how == "more":
            Path(job.target, "more.py").touch()
        elif how == "fewer":
            metadata.unlink()
        else:
            metadata.write_text(metadata.read_text())
        return report

    monkeypatch.setattr(publish, "build", slow)
    done = publish.publish(job, images, leads)
    assert not done.published
    assert "changed while they were packed" in done.lines[0]
    assert images.images() == {}


def test_what_programs_keep_beside_modules_is_left_out(
    images: Images, job: PublishJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came since it was installed, or while it is packed; as the bytecode of `python -O` does."""
    scan_, caches = capture.scan, Path(job.target, "__pycache__")
    caches.mkdir()
    (caches / "heavy.cpython-311.opt-1.pyc").touch()

    def late(path: str) -> Any:
        (caches / "heavy.nbi").touch()
        return scan_(path)

    monkeypatch.setattr(capture, "scan", late)
    done = publish.publish(job, images, leads)
    assert (done.published, done.lines) == (True, ())
    target = open_image(images, done.image).target
    assert sorted(path.rpartition("/")[2] for path in describe_files(target.base, target.table)) == [
        "METADATA",
        "RECORD",
        "WHEEL",
        "heavy-1.0.dist-info",
    ]


def test_a_lead_that_was_lost(images: Images, job: PublishJob) -> None:
    def lost() -> None:
        raise Busy("another leads")

    with pytest.raises(Busy):
        publish.publish(job, images, lost)
    assert images.images() == {}
    assert Snapshots(images).stored() == {}


def test_another_that_was_first(images: Images, job: PublishJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its snapshot stays, and so does its image; what was built here goes."""
    build = publish.build
    others: list[str] = []

    def slow(*arguments: Any, **options: Any) -> Any:
        report = build(*arguments, **options)
        more = write_tree(Path(job.cache) / "other", a=1)
        others.append(build(*scan(str(more)), images, source=job.name).digest)
        assert Snapshots(images).put(Snapshot(KEY, others[0], "host", (job.target,), 1.0, 1.0))
        return report

    monkeypatch.setattr(publish, "build", slow)
    assert publish.publish(job, images, leads).published
    assert Snapshots(images).load(job.name).image == others[0]
    assert list(images.images()) == others
