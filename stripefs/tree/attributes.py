"""Attributes in the mounted tree that can be set: permissions, owners, times, and the layout of a directory."""

from __future__ import annotations

import dataclasses

from stripefs.errors import NotFound, Unsupported
from stripefs.store.base import Attributes as Change
from stripefs.store.base import Kind, Status
from stripefs.tree import xattrs
from stripefs.tree.entries import NamingTree
from stripefs.tree.refusals import NoAttribute, allowed
from stripefs.tree.state import ROOT
from stripefs.tree.tree import Attributes

__all__ = ["AttributedTree"]

_LAYOUT = xattrs.PREFIX + b"layout"


class AttributedTree(NamingTree):
    """A tree whose names and attributes can be changed."""

    async def set_attributes(self, node_id: int, wanted: Change) -> Attributes:
        """Change attributes of what is at the node's path. Raises StaleVersion as `getattr` does."""
        node = self._node(node_id)
        path = self.state.path(node_id)
        await self._version(node, path)
        status = await self._set(path, wanted)
        pen = self._pens.at(path)
        if pen is not None:  # it has the node of its own, and what it will publish is to look the same
            pen.set_attributes(dataclasses.replace(wanted, mtime_ns=None, atime_ns=None), pen.status)
            pen.beneath = status.identity
        if node_id != ROOT:
            identity = None if status.kind is Kind.DIRECTORY else status.identity
            if identity != node.identity:
                self.state.amend(node_id, node.parent, node.name, identity)
        if node.status is not None:  # what fstat shows while it is open
            node.status = dataclasses.replace(status, length=node.status.length)
        self.state.commit()
        return self._attributes(node_id, status)

    async def _set(self, path: bytes, wanted: Change) -> Status:
        """Raises NotPermitted where the store refuses: chmod(2), chown(2) and utimes(2) know no other word for it."""
        if wanted != Change():
            with allowed():
                await self._change(f"set attributes of {path!r}", path, (), self._store.set_attributes, path, wanted)
        return await self._stat(path)

    async def getxattr(self, node_id: int, name: bytes) -> bytes | None:
        if name == _LAYOUT:
            return (await self._layout_of_directory(node_id)).encode() or None
        return await super().getxattr(node_id, name)

    async def setxattr(self, node_id: int, name: bytes, value: bytes) -> None:
        """Only a directory's layout can be set. Raises Unsupported."""
        await self._layouts.set(self._with_layout(node_id, name), value)

    async def removexattr(self, node_id: int, name: bytes) -> None:
        directory = self._with_layout(node_id, name)
        try:
            await self._layouts.remove(directory)
        except NotFound:
            raise NoAttribute(f"{directory!r} asks for no layout") from None

    # Inner workings

    async def _owned(self, wanted: Change, uid: int | None, gid: int | None, status: Status) -> Change:
        """`wanted` with the names of the new owners, in the way in which the store has them."""
        if uid is None and gid is None:
            return wanted
        like = status if status.owner else await self._stat(b"/")

        def names() -> tuple[str | None, str | None]:
            owner = None if uid is None else self._owners.owner(uid, status.owner, like.owner)
            group = None if gid is None else self._owners.group(gid, status.group, like.group)
            self._owners.learn([dataclasses.replace(status, owner=owner or "", group=group or "")])  # to be shown
            return owner, group

        owner, group = await self._calls.call("look up owners", names)
        return dataclasses.replace(wanted, owner=owner, group=group)

    async def _layout_of_directory(self, node_id: int) -> str:
        if self._node(node_id).kind is not Kind.DIRECTORY:
            return ""
        return await self._layouts.of(self.state.path(node_id))

    def _with_layout(self, node_id: int, name: bytes) -> bytes:
        if name != _LAYOUT or self._node(node_id).kind is not Kind.DIRECTORY:
            raise Unsupported(f"extended attribute {name!r} cannot be changed")
        return self.state.path(node_id)
