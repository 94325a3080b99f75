"""Files that are written: `WriteFile` sends what it is given in parts to many data hosts, and publishes it at `close`.

The new version becomes visible by one atomic step, and not at all when an exception leaves the `with` block, when the
process ends, or when the file is let go of without `close`. Meanwhile a lock, which the engine renews, keeps other
writers out.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar, TypeVarTuple

from stripefs.api.engine import before_threads_end, engine, in_other_process, os_errors
from stripefs.api.file_reader import as_bytes
from stripefs.api.source import Source
from stripefs.api.sources import SourceAddress
from stripefs.errors import ConfigError, IsADirectory, NotADirectory, NotFound
from stripefs.format.reserved_names import POOL
from stripefs.osutil import umask
from stripefs.settings import redact
from stripefs.store.base import Attributes, Kind, Status
from stripefs.write import FileUpload, Layout
from stripefs.write.namespace import begin_file
from stripefs.write.upload_names import ensure_usable, split_path
from stripefs.write_session import WriteSession

if TYPE_CHECKING:
    from types import TracebackType

    from _typeshed import ReadableBuffer

__all__ = ["MODES", "WriteFile"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")

STEP = 1 << 20
"""Bytes of small writes that are gathered before the engine gets them: as many as an upload takes at once."""

MODES = ("wb", "xb", "ab")

_NEVER_CLOSED = "%s was never closed, so it is not published"

_files: weakref.WeakSet[WriteFile] = weakref.WeakSet()


class WriteFile(io.BufferedIOBase):
    """A new version of a file, written from its start to its end; made by `stripefs.open`.

    Modes: `wb` replaces what is there, `xb` wants nothing to be there, `ab` goes on behind what is there. `name`: the
    file's URL. `status`: of the published version, None before. With `deferred`, `commit` after `close` publishes, and
    `discard` does not. Safe to use from many threads, but only in the process that opened it.
    """

    _upload: FileUpload | None = None
    _keeps_attributes = False

    def __init__(
        self, address: SourceAddress, path: bytes, name: str, mode: str = "wb", *, deferred: bool = False
    ) -> None:
        self.name = name
        self.mode = mode
        self.status: Status | None = None
        self._deferred = deferred
        self._buffer = bytearray()
        self._length = 0
        self._failed = False
        self._lock = threading.RLock()
        self._engine = engine()
        with os_errors(name):
            self._engine.call(self._begin, address, path)
        _files.add(self)

    def __repr__(self) -> str:
        return f"<stripefs.WriteFile {redact(self.name)!r}{' closed' if self.closed else ''}>"

    # -- as any file ---------------------------------------------------------------------------------------------

    def writable(self) -> bool:
        self._check()
        return True

    def tell(self) -> int:
        """Bytes of the file so far."""
        self._check()
        return self._length

    def write(self, data: ReadableBuffer, /) -> int:
        """Take all of `data`. Waits while the memory for writing is full. Raises what sending earlier bytes met."""
        upload = self._open_upload()
        with self._lock, as_bytes(data) as view:
            if len(self._buffer) + len(view) >= STEP:
                self._send(upload)
            if len(view) >= STEP:
                self._call(_write, upload, self._length, view)
            else:
                self._buffer += view
            self._length += len(view)
            return len(view)

    def flush(self) -> None:
        """Begin to send what is there. It is not durable by that, for which see `sync`, nor visible."""
        if not self.closed and self._buffer:
            upload = self._open_upload()
            with self._lock:
                self._send(upload)

    def sync(self) -> None:
        """As fsync(2): all written bytes are acknowledged by every replica's host; `stripefs recover` can find them."""
        upload = self._open_upload()
        with self._lock:
            self._send(upload)
            self._call(upload.sync)

    def set_attributes(self, *, mode: int | None = None, mtime_ns: int | None = None) -> None:
        """Permission bits and time of last change, in nanoseconds since 1970, of the version that is published.

        Raises OSError (EOPNOTSUPP) where the store keeps none.
        """
        upload = self._open_upload()
        if not self._keeps_attributes:
            raise OSError(errno.EOPNOTSUPP, "the store keeps no permissions and no times", redact(self.name))
        with self._lock:
            self._call(_set_attributes, upload, Attributes(mode=mode, mtime_ns=mtime_ns))

    def close(self) -> None:
        """Publish what was written: when this comes back it is durable and visible. Raises why it is not."""
        if self._is_inherited():
            self._end()
            return
        with self._lock:
            if self.closed or self._upload is None:
                self._end()
                return
            try:
                self._send(self._upload)
                if not self._deferred:
                    self._publish(self._upload)
            except BaseException:
                self.discard()
                raise
            self._end()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publish, unless an exception leaves the block: then nothing is."""
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None and self._engine.usable:
            self._engine.begin(upload.abandon)
            if not self.closed:
                _log.warning(_NEVER_CLOSED, redact(self.name))
        self._end()

    # -- more ----------------------------------------------------------------------------------------------------

    def discard(self) -> None:
        """Give up the unpublished version and the lock; the previous version stays. May be called at any time."""
        if self._is_inherited():
            self._end()
            return
        with self._lock:
            upload, self._upload = self._upload, None
            self._end()
            if upload is not None and self._engine.usable:
                self._engine.call(upload.abandon)

    def commit(self) -> None:
        """Publish a deferred file."""
        self.close()
        if not self._is_inherited():
            with self._lock:
                if self._upload is not None:
                    self._publish(self._upload)

    # -- inner workings ------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _is_inherited(self) -> bool:
        """True if this process only has a copy of the file, made by a fork; its lock may be held for ever."""
        return self._engine.pid != os.getpid()

    def _open_upload(self) -> FileUpload:
        self._check()
        if self._is_inherited():
            raise in_other_process(self.name)
        assert self._upload is not None
        return self._upload

    def _send(self, upload: FileUpload) -> None:
        """The engine gets what was gathered."""
        if self._buffer:
            buffer, self._buffer = self._buffer, bytearray()
            self._call(_write, upload, self._length - len(buffer), memoryview(buffer))

    def _publish(self, upload: FileUpload) -> None:
        if self._failed:
            raise OSError(errno.EIO, "it is not published, as writing it failed", redact(self.name))
        self.status = self._call(upload.publish, True)
        self._upload = None

    def _call(self, function: Callable[[*_Args], Awaitable[_T]], *args: *_Args) -> _T:
        try:
            with os_errors(self.name):
                return self._engine.call(function, *args)
        except BaseException:  # an interrupt too: it is unknown how many bytes were taken
            self._failed = True
            raise

    def _end(self) -> None:
        self._buffer = bytearray()
        super().close()

    async def _begin(self, address: SourceAddress, path: bytes) -> None:
        source, inner = await self._engine.sources.at(address, path)
        ensure_usable(inner, source.store)
        wanted = address.settings.write
        session = await source.session(address.settings)
        layout = Layout(await source.layouts.for_file(inner) or wanted.layout_of(inner))
        if layout is Layout.STRIPED and address.root is None:
            await _ensure_pool(source)
        upload = self._upload = await self._begin_upload(source, session, inner, layout)
        self._length = upload.length
        self._keeps_attributes = source.store.capabilities.attributes

    async def _begin_upload(self, source: Source, session: WriteSession, path: bytes, layout: Layout) -> FileUpload:
        async def begin(status: Status | None) -> FileUpload:
            if status is None and not source.store.capabilities.put_if_absent:
                await _ensure_folder(source, split_path(path)[0])
            return await session.uploads.begin(
                path,
                replacing=status.identity if status is not None else None,
                append=self.mode == "ab" and status is not None,
                attributes=_attributes(source, status),
                layout=layout,
                anew=self.mode == "wb" and status is None,
            )

        return await begin_file(path, partial(_find_file, source), begin, exclusive=self.mode == "xb")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a file that is being written cannot be pickled")


def _warn_of_open_files() -> None:
    for file in list(_files):
        if not file.closed and file._engine.usable:
            _log.warning(_NEVER_CLOSED, redact(file.name))


before_threads_end(_warn_of_open_files)


async def _write(upload: FileUpload, offset: int, view: memoryview) -> None:
    for at in range(0, len(view), STEP):
        await upload.write(offset + at, bytes(view[at : at + STEP]))


async def _set_attributes(upload: FileUpload, attributes: Attributes) -> None:
    upload.set_attributes(attributes)


async def _find_file(source: Source, path: bytes) -> Status | None:
    """The file that is there. Raises IsADirectory for anything else."""
    try:
        status = await source.stat(path)
    except NotFound:
        return None
    if status.kind is not Kind.FILE:
        raise IsADirectory(f"{path!r} is no regular file")
    return status


async def _ensure_folder(source: Source, path: bytes) -> None:
    """Raises NotFound or NotADirectory, as taking the lock does: where there are none only the end would say so."""
    if path != b"/" and (await source.stat(path)).kind is not Kind.DIRECTORY:
        raise NotADirectory(f"{path!r} is not a directory")


def _attributes(source: Source, status: Status | None) -> Attributes | None:
    if not source.store.capabilities.attributes:
        return None
    return Attributes(mode=status.mode if status is not None else 0o666 & ~umask())


async def _ensure_pool(source: Source) -> None:
    """Raises ConfigError where parts would lie in a pool that nobody meant."""
    try:
        await source.calls.call("look for a pool", source.store.inner.stat, POOL)
    except NotFound:
        raise ConfigError(
            "a striped file needs a source, and no directory above this one has a pool of parts",
            hint="give the directory that is mounted, or will be, as root= (cp: --root)",
        ) from None
