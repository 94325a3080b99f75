"""Dependency snapshots that are used on this host: each mounted once, for all processes that use it there.

The first that wants one attaches it and mounts it, as for any image; those that come while it stands are added to its
users, and when the last of them has ended, however, it is unmounted. That is done by a program of its own
(`imagefs.daemon.mount_helper`), because an unmount may wait for the daemon. A mount that is still busy then, because a
user left processes behind, is tried again now and then, and who comes meanwhile finds it mounted. One that is kept
without users stays until it is unmounted, or until another snapshot is wanted in its place and nothing is open there.

    MOUNTING    its client knows where the image is, and has not reported the mount
    MOUNTED     users join and leave
    UNMOUNTING  the program runs: nobody joins until it has ended, after which the mount is gone, or MOUNTED again

The last is written down before the program starts: a worker that takes over runs it anew, and lets nobody join before.

Clients take turns at a target (`imagefs.deps.target`), so none mounts there while this module is asked by another.

An installation in a container has no target of this host: containers have it above their image, each for itself, as
long as the process lives that runs them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import trio

from imagefs.daemon import processes
from imagefs.daemon.helpers import run_helper
from imagefs.daemon.liveness import ended
from imagefs.daemon.mount_pool import LINGER
from imagefs.daemon.protocol import Attached, AttachRequest, SharedSnapshot, SnapshotUse
from imagefs.daemon.requests import Unserved
from imagefs.daemon.state import Attachment
from imagefs.errors import BlockUnavailable, DamagedBlock, DamagedObject, FormatError, NoSuchImage, NoSuchSnapshot
from imagefs.repository.images import Images
from imagefs.repository.snapshots import Snapshots
from stripefs.background import contain, supervise
from stripefs.errors import ConfigError, MountError, NotFound
from stripefs.executor import Lane

if TYPE_CHECKING:
    from imagefs.daemon.attachments import Attachments

__all__ = ["SharedMounts", "finder", "image_of", "shared_by"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
UseAnswer = Attached | SharedSnapshot | Unserved
_Args = TypeVarTuple("_Args")
_DISK_WITHIN = 5.0
"""Seconds that the cache's disk may take for a note."""

_LOOK_EVERY = 0.25
"""Seconds between looks for mounts without users."""

_GOING_WITHIN = 20.0
"""Seconds that somebody waits for the end of a mount whose last user has ended."""

_UNMOUNT_WITHIN = 600.0
"""Seconds that an unmount may take."""

_BUSY_AGAIN = 5.0
"""Seconds until a mount that was busy is tried again: each try is a process."""

_QUARANTINE = 600.0
"""Seconds for which a snapshot that could not be read is not mounted again: a job that died of it is restarted sooner,
and a store is mended later."""


