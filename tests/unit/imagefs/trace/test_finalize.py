"""A recording becomes a trace and a plan: in the store, else in a local folder; else one clear line is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from imagefs.build.optimize import optimize
from imagefs.errors import FormatError, NoSuchImage
from imagefs.format.inodes import HOT, digest_of
from imagefs.format.trace import Plan, Touch, Trace
from imagefs.repository.base import Repository
from imagefs.repository.images import Images
from imagefs.repository.store import open_repository
from imagefs.repository.traces import KEEP, Traces, load_plan, local_traces
from imagefs.trace import finalize as module
from imagefs.trace.finalize import RecordingFacts, finish, read_ahead, unread
from imagefs.trace.recorder import Recorder
from imagefs.trace.references import stored_traces
from stripefs.errors import ServiceDown, Unsupported
from stripefs.settings import StoreSettings
from tests.support.images.starts import build_tree, imports, record


class Starts:
    """Makes the facts of starts of the image `digest`, or of another one, as the daemon would write them."""

    def __init__(self, folder: Path, images: Images, source: Path) -> None:
        self.folder, self.images, self.source = folder, images, source
        self.digest = build_tree(source, images)
        self.number = 0

    def facts(self, reads: list[tuple[bytes, int]] | None = None, image: str = "", **more: Any) -> dict[str, Any]:
        self.number += 1
        image = image or self.digest
        raw = self.folder / f"{self.number}.raw"
        reads = imports(self.source, self.number) if reads is None else reads
        raw.write_bytes(record(self.images, image, reads).to_bytes())
        entry = self.images.manifest(image).metadata
        (self.folder / "metadata").mkdir(exist_ok=True)
        metadata = self.folder / "metadata" / f"{entry.digest}.erofs"
        metadata.write_bytes(self.images.metadata(entry))
        return {
            "raw": str(raw),
            "folder": str(self.folder / "kept"),
            "store": StoreSettings(str(self.folder / "store"))._asdict(),
            "image": image,
            "metadata": str(metadata),
            "workload": "train",
            "node": "node-1",
            "started": 1.7e9 + self.number + 0.1234567,
            "seconds": 12.3456,
            "ended_by": "ready",
            "and": "more",
            **more,
        }

    def finish(self, reads: list[tuple[bytes, int]] | None = None, image: str = "", **more: Any) -> dict[str, Any]:
        return finish(RecordingFacts.from_json(json.dumps(self.facts(reads, image, **more))))

    def plan(self, image: str = "", kept: Path | None = None) -> Plan:
        """The plan by now, in the store or in the folder `kept`."""
        found = load_plan(self.images, image or self.digest, "train", kept)
        assert found is not None
        return found


@pytest.fixture
def starts(tmp_path: Path, images: Images, source: Path) -> Starts:
    return Starts(tmp_path, images, source)


def test_a_start_leaves_a_trace_and_a_plan(starts: Starts, tmp_path: Path) -> None:
    done = starts.finish()
    (found,) = stored_traces(starts.images, starts.digest)
    assert (found.node, found.seconds, found.ended_by, found.started) == ("node-1", 12.346, "ready", 1700000001.123)
    reads = imports(starts.source, 1)
    assert [(touch.path, touch.offset) for touch in found.touches] == list(dict.fromkeys(reads))
    for touch in found.touches:
        data = (starts.source / os.fsdecode(touch.path)).read_bytes()
        assert touch.digest == digest_of(data[touch.offset :][: touch.length])
    assert [touch.ms for touch in found.touches] == [125 * reads.index(touch[1:3]) for touch in found.touches]
    assert done == {
        "trace": Traces(starts.images.repository).names(starts.digest, "train")[0],
        "stored": str(tmp_path / "store"),
        "complete": True,
        "extents": len(found.touches),
        "bytes": found.touched_bytes,
        "plan_traces": 1,
        "plan_blocks": starts.plan().blocks,
    }
    assert not list(tmp_path.glob("*.raw"))
    assert not list((tmp_path / "kept").rglob("*-*"))


def test_what_was_only_read_ahead_is_planned_again_but_not_copied(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies where the kernel will read ahead again; a hot device is laid out otherwise."""
    ahead = Mock(side_effect=lambda touches, _mount: list(range(1, len(touches), 2)))
    monkeypatch.setattr(module, "read_ahead", ahead)
    whole = starts.finish()
    starts.finish(mount=-1)
    assert not ahead.called  # without a mount nobody can say
    half = starts.finish(imports(starts.source, 1), mount=7)
    assert [one.args[1] for one in ahead.call_args_list] == [7]
    assert half == whole | {"trace": half["trace"], "plan_traces": 3}
    *_, found = stored_traces(starts.images, starts.digest)
    assert found.read == found.touches[::2]
    report = optimize(starts.images, starts.digest, [found])
    assert report.extents == len(found.read)
    assert [run.device for run in starts.plan(report.digest).runs] == [HOT]


