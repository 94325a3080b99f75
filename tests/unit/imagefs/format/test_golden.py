"""Version 1 of every format: the committed files are what is written today, and are read as they were then."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import lz4.block
import pytest
import xxhash

from imagefs.blocks import cachefile
from imagefs.blocks.block_table import present_rows
from imagefs.blocks.cachefile import LocalDevice
from imagefs.format.documents import Manifest
from imagefs.format.erofs import ErofsImage
from imagefs.format.index import NOWHERE, Index, Pack
from imagefs.format.inodes import ExtentTable, address, digest_of
from imagefs.format.trace import Plan, Trace
from tests.golden.make import (
    BLOCKS,
    DOCUMENTS,
    FOLDER,
    LOCAL,
    LOCAL_BLOCKS,
    LOCAL_SIZE,
    MANIFEST,
    PACKS,
    PLACES,
    PLAN,
    STAMP,
    TRACE,
)


def golden(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_same_bytes_are_written(name: str) -> None:
    assert DOCUMENTS[name]() == golden(name)


def test_index() -> None:
    index = Index(golden("index"))
    assert index.packs == PACKS
    assert [index.place(number) for number in range(index.blocks)] == PLACES
    for place in PLACES:
        assert place.pack == NOWHERE or index.find(place.digest) == place
    assert index.find(bytes(32)) is None


def test_pack() -> None:
    index, pack = Index(golden("pack.index")), golden("pack")
    assert index.packs == [Pack(hashlib.sha256(pack).digest(), len(pack))]
    found = []
    for place in map(index.place, range(index.blocks)):
        data = pack[place.offset : place.offset + place.stored]
        found.append(data if place.stored == place.length else lz4.block.decompress(data, place.length))
        assert hashlib.sha256(found[-1]).digest() == place.digest
    assert found == BLOCKS
    assert index.place(0).stored == index.place(0).length
    assert index.place(1).stored < index.place(1).length


def test_files_have_the_places_that_they_had_when_chunks_were_longer() -> None:
    """So blocks that an older version stored are not stored again."""
    now, then = (
        {words[0]: words[1:] for words in map(str.split, golden(name).decode().splitlines()) if len(words) == 3}
        for name in ("layout", "layout-64k")
    )
    assert len(then) == 37
    assert {name: (size, places.split(",")[::4]) for name, (size, places) in now.items()} == {
        name: (size, places.split(",")) for name, (size, places) in then.items()
    }


@pytest.mark.parametrize("name", ["hot.erofs", "hot-64k.erofs"])
def test_hot(name: str) -> None:
    image = ErofsImage(golden(name))
    number = image.lookup(image.stat(image.root), b"f")
    assert number is not None
    chunks = image.chunks(image.stat(number))
    assert chunks is not None
    assert list(chunks[1]) == [address(1, 0), address(2, 0)]


@pytest.mark.parametrize("name", ["metadata.erofs", "hot.erofs", "metadata-64k.erofs", "hot-64k.erofs"])
def test_fsck_accepts_the_images(name: str, tmp_path: Path) -> None:
    devices = []
    for device in ErofsImage(golden(name)).devices:
        path = tmp_path / device.tag.decode()
        with path.open("wb") as out:
            out.truncate(device.blocks * 4096)
        devices.append(f"--device={path}")
    done = subprocess.run(["fsck.erofs", *devices, str(FOLDER / name)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_extents() -> None:
    table = ExtentTable(golden("extents"))
    assert list(table.find(digest_of(b"one"))) == [3, 7]
    assert table.digest_at(0) == digest_of(b"two")
    assert table.digest_at((1 << 32) - 2) == digest_of(b"three")


def test_documents() -> None:
    assert Manifest.from_json(golden("manifest.json")) == MANIFEST
    assert Trace.from_json(golden("trace.json")) == TRACE
    assert Plan.from_json(golden("plan.json")) == PLAN


def test_what_is_here(tmp_path: Path) -> None:
    """A table of that time is taken up by a device of today."""
    (tmp_path / f"{LOCAL}.table").write_bytes(golden("local.table"))
    with (tmp_path / f"{LOCAL}.data").open("wb") as file:
        file.truncate(LOCAL_SIZE)
    device = LocalDevice.found(tmp_path, LOCAL)
    assert device is not None
    try:
        seconds_of_2020 = 1577836800
        assert list(present_rows(device.table.rows())) == [
            (block, min(when - seconds_of_2020, (1 << 32) - 1)) for block, (_, when) in LOCAL_BLOCKS.items()
        ]
        for block in range(5):
            here = LOCAL_BLOCKS.get(block)
            assert device.table.checksum(block) == (xxhash.xxh3_64_intdigest(here[0]) if here else None)
        assert (device.table.present, device.marked) == (2, False)
    finally:
        device.close()


@pytest.mark.parametrize("changed", [None, 0, 8, 12, 16, 47, 48, 56, 64, 71])
def test_what_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: int | None) -> None:
    """A mark of that time holds for the file that it names; one that says anything else is taken away."""
    mark = bytearray(golden("local.complete"))
    if changed is not None:
        mark[changed] ^= 1
    (tmp_path / f"{LOCAL}.complete").write_bytes(mark)
    monkeypatch.setattr(cachefile, "_stamp", lambda _: STAMP)
    device = LocalDevice(tmp_path, LOCAL, 5, LOCAL_SIZE)
    device.close()
    assert device.marked == (changed is None)
    assert (tmp_path / f"{LOCAL}.complete").exists() == (changed is None)
