"""References of lazy starts: the same image on a local ext4, or fetched whole before it runs.

The tree is unpacked once by umoci and kept. It lies on the work folder's own file system where that is ext4, else in
an ext4 on a loop device. A second copy on a loop device of its own, whose read-ahead is one page, tells which bytes a
start touches: those of its pages that are in memory afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness import BenchError
from bench.harness.environment import cold, disk_read_ahead, remove_tree, timed
from bench.harness.link import Link
from bench.harness.programs import output, run
from bench.image.runtime import runc
from bench.image.source import Image

__all__ = [
    "Fetched",
    "Tree",
    "fetch_all",
    "on_ext4",
    "pages_in_memory",
    "touched",
    "unpack_seconds",
    "unpacked",
]

_PAGE_KIB = 4
_RELEASED_WITHIN = 5.0
_ROOM = 512 << 20  # bytes beyond the files themselves, for the journal and inodes

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


@dataclass(frozen=True, slots=True)
class Tree:
    """An unpacked image that runc can start; `size` in bytes of its `files` regular files, `device` in words."""

    bundle: Path
    size: int
    files: int
    device: str
    read_ahead_kib: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """Seconds of each step of fetching everything first, and the bytes that came over the link."""

    fetch: float
    unpack: float
    run: float
    moved: int

    @property
    def total(self) -> float:
        return self.fetch + self.unpack + self.run


@contextmanager
def on_ext4(work: Path, image: Image) -> Iterator[Tree]:
    """The tree on a local ext4. Raises BenchError."""
    if _file_system(work) == "ext4":
        yield _tree(unpacked(work, image), "the machine's own ext4")
    else:
        with _on_loop(work, image, "local") as bundle:
            yield _tree(bundle, "ext4 on a loop device")


def unpacked(work: Path, image: Image) -> Path:
    """The bundle that umoci makes of the image, in the work folder, made unless it is there. Raises BenchError."""
    bundle = work / f"tree-{image.reference}"
    if not bundle.exists():
        _unpack(image, bundle)
    return bundle


def touched(work: Path, image: Image) -> int:
    """Bytes of regular files that one start of the container brings into memory at a read-ahead of 4 KiB."""
    with _on_loop(work, image, "touched", _PAGE_KIB) as bundle:
        cold()
        if already := pages_in_memory(bundle / "rootfs"):
            raise BenchError(f"{already} bytes were in memory before the container started")
        with runc(bundle, "touched"):
            return pages_in_memory(bundle / "rootfs")


def fetch_all(work: Path, image: Image, link: Link) -> Fetched:
    """Fetch through the link with skopeo, unpack with umoci, run; nothing is there before."""
    scratch = work / "fetched.new"
    remove_tree(scratch)
    scratch.mkdir()
    try:
        cold()
        before = link.moved()
        remote = f"docker://{link.registry}/bench:{image.reference}"
        fetch = timed("skopeo", "copy", "--src-tls-verify=false", remote, f"oci:{scratch / 'layout'}:image")
        moved = link.moved() - before
        unpack = timed("umoci", "unpack", "--image", f"{scratch / 'layout'}:image", scratch / "bundle")
        with runc(scratch / "bundle", "fetched") as start:
            return Fetched(fetch, unpack, start.seconds, moved)
    finally:
        remove_tree(scratch)


def unpack_seconds(work: Path, image: Image) -> float:
    """Seconds in which umoci unpacks the image from the local layout, caches empty."""
    scratch = work / "unpacked.new"
    remove_tree(scratch)
    try:
        cold()
        return timed("umoci", "unpack", "--image", f"{image.layout}:{image.reference}", scratch)
    finally:
        remove_tree(scratch)


def pages_in_memory(root: Path) -> int:
    """Bytes of the regular files below `root`, without other file systems, that the page cache holds."""
    total, seen = 0, set()
    device = root.stat().st_dev
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            facts = os.lstat(path)
            if stat.S_ISREG(facts.st_mode) and facts.st_dev == device and facts.st_ino not in seen:
                seen.add(facts.st_ino)
                total += _resident(path, facts.st_size) if facts.st_size else 0
    return total


def _resident(path: str, size: int) -> int:
    pages = -(-size // mmap.PAGESIZE)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOATIME)
    try:
        address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"cannot map {path}")
    try:
        flags = ctypes.create_string_buffer(pages)
        if _LIBC.mincore(address, size, flags):
            raise OSError(ctypes.get_errno(), f"cannot see which pages of {path} are in memory")
    finally:
        _LIBC.munmap(address, size)
    return sum(flag & 1 for flag in flags.raw) * mmap.PAGESIZE


@contextmanager
def _on_loop(work: Path, image: Image, use: str, read_ahead_kib: int = 0) -> Iterator[Path]:
    """A bundle in an ext4 of its own, made unless it is there."""
    file = work / f"{use}-{image.reference}.ext4"
    if not file.exists():
        draft = work / f"{use}.new"
        draft.unlink(missing_ok=True)
        with draft.open("wb") as made:
            made.truncate(image.compressed * 6 + _ROOM)
        run("mkfs.ext4", "-q", "-F", "-m", "0", draft)
        with _mounted_file(draft) as folder:
            _unpack(image, folder / "bundle")
        draft.rename(file)
    with _mounted_file(file, read_ahead_kib) as folder:
        yield folder / "bundle"


@contextmanager
def _mounted_file(file: Path, read_ahead_kib: int = 0) -> Iterator[Path]:
    folder = file.with_suffix(".mnt")
    folder.mkdir(exist_ok=True)
    # Direct I/O: or else the file would be cached too, with the read-ahead of the disk below.
    device = output("losetup", "--find", "--show", "--direct-io=on", file).strip()
    try:
        if read_ahead_kib:
            (Path("/sys/block") / Path(device).name / "queue/read_ahead_kb").write_text(f"{read_ahead_kib}\n")
        run("mount", "-t", "ext4", "-o", "noatime", device, folder)
        try:
            yield folder
        finally:
            _unmount(folder)
            folder.rmdir()
    finally:
        run("losetup", "--detach", device)


def _unmount(folder: Path) -> None:
    """A container that was killed holds its root for a moment longer."""
    deadline = time.monotonic() + _RELEASED_WITHIN
    while time.monotonic() < deadline:
        with contextlib.suppress(BenchError):
            run("umount", folder)
            return
        time.sleep(0.1)
    run("umount", "--lazy", folder)


def _unpack(image: Image, bundle: Path) -> None:
    draft = bundle.with_name(bundle.name + ".new")
    remove_tree(draft)
    run("umoci", "unpack", "--image", f"{image.layout}:{image.reference}", draft)
    draft.rename(bundle)


def _tree(bundle: Path, device: str) -> Tree:
    files = [path for path in (bundle / "rootfs").rglob("*") if path.is_file() and not path.is_symlink()]
    return Tree(bundle, sum(path.stat().st_size for path in files), len(files), device, disk_read_ahead(bundle))


def _file_system(path: Path) -> str:
    return output("stat", "--file-system", "--format=%T", path).strip().replace("ext2/ext3", "ext4")
