"""A big file in one go: one sink, written behind by a task of its own, for stores that cannot join parts.

Bytes are given back when they are written, not when they are acknowledged, since all of the file would have to stay
otherwise. So a host that fails takes the file with it, unless the client mends that by itself (HDFS pipelines do).

Each call to the sink must come back within `--io-timeout`: one that hangs fails its own file and keeps its own thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from stripefs.errors import StoreError, StripefsError
from stripefs.store.base import Handle, Sink, Status
from stripefs.supervised import contain
from stripefs.units import shown
from stripefs.write.putsink import PutSink
from stripefs.write.refusals import DraftLost
from stripefs.write.segments import Base, Column

if TYPE_CHECKING:
    from stripefs.write.shared import Shared

__all__ = ["Stream"]

_COPIED_AT_ONCE = 8 << 20

_T = TypeVar("_T")


class Stream:
    """Writes a new file: first the bytes of the files `prefix`, then what is added.

    place() names it anew at every try; `path` is the one that stands, b"" before.
    give(size) is called for bytes that were written; fail(error) once when the file is lost.
    """

    def __init__(
        self,
        shared: Shared,
        place: Callable[[], tuple[bytes, int]],
        prefix: Sequence[Base],
        give: Callable[[int], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.path = b""
        self._place = place
        self._shared = shared
        self._prefix = prefix
        self._give = give
        self._fail = fail
        self._queue = Column()
        self._more = trio.Event()
        self._complete = False
        self._cancelled = False
        self._creating = trio.CancelScope()
        self._ended = trio.Event()
        self._status: Status | None = None
        self._turn = threading.Lock()
        if shared.nursery is None:
            self._ended.set()
            fail(DraftLost("the mount is being shut down"))
        else:
            shared.nursery.start_soon(contain, "writing a file in one go", self._run)

    def add(self, data: memoryview) -> None:
        if self._ended.is_set():  # nobody takes it, and whoever writes on is told why
            self._give(len(data))
            return
        self._queue.add(data)
        self._more.set()

    async def finish(self) -> Status | None:
        """All of it is written and acknowledged; None when it failed, which `fail` was told."""
        self._complete = True
        self._more.set()
        await self._ended.wait()
        return self._status

    def cancel(self) -> None:
        """Nobody wants it any more: what stands of it is removed."""
        self._cancelled = True
        self._creating.cancel()
        self._more.set()

    async def ended(self) -> None:
        """Nothing of it moves any more."""
        await self._ended.wait()

    async def _run(self) -> None:
        sink: Sink | None = None
        hosts = self._shared.sender.hosts
        host = hosts.begin_file(time.monotonic())
        try:
            with self._creating:
                sink = await self._shared.effects.call("creating a file", partial(self._create, host))
            if sink is None:
                return
            await self._copy(sink)
            await self._flow(sink, host)
            if not self._cancelled:
                self._status = await self._call("closing", sink.close)
        except StripefsError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  # the border: whatever a client raises reaches the writer
            self._fail(StoreError(f"the client failed unexpectedly: {error!r}"))
        finally:
            hosts.end_file(host)
            with trio.CancelScope(shield=True):
                if sink is not None and self._status is None:
                    with trio.move_on_after(self._shared.effects.timeout):
                        await self._shared.streams.run("giving up a file", self._in_turn, sink.abort)
            self._give(self._queue.size)
            self._ended.set()

    def _create(self, host: str) -> Sink:
        path, _ = self._place()
        store = self._shared.store
        sink = store.create(path, host=host) if store.capabilities.writes else PutSink(store, path)
        if self._cancelled:  # meanwhile, and nobody waits for this any more
            sink.abort()
            raise DraftLost("it was given up before it was begun")
        self.path = path
        return sink

    async def _copy(self, sink: Sink) -> None:
        store = self._shared.store
        for each in self._prefix:
            handle = await self._call("opening", partial(store.open, each.path))
            try:
                for at in range(0, each.length, _COPIED_AT_ONCE):
                    if self._cancelled:
                        return
                    size = min(_COPIED_AT_ONCE, each.length - at)
                    await self._call("copying", partial(_copy_piece, handle, at, size, sink))
            finally:
                await self._call("closing", handle.close)

    async def _call(self, what: str, function: Callable[[], _T]) -> _T:
        """One call of this file's, which must come back within the mount's time-out. Raises what it raises."""
        streams, timeout = self._shared.streams, self._shared.effects.timeout
        name = f"{what} {shown(self.path)}"
        return await streams.run(name, self._in_turn, function, timeout=timeout, abandon=False)

    def _in_turn(self, function: Callable[[], _T]) -> _T:
        """One call after the other: what gives a file up waits for one that hangs, on a thread of its own."""
        with self._turn:
            return function()

    async def _flow(self, sink: Sink, host: str) -> None:
        while not self._cancelled:
            queue, self._queue = self._queue, Column()
            self._more = trio.Event()
            if queue.size:
                try:
                    for piece in queue.pieces():
                        await self._call("writing", partial(sink.write, piece))
                    self._shared.sender.hosts.took(host, queue.size)
                finally:
                    self._give(queue.size)
            elif self._complete:
                return
            else:
                await self._more.wait()


def _copy_piece(handle: Handle, offset: int, size: int, sink: Sink) -> None:
    sink.write(handle.read(offset, size))
