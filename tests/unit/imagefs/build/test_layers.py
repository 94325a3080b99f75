"""Layers: archives are read exactly, and merged by every rule of the specification that a tree can show."""

from __future__ import annotations

import io
import logging
import stat
import subprocess
import tarfile
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.build.layers import LayerEntry, MergedLayers, entries
from imagefs.format.inodes import Inode, walk
from imagefs.settings import LayerLimits
from tests.support.examples import examples
from tests.support.images.layers import directory, file, hardlink, layer, symlink


class Layers:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def merge(self, *layers: Any) -> tuple[Inode, dict[Inode, Any]]:
        merged = MergedLayers(LayerLimits())
        for members in layers:
            self._count += 1
            path = self._folder / str(self._count)
            path.write_bytes(members if isinstance(members, bytes) else layer(*members))
            merged.add(entries(str(path), LayerLimits()))
        return merged.tree()

    def names(self, *layers: Any) -> dict[str, str]:
        """The content of each name: "/" for a directory, "-> TARGET" for a link, else the file's."""
        root, contents = self.merge(*layers)
        return {path.decode(): _show(inode, contents) for path, inode in walk(root) if path}


def _show(inode: Inode, contents: dict[Inode, Any]) -> str:
    if inode.is_directory:
        return "/"
    if stat.S_ISLNK(inode.mode):
        return f"-> {(inode.data or b'').decode()}"
    with contents[inode].open() as found:
        return str(found.read().decode())


@pytest.fixture
def layers(tmp_path: Path) -> Layers:
    return Layers(tmp_path)


DIRECTORIES, FILES = ["d", "d/e"], ["x", "d/x", "d/e/x"]
MEMBERS = st.one_of(
    st.tuples(st.just("directory"), st.sampled_from(DIRECTORIES), st.just(0o700)),
    st.tuples(st.just("file"), st.sampled_from(FILES), st.sampled_from([b"1", b"2"])),
    st.tuples(st.just("whiteout"), st.sampled_from(DIRECTORIES + FILES), st.none()),
    st.tuples(st.just("opaque"), st.sampled_from(["", *DIRECTORIES]), st.none()),
)


def archived(kind: str, name: str, value: Any) -> Any:
    path = PurePath(name)
    match kind:
        case "directory":
            return directory(name, mode=value)
        case "file":
            return file(name, value)
        case "whiteout":
            return file(str(path.with_name(f".wh.{path.name}")))
    return file(str(path / ".wh..wh..opq"))


def stacked(layers: list[list[tuple[str, str, Any]]]) -> dict[str, Any]:
    """Modes of directories and contents of files: a layer's marks hide what is below it, wherever they stand."""
    tree: dict[str, Any] = {}
    for members in layers:
        for kind, name, _ in members:
            if kind == "whiteout":
                tree.pop(name, None)
            if kind in ("whiteout", "opaque"):
                tree = {path: value for path, value in tree.items() if name and not path.startswith(f"{name}/")}
        for kind, name, value in members:
            if kind in ("directory", "file"):
                tree |= {str(one): 0o755 for one in PurePath(name).parents if str(one) not in (".", *tree)}
                tree[name] = value
    return tree


@examples(400)
@given(st.lists(st.lists(MEMBERS, max_size=6), min_size=1, max_size=3))
def test_any_layers_are_stacked_as_a_model_says(
    tmp_path_factory: pytest.TempPathFactory, found: list[list[tuple[str, str, Any]]]
) -> None:
    """umoci keeps the old owner and mode of a hidden directory when the mark stands behind what is in it."""
    root, contents = Layers(tmp_path_factory.getbasetemp()).merge(*([archived(*one) for one in some] for some in found))
    shown = {path.decode(): inode for path, inode in walk(root) if path}
    assert stacked(found) == {
        path: inode.mode & 0o777 if inode.is_directory else _show(inode, contents).encode()
        for path, inode in shown.items()
    }


def test_other_marks_of_aufs_say_nothing(layers: Layers) -> None:
    assert layers.names([file("a", b"1")], [file(".wh..wh.plnk"), file(".wh..wh.aufs")]) == {"a": "1"}


def test_kinds_replace_each_other(layers: Layers) -> None:
    lower = [directory("a"), file("a/x", b"1"), file("b", b"1"), symlink("c", "a")]
    upper = [file("a", b"2"), directory("b"), file("b/y", b"2"), directory("c"), file("c/z", b"2")]
    assert layers.names(lower, upper) == {"a": "2", "b": "/", "b/y": "2", "c": "/", "c/z": "2"}


def test_hardlinks_across_layers(layers: Layers) -> None:
    root, contents = layers.merge([file("a", b"1"), hardlink("b", "a")], [hardlink("c", "b"), file("a", b"2")])
    found = root.children or {}
    assert found[b"b"] is found[b"c"]
    assert {name: _show(inode, contents) for name, inode in found.items()} == {b"a": "2", b"b": "1", b"c": "1"}


def test_the_root_has_attributes_too(layers: Layers) -> None:
    root, _ = layers.merge([directory("./", mode=0o700, mtime=7, uid=5)])
    assert (root.mode, root.mtime, root.uid) == (stat.S_IFDIR | 0o700, 7, 5)


def test_deep_trees_need_no_deep_stack(layers: Layers) -> None:
    names = ["/".join("d" * (depth + 1)) for depth in range(1500)]
    assert layers.names([directory(name) for name in names], [file(".wh.d")]) == {}


# Reading: what tar can say about a file comes through


