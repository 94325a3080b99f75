"""Write handles: one `WriteHandle` for each file that is being written, with a node of its own, and their table.

A node id stands for one version, and a file that is being written is a version that does not exist yet. So a file open
for writing has its own node, made of its path and a random mark. That node serves its writers, until the last handle
is closed; versions published meanwhile are found under the path as any other.

A handle that is opened on an existing file would be the handle of *that* version's node, and what is written through it
would go into pages that its readers see. So such an open is answered ESTALE after a *pending reopen* was noted; the
kernel then looks the path up again and is given the node of the version to come, upon which it opens that.

A path goes on to show the version that is published. So fstat(fd) of a writer answers the inode number of that version,
by which databases tell that their file is still the one at its path; a file that has no version yet has its own.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from dataclasses import dataclass, field

import trio

from stripefs.errors import StripefsError, Unsupported
from stripefs.store.base import Attributes, Buffer, Identity, Status
from stripefs.vfs.inodes import Inode
from stripefs.vfs.writer_process import WriterProcess
from stripefs.write import FileUpload, NotSequential
from stripefs.write.staging import StagedUpload, Staging

__all__ = ["PendingReopen", "WriteHandle", "WriteHandles", "future", "is_future"]

_MARK = "\0being written:"
"""Begins the file id of a version to come. No store has file ids with a NUL."""

_ZEROS = 1 << 20

_WISH_LASTS = 5.0
"""Seconds between the open that is told ESTALE and the one that the kernel repeats at once."""


def future(mark: str = "") -> Identity:
    """The identity of a version that is yet to be written: a new one, or the one with this mark."""
    return Identity(0, 0, mark or _MARK + secrets.token_hex(8))


def is_future(version: Inode | Status) -> bool:
    """True if a node, or what is listed, is of a file being written, by this worker or by one that is dead."""
    if isinstance(version, Status):
        return version.file_id.startswith(_MARK)
    return version.identity is not None and version.identity.file_id.startswith(_MARK)


@dataclass(slots=True)
class PendingReopen:
    """Someone is about to open a version to come. `over` is set when they did; until `until` it may happen.

    number: of the intent by which the next worker knows of it.
    """

    identity: Identity
    number: int
    until: float
    over: trio.Event = field(default_factory=trio.Event)


class WriteHandle:
    """One file that is being written, by one or more handles of one open. Hold `lock` around its calls.

    path: None once its name was removed. status: fstat's first answer. untouched: the upload begins empty and the file
    does not, and nobody has written yet. killed: the opener died of a signal, so nothing will be published.
    new: no version was there when it was opened. durable: an fsync of the writer came after all that was written.

    A file that is made longer by ftruncate and then written from its start (safetensors does so) stays a stream: the
    length is a promise, and what is missing of it in the end becomes zeros. A write that was refused or got lost makes
    the file one that must not be published: `publish` raises until it is cut to nothing.
    """

    def __init__(
        self,
        node: int,
        path: bytes,
        draft: FileUpload,
        opener: WriterProcess,
        status: Status,
        *,
        untouched: bool = False,
        new: bool = False,
    ) -> None:
        self.node = node
        self.mark = ""  # the file id of the node
        self.path: bytes | None = path
        self.draft = draft
        self.opener = opener
        self.untouched = untouched
        self.killed = False
        self.new = new
        self.durable = False
        self.told = False  # True if the writer knows that the written bytes are lost
        self.handles: dict[int, bool] = {}  # True for those that append
        self.shared = False  # True if others may read it before it has a version
        self.lock = trio.Lock()
        self.closed = trio.Event()
        self.beneath: Identity | None = None  # of the version that the path shows
        self.inodes: set[int] = set()  # that were shown
        self._base = status
        self._status = status
        self._staged: StagedUpload | None = None
        self.owners: Attributes | None = None  # to be set on each version that is published
        self._times: Attributes | None = None
        self._promised = 0
        self._broken: StripefsError | None = None

    @property
    def length(self) -> int:
        if self._staged is not None:
            return self._staged.length
        return self._base.length if self.untouched else max(self.draft.length, self._promised)

    @property
    def status(self) -> Status:
        """Attributes for the writer's fstat."""
        return dataclasses.replace(self._status, length=self.length)

    @property
    def dirty(self) -> bool:
        """True if the path does not hold yet what was written."""
        if self.path is None:
            return False
        if self._broken is not None:
            return True
        if self._staged is not None:
            return self._staged.dirty
        return not self.untouched and (self.draft.dirty or self._promised > self.draft.length)

    @property
    def complete(self) -> bool:
        """True if all of the length that was promised has been written."""
        return self._staged is not None or self._promised <= self.draft.length

    # Bytes

    async def write(self, offset: int, data: Buffer, staging: Staging | None) -> None:
        staged = self._staged or await self._write_on(offset, data, staging)
        if staged is not None:
            await staged.write(offset, data)
        self._touched()

    async def _write_on(self, offset: int, data: Buffer, staging: Staging | None) -> StagedUpload | None:
        """Let the upload take `data`; where that cannot be, the staged file that is to take it."""
        try:
            try:
                if self.untouched:
                    raise NotSequential(f"{self.name} is written somewhere inside")
                await self.draft.write(offset, data)
            except NotSequential as error:
                return await self._stage(staging, error)
        except StripefsError as error:
            self._broken = error
            raise
        return None

    async def read(self, offset: int, size: int) -> Buffer:
        """The bytes written so far, published or not; at most `size` bytes, none behind the end."""
        if self._staged is not None:
            return await self._staged.read(offset, size)
        if self.untouched:
            raise Unsupported(f"{self.name} cannot be read through a descriptor that may write it")
        data = await self.draft.read(offset, size)
        return bytes(data) + bytes(max(0, min(size, self.length - offset) - len(data)))

    async def truncate(self, length: int, staging: Staging | None) -> None:
        if length == self.length and self._broken is None:
            return
        if self._staged is not None:
            await self._staged.truncate(length)
        elif length == 0:
            if not self.untouched:
                await self.draft.rewind()
            self.untouched = False
            self._promised = 0
            self._broken = None
        elif length >= self.draft.length and not self.untouched:
            self._promised = length
        else:
            staged = await self._stage(staging, NotSequential(f"{self.name} is cut somewhere inside"))
            await staged.truncate(length)
        self._touched()

    async def sync(self) -> None:
        """fsync(2): all written bytes are on the store's hosts, and `stripefs recover` can find them."""
        if not self.dirty:
            return
        self._check()
        if self._staged is not None:
            await self._staged.sync(self.draft)
        else:
            await self.draft.sync()

    async def publish(self, *, final: bool) -> Status:
        """Publish the written bytes as the version at the path; its status."""
        try:
            self._check()
            if self._times is not None:
                self.draft.set_attributes(self._times)
            if self._staged is not None:
                status = await self._staged.publish(self.draft, final)
            else:
                await self._keep_promise()
                status = await self.draft.publish(final)
        except BaseException:
            self.told = True
            raise
        self._times = None
        return status

    # Name and attributes

    @property
    def name(self) -> str:
        return os.fsdecode(self.path or self._base.name)

    def set_attributes(self, wanted: Attributes, shown: Status) -> None:
        """Of what will be published. Times hold until something is written; `owners` are for who publishes."""
        if wanted.mode is not None:
            self.draft.set_attributes(Attributes(mode=wanted.mode))
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

    async def lose_name(self) -> None:
        """It was unlinked, or another file took its name: writing goes on and nothing comes of it."""
        self.path = None
        await self.draft.detach()

    async def close(self) -> None:
        """Give up all that was not published; bytes that a killed writer had made durable can be recovered."""
        if self._staged is not None:
            await self._staged.close()
        await self.draft.abandon(recoverable=self.killed)

    # Inner workings

    def _check(self) -> None:
        if self._broken is not None:
            raise type(self._broken)(f"{self.name} is not published: {self._broken.message}", hint=self._broken.hint)

    def _touched(self) -> None:
        self.durable = False
        now = time.time_ns()
        self._status = dataclasses.replace(self._status, mtime_ns=now, atime_ns=now)
        self._times = None

    async def _keep_promise(self) -> None:
        while (missing := self._promised - self.draft.length) > 0:
            await self.draft.write(self.draft.length, bytes(min(missing, _ZEROS)))

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
            await staged.fill(self.draft.read, self.draft.length)
        except BaseException:
            with trio.CancelScope(shield=True):
                await staged.close()
            raise
        if self._promised > staged.length:
            await staged.truncate(self._promised)
        staged.dirty = staged.dirty or self.draft.dirty
        self._staged = staged
        return staged


