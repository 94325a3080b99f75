"""The tree of an image as its own programs see it, however its links point; and copies of its directories."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.run.rootfs import RootTree, copy_tree
from tests.support.images import nasty


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


@pytest.mark.root
def test_everything_is_kept(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for folder in (source, target):
        folder.mkdir()
    nasty.make(source)
    os.setxattr(source / "empty", "trusted.note", b"kept")
    source.chmod(0o1733)
    copy_tree(str(source), str(target))
    assert nasty.differences(target, source) == {}


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
