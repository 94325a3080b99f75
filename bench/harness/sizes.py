"""Bytes of trees, and of the files in them that are new against others, as LZ4 makes them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import lz4.block

__all__ = ["digests", "lz4_of_new", "size"]

_BLOCK = 128 << 10  # as imagefs compresses


def size(root: Path) -> int:
    """Of all regular files below `root`, those with several names once."""
    files = (path.lstat() for path in _files(root))
    return sum({file.st_ino: file.st_size for file in files}.values())


def digests(root: Path) -> set[bytes]:
    """Of the contents of the regular files below `root`."""
    return {_digest(path) for path in _files(root)}


def lz4_of_new(known: set[bytes], root: Path) -> int:
    """Bytes of the regular files below `root` whose content is not `known`, each compressed by itself.

    Files with the same content count once; what was new is known then.
    """
    total = 0
    for path in _files(root):
        if (digest := _digest(path)) not in known:
            known.add(digest)
            total += _compressed(path)
    return total


def _compressed(path: Path) -> int:
    """Bytes of a file in blocks of 128 KiB, each as LZ4 makes it, or as it is where that is no more."""
    total = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            total += min(len(block), len(lz4.block.compress(block, store_size=False)))
    return total


def _files(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink())


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