class SharedMounts:
    """The snapshots among the attachments of `host`. folder: keeps which of them could not be read, for the next worker
    and the next daemon: an empty file for each device, whose time says when."""

    def __init__(self, host: Attachments, folder: Path) -> None:
        self._host = host
        self._folder = folder
        self._nursery: trio.Nursery
        self._lane = Lane("notes of snapshots", 2)
        self._busy_until: dict[str, float] = {}
        self._unused_since: dict[str, float] = {}
        self._quarantined: dict[str, float] = {}  # until when, by device: a block was damaged, or its pack gone

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await contain("reading what is not mounted", self._load)
            for attachment in list(self._host.state.attachments.values()):
                self.watch(attachment)
                if attachment.leaving:  # an earlier worker may have unmounted it, or not
                    self._begin_unmount(attachment)
            task_status.started()
            await supervise("looking for snapshots that nobody uses", self._look)

    async def _look(self) -> None:
        while True:
            await trio.sleep(_LOOK_EVERY)
            for attachment in list(self._host.state.attachments.values()):
                if self._is_over(attachment):
                    self._host.change(attachment, leaving=True)
                    self._begin_unmount(attachment)

    def _begin_unmount(self, attachment: Attachment) -> None:
        what = f"unmounting {attachment.mountpoint}"
        self._nursery.start_soon(supervise, what, self._unmount, attachment)

    async def use(self, request: AttachRequest, attach: Callable[[], Awaitable[Attached]]) -> UseAnswer:
        """One more process uses a snapshot at its target.

        The client is to mount what `attach` answers; a `SharedSnapshot` is mounted there already.
        """
        if (snapshot := request.snapshot) is None:
            raise ConfigError("no snapshot is named")
        answer = await (self._at_target(request, snapshot, attach) if request.mountpoint else self._anew(attach))
        if not isinstance(answer, Unserved):
            self._nursery.start_soon(contain, "noting the use of a snapshot", self._host.note_use, request)
        return answer

    async def _at_target(
        self, request: AttachRequest, snapshot: SnapshotUse, attach: Callable[[], Awaitable[Attached]]
    ) -> UseAnswer:
        target, name = request.mountpoint, snapshot.name
        if request.namespace != processes.namespace():
            raise MountError(
                f"{target} cannot be shared: the daemon runs in another mount namespace",
                hint="start one in this one, with a --runtime of its own",
            )
        with trio.move_on_after(_GOING_WITHIN):
            while (known := self._at(target)) is not None and self._is_going(known, name):
                await trio.sleep(_LOOK_EVERY / 5)
        known = self._at(target)
        if known is not None and not known.snapshot:
            raise MountError(f"an image is mounted at {target}", hint=f"imagefs umount {target}")
        if known is not None and known.leaving:
            raise MountError(f"{target} is still being unmounted", hint="see what keeps it, and try again")
        if not request.mounted:
            return await self._anew(attach)
        if known is None or known.owner:
            return Unserved("stale")
        if known.snapshot != name:
            if not known.users and await self._gives_way(known):
                return Unserved("stale")
            raise MountError(
                f"another snapshot, {known.snapshot[:12]}, is mounted at {target}{_for(known)}",
                hint="one target holds one snapshot at a time: wait, or name another --target",
            )
        self._join(known, snapshot)
        return SharedSnapshot(known.id, known.image)

    async def _anew(self, attach: Callable[[], Awaitable[Attached]]) -> Attached | Unserved:
        try:
            return await attach()
        except NoSuchSnapshot:
            return Unserved("missing")
        except (DamagedObject, FormatError, NoSuchImage) as error:
            return Unserved("broken", error.message, error.hint, isinstance(error, DamagedBlock))

    def _join(self, attachment: Attachment, snapshot: SnapshotUse) -> None:
        """Its users are the attachment's from now on. Raises MountError for one that has ended already."""
        new = [one for one in _users_of(snapshot) if one not in attachment.users]
        kept = attachment.kept or snapshot.kept
        self._host.change(attachment, users=[*attachment.users, *new], kept=kept)
        for one in new:
            self._watch_user(attachment.id, one)

    def failed(self, index: str, error: BlockUnavailable) -> None:
        """A block of this device could not be had. Where it was damaged, or its pack is gone, snapshots with the device
        are not mounted for a while."""
        if isinstance(error.__cause__, DamagedObject | NotFound):
            self._quarantined[index] = trio.current_time() + _QUARANTINE
            self._nursery.start_soon(contain, "noting what is not mounted", self._disk, self._note, index)

    async def _disk(self, function: Callable[[*_Args], _T], *args: *_Args) -> _T:
        return await self._lane.run("the cache's disk", function, *args, timeout=_DISK_WITHIN)

    def _note(self, index: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / index).touch()

    async def _load(self) -> None:
        for index, left in (await self._disk(self._noted)).items():
            self._quarantined[index] = trio.current_time() + left

    def _noted(self) -> dict[str, float]:
        """Seconds for which each device is not to be mounted yet. Notes that are too old go."""
        found = {}
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                left = path.stat().st_mtime + _QUARANTINE - time.time()
                if 0 < left <= _QUARANTINE:
                    found[path.name] = left
                else:
                    path.unlink(missing_ok=True)
        return found

    def check_undamaged(self, name: str, devices: Iterable[str]) -> None:
        """Raise DamagedBlock for a snapshot with a device of which a block could not be had lately."""
        for index in devices:
            if trio.current_time() < self._quarantined.get(index, float("-inf")):
                raise DamagedBlock(
                    f"a block of the snapshot {name[:12]} was damaged or gone when it was read",
                    hint="`imagefs deps verify` says more, `imagefs deps rm` takes it away",
                )

    def watch(self, attachment: Attachment) -> None:
        """Notice when its users end."""
        for user in attachment.users:
            self._watch_user(attachment.id, user)

    def _watch_user(self, identifier: str, user: list[int]) -> None:
        what = f"waiting for the end of process {user[0]}"
        self._nursery.start_soon(supervise, what, self._until_it_ends, identifier, user)

    async def _until_it_ends(self, identifier: str, user: list[int]) -> None:
        await ended(*user)
        attachment = self._host.state.attachments.get(identifier)
        if attachment is not None and user in attachment.users:
            self._host.change(attachment, users=[one for one in attachment.users if one != user])

    def _at(self, target: str) -> Attachment | None:
        own = processes.namespace()
        found = (one for one in self._host.state.attachments.values() if one.namespace == own)
        return next((one for one in found if one.mountpoint == target), None)

    def _is_going(self, one: Attachment, name: str) -> bool:
        """Tells whether it will soon be unmounted, so that there is room for what is wanted."""
        unused = one.snapshot not in ("", name) and not (one.users or one.kept or one.owner)
        return unused or one.leaving

    async def _gives_way(self, one: Attachment) -> bool:
        """Unmount what was to stay, for another that is wanted in its place; whether nothing reads there any more."""
        self._host.change(one, leaving=True)
        await supervise(f"unmounting {one.mountpoint}", self._unmount, one)
        return one.id not in self._host.state.attachments

    def _is_over(self, one: Attachment) -> bool:
        if not (one.snapshot or one.pooled) or one.users or one.kept or one.owner or one.leaving or one.leases:
            self._unused_since.pop(one.id, None)
            return False
        since = self._unused_since.setdefault(one.id, trio.current_time())
        if one.pooled and one.lingers and trio.current_time() < since + LINGER:
            return False
        return trio.current_time() >= self._busy_until.get(one.id, 0.0)

    async def _unmount(self, attachment: Attachment) -> None:
        why, facts = "", {"unmount": {"target": attachment.mountpoint, "remove": attachment.pooled}}
        try:
            await run_helper("imagefs.daemon.mount_helper", facts, _UNMOUNT_WITHIN)
        except OSError as error:
            why = str(error)
        if attachment.id not in self._host.state.attachments:
            return
        if not why:
            self._busy_until.pop(attachment.id, None)
            self._unused_since.pop(attachment.id, None)
            self._host.release(attachment)
            return
        if attachment.id not in self._busy_until:
            _log.warning("%s stays, though nobody uses it any more: %s", attachment.mountpoint, why)
        self._busy_until[attachment.id] = trio.current_time() + _BUSY_AGAIN
        self._host.change(attachment, leaving=False)


