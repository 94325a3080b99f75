"""Layers that nobody honest made: each is refused in one line, and what was written is gone again."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pytest

from imagefs.format.inodes import walk
from imagefs.settings import LayerLimits
from tests.support.images import archives as tar
from tests.unit.imagefs.build.conftest import MIB, Victim


def sparse(numbers: Sequence[tuple[int, int]], size: int = 10_000, stored: int = 1000) -> bytes:
    """A sparse file whose map says this."""
    text = b",".join(b"%d,%d" % pair for pair in numbers)
    found = [(b"GNU.sparse.size", b"%d" % size), (b"GNU.sparse.map", text)]
    return tar.pax(found) + tar.member(b"s", data=bytes(stored))


def map_in_data(text: bytes) -> bytes:
    found = [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.realsize", b"10000")]
    return tar.pax(found) + tar.member(b"s", data=text)


D = tar.file(b"d", tar.DIRECTORY, mode=0o755)
CIRCLE = tar.file(b"a", tar.SYMLINK, link=b"b") + tar.file(b"b", tar.SYMLINK, link=b"a")
DEEP = b"/".join([b"d"] * 2000)

HOSTILE: dict[str, tuple[bytes | list[bytes], str]] = {
    # Names
    "upward": (tar.file(b"../outside/x"), "a name that leads upward"),
    "upward-prefix": (tar.member(b"x", prefix=b"../.."), "leads upward"),
    "upward-sparse": (tar.pax_sparse("1.0", b"../x", 10, []), "leads upward"),
    "long-component": (tar.file(b"d/" + b"x" * 256), "component of more than 255 bytes"),
    "long-name": (tar.file(b"/".join([b"x" * 200] * 25)), "a name of 5024 bytes"),
    "null-in-target": (tar.pax({b"linkpath": b"a\0b"}) + tar.member(b"x", tar.SYMLINK), "no name for a file"),
    "root-is-a-file": (tar.file(b"./", data=b"x"), "root is no directory"),
    # Links
    "link-above-root": (tar.file(b"up", tar.SYMLINK, link=b"../../outside") + tar.file(b"up/x"), "above the root"),
    "links-above-root": (
        D + tar.file(b"d/up", tar.SYMLINK, link=b"../..") + tar.file(b"d/up/outside/x"),
        "above the root",
    ),
    "hardlink-through-link": (
        tar.file(b"up", tar.SYMLINK, link=b"../outside") + tar.file(b"x", tar.LINK, link=b"up/secret"),
        "above the root",
    ),
    "hardlink-to-itself": (tar.file(b"x", tar.LINK, link=b"x"), "hardlink to x, which is no file"),
    "hardlink-to-root": (tar.file(b"x", tar.LINK, link=b"/"), "hardlink to /, which is no file"),
    "whiteout-in-a-circle": (CIRCLE + tar.file(b"a/.wh.x"), "links that lead in a circle"),
    "links-ever-longer": (
        b"".join(tar.file(b"l%d" % n, tar.SYMLINK, link=b"l%d/x/../" % (n + 1) * 200) for n in range(30))
        + tar.file(b"l0/x"),
        "a path of more than 2048 components|in a circle",
    ),
    "parent-is-a-file": (tar.file(b"a", data=b"x") + tar.file(b"a/b"), "no directory, yet a layer has something in it"),
    "long-target": (tar.file(b"a", tar.SYMLINK, link=b"x" * 4096), "a link's target has 1 to 4095 bytes"),
    "empty-target": (tar.file(b"a", tar.SYMLINK), "a link's target has 1 to 4095 bytes"),
    # Whiteouts
    "whiteout-of-parent": (D + tar.file(b"d/.wh..."), "whiteout of no name"),
    # Numbers
    "negative-size": (tar.header(b"x", size=-1) + tar.member(b"y"), "a file of -1 bytes"),
    "negative-size-header": (tar.header(b"x", b"x", -512), "negative length"),
    "endless-size": (tar.header(b"x", size=1 << 62), "unexpected end of data"),
    "size-beyond-64-bits": (tar.header(b"x", size=b"\x80" + b"\xff" * 11), "a number is out of range"),
    "size-beyond-64-bits-pax": (tar.pax({b"size": b"9" * 19}) + tar.member(b"x"), "is no number"),
    "size-with-underscores": (tar.pax({b"size": b"1_0"}) + tar.member(b"x"), "is no number"),
    "time-of-many-digits": (tar.pax({b"mtime": b"9" * 4000}) + tar.member(b"x"), "is no time"),
    "owner-is-nobody": (tar.file(b"x", uid=(1 << 32) - 1), "owner 4294967295:0 is out of range"),
    "owner-is-negative": (tar.pax({b"gid": b"-1"}) + tar.member(b"x"), "owner 0:-1 is out of range"),
    "device-number": (tar.file(b"x", tar.CHARACTER, device=(4096, 0)), "x: device number 4096:0 does not fit"),
    # Headers
    "long-link-name": (tar.long(b"x" * 70_000, b"K") + tar.member(b"x", tar.SYMLINK), "headers are longer than"),
    "pax-no-key": (tar.pax(b"5 =b\n") + tar.member(b"x"), "cut short"),
    "pax-no-value": (tar.pax(b"5 ab\n") + tar.member(b"x"), "cut short"),
    "pax-null-in-key": (tar.pax({b"a\0b": b""}) + tar.member(b"x"), "cut short"),
    "pax-global-damaged": (tar.pax(b"xx", b"g") + tar.member(b"x"), "has no length"),
    "header-of-nothing": (tar.pax({b"path": b"x"}), "headers of a member that is not there"),
    "checksum": (tar.header(b"x", checksum=1), "wrong checksum"),
    "damaged-in-the-middle": (tar.file(b"x") + b"\1" * 512 + tar.file(b"y"), "is no number|wrong checksum"),
    "zeros-in-the-middle": (tar.file(b"x") + bytes(512) + tar.file(b"y"), "a block of zeros stands between"),
    "unknown-type": (tar.member(b"x", b"V"), "members of type b'V' are not known"),
    "cut-in-map": (tar.gnu_sparse(b"s", 10_000, [(n * 10, b"x") for n in range(50)])[:600], "unexpected end of data"),
    # Sparse files
    "pieces-overlap": (sparse([(0, 500), (400, 500)]), "contradicts itself"),
    "piece-beyond-end": (sparse([(9500, 1000)]), "contradicts itself"),
    "piece-of-negative-length": (sparse([(0, -1), (5, 1001)]), "contradicts itself"),
    "pieces-claim-less": (sparse([(0, 10)]), "contradicts itself"),
    "holes-of-negative-size": (sparse([], size=-1, stored=0), "contradicts itself"),
    "half-a-piece": (tar.pax({b"GNU.sparse.size": b"9", b"GNU.sparse.map": b"0"}) + tar.member(b"s"), "contradicts"),
    "map-of-unknown-version": (tar.pax({b"GNU.sparse.major": b"2"}) + tar.member(b"s"), "unknown version"),
    "map-out-of-order": (
        tar.pax([(b"GNU.sparse.numbytes", b"5"), (b"GNU.sparse.offset", b"0")]) + tar.member(b"s", data=b"12345"),
        "map of holes is damaged",
    ),
    "map-without-newline": (map_in_data(b"1" * 5120), "map of holes has no end"),
    "map-longer-than-limit": (map_in_data(b"1000000000\n" + b"0\n" * 50_000), "headers are longer than"),
    "map-beyond-file": (tar.gnu_sparse(b"s", 10, [(0, b"x" * 20)]), "contradicts itself"),
    "map-of-another-program": (tar.member(b"s", b"S"), "another program than GNU tar"),
    "huge-file": (sparse([(1 << 60, 0)], size=1 << 60, stored=0), "files of more than"),
    # Attributes
    "long-attribute": (tar.file(b"x", xattrs={"user.x": b"v" * 65536}), "headers are longer|too long"),
    "long-attribute-name": (tar.file(b"x", xattrs={"user." + "x" * 251: b""}), "too long"),
    "attribute-of-no-name": (tar.file(b"x", xattrs={"user.": b""}), "x: the attribute user. has no place"),
    "acl-of-another-name": (tar.file(b"x", xattrs={"system.posix_acl_accessory": b""}), "has no place"),
    # Floods
    "names": (b"".join(tar.member(b"%d" % number) for number in range(5001)), "more than 5000 entries"),
    "parents": (b"".join(tar.member(b"%d/%s/x" % (n, DEEP)) for n in range(4)), "more than 5000 entries"),
    "attributes": (
        b"".join(tar.file(b"%d" % n, xattrs={"user.x": bytes(60_000)}) for n in range(20)),
        "attributes of more than 1048576 bytes",
    ),
    "targets": (
        b"".join(tar.file(b"%d" % n, tar.SYMLINK, link=b"x" * 4095) for n in range(300)),
        "attributes of more than 1048576 bytes",
    ),
    "pieces": (
        b"".join(sparse([(n * 2, 1) for n in range(900)], stored=900) for _ in range(10)),
        "attributes of more than 1048576 bytes",
    ),
    "files": (
        b"".join(tar.pax_sparse("1.0", b"%d" % n, 300 * MIB, []) for n in range(4)),
        "files of more than 1073741824 bytes",
    ),
    "layers": ([tar.member(b"x")] * 21, "more than 20 layers"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused(victim: Victim, name: str) -> None:
    found, words = HOSTILE[name]
    layers = [layer + tar.END for layer in found] if isinstance(found, list) else [found + tar.END]
    if name.startswith("cut"):
        layers = [layer.removesuffix(tar.END) for layer in layers]
    victim.refuse(victim.layers(*layers), words)


def test_every_name_stays_inside(victim: Victim) -> None:
    """No tool refuses these: an absolute name and an absolute link are inside the image, as in a container."""
    links = tar.file(b"link", tar.SYMLINK, link=b"/./etc/") + tar.file(b"near", tar.SYMLINK, link=b"etc/d")
    lower = tar.file(b"/etc/d/x", data=b"1") + links + tar.file(b"link/y")
    root = victim.build(victim.layers(lower + tar.END, tar.file(b"link/z") + tar.file(b"near/z") + tar.END))
    inside = [b"etc/d", b"etc/d/x", b"etc/d/z", b"etc/y", b"etc/z"]
    assert [path for path, _ in walk(root)] == [b"", b"etc", *inside, b"link", b"near"]
    victim.nothing_left()


def test_marks_of_a_layer_take_no_more_time_than_its_names(victim: Victim) -> None:
    names = b"".join(tar.member(b"d/%d" % number) for number in range(4000))
    marks = tar.member(b"d/.wh..wh..opq") + tar.member(b".wh..wh..opq")
    root = victim.build(victim.layers(names + tar.END, names + marks * 5000 + tar.END), LayerLimits(entries=100_000))
    assert len((root.children or {})[b"d"].children or {}) == 4000


def test_bytes_behind_the_end_say_nothing(victim: Victim) -> None:
    root = victim.build(victim.layers(tar.file(b"x") + tar.END + zlib.compress(b"whatever") * 100))
    assert [path for path, _ in walk(root)] == [b"", b"x"]
