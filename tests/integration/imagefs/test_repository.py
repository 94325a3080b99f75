"""The duties of every place for images: one suite over a directory store and over Debian's docker-registry."""

from __future__ import annotations

import hashlib
import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.errors import DamagedObject, NoSuchImage, NoSuchSnapshot
from imagefs.format.documents import Snapshot, key_digest
from imagefs.format.index import Pack
from imagefs.format.trace import Plan, PlanRun, Touch, Trace
from imagefs.housekeeping.gc import collect
from imagefs.housekeeping.listing import list_images, remove_image
from imagefs.housekeeping.verify import verify
from imagefs.repository.images import Images, object_path
from imagefs.repository.snapshots import NOTES, Snapshots
from imagefs.repository.traces import KEEP, Traces
from stripefs.errors import Exists, NotFound
from tests.support.images.stores import build_tree, images_at, write_tree

DATA = random.Random(3).randbytes(70_000)
PACK = Pack(hashlib.sha256(DATA).digest(), len(DATA))
PATH = object_path("packs", PACK.digest.hex())
SOURCE = "sha256:" + "5a" * 32
_names = (f"contract/app{number}" for number in itertools.count())


@pytest.fixture(params=["store", "registry"])
def images(request: pytest.FixtureRequest, registry: str, tmp_path: Path) -> Iterator[Images]:
    place = str(tmp_path / "store") if request.param == "store" else f"oci://{registry}/{next(_names)}?scheme=http"
    with images_at(place) as found:
        yield found


def made(base: str, started: float = 1.0, workload: str = "default") -> Trace:
    return Trace(base, workload, "n", started, 1.0, "ready", True, "", [Touch(0, b"a", 0, 10, bytes(16))])


def test_an_empty_place_has_nothing(images: Images) -> None:
    assert (images.tags(), images.images(), images.sources()) == ({}, {}, {})
    assert (Traces(images.repository).bases(), Snapshots(images).stored()) == ([], {})
    assert (list_images(images), collect(images, untagged=True).removed) == ([], [])
    for call in (images.resolve, images.manifest, images.untag, images.remove):
        with pytest.raises(NoSuchImage):
            call("ab" * 32 if call in (images.manifest, images.remove) else "none")
    with pytest.raises(NoSuchImage):
        images.by_source(SOURCE)


def test_objects_are_read_whole_and_by_ranges(images: Images) -> None:
    assert not images.has_pack(PACK)
    for call in (images.repository.read, images.repository.stat):
        with pytest.raises(NotFound):
            call(PATH)
    assert images.put_pack(PACK, DATA)
    assert not images.put_pack(PACK, DATA)
    assert images.has_pack(PACK)
    assert images.repository.read(PATH) == DATA
    reader = images.repository.open(PATH, len(DATA))
    for begin, length in ((0, 1), (0, len(DATA)), (69_999, 1), (100, 4096)):
        assert reader.read(begin, length) == DATA[begin : begin + length]
    reader.close()


def test_an_image_has_tags_until_it_is_removed(images: Images, tmp_path: Path) -> None:
    before = time.time()
    report = build_tree(write_tree(tmp_path / "source", a=1, b=2), images, "one")
    images.tag("two", report.digest)
    assert images.tags() == {"one": report.digest, "two": report.digest}
    (row,) = list_images(images)
    assert (row.digest, row.tags, row.error) == (report.digest, ("one", "two"), "")
    assert before - 1 <= row.stored_at <= time.time() + 1
    assert images.resolve(report.digest[:14]) == report.digest
    assert verify(images).damage == []
    assert remove_image(images, "one") == (["one"], [])
    assert (images.tags(), images.has(report.digest)) == ({"two": report.digest}, True)
    assert remove_image(images, "two") == (["two"], [report.digest])
    assert (images.tags(), images.images(), images.has(report.digest)) == ({}, {}, False)


def test_a_tag_moves_and_what_it_named_stays(images: Images, tmp_path: Path) -> None:
    old = build_tree(write_tree(tmp_path / "old", a=1), images, "app")
    new = build_tree(write_tree(tmp_path / "new", a=2), images, "app")
    assert images.tags() == {"app": new.digest}
    assert collect(images, older_than=0).removed == [], "images without a tag go only by wish"
    assert images.images().keys() == {old.digest, new.digest}
    assert collect(images, older_than=0, untagged=True).removed[0] == f"images/{old.digest}"
    assert images.images().keys() == {new.digest}
    assert verify(images).damage == []


