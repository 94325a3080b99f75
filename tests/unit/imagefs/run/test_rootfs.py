"""The tree of an image as its own programs see it, however its links point; and copies of its directories."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.run.rootfs import RootTree, copy_tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("the host's")
    made = tmp_path / "root"
    (made / "real/inner").mkdir(parents=True)
    (made / "real/file").write_text("content")
    (made / "real/inner/up").symlink_to("../../../../../../../etc")
    (made / "absolute").symlink_to("/real/file")
    (made / "outside").symlink_to("../etc/passwd")
    (made / "link").symlink_to("real/inner")
    (made / "loop").symlink_to("loop")
    (made / "dangling").symlink_to("/nothing/there")
    (made / "magic").symlink_to("/proc/self/root/etc/passwd")
    os.mkfifo(made / "pipe")
    return made


@pytest.fixture
def tree(root: Path) -> Iterator[RootTree]:
    with RootTree(str(root)) as opened:
        yield opened


def test_kinds(tree: RootTree) -> None:
    assert [tree.kind(path) for path in ("/", "/real", "/link", "/link/..")] == ["directory"] * 4
    assert [tree.kind(path) for path in ("/real/file", "/absolute")] == ["file"] * 2
    assert tree.kind("/pipe") == "other"
    paths = ("/nothing", "/real/file/x", "/loop", "/dangling", "/outside", "/magic", "/" + "x" * 300)
    assert [tree.kind(path) for path in paths] == [None] * 7


def test_links_stay_inside(tree: RootTree, root: Path) -> None:
    assert tree.read("/absolute") == b"content"
    assert tree.read("/outside") == b""
    assert tree.read("/real/inner/up/passwd") == b""
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text("the image's")
    assert tree.read("/outside") == b"the image's"
    assert tree.read("/real/inner/up/passwd") == b"the image's"
    assert tree.read("/../../etc/passwd") == b"the image's"
    assert [tree.read(path) for path in ("/pipe", "/real", "/nothing", "/dangling")] == [b""] * 4


def test_real_paths(tree: RootTree) -> None:
    assert tree.real("/link") == "/real/inner"
    assert tree.real("/link/new/x") == "/real/inner/new/x"
    assert tree.real("/nothing/x") == "/nothing/x"
    assert tree.real("/dangling/x") == "/nothing/there/x"
    assert tree.real("/") == "/"
    assert tree.real("/link/../file") == "/file"  # as text: a bind's target is a normal path


# A copy of a directory: everything that it keeps


def described(top: Path) -> dict[str, tuple[object, ...]]:
    """All that a copy is to keep, by name; hard links by the first of their names."""
    found: dict[str, tuple[object, ...]] = {}
    first: dict[int, str] = {}
    for path in sorted([top, *top.rglob("*")]):
        status, name = os.lstat(path), str(path.relative_to(top))
        content: object = None
        if stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        attributes = {
            one: os.getxattr(path, one, follow_symlinks=False) for one in os.listxattr(path, follow_symlinks=False)
        }
        same = name if stat.S_ISDIR(status.st_mode) else first.setdefault(status.st_ino, name)
        owner = (status.st_uid, status.st_gid)
        found[name] = (status.st_mode, owner, status.st_mtime_ns, status.st_rdev, content, attributes, same)
    return found


@pytest.mark.root
def test_everything_is_kept(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "a/b").mkdir(parents=True)
    (source / "a/file").write_bytes(b"content")
    (source / "a/b/other").hardlink_to(source / "a/file")
    (source / "a/link").symlink_to("/outside/of/all")
    os.mkfifo(source / "pipe")
    os.mknod(source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
    os.chown(source / "a/link", 5, 6, follow_symlinks=False)
    os.chown(source / "a/file", 7, 8)
    (source / "a/file").chmod(0o4751)
    os.setxattr(source / "a/file", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
    os.setxattr(source / "a", "trusted.note", b"kept")
    os.utime(source / "a/b", ns=(1, 123_456_789_012_345_678))
    source.chmod(0o1733)
    target.mkdir()
    copy_tree(str(source), str(target))
    assert described(target) == described(source)


@pytest.mark.root
@given(
    pieces=st.lists(st.tuples(st.integers(0, 40), st.binary(min_size=1, max_size=9)), max_size=6),
    end=st.integers(0, 40),
)
def test_content_and_holes(tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, bytes]], end: int) -> None:
    folder = tmp_path_factory.mktemp("holes")
    (folder / "source").mkdir()
    (folder / "target").mkdir()
    with (folder / "source/file").open("wb") as file:
        for at, data in pieces:
            file.seek(at << 16)
            file.write(data)
        file.truncate(max(end << 16, file.seek(0, os.SEEK_END)))
    copy_tree(str(folder / "source"), str(folder / "target"))
    source, target = folder / "source/file", folder / "target/file"
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks <= source.stat().st_blocks
