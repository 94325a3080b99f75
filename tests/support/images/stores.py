"""Small trees in a store, for tests of what looks after stores."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from imagefs.build.content import scan
from imagefs.build.image import BuildReport, build
from imagefs.repository.images import Images
from imagefs.repository.store import StoreRepository, open_repository
from stripefs.settings import StoreSettings
from stripefs.store.local import LocalStore

__all__ = ["age", "build_tree", "files", "images_at", "images_in", "write_tree"]


def images_in(folder: Path) -> Images:
    """The images in a folder, which is made where it is missing."""
    return Images(StoreRepository(LocalStore(os.fsencode(folder), make=True)))


@contextlib.contextmanager
def images_at(url: str, patience: float = 0.0) -> Iterator[Images]:
    """Those of the place that a URL names, until the block ends."""
    with contextlib.closing(open_repository(StoreSettings(url=url), make=True)) as repository:
        yield Images(repository, patience)


def write_tree(folder: Path, **contents: int) -> Path:
    """A directory of files NAME.bin; each number is the seed of 300,000 bytes that do not compress."""
    folder.mkdir(exist_ok=True)
    for name, seed in contents.items():
        (folder / f"{name}.bin").write_bytes(random.Random(seed).randbytes(300_000))
    (folder / "small").write_text("kept in the metadata")
    return folder


def build_tree(folder: Path, images: Images, tag: str = "", **options: Any) -> BuildReport:
    """The tree in a folder as an image. options: of `build`."""
    return build(*scan(str(folder)), images, tag=tag, **options)


def files(folder: Path, kind: str = "") -> list[Path]:
    """The files of a store in a folder, of one kind of object or of all."""
    return sorted(path for path in (folder / kind).rglob("*") if path.is_file())


def age(paths: list[Path], hours: float) -> None:
    """Make files look as if they were written so long ago."""
    for path in paths:
        found = path.stat()
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns - int(hours * 3600e9)))
