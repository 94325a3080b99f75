"""The hidden files by which an upload is durable before it is published: a saved head, documents, joined objects.

fsync makes all bytes durable in such files and writes a record that names them. A commit takes the same files, and
makes of them the one hidden file that becomes the version. For one task at a time. Hidden files that are still being
made when this is cut off are removed as soon as they are there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from stripefs.errors import StoreError, Unsupported
from stripefs.format.manifest import MANIFEST_BLOCK_SIZE, Manifest
from stripefs.format.reserved_names import parse_reserved, stem
from stripefs.store.base import Attributes, Status
from stripefs.write.commit_documents import Durable, PreparedDocument, RecordLog, count_of, manifest_of, record_of
from stripefs.write.file_contents import FileContents
from stripefs.write.layout_policy import Layout
from stripefs.write.parts import PartUpload, UploadBase
from stripefs.write.upload_context import UploadContext
from stripefs.write.upload_names import UploadNames, split_path

__all__ = ["FileState", "HiddenFiles"]

_log = logging.getLogger(__name__)

_JOINED = 64
"""Objects joined by one call between two fsyncs, which takes a NameNode 10 ms. A record names 63 of them for each power
of it, or 8 KiB."""


@dataclass(eq=False)
class FileState:
    """The file at the name of an upload. attributes: those that the next publication gives it.

    published: the version that the upload continues or has published last. manifest: of that version, None unless it
    is striped. generation: number of the striped versions that this upload has published.
    """

    attributes: Attributes
    published: Status | None = None
    manifest: Manifest | None = None
    generation: int = 0


class HiddenFiles:
    """The hidden files of one upload, but for the parts, which `contents` knows."""

    def __init__(self, shared: UploadContext, names: UploadNames, contents: FileContents, file: FileState) -> None:
        self.names = names
        self.contents = contents
        self.file = file
        self.joins = shared.store.capabilities.concat
        """False where the store was found not to join files."""
        self._shared = shared
        self._ops = shared.ops
        self._next_manifest = PreparedDocument(shared.uploader, names.beside, MANIFEST_BLOCK_SIZE)
        self._log = RecordLog(shared.ops, names, PreparedDocument(shared.uploader, names.beside))
        self._saved_head: PartUpload | None = None
        self._outdated: list[bytes] = []  # to be removed once what takes their place is published
        self._lists: list[bytes] = []  # of parts, for manifests that are not published
        self._unwanted = False
        self._recorded = -1

    @property
    def recorded(self) -> bool:
        """True if there is a record of an fsync."""
        return self._log.exists

    # -- fsync -------------------------------------------------------------------------------------------------------

    async def record(self) -> None:
        """All that is written is durable, and a record beside the file says where."""
        contents = self.contents
        if self._recorded == contents.length:
            return
        with contents.uninterrupted():
            await self._make_record()

    async def _make_record(self) -> None:
        contents = self.contents
        if not self._shared.store.capabilities.replace:
            raise Unsupported(
                f"{self._shared.store.url} cannot keep a file that is not complete, so it is durable only when closed"
            )
        if contents.head is not None:
            await self.save_head()
        if contents.head is None:  # from the start, or since its memory was wanted meanwhile
            await self.drain(record=True)
            self._outdate_head()
            await self._shorten()
        await self._log.write(self._durable_now())
        self._recorded = contents.length
        await self._clear_outdated()

    async def forget_record(self) -> None:
        """Remove the record and what only it needs."""
        self._outdate_head()
        self._log.forget()
        await self._clear_outdated()
        self._recorded = self.contents.length

    async def drain(self, *, record: bool = False) -> None:
        """Wait until all is acknowledged. Documents needed then are written once the parts are known."""
        contents = self.contents
        await contents.wait_sent()
        if contents.failure is None and contents.stream is None:
            if record:
                await self._log.prepare(self._durable_now())
            # A writer that went on after an fsync will do so again, and a list of parts would be needed before.
            if contents.layout is Layout.STRIPED and not self._next_manifest.wasted:
                manifest = self.next_manifest()
                document = manifest.to_bytes()
                self._outdated += await self._next_manifest.drop(but=document)
                if not self._next_manifest.wasted and manifest.parts_list() is None:
                    self._next_manifest.begin(document)
        await contents.drain()

    async def _shorten(self) -> None:
        """Join neighbours that are joined of equally many parts, _JOINED at a time: a record names few objects then,
        however often there is an fsync, and no byte is joined often.

        The record in the store names them as they were, which `recover` is prepared for.
        """
        contents = self.contents
        if contents.layout is Layout.STRIPED or not self.joins:
            return
        contents.replace(contents.objects())
        done: list[UploadBase] = []
        todo = list(contents.stored)
        while todo:
            done.append(todo.pop(0))
            run = done[-_JOINED:]
            if len(run) < _JOINED or len({each.parts for each in run}) > 1:
                continue
            del done[-_JOINED:]
            try:
                todo.insert(0, await self.join(run))
            except Unsupported as error:
                self.joins = False
                _log.info("the store does not join files here, so records name them all: %s", error)
                done += [*run, *todo]
                break
            except StoreError as error:
                contents.fail(error)
                raise
        contents.replace(done)

    def _durable_now(self) -> Durable:
        names, contents, head, manifest = self.names, self.contents, self._saved_head, self.file.manifest
        published, mode = self.file.published, self.file.attributes.mode
        striped = contents.layout is Layout.STRIPED
        unit = self._unit if striped else 0
        record = partial(record_of, names, contents, unit, head=head, manifest=manifest, published=published, mode=mode)
        # A file whose parts are joined again and again is recorded anew each time: it names few objects.
        appended = head is None and (striped or not self.joins)
        key = (names.path, contents.moves) if appended else None
        return Durable(count_of(contents, head=head, manifest=manifest), key, record)

    # -- the file that becomes the version ---------------------------------------------------------------------------

    async def save_head(self) -> PartUpload:
        """The head is in the store as one object."""
        saved, head = self._saved_head, self.contents.head
        assert head is not None
        if saved is None or saved.size != head.size or not self._is_beside(saved.path):
            self._outdate_head()
            self._saved_head = saved = self.contents.send_head()
            await saved.ended.wait()
            await self.contents.drain()
        return saved

    def release_head(self) -> None:
        """Its object has become the file."""
        self._saved_head = None

    def _outdate_head(self) -> None:
        saved, self._saved_head = self._saved_head, None
        if saved is not None and saved.acked:
            self._outdated.append(saved.path)

    def next_manifest(self) -> Manifest:
        """Of the striped version that the contents are now."""
        file = self.file
        before = file.manifest.segments if file.manifest is not None else ()
        return manifest_of(self.names, self.contents, self._unit, before, file.generation, self._shared.pool)

    @property
    def _unit(self) -> int:
        return self.file.manifest.unit if self.file.manifest is not None else self._shared.policy.unit

    async def put_parts_list(self, manifest: Manifest) -> bytes:
        """The path of the list of parts that the manifest names by its digest, which is in the pool; b"" for none."""
        listed = manifest.parts_list()
        if listed is None:
            return b""
        self._lists.append(listed[0])
        await self._ops.put(*listed)
        return listed[0]

    def release_parts_list(self, path: bytes) -> None:
        """A manifest is published that names the list at `path`, or none: the other lists are of no use."""
        self._outdated += [each for each in self._lists if each != path]
        self._lists = []

    async def drop_manifest(self, but: bytes) -> None:
        """Give up the manifest that was written ahead, unless it is this document."""
        self._outdated += await self._next_manifest.drop(but=but)

    async def write_manifest(self, document: bytes) -> bytes:
        """The path of a hidden file beside the file that is this manifest; it is the caller's to rename."""
        path = await self._next_manifest.take(document)
        if not self._is_beside(path):  # the file was moved meanwhile
            written, (path, _) = path, self.names.beside()
            with self.leaving(written, path):
                await self._ops.rename_over(written, path, len(document))
        return path

    async def join(self, objects: list[UploadBase]) -> UploadBase:
        """One hidden file, beside the file as it is named now, of all objects."""
        home, _ = split_path(self.names.path)
        for index, each in enumerate(objects):
            # The file was moved meanwhile. Only what lies together can be joined, and the first is what gets the name.
            if not self._is_beside(each.path) if index == 0 else split_path(each.path)[0] != home:
                moved, _ = self.names.beside()
                with self.leaving(moved):
                    await self._ops.rename_over(each.path, moved, each.length)
                objects[index] = self.contents.moved(each, moved)
        first, *rest = objects
        if rest:
            sources = [(each.path, each.length) for each in rest]
            await self._ops.concat(first.path, first.length, sources, self._is_wanted)
        return UploadBase(first.path, sum(each.length for each in objects), sum(each.parts for each in objects))

    async def gather(self) -> None:
        """One object of all that is durable, by copying, for a store that cannot join files."""
        self._outdated += await self.contents.gather()

    async def copy(self, objects: list[bytes], path: bytes) -> None:
        """A new hidden file at `path` of the published file that is continued, if there is one, and these objects."""
        base, length = self.contents.base, self.contents.length
        sources = objects if base is None else [base.path, *objects]
        await self._ops.copy_together(sources, path, length, self._is_wanted)

    def _is_beside(self, path: bytes) -> bool:
        """True if a hidden file bears the name that the file has now: a writer that takes over looks for those."""
        folder, name = split_path(self.names.path)
        found = parse_reserved(split_path(path)[1])
        return split_path(path)[0] == folder and found is not None and found.stem == stem(name)

    # -- giving up ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def leaving(self, *paths: bytes) -> Iterator[None]:
        """Around what makes hidden files of others: where it fails or is cut off, each of them may be there."""
        try:
            yield
        except BaseException:
            self._outdated += paths
            raise
        self._outdated = [path for path in self._outdated if path not in paths]

    async def _clear_outdated(self) -> None:
        outdated = [*self._log.outdated, *self._outdated]
        if outdated:
            await self._ops.clear(outdated)
            self._outdated, self._log.outdated = [], []

    async def leftovers(self, *, may_be_named: bool) -> list[bytes]:
        """Paths of all hidden files but the parts. They are forgotten here; those still being made are removed as soon
        as they are there. may_be_named: a manifest that was not published may come to the name all the same.
        """
        self._unwanted = True
        self._outdate_head()
        self._outdated += await self.unused()
        self._log.forget()
        left = [*self._log.outdated, *self._outdated]
        if not may_be_named:
            left += self._lists
        self._recorded, self._outdated, self._log.outdated = -1, [], []
        return left

    async def unused(self) -> list[bytes]:
        """Paths of documents that were written ahead and that nothing needs. They are forgotten here."""
        return [*await self._log.unused(), *await self._next_manifest.drop()]

    def _is_wanted(self) -> bool:
        return not self._unwanted
