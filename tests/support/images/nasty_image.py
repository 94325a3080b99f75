"""An image of several layers with everything in it that the OCI specification and tar allow, written byte by byte.

umoci is what we compare with. Where it refuses something, its twin of the image says the same in other words; where it
does something else than the specification says, the name stands in `NOT_AS_SPECIFIED` with the reason.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.support.images import archives as tar
from tests.support.images.archives import CHARACTER, DEVICE, DIRECTORY, FIFO, LINK, SYMLINK
from tests.support.images.layers import layout

__all__ = ["IMPLICIT", "SIZES", "layers", "make"]

KIB, MIB = 1 << 10, 1 << 20
SIZES = (
    *(0, 1, 511, 512, 513, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 8193, 65535, 65536, 65537),
    *(131071, 131072, 131073, 196609, 262144, 262145, MIB + 1),
)
OWNER_MAX = (1 << 32) - 2
CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")
ACL = bytes.fromhex("02000000 01000600ffffffff 02000400e8030000 04000400ffffffff 10000400ffffffff 20000000ffffffff")

IMPLICIT = frozenset((b"implicit", b"implicit/parents", b"hidden/anew", b"linked/made"))
"""Directories that no layer describes: when they were made is up to whoever unpacks them."""


def make(folder: Path, *, twin: bool = False) -> Path:
    """The image as a layout with one reference, "nasty"; the twin for umoci has gzip layers alone."""
    compress = ["gzip", "gzip", "", "gzip"] if twin else ["gzip", "zstd", "", "gzip"]
    return layout(folder, layers(twin=twin), compress, reference="nasty")


def layers(*, twin: bool = False) -> list[bytes]:
    """The archives, the lowest first."""
    return [_first(twin), _second(), _third(), _fourth()]


def _first(twin: bool) -> bytes:
    return b"".join(
        (
            tar.file(b"./", DIRECTORY, mode=0o751, mtime="1600000000.000000001", uid=3, gid=4),
            _sizes(),
            _names(),
            _links(),
            _attributes(),
            _times(),
            _sparse(twin),
            _dialects(twin),
            _to_be_changed(),
            tar.END,
        )
    )


def _data(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def _folder(name: bytes, **facts: int) -> bytes:
    return tar.file(name, DIRECTORY, **{"mode": 0o755, "mtime": "1500000000.5", **facts})  # type: ignore[arg-type]


def _sizes() -> bytes:
    files = (tar.file(b"sizes/%d" % size, data=_data(size, size), mtime="1.5") for size in SIZES)
    zeros = tar.file(b"sizes/zeros", data=bytes(700 * KIB), mtime="1.5")
    return _folder(b"sizes") + b"".join(files) + zeros


def _names() -> bytes:
    odd = (b"new\nline", b"back\\slash", "ünï \u2028".encode(), b"\xff\xfe\x80", b" ", b"-rf", b"~", b"a=b", b"\x01")
    out = _folder(b"names/")
    out += b"".join(tar.file(b"names/" + name, data=name, mtime="2.5") for name in odd)
    out += tar.file(b"names/" + b"n" * 255, data=b"255", mtime="2.5")
    out += tar.member(b"names/" + b"g" * 255, data=b"GNU", mtime=3, magic=tar.GNU)
    deep = b"names" + b"/d" * 300
    out += b"".join(_folder(deep[:end] + b"/") for end in range(7, len(deep) + 1, 2))
    out += tar.file(deep + b"/end", data=b"the end", mtime="2.5")
    out += tar.file(b"./names//odd/./way", DIRECTORY, mode=0o700, mtime="4.5")
    out += tar.file(b"names/odd", DIRECTORY, mode=0o701, mtime="4.5")
    out += tar.file(b"/names/absolute", data=b"inside", mtime="4.5")
    blocks = _folder(b"boundary")
    # With "." and ".." 27 bytes, each of these 112, the last what is left: blocks of a directory that are just full.
    for full, count, last in ((1, 36, 25), (1, 36, 24), (1, 36, 26), (2, 72, 52), (2, 72, 51), (2, 72, 53)):
        folder = b"boundary/%d-%d" % (full, last)
        names = [(b"%03d" % number).ljust(100, b"x") for number in range(count)] + [b"z" * last]
        blocks += _folder(folder) + b"".join(tar.file(folder + b"/" + name, FIFO, mtime="5") for name in names)
    return out + blocks


def _links() -> bytes:
    return b"".join(
        (
            _folder(b"links"),
            tar.file(b"links/relative", SYMLINK, link=b"../sizes/1", mtime="-1.5", uid=7, gid=8, mode=0o600),
            tar.file(b"links/long", SYMLINK, link=b"/" + b"x" * 250 + b"/y" * 1922, mtime="6.5"),
            tar.file(b"links/odd", SYMLINK, link=b"\xff\n \\", mtime="6.5"),
            tar.file(b"links/up", SYMLINK, link=b"../../../../../etc/shadow", mtime="6.5"),
            tar.file(b"links/self", SYMLINK, link=b"self", mtime="6.5"),
            tar.file(b"links/hard", LINK, link=b"sizes/2049"),
            tar.file(b"links/hard-small", LINK, link=b"/sizes/1"),
            tar.file(b"links/hard-to-link", LINK, link=b"links/self"),
            tar.file(b"links/data", data=b"several names", mtime="6.5"),
            *(tar.file(b"links/name-%d" % number, LINK, link=b"./links/data") for number in range(20)),
        )
    )


def _attributes() -> bytes:
    many = {f"user.number-{number}": b"v" * number for number in range(30)}
    values = {"user.bytes": b"\0=\n\xff", "user.long": _data(1, 2000), "user.utf-\u00fc": b"x"}
    return b"".join(
        (
            _folder(b"attributes"),
            tar.file(b"attributes/values", data=b"v", mtime="7", xattrs=values),
            tar.file(b"attributes/many", data=_data(2, 5000), mtime="7", xattrs=many),
            tar.file(
                b"attributes/program", data=b"p", mtime="7", mode=0o4755, xattrs={"security.capability": CAPABILITY}
            ),
            tar.file(b"attributes/owned", data=b"p", mtime="7", uid=1, xattrs={"security.capability": CAPABILITY}),
            tar.file(b"attributes/acl", data=b"p", mtime="7", mode=0o640, xattrs={"system.posix_acl_access": ACL}),
            tar.file(b"attributes/acls/", DIRECTORY, mtime="7", xattrs={"system.posix_acl_default": ACL}, mode=0o750),
            tar.file(b"attributes/trusted", DIRECTORY, mtime="7", xattrs={"trusted.secret": b"t"}, mode=0o2775),
            tar.file(b"attributes/link", SYMLINK, link=b"many", mtime="7", xattrs={"trusted.on-a-link": b"t"}),
            tar.file(b"attributes/device", DEVICE, mtime="7", mode=0o4620, device=(259, 1_000_000), gid=OWNER_MAX),
            tar.file(b"attributes/pipe", FIFO, mtime="7", xattrs={"trusted.on-a-pipe": b"t"}),
            # macOS puts such into layers; Linux has no place for them.
            tar.file(b"attributes/apple", data=b"a", mtime="7", xattrs={"com.apple.provenance": b"\x01"}),
        )
    )


def _times() -> bytes:
    times = ("0", "-1", "-1.5", "-0.000000001", "0.999999999", "1700000000.1234567899", "-2147483648", "4294967296.25")
    out = b"".join(tar.file(b"times/" + text.encode(), data=b"t", mtime=text) for text in times)
    out += tar.member(b"times/base-256", data=b"t", mtime=-86400)
    return _folder(b"times") + out + tar.file(b"times/folder", DIRECTORY, mode=0o755, mtime="-12345.000000678")


def _sparse(twin: bool) -> bytes:
    size = 40 * MIB + 17
    holes = [(at, _data(at, length)) for at, length in ((0, 10), (5000, 512), (10 * MIB + 7, 200 * KIB), (size - 3, 3))]
    fragments = [(at * 8192, _data(at, 100)) for at in range(100)]
    out = _folder(b"sparse")
    for version in ("0.0", "0.1", "1.0"):
        out += tar.pax_sparse(version, b"sparse/" + version.encode(), size, holes, mtime=9)
        out += tar.pax_sparse(version, b"sparse/fragments-" + version.encode(), 100 * 8192, fragments, mtime=9)
    out += tar.pax_sparse("1.0", b"sparse/nothing", size, [], mtime=9)
    # umoci takes GNU tar's own sparse members for members of an unknown type.
    old = tar.gnu_sparse if not twin else lambda *facts, **more: tar.pax_sparse("1.0", *facts, **more)
    out += old(b"sparse/gnu", size, holes, mtime=9)
    return out + old(b"sparse/gnu-fragments", 100 * 8192, fragments, mtime=9)


def _dialects(twin: bool) -> bytes:
    return b"".join(
        (
            # Runtimes give no heed to global records; umoci refuses them.
            b"" if twin else tar.pax({b"comment": b"a global header", b"mtime": b"77", b"uid": b"5"}, b"g"),
            _folder(b"dialects"),
            tar.member(b"dialects/v7", b"\0", b"v7", mtime=10, magic=tar.V7),
            tar.member(b"dialects/v7-folder/", b"\0", mtime=10, magic=tar.V7, mode=0o755),
            tar.member(b"ustar", data=b"ustar", mtime=10, prefix=b"dialects"),
            tar.member(b"dialects/gnu", data=b"gnu", mtime=10, magic=tar.GNU, uid=OWNER_MAX, gid=1 << 22),
            # GNU tar --incremental keeps two times where ustar has the first part of a name.
            tar.member(b"dialects/times", data=b"gnu", mtime=10, magic=tar.GNU, prefix=b"%011o\0%011o\0" % (11, 12)),
            # A link has no data, whatever size it claims.
            tar.header(b"dialects/claim", SYMLINK, 5000, link=b"gnu", mtime=10, mode=0o777),
            tar.file(b"dialects/twice", data=b"first", mtime="10", mode=0o600),
            tar.file(b"dialects/twice", data=b"second", mtime="11", mode=0o644),
            tar.pax({b"mtime": b"12.5", b"path": b"", b"size": b"3"})
            + tar.member(b"dialects/empty-record", data=b"abc"),
        )
    )


def _to_be_changed() -> bytes:
    """Files that the other layers take away and put back."""
    out = b""
    for name in (b"replaced", b"hidden", b"opaque", b"opaque/sub", b"back", b"linked", b"keep"):
        out += _folder(name)
    files = (
        *(b"replaced/file-dir", b"replaced/file-link", b"replaced/same", b"replaced/hard-old"),
        *(b"hidden/before", b"hidden/after", b"hidden/both", b"opaque/old", b"opaque/sub/old", b"opaque/again"),
        *(b"back/file", b"keep/a", b"keep/b", b"linked/old"),
    )
    out += b"".join(tar.file(name, data=b"1 " + name, mtime="14.25") for name in files)
    for name in (b"replaced/dir-file", b"replaced/dir-link", b"replaced/dir-device", b"hidden/dir", b"back/dir"):
        out += _folder(name, mode=0o700) + tar.file(name + b"/inside", data=b"1", mtime="14.25")
    out += _folder(b"hidden/anew", mode=0o711, uid=6) + tar.file(b"hidden/anew/old", data=b"1", mtime="14.25")
    out += tar.file(b"replaced/link-dir", SYMLINK, link=b"../keep", mtime="14.25")
    out += tar.file(b"replaced/link-file", SYMLINK, link=b"../keep/a", mtime="14.25")
    out += tar.file(b"to-linked", SYMLINK, link=b"linked", mtime="14.25")
    out += tar.file(b"linked/back", SYMLINK, link=b"/to-linked/./", mtime="14.25")
    return out + tar.file(b"replaced/hard-new", LINK, link=b"replaced/hard-old")


def _second() -> bytes:
    new = "15.75"
    return b"".join(
        (
            tar.file(b"replaced/file-dir", DIRECTORY, mode=0o750, mtime=new),
            tar.file(b"replaced/file-dir/inside", data=b"2", mtime=new),
            tar.file(b"replaced/file-link", SYMLINK, link=b"same", mtime=new),
            tar.file(b"replaced/dir-file", data=b"2", mtime=new),
            tar.file(b"replaced/dir-link", SYMLINK, link=b"../keep", mtime=new),
            tar.file(b"replaced/dir-device", CHARACTER, device=(5, 1), mtime=new),
            tar.file(b"replaced/link-dir", DIRECTORY, mode=0o755, mtime=new),
            tar.file(b"replaced/link-dir/inside", data=b"2", mtime=new),
            tar.file(b"replaced/link-file", data=b"2", mtime=new),
            tar.file(b"replaced/same", data=b"2 and longer", mode=0o4755, uid=1, mtime=new),
            # A name of a file of several: the others keep the old content, and so does a link made before.
            tar.file(b"replaced/hard-before", LINK, link=b"replaced/hard-old"),
            tar.file(b"replaced/hard-old", data=b"2", mtime=new),
            tar.file(b"replaced/hard-after", LINK, link=b"replaced/hard-old"),
            tar.file(b"replaced/hard-across", LINK, link=b"sizes/131073"),
            # Whiteouts before and behind what their own layer has.
            tar.file(b"hidden/.wh.before"),
            tar.file(b"hidden/.wh.both"),
            tar.file(b"hidden/both", data=b"2", mtime=new),
            tar.file(b"hidden/own", data=b"2", mtime=new),
            tar.file(b"hidden/.wh.own"),
            tar.file(b"hidden/.wh.after"),
            tar.file(b"hidden/.wh.dir"),
            tar.file(b"hidden/.wh.anew"),
            tar.file(b"hidden/anew/new", data=b"2", mtime=new),
            tar.file(b"hidden/.wh.never-was"),
            tar.file(b"never/was/.wh.this"),
            tar.file(b"opaque/new", data=b"2", mtime=new),
            tar.file(b"opaque/.wh..wh..opq"),
            tar.file(b"opaque/again", data=b"2", mtime=new),
            tar.file(b"back/.wh.file"),
            tar.file(b"back/.wh.dir"),
            # Parents that are links, and parents that are nowhere.
            tar.file(b"to-linked/new", data=b"2", mtime=new),
            tar.file(b"linked/back/made/new", data=b"2", mtime=new),
            tar.file(b"to-linked/.wh.old"),
            tar.file(b"implicit/parents/file", data=b"2", mtime=new),
            tar.file(b"keep/", DIRECTORY, mode=0o511, uid=11, mtime="-77.125"),
            tar.END,
        )
    )


def _third() -> bytes:
    new = "16.125"
    return b"".join(
        (
            tar.file(b"back/file", data=b"3", mtime=new),
            tar.file(b"back/dir", DIRECTORY, mode=0o755, mtime=new),
            tar.file(b"replaced/dir-file", DIRECTORY, mode=0o755, mtime=new),
            tar.file(b"replaced/dir-link", DIRECTORY, mode=0o755, mtime=new),
            tar.file(b"replaced/dir-link/inside", data=b"3", mtime=new),
            tar.file(b"replaced/file-dir", data=b"3", mtime=new),
            tar.file(b"links/.wh.name-3"),
            tar.file(b"links/name-4", data=b"3", mtime=new),
            tar.file(b"opaque/.wh..wh..opq"),
            tar.file(b"opaque/last", data=b"3", mtime=new),
            tar.file(b"./", DIRECTORY, mode=0o755, mtime="1650000000.25"),
            tar.END,
        )
    )


def _fourth() -> bytes:
    """Another layer of nothing: what an instruction leaves that changes no file."""
    return tar.END
