"""From several traces to one plan: merging, matching after a rebuild, comparing, judging."""

from __future__ import annotations

import shutil
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.build import content
from imagefs.format import erofs
from imagefs.format.erofs import records
from imagefs.format.inodes import address
from imagefs.format.trace import PlanRun
from imagefs.repository.images import Images
from imagefs.trace.diff import diff
from imagefs.trace.planner import FileExtent, match, merge, resolve, runs
from imagefs.trace.recorder import Recorder, score
from imagefs.trace.references import open_image, plan_for
from tests.support.images.starts import build_tree, imports, make_tree, trace
from tests.support.images.stores import images_in

_orders = st.lists(st.lists(st.integers(0, 30), unique=True), max_size=8)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    return images_in(tmp_path_factory.mktemp("images") / "store")


@pytest.fixture(scope="module")
def digest(source: Path, images: Images) -> str:
    return build_tree(source, images)


# -- merging ----------------------------------------------------------------------------------------------------------


@given(_orders, st.sampled_from([0.0, 0.5, 0.75, 1.0]))
def test_what_enough_traces_touched_is_kept_once(orders: list[list[int]], share: float) -> None:
    merged = merge(orders, share)
    need = max(1, ceil(len(orders) * share))
    counts = {cold: sum(cold in order for order in orders) for order in orders for cold in order}
    assert {wanted.cold: wanted.traces for wanted in merged} == {
        cold: count for cold, count in counts.items() if count >= need
    }
    assert len({wanted.cold for wanted in merged}) == len(merged)
    assert merge(orders[::-1], share) == merged


def test_most_decide_the_order() -> None:
    assert [wanted.cold for wanted in merge([[1, 2, 3, 4], [1, 2, 3, 4], [4, 3, 2, 1]])] == [1, 2, 3, 4]
    assert [wanted.cold for wanted in merge([[1, 2, 3], [1, 3], [9]])] == [1, 3]


# -- from pages to extents --------------------------------------------------------------------------------------------


def test_a_run_of_pages_touches_all_extents_in_it(images: Images, digest: str) -> None:
    opened = open_image(images, digest)
    size = opened.manifest.devices[0].size
    recorder = Recorder([size])
    recorder.touch(1, 0, size, 0.5)
    found = resolve(recorder, opened.target)
    assert {(touch.path, touch.offset) for touch in found} == {extent[:2] for extent in opened.target.extents()}
    assert {touch.ms for touch in found} == {500}


# -- matching ---------------------------------------------------------------------------------------------------------


def test_a_trace_survives_a_rebuild(source: Path, images: Images, digest: str, tmp_path: Path) -> None:
    """Files came in front, one package moved, one is gone, and every compiled module has another time in its head."""
    rebuilt = make_tree(tmp_path / "rebuilt", stamp=1, first="a_new_one")
    (rebuilt / "lib/p03").rename(rebuilt / "lib/moved")
    shutil.rmtree(rebuilt / "lib/p00")
    other = build_tree(rebuilt, images, tag="rebuilt")
    found = trace(images, digest, imports(source, 1))
    target = open_image(images, other).target
    matched = match(found.touches, target)
    compiled = [touch for touch in found.touches if touch.path.endswith(b".pyc")]
    kept = [touch for touch in compiled if touch.path.startswith(b"lib/p01/")]
    gone = [touch for touch in found.touches if touch.path.startswith(b"lib/p00/")]
    lost = [touch for touch in compiled if touch.path.startswith(b"lib/p03/")]  # moved and changed
    assert len(kept) > 5
    assert (matched.by_path, matched.missing) == (len(kept), len(gone) + len(lost))
    assert matched.by_digest == len(found.touches) - matched.by_path - matched.missing
    named = {extent.cold: extent.path for extent in target.extents()}
    paths = [named[cold] for cold in matched.order]
    assert b"lib/moved/_native.so" in paths
    expected = [touch.path.replace(b"lib/p03/", b"lib/moved/") for touch in found.touches]
    assert paths == [path for path in expected if path in set(paths)]


def test_content_that_lies_at_several_places_is_matched_where_it_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a", "b", "c"):
        (source / name).write_bytes(b"the same" * 1000)
    images = images_in(tmp_path / "store")
    digest = build_tree(source, images)
    for path in (b"b", b"c", b"a"):
        found = trace(images, digest, [(path, 0)])
        assert [touch.path for touch in found.touches] == [path]
        target = open_image(images, digest).target
        assert match(found.touches, target).order == target.at(path, 0, 1)
        elsewhere = [touch._replace(path=b"nowhere/" + path) for touch in found.touches]
        assert match(elsewhere, target).order == target.at(b"a", 0, 1)


