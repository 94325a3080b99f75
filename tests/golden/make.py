"""The golden files: one small document of every kind, made of fixed inputs, as version 1 of each format has it.

`python -m tests.golden.make` writes them anew, which is right only together with a new version number of a format whose
old documents are still read. Images of version 0.1.0, whose chunks had 64 KiB, are only read (`metadata-64k.erofs`,
`hot-64k.erofs`, `layout-64k`), as are the pack and its index: another LZ4 may pack otherwise.
"""

from __future__ import annotations

import hashlib
import io
import stat
import tempfile
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lz4.block
import xxhash

from imagefs.blocks.cachefile import LocalDevice, Stamp, mark_of
from imagefs.build.content import UNIT, Content, lay_out
from imagefs.format import index
from imagefs.format.documents import DeviceEntry, Manifest, Metadata
from imagefs.format.erofs import CHUNK, DeviceSlot, ErofsImage, write
from imagefs.format.erofs.write import add_device
from imagefs.format.index import BLOCK, NOWHERE, BlockLocation, Pack
from imagefs.format.inodes import HOLE, Inode, address, digest_of, walk, write_extents
from imagefs.format.trace import Plan, PlanRun, Touch, Trace

__all__ = [
    "BLOCKS",
    "DEVICES",
    "DOCUMENTS",
    "FOLDER",
    "LOCAL",
    "LOCAL_BLOCKS",
    "LOCAL_SIZE",
    "MANIFEST",
    "PACKS",
    "PLACES",
    "PLAN",
    "STAMP",
    "TRACE",
    "tree",
]

FOLDER = Path(__file__).parent

DEVICES = (DeviceSlot(b"cold", 1 << 20), DeviceSlot(b"hot", 256))


def digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


PACKS = [Pack(digest("pack 0"), 5 * BLOCK), Pack(digest("pack 1"), 300_000)]
PLACES = [
    BlockLocation(digest("a"), 0, 0, BLOCK, BLOCK),
    BlockLocation(bytes(32), NOWHERE, 0, 0, 0),
    BlockLocation(digest("b"), 1, 17, 4000, BLOCK),
    BlockLocation(digest("a"), 0, 0, BLOCK, BLOCK),
    BlockLocation(digest("c"), 0, BLOCK, 1, 1),
    BlockLocation(digest("d"), 1, 290_000, 10_000, 70_000),
]


def index_document() -> bytes:
    out = io.BytesIO()
    index.write(PLACES, PACKS, len(PLACES) * BLOCK - 40 * 1024, out)
    return out.getvalue()


def node(mode: int, **facts: Any) -> Inode:
    return Inode(mode, **{"mtime": 1_700_000_000, "mtime_ns": 123_456_789, **facts})


def tree(chunk: int = CHUNK) -> Inode:
    """One inode of every kind, and directories of one block, of a whole one and of several. chunk: bytes of a chunk."""
    hard = node(stat.S_IFREG | 0o4755, data=b"several names\n")
    files = {
        b"empty": node(stat.S_IFREG | 0o600, data=b""),
        b"small": node(stat.S_IFREG | 0o644, uid=1000, gid=(1 << 32) - 2, data=bytes(range(256)) * 3, mtime=-1),
        b"chunk": node(stat.S_IFREG | 0o644, size=5000, chunks=(address(1, 3),)),
        b"large": node(
            stat.S_IFREG | 0o640, size=4 * chunk + 1, chunks=[address(1, 32), HOLE, address(2, 0), HOLE, address(1, 80)]
        ),
        b"hard": hard,
        b"link": node(stat.S_IFLNK | 0o777, data=b"../target", mtime=-(1 << 40), mtime_ns=1),
        b"null": node(stat.S_IFCHR | 0o666, rdev=(1, 3)),
        b"disk": node(stat.S_IFBLK | 0o660, rdev=(4095, (1 << 20) - 1)),
        b"pipe": node(stat.S_IFIFO | 0o620),
        b"socket": node(stat.S_IFSOCK | 0o700),
        b"not \xff utf-8": node(
            stat.S_IFREG | 0o644,
            data=b"x",
            xattrs=(
                (b"security.capability", bytes.fromhex("0100000200040000000000000000000000000000")),
                (b"system.posix_acl_access", bytes.fromhex("0200000001000600ffffffff04000400ffffffff20000400ffffffff")),
                (b"trusted.empty", b""),
                (b"user.colour", b"blue\0green"),
            ),
        ),
    }
    full = {(b"%02d" % number).ljust(100, b"x"): hard for number in range(36)} | {b"z" * 25: hard}
    more = {(b"%02d" % number).ljust(200, b"y"): hard for number in range(25)}
    return node(
        stat.S_IFDIR | 0o755,
        xattrs=((b"user.root", b"r"),),
        children={
            **files,
            b"full": node(stat.S_IFDIR | 0o1777, children=full),
            b"more": node(stat.S_IFDIR | 0o700, children={**more, b"empty": node(stat.S_IFDIR | 0o500, children={})}),
        },
    )


