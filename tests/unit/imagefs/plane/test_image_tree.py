"""The tree plane without a kernel: it shows whatever a model says of any tree; what its worker refuses."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from imagefs.errors import DocumentUnreadable, FormatError
from imagefs.format.erofs import BLOCK, CHUNK, DeviceSlot, ErofsImage, write
from imagefs.format.erofs.records import DIRENT, SLOT
from imagefs.format.erofs.write import write_super
from imagefs.format.inodes import HOLE, Inode, address, walk
from imagefs.plane.worker import ImageTree, TreeBackend
from stripefs.errors import (
    ConfigError,
    IsADirectory,
    NotADirectory,
    NotFound,
    StaleVersion,
    StoreError,
    Unsupported,
)
from stripefs.fuse.protocol import ROOT, ServedAttributes
from stripefs.fuse.worker import Start
from stripefs.settings import MountSettings
from tests.golden import make as golden
from tests.support.examples import examples

DEVICES = (DeviceSlot(b"cold", 2**32 - 1), DeviceSlot(b"hot", 2**32 - 1))

FILE, FOLDER = stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755


def content_of(device: int, offset: int, length: int) -> bytes:
    """The content of devices: no two blocks are alike."""
    first, last = offset // BLOCK, -(-(offset + length) // BLOCK)
    blocks = (hashlib.blake2b(b"%d %d" % (device, block)).digest() * (BLOCK // 64) for block in range(first, last))
    return b"".join(blocks)[offset - first * BLOCK :][:length]


@dataclass
class FakeDevices:
    """Devices with `content_of`, and what was read of them."""

    reads: list[tuple[int, int, int]] = field(default_factory=list)

    async def read(self, device: int, offset: int, length: int) -> bytes:
        self.reads.append((device, offset, length))
        await trio.lowlevel.checkpoint()
        return content_of(device, offset, length)


async def listed(tree: ImageTree, node: int, room: int = 7) -> dict[bytes, ServedAttributes]:
    """A directory, `room` entries at a time, each batch from the cookie that the last one ended with."""
    handle = await tree.opendir(node)
    found: dict[bytes, ServedAttributes] = {}
    cookie = 0
    while True:
        batch: list[tuple[bytes, ServedAttributes, int]] = []

        def show(
            name: bytes, attributes: ServedAttributes, behind: int, batch: list[Any] = batch, room: int = room
        ) -> bool:
            if len(batch) == room:
                return False
            batch.append((name, attributes, behind))
            return True

        await tree.readdir(handle, cookie, show)
        if not batch:
            await tree.releasedir(handle)
            return found
        for name, attributes, behind in batch:
            assert name not in found
            assert behind > cookie
            cookie = behind
            found[name] = attributes


def bytes_of(root: Inode, devices: tuple[DeviceSlot, ...] = DEVICES) -> bytes:
    out = io.BytesIO()
    write(root, devices, out)
    return out.getvalue()


def image_of(root: Inode, devices: tuple[DeviceSlot, ...] = DEVICES) -> ErofsImage:
    return ErofsImage(bytes_of(root, devices))


def folder(**children: Inode) -> Inode:
    return Inode(FOLDER, children={name.encode(): child for name, child in children.items()})


names = st.binary(min_size=1, max_size=255).filter(
    lambda name: name not in (b".", b"..") and not set(name) & {0, ord("/")}
)
_attribute_names = st.one_of(
    st.just(b"system.posix_acl_access"),
    st.builds(
        lambda prefix, name: prefix + name,
        st.sampled_from([b"user.", b"trusted.", b"security."]),
        st.binary(min_size=1, max_size=40).filter(lambda name: 0 not in name),
    ),
)
_facts = {
    "uid": st.integers(0, 2**32 - 2),
    "gid": st.integers(0, 2**32 - 2),
    "mtime": st.integers(-(2**40), 2**40),
    "mtime_ns": st.integers(0, 10**9 - 1),
    "xattrs": st.dictionaries(_attribute_names, st.binary(max_size=300), max_size=3).map(
        lambda found: tuple(sorted(found.items()))
    ),
}
_permissions = st.integers(0, 0o7777)


@st.composite
def _files(draw: Any) -> Inode:
    mode = stat.S_IFREG | draw(_permissions)
    facts = {name: draw(strategy) for name, strategy in _facts.items()}
    if draw(st.booleans()):
        data = draw(st.binary(max_size=5000))
        return Inode(mode, size=len(data), data=data, **facts)
    size = draw(st.integers(1, 10 * CHUNK))
    unit = CHUNK
    while unit > BLOCK and size <= unit // 2:
        unit //= 2
    places = st.one_of(st.just(HOLE), st.builds(address, st.integers(1, 2), st.integers(0, 2**32 - 2)))
    count = -(-size // unit)
    return Inode(mode, size=size, chunks=draw(st.lists(places, min_size=count, max_size=count)), **facts)


@st.composite
def _others(draw: Any) -> Inode:
    kind = draw(st.sampled_from([stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK]))
    facts = {name: draw(strategy) for name, strategy in _facts.items()}
    if kind == stat.S_IFLNK:
        return Inode(kind | 0o777, data=draw(st.binary(min_size=1, max_size=4095)), **facts)
    rdev = (
        (draw(st.integers(0, 4095)), draw(st.integers(0, 2**20 - 1)))
        if kind in (stat.S_IFCHR, stat.S_IFBLK)
        else (0, 0)
    )
    return Inode(kind | draw(_permissions), rdev=rdev, **facts)


@st.composite
def _directories(draw: Any, inside: Any) -> Inode:
    facts = {name: draw(strategy) for name, strategy in _facts.items()}
    return Inode(stat.S_IFDIR | draw(_permissions), children=draw(st.dictionaries(names, inside, max_size=6)), **facts)


@st.composite
def trees(draw: Any) -> Inode:
    """A directory with anything below it, hardlinks too."""
    leaves = st.one_of(_files(), _others())
    root: Inode = draw(_directories(st.recursive(leaves, lambda inside: _directories(inside), max_leaves=20)))
    files = [child for child in (root.children or {}).values() if child.children is None]
    assert root.children is not None
    for name in draw(st.lists(names, max_size=3)):
        if files and name not in root.children:
            root.children[name] = draw(st.sampled_from(files))
    return root


@given(trees(), st.data())
@examples(80)
def test_any_tree_is_what_a_model_says(root: Inode, data: st.DataObject) -> None:
    trio.run(explore, image_of(root), root, data)


@pytest.mark.parametrize(("name", "chunk"), [("metadata.erofs", CHUNK), ("metadata-64k.erofs", 64 << 10)])
@given(data=st.data())
@examples(10)
def test_trees_of_that_time_are_what_they_were(name: str, chunk: int, data: st.DataObject) -> None:
    image = ErofsImage((golden.FOLDER / name).read_bytes())
    assert image.devices == list(golden.DEVICES)
    trio.run(explore, image, golden.tree(chunk), data, chunk)


async def explore(image: ErofsImage, root: Inode, data: st.DataObject, chunk: int = CHUNK) -> None:
    """Look at everything; chunk: bytes of the longest ones."""
    nodes: dict[bytes, int] = {}
    tree = ImageTree(image, FakeDevices().read)
    links: dict[int, int] = {}
    for _, inode in walk(root):
        links[id(inode)] = links.get(id(inode), 0) + 1
    for path, inode in walk(root):
        above, _, name = path.rpartition(b"/")
        shown = await (tree.lookup(nodes[above], name) if path else tree.getattr(ROOT))
        nodes[path] = shown.id
        assert (shown.id == ROOT) == (path == b"")
        assert shown == await ImageTree(image, FakeDevices().read).getattr(shown.id)
        assert (shown.st_mode, shown.uid, shown.gid) == (inode.mode, inode.uid, inode.gid)
        assert shown.mtime_ns == shown.atime_ns == inode.mtime * 10**9 + inode.mtime_ns
        assert (os.major(shown.rdev), os.minor(shown.rdev)) == inode.rdev
        assert sorted(await tree.listxattr(shown.id)) == [key for key, _ in inode.xattrs]
        for key, value in inode.xattrs:
            assert await tree.getxattr(shown.id, key) == value
        assert await tree.getxattr(shown.id, b"user.is-not-there") is None
        if inode.children is not None:
            room = data.draw(st.integers(1, 9))
            inside = await listed(tree, shown.id, room)
            assert shown.links == 2 + sum(child.children is not None for child in inode.children.values())
            assert list(inside) == sorted([*inode.children, b".", b".."])
            assert [inside[name].id for name in (b".", b"..")] == [shown.id, nodes[path.rpartition(b"/")[0]]]
            absent = data.draw(names)
            if absent not in inode.children:
                with pytest.raises(NotFound):
                    await tree.lookup(shown.id, absent)
        else:
            assert shown.links == links[id(inode)]
            for refused in (tree.opendir(shown.id), tree.lookup(shown.id, b"x")):
                with pytest.raises(NotADirectory):
                    await refused
        if stat.S_ISLNK(inode.mode):
            assert await tree.readlink(shown.id) == inode.data
        else:
            with pytest.raises(Unsupported):
                await tree.readlink(shown.id)
        if not inode.is_file:
            with pytest.raises(IsADirectory if inode.children is not None else Unsupported):
                await tree.open(shown.id)
        if inode.is_file:
            assert shown.size == (inode.size if inode.data is None else len(inode.data))
            offset, size = data.draw(st.integers(0, shown.size + 5)), data.draw(st.integers(0, 6 * CHUNK))
            expected = _expected(inode, offset, min(size, shown.size - offset), chunk)
            handle = await tree.open(shown.id)
            if expected is None:
                with pytest.raises(FormatError, match="past the end of device"):
                    await tree.read(handle, offset, size)
            else:
                assert await tree.read(handle, offset, size) == expected


def _expected(inode: Inode, offset: int, length: int, unit: int = CHUNK) -> bytes | None:
    """The expected bytes of a read; None where it would read past the end of a device."""
    if length <= 0:
        return b""
    if inode.data is not None:
        return inode.data[offset : offset + length]
    while unit > BLOCK and inode.size <= unit // 2:
        unit //= 2
    out = b""
    for number in range(offset // unit, -(-(offset + length) // unit)):
        chunk = inode.chunks[number]
        skipped = max(0, offset - number * unit)
        taken = min(unit, offset + length - number * unit) - skipped
        if chunk == HOLE:
            out += bytes(taken)
            continue
        at = (chunk & HOLE) * BLOCK + skipped
        if at + taken > DEVICES[0].size:
            return None
        out += content_of(chunk >> 32, at, taken)
    return out


def file_of(*chunks: int, short: int = 0) -> Inode:
    return Inode(FILE, size=len(chunks) * CHUNK - short, chunks=chunks)


async def test_neighbours_are_read_at_once_and_holes_not_at_all() -> None:
    chunks = (
        address(1, 100),
        address(1, 100 + CHUNK // BLOCK),
        address(2, 132),
        HOLE,
        HOLE,
        address(1, 0),
        address(1, 32),
    )
    devices = FakeDevices()
    tree = ImageTree(image_of(folder(it=file_of(*chunks, short=5))), devices.read)
    node = (await tree.lookup(ROOT, b"it")).id
    data = await tree.read(node, 10, 1 << 20)
    assert data == _expected(file_of(*chunks, short=5), 10, 7 * CHUNK - 15)
    assert sorted(devices.reads) == [
        (1, 0, CHUNK),
        (1, 32 * BLOCK, CHUNK - 5),
        (1, 100 * BLOCK + 10, 2 * CHUNK - 10),
        (2, 132 * BLOCK, CHUNK),
    ]
    devices.reads.clear()
    assert await tree.read(node, 3 * CHUNK + 1, 2 * CHUNK - 1) == bytes(2 * CHUNK - 1)
    assert not devices.reads


async def test_a_failed_part_fails_the_read_and_ends_the_others() -> None:
    async def read(device: int, offset: int, length: int) -> bytes:
        if device == 2:
            raise StoreError("the disk is broken")
        await trio.sleep_forever()

    tree = ImageTree(image_of(folder(it=file_of(address(1, 0), address(2, 0), address(1, 99)))), read)
    node = (await tree.lookup(ROOT, b"it")).id
    with trio.fail_after(10), pytest.raises(StoreError, match="broken"):
        await tree.read(node, 0, 3 * CHUNK)


@pytest.mark.parametrize("size", [CHUNK, 2 * CHUNK])
async def test_a_short_answer_is_no_answer(size: int) -> None:
    async def read(device: int, offset: int, length: int) -> bytes:
        return bytes(length - 1)

    tree = ImageTree(image_of(folder(it=file_of(address(1, 0), address(2, 0)))), read)
    with pytest.raises(StoreError, match="instead of") as caught:
        await tree.read((await tree.lookup(ROOT, b"it")).id, 0, size)
    assert caught.value.errno == errno.EIO


async def test_a_device_that_the_image_does_not_have() -> None:
    image = image_of(folder(far=file_of(address(3, 0)), end=file_of(address(2, 2**32 - 17), short=1)))
    tree = ImageTree(image, FakeDevices().read)
    with pytest.raises(FormatError, match="its devices do not have"):
        await tree.read((await tree.lookup(ROOT, b"far")).id, 0, 1)
    assert len(await tree.read((await tree.lookup(ROOT, b"end")).id, 0, CHUNK)) == CHUNK - 1


async def test_numbers_and_names_that_there_cannot_be_are_refused() -> None:
    tree = ImageTree(image_of(folder()), FakeDevices().read)
    for number in (1 << 40, 2):
        with pytest.raises(FormatError):
            await tree.getattr(number)
    with pytest.raises(StoreError) as caught:
        await tree.lookup(ROOT, b"x" * 256)
    assert caught.value.errno == errno.ENAMETOOLONG


@pytest.mark.parametrize("number", [0, 1])
async def test_numbers_that_mean_something_to_fuse_are_damage(number: int) -> None:
    data = bytearray(bytes_of(folder(it=Inode(FILE, data=b"x"))))
    image = ErofsImage(bytes(data))
    record = DIRENT.pack(image.lookup(image.stat(image.root), b"it") or 0, 0, 0)[:8]
    at = data.index(record, image.root * SLOT)
    data[at : at + 8] = number.to_bytes(8, "little")
    data[number * SLOT : number * SLOT + 64] = data[image.root * SLOT : image.root * SLOT + 64]
    write_super(data, image.super)
    with pytest.raises(FormatError, match="no inode number"):
        await ImageTree(ErofsImage(bytes(data)), FakeDevices().read).lookup(ROOT, b"it")


async def test_capacity_is_that_of_the_image_and_all_used() -> None:
    image = image_of(folder(a=Inode(FILE, data=b"x"), b=folder()), (DeviceSlot(b"cold", 1000), DeviceSlot(b"hot", 24)))
    space = await ImageTree(image, FakeDevices().read).statfs()
    assert (space.capacity, space.free, space.files) == ((image.super.blocks + 1024) * BLOCK, 0, 3)


# -- large directories -----------------------------------------------------------------------------------------------


COUNT = 20_000


class CountingImage(ErofsImage):
    """Counts the blocks of directories that were looked at."""

    looked_at = 0

    def _block(self, directory: Any, number: int) -> Any:
        self.looked_at += 1
        return super()._block(directory, number)


@pytest.fixture(scope="module")
def big() -> bytes:
    """An image of one directory with `COUNT` names."""
    one = Inode(FILE, data=b"x")
    return bytes_of(Inode(FOLDER, children={b"entry-%06d" % number: one for number in range(COUNT)}))


async def test_a_name_is_found_by_halving(big: bytes) -> None:
    image = CountingImage(big)
    tree = ImageTree(image, FakeDevices().read)
    blocks = image.stat(image.root).size // BLOCK + 1
    for number in range(0, COUNT, 997):
        image.looked_at = 0
        await tree.lookup(ROOT, b"entry-%06d" % number)
        assert image.looked_at <= math.ceil(math.log2(blocks)) + 2
    for absent in (b"entry-000000 ", b"", b"\0", b"\xff", b"entry-0199999", b"entry-014321x"):
        with pytest.raises(NotFound):
            await tree.lookup(ROOT, absent)


async def test_a_listing_goes_on_where_it_stopped(big: bytes) -> None:
    image = CountingImage(big)
    tree = ImageTree(image, FakeDevices().read)
    blocks = image.stat(image.root).size // BLOCK + 1
    found = await listed(tree, ROOT, room=25)
    assert list(found) == [b".", b"..", *(b"entry-%06d" % number for number in range(COUNT))]
    calls = COUNT // 25 + 2
    assert image.looked_at <= 2 * calls + blocks


async def test_any_cookie_is_answered(big: bytes) -> None:
    tree = ImageTree(ErofsImage(big), FakeDevices().read)
    for cookie in (-1, BLOCK - 1, 3 * BLOCK + 4000, 1 << 40, (1 << 63) - 1):
        seen: list[bytes] = []

        def show(name: bytes, _attributes: ServedAttributes, _cookie: int, seen: list[bytes] = seen) -> bool:
            seen.append(name)
            return False

        await tree.readdir(ROOT, cookie, show)
        assert len(seen) <= 1


# -- the worker before it serves ---------------------------------------------------------------------------------------


def _image(path: Path, content: bytes) -> str:
    path.write_bytes(bytes_of(folder(file=Inode(FILE, data=content)), (DeviceSlot(b"cold", 1),)))
    return str(path)


def _backend(metadata: str, devices: int = 1, kept: Mapping[str, Any] | None = None) -> TreeBackend:
    payload = {"source": "store#tag", "metadata": metadata, "devices": ["/nowhere"] * devices, "io_timeout": 1}
    nobody = cast(Any, None)  # the journal and the counters are not used
    return TreeBackend(Start(json.dumps(payload), MountSettings(), not kept, kept or {}, nobody, nobody))


async def test_the_next_worker_serves_the_same_image_or_none(tmp_path: Path) -> None:
    metadata = _image(tmp_path / "meta", b"one")
    first = _backend(metadata)
    await first.open()
    assert first.source == "store#tag"
    await _backend(metadata, kept=first.kept).open()
    Path(metadata).unlink()
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        await _backend(metadata, kept=first.kept).open()
    _image(tmp_path / "meta", b"two")
    with pytest.raises(StaleVersion, match="meta was replaced"):
        await _backend(metadata, kept=first.kept).open()


async def test_devices_must_be_as_many_as_the_image_names(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="an image of 1 devices, not 3"):
        await _backend(_image(tmp_path / "meta", b"one"), devices=3).open()
    (tmp_path / "meta").write_bytes(b"")
    with pytest.raises(FormatError, match="is empty"):
        await _backend(str(tmp_path / "meta")).open()


async def test_metadata_that_cannot_be_read_is_an_error_of_who_reads(tmp_path: Path) -> None:
    """A mapped file would end the worker, and each that comes after it: SIGBUS."""
    metadata = _image(tmp_path / "meta", bytes(20_000))
    backend = _backend(metadata)
    await backend.open()
    os.truncate(metadata, 100)
    with pytest.raises(DocumentUnreadable) as caught:
        backend._image.stat(backend._image.root)
    assert caught.value.errno == errno.EIO
