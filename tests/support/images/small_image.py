"""A small EROFS image with one device, as files, and the name of a loop device over one of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from imagefs.build.content import lay_out, scan
from imagefs.format.erofs import BLOCK, INLINE_LIMIT, DeviceSlot, write

__all__ = ["SmallImage", "loops", "make"]


@dataclass(frozen=True)
class SmallImage:
    metadata: str
    device: str


def make(source: Path, folder: Path, device: str = "cold") -> SmallImage:
    """The image of the tree at `source`, as two files in `folder`."""
    root, contents = scan(str(source))
    for inode, content in contents.items():
        if content.size <= INLINE_LIMIT:
            with content.open() as file:
                inode.data = file.read()
    end = 0
    with (folder / device).open("wb") as out:
        for segment in lay_out(root, contents):
            with segment.content.open() as file:
                file.seek(segment.offset)
                out.seek(segment.at)
                out.write(file.read(segment.length))
            end = segment.at + segment.length
        end += -end % BLOCK
        out.truncate(end)
    with (folder / "meta.erofs").open("wb") as out:
        write(root, [DeviceSlot(b"cold", end // BLOCK)], out)
    return SmallImage(str(folder / "meta.erofs"), str(folder / device))


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
