"""Layers into one tree, by the rules of the OCI image specification (image-spec, layer.md).

A whiteout hides what lower layers have, never what its own layer has, wherever in the layer it stands; so every node
knows the layer that made it. Directories of several layers are one, with the attributes of the last that describes it;
what a whiteout hid and its own layer brings back without a word about it is a directory that no layer describes. A
hardlink is resolved in the tree as it stands. A parent that is a symbolic link is followed, inside the image, as every
runtime does when it unpacks; one that leads above the root is refused.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable

from imagefs.build.content import Content
from imagefs.build.tar import Entry
from imagefs.errors import BuildError, HostileLayer
from imagefs.format.inode import Inode, shown
from imagefs.settings import LayerLimits

__all__ = ["Merged"]

_WHITEOUT = b".wh."
_OPAQUE = b".wh..wh..opq"
_RESERVED = b".wh..wh."  # of aufs: says nothing about the tree
_LINKS = 40  # as many as the kernel follows
_PIECE = 128  # bytes of memory that a piece of a sparse file takes
_STEPS = 2048  # components of the longest path that the kernel takes: one way to a file, links followed, has no more


class _Node:
    """A name's inode and the layer that put it there.

    For a directory `below` is what is in it, and `own` the layer of which everything below is known to be, if any.
    """

    __slots__ = ("below", "inode", "layer", "own")

    def __init__(self, inode: Inode, layer: int) -> None:
        self.inode = inode
        self.layer = self.own = layer
        self.below: dict[bytes, _Node] | None = {} if inode.is_directory else None


class Merged:
    """The tree so far. Call `add` for each layer, the lowest first, then `tree`."""

    def __init__(self, limits: LayerLimits) -> None:
        self._limits = limits
        self._root = _Node(_directory(), 0)
        self._layer = 0
        self._entries = 0
        self._bytes = 0
        self._attributes = 0
        self._contents: dict[Inode, Content] = {}

    def add(self, entries: Iterable[Entry]) -> None:
        """Put a layer on top. Raises HostileLayer, and BuildError for a link to nothing."""
        self._layer += 1
        if self._layer > self._limits.layers:
            raise HostileLayer(f"more than {self._limits.layers} layers", hint="--max-layers allows more")
        for entry in entries:
            self._count()
            self._weigh(entry)
            self._apply(entry)

    def tree(self) -> tuple[Inode, dict[Inode, Content]]:
        """The root, and what the files hold that are still in the tree."""
        contents: dict[Inode, Content] = {}
        stack = [self._root]
        while stack:
            node = stack.pop()
            if node.below is not None:
                node.inode.children = {name: child.inode for name, child in node.below.items()}
                stack += node.below.values()
            elif node.inode in self._contents:
                contents[node.inode] = self._contents[node.inode]
        return self._root.inode, contents

    def _count(self) -> None:
        self._entries += 1
        if self._entries > self._limits.entries:
            raise HostileLayer(f"more than {self._limits.entries} entries", hint="--max-entries allows more")

    def _weigh(self, entry: Entry) -> None:
        inode, content = entry.inode, entry.content
        if inode is None:
            return
        if inode.xattrs or inode.data:
            self._attributes += len(inode.data or b"") + sum(len(name) + len(value) for name, value in inode.xattrs)
        if content is not None:
            self._bytes += content.size
            self._attributes += _PIECE * (len(content.pieces) - 1)
        limits = self._limits
        if self._bytes > limits.tree_bytes:
            raise HostileLayer(
                f"{_shown(entry.parts)}: files of more than {limits.tree_bytes} bytes with this one",
                hint="--max-size allows more",
            )
        if self._attributes > limits.attribute_bytes:
            raise HostileLayer(
                f"{_shown(entry.parts)}: attributes of more than {limits.attribute_bytes} bytes with this one",
                hint="--max-attributes allows more",
            )

    def _apply(self, entry: Entry) -> None:
        if not entry.parts:
            if entry.inode is None or not entry.inode.is_directory:
                raise HostileLayer("a layer whose root is no directory")
            self._root.inode, self._root.layer = entry.inode, self._layer
            return
        *folders, name = entry.parts
        if name.startswith(_WHITEOUT):
            self._white_out(tuple(folders), name)
            return
        parent = self._parent(tuple(folders), make=True)
        assert parent is not None
        assert parent.below is not None
        if entry.inode is None:
            target = self._lookup(entry.link_to)
            if target is None or target.below is not None:
                raise BuildError(f"{_shown(entry.parts)} is a hardlink to {_shown(entry.link_to)}, which is no file")
            parent.below[name] = _Node(target.inode, self._layer)
            return
        old = parent.below.get(name)
        if entry.content is not None:
            self._contents[entry.inode] = entry.content
        if old is not None and old.below is not None and entry.inode.is_directory:
            old.inode, old.layer = entry.inode, self._layer
        else:
            parent.below[name] = _Node(entry.inode, self._layer)

    def _white_out(self, folders: tuple[bytes, ...], name: bytes) -> None:
        parent = self._parent(folders, make=False)
        if parent is None or parent.below is None:
            return
        if name == _OPAQUE:
            self._hide_below(parent)
            return
        hidden = name.removeprefix(_WHITEOUT)
        if name.startswith(_RESERVED):
            return
        if hidden in (b"", b".", b".."):
            raise HostileLayer(f"{_shown((*folders, name))}: a whiteout of no name")
        node = parent.below.get(hidden)
        if node is None:
            return
        if node.below is not None:
            self._hide_below(node)
        if node.layer != self._layer:
            if node.below:
                node.inode, node.layer = _directory(), self._layer
            else:
                del parent.below[hidden]

    def _hide_below(self, directory: _Node) -> None:
        """Take out of a directory what lower layers put there: once a layer, however many marks it has."""
        # Without recursion: a layer may nest as deep as its names are long.
        order, stack = [], [directory]
        while stack:
            node = stack.pop()
            if node.below is not None and node.own != self._layer:
                node.own = self._layer
                order.append(node)
                stack += node.below.values()
        for node in reversed(order):
            assert node.below is not None
            node.below = {
                name: child for name, child in node.below.items() if child.layer == self._layer or child.below
            }
            for child in node.below.values():
                if child.layer != self._layer:
                    child.inode, child.layer = _directory(), self._layer

    def _parent(self, folders: tuple[bytes, ...], *, make: bool) -> _Node | None:
        """The directory of that name, made where it is missing; None where it is missing and is not to be made."""
        node = self._resolve(folders, make=make)
        if node is not None and node.below is None:
            if not make:
                return None
            raise BuildError(f"{_shown(folders)} is no directory, yet a layer has something in it")
        return node

    def _lookup(self, parts: tuple[bytes, ...]) -> _Node | None:
        if not parts:
            return self._root
        parent = self._resolve(parts[:-1], make=False)
        return parent.below.get(parts[-1]) if parent is not None and parent.below is not None else None

    def _resolve(self, parts: tuple[bytes, ...], *, make: bool) -> _Node | None:
        """Walk down from the root, following links inside the image."""
        path = [self._root]
        left = list(reversed(parts))
        followed = steps = 0
        while left:
            part = left.pop()
            steps += 1
            if steps > _STEPS:
                raise HostileLayer(f"{_shown(parts)}: a path of more than {_STEPS} components")
            if part == b"..":
                if len(path) == 1:
                    raise HostileLayer(f"{_shown(parts)}: through a link that leads above the root")
                path.pop()
                continue
            here = path[-1]
            if here.below is None:
                return here if make else None  # the caller says that it is no directory
            node = here.below.get(part)
            if node is None:
                if not make:
                    return None
                self._count()
                node = here.below[part] = _Node(_directory(), self._layer)
            if stat.S_ISLNK(node.inode.mode):
                followed += 1
                if followed > _LINKS:
                    raise HostileLayer(f"{_shown(parts)}: links that lead in a circle")
                target = node.inode.data or b""
                if target.startswith(b"/"):
                    path = [self._root]
                left += [step for step in reversed(target.split(b"/")) if step not in (b"", b".")]
                continue
            path.append(node)
        return path[-1]


def _directory() -> Inode:
    """A directory that no layer describes: what runtimes make of it, at the beginning of time."""
    return Inode(stat.S_IFDIR | 0o755)


def _shown(parts: tuple[bytes, ...]) -> str:
    return shown(b"/".join(parts)) or "/"
