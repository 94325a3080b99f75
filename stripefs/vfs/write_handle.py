"""Write handles: one `WriteHandle` for each file that is being written, with a node of its own, and their table.

A node id stands for one version, and a file that is being written is a version that is not published yet. So a file
open for writing has its own node, made of its path and a random mark (`unpublished_identity`). That node serves its
writers, until the last handle is closed; versions published meanwhile are found under the path as any other.

A handle that is opened on an existing file would be the handle of *that* version's node, and its writes would go into
pages that readers of the version see. So such an open is answered ESTALE after a *pending reopen* was noted; the kernel
then looks the path up again, is given the node of the unpublished version, and opens that.

A path goes on to show the version that is published. So fstat(fd) of a writer answers the inode number of that version,
by which databases tell that their file is still the one at its path; a file that has no version yet has its own.
"""

from __future__ import annotations

import dataclasses
import os
import time
from dataclasses import dataclass, field

import trio

from stripefs.errors import StripefsError, Unsupported
from stripefs.store.base import Attributes, Buffer, Identity, Status
from stripefs.vfs.writer_process import WriterProcess
from stripefs.write import FileUpload, NotSequential
from stripefs.write.staging import StagedUpload, Staging

__all__ = ["PendingReopen", "WriteHandle", "WriteHandles"]

_ZEROS = 1 << 20

_REOPEN_WITHIN = 5.0
"""Seconds between the open that is answered ESTALE and the one that the kernel repeats at once."""


@dataclass(slots=True)
class PendingReopen:
    """The kernel is about to open an unpublished version, until the time `until`; `over` is set when it did.

    number: of the intent by which the next worker knows of it.
    """

    identity: Identity
    number: int
    until: float
    over: trio.Event = field(default_factory=trio.Event)


class WriteHandle:
    """One file that is being written, by one or more handles of one open. Hold `lock` around its calls.

    path: None once its name was removed. status: fstat's first answer. untouched: the upload begins empty and the file
    does not, and nobody has written yet. killed: the writer died of a signal, so nothing will be published.
    new: no version was there when it was opened. durable: an fsync of the writer came after all that was written.

    A file that is made longer by ftruncate and then written from its start (safetensors does so) stays a stream: the
    length is only announced, and bytes of it that are missing in the end become zeros. A write that was refused or got
    lost makes the file one that must not be published: `publish` raises until it is cut to nothing.
    """

    def __init__(
        self,
        node: int,
        path: bytes,
        upload: FileUpload,
        writer: WriterProcess,
        status: Status,
        *,
        untouched: bool = False,
        new: bool = False,
    ) -> None:
        self.node = node
        self.mark = ""  # the file id of the node
        self.path: bytes | None = path
        self.upload = upload
        self.writer = writer
        self.untouched = untouched
        self.killed = False
        self.new = new
        self.durable = False
        self.error_reported = False  # True if the writer knows that the written bytes are lost
        self.handles: dict[int, bool] = {}  # True for those that append
        self.readable_unpublished = False  # True if others may read it before it has a version
        self.lock = trio.Lock()
        self.closed = trio.Event()
        self.path_identity: Identity | None = None  # of the version that the path shows
        self.inodes: set[int] = set()  # that were shown
        self._base = status
        self._status = status
        self._staged: StagedUpload | None = None
        self.owners: Attributes | None = None  # to be set on each version that is published
        self._times: Attributes | None = None
        self._announced = 0
        self._write_error: StripefsError | None = None

    @property
    def length(self) -> int:
        if self._staged is not None:
            return self._staged.length
        return self._base.length if self.untouched else max(self.upload.length, self._announced)

    @property
    def status(self) -> Status:
        """Attributes for the writer's fstat."""
        return dataclasses.replace(self._status, length=self.length)

    @property
    def dirty(self) -> bool:
        """True if the path does not hold yet what was written."""
        if self.path is None:
            return False
        if self._write_error is not None:
            return True
        if self._staged is not None:
            return self._staged.dirty
        return not self.untouched and (self.upload.dirty or self._announced > self.upload.length)

    @property
    def complete(self) -> bool:
        """True if all of the announced length has been written."""
        return self._staged is not None or self._announced <= self.upload.length

    # Bytes

    async def write(self, offset: int, data: Buffer, staging: Staging | None) -> None:
        staged = self._staged or await self._write_to_upload(offset, data, staging)
        if staged is not None:
            await staged.write(offset, data)
        self._modified()

    async def _write_to_upload(self, offset: int, data: Buffer, staging: Staging | None) -> StagedUpload | None:
        """Write to the upload; where that cannot be, the staged file that is to take `data`."""
        try:
            try:
                if self.untouched:
                    raise NotSequential(f"{self.name} is written somewhere inside")
                await self.upload.write(offset, data)
            except NotSequential as error:
                return await self._stage(staging, error)
        except StripefsError as error:
            self._write_error = error
            raise
        return None

    async def read(self, offset: int, size: int) -> Buffer:
        """The bytes written so far, published or not; at most `size` bytes, none behind the end."""
        if self._staged is not None:
            return await self._staged.read(offset, size)
        if self.untouched:
            raise Unsupported(f"{self.name} cannot be read through a descriptor that may write it")
        data = await self.upload.read(offset, size)
        return bytes(data) + bytes(max(0, min(size, self.length - offset) - len(data)))

    async def truncate(self, length: int, staging: Staging | None) -> None:
        if length == self.length and self._write_error is None:
            return
        if self._staged is not None:
            await self._staged.truncate(length)
        elif length == 0:
            if not self.untouched:
                await self.upload.rewind()
            self.untouched = False
            self._announced = 0
            self._write_error = None
        elif length >= self.upload.length and not self.untouched:
            self._announced = length
        else:
            staged = await self._stage(staging, NotSequential(f"{self.name} is cut somewhere inside"))
            await staged.truncate(length)
        self._modified()

    async def sync(self) -> None:
        """fsync(2): all written bytes are on the store's hosts, and `stripefs recover` can find them."""
        if not self.dirty:
            return
        self._ensure_publishable()
        if self._staged is not None:
            await self._staged.sync(self.upload)
        else:
            await self.upload.sync()

    async def publish(self, *, final: bool) -> Status:
        """Publish the written bytes as the version at the path; its status."""
        try:
            self._ensure_publishable()
            if self._times is not None:
                self.upload.set_attributes(self._times)
            if self._staged is not None:
                status = await self._staged.publish(self.upload, final)
            else:
                while (missing := self._announced - self.upload.length) > 0:
                    await self.upload.write(self.upload.length, bytes(min(missing, _ZEROS)))
                status = await self.upload.publish(final)
        except BaseException:
            self.error_reported = True
            raise
        self._times = None
        return status

    # Name and attributes

    @property
    def name(self) -> str:
        return os.fsdecode(self.path or self._base.name)

    def set_attributes(self, wanted: Attributes, shown: Status) -> None:
        """Set attributes of the file that will be published. Times hold until something is written; the publisher sets
        `owners`."""
        if wanted.mode is not None:
            self.upload.set_attributes(Attributes(mode=wanted.mode))
        if wanted.owner is not None or wanted.group is not None:
            before = self.owners or Attributes()
            self.owners = Attributes(owner=wanted.owner or before.owner, group=wanted.group or before.group)
        if wanted.mtime_ns is not None or wanted.atime_ns is not None:
            known = self._times or Attributes()
            self._times = Attributes(
                mtime_ns=known.mtime_ns if wanted.mtime_ns is None else wanted.mtime_ns,
                atime_ns=known.atime_ns if wanted.atime_ns is None else wanted.atime_ns,
            )
        self._status = shown

    async def detach(self) -> None:
        """Note that the file was unlinked, or its name taken by another: writing goes on and nothing is published."""
        self.path = None
        await self.upload.detach()

    async def close(self) -> None:
        """Drop all that was not published; bytes that a killed writer had made durable can be recovered."""
        if self._staged is not None:
            await self._staged.close()
        await self.upload.abandon(recoverable=self.killed)

    # Inner workings

    def _ensure_publishable(self) -> None:
        if self._write_error is not None:
            raise type(self._write_error)(
                f"{self.name} is not published: {self._write_error.message}", hint=self._write_error.hint
            )

    def _modified(self) -> None:
        self.durable = False
        now = time.time_ns()
        self._status = dataclasses.replace(self._status, mtime_ns=now, atime_ns=now)
        self._times = None

    async def _stage(self, staging: Staging | None, error: NotSequential) -> StagedUpload:
        if staging is None:
            raise NotSequential(
                f"{self.name}: only written from start to end here",
                hint="mount with --staging DIR for programs that seek back, append in place or map files to write",
            ) from error
        if self.untouched:
            raise error
        staged = await staging.new(self.name.encode(errors="surrogateescape"))
        try:
            await staged.fill(self.upload.read, self.upload.length)
        except BaseException:
            with trio.CancelScope(shield=True):
                await staged.close()
            raise
        if self._announced > staged.length:
            await staged.truncate(self._announced)
        staged.dirty = staged.dirty or self.upload.dirty
        self._staged = staged
        return staged


