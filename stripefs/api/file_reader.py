"""Files that are read: `ReadFile` looks like a file that Python opened, and has more ways to read.

`fetch` reads parts of many files at once: each file is opened once, and all parts are read side by side.
"""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Never, NoReturn

import trio

from stripefs.api.engine import Engine, as_os_error, engine, os_errors
from stripefs.api.source import OpenVersion
from stripefs.api.sources import SourceAddress, Sources
from stripefs.errors import StripefsError
from stripefs.read import OpenFile
from stripefs.store.allocator import new_bytes
from stripefs.store.base import Identity, Status

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

__all__ = ["RANGES_AT_ONCE", "Path", "ReadFile", "Request", "as_bytes", "fetch", "read_into"]


def as_bytes(buffer: ReadableBuffer) -> memoryview:
    """A view of its bytes in order, whatever its items and dimensions are. Raises TypeError where they are not in one
    piece."""
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(bytearray())  # Python casts no view that is empty


STEP = 1 << 20
"""Bytes that are taken from the engine at once for small reads, to the next multiple of it: a chunk of the reader."""

AT_ONCE = 8 << 20
"""Bytes of one read that are asked of the reader at once: a full range. Look-ahead covers the bytes behind it."""

RANGES_AT_ONCE = 64
"""Ranges of one call that are read side by side: as many requests as a mount lets the kernel have under way."""

_files: weakref.WeakSet[ReadFile] = weakref.WeakSet()


