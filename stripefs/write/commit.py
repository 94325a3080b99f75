"""The commit of an upload: a linear procedure from bytes that were written to a version that readers see.

`Commit.publish` goes through the states of `CommitState`, in their order. One step makes the version visible:

    head      one small file, renamed onto the name
    concat    the parts are joined to one hidden file, renamed onto the name; later generations are joined to one
              hidden file, which is then joined behind the published one, in one step too
    striped   a manifest that names all parts, old ones included, renamed onto the name
    plain     the stream's file, renamed onto the name; of several, each ended by an fsync, one is made first

The step is fenced by the lock of the name. Its answer may be lost. Tries end when the lease does; then the commit is
HELD again, if the lock can be renewed, and looks before it repeats. Where another writer has taken the lock, only the
version itself, seen at the name, makes the commit VISIBLE. Otherwise it has failed and says so: a version that was
visible for a moment before another writer replaced it may be reported as lost, never the other way round. `file_lock`
explains the fencing that keeps a late step from taking effect.

A call that is cancelled, or not answered in time, goes on in its thread and may have its effect later. So a step on its
way to the name is known here until its end is: it is taken back by removing its source, and while it is unknown whether
that was in time the lock of the name has to stay.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import replace

import trio

from stripefs.errors import DraftLost, LeaseEnded, NotFound, StaleVersion, StoreError, Transient, Unsupported
from stripefs.executor import LaneBlocked
from stripefs.format.manifest import Manifest
from stripefs.format.reserved_names import POOL
from stripefs.store.base import Attributes, Status
from stripefs.store.striped_listing import is_version_of
from stripefs.units import shown
from stripefs.write.commit_documents import JoinStep, RenameStep, Step
from stripefs.write.hidden_files import HiddenFiles
from stripefs.write.layout_policy import Layout
from stripefs.write.parts import UploadBase
from stripefs.write.upload_context import UploadContext
from stripefs.write.upload_locks import UploadLocks
from stripefs.write.upload_names import split_path

__all__ = ["Commit", "CommitState"]

_log = logging.getLogger(__name__)


class CommitState(enum.Enum):
    """The point that a commit has come to. Each says what is left where its writer dies there.

    Before VISIBLE readers see the version before. The lock is left in any case, until the next writer takes it over
    when its lease has ended, or gc removes it. Hidden files that are left go with gc a day later, unless a record names
    them: then they stay for a week.
    """

    WRITING = "writing"
    """Parts are on their way. Left: parts, and the records of fsyncs, from which `stripefs recover` makes a file."""

    DURABLE = "durable"
    """All bytes are acknowledged, in hidden files; those of a small file are in memory. Left: the same."""

    STAGED = "staged"
    """One hidden file beside the name is the version, whole, and its identity is known. Left: that file, too. Recovery
    finds the bytes of a record also where they were joined to it."""

    HELD = "held"
    """The lease goes on for some time, renewed if it had ended or would soon. Left: as in STAGED."""

    ISSUED = "issued"
    """The lock was compared in the store, and at once after that the step was asked for. Left: as in STAGED or as in
    VISIBLE, since the step is one operation of the store. A writer that takes the lock over moves the hidden file away
    first, so a step that is late finds nothing."""

    VISIBLE = "visible"
    """The store said so, or was seen to have the version at the name. Left: the version, and hidden files that it does
    not need. Recovery refuses records of what is published, and gc removes them, as it removes striped versions that
    were replaced."""

    PUBLISHED = "published"
    """Records and hidden files of no use are removed, and what was replaced is scheduled for deletion."""

    TAKEN_BACK = "taken back"
    """A step whose answer did not come cannot have its effect any more, or has had it (`Commit.arrived`)."""


class Commit:
    """The commits of one upload, one at a time.

    replaced: the manifest of the file at the name until a version takes its place, None where that is not striped.
    continued: the status of the file that the new bytes are appended to; None where they are the file from its start.
    alone: True if nothing was at the name when its lock was taken, so nothing may be replaced: a file there was
    renamed to it by a process that looked for locks before. anew: nobody looked, so a file there is replaced all the
    same, with its manifest as `replaced`.
    """

    def __init__(
        self,
        shared: UploadContext,
        locks: UploadLocks,
        files: HiddenFiles,
        replaced: Manifest | None = None,
        *,
        alone: bool = False,
        anew: bool = False,
    ) -> None:
        self._shared = shared
        self._ops = shared.ops
        self._locks = locks
        self._files = files
        self._names = files.names
        self._contents = files.contents
        self._file = files.file
        self.state = CommitState.WRITING
        self.replaced = replaced
        self.continued: Status | None = None
        self.alone = alone
        self.anew = anew
        self.hanging: bytes | None = None
        """The file being renamed onto the name, or being so when that was given up: it may yet come there."""
        self.arrived = False
        """True if what was given up has come there all the same."""
        self._joining = False  # behind the published file, or that was given up
        self._id = ""  # of the file that was made visible last, where the store gives ids
        self._shown: Status | None = None
        """Status of the version that was made visible just now, as its rename leaves it; None where that is not known:
        of a striped one, of one that was joined, and where the store gives files no ids."""

    def restarted(self, files: HiddenFiles) -> Commit:
        """The commit of a file that is written from its start again, into these files."""
        replaced = self.replaced or self._file.manifest
        after = Commit(self._shared, self._locks, files, replaced, alone=self.alone, anew=self.anew)
        after.hanging, after._joining = self.hanging, self._joining
        return after

    # -- the procedure -----------------------------------------------------------------------------------------------

    async def publish(self) -> Status:
        """The contents are the file at the name; its status. Raises StaleVersion where the file that is continued is
        not there, or another one has come to a new file's name; DraftLost where another writer has the name.
        """
        contents = self._contents
        with contents.uninterrupted():
            self.state, self._shown = CommitState.WRITING, None
            if contents.head is not None:
                await self._publish_head()
            else:
                await self._files.drain()
                self.state = CommitState.DURABLE
                if contents.layout is Layout.STRIPED:
                    await self._publish_striped()
                else:
                    await self._publish_joined()
            status = self._shown or await self.look()
            self._file.published = self.continued = status
            ours = status if self._is_ours(status) else None
            contents.observer.publish(self._names.path, ours)
            if contents.base is not None and ours is not None:
                contents.base = replace(contents.base, file_id=ours.file_id)
            self._shared.stats.published += 1
            await self._files.forget_record()
            self._schedule_delete()
            self.state = CommitState.PUBLISHED
            return status

    # -- to STAGED, layout by layout ---------------------------------------------------------------------------------

    async def _publish_head(self) -> None:
        if not self._shared.store.capabilities.replace:
            await self._put_head()
            return
        saved = await self._files.save_head()
        await self._rename_onto_name(saved.path, saved.status)
        self._files.release_head()

    async def _put_head(self) -> None:
        """For a store that cannot rename: whole or not at all, by one call; a late call is not fenced."""
        head, store, path = self._contents.head, self._shared.store, self._names.path
        assert head is not None
        pieces = head.pieces()

        def put() -> None:
            self._locks.assert_held()
            store.put(path, pieces, replace=True)

        await self._locks.ensure_lease()
        await self._ops.call(f"writing {shown(path)}", put, timeout=min(self._ops.timeout, self._locks.left))
        self.state = CommitState.VISIBLE

    async def _publish_striped(self) -> None:
        files, file = self._files, self._file
        manifest = files.next_manifest()
        listed = await files.put_parts_list(manifest)
        document = manifest.to_bytes()
        await files.drop_manifest(but=document)
        await self.take_back()
        path = await files.write_manifest(document)
        with files.leaving(path):
            await self._rename_onto_name(path)
        files.release_parts_list(listed)
        file.generation += 1
        file.manifest = manifest
        self._contents.start_behind(UploadBase(self._names.path, manifest.length), Layout.STRIPED)

    async def _publish_joined(self) -> None:
        """Of one object or several, which are joined, or copied where the store does not join them."""
        contents, files = self._contents, self._files
        assert contents.layout is not None
        if contents.layout is Layout.PLAIN and len(contents.stored) > 1 and not files.joins:
            await files.gather()
        if objects := contents.objects():
            contents.replace(objects)
            try:
                whole = await files.join(objects)
                if contents.base is None:
                    await self._rename_onto_name(whole.path)
                else:
                    await self._join_behind(contents.base, whole)
            except Unsupported as error:
                _log.warning("the store does not join files here, so they are copied into one: %s", error)
                await self._publish_copy()
        contents.start_behind(UploadBase(self._names.path, contents.length), contents.layout)

    async def _publish_copy(self) -> None:
        """The file is a new one, of the bytes of all objects, in whichever of them they are by now."""
        objects = [each.path for each in self._contents.stored]
        path, _ = self._names.beside()
        with self._files.leaving(path):
            await self._files.copy(objects, path)
            await self._rename_onto_name(path)
        await self._ops.clear(objects)

    async def _rename_onto_name(self, source: bytes, staged: Status | None = None) -> None:
        """`source`, a hidden file beside the name, becomes the file. staged: its status, where that is known.

        `replaced` is None afterwards where it was not there any more: it may be in use elsewhere.
        """
        if await self._apply_attributes(source, staged):
            staged = None
        if self.hanging != source:
            await self.take_back()  # it must not come later and take this one's place
        store = self._shared.store
        if staged is None or not staged.file_id:
            staged = await self._ops.call("looking at a version", lambda: store.stat(source))
        self.state = CommitState.STAGED
        await self._ensure_continued()
        if self.replaced is not None and not await self._is_there(self.replaced):
            self.replaced = None
        self.hanging = source
        step = RenameStep(source, self._names.path, staged, self.alone)
        try:
            await self._make_visible(step)
        except StaleVersion:
            if not (self.alone and self.anew):
                raise
            self.alone, self.hanging = False, source
            self.replaced = await self._shared.manifest(self._names.path)
            await self._make_visible(replace(step, alone=False))
        self._id = staged.file_id
        if staged.file_id and self._contents.layout is not Layout.STRIPED:  # whole file's length in its status
            self._shown = replace(staged, name=split_path(self._names.path)[1])

    async def _join_behind(self, base: UploadBase, whole: UploadBase) -> None:
        """`whole`, a hidden file beside the name, goes behind the published file `base` in one step."""
        store, published = self._shared.store, self._file.published
        self._id = published.file_id if published is not None else ""
        await self._ensure_continued()
        before = await self._ops.call("looking at what is continued", lambda: store.stat(base.path))
        self.state = CommitState.STAGED
        self._joining = True
        await self._make_visible(JoinStep(whole.path, base.path, before, base.length + whole.length))
        await self._apply_attributes(self._names.path)

    async def _apply_attributes(self, path: bytes, now: Status | None = None) -> bool:
        """Give `path` the attributes that were asked for; False where it has them. now: its status, where known."""
        attributes = self._file.attributes
        if now is not None and now.file_id and now.mode == attributes.mode:
            attributes = replace(attributes, mode=None)
        if attributes == Attributes() or not self._shared.store.capabilities.attributes:
            return False
        await self._ops.set_attributes(path, attributes)
        return True

    # -- from STAGED to VISIBLE --------------------------------------------------------------------------------------

    async def _make_visible(self, step: Step) -> None:
        """Nothing is on its way afterwards, nor after an error of the store's own."""
        try:
            await self._issue(step)
        except (Transient, LeaseEnded, DraftLost):
            raise
        except StoreError:
            self.hanging, self._joining = None, False
            raise
        self.state = CommitState.VISIBLE
        self.alone = False
        self.hanging, self._joining = None, False
        self.continued = None  # known again after a look

    async def _issue(self, step: Step) -> None:
        what = f"publishing {shown(self._names.path)}"
        deadline = trio.current_time() + self._ops.timeout
        while True:
            until = deadline
            try:
                await self._locks.ensure_lease(deadline)
                if self.state is CommitState.STAGED:
                    self.state = CommitState.HELD
                until = min(deadline, trio.current_time() + self._locks.left)
                await self._ops.call(what, self._attempt, step, timeout=max(0.0, until - trio.current_time()))
                return
            except LeaseEnded:  # trio's clock, which `until` is by, stands still while the machine sleeps
                if trio.current_time() >= deadline:
                    raise
            except LaneBlocked:
                raise
            except Transient:
                if until >= deadline:
                    raise
            except DraftLost:
                issued = self.state is CommitState.ISSUED
                if issued and step.knows_itself and await self._ops.call(what, self._is_done, step):
                    return
                raise

    def _attempt(self, step: Step) -> None:
        """Blocks. The step may have been issued before."""
        store = self._shared.store
        self._locks.assert_held()
        if self.state is CommitState.ISSUED and self._is_done(step):
            return
        self.state = CommitState.ISSUED
        try:
            step.run(store)
        except Transient:
            raise
        except StoreError as error:
            if self._is_done(step):  # by an earlier try, after which stores answer differently to the next one
                return
            if not isinstance(error, NotFound) or step.has_source(store):
                raise
            raise DraftLost(
                f"{self._names.path!r} was taken over by another writer before this version was published",
                hint="what fsync made durable can be brought back by stripefs recover",
            ) from error

    def _is_done(self, step: Step) -> bool:
        try:
            return step.is_done(self._shared.store)
        except NotFound:
            return False

    async def look(self) -> Status:
        """The version that readers see at the name."""
        view, path = self._shared.view, self._names.path
        return await self._ops.call("looking at a version", lambda: view.stat(path))

    async def _ensure_continued(self) -> None:
        """Others may have put another file there, or taken it away. Without ids of files nobody can tell."""
        before = self.continued
        if before is None or not before.file_id:
            return
        try:
            now = await self.look()
            if (now.file_id, now.length) == (before.file_id, before.length):
                return
        except NotFound:
            pass
        raise StaleVersion(f"{self._names.path!r} was replaced or changed by somebody else while it was being written")

    async def _is_there(self, manifest: Manifest) -> bool:
        try:
            return is_version_of(await self.look(), manifest)
        except Transient:
            raise
        except StoreError:
            return False

    # -- from VISIBLE to PUBLISHED -----------------------------------------------------------------------------------

    def _is_ours(self, status: Status) -> bool:
        """True if this is for sure the status of what was published just now: others that mind no lock may have put
        theirs in its place since. Not where the store gives files no ids."""
        if self._contents.layout is Layout.STRIPED and self._file.manifest is not None:
            return is_version_of(status, self._file.manifest)
        return bool(self._id) and (status.file_id, status.length) == (self._id, self._contents.length)

    def _schedule_delete(self) -> None:
        """Parts of the replaced version that this one does not need stay for a while, for its readers."""
        replaced, self.replaced = self.replaced, None
        if replaced is None or self._shared.schedule_delete is None:
            return
        manifest = self._file.manifest
        gone = replaced.versions - (manifest.versions if manifest is not None else frozenset())
        if gone:
            self._shared.schedule_delete(sorted(gone), POOL)

    # -- giving up ---------------------------------------------------------------------------------------------------

    @property
    def may_be_named(self) -> bool:
        """True if a manifest names the parts that were not published, for all that is known: gc can tell."""
        return self._contents.layout is Layout.STRIPED and (self.arrived or self.hanging is not None)

    async def take_back(self) -> None:
        """Nothing is on its way afterwards: a hanging step has been taken back, or has `arrived`."""
        if self.hanging is not None:
            self.arrived = not await self._ops.withdraw(self.hanging)
            self.alone = self.alone and not self.arrived
            self.hanging = None
            self.state = CommitState.TAKEN_BACK

    async def resolve(self, *, recoverable: bool = False) -> bool:
        """`take_back` as far as that is possible now; True if nothing can come to the name any more. Raises nothing.

        recoverable: files that a record names stay.
        """
        if recoverable and self.hanging is not None and self._contents.layout is not Layout.STRIPED:
            return False  # that is what the record names
        try:
            await self.take_back()
        except StoreError:
            return False
        return not self._joining