def test_plans_learn_from_start_to_start(starts: Starts) -> None:
    for number in range(KEEP + 2):
        done = starts.finish()
        assert done["plan_traces"] == min(number + 1, KEEP)
    assert len(stored_traces(starts.images, starts.digest)) == KEEP
    common = [read for read in imports(starts.source, 0) if not read[0].startswith(b"lib/p04")]
    assert set(starts.plan().of(1)) == record(starts.images, starts.digest, common).touched_blocks(1)


def test_a_start_of_an_optimised_image_teaches_both(starts: Starts) -> None:
    starts.finish()
    report = optimize(starts.images, starts.digest, stored_traces(starts.images, starts.digest))
    done = starts.finish([*imports(starts.source, 1), (b"lib/zeros.bin", 0)], report.digest)
    assert done["plan_traces"] == 2  # both are of the same base
    plan = starts.plan(report.digest)
    assert set(plan.of(HOT)) == set(range(-(-report.hot_bytes // (128 << 10))))
    assert [run.device for run in plan.runs] == [HOT, 1]


@pytest.mark.parametrize("what", ["partial", "empty"])
def test_what_no_plan_is_made_from_stays_here(starts: Starts, tmp_path: Path, what: str) -> None:
    done = starts.finish(reason="it was warm") if what == "partial" else starts.finish([])
    assert done["complete"] == (what == "empty")
    assert stored_traces(starts.images, starts.digest) == []
    assert load_plan(starts.images, starts.digest, "train", tmp_path / "kept") is None
    with local_traces(tmp_path / "kept") as local:
        (kept,) = local.newest(starts.digest, "train")
    assert kept.reason == ("it was warm" if what == "partial" else "")


def test_a_store_that_cannot_be_written_leaves_all_here(
    starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts.finish()  # this one is in the store

    def read_only(settings: StoreSettings) -> Repository:
        repository = open_repository(settings)
        monkeypatch.setattr(repository, "put", Mock(side_effect=Unsupported("no puts here")))
        return repository

    monkeypatch.setattr(module, "open_repository", read_only)
    done = [starts.finish(), starts.finish()]
    assert [one["plan_traces"] for one in done] == [2, 3]
    assert len(stored_traces(starts.images, starts.digest)) == 1
    assert starts.plan(kept=tmp_path / "kept").traces == 3
    with local_traces(tmp_path / "kept") as local:
        assert len(local.newest(starts.digest, "train")) == 2


def test_a_store_that_is_slow_to_come_back_is_asked_again(
    starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, put = iter([ServiceDown("away"), ServiceDown("away")]), Traces.put

    def flaky(self: Traces, trace: Trace) -> str:
        for failure in failures:
            raise failure
        return put(self, trace)

    waits: list[float] = []
    monkeypatch.setattr(Traces, "put", flaky)
    monkeypatch.setattr("time.sleep", waits.append)
    assert starts.finish()["stored"] == str(tmp_path / "store")
    assert len(waits) == 2


def test_only_the_plan_may_be_refused(starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_plan, refused = Traces.put_plan, Unsupported("nothing is replaced or removed here")

    def put_here(self: Traces, plan: Plan) -> None:
        if self.repository.url == str(tmp_path / "store"):
            raise refused
        put_plan(self, plan)

    monkeypatch.setattr(Traces, "put_plan", put_here)
    monkeypatch.setattr(Traces, "prune", Mock(side_effect=refused))
    assert starts.finish()["plan_traces"] == 1
    assert load_plan(starts.images, starts.digest, "train") is None
    assert load_plan(starts.images, starts.digest, "train", tmp_path / "kept") is not None


@pytest.mark.parametrize("others", [1, 3])
def test_no_start_is_lost_to_one_that_publishes_at_the_same_time(
    starts: Starts, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Each of the others has finished between what a start knew and the plan that it then writes."""
    left = others
    put_plan = Traces.put_plan

    def late(self: Traces, plan: Plan) -> None:
        nonlocal left
        if left:
            left -= 1
            starts.finish()
        put_plan(self, plan)

    monkeypatch.setattr(Traces, "put_plan", late)
    assert starts.finish()["plan_traces"] == others + 1
    assert starts.plan().traces == others + 1


def test_nothing_half_done_is_left_where_it_fails(starts: Starts, tmp_path: Path) -> None:
    facts = starts.facts()
    Path(facts["raw"]).write_bytes(Recorder([4096]).to_bytes())
    with pytest.raises(FormatError, match="of another image"):
        finish(RecordingFacts.from_json(json.dumps(facts)))
    with pytest.raises(NoSuchImage):
        finish(RecordingFacts.from_json(json.dumps({**starts.facts(), "image": "0" * 64})))
    with pytest.raises(FormatError, match="no key of a workload"):
        starts.finish(workload="../up")
    with pytest.raises(FormatError, match="how it ended"):
        starts.finish(ended_by="magic")
    assert len(list(tmp_path.glob("*.raw"))) == 4  # for whoever wants to know
    assert Traces(starts.images.repository).bases() == []
    assert Traces(starts.images.repository).plans() == []


def run(facts: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "imagefs.trace.finalize"]
    return subprocess.run(command, input=facts, capture_output=True, text=True, timeout=60, check=False)


def test_the_program_says_what_it_did_or_why_not(starts: Starts) -> None:
    facts = starts.facts()
    done = run(json.dumps(facts))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["plan_traces"] == 1
    for broken, code, words in (
        (json.dumps(facts), 1, "No such file"),  # the raw form was used up
        (json.dumps({**starts.facts(), "store": {"url": "/nowhere"}}), 3, "/nowhere"),
        ("nonsense", 2, "standard input"),
    ):
        done = run(broken)
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.startswith("imagefs.trace.finalize: ")
        assert done.stderr.count("\n") == 1
        assert words in done.stderr


# -- touches that no file asked for are told from others; where that cannot be done, all were asked for ----------------


KIB = 1 << 10
CHUNK = 64 * KIB


def touches(*places: tuple[bytes, int]) -> list[Touch]:
    return [Touch(ms, path, offset * CHUNK, CHUNK, bytes(16)) for ms, (path, offset) in enumerate(places)]


def files_read(*read: tuple[bytes, int]) -> module.Look:
    """Tells that these chunks were read, each of a file in one call."""
    asked: set[bytes] = set()

    def look(path: bytes, ranges: Sequence[tuple[int, int]]) -> list[bool]:
        assert path not in asked
        asked.add(path)
        assert all(length == CHUNK for _, length in ranges)
        return [(path, offset // CHUNK) in read for offset, _ in ranges]

    return look


@pytest.mark.parametrize(("read", "ahead"), [(0, 0), (1, 0), (2, 8), (10, 0)])
def test_emptied_caches_are_not_believed(read: int, ahead: int) -> None:
    found = touches(*((b"file", number) for number in range(10)))
    assert len(unread(found, files_read(*((b"file", number) for number in range(read))))) == ahead


def cold_file(path: Path, chunks: int) -> None:
    """A file of which the page cache holds nothing."""
    with path.open("wb") as file:
        file.write(os.urandom(chunks * CHUNK))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_chunks(path: Path, chunks: Iterable[int]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    for chunk in chunks:
        os.pread(descriptor, 1, chunk * CHUNK + 5000)
    os.close(descriptor)


@pytest.fixture
def root(disk_path: Path) -> Iterator[int]:
    """The descriptor of `disk_path`, which stands for the mount of an image."""
    (disk_path / "lib").mkdir()
    descriptor = os.open(disk_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def test_the_page_cache_tells_what_was_read(disk_path: Path, root: int) -> None:
    for name in ("lib/a", "lib/b"):
        cold_file(disk_path / name, 8)
    read_chunks(disk_path / "lib/a", [1, 6])
    read_chunks(disk_path / "lib/b", [7])
    found = touches(*((path, chunk) for path in (b"lib/a", b"lib/b") for chunk in range(1, 8, 2)), (b"lib/a", 6))
    ahead = read_ahead(found, root)
    read = [(touch.path, touch.offset // CHUNK) for number, touch in enumerate(found) if number not in ahead]
    assert read == [(b"lib/a", 1), (b"lib/b", 7), (b"lib/a", 6)]


def test_every_touch_counts_as_read_where_the_kernel_cannot_say(
    disk_path: Path, root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold_file(disk_path / "lib/a", 8)
    read_chunks(disk_path / "lib/a", [1])
    found = touches((b"lib/a", 1), (b"lib/a", 2), (b"lib/gone", 0))
    assert read_ahead(found, root) == []
    (disk_path / "lib/gone").symlink_to("a")
    assert read_ahead(found, root) == []
    assert read_ahead(found[:2], root) == [1]
    monkeypatch.setattr(module, "_CACHESTAT", 100_000)  # which older kernels do not have
    assert read_ahead(found[:2], root) == []
