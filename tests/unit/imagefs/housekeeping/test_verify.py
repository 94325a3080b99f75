"""`verify`: what is whole is well, and a flipped byte in any kind of object is found, named and mended."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from imagefs.format.index import Index
from imagefs.format.trace import Trace
from imagefs.housekeeping.verify import VerifyResult, remove_damaged, verify
from imagefs.repository.images import KINDS, Images
from imagefs.repository.traces import Traces
from tests.support.images.faults import flip
from tests.support.images.stores import build_tree, files, write_tree


def said(result: VerifyResult) -> dict[str, str]:
    return {damage.path.partition("/")[0]: damage.what for damage in result.damage}


@pytest.mark.parametrize("kind", [*KINDS, "images"])
def test_a_flipped_byte_is_found_and_mended(images: Images, tmp_path: Path, kind: str) -> None:
    source = write_tree(tmp_path / "source", a=1, b=2)
    report = build_tree(source, images, "app")
    (damaged,) = files(tmp_path / "store", kind)
    flip(damaged)
    result = verify(images)
    assert {damage.path for damage in result.damage} == {str(damaged.relative_to(tmp_path / "store"))}
    assert all(damage.images == (report.digest,) for damage in result.damage)
    assert "other bytes" in result.damage[-1].what
    removed = remove_damaged(images, result.damage)
    assert removed == ([] if kind == "images" else [result.damage[0].path])
    assert build_tree(source, images, "app").digest == report.digest
    assert verify(images).damage == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_object_is_found(images: Images, tmp_path: Path, kind: str) -> None:
    report = build_tree(write_tree(tmp_path / "source", a=1), images, "app")
    for path in files(tmp_path / "store", kind):
        path.unlink()
    assert said(verify(images)) == said(verify(images, report.digest)) == {kind: "is missing"}


def test_a_pack_that_was_cut_off(images: Images, tmp_path: Path) -> None:
    build_tree(write_tree(tmp_path / "source", a=1), images, "app")
    (pack,) = files(tmp_path / "store", "packs")
    pack.write_bytes(pack.read_bytes()[:200_000])
    assert [damage.what for damage in verify(images).damage] == [
        "2 of its 3 blocks are damaged",
        "has 200000 bytes instead of 300000",
        "holds other bytes than its name says",
    ]


def test_one_image_is_not_blamed_for_another(images: Images, tmp_path: Path) -> None:
    one = build_tree(write_tree(tmp_path / "one", a=1), images, "one")
    (pack,) = files(tmp_path / "store", "packs")
    two = build_tree(write_tree(tmp_path / "two", b=2), images, "two")
    both = build_tree(write_tree(tmp_path / "both", a=1, b=2), images, "both")
    flip(pack)
    assert verify(images, two.digest).damage == []
    assert verify(images).damage[0].images == tuple(sorted((one.digest, both.digest)))


def test_what_no_image_names_is_read_too(images: Images, tmp_path: Path) -> None:
    report = build_tree(write_tree(tmp_path / "source", a=1), images, "app")
    images.remove(report.digest)
    for path in files(tmp_path / "store", "packs") + files(tmp_path / "store", "metadata"):
        flip(path)
    (tmp_path / "store/packs/.half.tmp").write_bytes(b"left by a writer that died")
    assert said(verify(images)) == {
        "packs": "holds other bytes than its name says",
        "metadata": "holds other bytes than its name says",
        "tags": f"names the image {report.digest}, which is not there",
    }


def test_tags_and_traces(images: Images, tmp_path: Path) -> None:
    report = build_tree(write_tree(tmp_path / "source", a=1), images, "app")
    traces = Traces(images.repository)
    traces.put(Trace(report.digest, "default", "node", 1.0, 2.0, "ready", True, "", []))
    assert verify(images).damage == []
    (trace,) = files(tmp_path / "store", "traces")
    flip(trace)
    (tmp_path / "store/tags/app").write_text("nonsense")
    found = said(verify(images))
    assert found.keys() == {"traces", "tags"}
    assert "names no image" in found["tags"]


def test_an_index_that_does_not_find_what_it_has(images: Images, tmp_path: Path) -> None:
    report = build_tree(write_tree(tmp_path / "source", a=1), images)
    manifest = images.manifest(report.digest)
    (cold,) = manifest.devices
    data = images.object("indexes", cold.index)
    count = Index(data).stored
    order = struct.unpack(f"<{count}I", data[-4 * count :])
    name = images.put_object("indexes", data[: -4 * count] + struct.pack(f"<{count}I", *reversed(order)))
    wrong = images.put(replace(manifest, devices=[replace(cold, index=name)]))
    (damage,) = verify(images, wrong).damage
    assert "does not list its blocks in order" in damage.what
    assert remove_damaged(images, [damage]) == []  # its bytes are those that were stored


def test_a_device_of_another_size_than_its_index(images: Images, tmp_path: Path) -> None:
    report = build_tree(write_tree(tmp_path / "source", a=1), images)
    manifest = images.manifest(report.digest)
    (cold,) = manifest.devices
    wrong = images.put(replace(manifest, devices=[replace(cold, size=cold.size + 4096)]))
    assert said(verify(images, wrong)).keys() == {"images", "metadata"}
