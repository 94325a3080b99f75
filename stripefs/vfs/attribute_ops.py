"""Attribute operations of the mounted tree: permissions, owners, times, and the layout of a directory."""

from __future__ import annotations

import dataclasses

from stripefs.errors import NoAttribute, NotFound, Unsupported, denial_as_eperm
from stripefs.store.base import Attributes, Kind, Status
from stripefs.vfs.inodes import ROOT, identity_of
from stripefs.vfs.owners_and_xattrs import XATTR_PREFIX
from stripefs.vfs.tree import NodeAttributes, Tree
from stripefs.vfs.write_handle import WriteHandles
from stripefs.write.directory_layout import DirectoryLayouts

__all__ = ["AttributeOps"]

_LAYOUT = XATTR_PREFIX + b"layout"


class AttributeOps:
    """Changes attributes of what is published in `tree`; `handles` are told, since what they publish looks the same."""

    def __init__(self, tree: Tree, handles: WriteHandles, layouts: DirectoryLayouts) -> None:
        self._tree = tree
        self._handles = handles
        self._layouts = layouts

    async def set(self, node_id: int, wanted: Attributes) -> NodeAttributes:
        """Change attributes of what is at the node's path. Raises StaleVersion as `Tree.getattr` does."""
        tree = self._tree
        node = tree.node(node_id)
        path = tree.state.path(node_id)
        await tree.current_status(node)
        status = await self.set_at(path, wanted)
        file = self._handles.at(path)
        if file is not None:  # it has a node of its own
            file.set_attributes(dataclasses.replace(wanted, mtime_ns=None, atime_ns=None), file.status)
            file.path_identity = status.identity
        if node_id != ROOT:
            identity = identity_of(status)
            if identity != node.identity:
                tree.state.rekey(node_id, node.parent, node.name, identity)
        if node.status is not None:  # fstat's answer while it is open
            node.status = dataclasses.replace(status, length=node.status.length)
        tree.state.commit()
        return tree.attributes(node_id, status)

    async def set_at(self, path: bytes, wanted: Attributes) -> Status:
        """Change attributes of what is at `path`; its status then.

        Raises NotPermitted where the store refuses: chmod(2), chown(2) and utimes(2) have only EPERM for that.
        """
        tree = self._tree
        if wanted != Attributes():
            with denial_as_eperm():
                try:
                    await tree.calls.change(f"set attributes of {path!r}", (), tree.store.set_attributes, path, wanted)
                finally:
                    tree.changed(path)
        return await tree.stat(path)

    async def with_owners(self, wanted: Attributes, uid: int | None, gid: int | None, status: Status) -> Attributes:
        """`wanted` with the names of the new owners, in the way in which the store has them."""
        if uid is None and gid is None:
            return wanted
        owners = self._tree.owners
        like = status if status.owner else await self._tree.stat(b"/")

        def names() -> tuple[str | None, str | None]:
            owner = None if uid is None else owners.owner(uid, status.owner, like.owner)
            group = None if gid is None else owners.group(gid, status.group, like.group)
            owners.learn([dataclasses.replace(status, owner=owner or "", group=group or "")])  # to be shown
            return owner, group

        owner, group = await self._tree.calls.call("look up owners", names)
        return dataclasses.replace(wanted, owner=owner, group=group)

    # Extended attributes

    async def getxattr(self, node_id: int, name: bytes) -> bytes | None:
        """As `Tree.getxattr`, and the layout of a directory."""
        if name != _LAYOUT:
            return await self._tree.getxattr(node_id, name)
        if self._tree.node(node_id).kind is not Kind.DIRECTORY:
            return None
        return (await self._layouts.of(self._tree.state.path(node_id))).encode() or None

    async def setxattr(self, node_id: int, name: bytes, value: bytes) -> None:
        """Only a directory's layout can be set. Raises Unsupported."""
        await self._layouts.set(self._with_layout(node_id, name), value)

    async def removexattr(self, node_id: int, name: bytes) -> None:
        directory = self._with_layout(node_id, name)
        try:
            await self._layouts.remove(directory)
        except NotFound:
            raise NoAttribute(f"{directory!r} asks for no layout") from None

    def _with_layout(self, node_id: int, name: bytes) -> bytes:
        if name != _LAYOUT or self._tree.node(node_id).kind is not Kind.DIRECTORY:
            raise Unsupported(f"extended attribute {name!r} cannot be changed")
        return self._tree.state.path(node_id)
