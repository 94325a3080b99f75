"""Documents that are not what their format says: refused, or read as something else, and never any other error."""

from __future__ import annotations

import itertools
import json
import os
import random
import stat
import struct
from collections.abc import Callable
from typing import Any

import pytest

from imagefs.errors import FormatError
from imagefs.format.documents import DeviceEntry, Manifest
from imagefs.format.erofs import ErofsImage
from imagefs.format.erofs.read import files
from imagefs.format.erofs.records import BLOCK, SUPERBLOCK_AT, crc32c
from imagefs.format.index import NOWHERE, Index
from imagefs.format.inodes import ExtentTable
from imagefs.format.trace import Plan, Trace
from imagefs.housekeeping.fsck import check_tree
from tests.unit.imagefs.format.test_golden import golden

SEEDS = int(os.environ.get("IMAGEFS_FUZZ_ROUNDS", "400"))

JSON: dict[str, Callable[[bytes], object]] = {
    "manifest.json": Manifest.from_json,
    "trace.json": Trace.from_json,
    "plan.json": Plan.from_json,
}


def patched(name: str, form: str, at: int, *values: int | bytes) -> bytes:
    data = bytearray(golden(name))
    struct.pack_into(form, data, at if at >= 0 else len(data) + at, *values)
    return bytes(data)


# -- the block index: header 32 bytes, 2 packs of 40, 6 records of 48, 5 numbers of 4 ---------------------------------

RECORDS = 32 + 2 * 40
ORDER = RECORDS + 6 * 48

WRONG_INDEXES = {
    "magic": patched("index", "<8s", 0, b"BSINDEX2"),
    "block-size": patched("index", "<I", 8, 65536),
    "reserved": patched("index", "<I", 20, 1),
    "bytes-cut-a-block": patched("index", "<Q", 24, 5 * 131072 + 69_999),
    "bytes-huge": patched("index", "<Q", 24, (1 << 64) - 1),
    "pack-unknown": patched("index", "<I", RECORDS + 32, 2),
    "stored-nothing": patched("index", "<I", RECORDS + 40, 0),
    "number-too-large": patched("index", "<I", ORDER, 6),
    "number-more": golden("index") + golden("index")[-4:],
}


@pytest.mark.parametrize("name", WRONG_INDEXES)
def test_wrong_indexes(name: str) -> None:
    with pytest.raises(FormatError):
        Index(WRONG_INDEXES[name])


def test_any_byte_of_an_index() -> None:
    for data in _flips(golden("index")):
        try:
            index = Index(data)
        except FormatError:
            continue
        for number in range(index.blocks):
            place = index.place(number)
            assert place.stored <= place.length <= 131072
            assert place.pack == NOWHERE or place.offset + place.stored <= index.packs[place.pack].length
            assert (index.find(place.digest) is None) == (place.pack == NOWHERE)


# -- the extents table ------------------------------------------------------------------------------------------------


def test_any_byte_of_a_table() -> None:
    with pytest.raises(FormatError):
        ExtentTable(patched("extents", "<8s", 0, b"BSEXTNT2"))
    for data in _flips(golden("extents")):
        try:
            table = ExtentTable(data)
            for number in range(len(table)):
                list(table.find(table[number][0]))
                table.digest_at(table[number][1])
        except FormatError:
            pass


# -- documents in JSON ------------------------------------------------------------------------------------------------

NO_DOCUMENTS = (b"", b"{", b"[]", b"null", b"7", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"bootseer":NaN}', b"9" * 5000)
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    1.5,
    float("inf"),
    1 << 80,
    "",
    "x",
    "\ud800",
    "x" * 5000,
    [],
    [[]],
    [None],
    {},
    {"x": 1},
)


@pytest.mark.parametrize("name", JSON)
def test_what_is_no_document(name: str) -> None:
    for data in (*NO_DOCUMENTS, *(golden(other) for other in JSON if other != name), golden("index")):
        with pytest.raises(FormatError):
            JSON[name](data)


