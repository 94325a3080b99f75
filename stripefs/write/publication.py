"""How what was written becomes a version: everything durable under hidden names first, then one rename (or one join).

    head      one small file, renamed onto the name
    concat    the parts are joined to one hidden file, renamed onto the name; later generations are joined to one
              hidden file, which is then joined behind the published one, in one step too
    striped   a manifest that names all parts, old ones included, renamed onto the name
    plain     the stream's file, renamed onto the name; of several, each ended by an fsync, one is made first

A publisher knows what the last publication left and which record stands; it is used by one task at a time.
"""

from __future__ import annotations

import logging

from stripefs.errors import StaleVersion, StoreError, Unsupported
from stripefs.layout.hidden import POOL
from stripefs.layout.record import Base as RecordBase
from stripefs.layout.record import Record, RecordPart, RecordSegment
from stripefs.layout.striped import MANIFEST_BLOCK_SIZE, Manifest, Part, Segment
from stripefs.store.base import Attributes, Status
from stripefs.write.contents import Contents
from stripefs.write.names import Names, split
from stripefs.write.policy import Layout
from stripefs.write.prepared import Prepared
from stripefs.write.segments import Base
from stripefs.write.segments import Segment as Written
from stripefs.write.shared import Shared
from stripefs.write.shipment import Shipment

__all__ = ["Publisher"]

_log = logging.getLogger(__name__)

_JOINED = 64
"""Objects joined by one call between two fsyncs, which takes a NameNode 10 ms. A record names 63 of them for each power
of it, or 8 KiB."""