def metadata_document() -> bytes:
    out = io.BytesIO()
    write(tree(), DEVICES, out)
    return out.getvalue()


def hot_document() -> bytes:
    """An image of one device that got a second one, with the copy of one chunk in it."""
    out = io.BytesIO()
    root = Inode(
        stat.S_IFDIR | 0o755,
        children={b"f": Inode(stat.S_IFREG | 0o644, size=2 * CHUNK, chunks=(address(1, 0), address(1, 16)))},
    )
    write(root, [DeviceSlot(b"cold", 32)], out)
    return add_device(ErofsImage(out.getvalue()), DeviceSlot(b"hot", 16), {address(1, 16): address(2, 0)})


def extents_document() -> bytes:
    names = ("one", "two", "one", "three")
    digests = b"".join(digest_of(name.encode()) for name in names)
    return write_extents(digests, array("I", (7, 0, 3, (1 << 32) - 2)))


MANIFEST = Manifest(
    source="sha256:" + digest("source").hex(),
    config={"architecture": "amd64", "config": {"Env": ["PATH=/usr/bin", "NAME=ünï"], "Cmd": ["sh"]}, "os": "linux"},
    metadata=Metadata(digest("metadata").hex(), 12288, digest("object").hex()),
    devices=[DeviceEntry("cold", 1 << 32, digest("cold").hex()), DeviceEntry("hot", 1 << 20, digest("hot").hex())],
    base=digest("base").hex(),
    extents=digest("extents").hex(),
)

TRACE = Trace(
    image=digest("base").hex(),
    workload="train-7b",
    node="node-1",
    started=1_700_000_000.125,
    seconds=12.5,
    ended_by="ready",
    complete=True,
    reason="",
    touches=[
        Touch(0, b"usr/bin/python3", 0, 65536, digest_of(b"one")),
        Touch(3, b"usr/lib/100% \xff", 65536, 17, digest_of(b"two")),
        Touch(3, "etc/ünï".encode(), 0, 1, digest_of(b"three")),
    ],
)

PLAN = Plan(digest("manifest").hex(), "train-7b", 3, [PlanRun(2, 0, 4), PlanRun(1, 100, 1), PlanRun(1, 7, 3)])


class _Bytes:
    """A file of which only the length matters, and where it has data."""

    def __init__(self, size: int, ranges: list[tuple[int, int]] | None = None) -> None:
        self.size = size
        self._ranges = [(0, size)] if ranges is None else ranges

    def ranges(self) -> list[tuple[int, int]]:
        return self._ranges


