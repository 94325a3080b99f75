"""The kernel's messages, decoded."""

from __future__ import annotations

import struct

import pytest

from stripefs.fuse.kernel import MountPoint, parse_init, parse_mountinfo


def _init(minor: int, flags: int, flags2: int | None) -> bytes:
    body = struct.pack("<IIII", 7, minor, 131072, flags)
    if flags2 is not None:
        body += struct.pack("<I44x", flags2)
    return struct.pack("<IIQQIIIHH", 40 + len(body), 26, 2, 0, 0, 0, 0, 0, 0) + body


@pytest.mark.parametrize(
    ("message", "can_resend"),
    [
        (_init(45, 0x73FFFFFB, 0x5FD), True),  # as Linux 6.18 sends it
        (_init(38, 0x73FFFFFB, 0x00F), False),  # as Linux 6.1 does, near enough
        (_init(45, 0x33FFFFFB, 0x5FD), False),  # flags2 is not announced
        (_init(31, 0x03FFFFFB, None), False),  # before there was a flags2
    ],
)
def test_init(message: bytes, can_resend: bool) -> None:
    assert parse_init(message).can_resend is can_resend


def test_mountinfo() -> None:
    table = (
        b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        b"41 22 0:47 / /mnt/a\\040b\\134c\\011d ro shared:9 master:2 - fuse.stripefs hdfs://nn/a\\040b ro\n"
        b"42 22 1:5 / /odd\xff\xc2\x85name rw - tmpfs none rw\n"
    )
    root, ours, odd = parse_mountinfo(table)
    assert root == MountPoint("/", "254:0", "ext4", "/dev/vda", "rw,relatime", "rw")
    assert (ours.path, ours.source, ours.fstype) == ("/mnt/a b\\c\td", "hdfs://nn/a b", "fuse.stripefs")
    assert ours.connection == "47"
    assert odd.path == b"/odd\xff\xc2\x85name".decode("utf-8", "surrogateescape")
    assert odd.connection == str((1 << 20) + 5)
