"""Publishing in the mounted tree: a write handle is made for a path, publishes, and is closed with its last handle."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial

import trio

from stripefs.errors import Busy, IsADirectory, NotPermitted, StripefsError, Unseen, Unsupported
from stripefs.store.base import Attributes, Kind, Status
from stripefs.vfs.attributes import AttributeOps
from stripefs.vfs.tree import Tree
from stripefs.vfs.write_handle import WriteHandle, WriteHandles
from stripefs.vfs.writer_process import WriterState, find_writer, writer_state
from stripefs.write import FileUpload, Layout, UploadManager
from stripefs.write.directory_layout import DirectoryLayouts

__all__ = ["HandlePublisher"]

_log = logging.getLogger(__name__)

_DECIDING = 10.0
"""Seconds for reading a few files of /proc, which a process that hangs in the kernel may hold up."""

_CLOSING = 5.0
"""Seconds for which an open waits for a file that is about to be closed: the kernel does not wait for RELEASE."""


class HandlePublisher:
    """Begins, publishes and ends the write handles of `tree`. The upload manager must be running.

    layout_of: the layout for a new file at a path, None for the usual one. publish_unseen: one of
    `settings.PUBLISH_UNSEEN`, for files whose writer is of a PID namespace not seen here.
    """

    def __init__(
        self,
        tree: Tree,
        handles: WriteHandles,
        uploads: UploadManager,
        attributes: AttributeOps,
        layouts: DirectoryLayouts,
        layout_of: Callable[[bytes], Layout | None] | None,
        publish_unseen: str,
    ) -> None:
        self._tree = tree
        self._handles = handles
        self._uploads = uploads
        self._attributes = attributes
        self._layouts = layouts
        self._layout_of = layout_of
        self._publish_unseen = publish_unseen

    async def writer_state(self, file: WriteHandle) -> WriterState:
        inodes = frozenset(file.inodes | {file.node})
        return await self._tree.calls.lane("decisions").run(
            "looking at a writer", writer_state, file.writer, inodes, timeout=_DECIDING
        )

    async def wait_until_free(self, path: bytes) -> None:
        """Raises Busy where somebody writes the file, unless they have closed it and the kernel is yet to say so."""
        file = self._handles.at(path)
        if file is None:
            return
        if await self.writer_state(file) is not WriterState.HOLDS:
            with trio.move_on_after(_CLOSING):
                await file.closed.wait()
        if self._handles.at(path) is not None:
            raise Busy(f"{path!r} is being written")

    async def begin(self, path: bytes, status: Status | None, flags: int, mode: int, thread: int) -> WriteHandle:
        """A write handle for the file at `path`, whose version is `status` (None: there is none)."""
        if status is not None and status.kind is not Kind.FILE:
            raise IsADirectory(f"{path!r} is no regular file")
        writer = await self._tree.calls.lane("decisions").run(
            "looking for the writer", find_writer, thread, timeout=_DECIDING
        )
        now = time.time_ns()
        shown = status or Status(path.rpartition(b"/")[2], Kind.FILE, 0, now, now, mode & 0o7777)
        cut, anew = bool(flags & os.O_TRUNC), flags & (os.O_TRUNC | os.O_EXCL) == os.O_TRUNC
        upload, untouched = await self.begin_upload(path, status, shown.mode, cut=cut, anew=anew)
        file = WriteHandle(0, path, upload, writer, shown, untouched=untouched, new=status is None)
        file.path_identity = status.identity if status is not None else None
        return file

    async def begin_upload(
        self, path: bytes, status: Status | None, mode: int, *, cut: bool, anew: bool = False
    ) -> tuple[FileUpload, bool]:
        """The upload of the version to be published; the flag tells that it begins empty although the file is not."""
        replacing = status.identity if status is not None else None
        attributes = Attributes(mode=mode) if self._tree.store.capabilities.attributes else None
        layout: Layout | None = None
        if named := await self._layouts.for_file(path):
            layout = Layout(named)
        elif self._layout_of is not None:
            layout = self._layout_of(path)
        self._tree.outdate(path)
        begin = partial(self._uploads.begin, path, replacing=replacing, attributes=attributes, layout=layout)
        if status is not None and not cut:
            try:
                return await begin(append=True), False
            except Unsupported as error:
                _log.info("%r cannot be appended to: %s", path, error)
        return await begin(anew=anew and status is None), status is not None and not cut

    async def publish(self, file: WriteHandle, *, final: bool) -> Status:
        """The status of the new version at the file's path, with the owners that it was given."""
        path = file.path
        assert path is not None
        try:
            status = await file.publish(final=final)
            file.path_identity = status.identity
        finally:
            self._tree.changed(path)
        if file.owners is not None:
            try:
                status = await self._attributes.set_at(path, file.owners)
                file.path_identity = status.identity
            except NotPermitted:  # the bytes are published all the same; the wrong owner is reported once
                file.owners = None
                raise
            except Unsupported as error:
                file.owners = None
                _log.warning("%s keeps the owner that the store gave it: %s", file.name, error)
        return status

    def require_seen(self, file: WriteHandle, state: WriterState) -> None:
        """Raises Unseen for a file that its writer has perhaps not finished, as nobody here can tell."""
        wanted = self._publish_unseen
        if (
            state is not WriterState.UNSEEN
            or wanted == "always"
            or (wanted == "after-fsync" and (file.new or file.durable))
        ):
            return
        raise Unseen(
            f"{file.name} is not published: its writer is of a PID namespace that this mount does not see, and "
            + ("--publish-unseen is never" if wanted == "never" else "did not fsync before it closed the file"),
            hint="what is written so far can be brought back by stripefs recover; see --publish-unseen",
        )

    async def end(self, file: WriteHandle) -> None:
        """The last handle is closed: publish the file unless its writer was killed."""
        async with file.lock:
            try:
                state = WriterState.GONE
                if file.dirty and not file.killed:
                    state = await self.writer_state(file)
                    file.killed = state is WriterState.KILLED
                if file.dirty and file.killed:
                    _log.warning("%s is not published: its writer was killed", file.name)
                elif file.dirty:
                    self.require_seen(file, state)
                    await self.publish(file, final=True)
            except Unseen as error:
                file.killed = True  # for all that is known, and so what is durable stays for recovery
                if not file.error_reported:
                    _log.warning("%s", error)
            except StripefsError as error:
                if not file.error_reported:
                    _log.warning("%s", error)
            finally:
                await file.close()
                self._handles.remove(file)
