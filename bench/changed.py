"""How much of a tree is new against others, and what LZ4 makes of the new files alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import lz4.block

__all__ = ["compressed", "digests", "lz4_of_new"]

_BLOCK = 128 << 10  # as imagefs compresses


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
            total += compressed(path)
    return total


def compressed(path: Path) -> int:
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