def layout_document() -> bytes:
    """Addresses of a tree's files, a line each. Not a format: images of two versions share blocks while it holds."""
    contents: dict[Inode, Content] = {}
    root = Inode(stat.S_IFDIR | 0o755, children={})
    assert root.children is not None
    for folder in range(3):
        children: dict[bytes, Inode] = {}
        root.children[b"folder-%d" % folder] = Inode(stat.S_IFDIR | 0o755, children=children)
        for number in range(12):
            size = (3000, 4097, 30_000, 65_535, 65_536, 200_000, 131_072)[(number * 5 + folder) % 7]
            children[b"file-%02d" % number] = inode = Inode(stat.S_IFREG | 0o644, size=size)
            contents[inode] = _Bytes(size)  # type: ignore[assignment]  # all that is asked of it
    sparse = root.children[b"sparse"] = Inode(stat.S_IFREG | 0o644, size=50 * UNIT)
    contents[sparse] = _Bytes(50 * UNIT, [(0, 10), (5 * UNIT, 9), (30 * UNIT - 1, 2)])  # type: ignore[assignment]
    lay_out(root, contents)
    lines = []
    for path, inode in walk(root):
        places = ",".join("-" if chunk == HOLE else str(chunk & 0xFFFFFFFF) for chunk in inode.chunks)
        lines.append(f"{path.decode()} {inode.size} {places}\n")
    return "".join(lines).encode()


BLOCKS = [b"".join(digest(f"noise {number}") for number in range(30)), b"all work and no play " * 5000]
"""Blocks of the pack: one that is stored as it is, and one that LZ4 packs."""


def pack_documents() -> tuple[bytes, bytes]:
    """A pack, and the index of a device of its blocks."""
    stored = [BLOCKS[0], lz4.block.compress(BLOCKS[1], store_size=False)]
    pack = b"".join(stored)
    places = [
        BlockLocation(hashlib.sha256(block).digest(), 0, pack.index(data), len(data), len(block))
        for block, data in zip(BLOCKS, stored, strict=True)
    ]
    out = io.BytesIO()
    index.write(places, [Pack(hashlib.sha256(pack).digest(), len(pack))], 2 * BLOCK, out)
    return pack, out.getvalue()


LOCAL, LOCAL_SIZE = digest("index").hex(), 4 * BLOCK + 8192
"""The device of the table: the digest of its block index, and its bytes."""

LOCAL_BLOCKS = {1: (BLOCKS[0], 1_600_000_000), 4: (BLOCKS[1][:5000], 6_000_000_000)}
"""Those that are here, and when each was last used, in seconds since 1970."""

STAMP: Stamp = (0x1122334455667788, LOCAL_SIZE, 1_700_000_000_123_456_789)


def table_document() -> bytes:
    """Of a device of five blocks: two are here, one was given up, and two never were."""
    with tempfile.TemporaryDirectory() as folder:
        device = LocalDevice(Path(folder), LOCAL, 5, LOCAL_SIZE)
        for block, (data, now) in {3: (b"given up", 1_650_000_000), **LOCAL_BLOCKS}.items():
            checksum = xxhash.xxh3_64_intdigest(data)
            device.write(block, data, checksum, now)
            device.table.add(block, checksum, now)
        device.clear(3)
        device.write_rows(device.table.take_dirty())
        device.close()
        return Path(folder, f"{LOCAL}.table").read_bytes()


DOCUMENTS: dict[str, Callable[[], bytes]] = {
    "index": index_document,
    "metadata.erofs": metadata_document,
    "hot.erofs": hot_document,
    "extents": extents_document,
    "manifest.json": MANIFEST.to_json,
    "trace.json": TRACE.to_json,
    "plan.json": PLAN.to_json,
    "layout": layout_document,
    "local.table": table_document,
    "local.complete": lambda: mark_of(LOCAL, STAMP),
}


if __name__ == "__main__":
    for name, made in DOCUMENTS.items():
        (FOLDER / name).write_bytes(made())
    for name, data in zip(("pack", "pack.index"), pack_documents(), strict=True):
        (FOLDER / name).write_bytes(data)
