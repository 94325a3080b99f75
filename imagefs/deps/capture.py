"""The tree that a dependency snapshot packs: a directory, or the targets in the upper directory of a container.

The upper directory of an overlay becomes a lower directory of later containers, above the same image, so what hides
parts of the image stays: whiteouts, which are devices 0:0, and the attribute of opaque directories. Attributes that an
overlay notes for itself alone go. Nothing is captured but the targets, and the directories above them; everything keeps
its times, owners, modes, attributes and names.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence

from imagefs.build.content import Content, scan
from imagefs.deps.check.rules import inside
from imagefs.deps.check.tree import TRANSIENT, matches
from imagefs.deps.inventory import OPAQUE, Inventory
from imagefs.deps.target import ATTRIBUTE
from imagefs.errors import SnapshotError
from imagefs.format.inodes import Inode, shown, walk

__all__ = ["CapturedTree", "capture_directory", "capture_upper", "is_captured"]

CapturedTree = tuple[Inode, dict[Inode, Content]]
"""The root, and what the files below it hold."""

_PREFIX = b"trusted.overlay."
_FOR_ITSELF = {_PREFIX + name for name in (b"origin", b"impure", b"nlink", b"upper", b"uuid", b"protattr")}
"""Of fs/overlayfs/overlayfs.h: how an upper file came to be, which says nothing once it is in a lower directory."""


def capture_directory(seen: Inventory) -> CapturedTree:
    """A directory as the root, without its label, and of all that is in it what was `seen`.

    Raises BuildError for what cannot be read.
    """
    root, contents = scan(seen.top)
    root.xattrs = tuple(one for one in root.xattrs if one[0] != os.fsencode(ATTRIBUTE))
    for path, folder in list(walk(root, directories=True)):
        above, children = f"{os.fsdecode(path)}/" if path else "", folder.children or {}
        folder.children = {name: one for name, one in children.items() if above + os.fsdecode(name) in seen.entries}
    return root, {inode: contents[inode] for _, inode in walk(root) if inode in contents}


def capture_upper(upper: str, targets: Sequence[str]) -> CapturedTree:
    """The tree of an upper directory at and below `targets`, absolute paths in the container, without what is
    `TRANSIENT`. Raises BuildError for what cannot be read, and SnapshotError for what no lower directory can say."""
    root, contents = scan(upper)
    _prune(root, [target.strip("/") for target in targets])
    kept: dict[Inode, Content] = {}
    for path, inode in walk(root):
        inode.xattrs = tuple(_kept_attributes(path, inode))
        if inode in contents:
            kept[inode] = contents[inode]
    return root, kept


def is_captured(path: str, targets: Sequence[str]) -> bool:
    """Tells whether `capture_upper` takes what is at this path below the upper directory; the directories above are
    not."""
    wanted = [target.strip("/") for target in targets]
    return _is_taken(path, wanted, _spared(wanted))


def _prune(root: Inode, targets: Sequence[str]) -> None:
    """Take out what is neither at, below nor above a target, and what is ignored."""
    spared = _spared(targets)
    stack = [("", root)]
    while stack:
        above, directory = stack.pop()
        kept = {}
        for name, child in (directory.children or {}).items():
            path = posixpath.join(above, os.fsdecode(name))
            if not _inside_any(path, spared):
                if not _is_taken(path, targets, spared):
                    if not child.is_directory or not any(inside(target, path) for target in targets):
                        continue
                    if (os.fsencode(OPAQUE), b"y") in child.xattrs:
                        raise SnapshotError(f"/{path} was replaced, and not only the target in it")
                stack.append((path, child))
            kept[name] = child
        directory.children = kept if directory.is_directory else None


def _spared(targets: Sequence[str]) -> list[str]:
    """Targets that lie inside of what is ignored, and are taken all the same."""
    return [target for target in targets if matches(f"/{target}", TRANSIENT)]


def _is_taken(path: str, targets: Sequence[str], spared: Sequence[str]) -> bool:
    return _inside_any(path, spared) or (_inside_any(path, targets) and not matches(f"/{path}", TRANSIENT))


def _inside_any(path: str, folders: Sequence[str]) -> bool:
    return any(inside(path, folder) for folder in folders)


def _kept_attributes(path: bytes, inode: Inode) -> list[tuple[bytes, bytes]]:
    kept = []
    for name, value in inode.xattrs:
        if name.startswith(b"user.overlay.") or (
            name.startswith(_PREFIX) and name not in _FOR_ITSELF and (name, value) != (os.fsencode(OPAQUE), b"y")
        ):
            raise SnapshotError(
                f"{shown(path) or '/'}: {shown(name)} says what a snapshot cannot hold",
                hint="mount the overlay with redirect_dir=off,metacopy=off,index=off and without userxattr",
            )
        if name not in _FOR_ITSELF:
            kept.append((name, value))
    return kept
