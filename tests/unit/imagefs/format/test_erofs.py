"""EROFS images: links, and what none can hold."""

from __future__ import annotations

import io
import stat

import pytest

from imagefs.errors import FormatError
from imagefs.format.erofs import CHUNK, DeviceSlot, write
from imagefs.format.inodes import HOLE, Inode

DEVICES = (DeviceSlot(b"cold", 2**32 - 1), DeviceSlot(b"hot", 2**32 - 1))


def image_of(root: Inode) -> bytes:
    out = io.BytesIO()
    assert write(root, DEVICES, out) == len(out.getvalue())
    return out.getvalue()


def directory(**children: Inode) -> Inode:
    return Inode(stat.S_IFDIR | 0o755, children={name.encode(): child for name, child in children.items()})


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
