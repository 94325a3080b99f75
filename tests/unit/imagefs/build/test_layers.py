"""Merging layers: every rule of the specification that a tree can show, whatever the order inside a layer."""

from __future__ import annotations

import stat
from pathlib import Path, PurePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.build.layers import MergedLayers, entries
from imagefs.format.inodes import Inode, walk
from imagefs.settings import LayerLimits
from tests.support.examples import examples
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


def test_the_root_has_attributes_too(layers: Layers) -> None:
    root, _ = layers.merge([directory("./", mode=0o700, mtime=7, uid=5)])
    assert (root.mode, root.mtime, root.uid) == (stat.S_IFDIR | 0o700, 7, 5)


def test_deep_trees_need_no_deep_stack(layers: Layers) -> None:
    names = ["/".join("d" * (depth + 1)) for depth in range(1500)]
    assert layers.names([directory(name) for name in names], [file(".wh.d")]) == {}
