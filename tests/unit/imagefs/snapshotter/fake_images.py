"""Lazy images in memory: a tree is a directory, and the daemon's leases are a set that outlives the snapshotter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from imagefs.errors import DamagedObject
from imagefs.snapshotter.metastore import Layer, SnapshotRecord, Tree, Usage
from imagefs.snapshotter.snapshotter import TARGET, LazyLayer
from stripefs.errors import MountError

__all__ = ["HIGHEST", "IMAGE", "FakeImages"]

IMAGE = "containerd.io/snapshot/test.image"
"""Label of an extraction: the image whose layer it is."""

HIGHEST = "containerd.io/snapshot/test.highest"
"""Label of an extraction: there where the layer is the highest of its image."""


class FakeImages:
    """The images in `stored`; all trees lie below `folder`."""

    def __init__(self, folder: Path, stored: Sequence[str] = ("lazy",)) -> None:
        self.folder = folder
        self.stored = set(stored)
        self.leases: dict[int, str] = {}
        self.built: list[tuple[str, int]] = []
        self.away = False
        self.damaged: set[str] = set()
        self.forgotten: list[str] = []
        self.newest: Tree | None = None

    def find(self, labels: Mapping[str, str]) -> LazyLayer | None:
        image = labels.get(IMAGE, "")
        if image not in self.stored or self.away:
            return None
        layer = Layer(labels[TARGET], f"registry/{image}:1", "sha256:manifest")
        return LazyLayer(layer, Tree("store", image) if HIGHEST in labels else None)

    def tree(self, layer: Layer, depth: int, known: Tree | None) -> Tree:
        return self.newest or known or self.build(layer, depth)

    def build(self, layer: Layer, depth: int) -> Tree:
        self._check()
        self.built.append((layer.chain, depth))
        return Tree("built", f"layers of {layer.chain}")

    def mount(self, layer: Layer, tree: Tree, snapshot: SnapshotRecord) -> list[str]:
        self._check()
        if tree.image in self.damaged:
            raise DamagedObject(f"{tree.image} is damaged")
        path = self.folder / tree.image
        path.mkdir(exist_ok=True)
        self.leases[snapshot.id] = tree.image
        return [str(path)]

    def release(self, snapshot: int) -> None:
        self.leases.pop(snapshot, None)

    def mounted(self) -> set[int]:
        self._check()
        return set(self.leases)

    def forget(self, tree: Tree, needed: Callable[[], Collection[Tree]]) -> None:
        if tree not in needed():
            self.forgotten.append(tree.image)

    def usage(self, tree: Tree, others: Collection[Tree]) -> Usage:
        """Every image has a byte of its own by each letter of its name, and shares one with all."""
        self._check()
        return Usage(0, 0) if tree in others else Usage(len(tree.image) + (not others), 1)

    def _check(self) -> None:
        if self.away:
            raise MountError("the daemon does not answer")
