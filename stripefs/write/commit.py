"""The commit of a version: one step, by which it becomes what stands at its name, fenced by the lock of the name.

A commit goes through these states, in this order:

    STAGED     the version is a hidden file beside the name, whole and durable; its identity is known
    HELD       the lease goes on for some time, renewed if it has ended or would soon
    ISSUED     the lock was compared in the store, and at once after that the step was asked for: a rename onto the
               name, or a join behind the file that stands there
    VISIBLE    the store said so, or was seen to have the version at the name

From ISSUED on an answer may be lost. Tries end when the lease does; then the commit is HELD again, if the lock can be
renewed, and looks before it repeats. Where another writer has taken the lock, only the version itself, seen at the
name, makes the commit VISIBLE. Otherwise it has failed and says so: a version that stood there for a moment before
another writer replaced it may be reported as lost, never the other way round. `file_lock` explains the fencing that
keeps a late step from taking effect.

A call that is cancelled, or not answered in time, goes on in its thread and may have its effect later. So a step on its
way to the name is known here until its end is: it is taken back by removing its source, and while it is unknown whether
that was in time the lock of the name has to stay.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import trio

from stripefs.errors import Exists, NotFound, StaleVersion, StoreError, Transient
from stripefs.executor import LaneBlocked
from stripefs.format.manifest import Manifest
from stripefs.store.base import Buffer, Status, Store
from stripefs.store.striped_listing import is_version_of
from stripefs.units import shown
from stripefs.write.context import UploadContext
from stripefs.write.errors import DraftLost, LeaseEnded
from stripefs.write.part_buffer import UploadBase
from stripefs.write.upload_locks import UploadLocks
from stripefs.write.upload_names import UploadNames

__all__ = ["Commit", "CommitState"]


class CommitState(enum.Enum):
    """As the module says. IDLE: nothing is on its way. TAKEN_BACK: it was, and cannot come to the name any more, or
    has `arrived`."""

    IDLE = "idle"
    STAGED = "staged"
    HELD = "held"
    ISSUED = "issued"
    VISIBLE = "visible"
    TAKEN_BACK = "taken back"


class Commit:
    """The commits of one upload, one at a time.

    replaced: the manifest of the file at the name until a version takes its place, None where that is not striped.
    continued: the status of the file that the new bytes are appended to; None where they are the file from its start.
    alone: True if nothing stood at the name when its lock was taken, so nothing may be replaced: a file there was
    renamed to it by a process that looked for locks before.
    """

    def __init__(
        self,
        shared: UploadContext,
        names: UploadNames,
        locks: UploadLocks,
        replaced: Manifest | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self._shared = shared
        self._effects = shared.effects
        self._names = names
        self._locks = locks
        self.state = CommitState.IDLE
        self.replaced = replaced
        self.continued: Status | None = None
        self.alone = alone
        self.hanging: bytes | None = None
        """The file being renamed onto the name, or being so when that was given up: it may yet stand there."""
        self.arrived = False
        """True if what was given up stands there all the same."""
        self._joining = False  # behind the published file, or that was given up

    def anew(self, replaced: Manifest | None) -> Commit:
        """For what is written from the file's start again."""
        after = Commit(self._shared, self._names, self._locks, replaced, alone=self.alone)
        after.hanging, after._joining = self.hanging, self._joining
        return after

    async def put(self, pieces: Sequence[Buffer]) -> None:
        """The file is of these bytes, by one call, where the store cannot rename; a late call is not fenced."""
        store, path = self._shared.store, self._names.path

        def put() -> None:
            self._locks.assert_held()
            store.put(path, pieces, replace=True)

        await self._locks.ensure()
        await self._effects.call(f"writing {shown(path)}", put, timeout=min(self._effects.timeout, self._locks.left))

    async def replace(self, source: bytes) -> Status:
        """`source`, a hidden file beside the name, becomes the file; its status, but for the name.

        `replaced` is None afterwards where it did not stand there any more: it may be in use elsewhere. Raises
        StaleVersion where the file that is continued is not there, or another one has come to a new file's name;
        DraftLost where another writer has the name.
        """
        if self.hanging != source:
            await self.take_back()  # it must not come later and take this one's place
        store, path = self._shared.store, self._names.path
        staged = await self._effects.call("looking at a version", lambda: store.stat(source))
        self.state = CommitState.STAGED
        await self._ensure_continued()
        if self.replaced is not None and not await self._is_there(self.replaced):
            self.replaced = None
        self.hanging = source

        def stands() -> bool:
            return _is_same(store.stat(path), staged)

        def rename() -> None:
            try:
                store.rename(source, path, replace=not self.alone)
            except Exists as error:
                raise StaleVersion(f"{path!r} was made by somebody else while it was being written") from error

        await self._decided(source, rename, stands, knows_itself=True)
        return staged

    async def join_behind(self, base: UploadBase, source: bytes, length: int) -> None:
        """`source`, a hidden file beside the name, goes behind the published file in one step. Raises as `replace`."""
        store = self._shared.store
        await self._ensure_continued()
        before = await self._effects.call("looking at what is continued", lambda: store.stat(base.path))
        self.state = CommitState.STAGED
        self._joining = True

        def stands() -> bool:
            now = store.stat(base.path)
            return (now.file_id, now.length) == (before.file_id, base.length + length)

        await self._decided(source, lambda: store.concat(base.path, [source]), stands, knows_itself=False)

    async def take_back(self) -> None:
        """Nothing is on its way afterwards: a hanging step has been taken back, or has `arrived`."""
        if self.hanging is not None:
            self.arrived = not await self._effects.withdraw(self.hanging)
            self.alone = self.alone and not self.arrived
            self.hanging = None
            self.state = CommitState.TAKEN_BACK

    async def settle(self) -> bool:
        """`take_back` as far as that is possible now; True if nothing can come to the name any more. Raises nothing."""
        try:
            await self.take_back()
        except StoreError:
            return False
        return not self._joining

    async def look(self) -> Status:
        """The version that readers see at the name."""
        view, path = self._shared.view, self._names.path
        return await self._effects.call("looking at a version", lambda: view.stat(path))

    async def _decided(
        self, source: bytes, step: Callable[[], None], stands: Callable[[], bool], *, knows_itself: bool
    ) -> None:
        """From STAGED to VISIBLE. Nothing is on its way then, nor after an error of the store's own."""
        try:
            await self._carry_out(source, step, stands, knows_itself=knows_itself)
        except (Transient, LeaseEnded, DraftLost):
            raise
        except StoreError:
            self.hanging, self._joining = None, False
            raise
        self.state = CommitState.VISIBLE
        self.alone = False
        self.hanging, self._joining = None, False
        self.continued = None  # known again after a look

    async def _carry_out(
        self, source: bytes, step: Callable[[], None], stands: Callable[[], bool], *, knows_itself: bool
    ) -> None:
        """knows_itself: `stands` cannot take another writer's version for this one."""
        store, locks = self._shared.store, self._locks

        def seen() -> bool:
            try:
                return stands()
            except NotFound:
                return False

        def attempt() -> None:
            locks.assert_held()
            if self.state is CommitState.ISSUED and seen():
                return
            self.state = CommitState.ISSUED
            try:
                step()
            except Transient:
                raise
            except StoreError as error:
                if seen():  # by an earlier try, after which stores answer differently to the next one
                    return
                if not isinstance(error, NotFound) or _exists(store, source):
                    raise
                raise DraftLost(
                    f"{self._names.path!r} was taken over by another writer before this version was published",
                    hint="what fsync made durable can be brought back by stripefs recover",
                ) from error

        what = f"publishing {shown(self._names.path)}"
        deadline = trio.current_time() + self._effects.timeout
        while True:
            until = deadline
            try:
                await locks.ensure(deadline)
                if self.state is CommitState.STAGED:
                    self.state = CommitState.HELD
                until = min(deadline, trio.current_time() + locks.left)
                await self._effects.call(what, attempt, timeout=max(0.0, until - trio.current_time()))
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
                if self.state is CommitState.ISSUED and knows_itself and await self._effects.call(what, seen):
                    return
                raise

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


def _is_same(one: Status, other: Status) -> bool:
    """True if both are one file, under whichever name. Renaming keeps ids, lengths and times."""
    if one.file_id or other.file_id:
        return (one.file_id, one.length) == (other.file_id, other.length)
    return one.identity == other.identity


def _exists(store: Store, path: bytes) -> bool:
    try:
        store.stat(path)
    except NotFound:
        return False
    return True
