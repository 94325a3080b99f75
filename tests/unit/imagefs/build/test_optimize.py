"""The hot device: the same tree from other places, the same bytes each time, and a plan that reads it in order."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest.mock import Mock

import pytest

from imagefs.build import optimize as optimizer
from imagefs.build.content import scan
from imagefs.build.optimize import build_optimized, optimize
from imagefs.errors import BuildError, DamagedObject, FormatError
from imagefs.format.erofs import BLOCK, DeviceSlot
from imagefs.format.inodes import COLD, HOT
from imagefs.progress import Progress
from imagefs.repository.images import Images
from imagefs.repository.traces import Traces
from imagefs.trace.references import open_image
from tests.support.images.starts import Stored, build_tree, imports, trace
from tests.support.images.stores import files, images_in


@pytest.fixture
def digest(source: Path, images: Images) -> str:
    return build_tree(source, images)


def test_the_oci_manifest_leads_to_the_image_with_the_hot_device(source: Path, images: Images) -> None:
    oci = f"sha256:{'5a' * 32}"
    (first, nothing) = build_optimized(*scan(str(source)), images, [], source=oci)
    assert nothing is None
    assert images.by_source(oci) == first.digest
    report = optimize(images, first.digest, [trace(images, first.digest, imports(source, 1))])
    assert images.by_source(oci) == report.digest != first.digest


def test_the_tree_is_the_same_and_comes_from_two_devices(source: Path, images: Images, digest: str) -> None:
    found = trace(images, digest, [*imports(source, 1), (b"lib/sparse.bin", 5 << 20), (b"lib/zeros.bin", 65536)])
    before = Stored(images, digest)
    report = optimize(images, digest, [found], tag="app")
    after = Stored(images, report.digest)
    assert images.resolve("app") == report.digest != digest
    assert (report.base, report.traces, report.extents) == (digest, 1, len(found.touches))
    assert (report.by_digest, report.by_path, report.missing) == (len(found.touches), 0, 0)
    assert after.tree() == before.tree()  # numbers of inodes too
    assert after.manifest.devices[0] == before.manifest.devices[0]
    assert after.manifest.base == digest
    assert (after.manifest.extents, after.manifest.config) == (before.manifest.extents, before.manifest.config)
    assert after.devices[0] == before.devices[0]
    assert (
        report.hot_bytes == len(after.devices[1]) == sum(-(-touch.length // BLOCK) * BLOCK for touch in found.touches)
    )
    extents = {extent[:2]: extent for extent in open_image(images, report.digest).target.extents()}
    at = 0
    for touch in found.touches:  # one behind the other, as they were touched
        extent = extents.pop((touch.path, touch.offset))
        assert (extent.place >> 32, extent.place & 0xFFFFFFFF) == (HOT, at)
        at += extent.blocks
    assert {extent.place >> 32 for extent in extents.values()} == {COLD}
    # Nothing else of the metadata is another: behind the superblock there are eight other bytes for each chunk.
    assert len(before.metadata) == len(after.metadata)
    different = [at for at in range(1280, len(before.metadata)) if before.metadata[at] != after.metadata[at]]
    assert len({at // 8 for at in different if at >= 1408}) == len(found.touches)
    assert after.image.devices == [*before.image.devices, DeviceSlot(b"hot", report.hot_bytes // BLOCK)]


def test_the_same_traces_make_the_same_bytes(
    source: Path, images: Images, digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in many batches, as with an image of many GiB, with blocks that several need and ranges that are apart."""
    traces = [trace(images, digest, imports(source, seed), node=str(seed)) for seed in range(3)]
    first = optimize(images, digest, traces)
    for name, value in (("_BATCH", 3), ("_RANGE", 200_000), ("_GAP", 0)):
        monkeypatch.setattr(optimizer, name, value)
    again = optimize(images, digest, traces[::-1])
    assert again.digest == first.digest
    assert again.new_bytes == 0 < first.new_bytes
    elsewhere = images_in(tmp_path / "elsewhere")
    assert build_tree(source, elsewhere) == digest
    assert optimize(elsewhere, digest, traces) == first