class Publisher:
    """`manifest`: of the striped version that the contents continue, None for other files."""

    def __init__(self, shared: Shared, names: Names, contents: Contents) -> None:
        self._shared = shared
        self._effects = shared.effects
        self._names = names
        self._contents = contents
        self.manifest: Manifest | None = None
        self.published: Status | None = None
        self.attributes = Attributes()
        self._generation = 0
        self._joins = shared.store.capabilities.concat
        self._next_manifest = Prepared(shared.sender, names.beside, MANIFEST_BLOCK_SIZE)
        self._next_record = Prepared(shared.sender, names.beside)
        self._saved_head: Shipment | None = None
        self._outdated: list[bytes] = []  # to be removed once what takes their place stands
        self._hanging: bytes | None = None
        """A manifest that is being renamed onto the name, or was when that was given up: it may yet stand there."""
        self._record: bytes | None = None
        self._recorded = -1

    @property
    def recorded(self) -> bool:
        """Whether a record stands."""
        return self._record is not None

    # -- fsync -------------------------------------------------------------------------------------------------------

    async def record(self) -> None:
        """All that is written is durable, and a record beside the file says where."""
        contents = self._contents
        if self._recorded == contents.length:
            return
        with contents.in_one_go():
            await self._make_record()

    async def _make_record(self) -> None:
        contents = self._contents
        if not self._shared.store.capabilities.replace:
            raise Unsupported(
                f"{self._shared.store.url} cannot keep a file that is not complete, so it is durable only when closed"
            )
        if contents.head is not None:
            await self._save_head()
        if contents.head is None:  # from the start, or since its memory was wanted meanwhile
            await self._drain(record=True)
            self._outdate_head()
            await self._shorten()
        document = self._record_now().to_bytes()
        self._outdated += await self._next_record.drop(but=document)
        path = await self._next_record.take(document)
        self._outdated.append(path)
        before, self._record = self._record, self._names.record()
        await self._effects.rename_over(path, self._record, len(document))
        self._outdated.remove(path)
        self._recorded = contents.length
        if before not in (None, self._record):
            self._outdated.append(before)
        await self._clear_outdated()

    async def _drain(self, *, record: bool) -> None:
        """All is acknowledged. What will be needed then is written as soon as it is known which parts there are."""
        contents = self._contents
        await contents.flowed()
        if contents.failure is None and contents.stream is None:
            if record:
                document = self._record_now().to_bytes()
                self._outdated += await self._next_record.drop(but=document)
                self._next_record.begin(document)
            if contents.layout is Layout.STRIPED:
                manifest = self._manifest_now()
                document = manifest.to_bytes()
                self._outdated += await self._next_manifest.drop(but=document)
                # Who wrote on after an fsync will do so again, and a list of parts would have to stand before.
                if not self._next_manifest.in_vain and manifest.parts_list() is None:
                    self._next_manifest.begin(document)
        await contents.drain()

    def _outdate_head(self) -> None:
        saved, self._saved_head = self._saved_head, None
        if saved is not None and saved.landed:
            self._outdated.append(saved.path)

    async def _clear_outdated(self) -> None:
        if self._outdated:
            await self._effects.clear(self._outdated)
            self._outdated = []

    async def _shorten(self) -> None:
        """Join neighbours that are joined of equally many parts, _JOINED at a time: a record names few objects then,
        however often there is an fsync, and no byte is joined often.

        The record that stands names them as they were, which `recovery` is prepared for.
        """
        contents = self._contents
        if contents.layout is Layout.STRIPED or not self._joins:
            return
        done: list[Base] = []
        todo = contents.objects()
        while todo:
            done.append(todo.pop(0))
            run = done[-_JOINED:]
            if len(run) < _JOINED or len({each.parts for each in run}) > 1:
                continue
            del done[-_JOINED:]
            try:
                todo.insert(0, await self._join(run))
            except Unsupported as error:
                self._joins = False
                _log.info("the store does not join files here, so records name them all: %s", error)
                done += [*run, *todo]
                break
            except StoreError as error:
                contents.fail(error)
                raise
        contents.replace(done)

    async def _save_head(self) -> Shipment:
        """The head stands in the store as one object."""
        saved, head = self._saved_head, self._contents.head
        assert head is not None
        if saved is None or saved.size != head.size:
            self._outdate_head()
            self._saved_head = saved = self._contents.ship_head()
            await saved.ended.wait()
            await self._contents.drain()
        return saved

    def _record_now(self) -> Record:
        contents = self._contents
        segments: list[RecordSegment] = []
        base = None
        if self._saved_head is not None:
            if self._saved_head.size:
                segments.append(_as_record(self._saved_head.size, [self._saved_head]))
        elif contents.layout is Layout.STRIPED:
            old = self.manifest.segments if self.manifest is not None else ()
            for segment in old:
                parts = tuple(RecordPart(part.path(), part.length, part.digest.hex()) for part in segment.parts)
                segments.append(RecordSegment(segment.length, parts))
        elif contents.base is not None and self.published is not None:
            identity = self.published.identity
            base = RecordBase(identity.length, identity.mtime_ns, identity.file_id)
        segments += [RecordSegment(each.length, (RecordPart(each.path, each.length),)) for each in contents.stands]
        segments += [_as_record(segment.length, segment.shipments) for segment in contents.segments]
        layout = (contents.layout or Layout.PLAIN).value
        unit = self._unit if contents.layout is Layout.STRIPED else 0
        names = self._names
        return Record(names.path, names.version, layout, unit, tuple(segments), base, self.attributes.mode)

    @property
    def _unit(self) -> int:
        return self.manifest.unit if self.manifest is not None else self._shared.policy.unit

    # -- publishing --------------------------------------------------------------------------------------------------

    async def publish(self, replaced: Manifest | None) -> Status:
        """The contents are the file at `names.path`. replaced: the manifest of what stands there until now."""
        with self._contents.in_one_go():
            return await self._publish(replaced)

    async def _publish(self, replaced: Manifest | None) -> Status:
        contents = self._contents
        if contents.head is not None:
            await self._publish_head()
        else:
            await self._drain(record=False)
            if contents.layout is Layout.STRIPED:
                await self._publish_striped()
            else:
                await self._publish_joined()
        status = await self._effects.call(
            "looking at the new version", lambda: self._shared.view.stat(self._names.path)
        )
        self.published = status
        self._shared.figures.published += 1
        await self.forget_record()
        self._bury(replaced)
        return status

    async def forget_record(self) -> None:
        """Remove the record and what only it needs."""
        self._outdate_head()
        if self._record is not None:
            self._outdated.append(self._record)
            self._record = None
        await self._clear_outdated()
        self._recorded = self._contents.length

    async def _publish_head(self) -> None:
        if not self._shared.store.capabilities.replace:
            await self._put_head()
            return
        shipment = await self._save_head()
        await self._replace(shipment.path, shipment.size)
        self._saved_head = None

    async def _put_head(self) -> None:
        """For stores that cannot rename: whole or not at all, in one call."""
        head = self._contents.head
        assert head is not None
        pieces = head.pieces()
        store, path = self._shared.store, self._names.path
        await self._effects.call("writing a file", lambda: store.put(path, pieces, replace=True))

    async def _replace(self, source: bytes, length: int) -> None:
        await self.apply(source)
        await self._effects.rename_over(source, self._names.path, length)

    async def apply(self, path: bytes) -> None:
        """Give `path` the attributes that were asked for."""
        if self.attributes != Attributes() and self._shared.store.capabilities.attributes:
            await self._effects.set_attributes(path, self.attributes)

    async def _publish_joined(self) -> None:
        contents, path = self._contents, self._names.path
        assert contents.layout is not None
        if contents.layout is Layout.PLAIN and len(contents.stands) > 1 and not self._joins:
            self._outdated += await contents.gather()
        if objects := contents.objects():
            try:
                whole = await self._join(objects)
                if contents.base is None:
                    await self._replace(whole.path, whole.length)
                else:
                    await self._join_behind(contents.base, whole.path, whole.length)
            except Unsupported as error:
                _log.warning("the store does not join files here, so they are copied into one: %s", error)
                base = [] if contents.base is None else [contents.base]
                whole = await self._copy([*base, *objects])
                await self._replace(whole.path, whole.length)
                await self._effects.clear([each.path for each in objects])
        contents.start_behind(Base(path, contents.length), contents.layout)

    async def _join(self, objects: list[Base]) -> Base:
        """One hidden file, beside the file as it is named now, of all objects."""
        home, _ = split(self._names.path)
        for index, each in enumerate(objects):
            if split(each.path)[0] != home:  # the file was moved meanwhile, and only what lies together can be joined
                moved, _ = self._names.beside()
                await self._effects.rename_over(each.path, moved, each.length)
                objects[index] = Base(moved, each.length)
        first, *rest = objects
        if rest:
            await self._effects.concat(first.path, first.length, [(each.path, each.length) for each in rest])
        return Base(first.path, sum(each.length for each in objects), sum(each.parts for each in objects))

    async def _copy(self, objects: list[Base]) -> Base:
        """One hidden file with the bytes of all objects, in whichever of them they are by now."""
        total = sum(each.length for each in objects)
        path, _ = self._names.beside()
        await self._effects.copy_together([each.path for each in objects], path, total)
        return Base(path, total)

    async def _join_behind(self, base: Base, source: bytes, length: int) -> None:
        """In one step; the published file must be the one that the contents continue."""
        now = await self._effects.stat(base.path)
        if self.published is None or now.identity != self.published.identity:
            raise StaleVersion(f"{base.path!r} was replaced or changed by somebody else while it was being written")
        await self._effects.concat(base.path, base.length, [(source, length)])
        await self.apply(base.path)

    async def _publish_striped(self) -> None:
        manifest = self._manifest_now()
        listed = manifest.parts_list()
        if listed is not None:
            await self._effects.put(*listed)
        document = manifest.to_bytes()
        self._outdated += await self._next_manifest.drop(but=document)
        if self._hanging is not None:  # it must not come later and take this one's place
            await self._effects.withdraw(self._hanging)
        self._hanging = path = await self._next_manifest.take(document)
        await self._replace(path, len(document))
        self._hanging = None
        self._generation += 1
        self.manifest = manifest
        self._contents.start_behind(Base(self._names.path, manifest.length), Layout.STRIPED)

    def _manifest_now(self) -> Manifest:
        names = self._names
        old = self.manifest.segments if self.manifest is not None else ()
        segments = (*old, *(_as_segment(segment, names.version) for segment in self._contents.segments))
        return Manifest(names.version, self._generation, self._unit, self._shared.pool, segments)

    def _bury(self, replaced: Manifest | None) -> None:
        """What the replaced version needed and this one does not stays for a while for those who read it."""
        if replaced is None or self._shared.bury is None:
            return
        gone = replaced.versions - (self.manifest.versions if self.manifest is not None else frozenset())
        if gone:
            self._shared.bury(sorted(gone), POOL)

    # -- giving up ---------------------------------------------------------------------------------------------------

    async def withdrawn(self) -> bool:
        """Whether no manifest names the parts that are not published, nor will: what was on its way is taken back."""
        hanging, self._hanging = self._hanging, None
        try:
            return hanging is None or await self._effects.withdraw(hanging)
        except StoreError:
            return False

    async def leftovers(self) -> list[bytes]:
        """Paths of what this publisher made besides the contents' parts. They are forgotten here."""
        self._outdate_head()
        for prepared in (self._next_record, self._next_manifest):
            self._outdated += await prepared.drop()
        left, self._outdated = self._outdated, []
        if self._record is not None:
            left.append(self._record)
        self._record, self._recorded = None, -1
        return left


def _as_record(length: int, shipments: list[Shipment]) -> RecordSegment:
    parts = (RecordPart(shipment.path, shipment.length, shipment.digest.hex()) for shipment in shipments)
    return RecordSegment(length, tuple(parts))


def _as_segment(segment: Written, version: str) -> Segment:
    shipments = segment.shipments
    return Segment(segment.length, tuple(Part(version, s.number, s.length, s.digest) for s in shipments))