def image_of(images: Images, name: str, target: str) -> str:
    """The image of a snapshot for that target, "" for a container. Raises NoSuchSnapshot, and FormatError for one that
    was made for another path: what is installed knows where it lies."""
    snapshot = Snapshots(images).load(name)
    if target and (snapshot.kind != "host" or snapshot.targets != (target,)):
        raise FormatError(
            f"the snapshot {name[:12]} was made for {', '.join(snapshot.targets)} ({snapshot.kind}), not for {target}",
            hint="it is never moved: what is installed knows its path",
        )
    if not target and snapshot.kind == "host":
        raise FormatError(f"the snapshot {name[:12]} was made for {', '.join(snapshot.targets)}, not for containers")
    return snapshot.image


def finder(request: AttachRequest) -> Callable[[Images], str] | None:
    """The function that asks a store for the image that is to be attached; None as for any."""
    snapshot = request.snapshot
    if snapshot is None or request.lease is not None:  # mounting for leases has asked before
        return None
    return lambda images: image_of(images, snapshot.name, request.mountpoint)


def shared_by(request: AttachRequest) -> dict[str, Any]:
    """Fields of an attachment for the snapshot that it is, and for its users and leases. Raises MountError."""
    snapshot = request.snapshot
    if request.lease is not None:
        name = snapshot.name if snapshot is not None else ""
        return {"pooled": True, "leases": [request.lease._asdict()], "snapshot": name}
    if snapshot is None:
        return {}
    if not request.mountpoint:
        return {"snapshot": snapshot.name}
    return {"snapshot": snapshot.name, "users": _users_of(snapshot), "kept": snapshot.kept}


def _users_of(snapshot: SnapshotUse) -> list[list[int]]:
    """The users of what is asked for: processes, and when they began, but for those that have ended.

    Raises MountError where none is to be seen.
    """
    users = [list(user) for user in snapshot.users if processes.began(user[0]) == user[1]]
    if not users:
        for user in snapshot.users:
            processes.must_be_seen(*user)
    return users


def _for(attachment: Attachment) -> str:
    if not attachment.users:
        return ""
    return f", for process {', '.join(str(process) for process, _ in attachment.users)}"