def test_an_optimised_image_is_optimised_from_what_it_was_made_of(source: Path, images: Images, digest: str) -> None:
    first = optimize(images, digest, [trace(images, digest, imports(source, 1, packages=(1,)))])
    # The second start was recorded on the optimised image, so part of its touches were in the hot device.
    second = trace(images, first.digest, imports(source, 2))
    assert second.image == digest
    assert second.touches == trace(images, digest, imports(source, 2)).touches
    from_hot, from_base = optimize(images, first.digest, [second]), optimize(images, digest, [second])
    assert from_hot == dataclasses.replace(from_base, new_bytes=from_hot.new_bytes)
    assert len(images.manifest(from_hot.digest).devices) == 2
    assert Stored(images, from_hot.digest).tree() == Stored(images, digest).tree()


def test_traces_that_say_nothing_about_the_image_change_nothing(source: Path, images: Images, digest: str) -> None:
    empty = trace(images, digest, [])
    other = trace(images, digest, imports(source, 1))
    elsewhere = [touch._replace(path=b"not/here", digest=bytes(16)) for touch in other.touches]
    foreign = trace(images, digest, [], touches=elsewhere)
    partial = trace(images, digest, imports(source, 1), complete=False, reason="warm")
    for useless in ([], [empty], [partial], [foreign]):
        with pytest.raises(BuildError, match="no trace touched anything"):
            optimize(images, digest, useless, tag="app")
    assert images.resolve("app") == digest
    built, report = build_optimized(*scan(str(source)), images, [foreign], tag="new")
    assert report is None
    assert images.resolve("new") == built.digest == digest


def test_an_interrupted_run_publishes_nothing(source: Path, images: Images, digest: str) -> None:
    found = trace(images, digest, imports(source, 1))
    progress = Mock(Progress, advance=Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        optimize(images, digest, [found], tag="app", progress=progress)
    assert list(images.images()) == [digest]
    assert images.resolve("app") == digest
    assert Traces(images.repository).plans() == []


def test_damaged_blocks_are_not_copied(source: Path, images: Images, digest: str, tmp_path: Path) -> None:
    found = trace(images, digest, imports(source, 1))
    for pack in files(tmp_path / "store", "packs"):
        data = bytearray(pack.read_bytes())
        for at in range(0, len(data), 9000):
            data[at] ^= 1
        pack.write_bytes(data)
    with pytest.raises(DamagedObject, match="a block of pack"):
        optimize(images, digest, [found], tag="app")
    assert list(images.images()) == [digest]


def test_an_image_without_a_table_is_refused(source: Path, images: Images, digest: str) -> None:
    manifest = images.manifest(digest)
    bare = images.put(type(manifest)(manifest.source, manifest.config, manifest.metadata, manifest.devices))
    with pytest.raises(FormatError, match="no extents table"):
        optimize(images, bare, [])
    nested = type(manifest)(manifest.source, {}, manifest.metadata, manifest.devices, digest, manifest.extents)
    twice = type(manifest)(manifest.source, {}, manifest.metadata, manifest.devices, images.put(nested), "")
    with pytest.raises(FormatError, match="optimised itself"):
        open_image(images, images.put(twice))


def test_a_folder_with_metadata_is_used_when_it_holds_what_it_says(images: Images, digest: str, tmp_path: Path) -> None:
    entry = images.manifest(digest).metadata
    data = images.metadata(entry)
    path = tmp_path / f"{entry.digest}.erofs"
    path.write_bytes(data[:-1])
    assert open_image(images, digest, tmp_path).target.image.data == data
    path.write_bytes(data)
    for found in files(tmp_path / "store", "metadata"):
        found.unlink()
    assert open_image(images, digest, tmp_path).target.image.data == data
