"""A small EROFS image with one device, as files, and the name of a loop device over one of them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.images.local_image import LocalImage
from tests.support.images.stores import build_tree, images_in

__all__ = ["SmallImage", "loops", "make"]


@dataclass(frozen=True)
class SmallImage:
    metadata: str
    device: str


def make(source: Path, folder: Path, device: str = "cold") -> SmallImage:
    """The image of the tree at `source`, as two files in a folder in `folder`."""
    with tempfile.TemporaryDirectory() as store:
        images = images_in(Path(store))
        made = LocalImage(images, build_tree(source, images).digest, folder / "image")
    return SmallImage(str(made.metadata), str(made.devices[0].rename(made.metadata.with_name(device))))


def loops(folder: Path) -> list[str]:
    """The loop devices over files below `folder`."""
    found = []
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if entry.read_text().startswith(str(folder)):
                found.append(entry.parent.parent.name)
        except OSError:
            continue  # it was freed while we looked
    return found