def read(path: Path, data: bytes) -> list[LayerEntry]:
    path.write_bytes(data)
    return list(entries(str(path), LayerLimits()))


KINDS = {
    tarfile.REGTYPE: stat.S_IFREG,
    tarfile.DIRTYPE: stat.S_IFDIR,
    tarfile.FIFOTYPE: stat.S_IFIFO,
    tarfile.CHRTYPE: stat.S_IFCHR,
    tarfile.BLKTYPE: stat.S_IFBLK,
}
NAMES = st.binary(max_size=200).map(lambda part: b"n" + part.replace(b"/", b"-").replace(b"\0", b"-"))


@st.composite
def members(draw: st.DrawFn, form: int) -> tuple[tuple[tarfile.TarInfo, bytes], tuple[object, ...]]:
    """A member as the standard library writes it, and the facts of its entry."""
    large = form != tarfile.USTAR_FORMAT
    parts = draw(st.lists(NAMES, min_size=1, max_size=4 if large else 1))
    parts = parts if large else [part[:99] for part in parts]
    kind, data = draw(st.sampled_from(list(KINDS))), draw(st.binary(max_size=1100))
    data = data if kind == tarfile.REGTYPE else b""
    mode, owner = draw(st.integers(0, 0o7777)), st.integers(0, 4294967294 if large else 0o7777777)
    uid, gid, time = draw(owner), draw(owner), draw(st.integers(-(1 << 40) if large else 0, 0o77777777777))
    device = draw(st.tuples(st.integers(0, 4095), st.integers(0, 0o7777777 >> 1)))
    device = device if kind in (tarfile.CHRTYPE, tarfile.BLKTYPE) else (0, 0)
    facts = {"type": kind, "mode": mode, "uid": uid, "gid": gid, "devmajor": device[0], "devminor": device[1]}
    nanoseconds = 0
    if form == tarfile.PAX_FORMAT:
        nanoseconds = draw(st.integers(0, 10**9 - 1))
        facts["pax_headers"] = {"mtime": f"{Decimal(time) + Decimal(nanoseconds).scaleb(-9):f}"}
    name = b"/".join(parts).decode("utf-8", "surrogateescape")
    written = file(name, data, mtime=time, **facts)
    return written, (tuple(parts), KINDS[kind] | mode, uid, gid, time, nanoseconds, device, data)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@given(data=st.data())
@examples(30)
def test_archives_of_the_standard_library(
    form: int, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    written = data.draw(st.lists(members(form), max_size=5))
    path = tmp_path_factory.getbasetemp() / "archive"
    found = []
    for entry in read(path, layer(*(member for member, _ in written), form=form)):
        inode = entry.inode
        assert inode is not None
        with entry.content.open() if entry.content is not None else io.BytesIO() as content:
            content_read = content.read()
        times = (inode.mtime, inode.mtime_ns)
        found.append((entry.parts, inode.mode, inode.uid, inode.gid, *times, inode.rdev, content_read))
    assert found == [facts for _, facts in written]


def test_attributes_come_byte_by_byte(tmp_path: Path) -> None:
    capability = bytes.fromhex("0100000200040000000000000000000000000000")
    for value in (capability, b"\xfe=\n\xff", b""):
        header = {"SCHILY.xattr.security.capability": value.decode("utf-8", "surrogateescape")}
        (entry,) = read(tmp_path / "l", layer(file("a", pax_headers=header)))
        assert entry.inode is not None
        assert entry.inode.xattrs == ((b"security.capability", value),)


def test_attributes_that_a_link_cannot_have_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    header = {f"SCHILY.xattr.{name}": "value" for name in ("user.note", "trusted.note", "system.posix_acl_access")}
    kinds = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "pipe": tarfile.FIFOTYPE}
    members = []
    for name, kind in kinds.items():
        member, data = file(name, pax_headers=header)
        member.type, member.linkname = kind, "file" if kind == tarfile.SYMTYPE else ""
        members.append((member, data))
    with caplog.at_level(logging.WARNING):
        found = {
            entry.parts[0]: [name for name, _ in entry.inode.xattrs]
            for entry in read(tmp_path / "l", layer(*members))
            if entry.inode
        }
    every = [b"system.posix_acl_access", b"trusted.note", b"user.note"]
    assert found == {b"file": every, b"folder": every, b"link": [b"trusted.note"], b"pipe": [b"trusted.note"]}
    assert len(caplog.records) == 1
    assert "user.note of link and 3 more" in caplog.text


@pytest.mark.parametrize("version", ["0.0", "0.1", "1.0", "gnu"])
def test_sparse_files(tmp_path: Path, version: str) -> None:
    with (tmp_path / "sparse").open("wb") as out:
        out.truncate(50 << 20)
        for at in (0, 20 << 20, (50 << 20) - 10):
            out.seek(at)
            out.write(b"0123456789")
    how = ["--format=gnu"] if version == "gnu" else ["--format=pax", f"--sparse-version={version}"]
    subprocess.run(["tar", "-cSf", "l", *how, "sparse"], cwd=tmp_path, check=True)
    assert (tmp_path / "l").stat().st_size < 1 << 20
    (entry,) = entries(str(tmp_path / "l"), LayerLimits())
    assert entry.content is not None
    assert entry.content.size == 50 << 20
    with entry.content.open() as found, (tmp_path / "sparse").open("rb") as expected:
        while data := expected.read(1 << 20):
            assert found.read(len(data)) == data
        assert found.read(1) == b""
        found.seek(20 << 20)
        assert found.read(10) == b"0123456789"