@pytest.mark.parametrize("name", JSON)
def test_other_versions(name: str) -> None:
    versions: tuple[Any, ...] = (0, 2 if name != "trace.json" else 3, "1", None, [], 1.5)
    for version in versions:
        with pytest.raises(FormatError, match="version"):
            JSON[name](json.dumps({**json.loads(golden(name)), "version": version}).encode())


@pytest.mark.parametrize("name", JSON)
def test_every_value_is_checked(name: str) -> None:
    """Each key taken away is an error; each value that becomes another is one, or was one of several that may be."""
    for path in _paths(json.loads(golden(name))):
        document = json.loads(golden(name))
        inside = document
        for key in path[:-1]:
            inside = inside[key]
        if isinstance(inside, dict) and path[0] != "config":
            del inside[path[-1]]
            with pytest.raises(FormatError):
                JSON[name](json.dumps(document).encode())
        for odd in ODD:
            inside[path[-1]] = odd
            try:
                read = JSON[name](json.dumps(document).encode())
            except FormatError as error:
                assert str(error).isprintable()  # noqa: PT017
                continue
            again = read.to_json()  # type: ignore[attr-defined]
            assert JSON[name](again) == read


def _paths(document: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        found.append((key,))
        if isinstance(value, dict | list):
            found += [(key, *below) for below in _paths(value)]
    return found


@pytest.mark.parametrize(("tag", "index"), [("c" * 64, "0" * 64), ("cold", "../../etc/passwd"), ("cold", "A" * 64)])
def test_wrong_devices_of_a_manifest(tag: str, index: str) -> None:
    document = {**json.loads(golden("manifest.json")), "devices": [{"tag": tag, "size": 1, "index": index}]}
    with pytest.raises(FormatError):
        Manifest.from_json(json.dumps(document).encode())


# -- EROFS ------------------------------------------------------------------------------------------------------------


def sealed(data: bytes | bytearray) -> bytes:
    """With the right checksum, so that what is behind it is looked at."""
    out = bytearray(data)
    out[SUPERBLOCK_AT + 4 : SUPERBLOCK_AT + 8] = bytes(4)
    out[SUPERBLOCK_AT + 4 : SUPERBLOCK_AT + 8] = crc32c(out[SUPERBLOCK_AT:BLOCK]).to_bytes(4, "little")
    return bytes(out)


def super_with(at: int, form: str, value: int) -> bytes:
    return sealed(patched("metadata.erofs", form, SUPERBLOCK_AT + at, value))


WRONG_IMAGES = {
    "empty": b"",
    "one-block-short": golden("metadata.erofs")[:-4096],
    "one-block-more": golden("metadata.erofs") + bytes(4096),
    "half-a-superblock": golden("metadata.erofs")[:1100],
    "checksum": patched("metadata.erofs", "<I", SUPERBLOCK_AT + 4, 0),
    "magic": super_with(0, "<I", 0xE0F5E1E3),
    "block-size": super_with(12, "<B", 9),
    "unknown-feature": super_with(80, "<I", 0x80000000),
    "compression": super_with(80, "<I", 0x1D),
    "blocks": super_with(36, "<I", 1 << 31),
    "metadata-elsewhere": super_with(40, "<I", 1),
    "root-nowhere": super_with(14, "<H", 0xFFFF),
    "root-in-the-superblock": super_with(14, "<H", 32),
    "devices-beyond-end": super_with(86, "<H", 0xFFFF),
    "device-table-beyond-end": super_with(88, "<H", 0xFFFF),
}


@pytest.mark.parametrize("name", WRONG_IMAGES)
def test_wrong_images(name: str) -> None:
    with pytest.raises(FormatError):
        ErofsImage(WRONG_IMAGES[name])


def test_an_image_whose_root_is_a_file() -> None:
    image = ErofsImage(golden("metadata.erofs"))
    number = image.lookup(image.stat(image.root), b"small")
    assert number is not None
    with pytest.raises(FormatError, match="root"):
        ErofsImage(super_with(14, "<H", number))


def test_chunks_outside_the_devices() -> None:
    whole = golden("metadata.erofs")
    image = ErofsImage(whole)
    number = image.lookup(image.stat(image.root), b"chunk")
    assert number is not None
    table = image.chunk_table(image.stat(number))
    assert table is not None
    for entry in ((0, 0, 3), (0, 3, 0), (1, 1, 3), (0, 1, 1 << 20), (0, 2, 256)):
        data = bytearray(whole)
        struct.pack_into("<HHI", data, table[1], *entry)
        damaged = ErofsImage(sealed(data))
        inode = damaged.stat(number)
        with pytest.raises(FormatError):
            list((damaged.chunks(inode) or (0, iter(())))[1])
        with pytest.raises(FormatError):
            damaged.chunk(inode, 0)


def test_a_directory_that_is_inside_itself_is_walked_once() -> None:
    whole = golden("metadata.erofs")
    image = ErofsImage(whole)
    more = image.lookup(image.stat(image.root), b"more")
    assert more is not None
    below = image.lookup(image.stat(more), b"empty")
    assert below is not None
    assert whole.count(struct.pack("<Q", below)) >= 2
    damaged = ErofsImage(sealed(whole.replace(struct.pack("<Q", below), struct.pack("<Q", more))))
    with pytest.raises(FormatError, match="two names"):
        list(files(damaged))
    with pytest.raises(FormatError, match="two names"):
        walk(damaged, 10_000)


def test_bytes_of_an_image() -> None:
    """Walks all of every damaged image, as the tree plane, the check of trees and those who make plans do."""
    noticed = 0
    for name, seeds in (("metadata.erofs", SEEDS), ("hot.erofs", SEEDS // 4)):
        whole = golden(name)
        used = [at for at in range(1024, len(whole)) if any(whole[max(1024, at - 16) : at + 16])]
        devices = [DeviceEntry(one.tag.decode(), one.blocks * BLOCK, "") for one in ErofsImage(whole).devices]
        for seed in range(seeds):
            chance = random.Random(seed)
            data = bytearray(whole)
            for _ in range(chance.choice((1, 1, 1, 2, 8))):
                data[chance.choice(used)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            try:
                noticed += bool(list(check_tree(sealed(data), devices)))
                image = ErofsImage(sealed(data))
                walk(image, 10_000)
                list(itertools.islice(files(image), 10_000))
            except FormatError as error:
                assert str(error).isprintable(), seed  # noqa: PT017
            except Exception as error:
                raise AssertionError(f"{name}, seed {seed}") from error
    assert noticed > SEEDS // 4


def walk(image: ErofsImage, most: int) -> None:
    """Everything that can be asked of an image, every inode once; at most that many names."""
    seen: set[int] = set()
    stack = [image.root]
    names = 0
    while stack:
        number = stack.pop()
        inode = image.stat(number)
        image.xattrs(inode)
        if inode.is_directory:
            if number in seen:
                raise FormatError("a directory of two names")
            for entry in image.entries(inode):
                names += 1
                assert names < most
                assert 0 < len(entry.name) <= 255
                assert b"/" not in entry.name
                image.lookup(inode, entry.name)
                if entry.name not in (b".", b"..") and (entry.kind == stat.S_IFDIR or entry.number not in seen):
                    stack.append(entry.number)
        elif (chunks := image.chunks(inode)) is not None:
            for address in itertools.islice(chunks[1], most):
                assert address == 0xFFFFFFFF or 0 < address >> 32 <= len(image.devices)
        elif inode.is_file or stat.S_ISLNK(inode.mode):
            assert len(image.content(inode)) == inode.size
        seen.add(number)


def _flips(data: bytes) -> list[bytes]:
    """Every byte once with one bit changed, once with all; and the document cut at every length."""
    flipped = []
    for at in range(len(data)):
        for mask in (1 << at % 8, 0xFF):
            changed = bytearray(data)
            changed[at] ^= mask
            flipped.append(bytes(changed))
        flipped.append(data[:at])
    return flipped
