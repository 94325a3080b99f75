"""Damaged archives, many of them: an error of ours or a tree, never anything else."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from imagefs.build.content import lay_out
from imagefs.build.layers import MergedLayers, entries
from imagefs.build.tar import members
from imagefs.errors import BuildError, FormatError
from imagefs.format import erofs
from imagefs.settings import LayerLimits
from tests.support.images import archives as tar

Result = TypeVar("Result")

LIMITS = LayerLimits(
    entries=3000, attribute_bytes=1 << 20, tree_bytes=1 << 32, layer_bytes=1 << 24, header_bytes=1 << 16
)
ROUNDS = int(os.environ.get("IMAGEFS_FUZZ_ROUNDS", "400"))

VALUES = (b"0", b"-1", b"9" * 19, b"9" * 20, b"1.5", b"nan", b"", b"\0", b"..", b"/", b"x" * 300, b"\xff", b"1,2,3")
NAMES = (b"a", b"a/b", b"a/b/c", b"b", b"b/d", b"c\xff", b"d", b"d/.wh.e", b".wh.a", b"a/.wh..wh..opq", b"/b/", b"e")
ODD_NAMES = (b"..", b"a/../b", b".wh.", b"/", b".", b"x" * 256)
KEYS = (
    *(b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime", b"SCHILY.xattr.user.x", b"SCHILY.xattr.system.x"),
    *(b"GNU.sparse.map", b"GNU.sparse.size", b"GNU.sparse.realsize", b"GNU.sparse.name", b"GNU.sparse.major"),
    *(b"GNU.sparse.minor", b"GNU.sparse.offset", b"GNU.sparse.numbytes", b"comment"),
)


def archive(chance: random.Random) -> bytes:
    """Members of every kind, a few names again and again, so that they meet."""
    return b"".join(_members(chance)) + tar.END[: chance.choice((0, 512, 1024, 1024, 1024))]


def _members(chance: random.Random) -> Iterator[bytes]:
    odd = chance.choice((0, 0, 5))
    for _ in range(chance.randrange(1, 9)):
        name = _name(chance)
        data = chance.randbytes(chance.choice((0, 1, 511, 512, 513, 3000)))
        match chance.randrange(8):
            case 0:
                yield tar.file(name, tar.DIRECTORY, mode=0o755)
            case 1:
                yield tar.file(name, tar.SYMLINK, link=_name(chance))
            case 2:
                yield tar.file(name, tar.LINK, link=_name(chance))
            case 3:
                holes = [(at * 2000, data[:700]) for at in range(chance.randrange(8))]
                version = chance.choice(("0.0", "0.1", "1.0", "gnu"))
                size = chance.choice((14_700, 16_000, 1 << 31, 10))
                facts = (name, size, holes)
                yield tar.gnu_sparse(*facts) if version == "gnu" else tar.pax_sparse(version, *facts)
            case 4:
                pairs = [(chance.choice(KEYS), chance.choice((*VALUES, *NAMES))) for _ in range(chance.randrange(3))]
                yield tar.pax(pairs) + tar.member(name, data=data)
            case 5:
                yield tar.long(chance.choice(NAMES) * chance.randrange(1, 60), chance.choice((b"L", b"K")))
                yield tar.member(name, chance.choice((b"0", b"2")), link=b"a")
            case 6:
                kind = chance.choice((b"0", b"3", b"4", b"6", b"7", b"\0", *((b"1", b"S", b"g", b"x", b"V")[:odd])))
                yield tar.member(name, kind, data, mtime=chance.choice((0, -5, 1 << 40)), device=(1, 3))
            case _:
                yield tar.file(name, data=data, mtime=chance.choice(("", "-1.5")), xattrs={"user.x": data[:50]})


def _name(chance: random.Random) -> bytes:
    return chance.choice(NAMES if chance.random() < 0.98 else ODD_NAMES)


def mutate(chance: random.Random, data: bytes) -> bytes:
    """Bytes flipped, put in, taken away or repeated; headers mostly with the right checksum afterwards."""
    out = bytearray(data)
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 5))):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(6):
            case 0 | 1 | 2:
                for place in range(at, min(len(out), at + chance.choice((1, 1, 1, 4, 12)))):
                    out[place] = chance.choice(
                        (0, 0x20, 0x2D, 0x30, 0x37, 0x39, 0x80, 0xBF, 0xFF, chance.randrange(256))
                    )
            case 3:
                del out[at : at + chance.choice((1, 12, 512, 1024))]
            case 4:
                out[at:at] = chance.choice((b"\0", bytes(512), b"7" * 12, data[at : at + 512]))
            case _:
                del out[at:]
    if chance.random() < 0.9:
        for begin in range(0, len(out) - 511, 512):
            if any(out[begin : begin + 512]) and out[begin + 257 : begin + 262] in (b"ustar", bytes(5)):
                out[begin + 148 : begin + 156] = b" " * 8
                out[begin + 148 : begin + 156] = b"%06o\0 " % sum(out[begin : begin + 512])
    return bytes(out)


def build(layers: list[bytes], folder: Path) -> bytes:
    """All of a build that looks at what layers say."""
    merged = MergedLayers(LIMITS)
    for number, layer in enumerate(layers):
        path = folder / str(number)
        path.write_bytes(layer)
        merged.add(entries(str(path), LIMITS))
    root, contents = merged.tree()
    for inode, content in contents.items():
        with content.open() as file:
            if content.size <= erofs.INLINE_LIMIT:
                inode.data = file.read()
                assert len(inode.data) == content.size
            else:
                file.seek(content.size - 10)
                assert len(file.read(20)) == 10
    out = io.BytesIO()
    lay_out(root, contents)
    erofs.write(root, [erofs.DeviceSlot(b"cold", 1 << 30)], out)
    return out.getvalue()


def ours(seed: int, call: Callable[[], Result]) -> Result | None:
    """The result of the call, None for an error of ours in one line. Any other error fails the test."""
    try:
        return call()
    except (BuildError, FormatError) as error:
        if str(error).isprintable():
            return None
        raise AssertionError(f"seed {seed}: more than a line") from error
    except Exception as error:
        raise AssertionError(f"seed {seed}") from error


@pytest.mark.slow
def test_archives(tmp_path: Path) -> None:
    fine = 0
    for seed in range(ROUNDS * 5):
        chance = random.Random(seed)
        layers = [mutate(chance, archive(chance)) for _ in range(chance.randrange(1, 4))]
        if (image := ours(seed, lambda layers=layers: build(layers, tmp_path))) is not None:  # type: ignore[misc]
            fine += 1
            read = erofs.ErofsImage(image)
            assert read.stat(read.root).is_directory
    assert fine > ROUNDS / 4


def test_members_end_where_the_archive_ends(tmp_path: Path) -> None:
    """Cut anywhere, an archive is an error or has fewer members, and never one that is not whole."""
    chance = random.Random(7)
    whole = b"".join(tar.file(b"%d" % number, data=chance.randbytes(700)) for number in range(4)) + tar.END
    names = [b"%d" % number for number in range(4)]
    for end in range(0, len(whole), 97):
        path = tmp_path / "cut"
        path.write_bytes(whole[:end])
        try:
            found = [member.name for member in members(str(path), LIMITS)]
        except BuildError:
            continue
        assert found == names[: len(found)]
        assert end >= 512 * 3 * len(found) - 324  # all data; what pads it may be missing