def test_traces_fit_images_with_extents_of_another_size(source: Path, images: Images, digest: str) -> None:
    """Version 0.1.0 built images with chunks of 64 KiB, and traces outlive the program that recorded them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "CHUNK_BITS", 4)
        patch.setattr(erofs, "CHUNK", 64 << 10)
        patch.setattr(content, "_PER_CHUNK", 16)
        older = build_tree(source, images, tag="older")
    assert images.manifest(older).devices == images.manifest(digest).devices  # the same blocks, stored once
    reads = [(b"bin/python", 3 << 16), (b"lib/p01/_native.so", 0)]
    before = trace(images, older, reads)
    assert [touch.length for touch in before.touches] == [64 << 10] * 2
    target = open_image(images, digest).target
    found = match(before.touches, target)
    assert (found.by_path, found.missing) == (2, 0)
    around = [(b"bin/python", 2 << 16), (b"lib/p01/_native.so", 0)]
    assert found.order == [place for path, offset in around for place in target.at(path, offset, 128 << 10)]
    assert len(found.order) == 16
    after = trace(images, digest, [(path, offset + (16 << 10)) for path, offset in reads])
    assert [touch.length for touch in after.touches] == [16 << 10] * 2
    target = open_image(images, older).target
    assert match(after.touches, target).order == [
        place for path, offset in around for place in target.at(path, offset, 128 << 10)
    ]
    assert len(match(after.touches, target).order) == 4
    assert match(before.touches, target).by_digest == len(match(before.touches, target).order) == 2


def test_what_says_nothing_about_the_image_is_left_out(source: Path, images: Images, digest: str) -> None:
    """Traces of nothing, or that are not complete; no name, a folder, a way up, a hole, and what is past the end."""
    opened, reads = open_image(images, digest), imports(source, 1)
    found = [trace(images, digest, given) for given in (reads, [])]
    found.append(trace(images, digest, reads, complete=False, reason="warm"))
    plan, merged = plan_for(opened, "default", found)
    assert (plan.image, plan.traces, merged.left_out) == (digest, 1, 2)
    for path in (b"", b"lib", b"lib/", b"bin/python/x", b"lib/../bin/python"):
        assert opened.target.at(path, 0, 1) == []
    for path, offset in ((b"bin/python", 700_001), (b"lib/sparse.bin", 1 << 20)):
        assert opened.target.at(path, offset, 1) == []


# -- plans ------------------------------------------------------------------------------------------------------------


def test_runs_are_whole_blocks_in_order_and_none_twice() -> None:
    def extent(block: int, length: int = 65536, device: int = 1) -> FileExtent:
        return FileExtent(b"x", 0, length, block, address(device, block))

    assert runs([]) == []
    assert runs([extent(0), extent(16), extent(32), extent(160), extent(0)]) == [PlanRun(1, 0, 2), PlanRun(1, 5, 1)]
    assert runs([extent(20, device=2)]) == [PlanRun(2, 0, 2)]
    assert runs([extent(64), extent(40, 1), extent(31, 4097)]) == [PlanRun(1, 2, 1), PlanRun(1, 1, 1), PlanRun(1, 0, 1)]


# -- comparing and judging --------------------------------------------------------------------------------------------


def test_traces_differ_in_what_they_touched(source: Path, images: Images, digest: str, tmp_path: Path) -> None:
    first = trace(images, digest, imports(source, 1))
    same = diff(first, first)
    assert not same.only_first
    assert not same.only_second
    assert {pair.how for pair in same.pairs} == {"same"}
    assert same.in_order == 1.0
    rebuilt = make_tree(tmp_path / "rebuilt", stamp=1)
    (rebuilt / "bin/python").rename(rebuilt / "bin/python9")
    other = build_tree(rebuilt, images, tag="renamed")
    reads = [(path.replace(b"bin/python", b"bin/python9"), at) for path, at in imports(source, 1)]
    second = trace(images, other, [*reads[20:], *reads[:10]])
    found = diff(first, second)
    assert {touch.path for touch in found.only_first} <= {path for path, _ in imports(source, 1)[10:20]}
    assert not found.only_second
    assert {pair.first.path for pair in found.pairs if pair.how == "moved"} == {b"bin/python"}
    assert all(pair.first.path.endswith(b".pyc") for pair in found.pairs if pair.how == "changed")
    assert 0.4 < found.in_order < 1
    told = found.to_json()
    assert told["same"] + told["changed"]["extents"] + len(told["moved"]) == len(found.pairs)


def test_a_plan_is_judged_by_bytes() -> None:
    judged = score({"a": {1, 2, 3}, "b": {7}}, {"a": {2, 3, 4, 5}}, lambda _device, block: 0 if block == 5 else block)
    assert judged == {
        "planned_blocks": 4, "planned_bytes": 13, "touched_blocks": 3, "touched_bytes": 9,
        "both_blocks": 2, "both_bytes": 5, "precision": 0.3846, "recall": 0.5556,
    }  # fmt: skip
    assert score({}, {})["recall"] == 1.0
    assert score({1: {1}}, {})["precision"] == 0.0