class ReadFile(io.BufferedIOBase):
    """One version of a file, open for reading; made by `stripefs.open`. Safe to use from many threads.

    All reads answer bytes of that version, or raise an OSError (ESTALE when it is gone). In a process that was forked
    the same version is opened again. `size`: length in bytes. `name`: the file's URL.
    """

    mode = "rb"

    def __init__(self, address: SourceAddress, path: bytes, name: str) -> None:
        self.name = name
        self._address = address
        self._path = path
        self._opened_in: tuple[Engine, OpenVersion] | None = None
        self._expect: Identity | None = None
        self._position = 0
        self._step = (0, b"")
        self._lock = threading.Lock()
        self._line_lock = threading.Lock()
        self._open_lock = threading.Lock()
        self._status = self._opened()[1].status
        self._expect = self._status.identity
        self.size = self._status.length
        _files.add(self)

    def __repr__(self) -> str:
        return f"<stripefs.ReadFile {self.name!r}{' closed' if self.closed else ''}>"

    @property
    def status(self) -> Status:
        """Of the version that is read."""
        return self._status

    # -- as any file ---------------------------------------------------------------------------------------------

    def readable(self) -> bool:
        self._check()
        return True

    def seekable(self) -> bool:
        self._check()
        return True

    def tell(self) -> int:
        self._check()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check()
        with self._lock:
            base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}.get(whence)
            if base is None:
                raise ValueError(f"whence {whence} is not 0, 1 or 2")
            if base + offset < 0:
                raise ValueError(f"position {base + offset} is before the file's start")
            self._position = base + offset
            return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """`size` bytes from the position, fewer only at the end; all the rest where `size` is negative or None."""
        self._check()
        offset, length = self._advance(size)
        step_at, step = self._step
        at = offset - step_at
        if at >= 0 and at + length <= len(step):
            return step[at : at + length]
        answer, buffer = new_bytes(length)
        self._fill_or_rewind(offset, buffer)
        return answer

    def read1(self, size: int = -1, /) -> bytes:
        """As `read`, of at most what one request to the engine brings."""
        return self.read(STEP if size < 0 else size)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill `buffer` from the position on. Returns the number of bytes, fewer than it holds only at the end."""
        self._check()
        with as_bytes(buffer) as view:
            offset, length = self._advance(len(view))
            self._fill_or_rewind(offset, view[:length])
            return length

    def readinto1(self, buffer: WriteableBuffer, /) -> int:
        return self.readinto(buffer)

    def peek(self, size: int = 0, /) -> bytes:
        """The next bytes, without moving: of the step that is here, or of the next one. b"" at the end only."""
        self._check()
        at, step = self._step_of(self._position)
        return step[at:]

    def readline(self, size: int | None = -1, /) -> bytes:
        """A line from the position on, of `size` bytes at most. Threads that only read lines get each line once; a
        `read` or `seek` of another thread meanwhile is undone."""
        self._check()
        limit = self.size if size is None or size < 0 else size
        parts: list[bytes] = []
        with self._line_lock:
            position = self._position
            while limit > 0 and position < self.size:
                at, step = self._step_of(position)
                part = step[at : min(step.find(b"\n", at) + 1 or len(step), at + limit)]
                position += len(part)
                limit -= len(part)
                parts.append(part)
                if part.endswith(b"\n"):
                    break
            self._position = position
        return b"".join(parts)

    def close(self) -> None:
        """Let go of the version. Reads under way in other threads may fail."""
        if not self.closed:
            held, self._opened_in = self._opened_in, None
            self._step = (0, b"")
            super().close()
            if held is not None and held[0].usable:
                held[0].begin(held[1].close)

    # -- by position, for many threads ---------------------------------------------------------------------------

    def pread(self, *unnamed: Never, offset: int, length: int) -> bytes:
        """Exactly min(length, size - offset) bytes from `offset`; the position stays. b"" at the end and beyond.

        Both are given by name: os.pread and pyarrow's read_at take the length first, and either order would answer
        bytes. Raises TypeError otherwise.
        """
        if unnamed:
            raise TypeError("pread takes its arguments by name: pread(offset=…, length=…)")
        answer, buffer = new_bytes(self._clip(offset, length))
        self._transfer(offset, buffer)
        return answer

    def pread_into(self, buffer: WriteableBuffer, offset: int) -> int:
        """Fill `buffer` from `offset`. Returns the number of bytes, fewer only at the end. The position stays."""
        with as_bytes(buffer) as view:
            length = self._clip(offset, len(view))
            self._transfer(offset, view[:length])
            return length

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        """The bytes of all (offset, length), read side by side; each as `pread` answers it."""
        wanted = [(offset, *new_bytes(self._clip(offset, length))) for offset, length in ranges]
        self._transfer_all([(offset, buffer) for offset, _, buffer in wanted])
        return [answer for _, answer, _ in wanted]

    def read_ranges_into(self, ranges: Iterable[tuple[int, WriteableBuffer]]) -> int:
        """Fill all buffers, each from its offset, side by side. Returns the bytes in all, fewer only at the end."""
        views = [(offset, as_bytes(buffer)) for offset, buffer in ranges]
        clipped = [(offset, view[: self._clip(offset, len(view))]) for offset, view in views]
        self._transfer_all(clipped)
        return sum(len(view) for _, view in clipped)

    # -- inner workings ------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _clip(self, offset: int, length: int) -> int:
        self._check()
        if offset < 0 or length < 0:
            raise ValueError("offset and length cannot be negative")
        return max(0, min(length, self.size - offset))

    def _advance(self, size: int | None) -> tuple[int, int]:
        """Take `size` bytes (None or negative: the rest) from the position on: the (offset, length) to be read."""
        with self._lock:
            offset = self._position
            left = max(0, self.size - offset)
            length = left if size is None or size < 0 or size > left else size
            self._position = offset + length
        return offset, length

    def _fill_or_rewind(self, offset: int, view: memoryview) -> None:
        """`_fill` what was taken. After an error the position goes back, unless it has been moved since."""
        try:
            self._fill(offset, view)
        except BaseException:
            with self._lock:
                if self._position == offset + len(view):
                    self._position = offset
            raise

    def _fill(self, offset: int, view: memoryview) -> None:
        """Fill `view`, which ends inside the file, from `offset` on."""
        while view:
            step_at, step = self._step
            at = offset - step_at
            if not 0 <= at < len(step):
                if len(view) >= STEP:
                    self._transfer(offset, view)
                    return
                at, step = self._step_of(offset)
            length = min(len(view), len(step) - at)
            view[:length] = memoryview(step)[at : at + length]
            offset += length
            view = view[length:]

    def _step_of(self, offset: int) -> tuple[int, bytes]:
        """The step that holds the byte at `offset`, fetched where it is not here, and where in it that byte is. Nothing
        of the file at its end and beyond."""
        step_at, step = self._step
        if not 0 <= offset - step_at < len(step):
            end = min(self.size, offset - offset % STEP + STEP)
            step, buffer = new_bytes(max(0, end - offset))
            self._transfer(offset, buffer)
            step_at = offset
            self._step = (step_at, step)
        return offset - step_at, step

    def _transfer(self, offset: int, view: memoryview) -> None:
        if view:
            held, opened = self._opened()
            with os_errors(self.name):
                held.call(read_into, opened.file, offset, view)

    def _transfer_all(self, wanted: Sequence[tuple[int, memoryview]]) -> None:
        held, opened = self._opened()
        with os_errors(self.name):
            held.call(_read_all, [(opened.file, offset, view) for offset, view in wanted if view])

    def _opened(self) -> tuple[Engine, OpenVersion]:
        """The version as the engine of this process has it, opened where it is not."""
        held = self._opened_in
        if held is not None and held[0].usable:
            return held
        with self._open_lock:
            held = self._opened_in
            if held is None or not held[0].usable:
                here = engine()
                with os_errors(self.name):
                    self._opened_in = held = (here, here.call(_open, here, self._address, self._path, self._expect))
            return held

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open file cannot be pickled; pickle its URL")


async def _open(engine: Engine, address: SourceAddress, path: bytes, expect: Identity | None) -> OpenVersion:
    return await engine.sources.open(address, path, expect)


async def read_into(file: OpenFile, offset: int, view: memoryview) -> None:
    """Fill `view`, which ends inside the file, from `offset` on."""
    if not await file.fill(offset, view):
        for at in range(0, len(view), AT_ONCE):
            await file.read_into(offset + at, view[at : at + AT_ONCE])


async def _read_all(ranges: Sequence[tuple[OpenFile, int, memoryview]]) -> None:
    """`read_into` for all of these, side by side. Raises the first error, when nothing of it moves any more."""
    limiter = trio.CapacityLimiter(RANGES_AT_ONCE)
    errors: list[Exception] = []

    async def read(file: OpenFile, offset: int, view: memoryview, scope: trio.CancelScope) -> None:
        try:
            async with limiter:
                await read_into(file, offset, view)
        except Exception as error:  # noqa: BLE001  whatever it is, it is raised below
            errors.append(error)
            scope.cancel()

    async with trio.open_nursery() as nursery:
        for file, offset, view in ranges:
            nursery.start_soon(read, file, offset, view, nursery.cancel_scope)
    if errors:
        raise errors[0]


def _forked() -> None:
    """Replace locks that other threads of the parent held during the fork: no thread of the child releases them."""
    for file in list(_files):
        file._lock, file._line_lock, file._open_lock = threading.Lock(), threading.Lock(), threading.Lock()
        file._step = (0, b"")


os.register_at_fork(after_in_child=_forked)

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""A path in a source, from its root; a slash in front changes nothing."""

