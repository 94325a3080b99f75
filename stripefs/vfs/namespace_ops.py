"""Namespace operations of the mounted tree: mkdir, rmdir, unlink and rename.

A worker may die between a change in the store and its answer, and the kernel then asks the next one the same again. So
an *intent* (operation, paths, and the version that was there) is in the journal before the store is asked, and is
dropped with the answer. The intents of a dead worker tell if an effect that stands already is its own: then the request
has succeeded, where it would otherwise fail with "no such file" or "exists".
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Coroutine
from operator import attrgetter
from typing import Any

import trio

from stripefs.errors import Exists, NotADirectory, NotFound
from stripefs.store.base import Kind, Status
from stripefs.vfs.inodes import InodeTable
from stripefs.vfs.publishing import HandlePublisher
from stripefs.vfs.tree import NodeAttributes, Tree
from stripefs.vfs.write_handle import WriteHandle, WriteHandles
from stripefs.write.namespace import NamespaceChanges, ensure_not_below, not_renamed, until_free
from stripefs.write.upload_names import ensure_usable

__all__ = ["Intents", "NamespaceOps"]

_REPEATED_WITHIN = 60.0
"""Seconds in which a worker may be asked again what its predecessor was asked: the kernel does so at once."""


class Intents:
    """Intents of the changes that are made now, and those that a dead worker left (`inherited`: number and key)."""

    def __init__(self, state: InodeTable) -> None:
        self._state = state
        self.inherited = list(state.intents.items())
        self._inherited_until = trio.current_time() + _REPEATED_WITHIN

    @contextlib.asynccontextmanager
    async def journaled(
        self, operation: bytes, *paths: bytes, status: Status | None = None
    ) -> AsyncIterator[bytes | None]:
        """Journal the intent of a change around it; yields a dead worker's note of the same change, or None."""
        key = b"\0".join((operation, *paths))
        before = self._pop_inherited(key)
        number = self._state.begin_intent(key + b"\0" + (b"" if status is None else _fingerprint(status)))
        self._state.commit()
        try:
            yield before
        finally:
            self._state.end_intent(number)  # and no commit: a change is not done while its answer is not out

    def _pop_inherited(self, key: bytes) -> bytes | None:
        late = trio.current_time() > self._inherited_until
        found = None
        for number, intent in list(self.inherited):
            if late or (found is None and intent.startswith(key + b"\0")):
                found = None if late else intent.removeprefix(key + b"\0")
                self.inherited.remove((number, intent))
                self._state.end_intent(number)
        return found


def _fingerprint(status: Status) -> bytes:
    """The attributes that a rename keeps on every store: some stores give the new name another time, or another id."""
    return f"{status.kind.value} {0 if status.kind is Kind.DIRECTORY else status.length}".encode()


_DIRECTORY = _fingerprint(Status(b"", Kind.DIRECTORY))


