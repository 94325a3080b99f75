"""EROFS images: what is written can be read back, and equal trees give equal bytes."""

from __future__ import annotations

import io
import random
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.errors import FormatError
from imagefs.format.erofs import CHUNK, DeviceSlot, ErofsImage, write
from imagefs.format.inode import HOLE, Inode, address
from tests.support.examples import examples
from tests.support.images.trees import read_back, seen, trees

DEVICES = (DeviceSlot(b"cold", 2**32 - 1), DeviceSlot(b"hot", 2**32 - 1))


def image_of(root: Inode) -> bytes:
    out = io.BytesIO()
    assert write(root, DEVICES, out) == len(out.getvalue())
    return out.getvalue()


def directory(**children: Inode) -> Inode:
    return Inode(stat.S_IFDIR | 0o755, children={name.encode(): child for name, child in children.items()})


@given(trees())
def test_what_is_written_can_be_read_back(root: Inode) -> None:
    image = ErofsImage(image_of(root))
    assert read_back(image) == seen(root)
    assert image.devices == list(DEVICES)


@given(trees(), st.randoms())
@examples(50)
def test_equal_trees_give_equal_bytes(root: Inode, chance: random.Random) -> None:
    first = image_of(root)
    stack = [root]
    while stack:
        children = stack.pop().children
        if children:
            order = list(children)
            chance.shuffle(order)
            for name in order:
                children[name] = children.pop(name)
            stack += [child for child in children.values() if child.children]
    assert image_of(root) == first


def test_links_are_counted() -> None:
    file = Inode(stat.S_IFREG | 0o644, data=b"x")
    root = directory(a=file, b=file, c=directory(d=file, e=directory()))
    image = ErofsImage(image_of(root))
    top = image.stat(image.root)
    assert top.links == 3
    number = image.lookup(top, b"a")
    assert number is not None
    assert number == image.lookup(top, b"b")
    assert image.stat(number).links == 3


@pytest.mark.parametrize(
    ("inode", "words"),
    [
        (Inode(stat.S_IFLNK | 0o777, data=b""), "1 to 4095"),
        (Inode(stat.S_IFLNK | 0o777, data=b"x" * 4096), "1 to 4095"),
        (Inode(stat.S_IFREG, size=CHUNK + 1, chunks=(HOLE,)), "1 chunks where its size asks for 2"),
        (Inode(stat.S_IFREG, data=b"", xattrs=((b"system.nfs4_acl", b""),)), "system.nfs4_acl has no place"),
        (Inode(stat.S_IFREG, data=b"", xattrs=((b"user." + b"x" * 256, b""),)), "too long"),
        (Inode(stat.S_IFREG, data=b"", uid=1 << 32), "do not fit"),
        (Inode(stat.S_IFCHR, rdev=(4096, 0)), "does not fit"),
        (Inode(0o644), "no kind of file"),
    ],
)
def test_what_erofs_cannot_hold_is_named(inode: Inode, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        image_of(directory(it=inode))


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"a\0b", b"x" * 256])
def test_names_that_are_none_are_refused(name: bytes) -> None:
    root = Inode(stat.S_IFDIR, children={name: Inode(stat.S_IFREG, data=b"")})
    with pytest.raises(FormatError, match="no name"):
        image_of(root)


def test_16_tib_is_the_end() -> None:
    address(1, 2**32 - 2)
    with pytest.raises(FormatError, match="16 TiB"):
        address(1, 2**32 - 1)
