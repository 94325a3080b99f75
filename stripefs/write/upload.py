"""One new version of one file, from its first byte to its publication: turns, errors, the lock.

Calls that change an upload take turns. Memory for a write is waited for within its turn, since what follows must come
behind it; parts travel meanwhile, and `abandon` and `detach` end the wait.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import trio

from stripefs.errors import DraftLost, NotFound, NotSequential, StaleVersion, StoreError, Unsupported
from stripefs.format.manifest import Manifest
from stripefs.format.reserved_names import new_version
from stripefs.store.base import Attributes, Buffer, Kind, Status
from stripefs.store.striped_listing import is_version_of
from stripefs.write.commit import Commit
from stripefs.write.file_contents import FileContents
from stripefs.write.hidden_files import FileState, HiddenFiles
from stripefs.write.layout_policy import Layout
from stripefs.write.parts import UploadBase
from stripefs.write.store_ops import ClockReading
from stripefs.write.upload_context import NO_OBSERVER, UploadContext
from stripefs.write.upload_locks import LAST, UploadLocks
from stripefs.write.upload_names import UploadNames, split_path

if TYPE_CHECKING:
    from stripefs.write.session import UploadManager

__all__ = ["FileUpload"]


PIECE = 1 << 20
"""Bytes taken at once, so that several writers share a full budget in turn."""


class FileUpload:
    """Made by `UploadManager.begin`. All calls may come from several tasks; those that change it take turns.

    An error of a background send is kept and raised by every following `write`, `sync` and `publish`: an upload that
    has failed can only be abandoned or rewound.
    """

    def __init__(
        self,
        shared: UploadContext,
        locks: UploadLocks,
        names: UploadNames,
        wanted: Layout,
        attributes: Attributes,
        replaced: Manifest | None,
        manager: UploadManager,
        *,
        alone: bool = False,
        anew: bool = False,
    ) -> None:
        self._shared = shared
        self._locks = locks
        self._names = names
        self._contents = FileContents(
            shared, wanted, locks.block_size, names, shared.observers(names.path) or NO_OBSERVER
        )
        self._file = FileState(attributes)
        self._files = HiddenFiles(shared, names, self._contents, self._file)
        self._commit = Commit(shared, locks, self._files, replaced, alone=alone, anew=anew)
        self._manager = manager
        self._turn = trio.Lock()
        self._fresh = True
        self._durable = 0
        self._closed = False
        self._abandoned = False
        self._kept = False
        self.resolved = True
        self.detached = False

    # -- what is known -----------------------------------------------------------------------------------------------

    @property
    def path(self) -> bytes:
        """The path at which it will be published; `moving` changes it."""
        return self._names.path

    @property
    def version(self) -> str:
        """16 hex digits in the names of its hidden things."""
        return self._names.version

    @property
    def versions(self) -> Sequence[str]:
        """This version, and the ones before it that were rewound."""
        return tuple(self._names.versions)

    @property
    def length(self) -> int:
        """Bytes written so far, published or not: where the next write must begin."""
        return self._contents.length

    @property
    def published(self) -> Status | None:
        """The version published last by this upload, None before the first."""
        return self._file.published if not self._fresh else None

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return self._contents.account.held

    @property
    def layout(self) -> Layout | None:
        """None until enough is written to decide (files below `policy.small` are plain)."""
        return self._contents.layout

    @property
    def dirty(self) -> bool:
        """True if there is something that the next `publish` makes visible (a new, empty file counts until then)."""
        return self._fresh or self._durable != self.length

    @property
    def failure(self) -> Exception | None:
        """The error by which bytes written since the last publication are lost."""
        return self._contents.failure

    # -- writing -----------------------------------------------------------------------------------------------------

    async def write(self, offset: int, data: Buffer) -> None:
        """Take all of `data`; returns when it is in memory, which waits while the memory of the mount is full.

        `data` must not change afterwards when it is `bytes` (kept without a copy); other buffers are copied.
        Raises NotSequential (nothing taken) unless offset == length; the upload's failure.
        """
        async with self._turn:
            self._check()
            if offset != self.length:
                raise NotSequential(
                    f"{self.path!r} is written at {offset} where it ends at {self.length}",
                    hint="files that are not written in order need --staging DIR",
                )
            await self._ensure_locked()
            contents = self._contents
            view = memoryview(data if isinstance(data, bytes) else bytes(data))
            for at in range(0, len(view), PIECE):
                piece = view[at : at + PIECE]
                await contents.account.acquire(len(piece))
                if contents.failure is not None:
                    contents.account.drop(len(piece))
                    raise contents.failure
                contents.add(piece)
                self._shared.stats.taken += len(piece)
                contents.account.acquired()

    async def read(self, offset: int, size: int) -> bytes:
        """Exactly the bytes [offset, min(offset + size, length)) as written so far, published or not.

        Raises StaleVersion for published bytes where the name was unlinked, or is another file's by now.
        """
        async with self._turn:
            self._check()
            contents = self._contents
            if contents.stream is not None:
                if not self._shared.store.capabilities.replace:
                    raise Unsupported(
                        f"what is written to {self._shared.store.url} is not readable before it is closed"
                    )
                await contents.drain()  # a stream cannot be read before it is complete; writing goes on in another one
            size = max(0, min(size, self.length - offset))
            found = []
            for piece in list(contents.pieces(offset, size)):
                if isinstance(piece, tuple):
                    found.append(await self._fetch(*piece))
                else:
                    found.append(bytes(piece))
            return b"".join(found)

    async def _fetch(self, path: bytes, offset: int, size: int) -> bytes:
        base = self._contents.base
        if base is not None and path != base.path:
            base = None
        elif base is not None and self.detached:
            raise base.replaced()
        store = self._shared.store if base is None else self._shared.view

        def fetch() -> bytes:
            handle = store.open(path)
            try:
                if base is not None:
                    base.ensure_same(handle.status)
                return bytes(handle.read(offset, size))
            finally:
                handle.close()

        try:
            return await self._shared.ops.call("reading back what was written", fetch)
        except NotFound:
            if base is None:
                raise
            raise base.replaced() from None

    async def sync(self) -> None:
        """fsync: all of it acknowledged by every replica's host, and a record beside the file names it."""
        async with self._turn:
            self._check()
            if self.dirty and not self.detached:
                with self._contents.counting_errors():
                    await self._ensure_locked()
                    try:
                        await self._files.record()
                    except NotFound as error:
                        raise await self._locks.cause_of_missing(error) from error

    # -- publishing --------------------------------------------------------------------------------------------------

    async def publish(self, final: bool) -> Status:
        """Make all written bytes visible at `path` as one version, by one atomic step, durably; its status.

        final: the upload is done and releases its lock, in any case, also when this raises. Else writing may go on, and
        the next publication makes the next version. Publishing an upload that is not dirty changes nothing.
        """
        try:
            async with self._turn:
                self._check()
                return await self._publish()
        finally:
            if final:
                await self.abandon(recoverable=True)

    async def _publish(self) -> Status:
        if self.detached:
            self._fresh, self._durable = False, self.length
            return Status(split_path(self.path)[1], Kind.FILE, self.length)
        published = self._file.published
        if not self.dirty and published is not None:
            return published
        with self._contents.counting_errors():
            await self._ensure_locked()
            try:
                status = await self._commit.publish()
            except NotFound as error:
                raise await self._locks.cause_of_missing(error) from error
        self._fresh, self._durable = False, self.length
        # Later writes have a time of their own.
        self._file.attributes = dataclasses.replace(self._file.attributes, mtime_ns=None, atime_ns=None)
        return status

    async def rewind(self) -> None:
        """Drop what is unpublished: the next write is at 0 and the next publication replaces the file as a whole."""
        async with self._turn:
            if self._closed:
                raise DraftLost(f"{self.path!r} is no longer being written")
            contents = self._contents
            contents.give_up(DraftLost(f"{self.path!r} was being begun anew"))  # so it stays if this is cut off
            await self._commit.resolve()
            version = new_version()
            # First, since a writer that takes the lock over fences the versions that it names.
            await self._locks.add_version(version)
            rubbish, folder = await self._rubbish(), self._names.folder
            self._names.begin_version(version)
            self._contents = FileContents(self._shared, contents.wanted, contents.block, self._names, contents.observer)
            self._file = FileState(self._file.attributes, self._file.published)
            self._files = HiddenFiles(self._shared, self._names, self._contents, self._file)
            self._commit = self._commit.restarted(self._files)
            contents.account.close()
            self._durable = -1
            await self._shared.ops.clear(rubbish, folder)

    async def abandon(self, *, recoverable: bool = False) -> None:
        """Drop what is unpublished, and the lock. Safe to call twice or after `publish(final=True)`.

        Raises nothing but what cancels it, after LAST seconds in which it goes on. recoverable: bytes that `sync` made
        durable, with their record, stay for `stripefs recover`. The lock stays until it runs out while a step that was
        cut off may yet come to the name.
        """
        try:
            await self._abandon(recoverable)
        except trio.Cancelled:
            with trio.move_on_after(LAST, shield=True):
                await self._abandon(recoverable)
            raise
        finally:
            self._manager.closed(self)

    async def _abandon(self, recoverable: bool) -> None:
        self._contents.account.close()
        async with self._turn:
            if self._abandoned:
                return
            self._closed = True
            kept = recoverable and self._files.recorded and self.dirty and not self.detached
            self._kept = kept
            await self.resolve()
            if kept:
                await self._contents.stop()
                rubbish = await self._files.unused()
            else:
                rubbish = await self._rubbish()
            manifest = self._file.manifest
            unpublished = manifest is None or manifest.version != self.version
            if rubbish or (unpublished and self._contents.layout is Layout.STRIPED):  # the folder of parts may be empty
                await self._shared.ops.clear(rubbish, self._names.folder)
            self._abandoned = True

    async def resolve(self) -> None:
        """Let the lock go, if what was cut off can have no effect any more, or none by being taken back: `resolved`.

        First of all when an upload is given up, since others wait for it, and what else there is to do may take long.
        """
        self.resolved = await self._commit.resolve(recoverable=self._kept)
        if self.resolved:
            await self._locks.release(self._manager.keep_lock)

    async def _rubbish(self) -> list[bytes]:
        parts = await self._contents.stop()
        # A record before what it names.
        left = await self._files.leftovers(may_be_named=self._commit.may_be_named)
        return left if self._commit.may_be_named else [*left, *parts]

    # -- names and attributes ----------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def moving(self, path: bytes) -> AsyncIterator[None]:
        """Around renaming the published file to `path`: the upload is published there, unless an error leaves this.

        Its lock is taken (Busy), then the old one released. Nothing is written or published meanwhile.
        """
        async with self._turn:
            self._check()
            leaves = self.dirty and split_path(self.path)[0] != split_path(path)[0]
            async with self._locks.moving(path, self.version.encode() if leaves else b""):
                yield
                names, contents = self._names, self._contents
                base = contents.base
                if base is not None and base.path == names.path:
                    contents.base = dataclasses.replace(base, path=path)
                old, names.path = names.path, path
                self._commit.alone = False  # the file there has been renamed over
                self._manager.moved(self, old)

    async def detach(self) -> None:
        """The name was unlinked or renamed over: writing goes on, nothing will be published, the lock is released.

        A publication under way goes first. Raises nothing.
        """
        async with self._turn:
            if self.detached or self._closed:
                return
            self.detached = True
            self._contents.detach()
            self._contents.observer.drop()
            self._contents.observer = NO_OBSERVER
            self._manager.detached(self)
            if self._files.recorded:  # or `recover` would bring back what was removed
                with contextlib.suppress(StoreError):
                    await self._files.forget_record()
            await self._locks.release_name()

    def set_attributes(self, attributes: Attributes) -> None:
        """Attributes that the next publication gives the file; None fields stay as they are."""
        given = {name: value for name, value in dataclasses.asdict(attributes).items() if value is not None}
        self._file.attributes = dataclasses.replace(self._file.attributes, **given)

    async def try_owners(self, owners: Attributes) -> None:
        """Raises what the store answers to giving a file of this writer away. It is tried with the lock."""
        await self._locks.try_attributes(owners)

    # -- for `UploadManager` -----------------------------------------------------------------------------------------

    async def continue_file(self, status: Status, manifest: Manifest | None) -> None:
        """Begin with the bytes of the published file `status`, which has `manifest` if it is striped.

        Raises StaleVersion where the two are not of one version.
        """
        if not is_version_of(status, manifest):
            raise StaleVersion(f"{self.path!r} was replaced by somebody else")
        contents = self._contents
        base = UploadBase(self.path, status.length, file_id=status.file_id)
        self._file.published = self._commit.continued = status
        if manifest is not None:
            self._shared.ensure_ours(manifest)
            self._file.manifest = manifest
            contents.start_behind(base, Layout.STRIPED)
        elif status.length < self._shared.policy.small:
            if status.length:
                data = await self._fetch_published(status.length)
                await contents.account.acquire(len(data))
                contents.add(memoryview(data))
                contents.account.acquired()
        elif self._shared.store.capabilities.concat:
            contents.block = status.block_size
            contents.start_behind(base, Layout.CONCAT)
        elif self._shared.store.capabilities.replace:
            contents.start_behind(base, Layout.PLAIN)
        else:
            raise Unsupported(f"{self._shared.store.url} cannot append to files")
        if contents.head is None:
            contents.observer.behind(self.path, status)
        self._fresh, self._durable = False, self.length

    async def _fetch_published(self, size: int) -> bytes:
        view, path = self._shared.view, self.path
        data = await self._shared.ops.call("reading what is continued", lambda: bytes(view.get(path)))
        return data[:size]

    async def renew(self, reading: ClockReading | None, timeout: float) -> ClockReading | None:
        """Keep the lock, as `UploadLocks.renew` does. A lock that was lost fails the upload."""
        try:
            return await self._locks.renew(reading, timeout)
        except DraftLost as error:
            self._contents.fail(error)
            return None

    async def _ensure_locked(self) -> None:
        """The writer's error for a lease that has ended and cannot be renewed."""
        if self._locks.left <= 0:
            await self._locks.ensure_lease()

    def _check(self) -> None:
        if self._closed:
            raise DraftLost(f"{self.path!r} is no longer being written")
        if self._contents.failure is not None:
            raise self._contents.failure
