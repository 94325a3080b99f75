"""Write operations of the mounted tree: create, open for writing, write, flush, fsync, release.

The state of a file that is open for writing is in `write_handle`, the way of its bytes to the store in
`stripefs.write`. Visibility: the path keeps its version until a new one is published, which happens when the writer
closes the file, when it renames it, and at the latest when the last handle is closed. A name that has no
version yet can be looked up from the moment it is created, for the programs of this host, and not be read; listings
show it among the names of the store (`UnpublishedNames`).

Closing is where errors must arrive. FLUSH publishes unless the writer still holds the file, and then makes it durable;
bytes of a killed writer are not published (`writer_process`). RELEASE publishes what was written since.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import stat

import trio

from stripefs.background import contain
from stripefs.errors import Exists, Lost, NotFound, NoVersion, StaleVersion, Unseen, denial_as_eperm
from stripefs.store.base import Attributes, Buffer, Kind, Status
from stripefs.vfs.attributes import AttributeOps
from stripefs.vfs.inodes import Inode, is_unpublished, unpublished_identity
from stripefs.vfs.namespace_ops import Intents
from stripefs.vfs.publishing import HandlePublisher
from stripefs.vfs.tree import NodeAttributes, Tree, UnknownHandle, require_file
from stripefs.vfs.write_handle import WriteHandle, WriteHandles
from stripefs.vfs.writer_process import WriterProcess, WriterState
from stripefs.write.namespace import begin_file
from stripefs.write.staging import Staging
from stripefs.write.upload_names import ensure_usable

__all__ = ["WriteOps"]

_log = logging.getLogger(__name__)

_SET_IDS = stat.S_ISUID | stat.S_ISGID

_REOPEN_INTENT = b"wish\0"
"""Begins the intent of a pending reopen: the path and the mark follow."""


class WriteOps:
    """Answers for the files of `tree` that are open for writing (`handles`). Requests about others go to the tree."""

    def __init__(
        self,
        tree: Tree,
        handles: WriteHandles,
        publisher: HandlePublisher,
        attributes: AttributeOps,
        intents: Intents,
        staging: Staging | None,
    ) -> None:
        self._tree = tree
        self._state = tree.state
        self._handles = handles
        self._publisher = publisher
        self._attributes = attributes
        self._staging = staging
        for number, intent in intents.inherited:
            if intent.startswith(_REOPEN_INTENT):
                path, mark = intent.removeprefix(_REOPEN_INTENT).split(b"\0", 1)
                handles.expect_reopen(path, unpublished_identity(mark.decode()), number)

    async def aclose(self) -> None:
        """The kernel will not come back: publish what its writers had finished, drop the rest, all at once."""
        async with trio.open_nursery() as nursery:
            for file in list(self._handles.by_node.values()):
                nursery.start_soon(contain, f"ending the write of {file.upload.path!r}", self._end, file)

    async def _end(self, file: WriteHandle) -> None:
        file.killed = file.killed or await self._publisher.writer_state(file) in (WriterState.HOLDS, WriterState.UNSEEN)
        await self._publisher.end(file)

    # Names and attributes

    async def lookup(self, parent: int, name: bytes) -> NodeAttributes:
        path = self._tree.child_path(parent, name)
        reopen = self._handles.pending_reopen(path)
        if reopen is not None and (status := await self._tree.stat(path)).kind is Kind.FILE:
            return self._tree.looked_up(parent, name, status, reopen.identity, 0.0)
        began = trio.current_time()
        try:
            attributes = await self._tree.lookup(parent, name)
        except NotFound:
            file = self._handles.at(path)
            if file is None:
                raise
            self._state.add_lookup(parent, name, Kind.FILE, self._tree.node(file.node).identity)
            self._state.commit()
            return self._attributes_of(file)
        attributes.valid = self._tree.ttl(parent, name, began)
        return attributes

    async def getattr(self, node_id: int) -> NodeAttributes:
        if (file := self._handles.by_node.get(node_id)) is not None:
            return self._attributes_of(file)
        node = self._tree.node(node_id)
        if is_unpublished(node) and node.status is None:  # a pending reopen: the kernel asks if it may be opened
            return self._tree.attributes(node_id, await self._tree.stat(self._state.path(node_id)), 0.0)
        return await self._tree.getattr(node_id)

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
        wanted = Attributes(mode=mode, mtime_ns=mtime_ns, atime_ns=atime_ns)
        if (file := self._handles.by_node.get(node_id)) is not None:
            async with file.lock:
                if size is not None:
                    await file.truncate(size, self._staging)
                await self._set_attributes(file, await self._attributes.with_owners(wanted, uid, gid, file.status))
            return self._attributes_of(file)
        node = self._tree.node(node_id)
        if is_unpublished(node):
            raise self._lost(node)
        if size is not None:
            await self._truncate_path(node, size)
        if uid is not None or gid is not None:
            status = await self._tree.current_status(node)
            wanted = await self._attributes.with_owners(wanted, uid, gid, status)
        return await self._attributes.set(node_id, wanted)

    # Files

    async def open(self, node_id: int) -> int:
        node = self._tree.node(node_id)
        if not is_unpublished(node):
            return await self._tree.open(node_id)
        path = self._state.path(node_id)
        if (reopen := self._handles.pending_reopen(path)) is not None:  # wait for it, as the kernel asks twice at most
            with trio.move_on_at(reopen.until):
                await reopen.over.wait()
        if self._handles.at(path) is None or await self._tree.find(path) is not None:
            raise StaleVersion(f"{path!r} has another version")
        raise NoVersion(
            f"{path!r} is being written and has no version yet",
            hint="mount with --staging DIR: a new file that is open to read and write can be read meanwhile",
        )

    async def open_reading(self, node_id: int) -> tuple[int, bool]:
        """A handle to read; True for direct I/O, as a file that has no version yet may change any moment."""
        file = self._handles.by_node.get(node_id)
        if file is None or not file.readable_unpublished or file.path is None or file.path_identity is not None:
            return await self.open(node_id), False
        handle = self._state.open_file(node_id, file.status)
        file.handles[handle] = False
        self._state.commit()
        return handle, True

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, thread: int
    ) -> tuple[int, NodeAttributes, bool]:
        """A handle to write a new file, or one that another program has made meanwhile; True for direct I/O.

        flags: of open(2). thread: the caller's number as requests of the kernel carry it.
        Raises Exists where that was excluded, Busy where somebody writes it, NotPermitted for hidden names.
        """
        ensure_usable(name, self._tree.store)
        path = self._tree.child_path(parent, name)
        exclusive = bool(flags & os.O_EXCL)
        if exclusive and self._handles.at(path) is not None:
            raise Exists(f"{path!r} exists")
        await self._publisher.wait_until_free(path)

        async def begin(status: Status | None) -> WriteHandle:
            return await self._publisher.begin(path, status, flags, mode, thread)

        # The kernel has looked for the name before it asks for a new file.
        file = await begin_file(path, self._tree.find, begin, exclusive=exclusive, absent=True)
        try:
            self._tree.node(parent)
            node = self._state.add_lookup(parent, name, Kind.FILE, unpublished_identity())
        except BaseException:
            await file.close()
            raise
        handle, direct = self._open(file, node, flags)
        return handle, self._attributes_of(file), direct

    async def open_writing(self, node_id: int, flags: int, thread: int) -> tuple[int, bool]:
        """A handle to write an existing file, and whether it is direct I/O. Raises Busy where somebody writes it.

        Raises StaleVersion for the node of a version that exists: look the path up again, and open what that gives.
        """
        node = self._tree.node(node_id)
        path = self._state.path(node_id)
        require_file(node, path)
        if not is_unpublished(node):  # perhaps of a version that was replaced since: the kernel asks twice at most
            await self._publisher.wait_until_free(path)
            self._expect_reopen(path)
            self._tree.outdate(path)
            raise StaleVersion(f"{path!r} gets a new version")
        await self._publisher.wait_until_free(path)
        try:
            file = await self._publisher.begin(path, await self._tree.stat(path), flags, 0, thread)
        finally:
            self._end_reopen(path)
        return self._open(file, node, flags)

    async def read(self, handle: int, offset: int, size: int) -> Buffer:
        file = self._write_handle(handle)
        if file is None:
            return await self._tree.read(handle, offset, size)
        async with file.lock:
            return await file.read(offset, size)

    async def write(self, handle: int, offset: int, data: Buffer) -> None:
        """All of `data` at `offset`, or at the end where the handle appends."""
        file = self._write_handle(handle)
        if file is None:
            raise UnknownHandle(f"file handle {handle} is not open for writing")
        async with file.lock:
            await file.write(file.length if file.handles.get(handle) else offset, data, self._staging)

    async def fsync(self, handle: int) -> None:
        if (file := self._write_handle(handle)) is not None:
            async with file.lock:
                await file.sync()
                file.durable = True

    async def flush(self, handle: int) -> None:
        """A descriptor was closed, perhaps not the last one: see the module. Raises what writing or publishing met."""
        file = self._write_handle(handle)
        if file is None:
            return
        async with file.lock:
            if not file.dirty:
                return
            state = await self._publisher.writer_state(file)
            if state is WriterState.HOLDS:
                await file.sync()
            elif state is WriterState.KILLED:
                file.killed = True
            elif not file.killed:
                try:
                    self._publisher.require_seen(file, state)
                except Unseen as error:
                    await file.sync()
                    _log.warning("%s", error)
                    file.error_reported = True
                    raise
                await self._publisher.publish(file, final=False)

    async def release(self, handle: int) -> None:
        held = self._state.files.get(handle)
        file = self._handles.by_node.get(held.node) if held is not None else None
        if file is None or handle not in file.handles:
            await self._tree.release(handle)
            return
        del file.handles[handle]
        if not file.handles:
            await self._publisher.end(file)
        self._state.release(handle)
        self._state.commit()

    # Inner workings

    def _attributes_of(self, file: WriteHandle) -> NodeAttributes:
        attributes = self._tree.attributes(file.node, file.status, 0.0)
        node = self._tree.node(file.node)
        if file.path is None:
            attributes.links = 0
        elif file.path_identity is not None:
            attributes.inode = self._state.id_of(node.parent, node.name, Kind.FILE, file.path_identity)
            file.inodes.add(attributes.inode)
        return attributes

    def _expect_reopen(self, path: bytes) -> None:
        """Note, here and for the next worker, that the kernel will come back for another node of `path`."""
        if self._handles.pending_reopen(path) is None:
            self._end_reopen(path)
            identity = unpublished_identity()
            number = self._state.begin_intent(_REOPEN_INTENT + path + b"\0" + identity.file_id.encode())
            self._handles.expect_reopen(path, identity, number)
            self._state.commit()

    def _end_reopen(self, path: bytes) -> None:
        if (reopen := self._handles.end_reopen(path)) is not None:
            self._state.end_intent(reopen.number)

    def _write_handle(self, handle: int) -> WriteHandle | None:
        """The write handle of `handle`; None for one that only reads. Raises Lost, UnknownHandle."""
        held = self._state.files.get(handle)
        if held is None:
            raise UnknownHandle(f"file handle {handle} is not known", hint="close the file and open it again")
        file = self._handles.by_node.get(held.node)
        if file is not None and handle in file.handles:
            return file
        if is_unpublished(node := self._tree.node(held.node)):
            raise self._lost(node)
        return None

    def _lost(self, node: Inode) -> Lost:
        return Lost(
            f"{self._state.path(node.id)!r} was being written when the worker ended: what was not published is lost",
            hint="close it and write it again",
        )

    def _open(self, file: WriteHandle, node: Inode, flags: int) -> tuple[int, bool]:
        """Open the new write handle `file` at `node`. Nothing is awaited, so that no other task sees it half open."""
        file.node = node.id
        file.mark = node.identity.file_id if node.identity is not None else ""
        handle = self._state.open_file(node.id, file.status)
        file.handles[handle] = bool(flags & os.O_APPEND)
        file.readable_unpublished = self._staging is not None and flags & os.O_ACCMODE == os.O_RDWR
        self._handles.add(file)
        self._state.commit()
        # Without the kernel's page cache a file is written faster; only a shared mapping to write needs it.
        return handle, self._staging is None or flags & os.O_ACCMODE != os.O_RDWR

    async def _set_attributes(self, file: WriteHandle, wanted: Attributes) -> None:
        if wanted == Attributes():
            return
        if file.path is not None and not file.dirty:
            status = await self._attributes.set_at(file.path, wanted)
            file.path_identity = status.identity
            file.set_attributes(dataclasses.replace(wanted, mtime_ns=None, atime_ns=None), status)
            return
        if wanted.owner is not None or wanted.group is not None:
            with denial_as_eperm():
                await file.upload.try_owners(Attributes(owner=wanted.owner, group=wanted.group))
        if wanted.mode is not None and wanted.mode & _SET_IDS:
            with denial_as_eperm():
                await file.upload.try_owners(Attributes(mode=wanted.mode))
        shown = {name: value for name, value in dataclasses.asdict(wanted).items() if value is not None}
        file.set_attributes(wanted, dataclasses.replace(file.status, **shown))

    async def _truncate_path(self, node: Inode, size: int) -> None:
        """truncate(2) by path: another length is another version."""
        path = self._state.path(node.id)
        status = await self._tree.current_status(node)
        if size == status.length:
            return
        await self._publisher.wait_until_free(path)
        upload, untouched = await self._publisher.begin_upload(path, status, status.mode, cut=size == 0)
        file = WriteHandle(0, path, upload, WriterProcess(0, 0), status, untouched=untouched)
        try:
            await file.truncate(size, self._staging)
            await self._publisher.publish(file, final=True)
        finally:
            await file.close()
        raise StaleVersion(f"{path!r} has a new version")