class WriteHandles:
    """The write handles of one mount, by node and by path; and the pending reopens."""

    def __init__(self) -> None:
        self.by_node: dict[int, WriteHandle] = {}
        self._by_path: dict[bytes, WriteHandle] = {}
        self._reopens: dict[bytes, PendingReopen] = {}

    def __len__(self) -> int:
        return len(self.by_node)

    def at(self, path: bytes) -> WriteHandle | None:
        """The write handle of the file at `path`."""
        return self._by_path.get(path)

    def below(self, path: bytes) -> list[bytes]:
        """The files somewhere below the directory `path` that are being written."""
        return [one for one in self._by_path if one.startswith(path + b"/")]

    def add(self, file: WriteHandle) -> None:
        assert file.path is not None
        self.by_node[file.node] = file
        self._by_path[file.path] = file

    def move(self, file: WriteHandle, path: bytes) -> None:
        """The file being written has another name now."""
        self._remove_path(file)
        file.path = path
        self._by_path[path] = file

    async def detach(self, file: WriteHandle) -> None:
        """The name of the file was removed."""
        self._remove_path(file)
        await file.detach()

    def remove(self, file: WriteHandle) -> None:
        self._remove_path(file)
        self.by_node.pop(file.node, None)
        file.closed.set()

    def _remove_path(self, file: WriteHandle) -> None:
        if file.path is not None and self._by_path.get(file.path) is file:
            del self._by_path[file.path]

    # Pending reopens

    def expect_reopen(self, path: bytes, identity: Identity, number: int) -> None:
        self._reopens[path] = PendingReopen(identity, number, trio.current_time() + _REOPEN_WITHIN)

    def pending_reopen(self, path: bytes) -> PendingReopen | None:
        """The pending reopen of `path` for writing, None if there is none now."""
        reopen = self._reopens.get(path)
        return reopen if reopen is not None and trio.current_time() <= reopen.until else None

    def end_reopen(self, path: bytes) -> PendingReopen | None:
        """Remove the pending reopen of `path`, because it happened or never will."""
        reopen = self._reopens.pop(path, None)
        if reopen is not None:
            reopen.over.set()
        return reopen
