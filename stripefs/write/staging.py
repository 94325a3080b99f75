"""Staging of files that are not written from begin to end: they are kept on local disk until they are published whole.

A store takes a stream. A program that seeks back, leaves holes, maps the file or changes an existing one gets a
local file without a name instead (`--staging DIR`), and at flush its bytes go, in order, into an upload like any
other's: so publishing, placement, the lock and gc know nothing of staging. A second flush after a further change writes
the whole file again, as a new version.

The directory is bounded (`--staging-size`) and shared by all mounts of this host that name it, by the rule of
`staged_file`. A full disk and a full bound are alike: the write that finds no room answers ENOSPC, the old version
stays, and the file is not published until that write was made good.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import trio

from stripefs.background import Sampled
from stripefs.errors import ConfigError, ServiceDown, StoreError
from stripefs.executor import Lane
from stripefs.osutil import open_local_dir
from stripefs.store.base import Buffer, Status
from stripefs.units import shown
from stripefs.write.staged_file import StagedFile, StagingQuota

if TYPE_CHECKING:
    from stripefs.write.upload import FileUpload

__all__ = ["StagedUpload", "Staging"]

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")

_PIECE = 1 << 20
"""Bytes copied at once, in either direction: as large as the kernel's own requests."""

_THREADS = 8
"""Threads of one mount that touch the local disk at once."""

TIMEOUT = 60.0
"""Seconds after which a call to the local disk counts as hung."""

LAST = 5.0
"""Seconds for closing what nobody uses any more."""

Read = Callable[[int, int], Awaitable[Buffer]]
"""`await read(offset, size)`: exactly `size` bytes of the content that a staged file begins with."""


class Staging:
    """The staging directory of one mount. `size` in bytes bounds what all mounts keep there together.

    Raises ConfigError for a directory that is missing, not ours to write, or on a mount of stripefs or imagefs.
    """

    def __init__(self, directory: str, size: int, mountpoint: str) -> None:
        if size <= 0:
            raise ConfigError("--staging-size must be more than nothing")
        self.directory = directory
        self.size = size
        self._folder = open_local_dir("--staging", directory, mountpoint)
        try:
            self._account = StagingQuota(self._folder, size)
        except BaseException as error:
            os.close(self._folder)
            if isinstance(error, OSError):
                raise ConfigError(f"--staging {directory} cannot be used: {error.strerror}") from error
            raise
        self._lane = Lane("staging", _THREADS)
        self._used = Sampled("staging size", lambda: self._account.totals()[0], 0)

    @property
    def used(self) -> int:
        """Bytes staged now, of all mounts that share the directory."""
        return self._used.value()

    async def new(self, name: bytes = b"") -> StagedUpload:
        """An empty staged file; `name` is for messages. Raises StoreError when the local disk cannot make one."""
        called = shown(name) or "a file"
        try:
            file = await self._lane.run(
                f"staging {called}", StagedFile, self._folder, self._account, called, self.directory,
                timeout=TIMEOUT, late=methodcaller("close"),
            )  # fmt: skip
        except OSError as error:
            raise StoreError(f"{called} cannot be staged in {self.directory}: {error.strerror}") from error
        except ServiceDown as error:
            raise _hung(called, self.directory) from error
        return StagedUpload(file, self._lane, called, self.directory)

    def close(self) -> None:
        """Let go of the directory; close its files first. A disk that hangs is not waited for."""
        closing = Lane("staging", 1)
        with contextlib.suppress(ServiceDown):
            closing.call(f"closing {self.directory}", self._account.close, LAST)
            closing.call(f"closing {self.directory}", partial(os.close, self._folder), LAST)


class StagedUpload:
    """One file while it is open for writing. Changes are put in order; nothing is visible before `publish`."""

    def __init__(self, file: StagedFile, lane: Lane, name: str, directory: str) -> None:
        self.dirty = False
        """True if something changed since the last publication, or since `fill`."""
        self._file = file
        self._lane = lane
        self._name = name
        self._directory = directory
        self._hung = False  # a call may still change the file, which is not to be published then
        self._order = trio.Lock()
        self._changes = 0
        self._copied: tuple[FileUpload, int] | None = None  # the upload that has the content after N changes

    @property
    def length(self) -> int:
        return self._file.length

    async def fill(self, read: Read, length: int) -> None:
        """Begin with `length` bytes of existing content. Raises what `read` raises, and NoSpace; then close this."""
        async with self._order:
            for offset in range(0, length, _PIECE):
                data = await read(offset, min(_PIECE, length - offset))
                if len(data) != min(_PIECE, length - offset):
                    raise StoreError(f"{len(data)} bytes came where {min(_PIECE, length - offset)} were to be copied")
                await self._thread(self._file.write, offset, data)

    async def write(self, offset: int, data: Buffer) -> None:
        """All of `data` at any offset. Raises NoSpace, and then nothing of it is there."""
        async with self._order:
            self._change()
            await self._thread(self._file.write, offset, data)

    async def read(self, offset: int, size: int) -> bytes:
        """Bytes [offset, offset + size), as far as the file reaches."""
        return await self._thread(self._file.read, offset, size)

    async def truncate(self, length: int) -> None:
        async with self._order:
            self._change()
            await self._thread(self._file.truncate, length)

    async def publish(self, upload: FileUpload, final: bool) -> Status:
        """Make the content as it is now a version of its own. Raises what the upload raises, and NoSpace.

        The latter when a write found no room and was not made good: the version before stays then.
        """
        async with self._order:
            with self._copying():
                await self._copy_to(upload)
                status = await upload.publish(final)
            self.dirty = False
            return status

    async def sync(self, upload: FileUpload) -> None:
        """Make the content as it is now durable in the store without showing it. Raises as `publish` does."""
        async with self._order:
            with self._copying():
                await self._copy_to(upload)
                await upload.sync()

    async def close(self) -> None:
        """Let go of the file and its space, behind a call that hangs. Never raises."""
        with contextlib.suppress(ServiceDown):
            await self._lane.run(f"closing {self._name}", self._file.close, timeout=LAST, abandon=False)

    def _change(self) -> None:
        self.dirty = True
        self._changes += 1

    @contextlib.contextmanager
    def _copying(self) -> Iterator[None]:
        """An upload that fails is filled anew the next time; one that has everything, by fsync, is not."""
        try:
            yield
        except BaseException:
            self._copied = None
            raise

    async def _copy_to(self, upload: FileUpload) -> None:
        self._file.check_whole()
        if self._copied == (upload, self._changes):
            return
        await upload.rewind()
        for offset in range(0, self._file.length, _PIECE):
            await upload.write(offset, await self._thread(self._file.read, offset, _PIECE))
        self._copied = (upload, self._changes)

    async def _thread(self, function: Callable[[*_Args], _T], *args: *_Args) -> _T:
        if self._hung:
            raise _hung(self._name, self._directory)
        try:
            return await self._lane.run(f"staging {self._name}", function, *args, timeout=TIMEOUT, abandon=False)
        except ServiceDown as error:
            self._hung = True
            raise _hung(self._name, self._directory) from error


def _hung(name: str, directory: str) -> StoreError:
    return StoreError(
        f"{name} is not published: {directory} does not answer", hint="see whether the disk of --staging works"
    )
