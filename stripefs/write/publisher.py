"""Publisher: it makes the bytes of an upload durable under hidden names, then a version by one rename (or one join).

    head      one small file, renamed onto the name
    concat    the parts are joined to one hidden file, renamed onto the name; later generations are joined to one
              hidden file, which is then joined behind the published one, in one step too
    striped   a manifest that names all parts, old ones included, renamed onto the name
    plain     the stream's file, renamed onto the name; of several, each ended by an fsync, one is made first

A publisher knows what the last publication left and which record stands; it is used by one task at a time. Hidden files
that it is still making when it is cut off are removed as soon as they are there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from stripefs.errors import StoreError, Unsupported
from stripefs.format.lock_and_record import Record, RecordLink
from stripefs.format.manifest import MANIFEST_BLOCK_SIZE, Manifest
from stripefs.format.reserved_names import POOL, parse_reserved, stem
from stripefs.store.base import Attributes, Status
from stripefs.store.striped_listing import is_version_of
from stripefs.write.commit import Commit
from stripefs.write.commit_documents import Durable, PreparedDocument, RecordLog, count_of, manifest_of, record_of
from stripefs.write.context import UploadContext
from stripefs.write.file_contents import FileContents
from stripefs.write.layout_policy import Layout
from stripefs.write.part_buffer import UploadBase
from stripefs.write.part_upload import PartUpload
from stripefs.write.upload_names import UploadNames, split_path

__all__ = ["Publisher"]

_log = logging.getLogger(__name__)

_JOINED = 64
"""Objects joined by one call between two fsyncs, which takes a NameNode 10 ms. A record names 63 of them for each power
of it, or 8 KiB."""


class Publisher:
    """`manifest`: of the striped version that the contents continue, None for other files."""

    def __init__(self, shared: UploadContext, names: UploadNames, contents: FileContents, commit: Commit) -> None:
        self.commit = commit
        self._shared = shared
        self._effects = shared.effects
        self._names = names
        self._contents = contents
        self.manifest: Manifest | None = None
        self.published: Status | None = None
        self.attributes = Attributes()
        self._id = ""
        self._generation = 0
        self._joins = shared.store.capabilities.concat
        self._next_manifest = PreparedDocument(shared.sender, names.beside, MANIFEST_BLOCK_SIZE)
        self._log = RecordLog(shared.effects, names, PreparedDocument(shared.sender, names.beside))
        self._saved_head: PartUpload | None = None
        self._outdated: list[bytes] = []  # to be removed once what takes their place stands
        self._lists: list[bytes] = []  # of parts, for manifests that are not published
        self._unwanted = False
        self._recorded = -1

    @property
    def recorded(self) -> bool:
        """Tells whether a record stands."""
        return self._log.stands

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
        await self._log.write(self._durable_now())
        self._recorded = contents.length
        await self._clear_outdated()

    @contextlib.contextmanager
    def _leaving(self, *paths: bytes) -> Iterator[None]:
        """Around what makes hidden files of others: where it fails or is cut off, each of them may be there."""
        try:
            yield
        except BaseException:
            self._outdated += paths
            raise
        self._outdated = [path for path in self._outdated if path not in paths]

    async def _drain(self, *, record: bool) -> None:
        """Wait until all is acknowledged. Documents needed then are written once the parts are known."""
        contents = self._contents
        await contents.flowed()
        if contents.failure is None and contents.stream is None:
            if record:
                await self._log.prepare(self._durable_now())
            # A writer that went on after an fsync will do so again, and a list of parts would have to stand before.
            if contents.layout is Layout.STRIPED and not self._next_manifest.in_vain:
                manifest = self._manifest_now()
                document = manifest.to_bytes()
                self._outdated += await self._next_manifest.drop(but=document)
                if not self._next_manifest.in_vain and manifest.parts_list() is None:
                    self._next_manifest.begin(document)
        await contents.drain()

    def _outdate_head(self) -> None:
        saved, self._saved_head = self._saved_head, None
        if saved is not None and saved.landed:
            self._outdated.append(saved.path)

    async def _clear_outdated(self) -> None:
        outdated = [*self._log.outdated, *self._outdated]
        if outdated:
            await self._effects.clear(outdated)
            self._outdated, self._log.outdated = [], []

    async def _shorten(self) -> None:
        """Join neighbours that are joined of equally many parts, _JOINED at a time: a record names few objects then,
        however often there is an fsync, and no byte is joined often.

        The record that stands names them as they were, which `recovery` is prepared for.
        """
        contents = self._contents
        if contents.layout is Layout.STRIPED or not self._joins:
            return
        contents.replace(contents.objects())
        done: list[UploadBase] = []
        todo = list(contents.stands)
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

    async def _save_head(self) -> PartUpload:
        """The head stands in the store as one object."""
        saved, head = self._saved_head, self._contents.head
        assert head is not None
        if saved is None or saved.size != head.size or not self._is_beside(saved.path):
            self._outdate_head()
            self._saved_head = saved = self._contents.ship_head()
            await saved.ended.wait()
            await self._contents.drain()
        return saved

    def _durable_now(self) -> Durable:
        names, contents, head, manifest = self._names, self._contents, self._saved_head, self.manifest
        published, mode = self.published, self.attributes.mode
        striped = contents.layout is Layout.STRIPED
        unit = self._unit if striped else 0

        def record(start: int, after: RecordLink | None) -> Record:
            return record_of(
                names,
                contents,
                unit,
                head=head,
                manifest=manifest,
                published=published,
                mode=mode,
                start=start,
                after=after,
            )

        # A file whose parts are joined again and again is recorded anew each time: it names few objects.
        appended = head is None and (striped or not self._joins)
        key = (names.path, contents.rearranged) if appended else None
        return Durable(count_of(contents, head=head, manifest=manifest), key, record)

    def _manifest_now(self) -> Manifest:
        before = self.manifest.segments if self.manifest is not None else ()
        return manifest_of(self._names, self._contents, self._unit, before, self._generation, self._shared.pool)

    @property
    def _unit(self) -> int:
        return self.manifest.unit if self.manifest is not None else self._shared.policy.unit

    # -- publishing --------------------------------------------------------------------------------------------------

    async def publish(self) -> Status:
        """The contents are the file at `names.path`. Raises StaleVersion where they continue what is not there."""
        with self._contents.in_one_go():
            return await self._publish()

    async def _publish(self) -> Status:
        contents = self._contents
        if contents.head is not None:
            await self._publish_head()
        else:
            await self._drain(record=False)
            if contents.layout is Layout.STRIPED:
                await self._publish_striped()
            else:
                await self._publish_joined()
        status = await self.commit.look()
        self.published = self.commit.continued = status
        contents.copy.publish(self._names.path, status if self._is_ours(status) else None)
        self._shared.figures.published += 1
        await self.forget_record()
        self._bury()
        return status

    def _is_ours(self, status: Status) -> bool:
        """True if this is for sure the status of what was published just now: others that mind no lock may have put
        theirs in its place since. Not where the store gives files no ids."""
        if self._contents.layout is Layout.STRIPED and self.manifest is not None:
            return is_version_of(status, self.manifest)
        return bool(self._id) and (status.file_id, status.length) == (self._id, self._contents.length)

    async def forget_record(self) -> None:
        """Remove the record and what only it needs."""
        self._outdate_head()
        self._log.forget()
        await self._clear_outdated()
        self._recorded = self._contents.length

    async def _publish_head(self) -> None:
        if not self._shared.store.capabilities.replace:
            await self._put_head()
            return
        shipment = await self._save_head()
        await self._replace(shipment.path)
        self._saved_head = None

    async def _put_head(self) -> None:
        """For stores that cannot rename: whole or not at all, in one call."""
        head = self._contents.head
        assert head is not None
        await self.commit.put(head.pieces())

    async def _replace(self, source: bytes) -> None:
        await self.apply(source)
        self._id = (await self.commit.replace(source)).file_id

    def _is_beside(self, path: bytes) -> bool:
        """True if a hidden file bears the name that the file has now: a writer that takes over looks for those."""
        folder, name = split_path(self._names.path)
        found = parse_reserved(split_path(path)[1])
        return split_path(path)[0] == folder and found is not None and found.stem == stem(name)

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
            contents.replace(objects)
            try:
                whole = await self._join(objects)
                if contents.base is None:
                    await self._replace(whole.path)
                else:
                    self._id = self.published.file_id if self.published is not None else ""
                    await self.commit.join_behind(contents.base, whole.path, whole.length)
                    await self.apply(path)
            except Unsupported as error:
                _log.warning("the store does not join files here, so they are copied into one: %s", error)
                await self._replace_by_copy()
        contents.start_behind(UploadBase(path, contents.length), contents.layout)

    async def _join(self, objects: list[UploadBase]) -> UploadBase:
        """One hidden file, beside the file as it is named now, of all objects."""
        home, _ = split_path(self._names.path)
        for index, each in enumerate(objects):
            # The file was moved meanwhile. Only what lies together can be joined, and the first is what gets the name.
            if not self._is_beside(each.path) if index == 0 else split_path(each.path)[0] != home:
                moved, _ = self._names.beside()
                with self._leaving(moved):
                    await self._effects.rename_over(each.path, moved, each.length)
                objects[index] = self._contents.moved(each, moved)
        first, *rest = objects
        if rest:
            sources = [(each.path, each.length) for each in rest]
            await self._effects.concat(first.path, first.length, sources, self._is_wanted)
        return UploadBase(first.path, sum(each.length for each in objects), sum(each.parts for each in objects))

    async def _replace_by_copy(self) -> None:
        """The file is a new one, of the bytes of all objects, in whichever of them they are by now."""
        base, length = self._contents.base, self._contents.length
        objects = [each.path for each in self._contents.stands]
        path, _ = self._names.beside()
        with self._leaving(path):
            await self._effects.copy_together(
                objects if base is None else [base.path, *objects], path, length, self._is_wanted
            )
            await self._replace(path)
        await self._effects.clear(objects)

    async def _publish_striped(self) -> None:
        manifest = self._manifest_now()
        listed = manifest.parts_list()
        if listed is not None:
            self._lists.append(listed[0])
            await self._effects.put(*listed)
        document = manifest.to_bytes()
        self._outdated += await self._next_manifest.drop(but=document)
        await self.commit.take_back()
        path = await self._next_manifest.take(document)
        if not self._is_beside(path):  # the file was moved meanwhile
            written, (path, _) = path, self._names.beside()
            with self._leaving(written, path):
                await self._effects.rename_over(written, path, len(document))
        with self._leaving(path):
            await self._replace(path)
        self._outdated += [each for each in self._lists if listed is None or each != listed[0]]
        self._lists = []
        self._generation += 1
        self.manifest = manifest
        self._contents.start_behind(UploadBase(self._names.path, manifest.length), Layout.STRIPED)

    def _bury(self) -> None:
        """Parts of the replaced version that this one does not need stay for a while, for its readers."""
        replaced, self.commit.replaced = self.commit.replaced, None
        if replaced is None or self._shared.bury is None:
            return
        gone = replaced.versions - (self.manifest.versions if self.manifest is not None else frozenset())
        if gone:
            self._shared.bury(sorted(gone), POOL)

    # -- giving up ---------------------------------------------------------------------------------------------------

    @property
    def may_be_named(self) -> bool:
        """True if a manifest names the parts that were not published, for all that is known: gc can tell."""
        commit = self.commit
        return self._contents.layout is Layout.STRIPED and (commit.arrived or commit.hanging is not None)

    async def settle(self, *, recoverable: bool) -> bool:
        """True if nothing can come to the name any more; a step that is on its way is taken back. Raises nothing.

        recoverable: files that the record names stay.
        """
        if recoverable and self.commit.hanging is not None and self._contents.layout is not Layout.STRIPED:
            return False  # that is what the record names
        return await self.commit.settle()

    async def leftovers(self) -> list[bytes]:
        """Paths of what this publisher made besides the contents' parts. They are forgotten here.

        Files that it is still making are removed as soon as they are there.
        """
        self._unwanted = True
        self._outdate_head()
        self._outdated += await self.unused()
        self._log.forget()
        left = [*self._log.outdated, *self._outdated]
        if not self.may_be_named:
            left += self._lists
        self._recorded, self._outdated, self._log.outdated = -1, [], []
        return left

    async def unused(self) -> list[bytes]:
        """Paths of documents that were written ahead and that nothing needs. They are forgotten here."""
        return [*await self._log.unused(), *await self._next_manifest.drop()]

    def _is_wanted(self) -> bool:
        return not self._unwanted
