"""Contents of one file being written: the published version it continues, objects that stand in the store for good,
parts, memory; in this order. No turns, no lock.

Up to `policy.small` bytes stay in memory as the *head*, since the file may end there and be plain. When it grows past
that, or its memory is wanted, its layout is settled and the bytes go into segments. All methods but `drain` and `read`
run at once, without letting other tasks in, so that the budget may `cut` between any two awaits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import trio

from stripefs.errors import StoreError, StripefsError
from stripefs.store.base import Buffer
from stripefs.units import shown
from stripefs.write.context import UploadContext, WriteObserver
from stripefs.write.errors import DraftLost
from stripefs.write.layout_policy import Layout, Shape, concat_shape, striped_shape
from stripefs.write.part_buffer import Column, UploadBase, UploadSegment
from stripefs.write.part_upload import LazyDirectory, PartUpload
from stripefs.write.stream_upload import StreamUpload
from stripefs.write.upload_names import UploadNames

__all__ = ["FileContents"]

STOPPING = 10.0
"""Seconds: twice the time after which clients give up a silent host."""


class FileContents:
    """block: the store's own block size in bytes, 0 for none. copy: gets all that comes in, and is told what is not
    published; of what is, `Commit` tells it."""

    def __init__(
        self, shared: UploadContext, wanted: Layout, block: int, names: UploadNames, copy: WriteObserver
    ) -> None:
        self._shared = shared
        self.wanted = wanted
        self._names = names
        self._folder = LazyDirectory(names.folder)
        self.block = block
        self.copy = copy
        self.account = shared.budget.account(self.cut)
        self.layout: Layout | None = None
        self.base: UploadBase | None = None
        self.stands: list[UploadBase] = []
        self.head: Column | None = Column()
        self.segments: list[UploadSegment] = []
        self.stream: StreamUpload | None = None
        self._left: list[bytes] = []
        self._open: UploadSegment | None = None
        self._under_way: dict[PartUpload, int] = {}  # -> bytes of the account that come back with it
        self.failure: Exception | None = None
        self.length = 0
        self.rearranged = 0
        """Times that what was written before came to lie elsewhere: in other objects, or behind another version."""

    # -- what comes in ----------------------------------------------------------------------------------------------

    def add(self, data: memoryview) -> None:
        """Take `data`, whose bytes are open in the account and do not change."""
        self.length += len(data)
        self.copy.add(data)
        if self.head is not None:
            if self.head.size + len(data) < self._shared.policy.small:
                self.head.add(data)
                return
            self.settle()
        self._deal(data)

    def settle(self) -> None:
        """The layout is settled now, if it was not, and the head goes into segments."""
        if self.layout is None:
            self.layout = self._shared.layout(self.wanted)
        if self.head is not None:
            head, self.head = self.head, None
            self.rearranged += 1
            for piece in head.pieces():
                self._deal(memoryview(piece))

    def start_behind(self, base: UploadBase, layout: Layout) -> None:
        """Nothing is held, and what comes goes behind `base`."""
        self.base, self.layout, self.head = base, layout, None
        self.stands, self.segments, self.length = [], [], base.length
        self.rearranged += 1

    def replace(self, objects: list[UploadBase]) -> None:
        """The objects of which `objects` has told now lie in these."""
        self.stands, self.segments = objects, []
        self.rearranged += 1

    def _deal(self, data: memoryview) -> None:
        if self.layout is Layout.PLAIN:
            if self.stream is None:
                # A published file cannot be appended to, so its copy is.
                self.stream = self._stream([] if self.base is None else [self.base])
            self.account.seal(len(data))
            self.stream.add(data)
            return
        while data:
            if self._open is None:
                start = self.segments[-1].end if self.segments else sum(each.length for each in self._before())
                self._open = UploadSegment(start, self._shape(), self._ship)
                self.segments.append(self._open)
            segment = self._open
            take = min(len(data), segment.room)
            segment.add(data[:take])
            data = data[take:]
            if not segment.room:
                self.seal()

    def _before(self) -> list[UploadBase]:
        """The base that the parts continue."""
        return [*([] if self.base is None else [self.base]), *self.stands]

    def _stream(self, prefix: Sequence[UploadBase]) -> StreamUpload:
        return StreamUpload(self._shared, self._stream_place, prefix, self.account.give, self.fail)

    def _stream_place(self) -> tuple[bytes, int]:
        """In a store that cannot rename, the file appears at its own name, when it is complete."""
        return self._names.beside() if self._shared.store.capabilities.replace else (self._names.path, 0)

    def _shape(self) -> Shape:
        hosts = self._shared.sender.hosts.count
        share = self._shared.budget.limit // self._shared.budget.busy
        if self.layout is Layout.STRIPED:
            return striped_shape(self._shared.policy, hosts, share, len(self.segments), self.block)
        return concat_shape(hosts, share, self.block)

    def seal(self) -> None:
        """The open segment takes no more bytes; all of it is on its way."""
        segment, self._open = self._open, None
        if segment is not None:
            segment.seal()

    def cut(self) -> None:
        """Nothing stays open: the memory is wanted."""
        if self.failure is not None:
            self.drop()
            return
        if self.head is not None and self.head.size:
            self.settle()
        self.seal()

    # -- what goes out ----------------------------------------------------------------------------------------------

    def _ship(self, segment: UploadSegment, column: Column) -> None:
        pooled = self.layout is Layout.STRIPED
        column.shipment = PartUpload(
            column.pieces(),
            column.size,
            self._names.pooled if pooled else self._names.beside,
            folder=self._folder if pooled else None,
            unit=segment.shape.unit,
            block_size=segment.shape.block_size,
            group=segment.group,
            on_end=lambda shipment: self._ended(column, shipment),
        )
        self.account.seal(column.size)
        self._under_way[column.shipment] = column.size
        self._shared.sender.submit(column.shipment)

    def ship_head(self) -> PartUpload:
        """Send the head as it is now, and keep it."""
        assert self.head is not None
        shipment = PartUpload(self.head.pieces(), self.head.size, self._names.beside)
        shipment.on_end = lambda ended: self._ended(None, ended)
        self._under_way[shipment] = 0
        self._shared.sender.submit(shipment)
        return shipment

    def _ended(self, column: Column | None, shipment: PartUpload) -> None:
        size = self._under_way.pop(shipment)
        shipment.chunks = ()
        if column is not None:
            column.forget()
        if shipment.error is not None and not shipment.cancelled:
            self.fail(shipment.error)
        elif shipment.landed and shipment.cancelled:
            self._left.append(shipment.path)  # it came while it was given up
        self.account.give(size)

    def fail(self, error: Exception) -> None:
        """The file cannot become what was written: the first reason stays, and nothing more is sent."""
        if self.failure is None:
            self._shared.figures.lose(shown(self._names.path), error)
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """As `fail`, where that is wanted."""
        if self.failure is None:
            self.failure = error
            for shipment in list(self._under_way):
                shipment.cancel()
            if self.stream is not None:
                self.stream.cancel()

    @contextlib.contextmanager
    def in_one_go(self) -> Iterator[None]:
        """Around what leaves nobody knows what where when it is cut off: the file cannot be published then."""
        try:
            yield
        except trio.Cancelled:
            self.fail(DraftLost("what made it durable was cut off"))
            raise

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Around what a writer asks for: its errors are counted, also those that may be gone when it asks again."""
        try:
            yield
        except StripefsError as error:
            if self.failure is None:  # else it was counted with that
                self._shared.figures.lose(shown(self._names.path), error)
            raise

    async def flowed(self) -> None:
        """Seal, and wait until the parts have all their bytes; not until these are acknowledged. Raises nothing."""
        self.seal()
        while self.failure is None and (behind := [each for each in self._under_way if not each.flowed]):
            await behind[0].stirred.wait()

    async def drain(self) -> None:
        """Seal, and wait until nothing is under way; raises why the file failed. A stream is an object that stands
        then, or is published, where the store cannot rename it."""
        self.seal()
        while self._under_way:
            await next(iter(self._under_way)).ended.wait()
        if self.stream is not None and self.failure is None:
            stream = self.stream
            with self.in_one_go():
                status = await stream.finish()
            self.stream = None
            if status is not None:
                found = UploadBase(stream.path, status.length)
                if stream.path == self._names.path:
                    self.base = found
                else:
                    self.base, self.stands = None, [*self.stands, found]
        if self.failure is not None:
            raise self.failure

    async def gather(self) -> list[bytes]:
        """Make one object of all that stands, for a store that cannot join them; the paths of those it was copied
        from. All is drained, and there are no parts. Raises why the file failed."""
        copied = self.stands
        self.stream, self.stands = self._stream(copied), []
        self.rearranged += 1
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
            while self._under_way:
                await next(iter(self._under_way)).ended.wait()
            if stream is not None:
                await stream.ended()
        left, self._left = self._left, []
        return left

    def drop(self) -> None:
        """Forget all that is not published, from memory too, but for the paths of what stands in the store."""
        self.copy.drop()
        for shipment in list(self._under_way):
            shipment.cancel()
        self._left += [shipment.path for shipment in self.landed()]
        if self.stream is not None:
            self.stream.cancel()
            self._left += [self.stream.path] if self.stream.path not in (b"", self._names.path) else []
            self.stream = None
        self._left += [each.path for each in self.stands]
        self.stands = []
        for segment in self.segments:
            for column in segment.columns:
                if column.shipment is None or column.shipment.ended.is_set():
                    column.forget()
        self._open, self.segments = None, []
        if self.head is not None:
            self.head = Column()
        self.account.drop(self.account.open)

    def objects(self) -> list[UploadBase]:
        """The unpublished objects, in order; all of them are drained."""
        return [*self.stands, *(UploadBase(shipment.path, shipment.size) for shipment in self.landed())]

    def moved(self, each: UploadBase, path: bytes) -> UploadBase:
        """One of those that stand lies at `path` now; that one."""
        index = self.stands.index(each)
        self.stands[index] = UploadBase(path, each.length, each.parts)
        self.rearranged += 1
        return self.stands[index]

    def landed(self) -> Iterator[PartUpload]:
        """The parts that stand in the store, in order."""
        for segment in self.segments:
            yield from (shipment for shipment in segment.shipments if shipment.landed)

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
                    yield from _column_pieces(column, at, part)
                offset, size = offset + take, size - take


def _column_pieces(column: Column, offset: int, size: int) -> Iterator[Buffer | tuple[bytes, int, int]]:
    shipment = column.shipment
    if shipment is not None and shipment.landed:
        yield shipment.path, offset, size
    elif shipment is not None and shipment.error is not None:
        raise StoreError("a part of the file was lost") from shipment.error
    else:
        yield from column.read(offset, size)
