"""Events that a snapshotter writes about starts, and the start that they name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from imagefs.daemon.client import Client
from imagefs.daemon.protocol import HoldRequest, Lease
from imagefs.daemon.requests import decode
from imagefs.snapshotter.lazy import DaemonImages
from imagefs.snapshotter.metastore import AlreadyExists, Kind, SnapshotRecord, Tree
from imagefs.snapshotter.snapshotter import TARGET, Snapshotter
from imagefs.snapshotter.start_events import LABEL, NodeEvents, start_of
from stripefs.errors import MountError
from stripefs.settings import StoreSettings
from tests.support.start_events import events_in, pairs
from tests.unit.imagefs.snapshotter.fake_images import IMAGE, FakeImages
from tests.unit.imagefs.snapshotter.test_lazy import LAYER, Daemon

START = {LABEL + "job": "train", LABEL + "run": "r7", LABEL + "rank": "3"}


@pytest.fixture
def events(tmp_path: Path) -> Iterator[NodeEvents]:
    with contextlib.closing(NodeEvents(str(tmp_path / "events"))) as made:
        yield made


def test_prepares(tmp_path: Path, images: FakeImages, events: NodeEvents) -> None:
    with contextlib.closing(Snapshotter(tmp_path / "root", images, events)) as core:
        with pytest.raises(AlreadyExists):
            core.prepare("extract-1", "", {TARGET: "sha256:1", IMAGE: "lazy"})
        core.prepare("extract-2", "", {TARGET: "sha256:2"})
        core.prepare("container", "", START)
        images.away = True
        with pytest.raises(MountError):
            core.prepare("lazy container", "sha256:1", START)
    events.close()
    found = events_in(tmp_path / "events")
    assert {(one["source"], one["stage"], one["name"]) for one in found} == {("snapshotter", "image", "prepare")}
    ends = [one for one in found if one["event"] == "end"]
    assert [one["facts"] for one in ends] == [
        {"key": "extract-1", "hits": 1},
        {"key": "extract-2", "misses": 1},
        {"key": "container"},
        {"key": "lazy container", "error": "MountError"},
    ]
    assert [(one.get("job"), one.get("run"), one.get("rank")) for one in ends][1:3] == [
        (None, None, None),
        ("train", "r7", 3),
    ]
    assert len({one["node"] for one in found}) == 1


def test_a_mount_is_attached_for_the_start_that_labels_name(tmp_path: Path, events: NodeEvents) -> None:
    daemon = Daemon()
    with contextlib.closing(
        DaemonImages(cast(Client, daemon), [], StoreSettings, name="test", built=tmp_path / "built", events=events)
    ) as images:
        images.mount(LAYER, Tree("/store", "ab12"), SnapshotRecord(1, "container", "layer", Kind.ACTIVE, 0, 0, START))
    events.close()
    begin, end = pairs(events_in(tmp_path / "events"))["image", "attach"]
    assert end["facts"] == {"key": "container", "image": "ab12"}
    request = HoldRequest(StoreSettings(), "t", Lease("c", "x"), 0, events=daemon.start).to_json()
    assert decode(HoldRequest, request).events == {"job": "train", "run": "r7", "rank": 3, "parent": begin["span"]}
    assert (begin["run"], end["rank"]) == ("r7", 3)


@pytest.mark.parametrize("rank", ["-1", "x", "9" * 30, ""])
def test_labels_that_name_no_rank(rank: str) -> None:
    assert start_of({LABEL + "rank": rank, LABEL + "run": "r" * 5000}) == {"run": "r" * 256}
