"""A tree like an installation of Python, built into a store, and starts of it without a kernel."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from imagefs.build.content import scan
from imagefs.build.image import build
from imagefs.format.erofs import BLOCK, ErofsImage
from imagefs.format.erofs.read import files
from imagefs.format.inodes import HOLE
from imagefs.format.trace import Trace
from imagefs.repository.images import Images
from imagefs.trace.planner import resolve
from imagefs.trace.recorder import Recorder
from imagefs.trace.references import open_image
from tests.support.images.local_image import device_bytes

__all__ = ["Stored", "build_tree", "imports", "make_tree", "record", "trace"]

ODD = os.fsdecode(b"lib/odd %41 \xff\xfe.py")


def make_tree(root: Path, *, packages: int = 6, stamp: int = 0, first: str = "") -> Path:
    """Packages of modules, compiled ones with `stamp` in their heads, and libraries; `first` names one more package."""
    chance = random.Random(21)
    for number in range(packages):
        _package(root / f"lib/p{number:02}", random.Random(number), stamp)
    if first:
        _package(root / f"lib/{first}", random.Random(99), stamp)
    (root / "bin").mkdir(parents=True, exist_ok=True)
    (root / "bin/python").write_bytes(chance.randbytes(700_001))
    (root / "lib/zeros.bin").write_bytes(bytes(200_000))
    (root / ODD).write_bytes(chance.randbytes(7000))
    os.link(root / "lib/p01/_native.so", root / "lib/p05/again.so")
    with (root / "lib/sparse.bin").open("wb") as file:
        for at in (0, 5 << 20):
            file.seek(at)
            file.write(chance.randbytes(70_000))
    return root


def _package(folder: Path, chance: random.Random, stamp: int) -> None:
    (folder / "__pycache__").mkdir(parents=True)
    for number in range(25):
        text = chance.randbytes(chance.randrange(10, 12_000))
        (folder / f"m{number:03}.py").write_bytes(text)
        (folder / f"__pycache__/m{number:03}.pyc").write_bytes(b"%16d" % stamp + text[: len(text) // 2])
    (folder / "_native.so").write_bytes(chance.randbytes(chance.randrange(100_000, 500_000)))


def build_tree(root: Path, images: Images, tag: str = "app") -> str:
    """The digest of the image of the tree at `root`."""
    return build(*scan(str(root)), images, tag=tag).digest


class Stored:
    """An image of a store with all its bytes in memory."""

    def __init__(self, images: Images, digest: str) -> None:
        self.manifest = images.manifest(digest)
        self.metadata = images.metadata(self.manifest.metadata)
        self.image = ErofsImage(self.metadata)
        self.devices = [device_bytes(images, images.index(device.index)) for device in self.manifest.devices]

    def tree(self) -> dict[bytes, tuple[Any, ...]]:
        """Content and facts of all files that have a name."""
        return {
            path: (self.content(inode), inode.mode, inode.mtime, inode.links, inode.number)
            for path, inode in files(self.image)
        }

    def content(self, inode: Any) -> bytes:
        chunks = self.image.chunks(inode)
        if chunks is None:
            return self.image.content(inode)
        size, addresses = chunks
        data = b"".join(bytes(size) if at == HOLE else self.at(at, size).ljust(size, b"\0") for at in addresses)
        return data[: inode.size]

    def at(self, address: int, length: int) -> bytes:
        device, at = self.devices[(address >> 32) - 1], (address & 0xFFFFFFFF) * BLOCK
        return device[at : at + length]


def imports(root: Path, seed: int, packages: Iterable[int] = (3, 1, 0)) -> list[tuple[bytes, int]]:
    """Paths and offsets that a start reads in order, 64 KiB each: what all need, and what only `seed` makes it need."""
    reads = [(b"bin/python", at << 16) for at in (0, 3, 9)]
    for number in packages:
        folder = b"lib/p%02d" % number
        reads += [(folder + b"/__pycache__/m%03d.pyc" % module, 0) for module in range(0, 25, 2)]
        reads += [(folder + b"/_native.so", at << 16) for at in (1, 0)]
    reads.append((os.fsencode(ODD), 0))
    chance = random.Random(seed)
    reads.insert(5, (b"lib/p04/m%03d.py" % chance.randrange(25), 0))
    return [read for read in reads if (root / os.fsdecode(read[0])).stat().st_size > 2048]


def record(images: Images, digest: str, reads: Iterable[tuple[bytes, int]]) -> Recorder:
    """The record that the daemon would have made of a mount of that image, without read-ahead."""
    stored = Stored(images, digest)
    inodes = dict(files(stored.image))
    recorder = Recorder([device.size for device in stored.manifest.devices])
    for number, (path, offset) in enumerate(reads):
        chunks = stored.image.chunks(inodes[path])
        assert chunks is not None, path
        address = list(chunks[1])[offset // chunks[0]]
        length = min(chunks[0], inodes[path].size - offset)
        recorder.touch(address >> 32, (address & 0xFFFFFFFF) * BLOCK, length, number / 8)
    return recorder


def trace(images: Images, digest: str, reads: Iterable[tuple[bytes, int]], **facts: Any) -> Trace:
    """The trace of such a start."""
    opened = open_image(images, digest)
    touches = resolve(record(images, digest, reads), opened.target)
    given = {"workload": "default", "node": "here", "started": 1.7e9, "seconds": 9.5, "ended_by": "ready"}
    return Trace(**{"image": opened.base, **given, "complete": True, "reason": "", "touches": touches, **facts})
