"""Write operations of the mounted tree: create, open for writing, write, flush, fsync, release.

The state of a file that is open for writing is in `write_handle`, the way of its bytes to the store in
`stripefs.write`. Visibility: the path keeps its version until a new one is published, which happens when the opener
closes the file, when it renames it, and at the latest when the last handle is closed. A name that has no
version yet can be looked up from the moment it is created, for the programs of this host, and not be read; listings
show it among the names of the store (`UnpublishedNames`).

Closing is where errors must arrive. FLUSH publishes unless the opener still holds the file, and then makes it durable;
bytes of a killed opener are not published (`writer_process`). RELEASE publishes what was written since.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import stat
from collections.abc import Iterator, Sequence

import trio

from stripefs.errors import Busy, Exists, NotFound, StaleVersion
from stripefs.store.base import Attributes as Change
from stripefs.store.base import Buffer, Identity, Kind, Status, Store
from stripefs.supervised import contain
from stripefs.vfs.errors import NoVersion, Unseen, allowed
from stripefs.vfs.inodes import FileHandle, Inode
from stripefs.vfs.publishing import PublishingTree
from stripefs.vfs.tree import NodeAttributes, UnknownHandle, require_file
from stripefs.vfs.write_handle import WriteHandle, WriteHandles, future, is_future
from stripefs.vfs.writer_process import WriterProcess, WriterState

__all__ = ["UnpublishedNames", "WritableTree"]


class UnpublishedNames:
    """Names of a directory for its handle, with unpublished ones. A name that the store has is the store's: it has a
    version that can be read."""

    def __init__(self, store: Store, pens: WriteHandles) -> None:
        self._store = store
        self._pens = pens

    def scandir(self, path: bytes, after: bytes) -> Iterator[Sequence[Status]]:
        """As `Store.scandir`; runs in a thread, and looks at the write handles once."""
        new = sorted(
            (
                dataclasses.replace(pen.status, name=pen.path.rpartition(b"/")[2], file_id=pen.mark)
                for pen in list(self._pens.by_node.values())
                if pen.path is not None and pen.path.rpartition(b"/")[0] == path.rstrip(b"/")
            ),
            key=_name_of,
        )
        new = [status for status in new if status.name > after]
        for batch in self._store.scandir(path, after):
            if batch and new and new[0].name <= batch[-1].name:
                there = {status.name for status in batch}
                last = batch[-1].name
                batch = sorted(
                    [*batch, *(one for one in new if one.name < last and one.name not in there)], key=_name_of
                )
                new = [status for status in new if status.name > last]
            yield batch
        if new:
            yield new


def _name_of(status: Status) -> bytes:
    return status.name


_log = logging.getLogger(__name__)

_SET_IDS = stat.S_ISUID | stat.S_ISGID

_WISH = b"wish\0"
"""Begins the intent of a pending reopen: the path and the mark follow."""


class WritableTree(PublishingTree):
    """All that a mount answers which can be written; its parts are those of `PublishingTree`."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]  # those of PublishingTree
        self._walked = UnpublishedNames(self._store, self._pens)
        for number, intent in self._left:
            if intent.startswith(_WISH):
                path, mark = intent.removeprefix(_WISH).split(b"\0", 1)
                self._pens.wish(path, future(mark.decode()), number)

    def snapshot(self) -> dict[str, int]:
        return {**super().snapshot(), "open_for_writing": len(self._pens)}

    async def aclose(self) -> None:
        """The kernel will not come back: publish what its writers had finished, let go of the rest, all at once."""
        async with trio.open_nursery() as nursery:
            for pen in list(self._pens.by_node.values()):
                nursery.start_soon(contain, f"ending the write of {pen.draft.path!r}", self._end, pen)

    async def _end(self, pen: WriteHandle) -> None:
        pen.killed = pen.killed or await self._fate(pen) in (WriterState.HOLDS, WriterState.UNSEEN)
        await self._finish(pen)

    # Names and attributes

    async def lookup(self, parent: int, name: bytes) -> NodeAttributes:
        path = self._child(parent, name)
        wish = self._pens.wished(path)
        if wish is not None and (status := await self._stat(path)).kind is Kind.FILE:
            self._node(parent)
            node = self.state.see(parent, name, Kind.FILE, wish.identity)
            attributes = self._attributes(node.id, status)
            attributes.valid = 0.0
            self.state.commit()
            return attributes
        began = trio.current_time()
        try:
            attributes = await super().lookup(parent, name)
        except NotFound:
            pen = self._pens.at(path)
            if pen is None:
                raise
            node = self.state.see(parent, name, Kind.FILE, self._node(pen.node).identity)
            self.state.commit()
            return self._shown(pen)
        attributes.valid = self._believe(parent, name, began)
        return attributes

    async def getattr(self, node_id: int) -> NodeAttributes:
        if (pen := self._pens.by_node.get(node_id)) is not None:
            return self._shown(pen)
        node = self._node(node_id)
        if is_future(node) and node.status is None:  # wished for: the kernel asks whether it may be opened
            attributes = self._attributes(node_id, await self._stat(self.state.path(node_id)))
            attributes.valid = 0.0
            return attributes
        return await super().getattr(node_id)

    async def setattr(
        self,
        node_id: int,
        *,
        size: int | None = None,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        mtime_ns: int | None = None,
        atime_ns: int | None = None,
    ) -> NodeAttributes:
        """Change what is not None. mode holds permission bits only.

        Raises StaleVersion when a new length made a new version, which is what the path then has: look it up again.
        """
        wanted = Change(mode=mode, mtime_ns=mtime_ns, atime_ns=atime_ns)
        if (pen := self._pens.by_node.get(node_id)) is not None:
            async with pen.lock:
                if size is not None:
                    await pen.truncate(size, self._staging)
                await self._set_written(pen, await self._owned(wanted, uid, gid, pen.status))
            return self._shown(pen)
        node = self._node(node_id)
        if is_future(node):
            raise self._lost(node)
        if size is not None:
            await self._cut(node, size)
        if uid is not None or gid is not None:
            status = await self._version(node, self.state.path(node_id))
            wanted = await self._owned(wanted, uid, gid, status)
        return await self.set_attributes(node_id, wanted)

    # Files

    async def open(self, node_id: int) -> int:
        node = self._node(node_id)
        if not is_future(node):
            return await super().open(node_id)
        path = self.state.path(node_id)
        if (wish := self._pens.wished(path)) is not None:  # the kernel asks twice at most, so not before that is over
            with trio.move_on_at(wish.until):
                await wish.over.wait()
        if self._pens.at(path) is None or await self._exists(path):
            raise StaleVersion(f"{path!r} has another version")
        raise NoVersion(
            f"{path!r} is being written and has no version yet",
            hint="mount with --staging DIR: a new file that is open to read and write can be read meanwhile",
        )

    async def open_reading(self, node_id: int) -> tuple[int, bool]:
        """A handle to read, and whether it is direct I/O, as of what has no version yet: it may change any moment."""
        pen = self._pens.by_node.get(node_id)
        if pen is None or not pen.shared or pen.path is None or pen.beneath is not None:
            return await self.open(node_id), False
        handle = self.state.open_file(node_id, pen.status)
        pen.handles[handle] = False
        self.state.commit()
        return handle, True

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, thread: int
    ) -> tuple[int, NodeAttributes, bool]:
        """A handle to write a new file, or the one that somebody else has made meanwhile; True for direct I/O.

        flags: of open(2). thread: the caller's number as requests of the kernel carry it.
        Raises Exists where that was excluded, Busy where somebody writes it, NotPermitted for hidden names.
        """
        path = self._new_name(parent, name)
        exclusive = bool(flags & os.O_EXCL)
        if exclusive and self._pens.at(path) is not None:
            raise Exists(f"{path!r} exists")
        await self._wait_until_free(path)
        pen = await self._created(path, mode, flags, thread)
        try:
            self._node(parent)
            node = self.state.see(parent, name, Kind.FILE, future())
        except BaseException:
            await pen.close()
            raise
        handle, direct = self._hold(pen, node, flags)
        return handle, self._shown(pen), direct

    async def _created(self, path: bytes, mode: int, flags: int, thread: int) -> WriteHandle:
        """A write handle for the file at `path`, made where there is none.

        A file that another mount is about to publish there exists for O_EXCL: the lock decides who made it, and a
        program that takes a file for a mutex expects EEXIST from everybody but one.
        """
        while True:
            try:
                status: Status | None = await self._stat(path)
            except NotFound:
                status = None
            exclusive = bool(flags & os.O_EXCL)
            if status is not None and exclusive:
                raise Exists(f"{path!r} exists")
            try:
                return await self._begin(path, status, flags, mode, thread)
            except Busy as error:
                if exclusive:
                    raise Exists(f"{path!r} exists: {error.message}", hint=error.hint) from error
                raise
            except Exists:  # published since it was looked for: then that is what this open continues or replaces
                if exclusive or status is not None:
                    raise

    async def open_writing(self, node_id: int, flags: int, thread: int) -> tuple[int, bool]:
        """A handle to write an existing file, and whether it is direct I/O. Raises Busy where somebody writes it.

        Raises StaleVersion for the node of a version that exists: look the path up again, and open what that gives.
        """
        node = self._node(node_id)
        path = self.state.path(node_id)
        require_file(node, path)
        if not is_future(node):  # perhaps of a version that was replaced since: the kernel asks twice at most
            await self._wait_until_free(path)
            self._wish(path)
            self._calls.outdate(("stat", path))
            raise StaleVersion(f"{path!r} gets a new version")
        await self._wait_until_free(path)
        try:
            pen = await self._begin(path, await self._stat(path), flags, 0, thread)
        finally:
            self._grant(path)
        return self._hold(pen, node, flags)

    async def read(self, handle: int, offset: int, size: int) -> Buffer:
        pen = self._pen(handle)
        if pen is None:
            return await super().read(handle, offset, size)
        async with pen.lock:
            return await pen.read(offset, size)

    async def write(self, handle: int, offset: int, data: Buffer) -> None:
        """All of `data` at `offset`, or at the end where the handle appends."""
        pen = self._pen(handle)
        if pen is None:
            raise UnknownHandle(f"file handle {handle} is not open for writing")
        async with pen.lock:
            await pen.write(pen.length if pen.handles.get(handle) else offset, data, self._staging)

    async def fsync(self, handle: int) -> None:
        if (pen := self._pen(handle)) is not None:
            async with pen.lock:
                await pen.sync()
                pen.durable = True

    async def flush(self, handle: int) -> None:
        """A descriptor was closed, perhaps not the last one: see the module. Raises what writing or publishing met."""
        pen = self._pen(handle)
        if pen is None:
            return
        async with pen.lock:
            if not pen.dirty:
                return
            state = await self._fate(pen)
            if state is WriterState.HOLDS:
                await pen.sync()
            elif state is WriterState.KILLED:
                pen.killed = True
            elif not pen.killed:
                try:
                    self._require_seen(pen, state)
                except Unseen as error:
                    await pen.sync()
                    _log.warning("%s", error)
                    pen.told = True
                    raise
                await self._publish(pen, final=False)

    async def release(self, handle: int) -> None:
        held = self.state.files.get(handle)
        pen = self._pens.by_node.get(held.node) if held is not None else None
        if pen is None or handle not in pen.handles:
            return await super().release(handle)
        del pen.handles[handle]
        if not pen.handles:
            await self._finish(pen)
        self.state.release(handle)
        self.state.commit()
        return None

    # Inner workings

    def _identity(self, status: Status) -> Identity | None:
        return future(status.file_id) if is_future(status) else super()._identity(status)

    def _believe(self, parent: int, name: bytes, seen: float) -> float:
        """Nothing of what changed since it was seen, and nothing of what may change any moment."""
        if seen <= self._changed_at or (len(self._pens) and self._pens.at(self._child(parent, name)) is not None):
            return 0.0
        return super()._believe(parent, name, seen)

    def _shown(self, pen: WriteHandle) -> NodeAttributes:
        attributes = self._attributes(pen.node, pen.status)
        attributes.valid = 0.0
        node = self._node(pen.node)
        if pen.path is None:
            attributes.links = 0
        elif pen.beneath is not None:
            attributes.inode = self.state.id_of(node.parent, node.name, Kind.FILE, pen.beneath)
            pen.inodes.add(attributes.inode)
        return attributes

    def _wish(self, path: bytes) -> None:
        """Note, here and for the next worker, that the kernel will come back for another node of `path`."""
        if self._pens.wished(path) is None:
            self._grant(path)
            identity = future()
            number = self.state.intend(_WISH + path + b"\0" + identity.file_id.encode())
            self._pens.wish(path, identity, number)
            self.state.commit()

    def _grant(self, path: bytes) -> None:
        if (wish := self._pens.grant(path)) is not None:
            self.state.settle(wish.number)

    def _pen(self, handle: int) -> WriteHandle | None:
        """The write handle of `handle`; None for one that only reads. Raises Lost, UnknownHandle."""
        held: FileHandle | None = self.state.files.get(handle)
        if held is None:
            raise UnknownHandle(f"file handle {handle} is not known", hint="close the file and open it again")
        pen = self._pens.by_node.get(held.node)
        if pen is not None and handle in pen.handles:
            return pen
        if is_future(node := self._node(held.node)):
            raise self._lost(node)
        return None

    def _hold(self, pen: WriteHandle, node: Inode, flags: int) -> tuple[int, bool]:
        """Open the new write handle `pen` at `node`. Nothing is awaited, so that nobody finds half of it."""
        pen.node = node.id
        pen.mark = node.identity.file_id if node.identity is not None else ""
        handle = self.state.open_file(node.id, pen.status)
        pen.handles[handle] = bool(flags & os.O_APPEND)
        pen.shared = self._staging is not None and flags & os.O_ACCMODE == os.O_RDWR
        self._pens.add(pen)
        self.state.commit()
        # Without the kernel's page cache a file is written faster; only a shared mapping to write needs it.
        return handle, self._staging is None or flags & os.O_ACCMODE != os.O_RDWR

    async def _set_written(self, pen: WriteHandle, wanted: Change) -> None:
        if wanted == Change():
            return
        if pen.path is not None and not pen.dirty:
            status = await self._set(pen.path, wanted)
            pen.beneath = status.identity
            pen.set_attributes(dataclasses.replace(wanted, mtime_ns=None, atime_ns=None), status)
            return
        if wanted.owner is not None or wanted.group is not None:
            with allowed():
                await pen.draft.try_owners(Change(owner=wanted.owner, group=wanted.group))
        if wanted.mode is not None and wanted.mode & _SET_IDS:
            with allowed():
                await pen.draft.try_owners(Change(mode=wanted.mode))
        shown = {name: value for name, value in dataclasses.asdict(wanted).items() if value is not None}
        pen.set_attributes(wanted, dataclasses.replace(pen.status, **shown))

    async def _cut(self, node: Inode, size: int) -> None:
        """truncate(2) by path: another length is another version."""
        path = self.state.path(node.id)
        status = await self._version(node, path)
        if size == status.length:
            return
        await self._wait_until_free(path)
        draft, untouched = await self._draft(path, status, status.mode, cut=size == 0)
        pen = WriteHandle(0, path, draft, WriterProcess(0, 0), status, untouched=untouched)
        try:
            await pen.truncate(size, self._staging)
            await self._publish(pen, final=True)
        finally:
            await pen.close()
        raise StaleVersion(f"{path!r} has a new version")