Request = tuple[Path, int | None, int | None]
"""A path, and where to begin and to end, as in slices: negative ones count from the end."""


async def fetch(
    sources: Sources,
    address: SourceAddress,
    requests: Sequence[tuple[bytes, int | None, int | None]],
    name: Callable[[bytes], str],
) -> list[bytes | OSError]:
    """For each request its bytes, or its error. `name` makes a URL of a path."""
    answers: list[bytes | OSError] = [b""] * len(requests)
    by_path: dict[bytes, list[int]] = {}
    for index, (path, _, _) in enumerate(requests):
        by_path.setdefault(path, []).append(index)
    limiter = trio.CapacityLimiter(RANGES_AT_ONCE)

    async def part(opened: OpenVersion, index: int) -> None:
        path, start, end = requests[index]
        start, end, _ = slice(start, end).indices(opened.status.length)
        answer, buffer = new_bytes(max(0, end - start))
        try:
            async with limiter:
                await read_into(opened.file, start, buffer)
            answers[index] = answer
        except StripefsError as error:
            answers[index] = as_os_error(error, name(path))

    async def one(path: bytes) -> None:
        try:
            opened = await sources.open(address, path)
        except StripefsError as error:
            for index in by_path[path]:
                answers[index] = as_os_error(error, name(path))
            return
        try:
            async with trio.open_nursery() as nursery:
                for index in by_path[path]:
                    nursery.start_soon(part, opened, index)
        finally:
            with trio.CancelScope(shield=True):
                await opened.close()

    async with trio.open_nursery() as nursery:
        for path in by_path:
            nursery.start_soon(one, path)
    return answers
