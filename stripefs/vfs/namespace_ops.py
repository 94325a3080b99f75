"""Namespace operations of the mounted tree: mkdir, rmdir, unlink, rename, and setting attributes.

Attributes are permissions, owners, times, and the layout of a directory.

A worker may die between a change in the store and its answer, and the kernel then asks the next one the same again. So
an *intent* (what, where, and which version was there) is in the journal before the store is asked, and is dropped with
the answer. The intents of a dead worker tell if an effect that stands already is its own: then the request has
succeeded, where it would otherwise fail with "no such file" or "exists".
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

import trio

from stripefs.errors import Exists, IsADirectory, NotADirectory, NotFound, StoreError, Unsupported
from stripefs.store.base import Attributes as Change
from stripefs.store.base import Kind, Status, Store
from stripefs.vfs import xattrs
from stripefs.vfs.errors import Invalid, NoAttribute, allowed
from stripefs.vfs.inodes import ROOT
from stripefs.vfs.tree import NodeAttributes, Tree
from stripefs.vfs.write_handle import WriteHandle, WriteHandles
from stripefs.write.directory_layout import DirectoryLayouts
from stripefs.write.namespace import LostVersions, ScheduleDelete, until_free, wait_for_writers
from stripefs.write.upload_names import ensure_usable

__all__ = ["AttributedTree", "NamespaceTree"]

_T = TypeVar("_T")

_LEFT_FOR = 60.0
"""Seconds in which a worker may be asked again what its predecessor was asked: the kernel does so at once."""


class NamespaceTree(Tree):
    """A tree whose names can be changed.

    bury: told which striped versions have lost their name. versions(path): the pool folders that a striped file needs;
    blocks. below: the store without the view that hides what stripefs keeps to itself. vacate: see `DirectoryLayouts`.
    """

    def __init__(
        self,
        *arguments: object,
        bury: ScheduleDelete | None = None,
        versions: Callable[[bytes], Iterable[str]] | None = None,
        below: Store | None = None,
        vacate: Callable[[bytes], None] | None = None,
        **options: object,
    ) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]  # those of Tree
        self._pens = WriteHandles()
        self._losses = LostVersions(self._calls, bury, versions, self._writer_of)
        self._changed_at = -1.0
        self._layouts = DirectoryLayouts(self._store if below is None else below, self._calls, vacate)
        self._left = list(self.state.intents.items())  # of a worker that is dead
        self._left_until = trio.current_time() + _LEFT_FOR

    # Directories

    async def mkdir(self, parent: int, name: bytes, mode: int) -> NodeAttributes:
        path = self._new_name(parent, name)
        async with self._intent(b"mkdir", path) as before:
            if before is None or not await self._is_directory(path):
                await self._change(f"make directory {path!r}", path, (), self._store.mkdir, path, mode & 0o7777)
            status = await self._stat(path)
            self._node(parent)
            node = self.state.see(parent, name, status.kind, None)
            attributes = self._attributes(node.id, status)
            self.state.commit()
            return attributes

    async def rmdir(self, parent: int, name: bytes) -> None:
        path = self._child(parent, name)
        async with self._intent(b"rmdir", path) as before:
            try:
                await self._stat(path)  # which knows nothing of hidden names
                await self._change(f"remove directory {path!r}", path, NotFound, self._layouts.rmdir, path)
            except NotFound:
                if before is None:
                    raise
        self._layouts.forget()
        self._drop_name(parent, name)

    # Files

    async def unlink(self, parent: int, name: bytes) -> None:
        """Remove a name. Writers and readers of the file may go on; a file being written is then published nowhere.

        Raises Busy where another mount writes it, if that does not end within moments.
        """
        path = self._child(parent, name)
        pen = self._pens.at(path)
        async with pen.lock if pen is not None else contextlib.nullcontext():
            if pen is not None and pen is not self._pens.at(path):
                pen = None  # closed, or moved, while we waited
            await self._unlink(path, pen)
        self._drop_name(parent, name)

    async def _unlink(self, path: bytes, pen: WriteHandle | None) -> None:
        async with self._intent(b"unlink", path) as before:
            try:
                status = await self._stat(path)
                if status.kind is Kind.DIRECTORY:
                    raise IsADirectory(f"{path!r} is a directory")
                if pen is None:
                    await wait_for_writers(self._calls, f"{path!r} is not unlinked", self._writer_of, path)
                old = await self._losses.of(path)
                await self._change(f"unlink {path!r}", path, NotFound, self._store.remove, path)
                await self._losses.bury(old, path, held=pen is not None)
            except NotFound:
                if before is None and pen is None:
                    raise
        if pen is not None:
            await self._pens.take_name(pen)

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, *, replace: bool) -> None:
        """Move a file or directory, also one being written, and put it in the place of another where `replace` says so.

        Raises Exists without `replace`; NotFound; Busy for a directory below which files are being written, and where
        another mount writes a file of either name, if that does not end within moments.
        """
        source, target = self._child(parent, name), self._new_name(new_parent, new_name)
        if source == target:
            await self._present(source)
            return
        if target.startswith(source + b"/"):
            raise Invalid(f"{source!r} cannot go below itself")
        async with self._both(source, target) as (pen, other):
            try:
                status = await self._stat(source)
            except NotFound:
                status = None
            there = pen is not None or status is not None
            if there and not replace and (other is not None or await self._exists(target)):
                raise Exists(f"{target!r} exists")
            refused = f"{source!r} is not renamed to {target!r}"
            if status is not None and status.kind is Kind.DIRECTORY:
                self._layouts.forget()
                for path in self._pens.below(source):
                    await self._wait_until_free(path)
                await wait_for_writers(self._calls, refused, self._writer_below, source)
            elif pen is None and status is not None:
                both = (source,) if other is not None else (source, target)
                await wait_for_writers(self._calls, refused, self._writer_of, *both)
            async with contextlib.AsyncExitStack() as moving:
                if pen is not None:
                    if other is not None:
                        await self._pens.take_name(other)  # and with it the lock
                    status = await self._before_rename(pen, status)
                    draft = pen.draft
                    await until_free(refused, lambda: moving.enter_async_context(draft.moving(target)))
                held = pen is not None or other is not None
                async with self._intent(b"rename", source, target, status=status) as before:
                    if pen is None or status is not None:
                        await self._rename(source, target, status, before, replace=replace, held=held)
                    if pen is not None:
                        self._pens.move(pen, target)
                    elif other is not None:
                        await self._pens.take_name(other)
                    self._move_nodes(pen, (parent, name), (new_parent, new_name))

    def _writer_of(self, path: bytes) -> str:
        """The other writer of the file at `path`, on any node, "" for nobody. Blocks."""
        raise NotImplementedError

    def _writer_below(self, directory: bytes) -> str:
        """The same for all files below a directory."""
        raise NotImplementedError

    async def _before_rename(self, pen: WriteHandle, status: Status | None) -> Status | None:
        """The entry at the path of a file being written, after it was published as far as possible; None for nothing.

        A program that renames what it has open has written what it wanted to write, so that a rename publishes, unless
        bytes are missing of a length that it announced.
        """
        raise NotImplementedError

    async def _rename(
        self, source: bytes, target: bytes, status: Status | None, before: bytes | None, *, replace: bool, held: bool
    ) -> None:
        if status is None:
            if before is not None and await self._is_version(target, before):
                return
            raise NotFound(f"{source!r} does not exist")
        old = await self._losses.of(target) if replace and status.kind is Kind.FILE else frozenset()
        call = self._store.rename
        what = f"rename {source!r} to {target!r}"
        await self._change(what, target, NotFound, lambda: call(source, target, replace=replace))
        self._changed(source)
        await self._losses.bury(old, target, held=held)

    # Inner workings

    async def _wait_until_free(self, path: bytes) -> None:
        """Raises Busy where somebody writes the file, unless they have closed it and the kernel is yet to say so."""
        raise NotImplementedError

    def _new_name(self, parent: int, name: bytes) -> bytes:
        """The path of a name that is to be. Raises NotPermitted for those that are kept for what is hidden."""
        ensure_usable(name, self._store)
        return self._child(parent, name)

    async def _change(
        self, what: str, path: bytes, stands: type[StoreError] | tuple[()], function: Callable[..., None], *args: object
    ) -> None:
        """As `Calls.change`; lookups of `path` see the change from now on."""
        try:
            await self._calls.change(what, stands, function, *args)
        finally:
            self._changed(path)

    def _changed(self, path: bytes) -> None:
        self._calls.outdate(("stat", path))
        self._changed_at = trio.current_time()

    async def _exists(self, path: bytes) -> bool:
        try:
            await self._stat(path)
        except NotFound:
            return False
        return True

    async def _present(self, path: bytes) -> None:
        if self._pens.at(path) is None:
            await self._stat(path)

    async def _is_directory(self, path: bytes) -> bool:
        try:
            return (await self._stat(path)).kind is Kind.DIRECTORY
        except (NotFound, NotADirectory):
            return False

    async def _is_version(self, path: bytes, facts: bytes) -> bool:
        try:
            return _facts(await self._stat(path)) == facts
        except (NotFound, NotADirectory):
            return False

    def _drop_name(self, parent: int, name: bytes) -> None:
        self.state.current.pop((parent, name), None)

    def _move_nodes(self, pen: WriteHandle | None, source: tuple[int, bytes], target: tuple[int, bytes]) -> None:
        """The kernel has moved its entry, so the node behind it has another path from now on."""
        # The node that can be looked up comes last, and so is current at the target too.
        moved = dict.fromkeys((pen.node if pen is not None else None, self.state.current.get(source)))
        self.state.current.pop(target, None)
        for node_id in moved:
            node = self.state.nodes.get(node_id) if node_id is not None else None
            if node is not None and (node.parent, node.name) == source:
                self.state.amend(node.id, *target, node.identity)
        self.state.current.pop(source, None)
        self.state.commit()

    @contextlib.asynccontextmanager
    async def _both(self, source: bytes, target: bytes) -> AsyncIterator[tuple[WriteHandle | None, WriteHandle | None]]:
        """The write handles of `source` and `target`, both locked, the one with the smaller node first."""
        while True:
            found = [self._pens.at(path) for path in (source, target)]
            async with contextlib.AsyncExitStack() as held:
                for pen in sorted({pen for pen in found if pen is not None}, key=_node_of):
                    await held.enter_async_context(pen.lock)
                if found == [self._pens.at(path) for path in (source, target)]:
                    yield found[0], found[1]
                    return

    @contextlib.asynccontextmanager
    async def _intent(self, what: bytes, *paths: bytes, status: Status | None = None) -> AsyncIterator[bytes | None]:
        """Journal the intent of a change around it; yields a dead worker's note of the same change, or None."""
        key = b"\0".join((what, *paths))
        before = self._take_left(key)
        number = self.state.intend(key + b"\0" + (b"" if status is None else _facts(status)))
        self.state.commit()
        try:
            yield before
        finally:
            self.state.settle(number)  # and no commit: a change is not done while its answer is not out

    def _take_left(self, key: bytes) -> bytes | None:
        late = trio.current_time() > self._left_until
        found = None
        for number, intent in list(self._left):
            if late or (found is None and intent.startswith(key + b"\0")):
                found = None if late else intent.removeprefix(key + b"\0")
                self._left.remove((number, intent))
                self.state.settle(number)
        return found


def _node_of(pen: WriteHandle) -> int:
    return pen.node


def _facts(status: Status) -> bytes:
    """The attributes that a rename keeps on every store: some stores give the new name another time, or another id."""
    return f"{status.kind.value} {0 if status.kind is Kind.DIRECTORY else status.length}".encode()


_LAYOUT = xattrs.PREFIX + b"layout"


class AttributedTree(NamespaceTree):
    """A tree whose names and attributes can be changed."""

    async def set_attributes(self, node_id: int, wanted: Change) -> NodeAttributes:
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
        if node.status is not None:  # fstat's answer while it is open
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
