"""Large directories of an image without a kernel: looked up by halving, listed bit by bit."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest

from imagefs.format.erofs import BLOCK, ErofsImage, write
from imagefs.format.inode import Inode
from imagefs.plane.worker import ImageTree
from stripefs.errors import NotFound
from stripefs.fuse.protocol import ROOT, ServedAttributes
from tests.unit.imagefs.plane.image_trees import DEVICES, FILE, FOLDER, FakeDevices, listed

COUNT = 100_000


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
    out = io.BytesIO()
    write(Inode(FOLDER, children={b"entry-%06d" % number: one for number in range(COUNT)}), DEVICES, out)
    return out.getvalue()


async def test_a_name_of_100_000_is_found_by_halving(big: bytes) -> None:
    image = CountingImage(big)
    tree = ImageTree(image, FakeDevices().read)
    blocks = image.stat(image.root).size // BLOCK + 1
    for number in range(0, COUNT, 997):
        image.looked_at = 0
        await tree.lookup(ROOT, b"entry-%06d" % number)
        assert image.looked_at <= math.ceil(math.log2(blocks)) + 2
    for absent in (b"entry-000000 ", b"", b"\0", b"\xff", b"entry-0999999", b"entry-054321x"):
        with pytest.raises(NotFound):
            await tree.lookup(ROOT, absent)


@pytest.mark.slow
async def test_a_listing_of_100_000_goes_on_where_it_stopped(big: bytes) -> None:
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
