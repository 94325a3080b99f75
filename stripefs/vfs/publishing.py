"""Publishing in the mounted tree: a write handle is made for a path, publishes, and is closed with its last handle."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

import trio

from stripefs.errors import Busy, IsADirectory, StripefsError, Unsupported
from stripefs.store.base import Attributes as Change
from stripefs.store.base import Kind, Status
from stripefs.vfs.errors import Lost, NotPermitted, Unseen
from stripefs.vfs.inodes import Inode
from stripefs.vfs.namespace_ops import AttributedTree
from stripefs.vfs.write_handle import WriteHandle
from stripefs.vfs.writer_process import WriterState, find_writer, writer_state
from stripefs.write import FileUpload, Layout, UploadManager
from stripefs.write.staging import Staging

__all__ = ["PublishingTree"]

_log = logging.getLogger(__name__)

_DECIDING = 10.0
"""Seconds for reading a few files of /proc, which a process that hangs in the kernel may hold up."""

_CLOSING = 5.0
"""Seconds for which an open waits for a file that is about to be closed: the kernel does not wait for RELEASE."""


class PublishingTree(AttributedTree):
    """The upload manager must be running. layout_of: the layout for a new file at a path, None for the usual one.

    publish_unseen: one of `settings.PUBLISH_UNSEEN`, for files whose opener is of a PID namespace not seen here.
    """

    def __init__(
        self,
        *arguments: object,
        drafts: UploadManager,
        staging: Staging | None = None,
        layout_of: Callable[[bytes], Layout | None] | None = None,
        publish_unseen: str = "after-fsync",
        **options: object,
    ) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]  # those of AttributedTree
        self._drafts = drafts
        self._staging = staging
        self._layout_of = layout_of
        self._publish_unseen = publish_unseen

    def _lost(self, node: Inode) -> Lost:
        return Lost(
            f"{self.state.path(node.id)!r} was being written when the worker ended: what was not published is lost",
            hint="close it and write it again",
        )

    async def _fate(self, pen: WriteHandle) -> WriterState:
        return await self._calls.lane("decisions").run(
            "looking at a writer", writer_state, pen.opener, frozenset(pen.inodes | {pen.node}), timeout=_DECIDING
        )

    async def _wait_until_free(self, path: bytes) -> None:
        """Raises Busy where somebody writes the file, unless they have closed it and the kernel is yet to say so."""
        pen = self._pens.at(path)
        if pen is None:
            return
        if await self._fate(pen) is not WriterState.HOLDS:
            with trio.move_on_after(_CLOSING):
                await pen.closed.wait()
        if self._pens.at(path) is not None:
            raise Busy(f"{path!r} is being written")

    def _writer_of(self, path: bytes) -> str:
        return self._drafts.writer_of(path)

    def _writer_below(self, directory: bytes) -> str:
        return self._drafts.writer_below(directory)

    async def _begin(self, path: bytes, status: Status | None, flags: int, mode: int, thread: int) -> WriteHandle:
        """A write handle for the file at `path`, whose version is `status` (None: there is none)."""
        if status is not None and status.kind is not Kind.FILE:
            raise IsADirectory(f"{path!r} is no regular file")
        opener = await self._calls.lane("decisions").run(
            "looking for the writer", find_writer, thread, timeout=_DECIDING
        )
        now = time.time_ns()
        shown = status or Status(path.rpartition(b"/")[2], Kind.FILE, 0, now, now, mode & 0o7777)
        draft, untouched = await self._draft(path, status, shown.mode, cut=bool(flags & os.O_TRUNC))
        pen = WriteHandle(0, path, draft, opener, shown, untouched=untouched, new=status is None)
        pen.beneath = status.identity if status is not None else None
        return pen

    async def _draft(self, path: bytes, status: Status | None, mode: int, *, cut: bool) -> tuple[FileUpload, bool]:
        """The version to be published; the flag tells that it begins empty although the file is not."""
        replacing = status.identity if status is not None else None
        attributes = Change(mode=mode) if self._store.capabilities.attributes else None
        layout: Layout | None = None
        if named := await self._layouts.for_file(path):
            layout = Layout(named)
        elif self._layout_of is not None:
            layout = self._layout_of(path)
        self._calls.outdate(("stat", path))
        if status is not None and not cut:
            try:
                draft = await self._drafts.begin(
                    path, replacing=replacing, append=True, attributes=attributes, layout=layout
                )
            except Unsupported as error:
                _log.info("%r cannot be appended to: %s", path, error)
            else:
                return draft, False
        draft = await self._drafts.begin(path, replacing=replacing, attributes=attributes, layout=layout)
        return draft, status is not None and not cut

    async def _publish(self, pen: WriteHandle, *, final: bool) -> Status:
        path = pen.path
        assert path is not None
        try:
            status = await pen.publish(final=final)
            pen.beneath = status.identity
        finally:
            self._changed(path)
        if pen.owners is not None:
            try:
                status = await self._set(path, pen.owners)
                pen.beneath = status.identity
            except NotPermitted:  # the bytes are published all the same; that they are somebody else's is told once
                pen.owners = None
                raise
            except Unsupported as error:
                pen.owners = None
                _log.warning("%s keeps the owner that the store gave it: %s", pen.name, error)
        return status

    def _require_seen(self, pen: WriteHandle, state: WriterState) -> None:
        """Raises Unseen for a file that its writer has perhaps not finished, as nobody here can tell."""
        wanted = self._publish_unseen
        if (
            state is not WriterState.UNSEEN
            or wanted == "always"
            or (wanted == "after-fsync" and (pen.new or pen.durable))
        ):
            return
        raise Unseen(
            f"{pen.name} is not published: its writer is of a PID namespace that this mount does not see, and "
            + ("--publish-unseen is never" if wanted == "never" else "did not fsync before it closed the file"),
            hint="what is written so far can be brought back by stripefs recover; see --publish-unseen",
        )

    async def _finish(self, pen: WriteHandle) -> None:
        """The last handle is closed."""
        async with pen.lock:
            try:
                state = WriterState.GONE
                if pen.dirty and not pen.killed:
                    state = await self._fate(pen)
                    pen.killed = state is WriterState.KILLED
                if pen.dirty and pen.killed:
                    _log.warning("%s is not published: its writer was killed", pen.name)
                elif pen.dirty:
                    self._require_seen(pen, state)
                    await self._publish(pen, final=True)
            except Unseen as error:
                pen.killed = True  # for all that is known, and so what is durable stays for recovery
                if not pen.told:
                    _log.warning("%s", error)
            except StripefsError as error:
                if not pen.told:
                    _log.warning("%s", error)
            finally:
                await pen.close()
                self._pens.remove(pen)

    async def _before_rename(self, pen: WriteHandle, status: Status | None) -> Status | None:
        if pen.dirty and pen.complete:
            return await self._publish(pen, final=False)
        return status