class NamespaceOps:
    """Changes the names of `tree`, also those of files that are being written (`handles`)."""

    def __init__(
        self,
        tree: Tree,
        handles: WriteHandles,
        publisher: HandlePublisher,
        intents: Intents,
        changes: NamespaceChanges,
    ) -> None:
        self._tree = tree
        self._state = tree.state
        self._handles = handles
        self._publisher = publisher
        self._intents = intents
        self._changes = changes

    # Directories

    async def mkdir(self, parent: int, name: bytes, mode: int) -> NodeAttributes:
        ensure_usable(name, self._tree.store)
        path = self._tree.child_path(parent, name)
        async with self._intents.journaled(b"mkdir", path) as before:
            if before is None or not await self._is_version(path, _DIRECTORY):
                await self._change(path, self._changes.mkdir(path, mode & 0o7777))
            return self._tree.looked_up(parent, name, await self._tree.stat(path), None)

    async def rmdir(self, parent: int, name: bytes) -> None:
        path = self._tree.child_path(parent, name)
        async with self._intents.journaled(b"rmdir", path) as before:
            try:
                await self._tree.stat(path)  # which knows nothing of hidden names
                await self._change(path, self._changes.rmdir(path))
            except NotFound:
                if before is None:
                    raise
        self._drop_name(parent, name)

    # Files

    async def unlink(self, parent: int, name: bytes) -> None:
        """Remove a name. Writers and readers of the file may go on; a file being written is then published nowhere.

        Raises Busy where another mount writes it, if that does not end within moments.
        """
        path = self._tree.child_path(parent, name)
        file = self._handles.at(path)
        async with file.lock if file is not None else contextlib.nullcontext():
            if file is not None and file is not self._handles.at(path):
                file = None  # closed, or moved, while we waited
            await self._unlink(path, file)
        self._drop_name(parent, name)

    async def _unlink(self, path: bytes, file: WriteHandle | None) -> None:
        async with self._intents.journaled(b"unlink", path) as before:
            try:
                status = await self._tree.stat(path)
                await self._change(path, self._changes.remove(path, status, locked=file is not None))
            except NotFound:
                if before is None and file is None:
                    raise
        if file is not None:
            await self._handles.detach(file)

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, *, replace: bool) -> None:
        """Move a file or directory, also one being written, and put it in the place of another where `replace` says so.

        Raises Exists without `replace`; NotFound; Busy for a directory below which files are being written, and where
        another mount writes a file of either name, if that does not end within moments.
        """
        ensure_usable(new_name, self._tree.store)
        source, target = self._tree.child_path(parent, name), self._tree.child_path(new_parent, new_name)
        ensure_not_below(source, target)
        if source == target:
            if self._handles.at(source) is None:
                await self._tree.stat(source)
            return
        async with self._locked_handles(source, target) as (file, other):
            status = await self._tree.find(source)
            there = file is not None or status is not None
            if there and not replace and (other is not None or await self._tree.find(target) is not None):
                raise Exists(f"{target!r} exists")
            if status is not None and status.kind is Kind.DIRECTORY:
                for path in self._handles.below(source):
                    await self._publisher.wait_until_free(path)
            if status is not None and (file is None or status.kind is Kind.DIRECTORY):
                await self._changes.wait_for_rename(source, target, status, target_locked=other is not None)
            async with contextlib.AsyncExitStack() as moving:
                if file is not None:
                    if other is not None:
                        await self._handles.detach(other)  # and with it the lock
                    # A process that renames a file which it has open has written all of it, unless bytes are missing of
                    # a length that it announced.
                    if file.dirty and file.complete:
                        status = await self._publisher.publish(file, final=False)
                    upload = file.upload
                    refused = not_renamed(source, target)
                    await until_free(refused, lambda: moving.enter_async_context(upload.moving(target)))
                locked = file is not None or other is not None
                async with self._intents.journaled(b"rename", source, target, status=status) as before:
                    if file is None or status is not None:
                        await self._rename(source, target, status, before, replace=replace, locked=locked)
                    if file is not None:
                        self._handles.move(file, target)
                    elif other is not None:
                        await self._handles.detach(other)
                    self._move_nodes(file, (parent, name), (new_parent, new_name))

    async def _rename(
        self, source: bytes, target: bytes, status: Status | None, before: bytes | None, *, replace: bool, locked: bool
    ) -> None:
        if status is None:
            if before is not None and await self._is_version(target, before):
                return
            raise NotFound(f"{source!r} does not exist")
        try:
            await self._changes.rename(source, target, status, replace=replace, locked=locked)
        finally:
            self._tree.changed(target)
            self._tree.changed(source)

    # Inner workings

    async def _change(self, path: bytes, change: Coroutine[Any, Any, None]) -> None:
        """`await change`; lookups of `path` see it from now on."""
        try:
            await change
        finally:
            self._tree.changed(path)

    async def _is_version(self, path: bytes, fingerprint: bytes) -> bool:
        try:
            return _fingerprint(await self._tree.stat(path)) == fingerprint
        except (NotFound, NotADirectory):
            return False

    def _drop_name(self, parent: int, name: bytes) -> None:
        self._state.current.pop((parent, name), None)

    def _move_nodes(self, file: WriteHandle | None, source: tuple[int, bytes], target: tuple[int, bytes]) -> None:
        """The kernel has moved its entry, so the node behind it has another path from now on."""
        # The node that can be looked up comes last, and so is current at the target too.
        moved = dict.fromkeys((file.node if file is not None else None, self._state.current.get(source)))
        self._state.current.pop(target, None)
        for node_id in moved:
            node = self._state.nodes.get(node_id) if node_id is not None else None
            if node is not None and (node.parent, node.name) == source:
                self._state.rekey(node.id, *target, node.identity)
        self._state.current.pop(source, None)
        self._state.commit()

    @contextlib.asynccontextmanager
    async def _locked_handles(
        self, source: bytes, target: bytes
    ) -> AsyncIterator[tuple[WriteHandle | None, WriteHandle | None]]:
        """The write handles of `source` and `target`, both locked, the one with the smaller node first."""
        while True:
            found = [self._handles.at(path) for path in (source, target)]
            async with contextlib.AsyncExitStack() as held:
                for file in sorted({file for file in found if file is not None}, key=attrgetter("node")):
                    await held.enter_async_context(file.lock)
                if found == [self._handles.at(path) for path in (source, target)]:
                    yield found[0], found[1]
                    return
