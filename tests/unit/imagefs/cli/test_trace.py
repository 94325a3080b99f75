"""Traces by the command: shown, compared, merged into plans, copied into a hot device, and kept across builds."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagefs.format.trace import Trace
from imagefs.repository.images import Images
from imagefs.repository.traces import Traces
from tests.support.images.starts import build_tree, imports, make_tree, trace
from tests.support.images.stores import images_in
from tests.unit.imagefs.cli.conftest import Command


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree")


@pytest.fixture
def app(tmp_path: Path) -> str:
    return f"{tmp_path / 'store'}#app"


def starts(images: Images, root: Path, digest: str, **facts: Any) -> list[Trace]:
    """Three recorded starts, in the store."""
    found = [trace(images, digest, imports(root, seed), started=1.7e9 + seed, **facts) for seed in range(3)]
    for one in found:
        Traces(images.repository).put(one)
    return found


def test_show(images: Images, root: Path, app: str, tmp_path: Path, imagefs: Command) -> None:
    digest = build_tree(root, images)
    assert imagefs.json("trace", "show", app) == {"image": digest, "base": digest, "traces": [], "plans": []}
    assert "there are no traces" in imagefs.run("trace", "show", app)[1]
    one, *_ = starts(images, root, digest, workload="train")
    listed = imagefs.json("trace", "show", app)["traces"]
    assert [row["workload"] for row in listed] == ["train"] * 3
    assert listed[0]["extents"] == len(one.touches)
    assert f"train/{listed[0]['name']}" in imagefs.run("trace", "show", f"{app}/train")[1]
    assert imagefs.json("trace", "show", f"{app}/other")["traces"] == []

    facts = imagefs.json("trace", "show", f"{app}/train/{listed[0]['name']}")
    assert facts["bytes"] == one.touched_bytes == sum(part["bytes"] for part in facts["timeline"])
    largest = sum(touch.length for touch in one.touches if touch.path == b"bin/python")
    assert facts["top_files"][0] == {"path": "bin/python", "bytes": largest}
    file = tmp_path / "trace.json"
    file.write_bytes(one.to_json())
    assert imagefs.json("trace", "show", file) == facts
    (packed,) = (tmp_path / "store/traces").rglob(listed[0]["name"])
    assert imagefs.json("trace", "show", packed) == facts
    assert "/bin/python" in imagefs.run("trace", "show", file)[1]
    file.write_bytes(packed.read_bytes()[:-9])
    assert imagefs.run("trace", "show", file)[0] == 4
    assert imagefs.run("trace", "show", f"{app}/train/{'0' * 15}-{'0' * 16}")[0] == 3


def test_diff(images: Images, root: Path, app: str, tmp_path: Path, imagefs: Command) -> None:
    one, two, _ = starts(images, root, build_tree(root, images))
    for number, each in enumerate((one, two)):
        (tmp_path / f"{number}").write_bytes(each.to_json())
    found = imagefs.json("trace", "diff", tmp_path / "0", tmp_path / "1")
    assert found["only_first"]["extents"] == found["only_second"]["extents"] == 1
    assert found["same"] == len(one.touches) - 1
    text = imagefs.run("trace", "diff", tmp_path / "0", f"{app}/default")[1]
    assert "ONLY IN THE SECOND" in text
    assert imagefs.run("trace", "diff", tmp_path / "0", f"{app}/other")[0] == 2


def test_merge(images: Images, root: Path, app: str, tmp_path: Path, imagefs: Command) -> None:
    digest = build_tree(root, images)
    assert "there is no complete trace" in imagefs.run("trace", "merge", app)[2]
    starts(images, root, digest)
    (row,) = imagefs.json("trace", "merge", app, "--dry-run")["plans"]
    assert (row["workload"], row["traces"], row["missing"]) == ("default", 3, 0)
    assert Traces(images.repository).plan(digest, "default") is None
    assert imagefs.json("trace", "merge", app)["plans"] == [row]
    plan = Traces(images.repository).plan(digest, "default")
    assert plan is not None
    assert plan.blocks == row["blocks"]
    assert f"plan default: {plan.blocks} blocks from 3 traces" in imagefs.run("trace", "show", app)[1]


def test_traces_of_another_build_can_be_given(
    images: Images, root: Path, app: str, tmp_path: Path, imagefs: Command
) -> None:
    other = images_in(tmp_path / "other")
    starts(other, root, build_tree(root, other))
    (root / "lib/new").write_bytes(b"another build")
    digest = build_tree(root, images)
    (row,) = imagefs.json("trace", "merge", app, f"{tmp_path / 'other'}#app")["plans"]
    assert (row["traces"], row["missing"]) == (3, 0)
    assert len(Traces(images.repository).names(digest, "default")) == 3


def test_a_trace_that_is_not_complete_is_of_no_use(
    images: Images, root: Path, app: str, tmp_path: Path, imagefs: Command
) -> None:
    (one, *_) = starts(images, root, build_tree(root, images))
    (tmp_path / "part").write_bytes(replace(one, complete=False, reason="pages were cached").to_json())
    code, _, err = imagefs.run("trace", "merge", app, tmp_path / "part")
    assert (code, "none of 1 traces is complete" in err) == (2, True)
    assert "no: pages were cached" in imagefs.run("trace", "show", tmp_path / "part")[1]


def test_optimize(images: Images, root: Path, app: str, imagefs: Command) -> None:
    digest = build_tree(root, images)
    assert imagefs.run("optimize", app)[0] == 4
    starts(images, root, digest)
    starts(images, root, digest, workload="other")
    made = imagefs.json("optimize", app)
    assert (made["base"], made["traces"], made["tag"]) == (digest, 6, "app")
    assert images.resolve("app") == made["digest"] != digest
    assert [device.tag for device in images.manifest(made["digest"]).devices] == ["cold", "hot"]
    assert made["plan_blocks"].keys() == {"default", "other"}
    again = imagefs.json("optimize", app, "--workload", "default", "--tag", "new")
    assert (again["traces"], again["tag"]) == (3, "new")
    assert "hot device" in imagefs.run("optimize", app)[1]
    assert imagefs.json("optimize", f"{app.partition('#')[0]}#{digest}")["tag"] == ""
    assert imagefs.run("verify", app.partition("#")[0])[0] == 0
    code, out, err = imagefs.run("optimize", app, "--replication", "3")
    assert (code, out, "lets nobody choose how many replicas an object has" in err) == (2, "", True)


def test_the_next_builds_of_a_tag_are_optimised_by_what_earlier_ones_recorded(
    images: Images, root: Path, app: str, tmp_path: Path, imagefs: Command
) -> None:
    store = app.partition("#")[0]
    (one, *_) = starts(images, root, build_tree(root, images))
    for number in range(2):
        (root / f"lib/new{number}").write_bytes(b"another build")
        made = imagefs.json("build", f"dir:{root}", store, "-t", "app")
        assert (made["hot"]["traces"], made["hot"]["missing"]) == (3, 0)
        assert made["digest"] == made["hot"]["digest"] == images.resolve("app")
        assert made["built"]["new_bytes"] < 200_000
    assert imagefs.json("build", f"dir:{root}", store, "-t", "app", "--no-trace")["hot"] is None
    assert imagefs.json("build", f"dir:{root}", store, "-t", "fresh")["hot"] is None
    assert imagefs.json("build", f"dir:{root}", store, "-t", "fresh", "--trace", app)["hot"]["traces"] == 3
    assert "hot device" in imagefs.run("build", f"dir:{root}", store, "-t", "fresh")[1]
    (tmp_path / "trace").write_bytes(one.to_json())
    shutil.rmtree(tmp_path / "store/traces")
    assert imagefs.json("build", f"dir:{root}", store, "-t", "app", "--trace", tmp_path / "trace")["hot"]["traces"] == 1
