"""Layers of an OCI image as one tree: entries of archives, merged by the image specification (image-spec, layer.md).

A whiteout hides what lower layers have, never what its own layer has, wherever in the layer it stands; so every node
knows the layer that made it. Directories of several layers are one, with the attributes of the last that describes it;
what a whiteout hid and its own layer brings back without a word about it is a directory that no layer describes. A
hardlink is resolved in the tree as it stands. A parent that is a symbolic link is followed, inside the image, as every
runtime does when it unpacks; one that leads above the root is refused.
"""

from __future__ import annotations

import io
import logging
import os
import stat
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from imagefs.build.content import Content
from imagefs.build.tar import Member, Pieces, members
from imagefs.errors import BuildError, HostileLayer
from imagefs.format.inodes import Inode, shown
from imagefs.settings import LayerLimits

__all__ = ["LayerEntry", "MergedLayers", "TarContent", "entries"]

_log = logging.getLogger("imagefs.build")
_XATTR = b"SCHILY.xattr."
_NAMESPACES = (b"user.", b"trusted.", b"security.", b"system.posix_acl_access", b"system.posix_acl_default")
_OF_FILES = (b"user.", b"system.")  # of links and devices the kernel lists such names, but does not read them
_OWNER_MAX = (1 << 32) - 2  # the last number says "as it was" to chown, and "nobody" to the kernel
_KINDS = {
    b"0": stat.S_IFREG,
    b"7": stat.S_IFREG,  # contiguous on systems of long ago
    b"S": stat.S_IFREG,
    b"2": stat.S_IFLNK,
    b"3": stat.S_IFCHR,
    b"4": stat.S_IFBLK,
    b"5": stat.S_IFDIR,
    b"6": stat.S_IFIFO,
}
_HARDLINK = b"1"


@dataclass(frozen=True, slots=True)
class TarContent:
    """A file inside an unpacked layer at `path`: pieces (offset in the file, length, offset in the archive)."""

    path: str
    size: int
    pieces: Pieces

    def __str__(self) -> str:
        return "a file of a layer"

    def ranges(self) -> Iterator[tuple[int, int]]:
        return ((offset, length) for offset, length, _ in self.pieces)

    def open(self) -> BinaryIO:
        return io.BufferedReader(_Pieces(open(self.path, "rb", buffering=0), self.pieces, self.size), 1 << 18)


class LayerEntry(NamedTuple):
    """One member: where it stands, and either what it is or, for a hardlink, the name of that."""

    parts: tuple[bytes, ...]
    inode: Inode | None
    link_to: tuple[bytes, ...] = ()
    content: TarContent | None = None


def entries(path: str, limits: LayerLimits) -> Iterator[LayerEntry]:
    """The members of the archive at `path`, in order. Raises HostileLayer and BuildError.

    Attributes that Linux gives to files and directories alone are left out of others, which a line of the log says.
    """
    left_out: list[str] = []
    for member in members(path, limits):
        yield _entry(path, member, limits, left_out)
    if left_out:
        more = f" and {len(left_out) - 1} more" if left_out[1:] else ""
        _log.warning("left out, as only files and directories can have them: %s%s", left_out[0], more)


def _entry(path: str, member: Member, limits: LayerLimits, left_out: list[str]) -> LayerEntry:
    parts = _parts(member.name, limits)
    if member.kind == _HARDLINK:
        return LayerEntry(parts, None, _parts(member.link, limits))
    kind = _KINDS.get(member.kind)
    if kind is None:
        raise BuildError(f"{shown(member.name)}: members of type {member.kind!r} are not known")
    if not (0 <= member.uid <= _OWNER_MAX and 0 <= member.gid <= _OWNER_MAX):
        raise HostileLayer(f"{shown(member.name)}: owner {member.uid}:{member.gid} is out of range")
    inode = Inode(
        mode=kind | member.mode & 0o7777,
        uid=member.uid,
        gid=member.gid,
        mtime=member.mtime,
        mtime_ns=member.mtime_ns,
        xattrs=_xattrs(member, kind, left_out) if member.records else (),
    )
    if kind == stat.S_IFREG:
        inode.size = member.size
        return LayerEntry(parts, inode, content=TarContent(path, member.size, member.pieces))
    if kind == stat.S_IFLNK:
        inode.mode = kind | 0o777  # links have no other
        inode.data = member.link
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        inode.rdev = member.device
    return LayerEntry(parts, inode)


def _xattrs(member: Member, kind: int, left_out: list[str]) -> tuple[tuple[bytes, bytes], ...]:
    """The attributes that Linux has a place for; macOS leaves others (com.apple.…) in layers, which no runtime sets."""
    found = []
    for key, value in member.records.items():
        name = key.removeprefix(_XATTR)
        if len(name) < len(key) and name.startswith(_NAMESPACES):
            if len(name) > 255 or len(value) > 65535:
                raise HostileLayer(f"{shown(member.name)}: the attribute {shown(name)} is too long")
            if kind in (stat.S_IFREG, stat.S_IFDIR) or not name.startswith(_OF_FILES):
                found.append((name, value))
            else:
                left_out.append(f"{shown(name)} of {shown(member.name)}")
    return tuple(sorted(found))


def _parts(name: bytes, limits: LayerLimits) -> tuple[bytes, ...]:
    """The components of a name, "." and slashes at both ends left out. A layer has no business above its root."""
    if len(name) > limits.path_bytes:
        raise HostileLayer(f"{shown(name)}: a name of {len(name)} bytes")
    parts = tuple([part for part in name.split(b"/") if part not in (b"", b".")])
    if b".." in parts:
        raise HostileLayer(f"{shown(name)}: a name that leads upward")
    if len(name) > 255 and any(len(part) > 255 for part in parts):
        raise HostileLayer(f"{shown(name)}: a component of more than 255 bytes")
    return parts


class _Pieces(io.RawIOBase):
    """A file made of pieces of another, zeros between them."""

    def __init__(self, archive: io.FileIO, pieces: Pieces, size: int) -> None:
        super().__init__()
        self._archive = archive
        self._pieces = pieces
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # as BufferedReader calls it
        position, wanted = self._position, min(len(buffer), self._size - self._position)
        if wanted <= 0:
            return 0
        after = bisect_right(self._pieces, position, key=lambda piece: piece[0])
        end = self._pieces[after][0] if after < len(self._pieces) else self._size
        count = min(wanted, end - position)
        offset, length, at = self._pieces[after - 1] if after else (0, 0, 0)
        if position < offset + length:
            data = os.pread(self._archive.fileno(), min(count, offset + length - position), at + position - offset)
            count = len(data)
            buffer[:count] = data
        else:
            buffer[:count] = bytes(count)
        self._position += count
        return count

    def close(self) -> None:
        self._archive.close()
        super().close()


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


class MergedLayers:
    """The tree so far. Call `add` for each layer, the lowest first, then `tree`."""

    def __init__(self, limits: LayerLimits) -> None:
        self._limits = limits
        self._root = _Node(_directory(), 0)
        self._layer = 0
        self._entries = 0
        self._bytes = 0
        self._attributes = 0
        self._contents: dict[Inode, Content] = {}

    def add(self, entries: Iterable[LayerEntry]) -> None:
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

    def _weigh(self, entry: LayerEntry) -> None:
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

    def _apply(self, entry: LayerEntry) -> None:
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
