"""Upload of a big file as one stream: one sink, written behind by a task of its own, for stores that cannot join parts.

Bytes are given back when they are written, not when they are acknowledged, since all of the file would have to stay
otherwise. So a host that fails takes the file with it, unless the client mends that by itself (HDFS pipelines do).

Each call to the sink must come back within `--io-timeout`: one that hangs fails its own file and keeps its own thread.

`PutSink` is the sink of stores that only know `put`: the pieces are handed to a `put` that runs in a thread of its own.
The file appears under its name when `close` answers, whole, and not at all after `abort`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from stripefs.background import contain
from stripefs.errors import Abandoned, DraftLost, StoreError, StripefsError
from stripefs.store.base import Buffer, Handle, Sink, Status, Store
from stripefs.units import shown
from stripefs.write.parts import PartBuffer, UploadBase
from stripefs.write.store_ops import COPIED_AT_ONCE

if TYPE_CHECKING:
    from stripefs.write.upload_context import UploadContext

__all__ = ["PutSink", "StreamUpload"]

_LOOK = 0.2
"""Seconds between looks whether the other thread still lives."""


class PutSink(Sink):
    """Replaces what is at `path`."""

    def __init__(self, store: Store, path: bytes) -> None:
        self._store = store
        self._path = path
        self._pieces: queue.Queue[Buffer | None] = queue.Queue(maxsize=1)  # the budget counts what lies here no more
        self._aborted = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="put", daemon=True)
        self._thread.start()

    def write(self, data: Buffer) -> None:
        self._hand(bytes(data) if isinstance(data, bytearray) else data)

    def close(self) -> Status:
        self._hand(None)
        self._thread.join()
        self._check()
        return self._store.stat(self._path)

    def abort(self) -> None:
        self._aborted = True
        with contextlib.suppress(queue.Full):
            self._pieces.put_nowait(None)

    def _hand(self, piece: Buffer | None) -> None:
        while True:
            self._check()
            if not self._thread.is_alive():
                raise StoreError(f"{self._path!r} was written before it was complete")
            try:
                self._pieces.put(piece, timeout=_LOOK)
            except queue.Full:
                continue
            return

    def _check(self) -> None:
        error = self._error
        if isinstance(error, StoreError):
            raise error
        if error is not None:
            raise StoreError(f"the client failed unexpectedly: {error!r}") from None

    def _run(self) -> None:
        try:
            self._store.put(self._path, self._handed(), replace=True)
        except BaseException as error:  # noqa: BLE001  # of whatever kind: the writer's thread learns of it
            self._error = error

    def _handed(self) -> Iterator[Buffer]:
        while True:
            try:
                piece = self._pieces.get(timeout=_LOOK)
            except queue.Empty:
                if self._aborted:
                    raise Abandoned("nobody wants this file any more") from None
                continue
            if self._aborted:
                raise Abandoned("nobody wants this file any more")
            if piece is None:
                return
            yield piece


_T = TypeVar("_T")


class StreamUpload:
    """Writes a new file: first the bytes of the files `prefix`, then what is added.

    new_path() names it at each try; `path` is that of the file that was begun, b"" before.
    release(size) is called for bytes that were written; fail(error) once when the file is lost.
    """

    def __init__(
        self,
        shared: UploadContext,
        new_path: Callable[[], tuple[bytes, int]],
        prefix: Sequence[UploadBase],
        release: Callable[[int], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.path = b""
        self._new_path = new_path
        self._shared = shared
        self.prefix = prefix
        self._release = release
        self._fail = fail
        self._queue = PartBuffer()
        self._more = trio.Event()
        self._complete = False
        self._cancelled = False
        self._creating = trio.CancelScope()
        self.ended = trio.Event()
        self._status: Status | None = None
        self._turn = threading.Lock()
        if shared.nursery is None:
            self.ended.set()
            fail(DraftLost("the mount is being shut down"))
        else:
            shared.nursery.start_soon(contain, "writing a file in one go", self._run)

    def add(self, data: memoryview) -> None:
        if self.ended.is_set():  # the bytes are dropped, and the writer gets the error
            self._release(len(data))
            return
        self._queue.add(data)
        self._more.set()

    async def finish(self) -> Status | None:
        """All of it is written and acknowledged; None when it failed, which `fail` was told."""
        self._complete = True
        self._more.set()
        await self.ended.wait()
        return self._status

    def cancel(self) -> None:
        """The file is not wanted any more: all of it in the store is removed."""
        self._cancelled = True
        self._creating.cancel()
        self._more.set()

    async def _run(self) -> None:
        sink: Sink | None = None
        hosts = self._shared.uploader.hosts
        host = hosts.begin_file(time.monotonic())
        try:
            with self._creating:
                sink = await self._shared.ops.call("creating a file", partial(self._create, host))
            if sink is None:
                return
            await self._copy(sink)
            await self._flow(sink, host)
            if not self._cancelled:
                self._status = await self._call("closing", sink.close)
        except StripefsError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  # the border: all that a client raises reaches the writer
            self._fail(StoreError(f"the client failed unexpectedly: {error!r}"))
        finally:
            hosts.end_file(host)
            with trio.CancelScope(shield=True):
                if sink is not None and self._status is None:
                    with trio.move_on_after(self._shared.ops.timeout):
                        await self._shared.streams.run("giving up a file", self._in_turn, sink.abort)
            self._release(self._queue.size)
            self.ended.set()

    def _create(self, host: str) -> Sink:
        path, _ = self._new_path()
        store = self._shared.store
        sink = store.create(path, host=host) if store.capabilities.writes else PutSink(store, path)
        if self._cancelled:  # meanwhile, and nobody waits for this any more
            sink.abort()
            raise DraftLost("it was given up before it was begun")
        self.path = path
        return sink

    async def _copy(self, sink: Sink) -> None:
        store = self._shared.store
        for each in self.prefix:
            handle = await self._call("opening", partial(store.open, each.path))
            try:
                each.ensure_same(handle.status)
                for at in range(0, each.length, COPIED_AT_ONCE):
                    if self._cancelled:
                        return
                    size = min(COPIED_AT_ONCE, each.length - at)
                    await self._call("copying", partial(_copy_piece, handle, at, size, sink))
            finally:
                await self._call("closing", handle.close)

    async def _call(self, what: str, function: Callable[[], _T]) -> _T:
        """One call of this file's, which must come back within the mount's time-out. Raises what it raises."""
        streams, timeout = self._shared.streams, self._shared.ops.timeout
        name = f"{what} {shown(self.path)}"
        return await streams.run(name, self._in_turn, function, timeout=timeout, abandon=False)

    def _in_turn(self, function: Callable[[], _T]) -> _T:
        """One call after the other: giving up a file waits for a call that hangs, on a thread of its own."""
        with self._turn:
            return function()

    async def _flow(self, sink: Sink, host: str) -> None:
        while not self._cancelled:
            queue, self._queue = self._queue, PartBuffer()
            self._more = trio.Event()
            if queue.size:
                try:
                    for piece in queue.pieces():
                        await self._call("writing", partial(sink.write, piece))
                    self._shared.uploader.hosts.took(host, queue.size)
                finally:
                    self._release(queue.size)
            elif self._complete:
                return
            else:
                await self._more.wait()


def _copy_piece(handle: Handle, offset: int, size: int, sink: Sink) -> None:
    sink.write(handle.read(offset, size))
