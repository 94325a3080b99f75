"""Liveness of attachments: a process that ended, a mount that is gone, a start that is over, without being told.

An attachment belongs to the process that asked for it until it is mounted. When that process ends before, it is
released, unless the mount is there already, and was only not reported. A mount counts as gone when it was missing
several times: its mountpoint in its mount namespace, or, where it is writable, the overlay with its upper directory
anywhere there.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import trio

from imagefs.daemon import processes
from imagefs.daemon.cleanup import upper_folder
from imagefs.daemon.state import Attachment
from imagefs.settings import DaemonSettings
from stripefs.background import supervise
from stripefs.errors import ServiceDown
from stripefs.executor import Lane
from stripefs.fuse.kernel import MountPoint

if TYPE_CHECKING:
    from imagefs.daemon.attachments import Attachments

__all__ = ["FSTYPES", "LivenessWatch", "ended"]

_log = logging.getLogger(__name__)
FSTYPES = {"erofs": "erofs", "fuse.imagefs": "tree", "overlay": ""}
"""Types of mounts for an attachment, and the plane that shows each; an overlay has it below."""

_LOOK_EVERY = 0.5
_UNMOUNTED_AFTER = 4
_ANSWERS_WITHIN = 5.0
"""Seconds that a look at such a file may take."""

_THREADS = 8
"""For looking at files that jobs make: the disk they are on may hang."""


class LivenessWatch:
    """Watches the attachments of `uses`, each from `begin` to `end`."""

    def __init__(self, settings: DaemonSettings, uses: Attachments) -> None:
        self._settings = settings
        self._uses = uses
        self._scopes: dict[str, trio.CancelScope] = {}
        self._files = Lane("ready files", _THREADS)
        self._tables = Lane("mount tables", _THREADS)
        self._nursery: trio.Nursery

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await supervise("looking at mounts", self._look_at_mounts)

    def begin(self, attachment: Attachment) -> None:
        scope = self._scopes[attachment.id] = trio.CancelScope()
        self._nursery.start_soon(self._watch, attachment, scope)

    def end(self, attachment: Attachment) -> None:
        if (scope := self._scopes.pop(attachment.id, None)) is not None:
            scope.cancel()

    async def _watch(self, attachment: Attachment, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                if attachment.owner:
                    what = f"waiting for the end of process {attachment.owner}"
                    nursery.start_soon(supervise, what, self._until_owner_ends, attachment)
                if not attachment.ready:
                    nursery.start_soon(supervise, f"waiting for {attachment.name}", self._until_ready, attachment)

    async def _until_owner_ends(self, attachment: Attachment) -> None:
        owner = attachment.owner
        await ended(owner, attachment.owner_began)
        if not attachment.owner:
            return  # it is mounted, and its client went its way
        found = await self._look([attachment])
        if attachment.id in found and attachment.owner:
            self._uses.confirm_mounted(attachment, found[attachment.id])
        elif attachment.owner:
            _log.warning("process %d ended without letting %s go", owner, attachment.name)
            self._uses.release(attachment)

    async def _until_ready(self, attachment: Attachment) -> None:
        left = attachment.begun + attachment.record_seconds - time.monotonic()
        with trio.move_on_after(max(0.0, left)):
            while not attachment.ready:
                await trio.sleep(_LOOK_EVERY)
                if attachment.ready_file and await self._exists(attachment.ready_file):
                    self._uses.finish(attachment, "marker")
            return
        self._uses.finish(attachment, "time")

    async def _exists(self, path: str) -> bool:
        """Tells whether the file is there; False where its disk does not answer."""
        try:
            return await self._files.run(f"looking for {path}", partial(os.path.exists, path), timeout=_ANSWERS_WITHIN)
        except ServiceDown:
            return False

    async def _look_at_mounts(self) -> None:
        missing: dict[str, int] = {}
        while True:
            await trio.sleep(_LOOK_EVERY)
            looked_for = [one for one in self._uses.state.attachments.values() if one.mountpoint and not one.owner]
            found = await self._look(looked_for) if looked_for else {}
            missing = {one.id: missing.get(one.id, 0) + 1 for one in looked_for if one.id not in found}
            for attachment in looked_for:
                if missing.get(attachment.id, 0) >= _UNMOUNTED_AFTER and attachment.id in self._uses.state.attachments:
                    self._uses.release(attachment)

    async def _look(self, attachments: Iterable[Attachment]) -> dict[str, str]:
        """The mounted attachments, by id: the plane that shows each, "" where that cannot be seen."""
        wanted = list(attachments)
        try:
            tables = await self._tables.run("reading mount tables", processes.tables, {one.namespace for one in wanted})
        except OSError as error:
            _log.warning("the mounts cannot be looked at: %s", error)
            return {one.id: one.plane for one in wanted}
        found: dict[str, str] = {}
        for namespace in tables:
            at: dict[str, MountPoint] = {mount.path: mount for mount in tables[namespace]}
            overlays = {mount.source for mount in tables[namespace] if mount.fstype == "overlay"}
            for one in wanted:
                here = at.get(one.mountpoint) if one.namespace == namespace else None
                if here is not None and here.fstype in FSTYPES:
                    found[one.id] = FSTYPES[here.fstype]
                elif one.namespace == namespace and upper_folder(self._settings.cache, one.id) in overlays:
                    found[one.id] = ""
        return found


async def ended(process: int, since: int) -> None:
    """Wait until the process that began `since` has ended."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    except OSError:  # no descriptor is left: look now and then
        while processes.began(process) == since:
            await trio.sleep(_LOOK_EVERY)
        return
    try:
        if processes.began(process) == since:
            await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)
