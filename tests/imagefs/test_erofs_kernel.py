"""Our EROFS images before the kernel and before fsck.erofs: the tree they show is the tree they were made of."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.build.directory import scan
from imagefs.build.layout import COLD, Segment, lay_out
from imagefs.format.erofs import BLOCK, INLINE_LIMIT, Device, Image, write
from imagefs.plane import erofs
from stripefs.mount import kernel
from tests.imagefs import nasty

pytestmark = [pytest.mark.mount, pytest.mark.root]


class Built:
    """An image with its device as files in `folder`."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.metadata, self.device, self.mountpoint = folder / "meta.erofs", folder / "cold", folder / "mnt"
        root, contents = scan(str(source))
        for inode, content in contents.items():
            if content.size <= INLINE_LIMIT:
                with content.open() as file:
                    inode.data = file.read()
        segments = lay_out(root, contents)
        blocks = _write_device(segments, self.device)
        with self.metadata.open("wb") as out:
            write(root, [Device(b"cold", blocks)], out)
        self.mountpoint.mkdir()

    def mount(self) -> None:
        erofs.mount(str(self.metadata), [str(self.device)], str(self.mountpoint))

    def close(self) -> None:
        while kernel.find_mount(str(self.mountpoint)) is not None:
            kernel.unmount(str(self.mountpoint), kernel.MNT_DETACH)


def _write_device(segments: list[Segment], path: Path) -> int:
    """The device as one sparse file; its length in blocks."""
    end = 0
    with path.open("wb") as out:
        for segment in segments:
            with segment.content.open() as file:
                file.seek(segment.offset)
                out.seek(segment.at)
                out.write(file.read(segment.length))
            end = segment.at + segment.length
        end += -end % BLOCK
        out.truncate(end)
    return end // BLOCK


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "root"
    root.mkdir()
    nasty.make(root)
    return root


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    made = Built(source, tmp_path_factory.mktemp("image"))
    try:
        yield made
    finally:
        made.close()


def test_the_kernel_shows_the_tree_that_was_scanned(source: Path, built: Built) -> None:
    built.mount()
    shown, expected = nasty.facts(built.mountpoint), nasty.facts(source)
    assert shown.keys() == expected.keys()
    different = {path: (shown[path], expected[path]) for path in expected if shown[path] != expected[path]}
    assert not different


def test_fsck_accepts_it(built: Built) -> None:
    done = subprocess.run(
        ["fsck.erofs", f"--device={built.device}", str(built.metadata)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_same_tree_gives_the_same_image(source: Path, built: Built, tmp_path: Path) -> None:
    again = Built(source, tmp_path)
    assert again.metadata.read_bytes() == built.metadata.read_bytes()
    assert again.device.read_bytes() == built.device.read_bytes()


def test_every_file_lies_in_the_cold_device(built: Built) -> None:
    image = Image(built.metadata.read_bytes())
    assert [device.tag for device in image.devices] == [b"cold"]
    top = image.stat(image.root)
    number = image.lookup(top, b"zeros")
    assert number is not None
    chunks = image.chunks(image.stat(number))
    assert chunks is not None
    assert {address >> 32 for address in chunks[1]} == {COLD}