class WriteHandles:
    """The write handles of one mount, by node and by path; and the pending reopens."""

    def __init__(self) -> None:
        self.by_node: dict[int, WriteHandle] = {}
        self._by_path: dict[bytes, WriteHandle] = {}
        self._wishes: dict[bytes, PendingReopen] = {}

    def __len__(self) -> int:
        return len(self.by_node)

    def at(self, path: bytes) -> WriteHandle | None:
        """The write handle of the file at `path`."""
        return self._by_path.get(path)

    def below(self, path: bytes) -> list[bytes]:
        """The files somewhere below the directory `path` that are being written."""
        return [one for one in self._by_path if one.startswith(path + b"/")]

    def add(self, pen: WriteHandle) -> None:
        assert pen.path is not None
        self.by_node[pen.node] = pen
        self._by_path[pen.path] = pen

    def move(self, pen: WriteHandle, path: bytes) -> None:
        """The file being written has another name now."""
        self._unname(pen)
        pen.path = path
        self._by_path[path] = pen

    async def take_name(self, pen: WriteHandle) -> None:
        """The name of the file is gone."""
        self._unname(pen)
        await pen.lose_name()

    def remove(self, pen: WriteHandle) -> None:
        self._unname(pen)
        self.by_node.pop(pen.node, None)
        pen.closed.set()

    def _unname(self, pen: WriteHandle) -> None:
        if pen.path is not None and self._by_path.get(pen.path) is pen:
            del self._by_path[pen.path]

    # Pending reopens

    def wish(self, path: bytes, identity: Identity, number: int) -> None:
        self._wishes[path] = PendingReopen(identity, number, trio.current_time() + _WISH_LASTS)

    def wished(self, path: bytes) -> PendingReopen | None:
        """The pending reopen of `path` for writing, None if there is none now."""
        wish = self._wishes.get(path)
        return wish if wish is not None and trio.current_time() <= wish.until else None

    def grant(self, path: bytes) -> PendingReopen | None:
        """Remove the pending reopen of `path`, because it happened or never will."""
        wish = self._wishes.pop(path, None)
        if wish is not None:
            wish.over.set()
        return wish
