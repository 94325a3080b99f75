"""Contents of one file being written: the published version it continues, objects stored for good, parts, memory; in
this order. Neither turns nor locks are taken here.

Up to `policy.small` bytes stay in memory as the *head*, since the file may end there and be plain. When it grows past
that, or its memory is wanted, its layout is chosen and the bytes go into segments. All methods but `drain` and `read`
run at once, without letting other tasks in, so that the budget may `flush` between any two awaits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import trio

from stripefs.errors import DraftLost, StoreError, StripefsError
from stripefs.store.base import Buffer
from stripefs.units import shown
from stripefs.write.layout_policy import Layout, Shape, concat_shape, striped_shape
from stripefs.write.parts import LazyDirectory, PartBuffer, PartUpload, UploadBase, UploadSegment
from stripefs.write.stream_upload import StreamUpload
from stripefs.write.upload_context import UploadContext, WriteObserver
from stripefs.write.upload_names import UploadNames

__all__ = ["FileContents"]

STOPPING = 10.0
"""Seconds: twice the time after which clients give up a silent host."""


class FileContents:
    """block: the store's own block size in bytes, 0 for none. observer: gets all that comes in, and is told
    what is not published; `Commit` tells it what is."""

    def __init__(
        self, shared: UploadContext, wanted: Layout, block: int, names: UploadNames, observer: WriteObserver
    ) -> None:
        self._shared = shared
        self.wanted = wanted
        self._names = names
        self._folder = LazyDirectory(names.folder)
        self.block = block
        self.observer = observer
        self.account = shared.budget.account(self.flush)
        self.layout: Layout | None = None
        self.base: UploadBase | None = None
        self._detached = False
        self.stored: list[UploadBase] = []
        self.head: PartBuffer | None = PartBuffer()
        self.segments: list[UploadSegment] = []
        self.stream: StreamUpload | None = None
        self._left: list[bytes] = []
        self._open: UploadSegment | None = None
        self._in_flight: dict[PartUpload, int] = {}  # -> bytes of the account that come back with it
        self.failure: Exception | None = None
        self.length = 0
        self.moves = 0
        """Times that what was written before came to lie elsewhere: in other objects, or behind another version."""

    # -- what comes in ----------------------------------------------------------------------------------------------

    def add(self, data: memoryview) -> None:
        """Take `data`, whose bytes are open in the account and do not change."""
        self.length += len(data)
        self.observer.add(data)
        if self.head is not None:
            if self.head.size + len(data) < self._shared.policy.small:
                self.head.add(data)
                return
            self.choose_layout()
        self._distribute(data)

    def choose_layout(self) -> None:
        """The layout is chosen now, if it was not, and the head goes into segments."""
        if self.layout is None:
            self.layout = self._shared.layout(self.wanted)
        if self.head is not None:
            head, self.head = self.head, None
            self.moves += 1
            for piece in head.pieces():
                self._distribute(memoryview(piece))

    def start_behind(self, base: UploadBase, layout: Layout) -> None:
        """Nothing is held, and what comes goes behind `base`."""
        self.base, self.layout, self.head = base, layout, None
        self.stored, self.segments, self.length = [], [], base.length
        self.moves += 1

    def detach(self) -> None:
        """The base has lost its name. Nothing more is copied from there, since nothing will be published."""
        self._detached = True

    def replace(self, objects: list[UploadBase]) -> None:
        """The bytes of all that `objects` names lie in these objects now."""
        self.stored, self.segments = objects, []
        self.moves += 1

    def _distribute(self, data: memoryview) -> None:
        if self.layout is Layout.PLAIN:
            if self.stream is None:
                # A published file cannot be appended to, so its copy is.
                self.stream = self._stream([] if self.base is None or self._detached else [self.base])
            self.account.seal(len(data))
            self.stream.add(data)
            return
        while data:
            if self._open is None:
                start = self.segments[-1].end if self.segments else sum(each.length for each in self._before())
                self._open = UploadSegment(start, self._shape(), self._send)
                self.segments.append(self._open)
            segment = self._open
            take = min(len(data), segment.space)
            segment.add(data[:take])
            data = data[take:]
            if not segment.space:
                self.seal()

    def _before(self) -> list[UploadBase]:
        """The base that the parts continue."""
        return [*([] if self.base is None else [self.base]), *self.stored]

    def _stream(self, prefix: Sequence[UploadBase]) -> StreamUpload:
        return StreamUpload(self._shared, self._stream_path, prefix, self.account.release, self.fail)

    def _stream_path(self) -> tuple[bytes, int]:
        """In a store that cannot rename, the file appears at its own name, when it is complete."""
        return self._names.beside() if self._shared.store.capabilities.replace else (self._names.path, 0)

    def _shape(self) -> Shape:
        hosts = self._shared.uploader.hosts.count
        share = self._shared.budget.limit // self._shared.budget.busy
        if self.layout is Layout.STRIPED:
            return striped_shape(self._shared.policy, hosts, share, len(self.segments), self.block)
        return concat_shape(hosts, share, self.block)

    def seal(self) -> None:
        """The open segment takes no more bytes; all of it is on its way."""
        segment, self._open = self._open, None
        if segment is not None:
            segment.seal()

    def flush(self) -> None:
        """Nothing stays open: the memory is wanted."""
        if self.failure is not None:
            self.drop()
            return
        if self.head is not None and self.head.size:
            self.choose_layout()
        self.seal()

    # -- what goes out ----------------------------------------------------------------------------------------------

    def _send(self, segment: UploadSegment, column: PartBuffer) -> None:
        pooled = self.layout is Layout.STRIPED
        column.part = PartUpload(
            column.pieces(),
            column.size,
            self._names.pooled if pooled else self._names.beside,
            folder=self._folder if pooled else None,
            unit=segment.shape.unit,
            block_size=segment.shape.block_size,
            taken=segment.taken,
            on_end=lambda part: self._ended(column, part),
        )
        self.account.seal(column.size)
        self._in_flight[column.part] = column.size
        self._shared.uploader.submit(column.part)

    def send_head(self) -> PartUpload:
        """Send the head as it is now, and keep it."""
        assert self.head is not None
        part = PartUpload(self.head.pieces(), self.head.size, self._names.beside)
        part.on_end = lambda ended: self._ended(None, ended)
        self._in_flight[part] = 0
        self._shared.uploader.submit(part)
        return part

    def _ended(self, column: PartBuffer | None, part: PartUpload) -> None:
        size = self._in_flight.pop(part)
        part.chunks = ()
        if column is not None:
            column.forget()
        if part.error is not None and not part.cancelled:
            self.fail(part.error)
        elif part.acked and part.cancelled:
            self._left.append(part.path)  # it came while it was given up
        self.account.release(size)

    def fail(self, error: Exception) -> None:
        """The file cannot become what was written: the first reason stays, and nothing more is sent."""
        if self.failure is None:
            self._shared.stats.lose(shown(self._names.path), error)
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """As `fail`, where that is wanted."""
        if self.failure is None:
            self.failure = error
            for part in list(self._in_flight):
                part.cancel()
            if self.stream is not None:
                self.stream.cancel()

    @contextlib.contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Around what leaves nobody knows what where when it is cut off: the file cannot be published then."""
        try:
            yield
        except trio.Cancelled:
            self.fail(DraftLost("what made it durable was cut off"))
            raise

    @contextlib.contextmanager
    def counting_errors(self) -> Iterator[None]:
        """Around what a writer asks for: its errors are counted, also those that may be gone when it asks again."""
        try:
            yield
        except StripefsError as error:
            if self.failure is None:  # else it was counted with that
                self._shared.stats.lose(shown(self._names.path), error)
            raise

    async def wait_sent(self) -> None:
        """Seal, and wait until the parts have all their bytes; not until these are acknowledged. Raises nothing."""
        self.seal()
        while self.failure is None and (behind := [each for each in self._in_flight if not each.sent]):
            await behind[0].changed.wait()

    async def drain(self) -> None:
        """Seal, and wait until nothing is under way; raises why the file failed. A stream is a stored
        object then, or is published, where the store cannot rename it."""
        self.seal()
        while self._in_flight:
            await next(iter(self._in_flight)).ended.wait()
        if self.stream is not None and self.failure is None:
            stream = self.stream
            with self.uninterrupted():
                status = await stream.finish()
            self.stream = None
            if status is not None:
                found = UploadBase(stream.path, status.length)
                if stream.path == self._names.path:
                    self.base = found
                else:
                    self.base = None if stream.prefix else self.base
                    self.stored = [*self.stored, found]
        if self.failure is not None:
            raise self.failure

    async def gather(self) -> list[bytes]:
        """Make one object of all that are stored, for a store that cannot join them; the paths of those it was
        copied from. All is drained, and there are no parts. Raises why the file failed."""
        copied = self.stored
        self.stream, self.stored = self._stream(copied), []
        self.moves += 1
        try:
            await self.drain()
        except BaseException:
            self._left += [each.path for each in copied]
            raise
        return [each.path for each in copied]

    async def stop(self) -> list[bytes]:
        """Forget all that is not published, and wait until its uploads end; the paths of those in the store.

        The wait ends after STOPPING seconds: parts still under way then remove themselves, or are found by gc.
        """
        stream = self.stream
        self.drop()
        with trio.move_on_after(STOPPING):
            while self._in_flight:
                await next(iter(self._in_flight)).ended.wait()
            if stream is not None:
                await stream.ended.wait()
        left, self._left = self._left, []
        return left

    def drop(self) -> None:
        """Forget all that is not published, from memory too, but for the paths of what is in the store."""
        self.observer.drop()
        for part in list(self._in_flight):
            part.cancel()
        self._left += [part.path for part in self.acked()]
        if self.stream is not None:
            self.stream.cancel()
            self._left += [self.stream.path] if self.stream.path not in (b"", self._names.path) else []
            self.stream = None
        self._left += [each.path for each in self.stored]
        self.stored = []
        for segment in self.segments:
            for column in segment.columns:
                if column.part is None or column.part.ended.is_set():
                    column.forget()
        self._open, self.segments = None, []
        if self.head is not None:
            self.head = PartBuffer()
        self.account.drop(self.account.open)

    def objects(self) -> list[UploadBase]:
        """The unpublished objects, in order; all of them are drained."""
        return [*self.stored, *(UploadBase(part.path, part.size) for part in self.acked())]

    def moved(self, each: UploadBase, path: bytes) -> UploadBase:
        """One of the stored objects lies at `path` now; that one."""
        index = self.stored.index(each)
        self.stored[index] = UploadBase(path, each.length, each.parts)
        self.moves += 1
        return self.stored[index]

    def acked(self) -> Iterator[PartUpload]:
        """The parts that the store has acknowledged, in order."""
        for segment in self.segments:
            yield from (part for part in segment.parts if part.acked)

    # -- reading back -----------------------------------------------------------------------------------------------

    def pieces(self, offset: int, size: int) -> Iterator[Buffer | tuple[bytes, int, int]]:
        """The bytes [offset, offset + size), which must have been written: in memory, or (path, offset, bytes) of an
        object of the store (of the published file where the path is `base.path`)."""
        if self.head is not None:
            yield from self.head.read(offset, size)
            return
        start = 0
        for each in self._before():
            if size and offset < start + each.length:
                take = min(size, start + each.length - offset)
                yield each.path, offset - start, take
                offset, size = offset + take, size - take
            start += each.length
        for segment in self.segments:
            if size and segment.start <= offset < segment.end:
                take = min(size, segment.end - offset)
                for column, at, part in segment.places(offset, take):
                    yield from _buffer_pieces(column, at, part)
                offset, size = offset + take, size - take


def _buffer_pieces(column: PartBuffer, offset: int, size: int) -> Iterator[Buffer | tuple[bytes, int, int]]:
    part = column.part
    if part is not None and part.acked:
        yield part.path, offset, size
    elif part is not None and part.error is not None:
        raise StoreError("a part of the file was lost") from part.error
    else:
        yield from column.read(offset, size)
