"""Merging layers: every rule of the specification that a tree can show, whatever the order inside a layer."""

from __future__ import annotations

import itertools
import stat
from pathlib import Path
from typing import Any

import pytest

from imagefs.build.layers import MergedLayers, entries
from imagefs.format.inode import Inode, walk
from imagefs.settings import LayerLimits
from tests.support.images.layers import directory, file, hardlink, layer, symlink


class Layers:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def merge(self, *layers: Any, limits: LayerLimits | None = None) -> tuple[Inode, dict[Inode, Any]]:
        limits = limits or LayerLimits()
        merged = MergedLayers(limits)
        for members in layers:
            self._count += 1
            path = self._folder / str(self._count)
            path.write_bytes(members if isinstance(members, bytes) else layer(*members))
            merged.add(entries(str(path), limits))
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


def test_upper_layers_win_and_directories_are_one(layers: Layers) -> None:
    lower = [directory("d", mode=0o700), file("d/a", b"1"), file("d/b", b"1")]
    upper = [directory("d", mode=0o750), file("d/b", b"2"), file("d/c", b"2")]
    assert layers.names(lower, upper) == {"d": "/", "d/a": "1", "d/b": "2", "d/c": "2"}
    root, _ = layers.merge(lower, upper)
    assert root.children is not None
    assert root.children[b"d"].mode == stat.S_IFDIR | 0o750


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_whiteout_hides_lower_layers_alone_wherever_it_stands(layers: Layers, order: tuple[int, ...]) -> None:
    lower = [directory("d"), file("d/a", b"1"), file("d/b", b"1"), file("e", b"1")]
    upper = [file("d/.wh.a"), file("d/b", b"2"), file(".wh.e")]
    assert layers.names(lower, [upper[number] for number in order]) == {"d": "/", "d/b": "2"}


@pytest.mark.parametrize("first", [True, False])
def test_a_whiteout_of_what_its_own_layer_brings(layers: Layers, first: bool) -> None:
    lower = [directory("d"), file("d/old", b"1"), directory("d/sub"), file("d/sub/old", b"1")]
    own = [directory("d", mode=0o711), file("d/new", b"2"), directory("d/sub"), file("d/sub/new", b"2")]
    upper = [file(".wh.d"), *own] if first else [*own, file(".wh.d")]
    assert layers.names(lower, upper) == {"d": "/", "d/new": "2", "d/sub": "/", "d/sub/new": "2"}


@pytest.mark.parametrize("first", [True, False])
def test_opaque_directories(layers: Layers, first: bool) -> None:
    lower = [directory("d"), file("d/old", b"1"), directory("d/sub"), file("d/sub/old", b"1"), file("keep", b"1")]
    own = [file("d/new", b"2"), file("d/sub/new", b"2")]
    marker = file("d/.wh..wh..opq")
    upper = [marker, *own] if first else [*own, marker]
    assert layers.names(lower, upper) == {"d": "/", "d/new": "2", "d/sub": "/", "d/sub/new": "2", "keep": "1"}


def test_what_is_hidden_may_come_back(layers: Layers) -> None:
    assert layers.names([file("a", b"1")], [file(".wh.a")], [file("a", b"3")]) == {"a": "3"}


@pytest.mark.parametrize("mark", [".wh.d", ".wh..wh..opq"])
@pytest.mark.parametrize("first", [True, False])
def test_what_was_hidden_comes_back_without_its_attributes(layers: Layers, mark: str, first: bool) -> None:
    """umoci keeps the old owner and mode of a directory when the mark stands behind what is in it."""
    lower = [directory("d", mode=0o700, uid=5), file("d/old", b"1")]
    own = [file("d/new", b"2")]
    root, _ = layers.merge(lower, [file(mark), *own] if first else [*own, file(mark)])
    assert root.children is not None
    found = root.children[b"d"]
    assert (found.mode, found.uid, list(found.children or {})) == (stat.S_IFDIR | 0o755, 0, [b"new"])


def test_other_marks_of_aufs_say_nothing(layers: Layers) -> None:
    assert layers.names([file("a", b"1")], [file(".wh..wh.plnk"), file(".wh..wh.aufs")]) == {"a": "1"}


def test_kinds_replace_each_other(layers: Layers) -> None:
    lower = [directory("a"), file("a/x", b"1"), file("b", b"1"), symlink("c", "a")]
    upper = [file("a", b"2"), directory("b"), file("b/y", b"2"), directory("c"), file("c/z", b"2")]
    assert layers.names(lower, upper) == {"a": "2", "b": "/", "b/y": "2", "c": "/", "c/z": "2"}


def test_hardlinks_across_layers(layers: Layers) -> None:
    root, _ = layers.merge(
        [file("a", b"1"), hardlink("b", "a")],
        [hardlink("c", "b"), file("a", b"2")],
    )
    assert root.children is not None
    assert root.children[b"b"] is root.children[b"c"]
    assert root.children[b"a"] is not root.children[b"b"]
    assert layers.names([file("a", b"1"), hardlink("b", "a")], [hardlink("c", "b"), file("a", b"2")]) == {
        "a": "2",
        "b": "1",
        "c": "1",
    }


def test_parents_that_are_links_are_followed_inside_the_image(layers: Layers) -> None:
    lower = [directory("usr"), directory("usr/lib"), symlink("lib", "usr/lib"), symlink("abs", "/usr/./lib/")]
    upper = [file("lib/x", b"2"), file("abs/y", b"2")]
    found = layers.names(lower, upper)
    assert found == {
        "usr": "/",
        "usr/lib": "/",
        "lib": "-> usr/lib",
        "abs": "-> /usr/./lib/",
        "usr/lib/x": "2",
        "usr/lib/y": "2",
    }


def test_missing_parents_are_made(layers: Layers) -> None:
    root, _ = layers.merge([file("a/b/c", b"1")])
    assert root.children is not None
    assert (root.children[b"a"].mode, root.children[b"a"].mtime) == (stat.S_IFDIR | 0o755, 0)


def test_the_root_has_attributes_too(layers: Layers) -> None:
    root, _ = layers.merge([directory("./", mode=0o700, mtime=7, uid=5)])
    assert (root.mode, root.mtime, root.uid) == (stat.S_IFDIR | 0o700, 7, 5)


def test_deep_trees_need_no_deep_stack(layers: Layers) -> None:
    names = ["/".join("d" * (depth + 1)) for depth in range(1500)]
    assert layers.names([directory(name) for name in names], [file(".wh.d")]) == {}