def test_what_is_there_is_not_stored_again(images: Images, tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", a=1, b=2)
    first = build_tree(source, images, "one")
    write_tree(tmp_path / "source", c=3)
    second = build_tree(source, images, "two")
    assert first.new_bytes > second.new_bytes > 0
    assert build_tree(source, images, "three").new_bytes == 0


def test_the_newest_image_stands_for_the_manifest_it_was_built_from(images: Images, tmp_path: Path) -> None:
    older = build_tree(write_tree(tmp_path / "a", a=1), images, "a", source=SOURCE)
    newer = build_tree(write_tree(tmp_path / "b", b=2), images, "b", source=SOURCE)
    assert images.by_source(SOURCE) == newer.digest
    images.set_source(SOURCE, older.digest)
    assert images.by_source(SOURCE) == older.digest
    assert images.images().keys() == {older.digest, newer.digest}
    remove_image(images, "a")
    assert images.by_source(SOURCE) == newer.digest
    remove_image(images, "b")
    with pytest.raises(NoSuchImage):
        images.by_source(SOURCE)


def test_traces_and_plans(images: Images, tmp_path: Path) -> None:
    base = build_tree(write_tree(tmp_path / "source", a=1), images, "app").digest
    traces = Traces(images.repository)
    names = [traces.put(made(base, started)) for started in (5.0, 3.0, 7.0)]
    assert traces.put(made(base, 5.0)) == names[0]
    traces.put(made(base, 1.0, "serve"))
    assert traces.names(base, "default") == [names[1], names[0], names[2]]
    assert (traces.bases(), sorted(traces.workloads(base))) == ([base], ["default", "serve"])
    assert traces.load(base, "default", names[2]) == made(base, 7.0)
    assert traces.prune(base, "default", 1) == 2
    assert [one.started for one in traces.newest(base, "default")] == [7.0]
    for blocks in (3, 4):
        traces.put_plan(Plan(base, "serve", 1, [PlanRun(1, 0, blocks)]))
    assert traces.plan(base, "serve") == Plan(base, "serve", 1, [PlanRun(1, 0, 4)])
    assert (traces.plans(), traces.plan(base, "other")) == ([(base, "serve")], None)
    several = [traces.put(made(base, float(number), "serve")) for number in range(2, KEEP + 3)]
    assert len(collect(images, older_than=0).removed) == 2
    assert traces.names(base, "serve") == several[1:]
    assert verify(images).damage == []
    remove_image(images, "app")
    assert len([path for path in collect(images, older_than=0).removed if path[:6] in ("traces", "plans/")]) == KEEP + 2
    assert (traces.names(base, "default"), traces.names(base, "serve"), traces.plans()) == ([], [], [])


def test_documents_of_dependency_snapshots(images: Images, tmp_path: Path) -> None:
    key = {"salt": "x"}
    name, snapshots = key_digest(key), Snapshots(images)
    report = build_tree(write_tree(tmp_path / "source", a=1), images, source=name)
    snapshot = Snapshot(key, report.digest, "host", ("/opt/deps",), 1.0, 1.0)
    assert snapshots.put(snapshot)
    assert not snapshots.put(snapshot)
    assert snapshots.load(name) == snapshot
    assert snapshots.images_named() == {name: report.digest}
    snapshots.mark_used(name)
    assert list(snapshots.used()) == [name]
    for kind in NOTES:
        assert snapshots.note(kind, name) == b""
        snapshots.put_note(kind, name, b"before")
        snapshots.put_note(kind, name, b"document")
        assert (snapshots.note(kind, name), list(snapshots.notes_since(kind))) == (b"document", [name])
    snapshots.note_unpublished(name, "because")
    assert snapshots.unpublished_reason(name) == "because"
    assert collect(images, untagged=True).removed == []
    snapshots.remove(name)
    with pytest.raises(NoSuchSnapshot):
        snapshots.load(name)
    assert (snapshots.stored(), snapshots.used()) == ({}, {})


def test_a_document_is_not_replaced_by_chance_and_not_read_beyond_its_limit(images: Images) -> None:
    path = b"/deps/" + b"ab" * 32
    images.create(path, b"first")
    with pytest.raises(Exists):
        images.create(path, b"second")
    assert images.repository.read(path, 5) == b"first"
    with pytest.raises(DamagedObject, match="5 bytes"):
        images.repository.read(path, 4)
    images.create(path, b"third", replace=True)
    assert (images.read(path), images.stat(path).length) == (b"third", 5)
    images.discard(path)
    with pytest.raises(NotFound):
        images.discard(path)
